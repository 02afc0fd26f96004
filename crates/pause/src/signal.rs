//! Which signal makes a thread look.

use crate::error::InstallError;
use crate::system;

/// The number of a signal that may be used for pausing.
///
/// [`Signal::URGENT`] (`SIGURG`) is the default: nearly nobody uses it, the kernel ignores it where no handler is installed, and
/// debuggers pass it on in silence. (Go's runtime chose it for the same reasons.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal(i32);

impl Signal {
    /// `SIGURG`.
    pub const URGENT: Self = Self(system::SIGURG);

    /// A signal by its number: `SIGURG`, `SIGUSR1`, `SIGUSR2`, `SIGIO`, `SIGWINCH`, or a real-time signal.
    ///
    /// The default action of most of these ends the process: should their handler be displaced in the very moment
    /// between a look and a request, that is what happens. `SIGURG` is safe there.
    ///
    /// # Errors
    /// [`InstallError::SignalRefused`] for every other number.
    pub fn new(number: i32) -> Result<Self, InstallError> {
        if system::may_be_used(number) {
            Ok(Self(number))
        } else {
            Err(InstallError::SignalRefused { value: number })
        }
    }

    /// The signal's number.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }
}

impl Default for Signal {
    fn default() -> Self {
        Self::URGENT
    }
}
