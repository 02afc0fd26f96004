//! Who was throttled: said once to who asked for it.
//!
//! A *watch* is a list that belongs to who watches. A group is put on it by [`crate::Group::watch_throttle`], under a number of the
//! watcher's choice; the next time a CPU finds no budget for the group, the number is put on the list and the group is watched no more. So
//! a throttle of a group that nobody watches costs one load, and a list is no longer than there were calls of `watch_throttle`.
//!
//! A throttle that came before the call is not said: who was throttled and wants more is throttled again a period later. The list's lock is
//! a leaf: nothing is called under it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A list of groups that were throttled, by numbers that the watcher gave them.
#[derive(Debug, Default)]
pub struct ThrottleWatch {
    /// Whether the list holds anything; written under its lock.
    any: AtomicBool,
    list: Mutex<Vec<u64>>,
}

impl ThrottleWatch {
    /// Moves all numbers to the end of `into`. One load if there are none.
    pub fn take(&self, into: &mut Vec<u64>) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        into.append(&mut list);
    }

    fn say(&self, number: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(number);
        self.any.store(true, Ordering::Release);
    }
}

/// A group's part: on whose list it is put, once.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Whether anybody watches; written under the lock.
    any: AtomicBool,
    by: Mutex<Option<(Arc<ThrottleWatch>, u64)>>,
}

impl Watched {
    /// From now on by this watch, and nobody else.
    pub(super) fn set(&self, watch: &Arc<ThrottleWatch>, number: u64) {
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        *by = Some((Arc::clone(watch), number));
        self.any.store(true, Ordering::Relaxed);
    }

    /// The group was throttled somewhere.
    #[inline]
    pub(super) fn say(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.say_it();
        }
    }

    #[cold]
    fn say_it(&self) {
        let said = {
            let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
            self.any.store(false, Ordering::Relaxed);
            by.take()
        };
        if let Some((watch, number)) = said {
            watch.say(number);
        }
    }
}
