//! Why a command ended without doing its job, and the exit code that says so.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An argument that parsed but cannot be used, such as a folder that cannot be written. Exit code 2, as clap's.
    Usage(String),
    /// Something broke while the command ran, or what it was to check is broken. Exit code 1.
    Run(String),
    /// The input is not what it should be, so nothing can be said of it. Exit code 3.
    Unreadable(String),
    /// Some of the input is not what it should be; what can be said of the rest was said. Exit code 4.
    #[cfg(feature = "fleet")]
    Partly(String),
    /// What the command says or makes cannot be written: a full disk. Exit code 5.
    Unwritable(String),
    /// Nobody reads what the command prints any more (`| head`). Exit code 141, as a shell reports it; no message.
    Closed,
    /// Ctrl-C or a termination signal. Exit code 130, as a shell reports it.
    Interrupted,
}

impl Failure {
    /// The process exit code of this failure.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Run(_) => ExitCode::from(1),
            Self::Unreadable(_) => ExitCode::from(3),
            #[cfg(feature = "fleet")]
            Self::Partly(_) => ExitCode::from(4),
            Self::Unwritable(_) => ExitCode::from(5),
            Self::Closed => ExitCode::from(141),
            Self::Interrupted => ExitCode::from(130),
        }
    }

    /// A closure for `map_err` that puts `what` in front of the error's own words.
    pub fn during<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::Run(format!("{what}: {error}"))
    }

    /// The same for input that cannot be read.
    pub fn reading<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::Unreadable(format!("{what}: {error}"))
    }

    /// A closure for `map_err` of what is written to others: `Closed` when nobody reads it any more, else `Unwritable` with
    /// `what` in front.
    pub fn writing(what: &str) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.kind() {
            ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Unwritable(format!("{what}: {error}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message)
            | Self::Run(message)
            | Self::Unreadable(message)
            | Self::Unwritable(message) => formatter.write_str(message),
            #[cfg(feature = "fleet")]
            Self::Partly(message) => formatter.write_str(message),
            Self::Closed => formatter.write_str("nobody reads the output any more"),
            Self::Interrupted => formatter.write_str("interrupted; nothing is left running"),
        }
    }
}

/// Writes to standard output.
///
/// # Errors
/// `Closed` when nobody reads it any more, `Unwritable` for any other reason.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    let written = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
    written.map_err(Failure::writing("cannot write to standard output"))
}

/// Writes a line to standard output for commands that print as they go. When nobody reads it any more, this ends the process as a
/// shell reports it.
pub fn print_line(line: &str) {
    let mut output = std::io::stdout().lock();
    if let Err(error) = writeln!(output, "{line}") {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("quotient: cannot write to standard output: {error}");
            std::process::exit(5);
        }
        std::process::exit(141);
    }
}
