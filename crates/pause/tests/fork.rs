//! Forks in regions that somebody wants to stop.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{HANG, pauser, spawn, until};
use quotient_pause::PauseState;

static IN_FORK: AtomicBool = AtomicBool::new(false);
static GO_ON: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

/// In the midst of the fork: handlers that were installed first run last before it.
extern "C" fn linger() {
    IN_FORK.store(true, Ordering::SeqCst);
    let started = std::time::Instant::now();
    while !GO_ON.load(Ordering::SeqCst) && started.elapsed() < HANG {
        std::hint::spin_loop();
    }
}

/// Hazard: `fork` holds all locks of the allocator. A thread that was stopped in it kept everybody waiting who allocates, and who was to resume it among them.
#[test]
fn a_thread_that_forks_stops_in_the_midst_of_it() {
    // SAFETY: a function of the right type, of this program; nothing else forks here.
    unsafe { libc::pthread_atfork(Some(linger), None, None) };
    pauser();
    let (handle, thread) = spawn(|thread| {
        let (child, _) = thread.region(|| {
            // SAFETY: the child calls nothing but `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child, in which nothing else is to run.
                unsafe { libc::_exit(7) };
            }
            while !STOP.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            child
        });
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        (child, ended, libc::WEXITSTATUS(status))
    });
    until("a fork", || IN_FORK.load(Ordering::SeqCst));
    let pause = handle.pause(handle.region().unwrap()).unwrap();
    assert_eq!(pause.wait(Duration::from_millis(50)), PauseState::Asked);
    GO_ON.store(true, Ordering::SeqCst);
    // After it, at once.
    until("a pause", || pause.state() == PauseState::Standing);
    assert!(pause.resume());
    STOP.store(true, Ordering::SeqCst);
    let (child, ended, status) = thread.join().unwrap();
    assert!(child > 0);
    assert_eq!((ended, status), (child, 7));
}
