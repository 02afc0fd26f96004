//! What a task has to do with a lock: it holds it, waits for it, or was handed it (see `bandwidth::line`).
//!
//! # Who was handed a lock
//! tokio wakes the waiter to whom it hands a lock, and nobody else; that wake-up comes by a waker of ours, which notes that the task is as good as the holder before it wakes
//! it. So who only waits, and does other things meanwhile, is lent nothing for it. (Lent to all that wait, a task that kept the future of a lock and computed beside it had
//! 1.7 s in 4 s under a limit of 1 %, at others' cost.) The future runs without tokio's budget, which would wake it for other reasons; its unit was taken before.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::bandwidth::{Deferral, Line, ThrottleGuard};
use crate::local::{self, Charged};
use crate::shielded::lock_shielded;

/// A task that holds a lock; nothing where it defers no throttles.
#[derive(Debug)]
pub(super) struct Holding(Option<(Arc<Line>, Arc<Deferral>)>);

impl Holding {
    /// The task that `deferral` guards holds the lock from now on, until the result goes. O(1) for the latest locks of the task.
    pub(super) fn new(line: &Arc<Line>, deferral: &ThrottleGuard) -> Self {
        Self(deferral.deferral().map(|deferral| {
            deferral.takes(line);
            (line.clone(), deferral.clone())
        }))
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some((line, deferral)) = self.0.take() {
            deferral.lets_go(&line);
        }
    }
}

/// Waits for `lock`, whose line is `line`, in the calling task, which `deferral` guards. What comes of it, and the task as its holder. Cancel-safe if `lock` is.
pub(super) async fn wait<F: Future>(
    line: &Arc<Line>,
    deferral: &ThrottleGuard,
    lock: F,
) -> (F::Output, Holding) {
    let mut waiting = Waiting::new(line, deferral);
    let mut lock = pin!(tokio::task::coop::unconstrained(lock));
    let output =
        poll_fn(|context| waiting.poll(context, |context| lock.as_mut().poll(context))).await;
    // Before it has waited: in between it would have nothing to do with the lock.
    (output, Holding::new(line, deferral))
}

/// A task that waits for a lock.
struct Waiting<'a> {
    line: &'a Line,
    home: Option<Charged>,
    /// Where it defers throttles: how it hears that it was handed the lock.
    heir: Option<(Arc<Heir>, Waker)>,
}

impl<'a> Waiting<'a> {
    fn new(line: &'a Arc<Line>, deferral: &ThrottleGuard) -> Self {
        let home = local::current_group();
        if let Some(home) = &home {
            line.join(home);
        }
        let heir = deferral.deferral().map(|deferral| {
            let heir = Arc::new(Heir {
                line: line.clone(),
                deferral: deferral.clone(),
                is_handed: AtomicBool::new(false),
                task: Mutex::default(),
            });
            let waker = Waker::from(heir.clone());
            (heir, waker)
        });
        Self { line, home, heir }
    }

    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        lock: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Some((heir, waker)) = &self.heir else {
            return lock(context);
        };
        heir.is_of(context.waker());
        // Before the look at the lock: who hands it over from here on says so anew.
        let was_handed = heir.is_handed.swap(false, Ordering::AcqRel);
        let output = lock(&mut Context::from_waker(waker));
        match (was_handed, &output) {
            (false, _) => {}
            // Until it is its holder.
            (true, Poll::Ready(_)) => heir.is_handed.store(true, Ordering::Release),
            (true, Poll::Pending) => heir.deferral.lets_go(&heir.line),
        }
        output
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            self.line.leave(&home);
        }
        if let Some((heir, _)) = &self.heir {
            heir.ends();
        }
    }
}

/// Of a task that waits: whether it was handed the lock.
struct Heir {
    line: Arc<Line>,
    deferral: Arc<Deferral>,
    is_handed: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Heir {
    /// Before each poll of the lock's future.
    fn is_of(&self, task: &Waker) {
        let mut known = lock_shielded(&self.task);
        let previous = match &*known {
            Some(waker) if waker.will_wake(task) => None,
            _ => known.replace(task.clone()),
        };
        drop(known);
        drop(previous);
    }

    /// It does not wait any more.
    fn ends(&self) {
        if self.is_handed.swap(false, Ordering::AcqRel) {
            self.deferral.lets_go(&self.line);
        }
        let task = lock_shielded(&self.task).take();
        drop(task);
    }
}

impl Wake for Heir {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let task = lock_shielded(&self.task).clone();
        let Some(task) = task else { return };
        if !self.is_handed.swap(true, Ordering::AcqRel) {
            self.deferral.is_handed(&self.line);
        }
        task.wake();
    }
}
