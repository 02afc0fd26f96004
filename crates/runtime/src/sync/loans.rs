//! What a task has to do with a lock: it holds it, waits for it, or was handed it (see `bandwidth::line`).
//!
//! # Who was handed a lock
//! tokio wakes the waiter to whom it hands a lock, and nobody else; that wake-up comes by a waker of ours, which notes that the task is as good as the holder before it wakes
//! it. So who only waits, and does other things meanwhile, is lent nothing for it. (Lent to all that wait, a task that kept the future of a lock and computed beside it had
//! 1.7 s in 4 s under a limit of 1 %, at others' cost.) The future runs without tokio's budget, which would wake it for other reasons; its unit was taken before.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use quotient_core::Gates;
use quotient_pause::{in_one_plea, in_one_step};

use crate::bandwidth::{Deferral, Line, ThrottleGuard, defer_throttle};
use crate::gates::RuntimeGates;
use crate::local::{self, Charged};
use crate::shielded::lock_shielded;
use crate::task::discard;

/// A task that holds a lock; nothing where it defers no throttles.
pub(super) struct Holding {
    line: Option<Arc<Line>>,
    guard: ThrottleGuard,
}

impl Holding {
    /// The task that `guard` guards holds the lock from now on, until the result goes. O(1).
    fn new(line: &Arc<Line>, guard: ThrottleGuard) -> Self {
        let line = guard.deferral().map(|deferral| {
            deferral.takes(line);
            line.clone()
        });
        Self { line, guard }
    }

    /// Of nothing.
    pub(super) fn none() -> Self {
        Self {
            line: None,
            guard: ThrottleGuard::none(),
        }
    }

    /// The calling task holds the lock.
    pub(super) fn here(line: &Arc<Line>) -> Self {
        Self::new(line, defer_throttle())
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Holding").finish_non_exhaustive()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(line) = &self.line
            && let Some(deferral) = self.guard.deferral()
        {
            deferral.lets_go(line);
        }
    }
}

/// Tries `lock` in the calling task, whose line is `line`: nobody is stopped between that and its being known as the holder.
pub(super) fn attempt<G, E>(
    line: &Arc<Line>,
    lock: impl FnOnce() -> Result<G, E>,
) -> Result<(Inner<G>, Holding), E> {
    in_one_step(|| {
        let inner = lock()?;
        Ok((Inner::new(inner), Holding::here(line)))
    })
}

/// Waits for `lock`, whose line is `line`, in the calling task. What comes of it, and the task as its holder. Cancel-safe if `lock` is.
///
/// tokio's lock has a lock itself, in which a poll that is stopped holds up all that wait, and who holds; those could be lent nothing for it (2 s, under limits). So it is touched
/// under a plea only, here and in [`Inner`]: it wakes others there, by wakers that may be the program's.
pub(super) async fn wait<F: Future>(line: &Arc<Line>, lock: F) -> (F::Output, Holding) {
    let mut waiting = Waiting::new(line);
    let lock = pin!(Some(tokio::task::coop::unconstrained(lock)));
    let mut lock = Quiet(lock);
    poll_fn(|context| in_one_plea(|| waiting.poll(context, |context| lock.poll(context)))).await
}

/// The future of a lock.
struct Quiet<'a, F>(Pin<&'a mut Option<F>>);

impl<F: Future> Quiet<'_, F> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.0.as_mut().as_pin_mut() {
            Some(lock) => lock.poll(context),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Quiet<'_, F> {
    fn drop(&mut self) {
        in_one_plea(|| self.0.set(None));
    }
}

/// A guard of tokio's, which is let go of under a plea. It is empty only between `map` or `with` and its drop.
#[derive(Debug)]
pub(super) struct Inner<G>(Option<G>);

impl<G> Inner<G> {
    pub(super) fn new(guard: G) -> Self {
        Self(Some(guard))
    }

    /// As another kind of guard, as `change` makes it.
    pub(super) fn map<H>(mut self, change: impl FnOnce(G) -> H) -> Inner<H> {
        Inner(self.0.take().map(|guard| in_one_plea(|| change(guard))))
    }

    /// What is to be done with the guard instead of letting go of it.
    pub(super) fn with(mut self, end: impl FnOnce(G)) {
        if let Some(guard) = self.0.take() {
            end(guard);
        }
    }
}

impl<G> Deref for Inner<G> {
    type Target = G;

    #[inline]
    fn deref(&self) -> &G {
        self.0.as_ref().expect("it is taken with its owner only")
    }
}

