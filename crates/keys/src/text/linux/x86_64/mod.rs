//! What is particular to x86-64: encodings, breakpoints, which processors are vouched for.

pub(super) mod batch;
pub(super) mod canary;
pub(super) mod processor;
pub(super) mod site;
pub(super) mod trap;

use core::arch::asm;

use quotient_key::__layout;

/// Where the site table begins and ends; 0 if nothing in this program branches on a key.
pub(super) fn section() -> (usize, usize) {
    let start: usize;
    let stop: usize;
    // SAFETY: two loads from the global offset table. The symbols are weak, so a program without any site links, and
    // finds 0 in both.
    unsafe {
        asm!(
            concat!(".weak __start_", __layout!()),
            concat!(".weak __stop_", __layout!()),
            // Were they visible outside, a library would find the table of the program that loads it.
            concat!(".hidden __start_", __layout!()),
            concat!(".hidden __stop_", __layout!()),
            concat!("mov {start}, qword ptr [rip + __start_", __layout!(), "@GOTPCREL]"),
            concat!("mov {stop}, qword ptr [rip + __stop_", __layout!(), "@GOTPCREL]"),
            start = out(reg) start,
            stop = out(reg) stop,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    (start, stop)
}

/// Tells valgrind, which keeps translations of code, that this code has changed. Elsewhere: six instructions without
/// any effect.
pub(super) fn code_was_written(start: usize, bytes: usize) {
    /// `VG_USERREQ__DISCARD_TRANSLATIONS` of valgrind's published client interface.
    const REQUEST_DISCARD: usize = 0x1002;
    let request: [usize; 6] = [REQUEST_DISCARD, start, bytes, 0, 0, 0];
    // SAFETY: the four rotations of rdi add up to 128 bits, so it keeps its value, and rbx is exchanged with itself.
    // Valgrind recognises the sequence, reads the request that rax points at, and answers in rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_usize => _,
            options(nostack),
        );
    }
}

/// Stores the bytes of an edit to a writable page, one by one: they are an opcode, or covered by a breakpoint.
///
/// # Safety
/// The addresses are writable and hold code.
pub(super) unsafe fn store(address: usize, bytes: &[u8]) {
    for (index, &byte) in bytes.iter().enumerate() {
        let place = core::ptr::with_exposed_provenance_mut::<u8>(address + index);
        // SAFETY: passed on to the caller. Rust does not look at code; a volatile store of one byte cannot be torn or merged.
        unsafe { place.write_volatile(byte) };
    }
}

/// Sites may be written together with what lies between them.
pub(super) const CAN_COALESCE: bool = true;
