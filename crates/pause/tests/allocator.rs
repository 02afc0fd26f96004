//! Threads that are paused while they allocate.
//!
//! Hazards: that one stands inside the allocator, with its locks; that one never stands again afterwards; that a thread which begins or
//! ends cannot allocate.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::{Numbers, spawn, until};
use quotient_pause::{PauseState, SteadyAllocator};

#[global_allocator]
static ALLOCATOR: SteadyAllocator = SteadyAllocator::SYSTEM;

/// The system's, and a lock: each call takes until `goes_on`.
#[derive(Default)]
struct Slow {
    is_inside: AtomicBool,
    goes_on: AtomicBool,
}

impl Slow {
    fn wait(&self) {
        self.is_inside.store(true, Ordering::SeqCst);
        while !self.goes_on.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        self.is_inside.store(false, Ordering::SeqCst);
    }
}

// SAFETY: each call is the system allocator's, with the caller's promises, after a wait that touches no memory of theirs.
unsafe impl GlobalAlloc for &Slow {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.wait();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.wait();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What a region calls the allocator by.
type Call = fn(&SteadyAllocator<&Slow>);

fn take_and_give_back(
    allocator: &SteadyAllocator<&Slow>,
    make: fn(&SteadyAllocator<&Slow>, Layout) -> *mut u8,
) {
    let layout = Layout::new::<[u64; 8]>();
    let memory = make(allocator, layout);
    assert!(!memory.is_null());
    // SAFETY: it came from this allocator with this layout, and nobody else has it.
    unsafe { allocator.dealloc(memory, layout) };
}

const CALLS: [Call; 3] = [
    |allocator| {
        // SAFETY: the layout has a size.
        take_and_give_back(allocator, |allocator, layout| unsafe {
            allocator.alloc(layout)
        });
    },
    |allocator| {
        // SAFETY: the layout has a size.
        take_and_give_back(allocator, |allocator, layout| unsafe {
            allocator.alloc_zeroed(layout)
        });
    },
    |allocator| {
        take_and_give_back(allocator, |allocator, layout| {
            // SAFETY: the layout has a size.
            let memory = unsafe { allocator.alloc(layout) };
            // SAFETY: it came from this allocator with this layout, and the new size is the same.
            unsafe { allocator.realloc(memory, layout, layout.size()) }
        });
    },
];

#[test]
fn nobody_stands_inside_the_allocator() {
    for call in CALLS {
        let slow: &'static Slow = Box::leak(Box::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let (handle, thread) = spawn(move |thread| {
            let ((), _end) = thread.region(|| {
                call(&SteadyAllocator::around(slow));
                over.store(true, Ordering::SeqCst);
                let stays = || over.load(Ordering::SeqCst);
                while stays() {
                    std::hint::spin_loop();
                }
            });
        });
        until("the allocator", || slow.is_inside.load(Ordering::SeqCst));
        let pause = handle.pause(handle.region().unwrap()).expect("it spins");
        // It is asked, the signal comes, and it does not stand; nor does it get on.
        let state = pause.wait(Duration::from_millis(50));
        assert_eq!(state, PauseState::Asked);
        assert!(slow.is_inside.load(Ordering::SeqCst));
        slow.goes_on.store(true, Ordering::SeqCst);
        until("a pause", || pause.state() == PauseState::Standing);
        // Not in the allocator, and at the end of the first call: what comes after it has not been.
        assert!(!slow.is_inside.load(Ordering::SeqCst) && !is_over.load(Ordering::SeqCst));
        assert!(pause.resume());
        until("what comes after", || is_over.load(Ordering::SeqCst));
        is_over.store(false, Ordering::SeqCst);
        until("the end", || thread.is_finished());
        thread.join().unwrap();
    }
}

/// This process's own allocator, and a dozen threads that begin, allocate in regions, are paused at any instruction for longer than an
/// allocation takes, and end: this one never waits for one that stands.
#[test]
fn who_allocates_does_not_wait_for_who_stands() {
    let finished = Arc::new(AtomicU32::new(0));
    for round in 0..4 {
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (stop, finished) = (stop.clone(), finished.clone());
                spawn(move |thread| {
                    let ((), _end) = thread.region(|| {
                        let mut kept: Vec<Vec<u8>> = Vec::new();
                        let mut numbers = Numbers(number + 10 * round + 1);
                        while !stop.load(Ordering::Relaxed) {
                            kept.push(vec![7; numbers.below(4_000) as usize]);
                            if kept.len() > 50 {
                                kept.swap_remove(numbers.below(50) as usize);
                            }
                        }
                    });
                    finished.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        until("regions", || {
            threads.iter().all(|(handle, _)| handle.region().is_some())
        });
        for _ in 0..200 {
            let pauses = threads
                .iter()
                .map(|(handle, _)| handle.pause(handle.region().unwrap()));
            let pauses: Vec<_> = pauses.map(|pause| pause.expect("it runs")).collect();
            until("pauses", || {
                pauses
                    .iter()
                    .all(|pause| pause.state() == PauseState::Standing)
            });
            // All of them stand, each with whatever arena it has, and all arenas can be had.
            let others: Vec<_> = (0..2)
                .map(|_| std::thread::spawn(|| drop(vec![vec![7_u8; 900]; 40])))
                .collect();
            for other in others {
                until("memory", || other.is_finished());
                other.join().unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        for (_, thread) in threads {
            until("an end", || thread.is_finished());
            thread.join().unwrap();
        }
    }
    assert_eq!(finished.load(Ordering::Relaxed), 12);
}
