//! The library of the build matrix, loaded at run time: its keys, its engine and its handler are beside the program's.

pub extern crate base;
mod checks;

/// The kernel's checks on this library's copy of the keys. 0: all is well.
#[unsafe(no_mangle)]
pub extern "C" fn check_plugin() -> std::ffi::c_int {
    checks::eighteen_checks_in_every_mode();
    let status = quotient_keys::status();
    i32::from(status.sites == 0) + i32::from(status.foreign != 0)
}
