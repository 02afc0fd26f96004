//! Static keys: branches that cost one instruction while they are off, switched safely in running code.
//!
//! ```
//! use quotient_keys::{static_branch_unlikely, static_key};
//!
//! static_key! {
//!     /// Counts every request by its path.
//!     static PATH_STATISTICS = false;
//! }
//!
//! fn handle(path: &str) -> usize {
//!     if static_branch_unlikely!(PATH_STATISTICS) {
//!         eprintln!("{path}");
//!     }
//!     path.len()
//! }
//!
//! quotient_keys::patch();     // once, in `main`: this program's code may be rewritten
//! handle("/");                // one `test` instruction more than without the branch
//! let guard = PATH_STATISTICS.hold()?;
//! handle("/");                // prints
//! drop(guard);
//! # Ok::<(), quotient_keys::FlipError>(())
//! ```
//!
//! # What it is for
//!
//! Code that must be there but is seldom wanted: tracing, statistics, checks, a feature that nobody has switched on. The
//! gain over a relaxed atomic flag is two instructions, a cache line and an entry of the branch predictor at each place:
//! seldom visible as time in a single loop, adding up in a program with thousands of such places. **Not in leaf functions**
//! whose branch guards a call: the compiler saves registers ahead of it, and the function pays some 7 instructions, 4 more
//! than with a relaxed load; there, [`static_call_if!`] costs one. The price is paid by
//! whoever flips: some microseconds instead of a nanosecond.
//!
//! # Who may rewrite code
//!
//! The application, by one call of [`patch`] (or [`set_mode`]) in its `main`; a library that uses keys does not make that
//! call. Until it comes no page of code is written, no thread is started and no system call made: each branch is a load,
//! and a flip a store. Operators have the last word: `QUOTIENT_KEYS=soft` keeps a program that asks from patching and from
//! trying whether it could; the name of another mode, `biased` or `strict`, is the mode that it gets.
//!
//! # What it promises
//!
//! * When an enabling or disabling call has returned, no thread *newly* takes the old branch, if it is ordered after the
//!   call by anything (a lock, a channel, a join, an atomic). Threads may still be *inside* the old branch: waiting for
//!   them is the caller's business.
//! * A flip that returns an error has not happened.
//! * A branch that goes the way it does not fall through sees everything that was written before the flip. A branch that
//!   falls through orders nothing.
//! * Where code cannot be patched (other platforms, sandboxes, emulators) the same program works with a load at each
//!   branch; [`status()`] tells why.
//!
//! # What to know
//!
//! * Flip, and fork, from threads, not from signal handlers: one that interrupted a flip would wait for itself.
//! * A program that sandboxes itself later calls [`soften_all`] before; otherwise keys may get stuck at their value, and
//!   say so by an error.
//! * In the modes that go through breakpoints ([`Mode::Strict`], [`Mode::Int3`], [`Mode::OneByOne`]; nobody's default) gdb
//!   stops at each of them, a program that installs its own `SIGTRAP` handler should do so before the first flip, and a
//!   thread that blocks `SIGTRAP` makes flips fail; one that blocks it during a flip may be killed.
//! * No page is ever writable and executable at once unless [`allow_writable_code`] was called.
//! * A `cdylib` built with this crate has its own keys and engine, beside those of the program that loads it. Rust's
//!   `dylib` type does not link if a key is used across its border. The crate may be in a program once only, so libraries
//!   depend on [`quotient_key`] instead: what is defined with it is what this crate re-exports.
//! * The compiler may duplicate a site (inlining, unrolling) or merge identical functions that hold one: count sites with
//!   [`Key::status`], not in the source.
//! * `--cfg quotient_keys_soft` builds the fallback everywhere.

#![deny(missing_docs)]
#![deny(clippy::undocumented_unsafe_blocks)]

mod attach;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod calls;
mod combine;
mod control;
mod deferred;
mod engine;
mod error;
mod flipping;
mod mode;
#[cfg(all(test, feature = "model"))]
mod model;
mod registry;
mod status;
mod step;
mod text;

pub use calls::{
    allow_writable_code, disable_transaction, enable_transaction, patch, patch_all, patch_keys,
    set_mode, set_writes, soften_all, status, transaction,
};
pub use control::{name_matches, set_as_directed, set_by_environment, set_by_prefix, set_matching};
pub use error::ModeError;
pub use mode::{ModeReason, Writes};
pub use registry::{keys, set_by_name};
pub use status::EngineStatus;
pub use step::Change;

#[doc(inline)]
pub use quotient_key::{
    EnableGuard, FlipError, Key, KeyStatus, Mode, Receipt, SoftReason, StaticKey, StaticKeyFalse,
    StaticKeyTrue, Writer, find,
};
#[doc(inline)]
pub use quotient_key::{
    static_branch, static_branch_likely, static_branch_unlikely, static_call_if, static_key,
};

#[doc(hidden)]
pub use quotient_key::{__private, __site};
