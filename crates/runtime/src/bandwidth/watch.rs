//! Who was throttled, said to who asked for it: a list of the core's, and an alarm that may be a program's code.
//!
//! # Why the alarm is not called where a group is throttled
//! That is in the middle of a virtual CPU's choice, under the lock of its run queue. A tenant can watch a group of its own, and an alarm that slept there kept every task
//! of the scheduler (0.001 of two processors were left to an equal tenant), or the virtual CPU for good. So the core is given an alarm of ours, which puts the
//! *bell* on a list; the tick thread takes it from there, in its next look, and has the program's alarm called as it has wakers called (`preempt::bells`): under
//! preemption on a thread for that, by turns, if a group pays.
//!
//! # None is lost
//! The core calls once from the list's first number until everything is taken. The bell (A1) is marked as rung, and if it was not, (A2) put on the list of each scheduler that
//! it is known to, unless it is there. The tick thread (B1) takes it from the list, and says so; (B2) takes the mark back, and has the alarm called if it was there. Whoever
//! finds the mark comes before B2, and so before a call that is yet to be made; whoever finds the bell listed comes before B1. A virtual CPU that throttles is
//! awake, so the tick thread looks; it does not park with a bell on its list. A bell that was marked by a scheduler that has ended is rung anew as another one learns of it.
//!
//! # Who pays, and who drops it
//! The group that called `watch_throttle` last, or the nearest above it that is left; nobody, if that was none of this scheduler's. The bell knows these weakly,
//! since the watched group may be one of them, and has the bell. The last reference to an alarm may go where no destructor may run, so it is left (`estates`).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};

use crate::alarms::BilledWaker;
use crate::estates;
use crate::group::{Group, GroupShared};
use crate::local;
use crate::preempt::{bill_burial, ring};
use crate::shared::Shared;
use crate::shielded::lock_shielded;
use crate::task::discard;

/// A list of groups that were throttled, by numbers that the watcher gave them: see [`crate::Group::watch_throttle`].
#[derive(Default)]
pub struct ThrottleWatch {
    list: Arc<quotient_core::ThrottleWatch>,
    bell: Option<Arc<Bell>>,
}

impl fmt::Debug for ThrottleWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ThrottleWatch")
            .field("list", &self.list)
            .finish_non_exhaustive()
    }
}

impl ThrottleWatch {
    /// A list that has `alarm` called when it is no longer empty: once until everything is taken, within a tick of 1 to 4 ms.
    ///
    /// It is called as wakers of timers are. Under [`crate::Builder::preempt`] on a thread of its own, where it keeps nobody but alarms and wakers of the same tenant; the
    /// group that called [`watch_throttle`](crate::Group::watch_throttle) pays, and it takes turns with the tasks of that. Without preemption on the scheduler's tick thread, which
    /// it must not keep: the group pays, too. A panic ends there. The closure is dropped on a thread of the blocking pool, if a group has been watched with it.
    pub fn with_alarm(alarm: impl Fn() + Send + Sync + 'static) -> ThrottleWatch {
        let bell = Arc::new(Bell {
            alarm: Some(Arc::new(Alarm {
                has_destructor: has_destructor(&alarm),
                call: Box::new(alarm),
            })),
            is_rung: AtomicBool::new(false),
            posts: Mutex::default(),
        });
        let rung = bell.clone();
        ThrottleWatch {
            list: Arc::new(quotient_core::ThrottleWatch::with_alarm(move || {
                rung.rings()
            })),
            bell: Some(bell),
        }
    }

    /// Moves all numbers to the end of `into`. One load if there are none.
    pub fn take(&self, into: &mut Vec<u64>) {
        let _shield = quotient_pause::uninterrupted();
        self.list.take(into);
    }

    /// The core's list, which a group of this scheduler is to be put on.
    pub(super) fn list_for(&self, shared: &Arc<Shared>) -> &Arc<quotient_core::ThrottleWatch> {
        if let Some(bell) = &self.bell {
            bell.is_known_to(shared);
        }
        &self.list
    }
}

/// The program's.
struct Alarm {
    call: Box<dyn Fn() + Send + Sync>,
    has_destructor: bool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        // Its panic ends here, and does not meet another one, of what the closure has captured: this may be the last reference.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.call)())) {
            discard(panic);
        }
    }
}

const fn has_destructor<T>(_: &T) -> bool {
    std::mem::needs_drop::<T>()
}

/// A scheduler that the bell is known to.
struct Post {
    scheduler: Weak<Shared>,
    rung: Weak<RungBells>,
    /// Who pays there, and those above it, from below; nobody, if there are none.
    payers: Vec<Weak<GroupShared>>,
    /// The bell is on that list.
    is_listed: Arc<AtomicBool>,
}

impl Post {
    fn payer(&self) -> Option<Arc<GroupShared>> {
        let mut left = self.payers.iter().filter_map(Weak::upgrade);
        left.find(|group| !group.core.is_removed())
    }
}

