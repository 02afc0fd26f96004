//! The other side: what tools use.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::protocol::{Answer, Hello, Request, VERSION};

/// Longest answer. Unit: bytes. Default 64 MiB: ten thousand groups with the longest paths.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// How long a whole answer may take, if nothing else is said. Unit: time. Default 10 s.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A connection to a process.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<Timed>,
    within: Duration,
    hello: Hello,
}

/// Ends a connection from another thread: whoever reads from it is at its end.
#[derive(Debug)]
pub struct Closer(UnixStream);

impl Closer {
    /// Ends it.
    pub fn close(&self) {
        // It fails only for a connection that has ended already.
        self.0.shutdown(Shutdown::Both).ok();
    }
}

/// Reads that all end by one time, however slowly the other side lets bytes through.
#[derive(Debug)]
struct Timed {
    stream: UnixStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let late = || std::io::Error::new(ErrorKind::TimedOut, "no answer in time");
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream
            .read(buffer)
            .map_err(|error| match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
                _ => error,
            })
    }
}

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket does not open, or breaks.
    System(std::io::Error),
    /// What came is not this protocol, or of another version.
    Protocol(String),
    /// The process says no.
    Refused(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => write!(formatter, "{error}"),
            Self::Protocol(reason) | Self::Refused(reason) => formatter.write_str(reason),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<std::io::Error> for ClientError {
    fn from(error: std::io::Error) -> Self {
        Self::System(error)
    }
}

impl Client {
    /// Connects, and reads who is there. Every answer has [`ANSWER_WITHIN`].
    ///
    /// # Errors
    /// [`ClientError`]; one of the kind [`ErrorKind::TimedOut`] if there is no answer in time.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_within(path, ANSWER_WITHIN)
    }

    /// The same, with another bound on the time of each answer.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_within(path: &Path, within: Duration) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(within.max(Duration::from_millis(1))))?;
        let mut reader = BufReader::new(Timed {
            stream,
            until: Instant::now() + within,
        });
        let line = line(&mut reader)?;
        if let Ok(Answer::Error(reason)) = serde_json::from_slice(&line) {
            return Err(ClientError::Refused(reason));
        }
        let hello: Hello = serde_json::from_slice(&line)
            .map_err(|error| ClientError::Protocol(format!("no quotient process: {error}")))?;
        if hello.quotient != VERSION {
            let (theirs, ours) = (hello.quotient, VERSION);
            let reason = format!("the process speaks version {theirs}, this program {ours}");
            return Err(ClientError::Protocol(reason));
        }
        Ok(Self {
            reader,
            within,
            hello,
        })
    }

    /// What the server said of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] for an answer that says no.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let mut text = serde_json::to_vec(request)
            .map_err(|error| ClientError::Protocol(error.to_string()))?;
        text.push(b'\n');
        let timed = self.reader.get_mut();
        timed.until = Instant::now() + self.within;
        timed.stream.write_all(&text)?;
        let answer = serde_json::from_slice(&line(&mut self.reader)?)
            .map_err(|error| ClientError::Protocol(format!("no answer: {error}")))?;
        match answer {
            Answer::Error(reason) => Err(ClientError::Refused(reason)),
            answer => Ok(answer),
        }
    }

    /// Who can end the connection from elsewhere.
    ///
    /// # Errors
    /// The system's, if it has no more descriptors.
    pub fn closer(&self) -> std::io::Result<Closer> {
        self.reader.get_ref().stream.try_clone().map(Closer)
    }

    /// What comes after the answer to [`Request::Trace`], until the server ends it; all of it has `within`.
    pub fn into_rest(mut self, within: Duration) -> impl BufRead {
        self.reader.get_mut().until = Instant::now() + within;
        self.reader
    }
}

fn line(reader: &mut BufReader<Timed>) -> Result<Vec<u8>, ClientError> {
    let mut line = Vec::new();
    let read = reader.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Err(ClientError::Protocol(
            "the process closed the connection".to_owned(),
        ));
    }
    Ok(line)
}
