//! The system calls, behind safe functions; on platforms without them, functions that refuse.

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod linux;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub(crate) use linux::*;

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod unsupported;
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
pub(crate) use unsupported::*;

#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64",
    target_pointer_width = "64",
    not(miri)
))]
mod sequence;
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64",
    target_pointer_width = "64",
    not(miri)
))]
pub(crate) use sequence::{name_nothing, still_names_nothing};

/// Nothing is told elsewhere.
#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64",
    target_pointer_width = "64",
    not(miri)
)))]
mod no_sequence {
    #[inline]
    pub(crate) fn name_nothing() {}

    #[inline]
    pub(crate) fn still_names_nothing() -> Option<bool> {
        None
    }
}
#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64",
    target_pointer_width = "64",
    not(miri)
)))]
pub(crate) use no_sequence::{name_nothing, still_names_nothing};
