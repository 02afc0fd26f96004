//! The one thread that the runtime owns: it looks at the virtual CPUs while they cannot look themselves.
//!
//! Every [`TICK`] while tasks wait (every [`QUIET_PERIOD`] while some run but none waits, or where a thread of its own preempts polls) it (1) asks running tasks whose slice is over
//! to return at their next checkpoint, and (2) sees to the work of virtual CPUs that cannot look at it (`watch`). (3) It runs refills of
//! limits when they are due, and calls the wakers of `alarms`, and alarms of `ThrottleWatch`. (4) Where asked for, it notes who waits (`pressure`). It holds no lock while it does so.
//! With all virtual CPUs asleep for [`IDLE_PERIODS`] it parks until one wakes, or a refill is due; if one is to come, after
//! [`IDLE_PERIODS_TO_REFILL`].
//!
//! # Whose code runs here
//! Nobody's that could end it or keep it for long, since every tenant's refills wait behind it. What a tenant's function captured, and what a runtime does
//! that a tenant has built, is run elsewhere (`preempt::unbegun`), and so are destructors of what groups have left (`estates`), and wakers of its own (`preempt::bells`; without preemption, where any of its polls
//! keeps a virtual CPU anyway, they are called here, caught and billed). What is left is what the application has said for itself, a subscriber of `tracing`
//! or its runtime's name for a thread. No panic of these, or of ours, ends the thread: what a look has not done is done by the next one.
//!
//! # No refill is late
//! The thread sleeps until the earlier of its period's end and the next refill, and publishes that time in `next_look` before it
//! sleeps: (T1) store `next_look`; (T2) fence; (T3) read the next refill again, and do not sleep beyond it. A virtual CPU whose charge
//! may have started a period timer, before the next poll: (V1) the timer was made earlier by the core; (V2) fence; (V3) read
//! `next_look`, and unpark the thread if the refill is earlier. Not both T3 and V3 can miss the other's store. (V2 is passed only when
//! V3 would matter: the relaxed look before it may be old by the time a store takes to be seen. The next choice looks again, and comes
//! within the core's interval of publishing at the latest: only a task that another one wakes and waits for runs without a choice.)

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use quotient_core::Nanos;

use crate::preempt::Preempting;
use crate::pressure::PressureWatch;
use crate::shared::Shared;
use crate::task::discard;
use crate::watch::Watch;

/// Period of the tick. Unit: nanoseconds. Default: 1 ms, the kernel's at HZ=1000; bounds how late a checkpoint learns that
/// its slice is over. One wake-up costs about 5 us, 0.5 % of one processor while anything runs.
pub(crate) const TICK: Nanos = Nanos::from_micros(1_000);
/// Longest period while nothing waits behind a running task, or where polls are preempted: there another thread looks every
/// millisecond (`preempt::watch`). Unit: nanoseconds. Default: 4 ms: each wake-up of this thread preempts a
/// worker, and a thousand a second cost 1.8 % of a server that has one processor. A task that gets stuck is then noticed within
/// 4 ms and a tick.
const QUIET_PERIOD: Nanos = Nanos::from_micros(4_000);
/// Periods without an awake virtual CPU before the thread parks. Unit: periods. Default: 25, so that a server with a request
/// every 100 ms never pays for an unpark.
const IDLE_PERIODS: u32 = 25;

/// The same while a refill is to come: the thread gets up for that by itself, so it may park at once, and a virtual CPU that wakes for
/// something else meanwhile pays for an unpark. Unit: periods. Default: 2: under a limit that binds, half of all looks found everybody
/// asleep until the refill, and a look costs 30 to 50 us on a processor that sleeps (0.017 processors beside a limit of 0.4).
const IDLE_PERIODS_TO_REFILL: u32 = 2;

/// Batches of refills in one look. Unit: batches of the core's 256 groups; 64 are 16,384 groups, some milliseconds.
const REFILL_BATCHES: u32 = 64;
/// How long the thread parks at most with nothing to do. Unit: nanoseconds. One hour: it is only a bound.
const PARKED_PERIOD: Nanos = Nanos::from_secs(3_600);

const TICKING: u8 = 0;
const PARKED: u8 = 1;
const STOPPED: u8 = 2;

