//! Which mode this processor gets by default, and on whose word.
//!
//! The biased mode stores one byte, the opcode, of an instruction that other cores may be executing. The instruction before
//! and the one after have the same length, the same operand and the same boundaries, and either does what the key says. What
//! has to be vouched for is that a core executes one of the two.
//!
//! | vendor | default | on whose word |
//! |---|---|---|
//! | AMD | biased | the manual (AMD64 Architecture Programmer's Manual, volume 2, 7.6.1, on cross-modifying code): stores within an aligned quadword may be made while others execute; they see the old or the new instruction |
//! | Intel, with AVX2 | biased | practice, see below; the manual does not promise it |
//! | Intel, older | soft | an erratum says that they do not |
//! | others | soft | nobody |
//!
//! **Intel.** The manual (Software Developer's Manual, volume 3, "Handling Self- and Cross-Modifying Code") asks the executing
//! core to serialise before it runs new code, and calls anything else model-specific. The specification updates of the
//! Pentium III (E49), of Celerons (W108) and of Core 2 (AH33) list *Unsynchronized Cross-Modifying Code Operations Can Cause
//! Unexpected Instruction Execution Results*. What Intel told a kernel developer about the reason (R. J. Moore, linux-kernel,
//! 20 September 2006, *Linux Kernel Markers*) is a trace cache that optimises across instructions, so that changing one of
//! them leaves nothing consistent to continue with; storing a breakpoint needs no synchronisation, as it makes the core
//! start afresh. Linux (`text_poke_bp`) assumes of every x86 that the first byte of an instruction may be stored while others
//! execute it, from the old instruction to a breakpoint and from there to the new one, each seen as old or new; that is what
//! [`Mode::Strict`] does. For the direct way speak deployed programs that rewrite running code in place on these processors
//! without stopping anybody: HotSpot's call sites and entry points, LLVM's XRay sleds (a two-byte store), and the flags of
//! AppNexus and Backtrace (`dynamic_flag`), which are this very `jmp` and `test`. None of the processors with the erratum has
//! AVX2, and none with AVX2 has a trace cache; so AVX2 (2013 and later) is the line. What the argument does not cover is a
//! word of Intel's; who wants one sets `QUOTIENT_KEYS=strict`, or `soft`.
//!
//! A run of the `hammer` example without a failure proves little about a processor; the list of those where it was run is in
//! DESIGN. [`set_mode`](crate::set_mode) and the operator overrule all of this.

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
