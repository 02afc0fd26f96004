//! A key that stays on as long as a value lives.

use core::time::Duration;

use crate::change::{Holder, Settle};
use crate::error::FlipError;
use crate::key::Key;

/// Holds a key on; dropping it gives the holder back. Made by [`Key::hold`].
///
/// Dropping cannot report an error. The guard owns its count (nobody else can take it), so the only ones possible are the engine's (the program
/// sandboxed itself, a debugger sits on a site): the key then simply stays on, which is its value before the drop.
/// Call [`EnableGuard::release`] to see them.
#[must_use = "the key is given back when the guard is dropped"]
#[derive(Debug)]
pub struct EnableGuard {
    key: &'static Key,
    delay: Option<Duration>,
}

impl EnableGuard {
    pub(crate) fn new(key: &'static Key) -> Result<Self, FlipError> {
        key.add(Holder::Guard)?;
        Ok(Self { key, delay: None })
    }

    /// The key that is held.
    pub fn key(&self) -> &'static Key {
        self.key
    }

    /// Makes the drop a [`Key::dec_deferred`] with this delay.
    pub fn deferred(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Gives the holder back now.
    ///
    /// # Errors
    /// As [`Key::dec`]; the holder is then still counted.
    pub fn release(self) -> Result<(), FlipError> {
        let result = self.give_back();
        core::mem::forget(self);
        result
    }

    fn give_back(&self) -> Result<(), FlipError> {
        let settle = self.delay.map_or(Settle::Now, Settle::After);
        self.key.remove(Holder::Guard, settle).map(|_| ())
    }
}

impl Drop for EnableGuard {
    fn drop(&mut self) {
        // See the type's documentation for why the error is not worth a panic in a drop.
        let _ = self.give_back();
    }
}
