//! One branch site and its encodings.
//!
//! | form | 2 bytes | 5 bytes | a thread that executes it |
//! |---|---|---|---|
//! | jump | `EB rel8` | `E9 rel32` | goes to the load of the key |
//! | test | `A8 imm8` | `A9 imm32` | falls through; the operand is the jump's, so one byte tells them apart |
//! | nop | `66 90` | `0F 1F 44 00 00` | falls through (modes `int3` and `one-by-one`) |
//! | trap | `CC` + any | `CC` + any | is sent to the load of the key by the signal handler |

use super::super::writer::Edit;

/// Longest site, bytes.
pub(in crate::text) const SITE_BYTES_MAX: usize = 5;

const OPCODE_TRAP: u8 = 0xCC;

/// What a site holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum Form {
    /// The neutral form, always right.
    Jump,
    /// The cheap form that differs by its opcode only.
    Test,
    /// The kernel's cheap form.
    Nop,
    /// In transit.
    Trap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// `rel8`
    Two,
    /// `rel32`
    Five,
}

/// A site, as found in the table and tracked since.
#[derive(Clone, Copy, Debug)]
pub(in crate::text) struct Site {
    /// Address of the first byte.
    pub(in crate::text) code: usize,
    /// Address of the load of the key.
    pub(in crate::text) target: usize,
    /// Index of the key in the table.
    pub(in crate::text) key: u32,
    /// The key's value for which the site falls through.
    pub(in crate::text) bias: bool,
    /// What was last written here; changed by [`Site::set_form`] only.
    pub(in crate::text) form: Form,
    /// The first byte of `form`, kept because it is compared before each patch.
    opcode: u8,
    length: Length,
}

impl Site {
    /// Takes in the site at `code` that jumps to `target`. `None` if no jump there leads to `target`: something rewrote
    /// the code (a binary optimiser); the site then keeps its jump for ever.
    ///
    /// Only the operand is looked at, since a debugger may have put a breakpoint over the opcode.
    ///
    /// # Safety
    /// `code` is the address of a branch instruction of at least 2 bytes in readable, mapped code.
    pub(in crate::text) unsafe fn new(
        code: usize,
        target: usize,
        key: u32,
        bias: bool,
    ) -> Option<Self> {
        let with = |length| {
            let mut site = Self {
                code,
                target,
                key,
                bias,
                form: Form::Jump,
                opcode: 0,
                length,
            };
            site.set_form(Form::Jump);
            site
        };
        let near = with(Length::Five);
        let short = with(Length::Two);
        // SAFETY: the caller vouches for the 2 bytes. The opcode decides whether there are 5; if it is a breakpoint, the
        // short operand is tried first and the 3 bytes after it are read only if it does not fit, which means that the
        // instruction was a long one.
        unsafe {
            let opcode = read_code_byte(code);
            if opcode != near.first_byte(Form::Jump) && short.operand_matches() {
                return Some(short);
            }
            if opcode != short.first_byte(Form::Jump) && near.operand_matches() {
                return Some(near);
            }
        }
        None
    }

    /// # Safety
    /// All bytes of the site are readable.
    unsafe fn operand_matches(&self) -> bool {
        let expected = self.bytes(Form::Jump);
        // SAFETY: passed on to the caller.
        (1..self.len()).all(|index| unsafe { read_code_byte(self.code + index) } == expected[index])
    }

    /// Length in bytes.
    pub(in crate::text) const fn len(&self) -> usize {
        match self.length {
            Length::Two => 2,
            Length::Five => SITE_BYTES_MAX,
        }
    }

    /// The first byte of a form.
    pub(in crate::text) const fn first_byte(&self, form: Form) -> u8 {
        match (form, self.length) {
            (Form::Jump, Length::Two) => 0xEB,
            (Form::Jump, Length::Five) => 0xE9,
            (Form::Test, Length::Two) => 0xA8,
            (Form::Test, Length::Five) => 0xA9,
            (Form::Nop, Length::Two) => 0x66,
            (Form::Nop, Length::Five) => 0x0F,
            (Form::Trap, _) => OPCODE_TRAP,
        }
    }

    /// All bytes of a form; the first [`Site::len`] count. The tail of a trap is the jump's.
    pub(in crate::text) fn bytes(&self, form: Form) -> [u8; SITE_BYTES_MAX] {
        let mut bytes = match (form, self.length) {
            (Form::Nop, Length::Two) => return [0x66, 0x90, 0, 0, 0],
            (Form::Nop, Length::Five) => return [0x0F, 0x1F, 0x44, 0x00, 0x00],
            _ => [self.first_byte(form), 0, 0, 0, 0],
        };
        let next = self.code.wrapping_add(self.len());
        // Truncation is intended: the linker chose the length so that the distance fits, and `new` compared.
        let distance = (self.target.wrapping_sub(next) as u32).to_le_bytes();
        let operand_bytes = self.len() - 1;
        bytes[1..=operand_bytes].copy_from_slice(&distance[..operand_bytes]);
        bytes
    }

