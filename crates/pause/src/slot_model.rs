//! Models: the steps of `slot.rs` under the model checker. The signal handler is a step that the thread itself takes, at any
//! of the points between its other steps, once the signal has been sent: the model checker chooses which.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{Identity, Slot};
use crate::error::PauseError;
use crate::handle::PauseState;

const NOBODY: Identity = Identity {
    process: 0,
    thread: 1,
};

/// A thread with a slot, and the kernel's part: a signal that is pending until the thread comes by.
struct Model {
    slot: Slot,
    pending: AtomicBool,
    /// Regions in which the thread has been past the middle.
    progress: AtomicU32,
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            slot: Slot::new(NOBODY, None, true),
            pending: AtomicBool::new(false),
            progress: AtomicU32::new(0),
        })
    }

    /// A point between two instructions, at which a pending signal may be delivered; whether it was. One that is pending at the last point
    /// of the thread has no effect there, since the thread is outside by then.
    fn point(&self) -> bool {
        let delivered = self.pending.swap(false, Ordering::SeqCst);
        if delivered {
            self.slot.stand_if_wanted();
        }
        delivered
    }

    /// A region with points between all its steps; whether it was detached.
    fn region(&self, number: u64) -> bool {
        self.point();
        self.slot.begin(number);
        self.point();
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.point();
        let detached = self.slot.end(number);
        self.point();
        detached
    }

    /// Waits as `Pause::wait` does, without its bound.
    fn wait(&self, sequence: u32, number: u64) -> PauseState {
        loop {
            let state = self.slot.standing(sequence, number);
            if state != PauseState::Asked {
                return state;
            }
            loom::thread::yield_now();
        }
    }

    fn ask(&self, number: u64) -> Result<u32, PauseError> {
        self.slot.ask(number, || {
            // No plain store: the model checker would let the thread's own exchange come after it and miss it.
            self.pending.swap(true, Ordering::SeqCst);
            Ok(())
        })
    }
}

/// Whoever asks learns what has become of it, and the thread always gets to its end: a pause that comes too late is missed, one
/// that comes in time stands until it is resumed, and stands still.
#[test]
fn loom_pause_against_the_end_of_its_region() {
    // A model in which nobody ever stands proves nothing.
    static STOOD: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    loom::model(|| {
        let model = Model::new();
        let thread = {
            let model = model.clone();
            loom::thread::spawn(move || {
                assert!(!model.region(1), "nobody detaches");
                assert!(!model.region(2), "nobody detaches");
            })
        };
        if let Ok(sequence) = model.ask(1) {
            if model.wait(sequence, 1) == PauseState::Standing {
                STOOD.store(true, Ordering::Relaxed);
                let before = model.progress.load(Ordering::Relaxed);
                assert!(before <= 1, "stands in the wrong region");
                assert_eq!(model.slot.current(), 1, "stands outside its region");
                assert_eq!(
                    model.progress.load(Ordering::Relaxed),
                    before,
                    "moves while it stands"
                );
                assert!(model.slot.resume(sequence), "stood, and was not resumed");
            } else {
                model.slot.resume(sequence);
            }
            assert_eq!(model.slot.standing(sequence, 1), PauseState::Missed);
        }
        thread.join().unwrap();
        assert_eq!(model.progress.load(Ordering::Relaxed), 2);
    });
    assert!(STOOD.load(Ordering::Relaxed), "never stood");
}

/// A request that missed region 1 neither stops region 2 nor keeps others from asking for it.
#[test]
fn loom_a_pause_that_missed_leaves_the_next_region_alone() {
    loom::model(|| {
        let model = Model::new();
        let thread = {
            let model = model.clone();
            loom::thread::spawn(move || {
                model.region(1);
                model.region(2);
            })
        };
        let first = model.ask(1);
        let second = model.ask(2);
        assert_ne!(
            second,
            Err(PauseError::AlreadyPaused),
            "taken for the first"
        );
        if let (Ok(first), Ok(_)) = (&first, &second) {
            // The first is over: its holder cannot resume the second.
            assert!(!model.slot.resume(*first), "resumed another's pause");
        }
        if let Ok(second) = second {
            model.slot.resume(second);
        } else if let Ok(first) = first {
            // Not resumed yet: the thread may stand in region 1.
            model.slot.resume(first);
        }
        thread.join().unwrap();
    });
}

