//! A private server, or why a test is skipped.

use std::io::Write;

pub use quotient_fleet::private_server::{PrivateServer, PrivateServerError};

/// Starts a server, or says why the test is skipped.
pub fn start(name: &str, arguments: &[&str]) -> Option<PrivateServer> {
    match PrivateServer::start(arguments) {
        Ok(server) => Some(server),
        Err(PrivateServerError::Missing) => {
            // Past the test harness, which shows what a test prints only where it fails.
            let missing = PrivateServerError::Missing;
            let _ = writeln!(std::io::stderr(), "skipped: {name}: {missing}");
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}
