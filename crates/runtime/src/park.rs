//! How a virtual CPU goes to sleep and how it is woken: no wake-up is lost.
//!
//! # Protocol
//! One word for each virtual CPU, three states:
//!
//! | state | meaning | who leaves it |
//! |---|---|---|
//! | `RUNNING` | its future is being polled, or will be polled for certain | only its own poll, in [`Park::prepare_sleep`] |
//! | `SLEEPING` | its future returned `Pending` (or is about to) with nothing to do | a waker in [`Park::wake`], or its own poll in [`Park::cancel_sleep`] / [`Park::begin`] |
//! | `NOTIFIED` | a waker took it out of `SLEEPING` and owes (or has made) the host wake-up | its own poll in [`Park::begin`] |
//!
//! Sleeper: (S1) store the host's waker; (S2) `swap(SLEEPING, SeqCst)`; (S3) look at every source of work again; if there
//! is any, `cancel_sleep` and go on, else return `Pending`.
//! Waker: (W1) make the work visible; (W2) `fence(SeqCst)`; (W3) load the state; if `SLEEPING`, CAS to `NOTIFIED`, and the winner
//! wakes the host's task.
//!
//! *No wake-up is lost*: S2 and W2 are both sequentially consistent, so either W3 comes after S2 in that order and sees
//! `SLEEPING`, or S3 comes after W1 and sees the work. *One host wake-up a sleep*: only the winner of the CAS wakes.
//! *The idle mask is right*: the winner clears the sleeper's bit before it wakes the host's task, so the poll that follows, which
//! sets the bit anew when it goes to sleep, comes after that. (Cleared after, a virtual CPU that had been quick slept outside of the
//! mask, and nobody gave it work again.)
//! A poll that nobody asked for (the host may poll at any time) is harmless: `begin` makes the word `RUNNING`, and a waker
//! that loses its CAS to it sees a virtual CPU that is about to look at its queues.
//! The host's waker lives behind a mutex that is touched once a sleep, never on the switch path.

use std::task::Waker;

use crate::primitives::{AtomicU8, Mutex, Ordering, fence};

const RUNNING: u8 = 0;
const SLEEPING: u8 = 1;
const NOTIFIED: u8 = 2;

