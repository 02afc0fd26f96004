//! One branch site and its encodings: `B` and `NOP`.

use super::super::writer::Edit;

/// Bytes of a site.
pub(in crate::text) const SITE_BYTES_MAX: usize = 4;

pub(super) const NOP: u32 = 0xD503_201F;

/// `B` from `code` to `target`; `None` if it does not reach that far.
pub(super) fn branch(code: usize, target: usize) -> Option<u32> {
    const REACH: isize = 1 << 27;
    let distance = target.wrapping_sub(code) as isize;
    let reaches = (-REACH..REACH).contains(&distance) && distance % 4 == 0;
    reaches.then_some(0x1400_0000 | ((distance >> 2) as u32 & 0x03FF_FFFF))
}

/// What a site holds. The names are those of the processors that have more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub(in crate::text) enum Form {
    /// The neutral form, always right.
    Jump,
    /// The cheap form, `NOP` here.
    Test,
    /// Not in use here.
    Nop,
    /// Not in use here.
    Trap,
}

/// A site, as found in the table and tracked since.
#[derive(Clone, Copy, Debug)]
pub(in crate::text) struct Site {
    /// Address of the instruction.
    pub(in crate::text) code: usize,
    /// Index of the key in the table.
    pub(in crate::text) key: u32,
    /// The key's value for which the site falls through.
    pub(in crate::text) bias: bool,
    /// What was last written here; changed by [`Site::set_form`] only.
    pub(in crate::text) form: Form,
    jump: u32,
}

impl Site {
    /// Takes in the site at `code` that jumps to `target`. `None` if it does not: something rewrote the code.
    ///
    /// # Safety
    /// `code` is the address of an instruction in readable, mapped code.
    pub(in crate::text) unsafe fn new(
        code: usize,
        target: usize,
        key: u32,
        bias: bool,
    ) -> Option<Self> {
        let site = Self {
            code,
            key,
            bias,
            form: Form::Jump,
            jump: branch(code, target)?,
        };
        (site.found_word() == site.jump).then_some(site)
    }

    pub(in crate::text) const fn len(&self) -> usize {
        SITE_BYTES_MAX
    }

    const fn word(&self, form: Form) -> u32 {
        match form {
            Form::Test | Form::Nop => NOP,
            Form::Jump | Form::Trap => self.jump,
        }
    }

    /// The edit that makes it that form.
    pub(in crate::text) fn edit_to(&self, form: Form) -> Edit {
        Edit::new(self.code, self.word(form).to_le_bytes(), SITE_BYTES_MAX)
    }

    fn found_word(&self) -> u32 {
        // SAFETY: a `Site` is only made for a mapped, readable, aligned instruction of code that stays loaded. Others write
        // it through the engine, a word at a time.
        unsafe { core::ptr::with_exposed_provenance::<u32>(self.code).read_volatile() }
    }

    /// The first byte that is really there.
    pub(in crate::text) fn found(&self) -> u8 {
        self.found_word().to_le_bytes()[0]
    }

    /// Whether the instruction is the one that was last written.
    pub(in crate::text) fn is_ours(&self) -> bool {
        self.found_word() == self.word(self.form)
    }

    /// The form that is really there, if it is one of ours.
    pub(in crate::text) fn resting_form(&self) -> Option<Form> {
        let found = self.found_word();
        [Form::Jump, Form::Test]
            .into_iter()
            .find(|&form| self.word(form) == found)
    }

    /// Notes what has been written.
    pub(in crate::text) fn set_form(&mut self, form: Form) {
        self.form = form;
    }

    /// Learns from memory which form a write that failed half-way has left.
    pub(in crate::text) fn relearn(&mut self) {
        if let Some(form) = self.resting_form() {
            self.form = form;
        }
    }
}

/// # Safety
/// `address` is mapped and readable.
pub(in crate::text) unsafe fn read_code_byte(address: usize) -> u8 {
    // SAFETY: passed on to the caller.
    unsafe { core::ptr::with_exposed_provenance::<u8>(address).read_volatile() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_encoded_as_the_manual_says() {
        assert_eq!(branch(0x1000, 0x1008), Some(0x1400_0002));
        assert_eq!(branch(0x1008, 0x1000), Some(0x17FF_FFFE));
        assert_eq!(branch(0, 1 << 27), None);
    }
}
