//! Static keys for libraries: branches on keys that somebody switches, at the cost of an instruction if the program chose
//! an engine that patches code, and of a load if it did not.
//!
//! ```
//! use quotient_key::{static_branch_unlikely, static_key};
//!
//! static_key! {
//!     /// Counts every request by its path.
//!     static PATH_STATISTICS = false, as "my_library.path_statistics";
//! }
//!
//! pub fn handle(path: &str) -> usize {
//!     if static_branch_unlikely!(PATH_STATISTICS) {
//!         count(path);
//!     }
//!     path.len()
//! }
//! # fn count(_: &str) {}
//!
//! let guard = PATH_STATISTICS.hold()?;
//! handle("/");                // counts
//! drop(guard);
//! # Ok::<(), quotient_key::FlipError>(())
//! ```
//!
//! # Who needs which crate
//!
//! | you write | you depend on | what your keys do |
//! |---|---|---|
//! | a library | `quotient-key` | whatever the program makes of them |
//! | a program | `quotient-keys`, and call `quotient_keys::patch()` in `main` | sites are patched: one instruction while off |
//! | a program that does not care | nothing | each site is a load and a branch, a flip is a store |
//!
//! So it is as with `log`: this crate is what libraries share, small, `no_std`, without dependencies, without a `links` that
//! another version could conflict with. [`engine`] is what an engine needs of it.
//!
//! # What holds without an engine
//!
//! Counting, guards, errors and names are the same. No code is written and no system call made; deferral and rate limits,
//! which are about patching, do nothing; [`Key::status`] says [`SoftReason::NoEngine`]. Flips take a lock that spins, for
//! some dozens of instructions: a thread of real-time priority should not share a processor with one that flips.
//!
//! # What holds with one
//!
//! Everything that the documentation of `quotient-keys` promises.
//!
//! # Several versions in a program
//!
//! They get along. Each has its keys, its list of keys and its engine, if there is one for it. Sites are gathered in a
//! section of the linker whose name carries the version of its layout, and each key says which copy of this crate it belongs to;
//! an engine patches the keys of its own copy and leaves alone all others, which then work as without an engine.
//! The same is true of a `cdylib` beside the program that loads it: it has a copy of its own.
//!
//! `--cfg quotient_keys_soft` compiles every site to the load.

#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]
#![deny(clippy::undocumented_unsafe_blocks)]

#[cfg(feature = "alloc")]
extern crate alloc;

mod array;
mod branched;
#[cfg_attr(
    not(all(
        target_os = "linux",
        target_arch = "x86_64",
        target_pointer_width = "64",
        not(any(miri, quotient_keys_soft))
    )),
    path = "call_plain.rs"
)]
mod call;
mod change;
mod counting;
pub mod engine;
mod error;
mod guard;
mod key;
mod macros;
mod mode;
mod registry;
#[cfg_attr(
    not(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_endian = "little",
        target_pointer_width = "64",
        not(any(miri, quotient_keys_soft))
    )),
    path = "load.rs"
)]
mod site;
mod status;
mod word;

pub use change::Receipt;
pub use error::FlipError;
pub use guard::EnableGuard;
pub use key::{Key, StaticKey, StaticKeyFalse, StaticKeyTrue};
pub use mode::{Mode, SoftReason, Writer};
pub use registry::{Keys, find, keys};
pub use status::KeyStatus;

/// For the macros only. They take every name from here: what is called `concat!` or `core` where they are used may be anything, and
/// would stand in an unsafe block.
#[doc(hidden)]
pub mod __private {
    pub use ::core;

    pub use crate::array::{ElementNames, array, room_of};
    pub use crate::branched::{WHOLE, default_of, offset_of, value_of};
    pub use crate::key::STATE_OFFSET;
    pub use crate::registry::register;
    pub use crate::word::Word;
}
