//! Bearers that have come to their ends: who takes them from the others, and who frees them.
//!
//! The watch frees nothing, since that may want a lock of the allocator's. So it takes what has finished out of those that it governs, to the *dead*,
//! and the tick thread drops these. (Where the tick thread had parked before, nobody did: of a burst of 3,000 functions 1,664 lay there for good, which
//! is all the room. The watch looked at each of them once a millisecond, 0.3 of a processor in an idle process, and whoever came later with a place
//! was refused as often, until something else was spawned.)
//!
//! # Nobody stays
//! The watch looks each millisecond while it knows a bearer: (F1) under its lock it takes out what has finished; (F2) if any are dead it looks,
//! still under the lock, whether the tick thread is parked, and wakes it; one load if it is not. The tick thread: (P1) says that it parks; (P2) asks, under
//! the same lock, whether any are dead, and does not sleep if so. If P2 has the lock first, P1 comes before F2, which finds it parked.
//! There is room for as many dead as for bearers: so the watch governs no finished one for longer than a look, unless the tick thread
//! is kept from its own for as long as all of them take to come to their ends; then it is hurried at each look.
//!
//! # Nobody waits for them
//! Who comes and finds no room (`newcomers`) does F1 himself. If there is none even so, all the room is taken by those that have not ended and by the dead: he hurries
//! the tick thread, and tries again when he likes.

use std::sync::Arc;

use super::carrier::Carrier;
use super::watch::WatchState;
use super::{Preempting, lock};
use crate::shared::Shared;

impl WatchState {
    /// F1. O(bearers), of which most are moved where many have finished.
    pub(super) fn take_out_finished(&mut self) {
        let mut index = 0;
        while index < self.bearers.len() && self.dead.len() < self.dead.capacity() {
            if self.bearers[index].is_finished() {
                let bearer = self.bearers.swap_remove(index);
                self.dead.push(bearer);
            } else {
                index += 1;
            }
        }
    }

    /// F2.
    pub(super) fn report_dead(&self, shared: &Shared) {
        if self.dead.len() == self.dead.capacity() {
            shared.tick.hurry();
        } else if !self.dead.is_empty() {
            shared.tick.run();
        }
    }
}

impl Preempting {
    /// A bearer that has ended.
    pub(super) fn buried(&self) -> Option<Arc<Carrier>> {
        lock(&self.watch).dead.pop()
    }

    /// P2.
    pub(crate) fn has_dead(&self) -> bool {
        !lock(&self.watch).dead.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::time::{Duration, Instant};

    use super::super::carrier::Outcome;
    use super::*;
    use crate::{Preempt, Scheduler};

    /// Longer than a function waits for its place, its turn and its thread, on a busy machine too.
    const LONG: Duration = Duration::from_secs(60);

    fn eventually(what: &str, condition: impl Fn() -> bool) {
        let end = Instant::now() + LONG;
        while !condition() {
            assert!(Instant::now() < end, "{what} did not come true");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As many bearers as there is room for come to their ends, `those` too, while the tick thread is parked.
    fn end_many(preempting: &Preempting, shared: &Arc<Shared>, those: &mut Vec<Weak<Carrier>>) {
        eventually("a tick thread that parks", || shared.tick.is_parked());
        let room = lock(&preempting.watch).bearers.capacity();
        let ended = preempting.pool.pauser().enter(|thread| {
            let carriers: Vec<_> = (0..room)
                .map(|_| Arc::new(Carrier::foreign(thread.handle())))
                .collect();
            for carrier in &carriers {
                assert!(preempting.comes(shared, carrier), "no room");
                those.push(Arc::downgrade(carrier));
            }
            for carrier in &carriers {
                carrier.finish(&preempting.log, Outcome::Done);
            }
        });
        ended.expect("a thread that can be known");
    }

    #[test]
    fn who_has_ended_while_the_tick_thread_is_parked_keeps_others_from_beginning() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let scheduler = runtime.block_on(async {
            let preempt = Preempt::default().max_borne(8);
            let builder = Scheduler::builder().vcpus(1).preempt(preempt);
            builder.build().unwrap()
        });
        let group = scheduler.group("limited").unwrap();
        let group = group.max("50ms/100ms").create().unwrap();
        let shared = group.shared.clone();
        let preempting = shared.preempt.as_ref().unwrap();
        for _ in 0..3 {
            let mut ended = Vec::new();
            end_many(preempting, &shared, &mut ended);
            // Nothing else wakes the tick thread, and the watch only while it knows a bearer.
            preempting.wake_watch();
            eventually("an end that somebody sees to", || {
                ended.iter().all(|carrier| carrier.strong_count() == 0)
            });
            assert_eq!(lock(&preempting.watch).bearers.len(), 0);

            // Whoever comes at once.
            end_many(preempting, &shared, &mut ended);
            let function = {
                let _runtime = runtime.enter();
                group.spawn_blocking(|| 7)
            };
            let begun = runtime.block_on(async { tokio::time::timeout(LONG, function).await });
            assert_eq!(begun.expect("it never begins").unwrap(), 7);
        }
        runtime.block_on(scheduler.shutdown());
    }
}
