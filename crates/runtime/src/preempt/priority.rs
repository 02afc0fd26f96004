//! Whoever holds a lock that everybody needs is not lowered.
//!
//! A thread of low priority that loses its processor between two instructions gets it back when nobody else wants it, and on a busy machine all
//! wait for it who wait for its lock: carriers, the tick thread, and whoever makes a group, which took 0.1 to 1 s. A thread cannot be raised
//! again, so:
//! - *A bearer is not lowered while it shields itself*, which it does where it takes such locks: the watch does it later, [`LOOKS_MAX`] looks at most.
//! - *What holds the lock of the tree's shape for long is done for a lowered bearer by an idle thread of the pool*
//!   ([`at_usual_priority`]), while the bearer sleeps; its group pays for it. If no thread is idle the bearer does it itself.
//!
//! What remains: the locks that are held for some instructions (an inbox, a budget's pool) by a wake-up, a spawn or a charge of a lowered bearer.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};

use quotient_core::Nanos;
use quotient_pause::Demoted;

use super::carrier::Carrier;
use super::pool::Job;
use super::{Preempting, current, lock};
use crate::clock::thread_cpu_time;
use crate::shared::Shared;

/// For how long a bearer that shields itself whenever it is looked at is not lowered. Unit: looks, of a millisecond.
const LOOKS_MAX: u32 = 20;

/// Runs `act`, which takes locks that everybody needs, here or, if the calling thread is a bearer of low priority, on a thread that is not. Two loads if
/// it need not be asked for.
pub(crate) fn at_usual_priority<R, F>(shared: &Arc<Shared>, act: F) -> R
where
    R: Send + 'static,
    F: FnOnce() -> R + Send + 'static,
{
    let lowered = shared.preempt.as_ref().and_then(|preempting| {
        let carrier = current()?;
        let is_lowered = carrier.demoted.load(Ordering::Acquire);
        is_lowered.then_some((preempting, carrier))
    });
    let Some((preempting, carrier)) = lowered else {
        return act();
    };
    let act = Arc::new(Mutex::new(Some(act)));
    let (sender, receiver) = mpsc::sync_channel(1);
    let job = {
        let (act, shared) = (act.clone(), shared.clone());
        Box::new(move || {
            let act = lock(&act).take();
            let before = thread_cpu_time();
            let result = act.map(|act| catch_unwind(AssertUnwindSafe(act)));
            let used = thread_cpu_time().zip(before);
            let used = used.map_or(Nanos::ZERO, |(now, before)| now.saturating_sub(before));
            if let Some(group) = carrier.group() {
                group.core.add_foreign_cpu_time(used, shared.now());
            }
            // The bearer waits for it.
            let _ = sender.send(result);
        })
    };
    if preempting.pool.give_to_idle(Job::Act(job))
        && let Ok(Some(result)) = receiver.recv()
    {
        return result.unwrap_or_else(|panic| resume_unwind(panic));
    }
    let act = lock(&act).take();
    match act {
        Some(act) => act(),
        None => unreachable!("a job that was taken sends what came of it"),
    }
}

impl Preempting {
    /// The watch: lowers a bearer that shielded itself when it was detached.
    pub(super) fn lower_later(&self, bearer: &Carrier) {
        let looks = bearer.lower_in.load(Ordering::Relaxed);
        if looks == 0 {
            return;
        }
        let is_last = looks == 1;
        bearer.lower_in.store(looks - 1, Ordering::Relaxed);
        if bearer.handle.is_uninterrupted() && !is_last {
            return;
        }
        bearer.lower_in.store(0, Ordering::Relaxed);
        let lowered = bearer.unless_finished(|| {
            // First, so that who ends after this knows.
            bearer.demoted.store(true, Ordering::Release);
            bearer.handle.demote(self.settings.demote)
        });
        match lowered {
            None | Some(Ok(Demoted::Fully | Demoted::WithoutSlice)) => {}
            Some(Ok(_)) => bearer.demoted.store(false, Ordering::Release),
            Some(Err(_)) => {
                bearer.demoted.store(false, Ordering::Release);
                self.counters.undemoted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The watch: a bearer that is being detached shields itself, and is lowered when it does not.
    pub(super) fn is_lowered_later(bearer: &Carrier) -> bool {
        let shielded = bearer.handle.is_uninterrupted();
        if shielded {
            bearer.lower_in.store(LOOKS_MAX, Ordering::Relaxed);
        }
        shielded
    }
}