impl<G> DerefMut for Inner<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G {
        self.0.as_mut().expect("it is taken with its owner only")
    }
}

impl<G> Drop for Inner<G> {
    fn drop(&mut self) {
        in_one_plea(|| drop(self.0.take()));
    }
}

/// A task that waits for a lock.
struct Waiting<'a> {
    line: &'a Arc<Line>,
    home: Option<Charged>,
    guard: Option<ThrottleGuard>,
    /// Where it defers throttles: how it hears that it was handed the lock.
    heir: Option<(Arc<Heir>, Waker)>,
}

impl<'a> Waiting<'a> {
    fn new(line: &'a Arc<Line>) -> Self {
        // Nobody is lent anything while there are no limits.
        let is_limited_at_all = RuntimeGates::bandwidth();
        let home = is_limited_at_all.then(local::current_group).flatten();
        if let Some(home) = &home {
            line.join(home);
        }
        let guard = defer_throttle();
        let heir = guard.deferral().map(|deferral| {
            let heir = Arc::new(Heir {
                line: line.clone(),
                deferral: deferral.clone(),
                is_handed: AtomicBool::new(false),
                task: Mutex::default(),
            });
            let waker = Waker::from(heir.clone());
            (heir, waker)
        });
        Self {
            line,
            home,
            guard: Some(guard),
            heir,
        }
    }

    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        lock: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<(T, Holding)> {
        let Some((heir, waker)) = &self.heir else {
            return lock(context).map(|output| (output, self.holds()));
        };
        heir.is_of(context.waker());
        // Before the look at the lock: who hands it over from here on says so anew.
        let was_handed = heir.is_handed.swap(false, Ordering::AcqRel);
        match lock(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => {
                // Until it is its holder. (The wake-up may come now, too: the lock was handed over, and is seen here before it is said.)
                if was_handed && heir.is_handed.swap(true, Ordering::AcqRel) {
                    heir.deferral.lets_go(&heir.line);
                }
                Poll::Ready((output, self.holds()))
            }
            Poll::Pending => {
                if was_handed {
                    heir.deferral.lets_go(&heir.line);
                }
                Poll::Pending
            }
        }
    }

