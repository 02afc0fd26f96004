//! Why a command ended without doing its job, and the exit code that says so.

use std::fmt;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An argument that parsed but cannot be used, such as a folder that cannot be written. Exit code 2, as clap's.
    Usage(String),
    /// Something broke while the command ran. Exit code 1.
    Run(String),
    /// Ctrl-C or a termination signal. Exit code 130, as a shell reports it.
    Interrupted,
}

impl Failure {
    /// The process exit code of this failure.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Run(_) => ExitCode::from(1),
            Self::Interrupted => ExitCode::from(130),
        }
    }

    /// A closure for `map_err` that puts `what` in front of the error's own words.
    pub fn during<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::Run(format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Run(message) => formatter.write_str(message),
            Self::Interrupted => formatter.write_str("interrupted; nothing is left running"),
        }
    }
}
