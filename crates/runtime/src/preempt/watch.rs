//! The watch: what the tick thread does for a preempting scheduler. It allocates nothing, logs nothing, and takes leaves only.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use quotient_core::Nanos;
use quotient_pause::{Demoted, Demotion, Region};

use super::burials::ALL_DIGGERS_MAX;
use super::carrier::Carrier;
use super::dozing::quiet_period;
use super::elsewhere::Elsewhere;
use super::heartbeat::Patience;
use super::lookout::{Spread, Turn};
use super::places::BEGUN_BEYOND;
use super::pool::Job;
use super::prompt::Asks;
use super::short_turns::{Burst, STALLED_LOOKS};
use super::{Preempting, lock};
use crate::cpu_clock::OwnTime;
use crate::group::GroupShared;
use crate::shared::Shared;
use crate::task_context::Task;
use crate::tick::TICK;
use crate::watch::STUCK;

/// A poll that nobody waits behind is detached after this, so that the first to come need not wait for the watch. Unit: nanoseconds.
const ALONE: Nanos = Nanos::from_micros(4_000);
/// Period of the watch. Unit: time.
const PERIOD: Duration = Duration::from_millis(1);
/// Looks without anything to see before it parks. Unit: looks. As the tick thread's.
const IDLE_LOOKS: u32 = 25;
/// How long it parks at most. Unit: time. Every look of the tick thread ends it; this is only a bound.
const PARKED_PERIOD: Duration = Duration::from_millis(100);

/// A look that comes later than this after the one before says that the machine has no time for us. Unit: nanoseconds. Five periods.
const STARVED: Nanos = Nanos::from_micros(5_000);

/// Whether a task waits on a virtual CPU.
pub(super) fn waits(shared: &Shared, vcpu: usize) -> bool {
    let me = &shared.vcpus[vcpu];
    shared.loads[vcpu].nr_queued() > 0 || me.inbox.len() > 0 || me.next.is_filled()
}

/// What the watch remembers of one virtual CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    /// The region in progress and its thread's CPU time.
    region: Option<Region>,
    cpu: Nanos,
    at: Nanos,
    /// What the region has used since the first look at it.
    spent: Nanos,
    /// Looks in a row without any progress.
    stalled: u32,
    /// The bearer that has the turn.
    turn: Turn,
}

/// What the watch remembers.
#[derive(Debug)]
pub(super) struct WatchState {
    looks: Vec<Look>,
    /// The carriers that were looked at, so that none of them ends with the watch's last look.
    carriers: Vec<Option<Arc<Carrier>>>,
    /// Room for [`Preempt::max_borne`](crate::Preempt::max_borne) is reserved.
    pub(super) bearers: Vec<Arc<Carrier>>,
    /// Those that have ended (`finished`): as much room as for the others.
    pub(super) dead: Vec<Arc<Carrier>>,
    /// When the next short turns may be: of one, of one that others wait for, of all.
    pub(super) age_from: Nanos,
    pub(super) hasten_from: Nanos,
    pub(super) rescue_from: Nanos,
    /// Who had the last one of the first two kinds.
    pub(super) cursor: usize,
    pub(super) hastened: usize,
    /// Whom to look at first among those whose proxies are away.
    pub(super) away_from: usize,
    /// The turn that is not over.
    pub(super) burst: Option<Burst>,
    /// The last look, and the last one that came late.
    looked: Nanos,
    pub(super) starved: Nanos,
    /// How long to wait with the questions of the heartbeat.
    pub(super) patience: [Patience; 2],
    /// Whether others of the process wait in the kernel.
    pub(super) elsewhere: Elsewhere,
    spread: Spread,
}

impl WatchState {
    pub(super) fn new(slots: usize, max_borne: usize) -> Self {
        // Polls, threads of others with places, blocked or beyond, without, and that drop what never began; and as many that have ended.
        let room = 4 * max_borne + BEGUN_BEYOND + ALL_DIGGERS_MAX;
        Self {
            looks: vec![Look::default(); slots],
            carriers: vec![None; slots],
            bearers: Vec::with_capacity(room),
            dead: Vec::with_capacity(room),
            age_from: Nanos::ZERO,
            hasten_from: Nanos::ZERO,
            rescue_from: Nanos::ZERO,
            cursor: 0,
            hastened: 0,
            away_from: 0,
            burst: None,
            looked: Nanos::ZERO,
            starved: Nanos::ZERO,
            patience: Default::default(),
            elsewhere: Elsewhere::default(),
            spread: Spread::default(),
        }
    }