/// What rings for one watch.
pub(crate) struct Bell {
    /// Until it is dropped.
    alarm: Option<Arc<Alarm>>,
    is_rung: AtomicBool,
    posts: Mutex<Vec<Post>>,
}

impl Bell {
    /// A group of this scheduler is to be watched.
    fn is_known_to(self: &Arc<Self>, shared: &Arc<Shared>) {
        let payer = local::current_group();
        let payer = payer.filter(|(scheduler, _)| Arc::ptr_eq(scheduler, shared));
        let payers = payer.map_or_else(Vec::new, |(_, group)| {
            group.bearing().map(Arc::downgrade).collect()
        });
        let scheduler = Arc::downgrade(shared);
        let mut posts = lock_shielded(&self.posts);
        match posts
            .iter_mut()
            .find(|post| post.scheduler.ptr_eq(&scheduler))
        {
            // An alarm that sets its watch again is called for who pays for it.
            Some(_) if payers.is_empty() => return,
            Some(post) => return post.payers = payers,
            None => {
                posts.retain(|post| post.scheduler.strong_count() > 0);
                let rung = Arc::downgrade(&shared.rung);
                posts.push(Post {
                    scheduler,
                    rung,
                    payers,
                    is_listed: Arc::default(),
                });
            }
        }
        drop(posts);
        if self.is_rung.swap(false, Ordering::SeqCst) {
            self.rings();
            shared.tick.run();
        }
    }

    /// A1 and A2, under locks of a scheduler's.
    fn rings(self: &Arc<Self>) {
        if self.is_rung.swap(true, Ordering::SeqCst) {
            return;
        }
        let posts = lock_shielded(&self.posts);
        for post in posts.iter() {
            if let Some(rung) = post.rung.upgrade()
                && !post.is_listed.swap(true, Ordering::SeqCst)
            {
                let bell = (self.clone(), post.is_listed.clone());
                let mut list = lock_shielded(&rung.list);
                list.push(bell);
                rung.any.store(true, Ordering::SeqCst);
            }
        }
    }

    /// B2.
    fn ring_for(&self, shared: &Arc<Shared>) {
        if !self.is_rung.swap(false, Ordering::SeqCst) {
            return;
        }
        let scheduler = Arc::downgrade(shared);
        let payer = {
            let posts = lock_shielded(&self.posts);
            let post = posts.iter().find(|post| post.scheduler.ptr_eq(&scheduler));
            post.and_then(Post::payer)
        };
        let Some(alarm) = &self.alarm else {
            return;
        };
        let waker = Waker::from(alarm.clone());
        match payer {
            // What it does is that group's, other watches that it sets included.
            Some(payer) if shared.preempt.is_none() => {
                bill_burial(&Group::of(shared, &payer), || {
                    local::as_nobody(|| waker.wake())
                });
            }
            payer => ring(shared, BilledWaker::of(scheduler, waker, payer)),
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let posts = self.posts.get_mut();
        let posts = std::mem::take(posts.unwrap_or_else(|poison| poison.into_inner()));
        let is_left = |post: &&Post| post.scheduler.strong_count() > 0;
        // No group was ever watched, and who made it drops it; or the last of a scheduler that has gone does.
        if let Some(post) = posts.iter().find(is_left).or(posts.first())
            && let Some(alarm) = self.alarm.take_if(|alarm| alarm.has_destructor)
        {
            estates::leave(&post.scheduler, vec![alarm], |shared| {
                post.payer().unwrap_or_else(|| shared.root.clone())
            });
        }
    }
}

/// Bells of one scheduler that are rung, for its tick thread.
#[derive(Default)]
pub(crate) struct RungBells {
    any: AtomicBool,
    list: Mutex<Vec<RungBell>>,
}

/// A bell, and whether it is on the list.
type RungBell = (Arc<Bell>, Arc<AtomicBool>);

impl RungBells {
    /// Whether the tick thread has to look.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// The tick thread: has the alarms of watches called that were put on the list. Under no lock.
    pub(crate) fn ring_watches(self: &Arc<Self>) {
        if !self.rung.any() {
            return;
        }
        let bells = {
            let mut list = lock_shielded(&self.rung.list);
            self.rung.any.store(false, Ordering::SeqCst);
            std::mem::take(&mut *list)
        };
        for (bell, is_listed) in bells {
            // B1.
            is_listed.store(false, Ordering::SeqCst);
            bell.ring_for(self);
        }
    }

    /// The end: the same, on a thread for that. Nobody who waits for the end waits for a program's code.
    pub(crate) fn ring_watches_apart(self: &Arc<Self>) {
        if !self.rung.any() {
            return;
        }
        let shared = self.clone();
        let thread = std::thread::Builder::new().name("quotient-ringer".into());
        if thread.spawn(move || shared.ring_watches()).is_err() {
            self.ring_watches();
        }
    }
}
