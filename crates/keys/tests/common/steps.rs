//! Counts instructions by single-stepping: exact, and needs no performance counters.

#![allow(dead_code)] // each user takes some of it

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

static STEPS: AtomicU64 = AtomicU64::new(0);

/// `SIGTRAP` and the counter are the process's.
static USER: Mutex<()> = Mutex::new(());

extern "C" fn on_step(_signal: i32) {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Instructions that `work` executes on this thread, plus a constant.
fn steps_of(work: impl FnOnce()) -> u64 {
    STEPS.store(0, Ordering::Relaxed);
    // SAFETY: sets and clears the trap flag around a plain call; the handler only counts. The red zone is left alone by
    // letting the compiler know that the stack is used.
    unsafe { core::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    work();
    // SAFETY: as above.
    unsafe { core::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    STEPS.load(Ordering::Relaxed)
}

/// Instructions of one iteration of `run`, which is told how many to make.
pub fn instructions_per_iteration(run: impl Fn(u64)) -> f64 {
    const FEW: u64 = 10;
    const MANY: u64 = 110;
    let _user = USER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: installs a handler of the right type and puts the previous one back.
    let previous =
        unsafe { libc::signal(libc::SIGTRAP, on_step as *const () as libc::sighandler_t) };
    let few = steps_of(|| run(FEW));
    let many = steps_of(|| run(MANY));
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGTRAP, previous) };
    (many - few) as f64 / (MANY - FEW) as f64
}
