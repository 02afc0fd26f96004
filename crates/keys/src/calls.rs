//! What an application asks of the engine as a whole: transactions, modes, figures.

use quotient_key::engine::Settle;
use quotient_key::{FlipError, Key, KeyStatus, Mode, Receipt};

use crate::engine::lock;
use crate::error::ModeError;
use crate::flipping::Host;
use crate::mode::Writes;
use crate::registry;
use crate::status::EngineStatus;
use crate::step::{Change, Step};

/// Applies several changes together, with the barriers of one. All or none of them happen; see the crate's notes on
/// what that means for readers.
///
/// # Errors
/// [`FlipError::DuplicateKey`], or the first error that one of the changes would return on its own; no key changes.
///
/// # Complexity
/// Proportional to the sites of the keys that change their value.
pub fn transaction(changes: &[Change]) -> Result<Receipt, FlipError> {
    let steps: Vec<Step> = changes.iter().map(Step::from).collect();
    lock().transact(&steps, Settle::Now)
}

/// [`transaction`] that enables all of `keys`.
///
/// # Errors
/// As [`transaction`].
pub fn enable_transaction(keys: &[&'static Key]) -> Result<Receipt, FlipError> {
    transaction(
        &keys
            .iter()
            .map(|&key| Change::Enable(key))
            .collect::<Vec<_>>(),
    )
}

/// [`transaction`] that disables all of `keys`.
///
/// # Errors
/// As [`transaction`].
pub fn disable_transaction(keys: &[&'static Key]) -> Result<Receipt, FlipError> {
    transaction(
        &keys
            .iter()
            .map(|&key| Change::Disable(key))
            .collect::<Vec<_>>(),
    )
}

/// Lets this program's code be rewritten: brings every site of every key to its cheap form, in the mode that fits this
/// process, and returns that mode. Also undoes [`soften_all`].
///
/// For the application, once, in `main`: whether its code may change while it runs is its decision, so no library makes
/// this call for it. Without it every site stays the load and the branch that it was compiled to, flips write nothing but
/// the key's value, and [`status`] says [`SoftReason::NotAsked`](crate::SoftReason::NotAsked).
///
/// # Complexity
/// Linear in the number of sites; about 1 ms for 19,000. The first call of the process registers with the kernel; with
/// several threads running that takes some 10 ms, so call it before they start.
pub fn patch() -> Mode {
    lock().patch_all()
}

/// [`patch`] by its older name.
pub fn patch_all() -> Mode {
    patch()
}

/// As [`patch`] for the sites of some keys only, and without undoing [`soften_all`]; other keys' sites take their cheap form
/// at their next flip. Returns the mode in force.
///
/// # Complexity
/// Proportional to the sites of the keys.
pub fn patch_keys(keys: &[&'static Key]) -> Mode {
    lock().patch(keys)
}

/// Takes every site back to a jump and stops patching, so that keys can be flipped without any system call. For
/// programs that are about to sandbox themselves. [`patch_all`] or [`set_mode`] start patching again.
///
/// # Errors
/// [`ModeError::Flip`] if some site could not be rewritten: the mode is then unchanged.
pub fn soften_all() -> Result<(), ModeError> {
    set_mode(Mode::Soft).map(|_| ())
}

/// Puts `mode` in force: takes every site back to a jump in the old mode, then settles all of them in the new one.
///
/// # Errors
/// [`ModeError::Unavailable`] if this process cannot patch, [`ModeError::Flip`] if the sites could not be taken back;
/// the old mode stays in force.
pub fn set_mode(mode: Mode) -> Result<Receipt, ModeError> {
    lock().set_mode(mode)
}

/// Decides how many bytes a write covers from now on: see [`Writes`].
pub fn set_writes(writes: Writes) {
    lock().text.set_writes(writes);
}

/// Decides whether pages of code may be made writable *while they are executable*, for the length of a flip, where the
/// process's memory file cannot be had. Not unless this is called with `true`: meanwhile a stray write becomes code. If the
/// kernel refuses to take the permission back, [`EngineStatus::left_writable`] says so. To be called before [`patch`].
pub fn allow_writable_code(allowed: bool) {
    lock().text.allow_writable_code(allowed);
}

/// The figures of the engine.
pub fn status() -> EngineStatus {
    let mut engine = lock();
    engine.text.look();
    let totals = engine.text.totals();
    EngineStatus {
        mode: engine.text.mode(),
        default_mode: engine.text.default_mode(),
        mode_reason: engine.text.mode_reason(),
        soft_reason: engine.text.soft_reason(),
        writer: engine.text.writer(),
        keys: registry::keys().len(),
        sites: totals.sites,
        patched: totals.patched,
        foreign: totals.foreign,
        barriers: engine.barriers,
        traps: totals.traps,
        displaced: engine.text.displaced(),
        writes: engine.text.writes(),
        left_writable: engine.text.left_writable(),
    }
}

pub(crate) fn key_status(key: &'static Key) -> KeyStatus {
    let mut engine = lock();
    engine.text.look();
    let figures = engine.text.figures(key);
    let mut status = quotient_key::engine::status(key);
    status.sites = figures.sites;
    status.patched = figures.patched;
    status.foreign = figures.foreign;
    status.mode = engine.text.mode();
    status.soft_reason = engine.text.soft_reason();
    status.writer = engine.text.writer();
    status.traps = figures.traps;
    status.settling_later = engine.deferred.contains(key);
    status
}
