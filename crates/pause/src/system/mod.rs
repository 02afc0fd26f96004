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

/// Where nothing is told of restartable sequences, functions that say so.
#[cfg_attr(
    not(all(
        target_os = "linux",
        target_env = "gnu",
        target_arch = "x86_64",
        target_pointer_width = "64",
        not(miri)
    )),
    path = "no_sequence.rs"
)]
mod sequence;
pub(crate) use sequence::{name_nothing, still_names_nothing};