    /// It has the lock. Before it has waited: in between it would have nothing to do with the lock.
    fn holds(&mut self) -> Holding {
        match self.guard.take() {
            Some(guard) if guard.is_active() => Holding::new(self.line, guard),
            // There may be a limit since it began to wait.
            _ => Holding::here(self.line),
        }
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

/// Of a task that waits: whether it was handed the lock. Its lock comes before that of the deferral, so that who wakes the task and who ends its wait agree on that.
struct Heir {
    line: Arc<Line>,
    deferral: Arc<Deferral>,
    is_handed: AtomicBool,
    /// Until it is woken, or does not wait any more.
    task: Mutex<Option<Waker>>,
}

impl Heir {
    /// Before each poll of the lock's future.
    fn is_of(&self, task: &Waker) {
        let is_known = |known: &Waker| known.will_wake(task);
        if lock_shielded(&self.task).as_ref().is_some_and(is_known) {
            return;
        }
        let task = task.clone();
        let previous = lock_shielded(&self.task).replace(task);
        drop(previous);
    }

    /// It does not wait any more.
    fn ends(&self) {
        let task = lock_shielded(&self.task).take();
        if self.is_handed.swap(false, Ordering::AcqRel) {
            self.deferral.lets_go(&self.line);
        }
        drop(task);
    }
}

impl Wake for Heir {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut known = lock_shielded(&self.task);
        let Some(task) = known.take() else { return };
        let is_new = !self.is_handed.swap(true, Ordering::AcqRel);
        let taken = is_new.then(|| self.deferral.is_handed(&self.line));
        drop(known);
        if let Some(taken) = taken {
            self.deferral.follow(taken);
        }
        // It may be the program's own, whose panic concerns nobody here: neither who gives the lock back, nor those that are woken after this one.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task.wake())) {
            discard(payload);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::Scheduler;
    use crate::shared::Shared;
    use crate::sync::Semaphore;

    fn runtime() -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap()
    }

    /// Runs `test` in a task of a limited group; what is left of its scheduler after that.
    fn in_a_limited_task(test: impl FnOnce() + Send + 'static) -> Weak<Shared> {
        let runtime = runtime();
        runtime.block_on(async {
            let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
            let group = scheduler.group("g").unwrap().max("10ms/100ms").create();
            let group = group.unwrap();
            let shared = Arc::downgrade(&group.shared);
            group.spawn(async { test() }).await.unwrap();
            scheduler.shutdown().await;
            shared
        })
    }

    /// tokio wakes a waiter after it has handed the lock over, and that may poll in between: what is said then is of a lock that it has already.
    #[test]
    fn a_lock_that_is_seen_before_it_is_said_is_given_back_once() {
        in_a_limited_task(|| {
            let line = Arc::default();
            let guard = defer_throttle();
            let deferral = guard.deferral().unwrap();
            for (before, within, after) in (0..8).map(|bits| (bits & 1, bits & 2, bits & 4)) {
                let mut waiting = Waiting::new(&line);
                let mut context = Context::from_waker(Waker::noop());
                let mut waker = None;
                let pending = waiting.poll(&mut context, |context| {
                    waker = Some(context.waker().clone());
                    Poll::<()>::Pending
                });
                assert!(pending.is_pending());
                let waker = waker.unwrap();
                let say = |it: u32| {
                    if it != 0 {
                        waker.wake_by_ref()
                    }
                };
                say(before);
                assert_eq!(deferral.locks(), (before != 0).into());
                let ready = waiting.poll(&mut context, |_| {
                    say(within);
                    Poll::Ready(())
                });
                let Poll::Ready(((), holding)) = ready else {
                    panic!("it has the lock");
                };
                say(after);
                drop(waiting);
                say(1);
                assert_eq!(deferral.locks(), 1, "{before} {within} {after}");
                drop(holding);
                assert_eq!(deferral.locks(), 0, "{before} {within} {after}");
            }
        });
    }

    /// A guard that is forgotten costs what it is, and not the scheduler in which it was taken.
    #[test]
    fn a_forgotten_permit_keeps_no_scheduler() {
        let left = in_a_limited_task(|| {
            let permits = Arc::new(Semaphore::new(1));
            std::mem::forget(permits.try_acquire_owned().unwrap());
        });
        assert!(left.upgrade().is_none());
    }

    /// Who writes a guard out may take the lock meanwhile, or be stopped.
    #[test]
    fn a_guard_is_written_out_without_its_books() {
        use std::fmt::Write as _;
        struct Takes<'a>(&'a Semaphore);
        impl std::fmt::Write for Takes<'_> {
            fn write_str(&mut self, _: &str) -> std::fmt::Result {
                drop(self.0.try_acquire().map_err(|_| std::fmt::Error)?);
                Ok(())
            }
        }
        in_a_limited_task(|| {
            let permits = Semaphore::new(2);
            let permit = permits.try_acquire().unwrap();
            write!(Takes(&permits), "{permits:?} {permit:?}").unwrap();
        });
    }

    /// Wakers of the program's own making are called by who gives a lock back.
    #[test]
    fn a_waker_that_panics_ends_nobody_and_keeps_nobody_waiting() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a tenant's waker");
            }
        }
        struct Counts(AtomicUsize);
        impl Wake for Counts {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        in_a_limited_task(|| {
            let lock = crate::sync::RwLock::new(());
            let writer = lock.try_write().unwrap();
            let panics = Waker::from(Arc::new(Panics));
            let counts = Arc::new(Counts(AtomicUsize::new(0)));
            let (mut first, mut second) = (pin!(lock.read()), pin!(lock.read()));
            let waker = Waker::from(counts.clone());
            assert!(
                first
                    .as_mut()
                    .poll(&mut Context::from_waker(&panics))
                    .is_pending()
            );
            assert!(
                second
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            drop(writer);
            assert_eq!(counts.0.load(Ordering::Relaxed), 1);
            assert!(
                second
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready()
            );
        });
    }

    /// However many locks a task holds: each is given back, and the latest are known.
    #[test]
    fn of_many_locks_the_latest_are_known() {
        in_a_limited_task(|| {
            let locks: Vec<_> = (0..100).map(|_| Semaphore::new(1)).collect();
            let guard = defer_throttle();
            let deferral = guard.deferral().unwrap();
            let mut held: Vec<_> = locks
                .iter()
                .map(|lock| lock.try_acquire().unwrap())
                .collect();
            assert_eq!(deferral.locks(), 16);
            held.drain(..84);
            assert_eq!(deferral.locks(), 16);
            held.truncate(6);
            assert_eq!(deferral.locks(), 6);
            drop(held);
            assert_eq!(deferral.locks(), 0);
        });
    }
}
