//! No patching: every site is a load of the key, so there is nothing to release and nothing to settle.

use quotient_key::{FlipError, Key, Mode, Receipt, SoftReason, Writer};

use super::Figures;
use crate::error::ModeError;
use crate::mode::{ModeReason, Writes};
use crate::step::{Flip, Show};

pub(crate) struct Text;

impl Text {
    pub(crate) const fn new() -> Self {
        Self
    }

    pub(crate) fn look(&mut self) {}

    pub(crate) fn prepare(&mut self) {}

    pub(crate) fn can_patch(&self) -> bool {
        false
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::Soft
    }

    pub(crate) fn default_mode(&self) -> Mode {
        Mode::Soft
    }

    pub(crate) fn mode_reason(&self) -> Option<ModeReason> {
        None
    }

    pub(crate) fn soft_reason(&self) -> Option<SoftReason> {
        Some(SoftReason::Platform)
    }

    pub(crate) fn writer(&self) -> Option<Writer> {
        None
    }

    pub(crate) fn displaced(&self) -> u64 {
        0
    }

    pub(crate) fn left_writable(&self) -> Option<i32> {
        None
    }

    pub(crate) fn set_writes(&mut self, _writes: Writes) {}

    pub(crate) fn writes(&self) -> Writes {
        Writes::default()
    }

    pub(crate) fn allow_writable_code(&mut self, _allowed: bool) {}

    pub(crate) fn release(
        &mut self,
        _flips: &[Flip],
        _show: Show,
        _receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        Ok(())
    }

    pub(crate) fn settle(&mut self, _keys: &[&'static Key], _receipt: &mut Receipt) {}

    pub(crate) fn patch_all(&mut self, _receipt: &mut Receipt) {}

    pub(crate) fn set_mode(&mut self, mode: Mode, _receipt: &mut Receipt) -> Result<(), ModeError> {
        match mode {
            Mode::Soft => Ok(()),
            _ => Err(ModeError::Unavailable {
                mode,
                reason: SoftReason::Platform,
            }),
        }
    }

    pub(crate) fn figures(&self, _key: &Key) -> Figures {
        Figures::default()
    }

    pub(crate) fn totals(&self) -> Figures {
        Figures::default()
    }
}
