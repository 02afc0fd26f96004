//! Opening the socket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quotient::Scheduler;

/// Most connections at a time, each with a thread. A further one takes the place of whoever has been silent for longest, for [`SEAT_KEPT`]
/// at least; if nobody has, it is told so and closed.
pub const CONNECTIONS_MAX: usize = 4;
/// How long a silent connection keeps its place if a fifth comes. Unit: time. Default 5 s: tools ask more often.
pub const SEAT_KEPT: Duration = Duration::from_secs(5);
/// How long a thread may take to notice that it is to end. Unit: time.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// How long a client may say nothing, and how long it may leave an answer unread. Unit: time.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What is to be opened.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `open`"]
pub struct Attach {
    pub(crate) scheduler: Scheduler,
    pub(crate) path: Option<PathBuf>,
    pub(crate) changes: bool,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub(crate) seat_kept: Duration,
}

/// Why there is no socket. Its `Debug` is its sentence too: a `main` that returns it prints that, and a bare name would help nobody.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// No path was given, and the environment has no `XDG_RUNTIME_DIR`.
    NoFolder,
    /// Something is at that path: a socket that answers, or no socket at all.
    Taken(PathBuf),
    /// The system refuses the socket or its thread.
    System(String),
    /// Not on this operating system.
    Unsupported,
}

impl fmt::Display for AttachError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFolder => formatter.write_str(
                "no path was given for the socket, and XDG_RUNTIME_DIR is not set: give one, by `Attach::path` in the program",
            ),
            Self::Taken(path) => write!(formatter, "{} is in use", path.display()),
            Self::System(reason) => formatter.write_str(reason),
            Self::Unsupported => formatter.write_str("attaching needs Linux"),
        }
    }
}

impl fmt::Debug for AttachError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for AttachError {}

/// Where the socket of a process is if it gives no path: `quotient-PID.sock` in `XDG_RUNTIME_DIR`. `None` without that.
pub fn default_path(pid: u32) -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty())?;
    Some(Path::new(&folder).join(format!("quotient-{pid}.sock")))
}

impl Attach {
    /// A socket for `scheduler`, whose handle it keeps while it is open.
    pub fn new(scheduler: &Scheduler) -> Self {
        Self {
            scheduler: scheduler.clone(),
            path: None,
            changes: false,
            seat_kept: SEAT_KEPT,
        }
    }

    /// Where it is to be, in place of [`default_path`]. One that is left over from a process that has ended is replaced.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Lets clients change weights and limits.
    pub fn allow_changes(mut self) -> Self {
        self.changes = true;
        self
    }

    /// Opens the socket and starts its thread.
    ///
    /// # Errors
    /// [`AttachError`]; there is no socket then. [`AttachError::NoFolder`] is what services and containers get, which have no
    /// `XDG_RUNTIME_DIR`: give a [`path`](Self::path).
    pub fn open(self) -> Result<Attached, AttachError> {
        #[cfg(target_os = "linux")]
        return crate::serve::open(self).map(|server| Attached { server });
        #[cfg(not(target_os = "linux"))]
        return Err(AttachError::Unsupported);
    }
}

/// An open socket: dropping it removes it and ends its threads.
#[derive(Debug)]
pub struct Attached {
    #[cfg(target_os = "linux")]
    server: crate::serve::Server,
    #[cfg(not(target_os = "linux"))]
    server: std::convert::Infallible,
}

impl Attached {
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn server(&self) -> &crate::serve::Server {
        &self.server
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        #[cfg(target_os = "linux")]
        return self.server.path();
        #[cfg(not(target_os = "linux"))]
        match self.server {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose `main` returns the error prints its `Debug`.
    #[test]
    fn who_lacks_a_folder_is_told_what_to_do() {
        let told = format!("{:?}", AttachError::NoFolder);
        assert!(told.contains("XDG_RUNTIME_DIR is not set"), "{told}");
        assert!(told.contains("Attach::path"), "{told}");
    }
}
