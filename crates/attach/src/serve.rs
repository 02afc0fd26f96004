//! The threads behind the socket.

use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quotient::Scheduler;
use quotient_trace::JsonLines;

use crate::protocol::{
    Answer, Change, GROUPS_MAX, GroupFigures, Hello, REQUEST_BYTES_MAX, Request, Snapshot,
    TRACE_MILLIS_MAX, VERSION,
};
use crate::server::{Attach, AttachError, CONNECTIONS_MAX, PATIENCE, SILENCE_MAX};

/// Events that a trace keeps a virtual CPU. Unit: events, of 32 bytes each. Default 262,144: 8 MiB, some seconds of a busy one.
const TRACE_EVENTS: usize = 1 << 18;

/// The socket and who ends its threads.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    common: Arc<Common>,
}

/// What all threads know.
#[derive(Debug)]
struct Common {
    scheduler: Scheduler,
    changes: bool,
    opened: Instant,
    stop: AtomicBool,
    connections: AtomicUsize,
}

impl Server {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::Release);
        // Wakes the thread that waits for connections. If that fails it is not waiting any more.
        UnixStream::connect(&self.path).ok();
        std::fs::remove_file(&self.path).ok();
    }
}

pub(crate) fn open(attach: Attach) -> Result<Server, AttachError> {
    let own = crate::server::default_path(std::process::id());
    let path = attach.path.or(own).ok_or(AttachError::NoFolder)?;
    let refused =
        |error: std::io::Error| AttachError::System(format!("{}: {error}", path.display()));
    make_room(&path)?;
    let listener = UnixListener::bind(&path).map_err(refused)?;
    // Between these two lines others may connect, who are asked for their user all the same.
    let mode = std::fs::Permissions::from_mode(0o600);
    let opened = std::fs::set_permissions(&path, mode).map_err(refused);
    let common = Arc::new(Common {
        scheduler: attach.scheduler,
        changes: attach.changes,
        opened: Instant::now(),
        stop: AtomicBool::new(false),
        connections: AtomicUsize::new(0),
    });
    let server = Server {
        path: path.clone(),
        common: common.clone(),
    };
    opened?;
    let thread = std::thread::Builder::new().name("quotient-attach".into());
    thread
        .spawn(move || accept(&listener, &common))
        .map_err(|error| AttachError::System(error.to_string()))?;
    Ok(server)
}

/// Removes a socket that nobody answers.
fn make_room(path: &Path) -> Result<(), AttachError> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    let is_dead = found.file_type().is_socket()
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if !is_dead {
        return Err(AttachError::Taken(path.to_owned()));
    }
    std::fs::remove_file(path).map_err(|error| AttachError::System(error.to_string()))
}

fn accept(listener: &UnixListener, common: &Arc<Common>) {
    while !common.stop.load(Ordering::Acquire) {
        let Ok((stream, _)) = listener.accept() else {
            // Out of files, for instance: not to be tried a million times a second.
            std::thread::sleep(PATIENCE);
            continue;
        };
        if common.stop.load(Ordering::Acquire) {
            return;
        }
        let place = Place::take(common);
        let Some(place) = place.filter(|_| may_come(&stream)) else {
            // A stranger and one too many learn the same, and nothing more.
            let refusal = Answer::Error("the connection is refused".to_owned());
            send(&stream, &refusal).ok();
            continue;
        };
        let thread = std::thread::Builder::new().name("quotient-attach".into());
        // Without a thread the connection is closed, which says it.
        thread
            .spawn(move || {
                // Whatever goes wrong ends with the connection.
                converse(&stream, &place.common).ok();
            })
            .ok();
    }
}

/// One of the connections that there may be.
struct Place {
    common: Arc<Common>,
}

