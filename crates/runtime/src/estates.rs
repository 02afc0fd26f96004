//! What groups leave behind: values that were kept with them, and whatever else of a program's goes where no program's code may run.
//!
//! # Why not where it goes
//! The last reference to a group goes anywhere: on a virtual CPU between two polls, where a panic aborts the process; on the tick thread, where a destructor
//! that sleeps keeps everybody's refills; under locks of the scheduler's, where one that makes a group waits for itself; and nobody pays for it. So
//! who holds it there leaves it ([`leave`]), which is a push and a wake-up, and has it dropped elsewhere:
//! - *under preemption* with what never began of the *heir*'s, by its digger (`preempt::burials`): by turns, ahead of a limit by no more than the dead may be;
//! - *without*, on a thread of the runtime's blocking pool, one for each heir, one estate after the other; the heir is billed, as for a function.
//!
//! A panic ends with its destructor. The heir is the nearest group above that the core has not given up: the root pays for groups at the top.
//! What has no destructor is dropped where it is.
//!
//! # None is lost
//! Who leaves something (N1) lists it, under the lock; (N2) passes a fence; (N3) looks whether the scheduler has closed. If not, the tick thread
//! looks at the list in its next look. If so, that has stopped, and a thread for the purpose drops what is listed: not the caller, who may hold locks, unless the
//! system gives no thread. The end (C1) sets the phase, (C2) passes a fence, and (C3) has such a thread see to the list: if N3 misses C1, C3 finds N1. With the scheduler's last reference
//! gone as well nobody holds a lock of it any more, and its groups' values are dropped on the spot.
//!
//! `open` counts what is left and not yet dropped; a shutdown waits for it, as for destructors of tasks.
//! The lock is a leaf, and nothing is dropped under it.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};

use crate::group::{Group, GroupShared};
use crate::local::as_nobody;
use crate::preempt::{bill_burial, hand_to_host};
use crate::shared::{CLOSED, Shared};
use crate::shielded::{Shielded, lock_shielded};
use crate::task::discard;

/// Something with a destructor of the program's.
pub(crate) type Left = Arc<dyn Any + Send + Sync>;

/// What one group has left.
pub(crate) struct Estate {
    scheduler: Weak<Shared>,
    pub(crate) heir: Arc<GroupShared>,
    left: Vec<Left>,
}

impl Estate {
    /// Drops it here, and the heir pays.
    pub(crate) fn settle(self) {
        let Some(shared) = self.scheduler.upgrade() else {
            return;
        };
        let heir = Group::of(&shared, &self.heir);
        bill_burial(&heir, || drop(self));
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        drop_each(std::mem::take(&mut self.left));
        let Some(shared) = self.scheduler.upgrade() else {
            return;
        };
        shared.estates.open.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if shared.phase() == CLOSED {
            shared.function_was_dropped();
        }
    }
}

/// One after the other, so that none is lost by the panic of another, and no two panics meet.
fn drop_each(left: Vec<Left>) {
    for one in left {
        let drops = || as_nobody(|| drop(one));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(drops)) {
            discard(panic);
        }
    }
}

/// After the end: on a thread for that; without one it is dropped here.
pub(crate) fn drop_apart(left: impl Send + 'static) {
    let thread = std::thread::Builder::new().name("quotient-estates".into());
    drop(thread.spawn(move || drop(left)));
}

#[derive(Default)]
struct List {
    new: Vec<Estate>,
    /// Without preemption: what a thread of the pool is to see to, by the heir's address. As long as there is such a queue, there is a thread.
    queues: HashMap<usize, VecDeque<Estate>>,
    /// A thread sees to what comes after the end.
    late: bool,
}

/// The estates of one scheduler.
#[derive(Default)]
pub(crate) struct Estates {
    list: Mutex<List>,
    /// Some are new. Written under the lock.
    any: AtomicBool,
    open: AtomicUsize,
}

impl Estates {
    fn lock(&self) -> Shielded<'_, List> {
        lock_shielded(&self.list)
    }

    /// Whether the tick thread has to look.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Whether all that was left is dropped.
    pub(crate) fn are_settled(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    fn take(&self) -> Vec<Estate> {
        let mut list = self.lock();
        self.any.store(false, Ordering::SeqCst);
        std::mem::take(&mut list.new)
    }
}

/// For whoever has the last of something in hand, under any lock but that of the list: it is dropped elsewhere, and the heir pays, for which `heir` is asked.
pub(crate) fn leave(
    scheduler: &Weak<Shared>,
    left: Vec<Left>,
    heir: impl FnOnce(&Shared) -> Arc<GroupShared>,
) {
    let Some(shared) = scheduler.upgrade() else {
        return drop_each(left);
    };
    let estate = Estate {
        scheduler: scheduler.clone(),
        heir: heir(&shared),
        left,
    };
    let estates = &shared.estates;
    estates.open.fetch_add(1, Ordering::SeqCst);
    {
        // N1.
        let mut list = estates.lock();
        list.new.push(estate);
        estates.any.store(true, Ordering::SeqCst);
    }
    // N2 and N3.
    fence(Ordering::SeqCst);
    if shared.phase() == CLOSED {
        shared.settle_late();
    } else {
        shared.tick.run();
    }
}

impl Shared {
    /// Has all that was left dropped. Under no lock.
    pub(crate) fn settle_estates(self: &Arc<Self>) {
        if !self.estates.any() {
            return;
        }
        if self.phase() == CLOSED {
            // The pool may have ended, and would have it dropped here, where others wait for the end.
            return self.settle_late();
        }
        let estates = self.estates.take();
        if let Some(preempting) = &self.preempt {
            return drop(preempting.settle(self, estates));
        }
        let mut due = Vec::new();
        {
            let mut list = self.estates.lock();
            for estate in estates {
                let heir = Arc::as_ptr(&estate.heir).addr();
                let queue = list.queues.entry(heir).or_insert_with(|| {
                    due.push(Settler {
                        shared: self.clone(),
                        heir,
                    });
                    VecDeque::new()
                });
                queue.push_back(estate);
            }
        }
        for settler in due {
            // Without a thread it is in the pool's queue, and settles with the next function of anybody's.
            let _ = hand_to_host(self, Box::new(move || drop(settler)));
        }
    }

    /// After the end: a thread for what is listed, if there is none.
    fn settle_late(self: &Arc<Self>) {
        if !std::mem::replace(&mut self.estates.lock().late, true) {
            drop_apart(Late(self.clone()));
        }
    }
}

/// Sees to the estates of one heir, where it is dropped: on a thread of the pool, or wherever a pool that has ended drops it.
struct Settler {
    shared: Arc<Shared>,
    heir: usize,
}

impl Settler {
    fn next(&self) -> Option<Estate> {
        let mut list = self.shared.estates.lock();
        let queue = list.queues.get_mut(&self.heir)?;
        let next = queue.pop_front();
        if next.is_none() {
            list.queues.remove(&self.heir);
        }
        next
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        while let Some(estate) = self.next() {
            estate.settle();
        }
    }
}

/// Drops what comes after the end, where it is dropped.
struct Late(Arc<Shared>);

impl Drop for Late {
    fn drop(&mut self) {
        loop {
            let mut list = self.0.estates.lock();
            let estates = std::mem::take(&mut list.new);
            list.late = !estates.is_empty();
            drop(list);
            if estates.is_empty() {
                return;
            }
            drop(estates);
        }
    }
}
