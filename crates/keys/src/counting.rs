//! The two ends of a change, as far as the count goes: what happens before code is written, after, and on failure.
//!
//! All of it runs under the engine's lock, which keeps 0 and -1 stable: only counts above 0 move without it, and never
//! to 0. So a holder may be *added* at the end (the count cannot have become 0), but must be *removed* at the beginning
//! (by the end it could have become the last).

use core::sync::atomic::Ordering;

use crate::engine::Change;
use crate::error::FlipError;
use crate::key::COUNT_FIRST_ENABLE;

/// What has been done to a key's count on behalf of a change, and what is still to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reserved {
    /// The change asks for what is already so.
    Nothing,
    /// A holder is added at the end: nobody can take the count to 0 meanwhile, since that needs the lock.
    AddHolder,
    /// A holder that is not the last was removed already: at the end it could have become the last.
    RemovedHolder,
    /// 0 became -1.
    TurningOn,
    /// 1 became 0.
    TurningOff,
}

/// The part of a change that touches the count before any code is written. The lock is held, so 0 and -1 are stable;
/// counts above 0 move by compare-and-swap.
pub(crate) fn reserve(change: &Change) -> Result<Reserved, FlipError> {
    let key = change.key();
    let holders = &key.counts.holders;
    let turn_on = || {
        holders.store(COUNT_FIRST_ENABLE, Ordering::Release);
        Reserved::TurningOn
    };
    // Fails only if another holder came or went at the same time: look again.
    let turn_off = || {
        holders
            .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    };
    loop {
        let count = holders.load(Ordering::Acquire);
        match change {
            Change::Inc(_) | Change::Enable(_) if count == 0 => return Ok(turn_on()),
            Change::Inc(_) if count == i32::MAX => {
                return Err(FlipError::Overflow { key: key.name() });
            }
            Change::Inc(_) => return Ok(Reserved::AddHolder),
            Change::Enable(_) => return Ok(Reserved::Nothing),
            Change::Dec(_) if count == 1 => {
                if turn_off() {
                    return Ok(Reserved::TurningOff);
                }
            }
            Change::Dec(_) => {
                if key.try_dec_counted()? {
                    return Ok(Reserved::RemovedHolder);
                }
            }
            Change::Disable(_) if count == 0 => return Ok(Reserved::Nothing),
            Change::Disable(_) if count == 1 => {
                if turn_off() {
                    return Ok(Reserved::TurningOff);
                }
            }
            Change::Disable(_) => {
                return Err(FlipError::StillCounted {
                    key: key.name(),
                    count,
                });
            }
        }
    }
}

/// Takes back what `reserve` did, for the changes that were reserved (a prefix of `changes`).
pub(crate) fn undo(changes: &[Change], reserved: &[Reserved]) {
    for (change, reservation) in changes.iter().zip(reserved) {
        let holders = &change.key().counts.holders;
        match reservation {
            Reserved::Nothing | Reserved::AddHolder => {}
            Reserved::RemovedHolder => {
                holders.fetch_add(1, Ordering::AcqRel);
            }
            Reserved::TurningOn => holders.store(0, Ordering::Release),
            Reserved::TurningOff => holders.store(1, Ordering::Release),
        }
    }
}

/// The part of a change that touches the count after the flip has taken effect.
pub(crate) fn finish(changes: &[Change], reserved: &[Reserved]) {
    for (change, reservation) in changes.iter().zip(reserved) {
        let holders = &change.key().counts.holders;
        match reservation {
            Reserved::Nothing | Reserved::RemovedHolder | Reserved::TurningOff => {}
            Reserved::AddHolder => {
                holders.fetch_add(1, Ordering::AcqRel);
            }
            // Whoever sees 1 sees patched code and the new state.
            Reserved::TurningOn => holders.store(1, Ordering::Release),
        }
    }
}