/// How others reach the tick thread.
#[derive(Debug, Default)]
pub(crate) struct TickControl {
    state: AtomicU8,
    /// When the thread will look next, on the scheduler's clock; the far future while it is parked.
    next_look: AtomicU64,
    thread: OnceLock<Thread>,
}

impl TickControl {
    /// A virtual CPU wakes: the thread must tick. One load while it does.
    #[inline]
    pub(crate) fn run(&self) {
        if self.state.load(Ordering::SeqCst) == PARKED {
            self.leave_park();
        }
    }

    /// Whoever comes between the two steps takes the thread for one that ticks, so that nobody is stopped there: a frozen poll kept it asleep.
    #[cold]
    fn leave_park(&self) {
        let _shield = quotient_pause::uninterrupted();
        let left = self
            .state
            .compare_exchange(PARKED, TICKING, Ordering::SeqCst, Ordering::SeqCst);
        if left.is_ok() {
            self.unpark();
        }
    }

    /// A refill is due at `due`: the thread must look by then. Two loads if it will.
    #[inline]
    pub(crate) fn look_by(&self, due: Nanos) {
        if due.as_nanos() < self.next_look.load(Ordering::Relaxed) {
            self.look_earlier(due);
        }
    }

    #[cold]
    fn look_earlier(&self, due: Nanos) {
        // As in `leave_park`: for who comes next the time is announced.
        let _shield = quotient_pause::uninterrupted();
        fence(Ordering::SeqCst);
        // Lowered here, so that a time is announced once and not before every poll.
        let before = self.next_look.fetch_min(due.as_nanos(), Ordering::SeqCst);
        if due.as_nanos() < before {
            self.run();
            self.unpark();
        }
    }

    /// There is something that does not wait for the period's end.
    pub(crate) fn hurry(&self) {
        self.run();
        self.unpark();
    }

    /// The scheduler has ended: the thread returns.
    pub(crate) fn stop(&self) {
        self.state.store(STOPPED, Ordering::SeqCst);
        self.unpark();
    }

    fn unpark(&self) {
        // It is two steps itself: a token that is there already wakes nobody.
        let _shield = quotient_pause::uninterrupted();
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_parked(&self) -> bool {
        self.state.load(Ordering::SeqCst) == PARKED
    }

    fn stopped(&self) -> bool {
        self.state.load(Ordering::SeqCst) == STOPPED
    }
}

/// Starts the thread `quotient-tick`.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let weak = Arc::downgrade(shared);
    let handle = std::thread::Builder::new()
        .name("quotient-tick".into())
        .spawn(move || {
            let mut idle = 0;
            let mut period = TICK;
            let mut watch = Watch::default();
            let mut pressure = PressureWatch::default();
            // The scheduler ends before its last reference goes, or goes without ever being used: both end the loop.
            while let Some(shared) = weak.upgrade() {
                if shared.tick.stopped() {
                    if let Some(preempting) = &shared.preempt {
                        preempting.look_last(&shared);
                    }
                    return;
                }
                let seen = look(&shared, &mut watch, &mut pressure);
                period = if seen.waiting {
                    TICK
                } else {
                    Nanos(period.as_nanos() * 2).min(QUIET_PERIOD)
                };
                idle = if seen.awake { 0 } else { idle + 1 };
                // What is to be looked at while everybody sleeps is looked at once a period: `park` would come back from it at once.
                if idle < patience(&shared) || has_to_look(&shared) {
                    let pause = until_next_look(&shared, period);
                    drop(shared);
                    std::thread::park_timeout(pause);
                } else {
                    idle = 0;
                    park(&shared);
                }
            }
        })?;
    let _ = shared.tick.thread.set(handle.thread().clone());
    Ok(())
}

/// Looks that find everybody asleep before the thread parks. Timers on clocks are looked at for as long as ever: a metered thread's clock
/// goes on.
fn patience(shared: &Shared) -> u32 {
    if shared.tree.next_refill().is_some() && !shared.cpu_timers.are_armed() {
        IDLE_PERIODS_TO_REFILL
    } else {
        IDLE_PERIODS
    }
}

