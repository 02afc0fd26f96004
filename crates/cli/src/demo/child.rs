//! Child processes that cannot outlive the demo.
//!
//! The parent holds the writing end of each child's standard input and never writes. However the parent ends (return,
//! panic, Ctrl-C, SIGKILL), the operating system closes that end, and a thread in the child that does nothing but read
//! it exits the process. Children ignore Ctrl-C themselves, so that it is the parent that decides, and reports.
//! A child that has not ended when its handle is dropped is killed and reaped.

use std::io::{self, Read};
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::thread;

use crate::failure::Failure;

/// A child process; dropping it kills and reaps it.
pub struct Child {
    process: Process,
}

impl Child {
    /// Starts this very binary with `arguments`; returns the child and its standard output.
    ///
    /// # Errors
    /// When the operating system does not give us a process.
    pub fn start(arguments: &[String]) -> Result<(Self, ChildStdout), Failure> {
        let binary = std::env::current_exe()
            .map_err(Failure::during("cannot find the path of this binary"))?;
        let mut process = Command::new(binary)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::during("cannot start a child process"))?;
        let output = process.stdout.take();
        let child = Self { process };
        let output =
            output.ok_or_else(|| Failure::Run("a child process has no standard output".into()))?;
        Ok((child, output))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if the process is already gone and reaped, which is what they are for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// For children: from now on this process exits when its standard input closes, and ignores Ctrl-C.
///
/// # Errors
/// When the signal handler or the watching thread cannot be set up.
pub fn exit_with_parent() -> Result<(), Failure> {
    ctrlc::set_handler(|| {}).map_err(Failure::during("cannot handle Ctrl-C"))?;
    thread::Builder::new()
        .name("parent-watch".into())
        .spawn(|| {
            let mut buffer = [0; 64];
            loop {
                match io::stdin().read(&mut buffer) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            // Nothing here needs a destructor: no files, no data of the user.
            std::process::exit(0);
        })
        .map_err(Failure::during(
            "cannot start the thread that watches the parent",
        ))?;
    Ok(())
}