    /// The virtual CPU's carrier if the last look was at this very one: then it is known what it had used by then, and the reference that
    /// is returned is not the last one, which the watch must not drop.
    pub(super) fn seen_last(
        &self,
        vcpu: usize,
        carrier: Option<&Arc<Carrier>>,
    ) -> Option<Arc<Carrier>> {
        let seen = self.carriers[vcpu].as_ref();
        seen.filter(|seen| carrier.is_some_and(|carrier| Arc::ptr_eq(seen, carrier)))
            .cloned()
    }

    /// What the poll in `region` has used at least, which began `elapsed` ago, of what its carrier has used by now: that was the same at the last look.
    pub(super) fn used_by(
        &self,
        (vcpu, region): (usize, Region),
        cpu: Nanos,
        now: Nanos,
        elapsed: Nanos,
    ) -> Nanos {
        let before = self.looks[vcpu];
        let used = cpu.saturating_sub(before.cpu);
        if before.region == Some(region) {
            return before.spent.saturating_add(used);
        }
        // Other polls came first, and may have computed all that time.
        let passed = now.saturating_sub(before.at);
        used.saturating_sub(passed.saturating_sub(elapsed))
    }

    /// The watch looks at `carrier`: the one before goes to the dead, or stays until there is room.
    fn keep(&mut self, vcpu: usize, carrier: Option<&Arc<Carrier>>) {
        let former = &mut self.carriers[vcpu];
        let is_same = former.as_ref().map(Arc::as_ptr) == carrier.map(Arc::as_ptr);
        let has_room = self.dead.len() < self.dead.capacity();
        if is_same || former.is_some() && !has_room {
            return;
        }
        let former = std::mem::replace(former, carrier.cloned());
        self.dead.extend(former);
    }

    /// The threads that wait for their first turn in `top` or below it, or anywhere, look whether they have ended.
    fn wake_unbegun(&self, top: Option<&GroupShared>) {
        for bearer in &self.bearers {
            if bearer.group().is_some_and(|group| group.is_below(top)) {
                bearer.wake_unbegun();
            }
        }
    }

    /// One of the bearers, by its place among them now.
    pub(super) fn bearer(&self, index: usize) -> Option<Arc<Carrier>> {
        self.bearers.get(index).cloned()
    }
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Something to look at soon.
    Busy,
    /// Bearers that sleep (`dozing`).
    Sleepers {
        any_short: bool,
    },
    Nothing,
}

/// How others reach the watch.
#[derive(Debug, Default)]
pub(super) struct Control {
    parked: AtomicBool,
    stopped: AtomicBool,
    asks: Asks,
    thread: OnceLock<Thread>,
}

impl Control {
    /// Asks for a [prompt look](Preempting::look_promptly).
    #[cold]
    pub(super) fn ask(&self, now: Nanos) {
        if self.asks.ask(now) {
            self.unpark();
        }
    }

