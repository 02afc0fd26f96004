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

/// Flips in the mode of that index among all, and back; 0: every branch followed.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_round(mode: usize) -> std::ffi::c_int {
    let Some(mode) = quotient_keys::Mode::ALL.get(mode) else {
        return -1;
    };
    let is_right = quotient_keys::set_mode(*mode).is_ok()
        && [true, false].into_iter().all(|on| {
            base::BASE_FALSE.set(on).is_ok() && base::base_false_from_here() == on
        });
    i32::from(!is_right)
}
