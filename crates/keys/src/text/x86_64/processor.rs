//! Which mode this processor gets by default.

use core::arch::x86_64::__cpuid;

use crate::mode::Mode;

/// Processors on which a single changed opcode byte, written while other cores execute the instruction, was hammered by
/// the `hammer` example without a wrong outcome: (vendor, family, model or any).
///
/// AMD's manual (volume 2, on cross-modifying code) is understood to allow naturally aligned stores of up to 8 bytes to be
/// made without synchronisation, and a single byte is one. Intel promises no such thing in general, so its models are
/// listed one by one as they are tried. A run without failure proves little about a processor; the list says where the
/// protocol was tried, the argument is in `protocol.rs`, and [`set_mode`](crate::set_mode) overrules both.
const DIRECT: [(&[u8; 12], u32, Option<u32>); 2] = [
    (b"AuthenticAMD", 0x1A, None),       // Zen 5: the design's prototype
    (b"GenuineIntel", 0x06, Some(0xCF)), // Emerald Rapids: examples/hammer.rs
];

/// [`Mode::Biased`] on the processors of the list, [`Mode::Strict`] elsewhere.
pub(super) fn default_mode() -> Mode {
    let (vendor, family, model) = identity();
    let direct = DIRECT.iter().any(|(known, of_family, of_model)| {
        **known == vendor && *of_family == family && of_model.is_none_or(|known| known == model)
    });
    if direct { Mode::Biased } else { Mode::Strict }
}

/// Vendor, family and model with their extensions, as the vendors define them.
#[allow(unused_unsafe)] // `__cpuid` is safe to call in later compilers than the oldest supported
fn identity() -> ([u8; 12], u32, u32) {
    // SAFETY: every 64-bit x86 has `cpuid` with leaves 0 and 1.
    let (name, signature) = unsafe { (__cpuid(0), __cpuid(1).eax) };
    let mut vendor = [0; 12];
    for (place, register) in vendor
        .chunks_exact_mut(4)
        .zip([name.ebx, name.edx, name.ecx])
    {
        place.copy_from_slice(&register.to_le_bytes());
    }
    let base_family = (signature >> 8) & 0xF;
    let extended_family = (signature >> 20) & 0xFF;
    let base_model = (signature >> 4) & 0xF;
    let extended_model = (signature >> 16) & 0xF;
    let family = if base_family == 0xF {
        base_family + extended_family
    } else {
        base_family
    };
    (vendor, family, (extended_model << 4) | base_model)
}
