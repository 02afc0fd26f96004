//! `quotient top` and `quotient trace`: looking into a running process that opened a socket (`quotient-attach`).
//!
//! Whoever answers may be broken or hostile: each answer has a bound in time ([`Link::timeout_ms`]) and size, nothing of it reaches the
//! terminal as a command ([`printable()`]), and a trace is read and checked before it is written.

mod printable;
mod rows;
#[cfg(feature = "screen")]
mod screen;
mod trace;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use quotient_attach::{Answer, Client, ClientError, Request, Snapshot, default_path};
use serde_json::json;

pub use self::trace::{TraceArguments, trace};

use self::printable::{escaped, printable};
use self::rows::{Row, Sort, rows, table};
use crate::failure::{Failure, print};
use crate::json::versioned;

/// Which process, and how long it may think.
#[derive(Debug, Clone, Args)]
struct Link {
    /// The process, whose socket is quotient-PID.sock in XDG_RUNTIME_DIR, or the path of its socket
    #[arg(value_name = "PID|SOCKET")]
    target: OsString,
    /// How long each answer may take, in milliseconds (100..=600000)
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u64).range(100..=600_000))]
    timeout_ms: u64,
}

/// What `quotient top` takes.
#[derive(Debug, Clone, Args)]
pub struct TopArguments {
    #[command(flatten)]
    link: Link,
    /// Print one table and end
    #[arg(long)]
    once: bool,
    /// With --once: print exactly one JSON object on standard output
    #[arg(long, requires = "once")]
    json: bool,
    /// Time over which rates are taken, in milliseconds (100..=60000)
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
    /// The order of the groups
    #[arg(long, default_value = "cpu")]
    sort: Sort,
    /// Only groups whose path has this text in it
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
}

/// Shows the groups of a process.
///
/// # Errors
/// `Usage` if nobody answers at the socket, `Unreadable` for an answer that is none, `Run` if the process refuses, takes too long or ends.
pub fn run(arguments: &TopArguments) -> Result<(), Failure> {
    // Both at once: who has mended one is not to be told of the other then.
    #[cfg(not(feature = "screen"))]
    if !arguments.once {
        let what = "give --once: the screen is in programs that were built with --features screen";
        return Err(Failure::Usage(match arguments.link.connect() {
            Err(Failure::Usage(first)) => format!("{first}; and {what}"),
            _ => what.to_owned(),
        }));
    }
    let mut client = arguments.link.connect()?;
    #[cfg(feature = "screen")]
    if !arguments.once {
        return screen::run(client, arguments);
    }
    let before = arguments.link.snapshot(&mut client)?;
    std::thread::sleep(Duration::from_millis(arguments.interval_ms));
    let after = arguments.link.snapshot(&mut client)?;
    let rows = rows(&before, &after, arguments.sort, &arguments.filter);
    if !arguments.json {
        return print(&table(&rows));
    }
    let hello = client.hello();
    let rows: Vec<_> = rows.iter().map(Row::json).collect();
    let answer = json!({
        "pid": hello.pid,
        "vcpus": hello.vcpus,
        "changes": hello.changes,
        "seconds": after.at_ns.saturating_sub(before.at_ns) as f64 / 1e9,
        "foreign_tasks": after.foreign_tasks,
        "groups": rows,
        "more": after.more,
    });
    print(&(escaped(&versioned("quotient-top/1", &answer)?) + "\n"))
}

impl Link {
    /// Where the socket is.
    fn path(&self) -> Result<PathBuf, Failure> {
        if self.target.is_empty() {
            return Err(Failure::Usage(
                "PID|SOCKET is empty: give a process, such as 1234, or the path of its socket"
                    .to_owned(),
            ));
        }
        let text = self.target.to_str().unwrap_or_default();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(PathBuf::from(&self.target));
        }
        let pid = text.parse().map_err(|_| {
            Failure::Usage(format!(
                "{text} is no process; a socket of that name is ./{text}"
            ))
        })?;
        default_path(pid).ok_or_else(|| {
            Failure::Usage(
                "XDG_RUNTIME_DIR is not set: give the path of the socket instead of the process"
                    .to_owned(),
            )
        })
    }

    /// What the process is called in messages.
    fn name(&self) -> String {
        printable(&self.target.to_string_lossy())
    }

    fn connect(&self) -> Result<Client, Failure> {
        let path = self.path()?;
        let within = Duration::from_millis(self.timeout_ms);
        Client::connect_within(&path, within).map_err(|error| match error {
            ClientError::System(error) if error.kind() != ErrorKind::TimedOut => {
                let path = printable(&path.display().to_string());
                Failure::Usage(format!(
                    "{path}: {error}: no process of yours has a socket open there (a program opens one by quotient_attach)"
                ))
            }
            error => self.failure(error),
        })
    }

    /// All groups now.
    fn snapshot(&self, client: &mut Client) -> Result<Snapshot, Failure> {
        match client.ask(&Request::Groups {}) {
            Ok(Answer::Groups(snapshot)) => Ok(snapshot),
            Ok(_) => Err(Failure::Unreadable(format!(
                "{}: the answer is to another question",
                self.name()
            ))),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// The words of an error may be the other side's.
    fn failure(&self, error: ClientError) -> Failure {
        let name = self.name();
        match error {
            ClientError::System(error) if error.kind() == ErrorKind::TimedOut => {
                Failure::Run(format!("{name}: no answer within {} ms", self.timeout_ms))
            }
            ClientError::Protocol(reason) => {
                Failure::Unreadable(format!("{name}: {}", printable(&reason)))
            }
            error => Failure::Run(format!("{name}: {}", printable(&error.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_process_and_anything_else_a_path() {
        let path = |target: &str| {
            let link = Link {
                target: target.into(),
                timeout_ms: 100,
            };
            link.path()
        };
        assert_eq!(path("./12").ok(), Some(PathBuf::from("./12")));
        let empty = path("").expect_err("nothing is no process").to_string();
        assert!(empty.contains("PID|SOCKET is empty"), "{empty}");
        assert!(matches!(path("99999999999"), Err(Failure::Usage(_))));
    }
}