/// T1 to T3: how long to sleep, a period at most, and announced to those who may start a timer. An unpark in between shortens
/// the sleep to nothing.
fn until_next_look(shared: &Shared, period: Nanos) -> Duration {
    let now = shared.now();
    let by = now.saturating_add(period);
    shared.tick.next_look.store(by.as_nanos(), Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let by = shared.tree.next_refill().map_or(by, |due| due.min(by));
    let by = shared.alarms.next().map_or(by, |due| due.min(by));
    shared
        .tick
        .next_look
        .fetch_min(by.as_nanos(), Ordering::SeqCst);
    Duration::from_nanos(by.saturating_sub(now).as_nanos())
}

/// Parks until a virtual CPU wakes or a refill is due. Looks once more after announcing it, so that a wake-up in between is seen by
/// one side.
fn park(shared: &Shared) {
    let control = &shared.tick;
    if control
        .state
        .compare_exchange(TICKING, PARKED, Ordering::SeqCst, Ordering::SeqCst)
        .is_err()
    {
        return;
    }
    fence(Ordering::SeqCst);
    if has_to_look(shared) {
        control.run();
    }
    while control.state.load(Ordering::SeqCst) == PARKED {
        let pause = until_next_look(shared, PARKED_PERIOD);
        if pause.is_zero() {
            control.run();
            return;
        }
        std::thread::park_timeout(pause);
        if shared.tree.next_refill().is_some() {
            control.run();
        }
    }
}

/// Whether there is anything to look at, asked after the thread has said that it parks: who brings such a thing does so first, and then
/// looks whether the thread is parked ([`TickControl::run`]).
fn has_to_look(shared: &Shared) -> bool {
    let stands_back = |vcpu: usize| shared.stands_back(vcpu);
    let keeps_back = |preempting: &Preempting| {
        preempting.any_kept_back()
            || preempting.has_lines()
            || preempting.any_waits_for_payer()
            || preempting.has_dead()
    };
    awake(shared)
        || shared.preempt.as_ref().is_some_and(keeps_back)
        || shared.has_dying()
        || shared.look_at_all_searches(shared.now())
        || shared.has_leaving()
        || shared.holders.any()
        || shared.estates.any()
        || shared.rung.any()
        || (0..shared.slots_in_use()).any(stands_back)
}

fn awake(shared: &Shared) -> bool {
    shared
        .used_vcpus()
        .iter()
        .any(|vcpu| vcpu.online.load(Ordering::Relaxed) && !vcpu.park.is_sleeping())
}

/// What a tick found.
struct Seen {
    /// A virtual CPU is awake, or there is other work for the next tick.
    awake: bool,
    /// Tasks wait behind others.
    waiting: bool,
}

/// One tick, and what it is watched for. After a panic there is a next one in any case.
fn look(shared: &Arc<Shared>, watch: &mut Watch, pressure: &mut PressureWatch) -> Seen {
    // What it leaves unfinished is behind locks, or looked at anew: it holds no run queue.
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let seen = tick(shared, watch);
        pressure.look(shared, shared.now());
        seen
    }));
    looked.unwrap_or_else(|panic| {
        discard(panic);
        Seen {
            awake: true,
            waiting: true,
        }
    })
}

