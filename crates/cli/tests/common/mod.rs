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

/// Whether the doubt of an answer of `advise` with these words decides; `None` if there is none.
#[allow(dead_code)] // not every file of tests asks
pub fn doubt(answer: &serde_json::Value, words: &str) -> Option<bool> {
    let mut doubts = answer["doubts"].as_array().expect("doubts").iter();
    let doubt = doubts.find(|doubt| doubt["reason"].as_str().expect("words").contains(words));
    doubt.map(|doubt| doubt["decisive"] == true)
}

/// A trace of a scenario, as a kernel would have recorded it: that says neither a limit nor when somebody was throttled.
#[allow(dead_code)] // not every file of tests asks
pub fn recorded(folder: &Folder, name: &str, text: &str) -> String {
    let scenario = folder.file(&format!("{name}.toml"));
    std::fs::write(&scenario, text).expect("our own folder");
    let trace = folder.file(&format!("{name}.jsonl"));
    let output = quotient(&["sim", &scenario, "--trace", &trace]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&trace).expect("it was written");
    let kept = text.lines();
    let kept = kept.filter(|line| !line.contains("throttle") && !line.contains("\"set_"));
    std::fs::write(&trace, kept.collect::<Vec<_>>().join("\n") + "\n").expect("our own folder");
    trace
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
