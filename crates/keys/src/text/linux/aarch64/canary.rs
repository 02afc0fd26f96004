//! The function of `canary.rs`: 1 while its first instruction is a jump, 0 while that falls through.

use super::super::writer::Edit;

core::arch::global_asm!(
    ".pushsection .text.quotient_keys_canary_v1, \"ax\", @progbits",
    ".p2align 4",
    ".globl quotient_keys_canary_v1",
    ".hidden quotient_keys_canary_v1",
    ".type quotient_keys_canary_v1, @function",
    "quotient_keys_canary_v1:",
    "b 2f",
    "mov w0, #0",
    "ret",
    "2: mov w0, #1",
    "ret",
    ".size quotient_keys_canary_v1, . - quotient_keys_canary_v1",
    ".popsection",
);

/// Bytes that are patched.
pub(in crate::text) const BYTES: usize = 4;

/// The edit to the form that falls through.
pub(in crate::text) fn cheap_form(address: usize) -> Edit {
    Edit::new(address, super::site::NOP.to_le_bytes(), BYTES)
}

/// The edit back.
pub(in crate::text) fn jump(address: usize) -> Edit {
    let jump = super::site::branch(address, address + 12);
    Edit::new(
        address,
        jump.unwrap_or(super::site::NOP).to_le_bytes(),
        BYTES,
    )
}
