//! Does written code run? A function of our own is patched there and back before any site is touched.
//!
//! It answers three questions at once: whether a writer works, which one, and whether this process is run by something
//! that keeps translations of code it has seen (an emulator), where a patched site would go on doing the old thing.

use super::writer::{CodeWriter, Edit, Tools};
use crate::mode::{SoftReason, Writer};

core::arch::global_asm!(
    ".pushsection .text.quotient_keys_canary_v1, \"ax\", @progbits",
    ".p2align 4",
    ".globl quotient_keys_canary_v1",
    ".hidden quotient_keys_canary_v1",
    ".type quotient_keys_canary_v1, @function",
    "quotient_keys_canary_v1:",
    ".byte 0xeb, 0x03", // jmp to the third line
    "xor eax, eax",
    "ret",
    "mov eax, 1",
    "ret",
    ".size quotient_keys_canary_v1, . - quotient_keys_canary_v1",
    ".popsection",
);

unsafe extern "C" {
    /// 1 while its first instruction is a jump, 0 while it is a test.
    fn quotient_keys_canary_v1() -> u32;
}

const OPCODE_JUMP: u8 = 0xEB;
const OPCODE_TEST: u8 = 0xA8;

/// Patches the canary twice. The caller holds the engine's lock, and nobody else calls the canary.
pub(super) fn probe(tools: &mut Tools) -> Result<Writer, SoftReason> {
    let address = (quotient_keys_canary_v1 as *const ()).expose_provenance();
    let mut writer = CodeWriter::new(address, address + 1, tools);
    for (opcode, answer) in [(OPCODE_TEST, 0), (OPCODE_JUMP, 1)] {
        // SAFETY: one byte of a function that this thread alone executes; both opcodes take the operand that follows.
        let written =
            unsafe { writer.write(&[opcode], |opcode| Edit::first_byte(address, opcode)) };
        if written.is_err() {
            return Err(SoftReason::Unpatchable);
        }
        // A thread sees its own stores to code; what is written through another mapping needs a serialising
        // instruction, which the return from the system call is.
        // SAFETY: the function takes nothing, touches eax and the flags only, and returns.
        if unsafe { quotient_keys_canary_v1() } != answer {
            return Err(SoftReason::StaleCode);
        }
    }
    writer.used.ok_or(SoftReason::Unpatchable)
}
