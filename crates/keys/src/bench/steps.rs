//! Counts instructions and jumps by single-stepping: exact, and needs no performance counters.

#![allow(dead_code)] // each user takes some of it

use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static STEPS: AtomicU64 = AtomicU64::new(0);
static BRANCHES: AtomicU64 = AtomicU64::new(0);

/// `SIGTRAP` and the counters are the process's.
static USER: Mutex<()> = Mutex::new(());

/// Keeps others away from `SIGTRAP`.
pub(super) fn sigtrap_user() -> MutexGuard<'static, ()> {
    USER.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn on_step(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    STEPS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes a pointer to the interrupted thread's register file, which lives during the handler.
    let next = unsafe {
        (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    };
    // SAFETY: `next` is the address of the instruction that the thread is about to execute.
    if unsafe { is_branch(next) } {
        BRANCHES.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether the instruction there is a jump, a call or a return.
///
/// # Safety
/// `address` is that of an instruction in readable memory.
unsafe fn is_branch(address: usize) -> bool {
    /// More prefixes than a compiler ever emits.
    const PREFIXES_MAX: usize = 4;
    // SAFETY: each byte read belongs to the instruction: a prefix is followed by more of it, and so are 0F and FF.
    let byte = |offset: usize| unsafe {
        core::ptr::with_exposed_provenance::<u8>(address + offset).read_volatile()
    };
    let mut offset = 0;
    while offset < PREFIXES_MAX
        && matches!(byte(offset), 0x2E | 0x3E | 0x40..=0x4F | 0x66 | 0xF2 | 0xF3)
    {
        offset += 1;
    }
    match byte(offset) {
        0x70..=0x7F | 0xC2 | 0xC3 | 0xE0..=0xE3 | 0xE8 | 0xE9 | 0xEB => true,
        0x0F => matches!(byte(offset + 1), 0x80..=0x8F),
        // Calls and jumps through a register or memory.
        0xFF => matches!(byte(offset + 1) >> 3 & 7, 2..=5),
        _ => false,
    }
}

/// Instructions and branches that `run(iterations)` executes on this thread, plus constants, which are the same for every
/// number because there is one copy of this code.
#[inline(never)]
fn steps_of(run: &mut dyn FnMut(u64), iterations: u64) -> (u64, u64) {
    STEPS.store(0, Ordering::Relaxed);
    BRANCHES.store(0, Ordering::Relaxed);
    // SAFETY: sets and clears the trap flag around a plain call; the handler only counts. The red zone is left alone by
    // letting the compiler know that the stack is used.
    unsafe { core::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    run(iterations);
    // SAFETY: as above.
    unsafe { core::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    (
        STEPS.load(Ordering::Relaxed),
        BRANCHES.load(Ordering::Relaxed),
    )
}

/// Instructions and branches of one iteration of `run`, which is told how many to make.
pub(super) fn per_iteration(mut run: impl FnMut(u64)) -> (f64, f64) {
    const FEW: u64 = 10;
    const MANY: u64 = 110;
    let _user = sigtrap_user();
    // SAFETY: plain data for which all zeroes is valid; installs a handler of the type that SA_SIGINFO announces.
    let previous = unsafe {
        let mut ours: libc::sigaction = core::mem::zeroed();
        let mut previous: libc::sigaction = core::mem::zeroed();
        ours.sa_sigaction = on_step as *const () as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &raw const ours, &raw mut previous);
        previous
    };
    let few = steps_of(&mut run, FEW);
    let many = steps_of(&mut run, MANY);
    // SAFETY: puts back what was there.
    unsafe { libc::sigaction(libc::SIGTRAP, &raw const previous, core::ptr::null_mut()) };
    let each = |few: u64, many: u64| (many - few) as f64 / (MANY - FEW) as f64;
    (each(few.0, many.0), each(few.1, many.1))
}
