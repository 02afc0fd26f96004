//! The calling thread's structure of restartable sequences; see `stay`.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// `struct rseq_cs` of `uapi/linux/rseq.h`, and behind it what the kernel looks for in front of the address to go to.
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start: u64,
    length: u64,
    abort: u64,
    signature: u32,
    target: u32,
}

/// The signature with which glibc registers threads on x86 (`RSEQ_SIG` of its `sys/rseq.h`).
const SIGNATURE: u32 = 0x5305_3053;
/// Where in the structure the number of the processor lies, negative while the thread is not registered. Unit: bytes.
const PROCESSOR: isize = 4;
/// Where in the structure the name lies. Unit: bytes.
const NAME: isize = 8;

/// What is the same for all threads.
struct Place {
    /// From the thread pointer to the structure. Unit: bytes.
    offset: isize,
    /// The address of the descriptor.
    nothing: u64,
}

static PLACE: OnceLock<Option<Place>> = OnceLock::new();

#[cold]
fn find() -> Option<Place> {
    let symbol = |name: &std::ffi::CStr| -> *const c_void {
        // SAFETY: asks for an address; the name ends with a zero.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (offset, size) = (symbol(c"__rseq_offset"), symbol(c"__rseq_size"));
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: glibc's documented objects (since 2.35), a `ptrdiff_t` and an `unsigned int`, constant once the program runs.
    let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
    if size == 0 {
        return None; // Nothing was registered.
    }
    let descriptor = Box::leak(Box::new(Descriptor {
        version: 0,
        flags: 0,
        start: 0,
        length: 0,
        abort: 0,
        signature: SIGNATURE,
        target: 0,
    }));
    let target = (&raw const descriptor.target).addr() as u64;
    descriptor.start = target;
    descriptor.abort = target;
    let nothing = (&raw const *descriptor).addr() as u64;
    Some(Place { offset, nothing })
}

/// The start of the calling thread's structure. Only where [`find`] has found the place.
#[inline]
fn structure(place: &Place) -> *mut u8 {
    let pointer: *mut u8;
    // SAFETY: on x86-64 Linux the first word of a thread's control block is its own address, for every C library.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer,
            options(nostack, preserves_flags, readonly));
    }
    pointer.wrapping_offset(place.offset)
}

#[inline]
fn place() -> Option<&'static Place> {
    match PLACE.get() {
        Some(place) => place.as_ref(),
        None => PLACE.get_or_init(find).as_ref(),
    }
}

/// The calling thread's name for the code that it is in; shared with the kernel, which changes it on this thread only.
#[inline]
fn name(place: &Place) -> &AtomicU64 {
    let name = structure(place).wrapping_offset(NAME).cast::<u64>();
    // SAFETY: glibc keeps the structure for as long as the thread lives, 32-byte aligned, and whatever it holds is a number; the reference does
    // not leave this module's functions, each of which runs on the one thread. Kernel and thread take turns, so relaxed accesses see each other.
    unsafe { AtomicU64::from_ptr(name) }
}

/// Names the stretch without length, if the thread is registered.
#[inline]
pub(crate) fn name_nothing() {
    let Some(place) = place() else {
        return;
    };
    let processor = structure(place).wrapping_offset(PROCESSOR).cast::<i32>();
    // SAFETY: as in `name`, four bytes before it.
    let processor = unsafe { AtomicI32::from_ptr(processor) };
    if processor.load(Ordering::Relaxed) >= 0 {
        name(place).store(place.nothing, Ordering::Relaxed);
    }
}

/// Whether that name still stands.
#[inline]
pub(crate) fn still_names_nothing() -> Option<bool> {
    let place = place()?;
    Some(name(place).load(Ordering::Relaxed) == place.nothing)
}
