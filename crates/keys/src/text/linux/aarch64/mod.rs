//! What is particular to 64-bit Arm: encodings, cache maintenance.
//!
//! A site is a `B`, its cheap form a `NOP`. Both are on the architecture's list of instructions that may be modified while
//! other cores execute them (Arm Architecture Reference Manual, *Concurrent modification and execution of instructions*,
//! B2.2.5 in the current edition, B2.6.5 in earlier ones): each core executes the old or the new one. They differ in all four
//! bytes, so the word is written as one: an aligned 32-bit store, or a `pwrite` of an aligned word, which the kernel copies
//! by 32-bit stores. Never together with what lies between two sites.
//!
//! Instruction caches need not be coherent. Whoever writes cleans the data cache and invalidates the instruction caches (the
//! kernel does it for `pwrite`), and the barrier after it, `membarrier` with `SYNC_CORE`, makes each core fetch anew. No
//! emulator shows whether that is right, so nobody vouches for these processors yet: patching is asked for by
//! [`set_mode`](crate::set_mode) or by the operator.

pub(super) mod canary;
pub(super) mod processor;
pub(super) mod site;
pub(super) mod trap;

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use quotient_key::__layout;

/// Sites are words of their own.
pub(super) const CAN_COALESCE: bool = false;

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
            concat!("adrp {start}, :got:__start_", __layout!()),
            concat!("ldr {start}, [{start}, :got_lo12:__start_", __layout!(), "]"),
            concat!("adrp {stop}, :got:__stop_", __layout!()),
            concat!("ldr {stop}, [{stop}, :got_lo12:__stop_", __layout!(), "]"),
            start = out(reg) start,
            stop = out(reg) stop,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    (start, stop)
}

/// Stores one instruction to a writable page and makes it what cores fetch.
///
/// # Safety
/// The address is aligned to 4, writable, and holds code; there are 4 bytes.
pub(super) unsafe fn store(address: usize, bytes: &[u8]) {
    let &[first, second, third, fourth] = bytes else {
        return;
    };
    let word = u32::from_le_bytes([first, second, third, fourth]);
    let place = core::ptr::with_exposed_provenance_mut::<u32>(address);
    // SAFETY: passed on to the caller. An aligned atomic store is single-copy atomic, for fetches of instructions as well.
    unsafe { AtomicU32::from_ptr(place).store(word, Ordering::Release) };
    // SAFETY: cache maintenance by address, allowed to programs on Linux.
    unsafe {
        asm!(
            "dc cvau, {address}",
            "dsb ish",
            "ic ivau, {address}",
            "dsb ish",
            "isb",
            address = in(reg) address,
            options(nostack, preserves_flags),
        );
    }
}

/// Nothing more is to be done: see `store`, and the kernel for the memory file.
pub(super) fn code_was_written(_start: usize, _bytes: usize) {}
