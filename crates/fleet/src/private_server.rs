//! A private Valkey or Redis on a free loopback port: for demos, examples and tests.
//!
//! # Why nothing stays behind
//! A shell starts the server, says its number, and then reads its own standard input, whose other end is ours. However this process ends
//! (return, panic, a signal, kill -9), the operating system closes that end; the shell reads the end of the file, kills the
//! server and ends. The shell itself ignores the signals of a terminal, so that it outlives who it works for.
//!
//! # Which server listens
//! A port that was free a moment ago may be somebody else's now. A server writes its number into a file of its own folder once it listens; who
//! does not within five seconds is stopped, and another port is tried.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The binaries that are looked for on the PATH, in this order.
pub const BINARIES: [&str; 2] = ["valkey-server", "redis-server"];

/// How to get one.
pub const HOW_TO_GET_ONE: &str = "a Valkey or Redis of version 7 or later is needed on the PATH: \
    `apt-get install redis-server` (Debian 12, Ubuntu 24.04 or later), `dnf install valkey`, `brew install valkey`";

/// How long a server may take until it listens, before another port is tried. Unit: seconds. Default: 5, a loaded machine's.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);

/// How often that is tried.
const TRIES: u32 = 6;

/// Each line on the shell's standard input is a signal for the server; the end of the file is the end of both.
const SHELL: &str = "trap '' INT TERM HUP; \"$@\" </dev/null >/dev/null 2>&1 & server=$!; echo $server; \
    while read -r signal; do kill -\"$signal\" $server; echo sent; done; kill -9 $server; wait";

/// Why there is no server.
#[derive(Debug)]
#[non_exhaustive]
pub enum PrivateServerError {
    /// None of [`BINARIES`] is on the PATH in version 7 or later.
    Missing,
    /// A process, a port or a folder could not be had.
    System(io::Error),
    /// It never listened, on any of several ports.
    Silent,
}

impl fmt::Display for PrivateServerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrivateServerError::Missing => formatter.write_str(HOW_TO_GET_ONE),
            PrivateServerError::System(error) => write!(formatter, "no private server: {error}"),
            PrivateServerError::Silent => formatter.write_str("the private server never listened"),
        }
    }
}

impl std::error::Error for PrivateServerError {}

impl From<io::Error> for PrivateServerError {
    fn from(error: io::Error) -> Self {
        PrivateServerError::System(error)
    }
}

/// A server; dropping it kills it and removes its folder.
#[derive(Debug)]
pub struct PrivateServer {
    binary: &'static str,
    port: u16,
    folder: PathBuf,
    arguments: Vec<String>,
    /// The configuration of one that is a Sentinel.
    sentinel: Option<String>,
    running: Option<Running>,
}

/// The shell and what it started.
#[derive(Debug)]
struct Running {
    shell: Child,
    signals: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
    number: u32,
}

impl Running {
    fn start(command: &[String]) -> io::Result<Running> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SHELL, "quotient-private-server"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let signals = shell.stdin.take();
        let mut running = Running {
            said: BufReader::new(shell.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?),
            shell,
            signals,
            number: 0,
        };
        let mut line = String::new();
        running.said.read_line(&mut line)?;
        running.number = line
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the shell started no server"))?;
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.signals.take());
        // Fails only for a shell that is gone, and then its server is, too.
        let _ = self.shell.wait();
    }
}

impl PrivateServer {
    /// Starts a server without persistence, with further arguments of `redis-server` (`--requirepass`, `secret`). With a
    /// `--tls-cert-file` it speaks TLS only.
    ///
    /// # Errors
    /// [`PrivateServerError`].
    pub fn start(arguments: &[&str]) -> Result<PrivateServer, PrivateServerError> {
        Self::start_as(arguments, None)
    }

    /// Starts a Sentinel with this configuration.
    ///
    /// # Errors
    /// [`PrivateServerError`].
    pub fn sentinel(configuration: &str) -> Result<PrivateServer, PrivateServerError> {
        Self::start_as(&[], Some(configuration.to_owned()))
    }

    fn start_as(
        arguments: &[&str],
        sentinel: Option<String>,
    ) -> Result<PrivateServer, PrivateServerError> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let mut binaries = BINARIES.into_iter();
        let binary = binaries
            .find(|binary| has_functions(binary))
            .ok_or(PrivateServerError::Missing)?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("quotient-store-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut server = PrivateServer {
            binary,
            port: 0,
            folder,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            sentinel,
            running: None,
        };
        for _ in 0..TRIES {
            server.port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            if server.listen()? {
                return Ok(server);
            }
        }
        Err(PrivateServerError::Silent)
    }

    /// Starts it on its port; returns whether it listens.
    fn listen(&mut self) -> io::Result<bool> {
        let number = self.folder.join("number");
        // Of a server before this one.
        let _ = std::fs::remove_file(&number);
        self.running = Some(Running::start(&self.command(&number)?)?);
        let begun = Instant::now();
        while begun.elapsed() < LISTENS_WITHIN {
            if std::fs::read_to_string(&number).is_ok_and(|text| text.ends_with('\n')) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.running = None;
        Ok(false)
    }

    fn command(&self, number: &Path) -> io::Result<Vec<String>> {
        let mut words = vec![self.binary.to_owned()];
        if let Some(text) = &self.sentinel {
            // It writes what it learns into its file.
            let file = self.folder.join("sentinel.conf");
            std::fs::write(&file, text)?;
            words.extend([file.display().to_string(), "--sentinel".to_owned()]);
        } else {
            words.extend(["--save", "", "--appendonly", "no"].map(str::to_owned));
        }
        let port = self.port.to_string();
        if self.arguments.iter().any(|word| word == "--tls-cert-file") {
            words.extend(["--port", "0", "--tls-port", &port].map(str::to_owned));
        } else {
            words.extend(["--port".to_owned(), port]);
        }
        let folder = self.folder.display().to_string();
        let number = number.display().to_string();
        words.extend(
            [
                "--bind",
                "127.0.0.1",
                "--dir",
                &folder,
                "--pidfile",
                &number,
            ]
            .map(str::to_owned),
        );
        words.extend(self.arguments.iter().cloned());
        Ok(words)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, as a store's.
    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A folder of its own, gone when it is dropped.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of its process, while it runs.
    pub fn process(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.number)
    }

    /// Sends it a signal by its name without `SIG`, such as `STOP` and `CONT`. Returns when it is sent.
    ///
    /// # Errors
    /// The operating system's, or `NotConnected` if it does not run.
    pub fn signal(&mut self, name: &str) -> io::Result<()> {
        let running = self.running.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let signals = running
            .signals
            .as_mut()
            .ok_or(io::ErrorKind::NotConnected)?;
        writeln!(signals, "{name}")?;
        let mut line = String::new();
        running.said.read_line(&mut line)?;
        Ok(())
    }

    /// kill -9. Returns when it is gone.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// kill -9 if it runs, and the same again on the same port, empty.
    ///
    /// # Errors
    /// [`PrivateServerError`].
    pub fn restart(&mut self) -> Result<(), PrivateServerError> {
        self.kill();
        for _ in 0..TRIES {
            if self.listen()? {
                return Ok(());
            }
        }
        Err(PrivateServerError::Silent)
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
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
