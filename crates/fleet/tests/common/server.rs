//! A private server on a free loopback port; ends with the test.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    child: Child,
    pub port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
}

/// Starts a server, or says why the test is skipped.
pub fn start(name: &str, arguments: &[&str]) -> Option<Server> {
    let binary = ["valkey-server", "redis-server"]
        .into_iter()
        .find(|binary| has_functions(binary));
    let Some(binary) = binary else {
        // Past the test harness, which shows what a test prints only where it fails.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {name} needs redis-server or valkey-server, 7 or later (apt-get install redis-server)"
        );
        return None;
    };
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let directory =
        std::env::temp_dir().join(format!("quotient-fleet-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let child = spawn(binary, port, &directory, &arguments);
    let server = Server {
        child,
        port,
        directory,
        arguments: [vec![binary.to_owned()], arguments].concat(),
    };
    server.wait();
    Some(server)
}

/// Whether it is there, and 7 or later: `... v=7.0.15 ...`.
fn has_functions(binary: &str) -> bool {
    let Ok(output) = Command::new(binary).arg("--version").output() else {
        return false;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text
        .split("v=")
        .nth(1)
        .and_then(|rest| rest.split('.').next());
    version.is_some_and(|major| major.parse::<u32>().is_ok_and(|major| major >= 7))
}

fn spawn(binary: &str, port: u16, directory: &Path, arguments: &[String]) -> Child {
    Command::new(binary)
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .args(["--dir", &directory.to_string_lossy()])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server starts")
}

impl Server {
    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn wait(&self) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the server does not listen"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// kill -9.
    #[allow(dead_code)] // not every test kills its server
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The same again, on the same port, empty.
    #[allow(dead_code)] // not every test kills its server
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(
            &self.arguments[0],
            self.port,
            &self.directory,
            &self.arguments[1..],
        );
        self.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
