//! A library that depends on the keys alone, not on an engine. Compiled once with this crate's keys, and with copies of them
//! that have other versions.

#![no_std]
#![forbid(unsafe_code)]

use quotient_key::{static_branch_likely, static_branch_unlikely, static_key};

static_key! {
    /// Starts off.
    pub static OFF = false;
    /// Starts on.
    pub static ON = true;
    /// Two that start off.
    pub static PAIR = [false; 2];
}

/// One of four branches as they are compiled here, all of which say whether the feature is on.
#[inline(never)]
pub fn from_here() -> [bool; 4] {
    [
        static_branch_unlikely!(OFF),
        static_branch_likely!(ON),
        static_branch_unlikely!(PAIR[0]),
        static_branch_likely!(PAIR[1]),
    ]
}

/// The same in the crate that calls it.
#[inline]
pub fn from_there<T: Default>() -> ([bool; 4], T) {
    (
        [
            static_branch_unlikely!(OFF),
            static_branch_likely!(ON),
            static_branch_unlikely!(PAIR[0]),
            static_branch_likely!(PAIR[1]),
        ],
        T::default(),
    )
}

/// Switches all keys; whether every branch followed.
pub fn follows(on: bool) -> bool {
    let keys = [&*OFF, &*ON, &*PAIR[0], &*PAIR[1]];
    keys.iter().all(|key| key.set(on).is_ok())
        && from_here() == [on; 4]
        && from_there::<u8>() == ([on; 4], 0)
        && OFF.is_enabled() == on
}

/// Sites that an engine found, and those that it patched.
pub fn sites() -> (usize, usize) {
    let keys = [OFF.status(), ON.status(), PAIR[0].status(), PAIR[1].status()];
    keys.iter().fold((0, 0), |(sites, patched), status| {
        (sites + status.sites, patched + status.patched)
    })
}

/// Why nothing is patched.
pub fn says_no_engine() -> bool {
    OFF.status().soft_reason == Some(quotient_key::SoftReason::NoEngine)
}

/// Keys in the list of this library's keys.
pub fn keys() -> usize {
    quotient_key::keys().count()
}
