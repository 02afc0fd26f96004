//! Who was throttled: said once to who asked for it.
//!
//! A *watch* is a list that belongs to who watches. A group is put on it by [`crate::Group::watch_throttle`], under a number of the
//! watcher's choice; the next time a CPU finds no budget for the group, the number is put on the list and the group is watched no more. So
//! a throttle of a group that nobody watches costs one load, and a list is no longer than there were calls of `watch_throttle`.
//!
//! A throttle that came before the call is not said: who was throttled and wants more is throttled again a period later. The list's lock is
//! a leaf: nothing is called under it.
//!
//! A watcher that sleeps has an *alarm*, which is called when the list is no longer empty. None is lost: numbers are added and taken under the
//! list's lock, so whoever finds the list empty comes after everything that was said before was taken, and calls.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

type Alarm = Box<dyn Fn() + Send + Sync>;

/// A list of groups that were throttled, by numbers that the watcher gave them.
#[derive(Default)]
pub struct ThrottleWatch {
    /// Whether the list holds anything; written under its lock.
    any: AtomicBool,
    list: Mutex<Vec<u64>>,
    alarm: Option<Alarm>,
}

impl fmt::Debug for ThrottleWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ThrottleWatch")
            .field("any", &self.any)
            .field("list", &self.list)
            .finish_non_exhaustive()
    }
}

impl ThrottleWatch {
    /// A list that calls `alarm` when it is no longer empty: once until everything is taken.
    ///
    /// It is called by the CPU that throttles, in the middle of its choice of what runs next, and may be dropped there, too. So it is the host's: it may set a flag,
    /// or wake a thread of the host's; it must not wait, nor run what others than the host wrote, and must not call anything of this crate. Its
    /// panics are dropped.
    pub fn with_alarm(alarm: impl Fn() + Send + Sync + 'static) -> ThrottleWatch {
        ThrottleWatch {
            alarm: Some(Box::new(alarm)),
            ..ThrottleWatch::default()
        }
    }

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
        let is_first = list.is_empty();
        list.push(number);
        self.any.store(true, Ordering::Release);
        drop(list);
        if is_first && let Some(alarm) = &self.alarm {
            // Whose panic it is cannot be told here, and its payload may panic again when it is dropped.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(alarm)) {
                core::mem::forget(payload);
            }
        }
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
        let before = by.replace((Arc::clone(watch), number));
        self.any.store(true, Ordering::Relaxed);
        drop(by);
        // Its alarm may be the last of something that asks for the lock.
        drop(before);
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
