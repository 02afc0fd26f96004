//! `tracing` events that cost an instruction or two while they are off, and are switched by a filter in one transaction: dynamic debug
//! for a process, after the kernel's `dynamic_debug`.
//!
//! ```
//! use quotient_traced::{debug, reload};
//!
//! fn answer(path: &str) -> usize {
//!     debug!(path, "asked");
//!     path.len()
//! }
//!
//! quotient_keys::patch();            // once, in `main`: this program's code may be rewritten
//! quotient_traced::reload_by_environment()?;  // QUOTIENT_DEBUG
//! answer("/");                       // one `test` instruction more than without the event
//! let reloaded = reload("*=debug")?; // in one transaction
//! assert!(reloaded.changed > 0);
//! answer("/");                       // goes to tracing's subscriber, which may still refuse it
//! # Ok::<(), quotient_traced::ReloadError>(())
//! ```
//!
//! # Callsites
//!
//! [`traced!`] (and [`trace!`], [`debug!`], [`info!`], [`warn!`](crate::warn!), [`error!`]) takes what [`tracing::event!`] takes after the
//! level. Behind it stands a static key of its own, which starts **off**: an event that no filter named is never made, nor are
//! its fields evaluated. The key's name is `module::path:line`; [`callsites`] lists all of them, as the kernel's control file does.
//! While a callsite is on, `tracing` decides as ever.
//!
//! Gating pays where events are many and nearly always off. In a leaf function the compiler may save registers ahead of the
//! branch, whatever decides it: see the notes of `quotient-keys`.
//!
//! # Filters
//!
//! `pattern[=what]`, separated by commas. *What* is `on`, `off` or the most verbose level that is on: `error`, `warn`, `info`,
//! `debug`, `trace`. In a pattern `*` stands for any number of characters and `?` for one. A pattern means a callsite if it
//! matches
//!
//! | what | for example |
//! |---|---|
//! | its target (its module, unless it names another), or what the target lies under | `app::net`, `app::*::codec` |
//! | its module and line | `app::net:120` |
//! | its file, or file and line | `src/net/*.rs`, `src/net.rs:120` |
//!
//! A level alone (`info`) means every callsite. Later directives overrule earlier ones, and **a filter is the whole truth**: what
//! none of its directives means is off, and the empty filter turns everything off. A directive that means no callsite of this
//! program is an error: it is misspelt.
//!
//! # A reload
//!
//! All callsites that change do so in one transaction of the static keys, with the barriers of a single flip: all or none. They
//! do not change at the same instant: until [`reload`] returns, another thread may pass one callsite that is switched already and
//! one that is not yet. Reloads take turns. One that fails (a filter that cannot be read, a callsite that somebody holds on, a
//! debugger's breakpoint on one) has changed nothing.
//!
//! # `QUOTIENT_DEBUG`
//!
//! [`reload_by_environment`] takes the filter from the environment variable [`VARIABLE`]; the application calls it, after
//! [`quotient_keys::patch`]. Without `patch` everything works, and each callsite is a load and a branch.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod callsite;
mod filter;
mod macros;
mod reload;

pub use callsite::{Callsite, callsites};
pub use filter::{DIRECTIVES_MAX, FILTER_BYTES_MAX, Filter, FilterError};
pub use reload::{ReloadError, Reloaded, VARIABLE, reload, reload_by_environment};

/// For the macros only.
#[doc(hidden)]
pub mod __private {
    pub use quotient_keys::{static_branch_unlikely, static_key};
    pub use tracing;
}
