//! Threads of others that begin, and that the watch does not know yet.
//!
//! # Why
//! The watch holds its lock for as long as it looks, some 0.2 ms beside 200 bearers, and longer where it has to wait for a processor with it. A third of
//! the functions that began met it there, at 15,000 a second, and each waited, then those behind it: 100 to 200 us on average. So whoever begins leaves its
//! name here, under a lock that is held for a few instructions, and the watch takes over what it finds.
//!
//! # Nobody is missed
//! Whoever wants all bearers takes the watch's lock and then empties this list ([`Preempting::all_bearers`]), so it is as if they had been added under that lock.
//! Setting free does so after the phase was written, and a newcomer looks at the phase under the lock of the list: either its name is there by then, or
//! it sees the phase. (The same for a kill and a freeze: what they have changed is seen by who comes later, since it looks before it waits.) Who is looked at by the
//! watch only is looked at one look later at most, as if it had come then. The watch is woken after the name is there.
//!
//! # Bounds
//! Room for [`ROOM`] names is reserved, since nobody allocates under the lock; who finds none empties the list itself.

use std::sync::{Arc, MutexGuard};

use super::carrier::Carrier;
use super::watch::WatchState;
use super::{Preempting, lock};
use crate::shared::{CLOSED, Shared};

/// How many may come between two looks. Unit: threads. 64 a millisecond; one that finds no room waits for the watch.
pub(super) const ROOM: usize = 64;

impl WatchState {
    /// Takes over as many as there is room for.
    fn take_over(&mut self, newcomers: &mut Vec<Arc<Carrier>>) {
        if self.bearers.len() + newcomers.len() > self.bearers.capacity() {
            self.take_out_finished();
        }
        let room = self.bearers.capacity() - self.bearers.len();
        let count = newcomers.len().min(room);
        self.bearers.extend(newcomers.drain(..count));
    }
}

impl Preempting {
    /// The watch's lock, and it knows all that have come.
    pub(super) fn all_bearers(&self) -> MutexGuard<'_, WatchState> {
        let mut state = lock(&self.watch);
        state.take_over(&mut lock(&self.newcomers));
        state
    }

    /// Leaves the name of `carrier`, unless the scheduler has ended; false, too, if there is no room.
    pub(super) fn comes(&self, shared: &Shared, carrier: &Arc<Carrier>) -> bool {
        for is_last in [false, true] {
            let mut newcomers = lock(&self.newcomers);
            if shared.phase() == CLOSED {
                return false;
            }
            if newcomers.len() < newcomers.capacity() {
                newcomers.push(carrier.clone());
                return true;
            }
            drop(newcomers);
            if !is_last {
                drop(self.all_bearers());
            }
        }
        false
    }
}