/// One tick.
fn tick(shared: &Arc<Shared>, watch: &mut Watch) -> Seen {
    let now = shared.now();
    if let Some(preempting) = &shared.preempt {
        preempting.tick_begins(now);
    }
    let mut batches = 0;
    // Bounded, because the virtual CPUs must be looked at, too: what is left is due at once and comes in the next round.
    while shared.refill(now).more && batches < REFILL_BATCHES {
        batches += 1;
    }
    let waiting = watch.look(shared, now);
    shared.alarms.ring(now);
    shared.ring_watches();
    shared.let_go_of_the_dead();
    shared.holders.look(now);
    let searches = shared.look_at_all_searches(now) || shared.holders.any();
    // What crossed its limit without a poll of the group, or between a timer's creation and its first sight.
    if shared.cpu_timers.are_armed() {
        shared.cpu_timers.look_at_all();
    }
    let removing = crate::group::finish_removals(shared);
    shared.settle_estates();
    let samples = shared.records_pressure.load(Ordering::Relaxed);
    let waiting = waiting && (samples || shared.preempt.is_none());
    if let Some(preempting) = &shared.preempt {
        preempting.tick(shared);
    }
    Seen {
        awake: removing || searches || awake(shared),
        waiting: waiting || removing || searches,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Leftover, Scheduler};

    /// Everybody sleeps until the refill: the thread does not look again and again.
    #[test]
    fn nobody_runs_before_a_refill_and_the_thread_looks_all_the_same() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let scheduler = runtime.block_on(async { Scheduler::builder().vcpus(1).build().unwrap() });
        let group = scheduler.group("g").unwrap().create().unwrap();
        assert_eq!(patience(&group.shared), IDLE_PERIODS);
        group.set_max("1ms/1s").unwrap();
        let spin = async {
            let end = std::time::Instant::now() + Duration::from_millis(5);
            while std::time::Instant::now() < end {
                std::hint::spin_loop();
            }
        };
        runtime.block_on(group.spawn(spin)).unwrap();
        assert_eq!(patience(&group.shared), IDLE_PERIODS_TO_REFILL);
        runtime.block_on(scheduler.shutdown());
    }

    /// Hazard: a virtual CPU that refills on its way to a long poll wakes another, which tokio puts where only this worker looks.
    #[test]
    fn who_is_woken_by_a_refill_waits_behind_the_next_poll() {
        use std::sync::atomic::AtomicUsize;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let scheduler = runtime.block_on(async { Scheduler::builder().vcpus(2).build().unwrap() });
        let create = |name, weight| scheduler.group(name).unwrap().weight(weight).create();
        let (limited, free) = (
            create("limited", 1).unwrap(),
            create("free", 10_000).unwrap(),
        );
        limited.set_max("1ms/20ms").unwrap();
        let shared = limited.shared.clone();
        // It would refill before anybody else, and send for a stand-in.
        shared.tick.stop();
        let polls = Arc::new(AtomicUsize::new(0));
        let spin = |time: Duration, done: &dyn Fn() -> bool| {
            let end = std::time::Instant::now() + time;
            while std::time::Instant::now() < end && !done() {
                std::hint::spin_loop();
            }
        };
        for _ in 0..2 {
            let polls = polls.clone();
            drop(limited.spawn(async move {
                loop {
                    spin(Duration::from_millis(2), &|| false);
                    polls.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }));
        }
        let waits = |vcpu: usize| {
            shared.vcpus[vcpu].park.is_sleeping() && shared.queue(vcpu).nr_throttled() > 0
        };
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while !(waits(0) && waits(1)) {
            assert!(std::time::Instant::now() < end, "they do not wait on both");
            std::thread::sleep(Duration::from_millis(1));
        }
        // What they owe is less than what is due by then.
        std::thread::sleep(Duration::from_millis(300));
        let before = polls.load(Ordering::Relaxed);
        let hog = free.spawn(async move {
            let went_on = || polls.load(Ordering::Relaxed) > before;
            spin(Duration::from_secs(10), &went_on);
            went_on()
        });
        assert!(runtime.block_on(hog).unwrap(), "woken, and not polled");
        runtime.block_on(scheduler.shutdown());
    }

    /// A group that is queued for removal after the thread has looked and before it has said that it parks: nobody wakes it.
    #[test]
    fn a_removal_is_forgotten_by_a_thread_that_parks() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let scheduler = runtime.block_on(async { Scheduler::builder().vcpus(1).build().unwrap() });
        let group = scheduler.group("g").unwrap().create().unwrap();
        let shared = group.shared.clone();
        // The virtual CPU goes to sleep, then the thread parks.
        while shared.tick.state.load(Ordering::SeqCst) != PARKED {
            runtime.block_on(tokio::task::yield_now());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!has_to_look(&shared));
        shared.leaving.lock().unwrap().push(group.inner.clone());
        assert!(has_to_look(&shared), "parked beside a removal");
        // Whoever removes finishes what he finds.
        group.remove(Leftover::Kill).unwrap();
        assert!(!has_to_look(&shared));
        // A spawn that is refused leaves the removed group once more, and keeps nobody busy with that.
        assert!(group.try_spawn(async {}).is_err());
        crate::group::finish_removals(&shared);
        assert!(!shared.has_leaving(), "removed for ever");
        runtime.block_on(scheduler.shutdown());
    }
}