    /// The tick thread looks, so something is awake.
    pub(super) fn wake(&self) {
        if self.parked.load(Ordering::SeqCst) && self.parked.swap(false, Ordering::SeqCst) {
            self.unpark();
        }
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Starts the thread `quotient-watch`. Apart from the tick thread, because that one may wait for locks that a paused thread holds.
///
/// # Errors
/// The reason of the system.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let weak = Arc::downgrade(shared);
    let handle = std::thread::Builder::new()
        .name("quotient-watch".into())
        // It looks for some microseconds at a time, and what it looks for is a thread that has the processor.
        .spawn(move || quotient_pause::promptly(|| look_on(&weak)))?;
    if let Some(preempting) = &shared.preempt {
        let _ = preempting.control.thread.set(handle.thread().clone());
    }
    Ok(())
}

/// What the thread does.
fn look_on(weak: &Weak<Shared>) {
    let mut idle = 0;
    let mut next = Instant::now();
    let mut pause = PERIOD;
    while let Some(shared) = weak.upgrade() {
        let Some(preempting) = &shared.preempt else {
            return;
        };
        let control = &preempting.control;
        if control.stopped.load(Ordering::SeqCst) {
            lock(&preempting.watch).elsewhere.note(false);
            return;
        }
        let asked = control.asks.take();
        if idle >= IDLE_LOOKS && (!control.parked.swap(false, Ordering::SeqCst) || asked) {
            // Somebody is awake: looks at its own pace from now on, the first at once. Else a virtual CPU that goes to sleep and wakes again would
            // wake this thread each time; and after a prompt look it would sleep on, not to be woken, while a poll does not return.
            idle = 0;
            next = Instant::now();
        }
        let left = next.saturating_duration_since(Instant::now());
        let rest = if asked && !left.is_zero() {
            preempting.look_promptly(&shared, shared.now());
            left
        } else {
            let seen = preempting.watch(&shared, shared.now(), pause);
            idle = match seen {
                Seen::Busy => 0,
                Seen::Sleepers { .. } | Seen::Nothing => idle.saturating_add(1),
            };
            pause = if idle < IDLE_LOOKS {
                PERIOD
            } else {
                control.parked.store(true, Ordering::SeqCst);
                match seen {
                    Seen::Sleepers { any_short } => quiet_period(idle - IDLE_LOOKS, any_short),
                    _ => PARKED_PERIOD,
                }
            };
            next = Instant::now() + pause;
            pause
        };
        drop(shared);
        std::thread::park_timeout(rest);
    }
}

impl Preempting {
    /// A proxy whose bearer is not blocked any more.
    pub(super) fn returned(&self) -> Option<Task> {
        let state = lock(&self.watch);
        state.bearers.iter().find_map(|bearer| bearer.returned())
    }

    /// The tasks whose polls are borne, and when these began. At most `Preempt::max_borne`.
    pub(crate) fn long_polls(&self) -> Vec<(u64, Nanos)> {
        // A poll may ask, and is not stopped under the watch's lock.
        let _shield = quotient_pause::uninterrupted();
        // Taken before the lock: whoever holds that must not wait for an allocator.
        let mut polls = Vec::with_capacity(self.settings.max_borne);
        let state = lock(&self.watch);
        let borne = state.bearers.iter();
        let borne = borne.filter_map(|bearer| Some((bearer.task()?, bearer.began())));
        polls.extend(borne.take(self.settings.max_borne));
        drop(state);
        polls
    }

    /// Whoever waits for its first turn in `top` or below it, or anywhere, looks whether it has ended.
    pub(super) fn wake_unbegun(&self, top: Option<&GroupShared>) {
        // A poll may ask, and is not stopped under the watch's lock.
        let _shield = quotient_pause::uninterrupted();
        self.all_bearers().wake_unbegun(top);
    }

    /// The scheduler has ended: whoever stands goes on.
    pub(crate) fn set_all_free(&self) {
        for bearer in &self.all_bearers().bearers {
            bearer.set_free(&self.log);
        }
    }

    /// CPU time of the threads that are in a task's poll, together: more from one look to the next if any of them has used a processor.
    pub(crate) fn polls_have_used(&self, shared: &Shared) -> Nanos {
        // A task that ends its own runtime asks, and is not stopped under the locks; whoever holds the watch's waits for no allocator.
        let _shield = quotient_pause::uninterrupted();
        let mut bearers = Vec::with_capacity(self.settings.max_borne);
        {
            let state = lock(&self.watch);
            let borne = state
                .bearers
                .iter()
                .filter(|bearer| bearer.task().is_some());
            bearers.extend(borne.take(self.settings.max_borne).cloned());
        }
        let seats = self.seats.iter().zip(&shared.vcpus[..]);
        let carriers = seats.filter_map(|(seat, vcpu)| {
            let polls = vcpu.polling_since.load(Ordering::Relaxed) != 0;
            polls.then(|| lock(&seat.carrier).clone()).flatten()
        });
        let threads = bearers.into_iter().chain(carriers);
        let times = threads.filter_map(|thread| thread.cpu_time());
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    }

