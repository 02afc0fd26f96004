//! Evaluations that are checked while another thread flips: the heart of the hammer test and of the hammer example.
//!
//! The flipping thread publishes a phase: odd while a flip is in progress, even and a multiple of 4 while the key is off,
//! even otherwise. A reading thread looks at the phase, evaluates, and looks again. If it saw the same even phase twice,
//! no flip overlapped the evaluation, and the flip before it had returned: the outcome is known.

#![allow(dead_code)] // each user takes some of it

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quotient_keys::{static_branch_likely, static_branch_unlikely, static_key};

static_key! {
    /// Flipped under the eyes of the readers.
    pub static HAMMERED = false;
}

/// The sites of one round.
const SITES: u32 = 32;

/// All sites, on a word: bit n is the outcome of site n. Placed where a flip could go wrong; a jump leads over the
/// filling in front of each.
#[cfg(all(patching, target_arch = "x86_64"))]
#[rustfmt::skip]
#[inline(never)]
pub fn evaluate() -> u32 {
    use quotient_keys::__site as site;
    // Sites whose opcode is the last byte of a cache line or of a page, near because their targets are far.
    u32::from(site!(HAMMERED, false, [".p2align 6", ".byte 0xeb, 61", ".skip 61, 0x90", "2: jmp {slow}"]))
        | u32::from(site!(HAMMERED, false, [".p2align 12", ".byte 0xe9", ".long 4090", ".skip 4090, 0x90", "2: jmp {slow}"])) << 1
        // The same, near by their encoding.
        | u32::from(site!(HAMMERED, false, [".p2align 6", ".byte 0xeb, 61", ".skip 61, 0x90", "2: .byte 0xe9", ".long {slow} - . - 4"])) << 2
        | u32::from(site!(HAMMERED, true, [".p2align 12", ".byte 0xe9", ".long 4090", ".skip 4090, 0x90", "2: .byte 0xe9", ".long {slow} - . - 4"])) << 3
        // A site whose operand straddles; the other bias.
        | u32::from(site!(HAMMERED, true, [".p2align 6", ".byte 0xeb, 59", ".skip 59, 0x90", "2: .byte 0xe9", ".long {slow} - . - 4"])) << 4
        | u32::from(site!(HAMMERED, true, [".p2align 6", ".byte 0xeb, 61", ".skip 61, 0x90", "2: jmp {slow}"])) << 5
        | u32::from(short_at_line_end()) << 6
        | u32::from(short_at_page_end()) << 7
        | ordinary() << 8
}

/// 24 sites of both senses, wherever the compiler puts them.
#[inline(never)]
fn ordinary() -> u32 {
    macro_rules! pairs {
        ($($shift:literal)+) => {
            0 $(
                | u32::from(static_branch_unlikely!(HAMMERED)) << $shift
                | u32::from(static_branch_likely!(HAMMERED)) << ($shift + 1)
            )+
        };
    }
    pairs!(0 2 4 6 8 10 12 14 16 18 20 22)
}

/// A site of two bytes in two cache lines.
#[cfg(all(patching, target_arch = "x86_64"))]
#[rustfmt::skip]
#[inline(never)]
fn short_at_line_end() -> bool {
    quotient_keys::__site!(HAMMERED, false, [".p2align 6", ".byte 0xeb, 61", ".skip 61, 0x90", "2: jmp {slow}"])
}

/// A site of two bytes on two pages.
#[cfg(all(patching, target_arch = "x86_64"))]
#[rustfmt::skip]
#[inline(never)]
fn short_at_page_end() -> bool {
    quotient_keys::__site!(HAMMERED, true, [".p2align 12", ".byte 0xe9", ".long 4090", ".skip 4090, 0x90", "2: jmp {slow}"])
}

/// All sites, where they cannot be placed.
#[cfg(not(all(patching, target_arch = "x86_64")))]
pub fn evaluate() -> u32 {
    ordinary() | ordinary() << 8
}

/// What all sites answer.
pub fn expected(on: bool) -> u32 {
    if on { u32::MAX } else { 0 }
}

/// The phase and the stop sign of one run.
#[derive(Default)]
pub struct Hammer {
    phase: AtomicU64,
    stop: AtomicBool,
    checked: AtomicU64,
    wrong: AtomicU64,
}

impl Hammer {
    /// Flips until `go_on` says no (asked after every pair of flips, with the number of checked evaluations), then stops
    /// the readers. Pauses for `pause` spins after each flip, in which readers find undisturbed rounds. Returns the
    /// number of flips.
    pub fn flip_while(&self, pause: u32, mut go_on: impl FnMut(u64) -> bool) -> u64 {
        let mut flips = 0;
        loop {
            for on in [true, false] {
                self.phase.fetch_add(1, Ordering::SeqCst);
                HAMMERED.set(on).expect("nothing hinders a flip");
                self.phase.fetch_add(1, Ordering::SeqCst);
                flips += 1;
                for _ in 0..pause {
                    std::hint::spin_loop();
                }
            }
            if !go_on(self.checked()) {
                break;
            }
        }
        self.stop.store(true, Ordering::SeqCst);
        flips
    }

    /// Evaluates until told to stop.
    pub fn read(&self) {
        const ROUNDS: u32 = 64;
        const REPEATS: u64 = 16;
        while !self.stop.load(Ordering::Relaxed) {
            let (mut checked, mut wrong) = (0, 0);
            for _ in 0..ROUNDS {
                let before = self.phase.load(Ordering::Acquire);
                let expected = expected(!before.is_multiple_of(4));
                let mut differing = 0;
                for _ in 0..REPEATS {
                    differing += u64::from((black_box(evaluate()) ^ expected).count_ones());
                }
                let after = self.phase.load(Ordering::Acquire);
                if before == after && before.is_multiple_of(2) {
                    checked += REPEATS * u64::from(SITES);
                    wrong += differing;
                }
            }
            self.checked.fetch_add(checked, Ordering::Relaxed);
            self.wrong.fetch_add(wrong, Ordering::Relaxed);
        }
    }

    /// Checked evaluations of single sites so far.
    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    /// Changes of value that took place during the run, by the key's own count.
    pub fn is_hammered(flips: u64, flips_before: u64) -> bool {
        flips > 0 && HAMMERED.status().flips - flips_before == flips
    }

    /// Those with the wrong outcome.
    pub fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }
}
