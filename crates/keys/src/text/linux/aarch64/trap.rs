//! There are no modes with breakpoints here.

use core::ffi::c_int;

use super::super::table::Table;

pub(in crate::text) fn install(_table: &Table) -> Result<(), c_int> {
    Err(libc::ENOSYS)
}

pub(in crate::text) fn is_in_place() -> bool {
    false
}

pub(in crate::text) fn traps_of(_key_index: usize) -> u64 {
    0
}