impl Place {
    fn take(common: &Arc<Common>) -> Option<Self> {
        let place = Self {
            common: common.clone(),
        };
        let before = common.connections.fetch_add(1, Ordering::AcqRel);
        (before < CONNECTIONS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.common.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether the peer is our own user, or root.
fn may_come(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

fn send<T: serde::Serialize>(mut stream: &UnixStream, line: &T) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    stream.write_all(&text)
}

fn converse(stream: &UnixStream, common: &Common) -> std::io::Result<()> {
    send(
        stream,
        &Hello {
            quotient: VERSION,
            pid: std::process::id(),
            vcpus: common.scheduler.vcpus(),
            changes: common.changes,
        },
    )?;
    let mut lines = Lines::new(stream)?;
    while let Some(line) = lines.next(&common.stop)? {
        let request = match line {
            Ok(line) => serde_json::from_slice(line).map_err(|error| error.to_string()),
            Err(TooLong) => {
                let message = format!("a request has more than {REQUEST_BYTES_MAX} bytes");
                return send(stream, &Answer::Error(message));
            }
        };
        match request {
            Ok(Request::Groups {}) => send(stream, &Answer::Groups(snapshot(common)))?,
            Ok(Request::Set(change)) => send(stream, &set(common, &change))?,
            Ok(Request::Trace { millis }) => return trace(stream, common, millis),
            Err(error) => send(stream, &Answer::Error(format!("no request: {error}")))?,
        }
    }
    Ok(())
}

fn snapshot(common: &Common) -> Snapshot {
    let groups = common.scheduler.groups();
    let shown = groups.len().min(GROUPS_MAX);
    Snapshot {
        at_ns: u64::try_from(common.opened.elapsed().as_nanos()).unwrap_or(u64::MAX),
        foreign_tasks: common.scheduler.foreign_tasks() as u64,
        groups: groups[..shown].iter().map(GroupFigures::of).collect(),
        more: (groups.len() - shown) as u64,
    }
}

fn set(common: &Common, change: &Change) -> Answer {
    if !common.changes {
        return Answer::Error("this process allows no changes".to_owned());
    }
    let changed = common.scheduler.find(&change.group).and_then(|group| {
        // The limit first: it can be refused for more reasons. One that is refused leaves the weight as it was.
        if let Some(max) = &change.max {
            group.set_max(max.as_str())?;
        }
        change
            .weight
            .map_or(Ok(()), |weight| group.set_weight(weight))
    });
    match changed {
        Ok(()) => Answer::Done {},
        Err(error) => Answer::Error(error.to_string()),
    }
}

/// The rest of the connection is the trace.
fn trace(stream: &UnixStream, common: &Common, millis: u64) -> std::io::Result<()> {
    if !(1..=TRACE_MILLIS_MAX).contains(&millis) {
        let message = format!("millis is {millis}, allowed are 1 to {TRACE_MILLIS_MAX}");
        return send(stream, &Answer::Error(message));
    }
    let recording = match common.scheduler.record(TRACE_EVENTS) {
        Ok(recording) => recording,
        Err(error) => return send(stream, &Answer::Error(error.to_string())),
    };
    send(stream, &Answer::Trace {})?;
    let mut sink = JsonLines::new(BufWriter::new(stream));
    let end = Instant::now() + Duration::from_millis(millis);
    while !common.stop.load(Ordering::Acquire) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(PATIENCE));
        recording.drain(&mut sink);
    }
    recording.finish(&mut sink);
    sink.finish().map(drop)
}

/// The requests of a connection.
struct Lines<'stream> {
    stream: &'stream UnixStream,
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that were given out.
    used: usize,
}

/// A line has no end.
struct TooLong;

impl<'stream> Lines<'stream> {
    fn new(stream: &'stream UnixStream) -> std::io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
            used: 0,
        })
    }

    /// The next line without its end; `None` at the end of the connection, after a long silence, and when the socket is closed.
    fn next(&mut self, stop: &AtomicBool) -> std::io::Result<Option<Result<&[u8], TooLong>>> {
        self.buffer.drain(..self.used);
        self.used = 0;
        let began = Instant::now();
        let mut part = [0; 1_024];
        let end = loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.buffer.len() >= REQUEST_BYTES_MAX {
                return Ok(Some(Err(TooLong)));
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(None),
                Ok(length) => self.buffer.extend_from_slice(&part[..length]),
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error),
            }
            if stop.load(Ordering::Acquire) || began.elapsed() > SILENCE_MAX {
                return Ok(None);
            }
        };
        self.used = end + 1;
        if end >= REQUEST_BYTES_MAX {
            return Ok(Some(Err(TooLong)));
        }
        Ok(Some(Ok(&self.buffer[..end])))
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    let kinds = [
        ErrorKind::WouldBlock,
        ErrorKind::TimedOut,
        ErrorKind::Interrupted,
    ];
    kinds.contains(&error.kind())
}
