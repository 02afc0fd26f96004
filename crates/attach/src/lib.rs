//! Looking at the groups of a running process, and changing them if it allows that: what tools talk to.
//!
//! A process opens a socket only if it asks for it:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scheduler: quotient::Scheduler = todo!();
//! let attached = quotient_attach::Attach::new(&scheduler).open()?; // until it is dropped
//! println!("{}", attached.path().display());
//! # Ok(())
//! # }
//! ```
//!
//! # Who may come
//! The socket has mode 0600, and the kernel is asked for the peer's user at each connection: only the process's own user (and root) is
//! answered. Whoever is, sees the paths of groups and where tasks were spawned. Weights and limits can be changed only after
//! [`Attach::allow_changes`]. Linux only: elsewhere `open` is refused.
//!
//! # Threads
//! One, `quotient-attach`, that waits for connections, and one for each of at most [`CONNECTIONS_MAX`] of them. They are the operating
//! system's and not tokio's, so that one can look into a process whose workers are all stuck. They read figures as anybody does, and stop
//! nobody. They end when [`Attached`] is dropped, those with a connection within [`PATIENCE`].
//!
//! # Protocol
//! Lines of JSON, each an object; version 1. The server begins with a [`Hello`]. Each request is a [`Request`] of at most
//! [`REQUEST_BYTES_MAX`] bytes, answered by one [`Answer`]; a line that is none is answered by an error, and ends the connection if it is
//! too long. After the answer to [`Request::Trace`] come the recorded events as `quotient-trace` writes them, until the server closes the
//! connection. A connection that says nothing for [`SILENCE_MAX`] is closed, and after [`SEAT_KEPT`] if there are [`CONNECTIONS_MAX`]
//! and another one comes.
#![forbid(unsafe_code)]

#[cfg(unix)]
mod client;
mod protocol;
#[cfg(target_os = "linux")]
mod serve;
mod server;

#[cfg(unix)]
pub use self::client::{ANSWER_WITHIN, Client, ClientError, Closer};
pub use self::protocol::{
    Answer, Change, GROUPS_MAX, GroupFigures, Hello, REQUEST_BYTES_MAX, Request, Snapshot,
    TRACE_MILLIS_MAX, VERSION,
};
pub use self::server::{
    Attach, AttachError, Attached, CONNECTIONS_MAX, PATIENCE, SEAT_KEPT, SILENCE_MAX, default_path,
};
