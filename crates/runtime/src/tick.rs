//! The one thread that the runtime owns: it looks at the virtual CPUs while they cannot look themselves.
//!
//! Every [`TICK`] while tasks wait (every [`QUIET_PERIOD`] while some run but none waits) it (1) asks running tasks whose slice is over to return at their next checkpoint,
//! and (2) brings a stand-in when every regular virtual CPU is stuck in a long poll or blocks in place and work waits. It holds no
//! lock while it does so and runs no user code. With all virtual CPUs asleep for [`IDLE_PERIODS`] it parks until one wakes.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use quotient_core::Nanos;

use crate::gates;
use crate::shared::Shared;
use crate::vcpu;

/// Period of the tick. Unit: nanoseconds. Default: 1 ms, the kernel's at HZ=1000; bounds how late a checkpoint learns that
/// its slice is over. One wake-up costs about 5 us, 0.5 % of one processor while anything runs.
pub(crate) const TICK: Nanos = Nanos::from_micros(1_000);
/// A poll this long is *stuck* if work waits behind it. Unit: nanoseconds. Default: two ticks.
pub(crate) const STUCK: Nanos = Nanos::from_micros(2_000);
/// Longest period while nothing waits behind a running task. Unit: nanoseconds. Default: 4 ms: each wake-up of this thread preempts a
/// worker, and a thousand a second cost 1.8 % of a server that has one processor. A task that gets stuck is then noticed within
/// 4 ms and a tick.
const QUIET_PERIOD: Nanos = Nanos::from_micros(4_000);
/// Periods without an awake virtual CPU before the thread parks. Unit: periods. Default: 25, so that a server with a request
/// every 100 ms never pays for an unpark.
const IDLE_PERIODS: u32 = 25;

const TICKING: u8 = 0;
const PARKED: u8 = 1;
const STOPPED: u8 = 2;

/// How others reach the tick thread.
#[derive(Debug, Default)]
pub(crate) struct TickControl {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl TickControl {
    /// A virtual CPU wakes: the thread must tick. One load while it does.
    #[inline]
    pub(crate) fn run(&self) {
        if self.state.load(Ordering::SeqCst) == PARKED
            && self
                .state
                .compare_exchange(PARKED, TICKING, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        {
            self.unpark();
        }
    }

    /// The scheduler has ended: the thread returns.
    pub(crate) fn stop(&self) {
        self.state.store(STOPPED, Ordering::SeqCst);
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
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
            gates::patch();
            let mut idle = 0;
            let mut period = TICK;
            // The scheduler ends before its last reference goes, or goes without ever being used: both end the loop.
            while let Some(shared) = weak.upgrade() {
                if shared.tick.stopped() {
                    return;
                }
                let seen = tick(&shared);
                period = if seen.waiting {
                    TICK
                } else {
                    Nanos(period.as_nanos() * 2).min(QUIET_PERIOD)
                };
                idle = if seen.awake { 0 } else { idle + 1 };
                if idle < IDLE_PERIODS {
                    drop(shared);
                    std::thread::sleep(Duration::from_nanos(period.as_nanos()));
                } else {
                    idle = 0;
                    park(&shared);
                }
            }
        })?;
    let _ = shared.tick.thread.set(handle.thread().clone());
    Ok(())
}

/// Parks until a virtual CPU wakes. Looks once more after announcing it, so that a wake-up in between is seen by one side.
fn park(shared: &Shared) {
    let control = &shared.tick;
    if control
        .state
        .compare_exchange(TICKING, PARKED, Ordering::SeqCst, Ordering::SeqCst)
        .is_err()
    {
        return;
    }
    if awake(shared) {
        control.run();
    }
    while control.state.load(Ordering::SeqCst) == PARKED {
        std::thread::park_timeout(Duration::from_secs(3600));
    }
}

fn awake(shared: &Shared) -> bool {
    shared
        .vcpus
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

/// One tick.
fn tick(shared: &Arc<Shared>) -> Seen {
    let now = shared.now();
    let mut stuck = 0;
    let mut waiting = false;
    for (index, vcpu) in shared.vcpus.iter().enumerate() {
        let queued = shared.loads[index].nr_queued() > 0 || vcpu.inbox.len() > 0;
        waiting |= queued;
        let since = vcpu.polling_since.load(Ordering::Relaxed);
        if since == 0 {
            continue;
        }
        let elapsed = now.saturating_sub(Nanos(since - 1));
        if elapsed >= TICK {
            vcpu.resched.store(true, Ordering::Relaxed);
        }
        if index < shared.regular && shared.is_stuck(index, now) {
            stuck += 1;
        }
    }
    if waiting && stuck == shared.regular {
        vcpu::stand_in(shared);
    }
    let removing = crate::group::finish_removals(shared);
    Seen {
        awake: removing || awake(shared),
        waiting: waiting || removing,
    }
}
