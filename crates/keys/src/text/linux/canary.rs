//! Does written code run? A function of our own (`arch::canary`) is patched there and back before any site is touched.
//!
//! It answers three questions at once: whether a writer works, which one, and whether this process is run by something
//! that keeps translations of code it has seen (an emulator), where a patched site would go on doing the old thing.

use quotient_key::{SoftReason, Writer};

use super::arch::canary;
use super::writer::{CodeWriter, Tools};

unsafe extern "C" {
    /// 1 while its first instruction is a jump, 0 while it falls through. Written in assembly by each processor's module.
    fn quotient_keys_canary_v1() -> u32;
}

/// Patches the canary twice, by each way of writing that may be used. The caller holds the engine's lock, and nobody else
/// calls the canary.
pub(super) fn probe(tools: &mut Tools) -> Result<Writer, SoftReason> {
    let first = try_writer(tools);
    if first != Err(SoftReason::StaleCode) || !tools.may_unlock {
        return first;
    }
    // An emulator sees stores to its pages; it does not see what the kernel writes behind its back.
    tools.file_is_stale = true;
    try_writer(tools)
}

fn try_writer(tools: &mut Tools) -> Result<Writer, SoftReason> {
    let address = (quotient_keys_canary_v1 as *const ()).expose_provenance();
    let mut writer = CodeWriter::new(address, address + canary::BYTES, tools);
    for (edit, answer) in [(canary::cheap_form(address), 0), (canary::jump(address), 1)] {
        // SAFETY: the first instruction of a function that this thread alone executes, and both forms of it are right.
        let written = unsafe { writer.write(&[edit], |edit| edit) };
        if written.is_err() {
            return Err(SoftReason::Unpatchable);
        }
        // A thread sees its own stores to code; what is written through another mapping needs a serialising
        // instruction, which the return from the system call is.
        // SAFETY: the function takes nothing, touches the register of its result and the flags only, and returns.
        if unsafe { quotient_keys_canary_v1() } != answer {
            return Err(SoftReason::StaleCode);
        }
    }
    writer.used.ok_or(SoftReason::Unpatchable)
}
