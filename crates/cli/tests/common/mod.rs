//! The binary, run as a person runs it, and a folder for its files.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs it to its end.
pub fn quotient(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// The call, not made yet.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotient"));
    command.args(arguments);
    command
}

/// What it said on standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it said on standard output, in a run that went well.
#[allow(dead_code)] // not every file of tests asks
pub fn stdout(arguments: &[&str]) -> String {
    let output = quotient(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// A folder that is gone afterwards.
pub struct Folder(PathBuf);

impl Folder {
    /// `name` is the test's own.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("quotient-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder in the temporary directory");
        Folder(path)
    }

    /// The path of a file in it, which may not be there.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
