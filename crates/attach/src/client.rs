//! The other side: what tools use.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::protocol::{Answer, Hello, Request, VERSION};

/// Longest answer. Unit: bytes. Default 64 MiB: ten thousand groups with the longest paths.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// How long an answer may take. Unit: time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A connection to a process.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    hello: Hello,
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
    /// Connects, and reads who is there.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        let mut reader = BufReader::new(stream);
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
        Ok(Self { reader, hello })
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
        self.reader.get_mut().write_all(&text)?;
        let answer = serde_json::from_slice(&line(&mut self.reader)?)
            .map_err(|error| ClientError::Protocol(format!("no answer: {error}")))?;
        match answer {
            Answer::Error(reason) => Err(ClientError::Refused(reason)),
            answer => Ok(answer),
        }
    }

    /// What comes after the answer to [`Request::Trace`], until the server ends it.
    pub fn into_rest(self) -> impl Read {
        self.reader
    }
}

fn line(reader: &mut BufReader<UnixStream>) -> Result<Vec<u8>, ClientError> {
    let mut line = Vec::new();
    let read = reader.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Err(ClientError::Protocol(
            "the process closed the connection".to_owned(),
        ));
    }
    Ok(line)
}
