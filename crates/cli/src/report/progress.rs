//! Live progress on standard error: one line that rewrites itself on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};

/// The progress display of a run.
pub struct Progress {
    terminal: bool,
    label: String,
}

impl Progress {
    /// A display that looks once whether standard error is a terminal.
    pub fn new() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
            label: String::new(),
        }
    }

    /// Something new begins.
    pub fn begin(&mut self, label: &str) {
        self.label = label.to_owned();
        self.rewrite("starting");
    }

    /// The closed loop is over.
    pub fn capacity(&mut self, rps: f64) {
        self.rewrite(&format!("capacity {rps:.0} req/s"));
    }

    /// The open loop has come this far. Short enough for 80 columns: a line that wraps cannot be rewritten.
    pub fn open_loop(&mut self, completed: u64, p99_us: u64, hog_cpus: f64) {
        let p99 = quotient_trace::chart::duration(p99_us);
        self.rewrite(&format!(
            "{completed} answered  p99 {p99}  hogs {hog_cpus:.2} CPU"
        ));
    }

    /// What began is done; `result` stays on the screen.
    pub fn finish(&mut self, result: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        self.print(&format!("{clear}{}  {result}\n", self.label));
        self.label.clear();
    }

    fn rewrite(&self, state: &str) {
        if self.terminal {
            self.print(&format!("\r\x1b[2K{}  {state}", self.label));
        }
    }

    fn print(&self, text: &str) {
        // Progress that nobody can read must not stop the run.
        let mut error = io::stderr().lock();
        let _ = error
            .write_all(text.as_bytes())
            .and_then(|()| error.flush());
    }
}

impl Drop for Progress {
    /// Leaves the cursor on a fresh line if something was cut short.
    fn drop(&mut self) {
        if self.terminal && !self.label.is_empty() {
            self.print("\n");
        }
    }
}