    /// The edit that makes a site of one form one of another, where only the opcode differs.
    pub(in crate::text) fn edit_to(&self, form: Form) -> Edit {
        Edit::new(self.code, [self.first_byte(form), 0, 0, 0, 0], 1).in_site(0, self.len())
    }

    /// The edit of all bytes but the first.
    pub(in crate::text) fn edit_tail(&self, form: Form) -> Edit {
        let [_, second, third, fourth, fifth] = self.bytes(form);
        let tail = [second, third, fourth, fifth, 0];
        Edit::new(self.code + 1, tail, self.len() - 1).in_site(1, self.len())
    }

    /// The first byte that is really there.
    pub(in crate::text) fn found(&self) -> u8 {
        // SAFETY: a `Site` is only made for a mapped, readable instruction, and code is never unmapped while the
        // library that owns it, and with it this table, is loaded.
        unsafe { read_code_byte(self.code) }
    }

    /// Whether the first byte is the one that was last written.
    pub(in crate::text) fn is_ours(&self) -> bool {
        self.found() == self.opcode
    }

    /// The form that is really there, if it is one of ours that may rest: not what was last written if somebody put back
    /// what he had found before that (a uprobe that goes puts back the byte of the *file*, the jump).
    pub(in crate::text) fn resting_form(&self) -> Option<Form> {
        let rests = [Form::Jump, Form::Test, Form::Nop];
        // The last written form first: it is nearly always there.
        let forms = [self.form]
            .into_iter()
            .chain(rests)
            .filter(|&form| form != Form::Trap);
        forms.into_iter().find(|&form| self.holds(form))
    }

    fn holds(&self, form: Form) -> bool {
        let expected = self.bytes(form);
        // SAFETY: as in `found`; the length is that of the instruction.
        (0..self.len()).all(|index| unsafe { read_code_byte(self.code + index) } == expected[index])
    }

    /// Notes what has been written.
    pub(in crate::text) fn set_form(&mut self, form: Form) {
        self.form = form;
        self.opcode = self.first_byte(form);
    }

    /// Learns from memory which form a write that failed half-way has left.
    pub(in crate::text) fn relearn(&mut self) {
        let found = self.found();
        let forms = [Form::Jump, Form::Test, Form::Nop, Form::Trap];
        if let Some(form) = forms
            .into_iter()
            .find(|&form| self.first_byte(form) == found)
        {
            self.set_form(form);
        }
    }
}

/// # Safety
/// `address` is mapped and readable. Other threads may write it through the engine only, a byte at a time; the volatile
/// read is a single byte, so it cannot be torn.
pub(in crate::text) unsafe fn read_code_byte(address: usize) -> u8 {
    // SAFETY: passed on to the caller.
    unsafe { core::ptr::with_exposed_provenance::<u8>(address).read_volatile() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site_in(buffer: &[u8], target_offset: usize) -> Option<Site> {
        let code = buffer.as_ptr().expose_provenance();
        // SAFETY: the buffer is longer than any site.
        unsafe { Site::new(code, code + target_offset, 0, false) }
    }

    #[test]
    fn a_short_jump_and_its_test_differ_in_one_byte() {
        let buffer = [0xEB, 0x10, 0, 0, 0, 0, 0, 0];
        let site = site_in(&buffer, 0x12).expect("a short jump");
        assert_eq!(site.len(), 2);
        assert_eq!(site.bytes(Form::Jump)[..2], [0xEB, 0x10]);
        assert_eq!(site.bytes(Form::Test)[..2], [0xA8, 0x10]);
    }

    #[test]
    fn a_near_jump_and_its_test_differ_in_one_byte() {
        let buffer = [0xE9, 0x00, 0x01, 0, 0, 0, 0, 0];
        let site = site_in(&buffer, 0x105).expect("a near jump");
        assert_eq!(site.len(), 5);
        assert_eq!(site.bytes(Form::Jump), [0xE9, 0x00, 0x01, 0, 0]);
        assert_eq!(site.bytes(Form::Test), [0xA9, 0x00, 0x01, 0, 0]);
    }

    #[test]
    fn a_breakpoint_over_the_opcode_hides_neither_length_nor_place() {
        let short = [0xCC, 0x10, 0, 0, 0, 0, 0, 0];
        let site = site_in(&short, 0x12).expect("the operand tells");
        assert_eq!(site.len(), 2);
        assert!(!site.is_ours());
        let near = [0xCC, 0x00, 0x01, 0, 0, 0, 0, 0];
        assert_eq!(site_in(&near, 0x105).expect("the operand tells").len(), 5);
    }

    #[test]
    fn a_jump_to_elsewhere_is_not_taken_in() {
        let buffer = [0xE9, 0x00, 0x01, 0, 0, 0, 0, 0];
        assert!(site_in(&buffer, 0x106).is_none());
        let nothing = [0x90; 8];
        assert!(site_in(&nothing, 0x20).is_none());
    }
}