/// What follows a region is done once: by its thread, or by whoever detached it.
#[test]
fn loom_detach_against_the_end_of_the_region() {
    loom::model(|| {
        let model = Model::new();
        let taken = Arc::new(AtomicU32::new(0));
        let thread = {
            let (model, taken) = (model.clone(), taken.clone());
            loom::thread::spawn(move || {
                for number in 1..=2 {
                    model.slot.begin(number);
                    if model.slot.end(number) {
                        // Detached: what the other one did before its verdict is visible.
                        assert_eq!(number, 1, "the wrong region");
                        assert_eq!(
                            taken.load(Ordering::Relaxed),
                            1,
                            "verdict before its reason"
                        );
                    } else if number == 1 {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        if let Ok(caught) = model.slot.catch(1) {
            taken.fetch_add(1, Ordering::Relaxed);
            caught.commit();
        }
        thread.join().unwrap();
        assert_eq!(taken.load(Ordering::Relaxed), 1, "done twice or never");
    });
}

/// Caught and let go: as if nobody had asked.
#[test]
fn loom_a_region_that_is_let_go_is_kept() {
    loom::model(|| {
        let model = Model::new();
        let thread = {
            let model = model.clone();
            loom::thread::spawn(move || model.region(1))
        };
        drop(model.slot.catch(1));
        assert!(!thread.join().unwrap(), "detached by nobody");
    });
}

/// Two that would detach the same region: at most one does.
#[test]
fn loom_one_of_two_detaches() {
    loom::model(|| {
        let model = Model::new();
        let done = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (model, done) = (model.clone(), done.clone());
                loom::thread::spawn(move || {
                    if let Ok(caught) = model.slot.catch(1) {
                        done.fetch_add(1, Ordering::Relaxed);
                        caught.commit();
                    }
                })
            })
            .collect();
        model.slot.begin(1);
        if !model.slot.end(1) {
            done.fetch_add(1, Ordering::Relaxed);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(done.load(Ordering::Relaxed), 1, "done twice or never");
    });
}

/// Behind a shield the thread does not stop; what was asked for meanwhile happens when the shield goes, without another signal.
#[test]
fn loom_pause_against_a_shield() {
    static STOOD: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    loom::model(|| {
        let model = Model::new();
        let shielded = Arc::new(AtomicBool::new(false));
        let thread = {
            let (model, shielded) = (model.clone(), shielded.clone());
            loom::thread::spawn(move || {
                model.slot.begin(1);
                model.slot.raise_shield();
                shielded.store(true, Ordering::SeqCst);
                let delivered = model.point();
                shielded.store(false, Ordering::SeqCst);
                model.slot.lower_shield();
                let word = model.slot.word.load(Ordering::Relaxed);
                assert!(
                    !delivered || word & super::STATE != super::WANTED,
                    "the request that came behind the shield was forgotten"
                );
                model.point();
                model.slot.end(1)
            })
        };
        if let Ok(sequence) = model.ask(1) {
            if model.wait(sequence, 1) == PauseState::Standing {
                STOOD.store(true, Ordering::Relaxed);
                assert!(!shielded.load(Ordering::SeqCst), "stands behind its shield");
            }
            model.slot.resume(sequence);
        }
        assert!(!thread.join().unwrap());
    });
    assert!(STOOD.load(Ordering::Relaxed), "never stood");
}

/// Behind a plea the thread does not stop, until the asker insists: then it does, although the plea goes on; and the plea of a region
/// that is over, never taken back, is none in the next.
#[test]
fn loom_insisting_against_a_plea() {
    static STOOD: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    loom::model(|| {
        let model = Model::new();
        let insisted = Arc::new(AtomicBool::new(false));
        let thread = {
            let (model, insisted) = (model.clone(), insisted.clone());
            loom::thread::spawn(move || {
                model.slot.begin(1);
                model.slot.raise_plea();
                model.point();
                let said = insisted.load(Ordering::SeqCst);
                model.point();
                // No old value: it may have been resumed before it stood.
                let word = model.slot.word.fetch_or(0, Ordering::AcqRel);
                assert!(
                    !said || word & super::STATE != super::WANTED,
                    "a handler that came before made it deaf"
                );
                model.slot.end(1);
                model.slot.begin(2);
                assert!(!model.slot.pleads(2), "an old plea counts");
                model.slot.end(2);
            })
        };
        if let Ok(sequence) = model.ask(1) {
            let sent = model.slot.insist(sequence, 1, || {
                model.pending.swap(true, Ordering::SeqCst);
                Ok(())
            });
            insisted.store(sent.is_ok(), Ordering::SeqCst);
            let mut looks = 0;
            while model.slot.standing(sequence, 1) == PauseState::Asked && looks < 3 {
                looks += 1;
                loom::thread::yield_now();
            }
            if model.slot.standing(sequence, 1) == PauseState::Standing {
                STOOD.store(true, Ordering::Relaxed);
            }
            model.slot.resume(sequence);
        }
        thread.join().unwrap();
    });
    assert!(STOOD.load(Ordering::Relaxed), "insisting was in vain");
}

/// Leaving against an asker: nobody uses the thread's id once it has left.
#[test]
fn loom_leaving_against_an_asker() {
    loom::model(|| {
        let model = Model::new();
        let left = Arc::new(AtomicBool::new(false));
        let thread = {
            let (model, left) = (model.clone(), left.clone());
            loom::thread::spawn(move || {
                model.region(1);
                model.slot.leave();
                left.store(true, Ordering::SeqCst);
            })
        };
        let asked = model.slot.ask(1, || {
            assert!(!left.load(Ordering::SeqCst), "a signal to somebody else");
            model.pending.store(true, Ordering::SeqCst);
            Ok(())
        });
        if let Ok(sequence) = asked {
            model.slot.resume(sequence);
        }
        if let Some(alive) = model.slot.lock_alive() {
            assert!(!left.load(Ordering::SeqCst), "alive after it left");
            drop(alive);
        }
        thread.join().unwrap();
        assert!(model.slot.lock_alive().is_none());
    });
}