    /// One look at everything, so long after the last.
    fn watch(&self, shared: &Arc<Shared>, now: Nanos, pause: Duration) -> Seen {
        let mut state = self.all_bearers();
        let mut busy = false;
        let mut stalled = 0;
        if now.saturating_sub(state.looked) > STARVED {
            state.starved = now;
        }
        state.looked = now;
        // First, so that there is room for a poll that is detached now.
        state.take_out_finished();
        for vcpu in 0..self.seats.len() {
            busy |= shared.vcpus[vcpu].polling_since.load(Ordering::Relaxed) != 0;
            stalled = stalled.max(self.look_at(shared, &mut state, vcpu, now));
        }
        self.spread(&mut state.spread);
        let waits = |bearer: &Arc<Carrier>| bearer.waits_in_the_kernel();
        let has_waiter = stalled >= STALLED_LOOKS || state.bearers.iter().any(waits);
        state.elsewhere.note(has_waiter);
        let mut standing = false;
        let quiet = self.end_burst(&mut state, now);
        let begun = |bearer: &&Arc<Carrier>| !bearer.is_unbegun();
        for bearer in state.bearers.iter().filter(begun) {
            self.govern(bearer);
            self.bound_uncharged(shared, bearer);
            self.look_at_burials(shared, bearer);
            self.lower_later(bearer);
        }
        for bearer in state.bearers.iter().filter(begun).filter(|_| quiet) {
            standing |= self.enforce(bearer, now);
        }
        if state.bearers.iter().any(|bearer| bearer.runs_over()) {
            self.overtime.store(true, Ordering::Relaxed);
            shared.tick.hurry();
            // Also where all virtual CPUs sleep, as beside one that cannot be stopped.
            busy = true;
        }
        if quiet {
            if self.heartbeat.note_standing(standing, now) {
                shared.tick.run();
            }
            if standing {
                self.let_some_run(&mut state, stalled, now);
            }
        }
        let away = state.look_at_away((shared, self), now, pause);
        if away.returns {
            // Its proxy is queued again by the tick thread, which would sleep on if all virtual CPUs do.
            shared.tick.hurry();
        }
        state.report_dead(shared);
        if busy || standing || state.burst.is_some() || !away.all_sleep {
            Seen::Busy
        } else if state.bearers.is_empty() {
            Seen::Nothing
        } else {
            Seen::Sleepers {
                any_short: away.any_short,
            }
        }
    }

