//! Which mode this processor gets by default, and on whose word.
//!
//! The biased mode stores one byte, the opcode, of an instruction that other cores may be executing. The instruction before
//! and the one after have the same length, the same operand and the same boundaries, and either does what the key says. What
//! has to be vouched for is that a core executes one of the two.
//!
//! | vendor | default | on whose word |
//! |---|---|---|
//! | AMD | biased | the manual (AMD64 Architecture Programmer's Manual, volume 2, 7.6.1, on cross-modifying code): a store within an aligned quadword may be made while others execute; they see the old or the new instruction. *Cited from memory: its text could not be looked up* |
//! | Intel, with AVX2 | biased | practice, see below; the manual does not promise it |
//! | Intel, older | soft | an erratum says that they do not |
//! | others | soft | nobody |
//!
//! A store of one byte is always within an aligned quadword.
//!
//! **Intel.** The manual (Software Developer's Manual, volume 3, 8.1.3, "Handling Self- and Cross-Modifying Code") calls what
//! happens model-specific and asks the executing core to serialise before it runs new code. The specification updates of the
//! Pentium III (E49), of Celerons (W108) and of Core 2 (AH33) list *Unsynchronized Cross-Modifying Code Operations Can Cause
//! Unexpected Instruction Execution Results*, most exceptions among them. (The manual's section and W108 were looked up, the other two
//! not.) Linux stores a breakpoint over the first byte, then the rest, then the new first byte, and has the cores synchronise
//! after each step (`text_poke_bp`, commit fd4363fff3d9 of 2013, looked up). So between the last store and its synchronisation cores
//! execute a breakpoint or the new instruction, of any x86: that much [`Mode::Strict`] relies on, too. The commit adds that, by a mail on linux-kernel of
//! January 2010, Intel's processors need no synchronisation after the second step. Why a breakpoint is different (a trace cache that
//! optimises across instructions; a breakpoint makes the core start afresh) is what Intel told a kernel developer (R. J. Moore,
//! linux-kernel, 20 September 2006, *Linux Kernel Markers*; from memory).
//!
//! For the direct way speak deployed programs that rewrite running code in place on these processors
//! without stopping anybody: the flags of AppNexus and Backtrace (`dynamic_flag`), which are this very `jmp` and `test`, and whose
//! documentation says that a thread sees one or the other (looked up); from memory, HotSpot's call sites and entry points and LLVM's
//! XRay sleds (a two-byte store). None of the processors with the erratum has
//! AVX2, and none with AVX2 has a trace cache; so AVX2 (2013 and later) is the line. What the argument does not cover is a
//! word of Intel's; who wants one sets `QUOTIENT_KEYS=strict`, or `soft`.
//!
//! A run of the `hammer` example without a failure proves little about a processor; the list of those where it was run is in
//! `docs/design/static-keys.md`. [`set_mode`](crate::set_mode) and the operator overrule all of this.

use quotient_key::Mode;

use core::arch::x86_64::__cpuid;

/// The default of this processor.
pub(in crate::text) fn default_mode() -> Mode {
    let vendor = vendor();
    default_of(&vendor, has_avx2())
}

fn default_of(vendor: &[u8; 12], has_avx2: bool) -> Mode {
    match vendor {
        b"AuthenticAMD" => Mode::Biased,
        b"GenuineIntel" if has_avx2 => Mode::Biased,
        _ => Mode::Soft,
    }
}

fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

/// The vendor as the processor spells it.
#[allow(unused_unsafe)] // `__cpuid` is safe to call in later compilers than the oldest supported
fn vendor() -> [u8; 12] {
    // SAFETY: every 64-bit x86 has `cpuid` with leaf 0.
    let name = unsafe { __cpuid(0) };
    let mut vendor = [0; 12];
    for (place, register) in vendor
        .chunks_exact_mut(4)
        .zip([name.ebx, name.edx, name.ecx])
    {
        place.copy_from_slice(&register.to_le_bytes());
    }
    vendor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vendor_that_nobody_vouches_for_gets_soft_keys() {
        assert_eq!(default_of(b"AuthenticAMD", false), Mode::Biased);
        assert_eq!(default_of(b"GenuineIntel", true), Mode::Biased);
        assert_eq!(default_of(b"GenuineIntel", false), Mode::Soft);
        for stranger in [
            b"HygonGenuine",
            b"  Shanghai  ",
            b"CentaurHauls",
            b"TCGTCGTCGTCG",
        ] {
            assert_eq!(default_of(stranger, true), Mode::Soft);
        }
    }
}
