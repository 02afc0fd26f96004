//! A library of the build matrix that links the engine and has no site of its own: it must not find the program's.

/// Sites that this library's engine knows.
#[unsafe(no_mangle)]
pub extern "C" fn bare_sites() -> usize {
    quotient_keys::status().sites
}

/// Patches whatever this library's engine takes for its own; returns how many sites that is.
#[unsafe(no_mangle)]
pub extern "C" fn bare_patch() -> usize {
    quotient_keys::patch();
    quotient_keys::status().patched
}