    /// What is forbidden stands; whether it does.
    pub(super) fn enforce(&self, bearer: &Carrier, now: Nanos) -> bool {
        bearer.enforce(&self.log, now, || {
            self.counters.insisted.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Stops a bearer that may run and is nobody's choice: its proxy was moved from the virtual CPU that chose it, or came back from where
    /// blocked ones are. If its group is out of budget where the proxy waits, nobody else would.
    fn govern(&self, bearer: &Arc<Carrier>) {
        let by = bearer.chosen_by();
        // Of no virtual CPU yet, or set free.
        let Some(seat) = self.seats.get(by) else {
            return;
        };
        let chosen = lock(&seat.chosen);
        let is_chosen = matches!(&*chosen, Some((known, _)) if Arc::ptr_eq(known, bearer));
        if !is_chosen && bearer.may_run_for(by) && !bearer.may_pay_later() {
            self.forbid(bearer, by);
        }
    }

    /// Looks at one virtual CPU, and takes it from its carrier if the poll there is too long. For how many looks it is stalled: neither
    /// asleep by its own will nor getting on.
    fn look_at(
        &self,
        shared: &Arc<Shared>,
        state: &mut WatchState,
        vcpu: usize,
        now: Nanos,
    ) -> u32 {
        let me = &shared.vcpus[vcpu];
        let before = state.looks[vcpu];
        let carrier = lock(&self.seats[vcpu].carrier).clone();
        state.keep(vcpu, carrier.as_ref());
        let Some(carrier) = carrier else {
            state.looks[vcpu] = Look::default();
            return 0;
        };
        let since = me.polling_since.load(Ordering::Relaxed);
        let region = carrier.handle.region();
        let Some(cpu) = carrier.cpu_time() else {
            return 0;
        };
        let used = cpu.saturating_sub(before.cpu);
        let idle = me.park.is_sleeping() || self.seats[vcpu].nap.is_on();
        let stands = !idle && used == Nanos::ZERO && before.at != Nanos::ZERO;
        // What only waits for a processor waits for nobody who stands.
        let stuck = stands && carrier.handle.is_asleep() != Some(false);
        let stalled = if stuck {
            before.stalled.saturating_add(1)
        } else {
            0
        };
        let same = region.is_some() && before.region == region;
        let spent = if same {
            before.spent.saturating_add(used)
        } else {
            Nanos::ZERO
        };
        state.looks[vcpu] = Look {
            region,
            cpu,
            spent,
            at: now,
            stalled,
            turn: self.look_at_turn(vcpu, before.turn, now.saturating_sub(before.at)),
        };
        if let Some(region) = region
            && since != 0
        {
            let elapsed = now.saturating_sub(Nanos(since - 1));
            let waits = waits(shared, vcpu);
            let turn = Nanos(u64::try_from(self.settings.turn.as_nanos()).unwrap_or(u64::MAX));
            if elapsed >= TICK {
                me.resched.store(true, Ordering::Relaxed);
            }
            let due = elapsed >= ALONE.max(turn) || waits && elapsed >= turn;
            let computes = has_computed(used, now.saturating_sub(before.at), spent, turn);
            if due && computes {
                self.detach(shared, state, vcpu, &carrier, region, false);
            } else if due && same && elapsed >= STUCK && carrier.handle.is_asleep() == Some(true) {
                // Blocked: nobody else's processor is taken.
                self.detach(shared, state, vcpu, &carrier, region, true);
            }
        }
        stalled
    }

    /// Takes virtual CPU `vcpu` from `carrier`, which is in `region`, perhaps asleep, and gives it to a spare.
    pub(super) fn detach(
        &self,
        shared: &Arc<Shared>,
        state: &mut WatchState,
        vcpu: usize,
        carrier: &Arc<Carrier>,
        region: Region,
        is_asleep: bool,
    ) {
        let full = self.borne.load(Ordering::Relaxed) >= self.settings.max_borne
            || state.bearers.len() == state.bearers.capacity();
        if full || !self.pool.has_idle() {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Ended meanwhile, or about to: no reason to do anything.
        let Ok(caught) = carrier.handle.detach(region) else {
            return;
        };
        // Here, since its thread may be no more when somebody takes over.
        let Some(cpu) = carrier.cpu_time() else {
            return;
        };
        let wall = shared.now();
        carrier.parts(OwnTime { wall, cpu }, is_asleep);
        *lock(&self.seats[vcpu].carrier) = None;
        let job = Job::TakeOver(shared.clone(), vcpu, carrier.clone());
        if !self.pool.give_to_idle(job) {
            // A virtual CPU that was started meanwhile took the thread.
            *lock(&self.seats[vcpu].carrier) = Some(carrier.clone());
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Lowered before the verdict: the bearer knows whether it must be raised.
        let demotion = if is_asleep || Self::is_lowered_later(carrier) {
            Demotion::None
        } else {
            self.settings.demote
        };
        match caught.demote(demotion) {
            Ok(Demoted::NotAtAll) => {}
            Ok(_) => carrier.demoted.store(true, Ordering::Release),
            Err(_) => {
                self.counters.undemoted.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.borne.fetch_add(1, Ordering::Relaxed);
        self.counters.detached.fetch_add(1, Ordering::Relaxed);
        state.bearers.push(carrier.clone());
        caught.commit();
    }
}

/// Whether a poll is long by what it has used: a short one that the machine stalled must not be lowered. It has used half of the time since the
/// last look; or a turn in all, on a machine that is too busy to give it half of anything.
fn has_computed(used: Nanos, passed: Nanos, spent: Nanos, turn: Nanos) -> bool {
    used.as_nanos() * 2 >= passed.as_nanos() || spent >= turn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_busy_machine_a_long_poll_is_left_alone() {
        let micros = Nanos::from_micros;
        let turn = micros(1_000);
        // It has 300 us of each 4 ms between two looks.
        let long = |looks: u64| has_computed(micros(300), micros(4_000), micros(300 * looks), turn);
        assert!(!long(1), "a short one that the machine stalls");
        assert!(!long(3) && long(4), "a turn in all");
        assert!(has_computed(micros(500), micros(1_000), Nanos::ZERO, turn));
        assert!(!has_computed(micros(499), micros(1_000), Nanos::ZERO, turn));
    }
}
