//! A thread that waits in a line until somebody takes it out: what `in_line` needs of a thread, and its models.
//!
//! # States of a waiter
//! | state | left by |
//! |---|---|
//! | *in line* | (W1) whoever takes it out, under the line's lock: the giver of a place, the tick thread, who ends its group; or it leaves by itself, under the same lock |
//! | *taken out* | (W2) the same one, and nobody else: writes what it gets, says that it is `out`, unparks the thread |
//! | *out* | the thread takes what it got |
//!
//! # No wake-up is lost
//! The thread looks whether it is out, and whether it is to leave, and parks. W2 says so before it unparks; so the thread either sees it, or its
//! park returns. What it is to leave for (an end of its group, an abort) is written before it is woken for that: by an abort, which unparks the thread
//! itself; or by whoever has emptied its line, or told the tick thread to look at it, after it was written. It enters the line and looks then, so that
//! who empties it before is seen, and who does so later finds it. Where it wants to leave and is not in line any more, somebody is between W1 and
//! W2, and it waits for that. A place that has come meanwhile is given up as any other, and goes to the next.

use crate::primitives::{AtomicBool, Mutex, Ordering, Thread, current_thread, park};

/// A thread in a line, or on its way out.
pub(super) struct Waiter<P> {
    thread: Thread,
    out: AtomicBool,
    gets: Mutex<Option<P>>,
}

impl<P> Waiter<P> {
    /// For the calling thread.
    pub(super) fn here() -> Self {
        Self {
            thread: current_thread(),
            out: AtomicBool::new(false),
            gets: Mutex::new(None),
        }
    }

    /// W2, by who has taken it out of the line: it gets this, or looks again.
    pub(super) fn goes_on(&self, with: Option<P>) {
        *self
            .gets
            .lock()
            .unwrap_or_else(|poison| poison.into_inner()) = with;
        self.out.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }

    /// The thread itself: waits until somebody has taken it out of the line, or it `is_to_leave` and `leaves`, which is false if somebody takes it out
    /// just now.
    pub(super) fn wait(
        &self,
        is_to_leave: impl Fn() -> bool,
        leaves: impl Fn() -> bool,
    ) -> Option<P> {
        loop {
            if self.out.load(Ordering::SeqCst) {
                let mut gets = self
                    .gets
                    .lock()
                    .unwrap_or_else(|poison| poison.into_inner());
                return gets.take();
            }
            if is_to_leave() && leaves() {
                return None;
            }
            park();
        }
    }
}

/// Seen to fail with a `goes_on` that unparks before it says that the waiter is out, a `wait` that returns where somebody else has taken it
/// out, and one that does not look whether it is to leave before it parks.
#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// A line of one, places, and the word that something has ended.
    struct Model {
        line: Mutex<Option<Arc<Waiter<u32>>>>,
        free: AtomicUsize,
        listed: AtomicBool,
        ended: AtomicBool,
    }

    impl Model {
        fn new() -> loom::sync::Arc<Self> {
            loom::sync::Arc::new(Self {
                line: Mutex::new(None),
                free: AtomicUsize::new(0),
                listed: AtomicBool::new(false),
                ended: AtomicBool::new(false),
            })
        }

        fn find_place(&self) -> bool {
            let free = self.free.load(Ordering::Relaxed);
            if free > 0 {
                self.free.fetch_sub(1, Ordering::Relaxed);
            }
            free > 0
        }

        fn let_go(&self) {
            let mut line = self.line.lock().unwrap();
            if line.is_none() || !self.find_place() {
                return;
            }
            let waiter = line.take();
            drop(line);
            waiter.unwrap().goes_on(Some(7));
        }

        /// R1 and R2.
        fn give_up(&self) {
            self.free.fetch_add(1, Ordering::Relaxed);
            loom::sync::atomic::fence(Ordering::SeqCst);
            if self.listed.load(Ordering::SeqCst) {
                self.let_go();
            }
        }

        fn wait_for_place(&self) -> Option<u32> {
            let mut line = self.line.lock().unwrap();
            if self.find_place() {
                return Some(7);
            }
            let waiter = Arc::new(Waiter::here());
            *line = Some(waiter.clone());
            let is_new = !self.listed.swap(true, Ordering::SeqCst);
            drop(line);
            if is_new {
                loom::sync::atomic::fence(Ordering::SeqCst);
                self.let_go();
            }
            let leaves = || self.line.lock().unwrap().take().is_some();
            waiter.wait(|| self.ended.load(Ordering::SeqCst), leaves)
        }
    }

    /// A place is given up as a thread comes, whether its group is listed or not.
    #[test]
    fn loom_a_place_wakes_nobody() {
        for listed in [false, true] {
            loom::model(move || {
                let model = Model::new();
                model.listed.store(listed, Ordering::SeqCst);
                let giver = {
                    let model = model.clone();
                    thread::spawn(move || model.give_up())
                };
                assert_eq!(model.wait_for_place(), Some(7));
                giver.join().unwrap();
                assert_eq!(model.free.load(Ordering::SeqCst), 0);
            });
        }
    }

    /// It was aborted, and leaves as a place is given up: that is had or left, once. (The other thread takes the line's lock once in each of these:
    /// the model checker forgets an unpark where a lock is released that the thread is about to take.)
    #[test]
    fn loom_a_place_is_lost_with_who_leaves() {
        loom::model(|| {
            let model = Model::new();
            model.ended.store(true, Ordering::SeqCst);
            let giver = {
                let model = model.clone();
                thread::spawn(move || model.give_up())
            };
            let had = usize::from(model.wait_for_place().is_some());
            giver.join().unwrap();
            assert_eq!(had + model.free.load(Ordering::SeqCst), 1);
        });
    }

    /// Its group ends as it comes.
    #[test]
    fn loom_a_place_is_waited_for_in_a_group_that_has_ended() {
        loom::model(|| {
            let model = Model::new();
            let other = {
                let model = model.clone();
                thread::spawn(move || {
                    model.ended.store(true, Ordering::SeqCst);
                    let told = model.line.lock().unwrap().take();
                    if let Some(told) = told {
                        told.goes_on(None);
                    }
                })
            };
            assert_eq!(model.wait_for_place(), None);
            other.join().unwrap();
        });
    }
}