/// The parking word of one virtual CPU and the host's waker for it.
#[derive(Debug)]
pub(crate) struct Park {
    state: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

impl Park {
    /// A virtual CPU that has not been polled yet: the host polls a new task once by itself, hence `RUNNING`.
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(RUNNING),
            waker: Mutex::new(None),
        }
    }

    /// The host polls the virtual CPU: whatever it was, it runs now. Acquires what the waker published.
    pub(crate) fn begin(&self) {
        if self.state.load(Ordering::Relaxed) != RUNNING {
            self.state.swap(RUNNING, Ordering::SeqCst);
        }
    }

    /// The host's waker, from the first poll on: for [`Park::wake_host`].
    pub(crate) fn remember(&self, waker: &Waker) {
        let mut slot = self
            .waker
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        *slot = Some(waker.clone());
    }

    /// Wakes the host's task whatever the state: a poll that nobody asked for is harmless. For a virtual CPU that the host has
    /// put where it is not polled.
    pub(crate) fn wake_host(&self) {
        let waker = self
            .waker
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// S1 and S2. The caller must look at every source of work after this, and call [`Park::cancel_sleep`] if it finds any.
    pub(crate) fn prepare_sleep(&self, waker: &Waker) {
        {
            let mut slot = self
                .waker
                .lock()
                .unwrap_or_else(|poison| poison.into_inner());
            match &mut *slot {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        self.state.swap(SLEEPING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Work turned up after [`Park::prepare_sleep`]: the poll goes on. A host wake-up may still come; it is harmless.
    pub(crate) fn cancel_sleep(&self) {
        self.state.swap(RUNNING, Ordering::SeqCst);
    }

    /// W2 and W3. The work must have been made visible before. Returns whether this call woke it. `claimed` is run by the winner
    /// before the host is asked: what it clears, the woken virtual CPU may set again.
    pub(crate) fn wake(&self, claimed: impl FnOnce()) -> bool {
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) != SLEEPING {
            return false;
        }
        let won = self
            .state
            .compare_exchange(SLEEPING, NOTIFIED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if won {
            claimed();
            let waker = self
                .waker
                .lock()
                .unwrap_or_else(|poison| poison.into_inner())
                .clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        won
    }

    /// Whether it sleeps right now; a hint only.
    pub(crate) fn is_sleeping(&self) -> bool {
        self.state.load(Ordering::Relaxed) == SLEEPING
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::idle::IdleSet;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use std::task::Wake;

    struct Count(std::sync::atomic::AtomicUsize);
    impl Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// One sleeper against `wakers` wakers: when everybody is done, the sleeper either saw all the work or was woken.
    fn no_wake_up_is_lost(wakers: usize) {
        loom::model(move || {
            let park = Arc::new(Park::new());
            let work = Arc::new(AtomicUsize::new(0));
            let count = std::sync::Arc::new(Count(std::sync::atomic::AtomicUsize::new(0)));
            let waker = Waker::from(count.clone());
            let threads: Vec<_> = (0..wakers)
                .map(|_| {
                    let (park, work) = (park.clone(), work.clone());
                    loom::thread::spawn(move || {
                        work.fetch_add(1, Ordering::Relaxed);
                        usize::from(park.wake(|| {}))
                    })
                })
                .collect();
            park.begin();
            park.prepare_sleep(&waker);
            let seen = work.load(Ordering::Relaxed);
            let slept = seen == 0;
            if !slept {
                park.cancel_sleep();
            }
            let claimed: usize = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum();
            let woken = count.0.load(std::sync::atomic::Ordering::SeqCst);
            assert_eq!(woken, claimed, "every claim is one host wake-up");
            assert!(claimed <= 1, "one sleep, {claimed} wake-ups");
            if slept {
                assert_eq!(woken, 1, "slept on work that nobody woke it for");
                park.begin();
                assert_eq!(work.load(Ordering::Relaxed), wakers.max(1).min(wakers));
            }
        });
    }

    #[test]
    fn loom_sleep_against_one_waker() {
        no_wake_up_is_lost(1);
    }

    #[test]
    fn loom_sleep_against_two_wakers() {
        no_wake_up_is_lost(2);
    }

    /// Sets a flag of the model, so that the woken side can wait for its host's poll.
    struct Flag(loom::sync::atomic::AtomicBool);
    impl Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// A step of *publish to idle* (`shared::hand_in`) that is left out.
    #[derive(Clone, Copy, PartialEq)]
    enum Without {
        Nothing,
        /// P2: the publisher's fence.
        PublishersFence,
        /// P3: its look at the sleepers.
        PublishersLook,
        /// S2: the sleeper's fences.
        SleepersFence,
        /// S3: its second look at the inbox.
        SecondLook,
        /// S1 comes after S3.
        EarlyAnnouncement,
    }

    /// Somebody in a poll publishes a task and looks at the sleepers (P1 to P3), while the only idle one goes to sleep (S1 to S3): the task
    /// is seen, or the sleeper is woken. Runs the very set and parking word; each step that the protocol names can be left out, and
    /// the models below say of each that this is noticed.
    fn publish_to_idle(without: Without) {
        loom::model(move || {
            let park = Arc::new(Park::new());
            let idle = Arc::new(IdleSet::new(1));
            let inbox = Arc::new(AtomicUsize::new(0));
            let count = std::sync::Arc::new(Count(std::sync::atomic::AtomicUsize::new(0)));
            let waker = Waker::from(count.clone());
            let publisher = {
                let (park, inbox, idle) = (park.clone(), inbox.clone(), idle.clone());
                loom::thread::spawn(move || {
                    inbox.store(1, Ordering::Relaxed);
                    let anybody = match without {
                        Without::PublishersFence => idle.any(),
                        Without::PublishersLook => false,
                        _ => idle.any_after_push(),
                    };
                    if anybody && let Some(sleeper) = idle.find(0, |_| true) {
                        park.wake(|| idle.remove(sleeper));
                    }
                })
            };
            let look = || inbox.load(Ordering::Relaxed) != 0;
            park.begin();
            let early = without == Without::EarlyAnnouncement && look();
            if without == Without::SleepersFence {
                *park.waker.lock().unwrap() = Some(waker.clone());
                idle.add(0);
                park.state.swap(SLEEPING, Ordering::AcqRel);
            } else {
                idle.add(0);
                park.prepare_sleep(&waker);
            }
            let seen = match without {
                Without::SecondLook => false,
                Without::EarlyAnnouncement => early,
                _ => look(),
            };
            if seen {
                park.cancel_sleep();
                idle.remove(0);
            }
            publisher.join().unwrap();
            let woken = count.0.load(std::sync::atomic::Ordering::SeqCst);
            assert!(seen || woken == 1, "slept beside a task in another's inbox");
        });
    }

    #[test]
    fn loom_publish_to_idle_against_going_to_sleep() {
        publish_to_idle(Without::Nothing);
    }

    #[test]
    #[should_panic(expected = "slept beside a task")]
    fn loom_publish_to_idle_needs_the_fence_of_the_publisher() {
        publish_to_idle(Without::PublishersFence);
    }

    #[test]
    #[should_panic(expected = "slept beside a task")]
    fn loom_publish_to_idle_needs_the_look_of_the_publisher() {
        publish_to_idle(Without::PublishersLook);
    }

    #[test]
    #[should_panic(expected = "slept beside a task")]
    fn loom_publish_to_idle_needs_the_fence_of_the_sleeper() {
        publish_to_idle(Without::SleepersFence);
    }

    #[test]
    #[should_panic(expected = "slept beside a task")]
    fn loom_publish_to_idle_needs_the_second_look() {
        publish_to_idle(Without::SecondLook);
    }

    #[test]
    #[should_panic(expected = "slept beside a task")]
    fn loom_publish_to_idle_needs_the_announcement_before_the_look() {
        publish_to_idle(Without::EarlyAnnouncement);
    }

    /// A virtual CPU that is woken, runs and sleeps again is in the idle mask afterwards, however slow its waker was.
    #[test]
    fn loom_who_sleeps_is_in_the_idle_mask() {
        loom::model(|| {
            let park = Arc::new(Park::new());
            let idle = Arc::new(AtomicUsize::new(0));
            let flag = std::sync::Arc::new(Flag(loom::sync::atomic::AtomicBool::new(false)));
            let waker = Waker::from(flag.clone());
            park.begin();
            idle.fetch_or(1, Ordering::SeqCst);
            park.prepare_sleep(&waker);
            let woken = {
                let (park, idle, flag) = (park.clone(), idle.clone(), flag.clone());
                loom::thread::spawn(move || {
                    while !flag.0.load(Ordering::SeqCst) {
                        loom::thread::yield_now();
                    }
                    park.begin();
                    idle.fetch_or(1, Ordering::SeqCst);
                    park.prepare_sleep(&waker);
                })
            };
            let claimed = park.wake(|| {
                idle.fetch_and(0, Ordering::SeqCst);
            });
            assert!(claimed);
            woken.join().unwrap();
            assert!(park.is_sleeping());
            assert_eq!(idle.load(Ordering::SeqCst), 1, "asleep where nobody looks");
        });
    }
}
