//! The threads behind the socket.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotient::{GroupConfig, Scheduler};
use quotient_trace::{Amount, Definition, Event, JsonLines, Kind, NameId, Sink, VCPUS_REMARK};

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
    /// Device and number of the socket's file: what is at the path by now may be another's.
    file: Option<(u64, u64)>,
    listener: Arc<UnixListener>,
    common: Arc<Common>,
}

/// What all threads know.
#[derive(Debug)]
struct Common {
    scheduler: Scheduler,
    changes: bool,
    opened: Instant,
    stop: AtomicBool,
    /// After how long a silence a connection gives way to a new one, if there are [`CONNECTIONS_MAX`].
    seat_kept: Duration,
    seats: Mutex<Vec<Arc<Seat>>>,
}

impl Common {
    fn seats(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the socket was opened. Unit: milliseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// One of the connections that there may be.
#[derive(Debug)]
struct Seat {
    /// To end it from outside.
    stream: UnixStream,
    /// When it last asked for something, or when it came. Unit: milliseconds since the socket was opened.
    heard: AtomicU64,
    /// A trace is under way, in which the client is silent.
    traces: AtomicBool,
}

impl Server {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::Release);
        // Whoever removed the file meanwhile, or put another in its place: the thread is reached by its own socket, and only that goes.
        // Wakes the thread that waits for connections. It fails for a socket that is shut down already.
        rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).ok();
        if self.file.is_some() && file_at(&self.path) == self.file {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

pub(crate) fn open(attach: Attach) -> Result<Server, AttachError> {
    let own = crate::server::default_path(std::process::id());
    let path = attach.path.or(own).ok_or(AttachError::NoFolder)?;
    let refused =
        |error: std::io::Error| AttachError::System(format!("{}: {error}", path.display()));
    let lock = Lock::take(&path).map_err(refused)?;
    make_room(&path)?;
    let listener = Arc::new(UnixListener::bind(&path).map_err(refused)?);
    drop(lock);
    // Between these two lines others may connect, who are asked for their user all the same.
    let mode = std::fs::Permissions::from_mode(0o600);
    let opened = std::fs::set_permissions(&path, mode).map_err(refused);
    let common = Arc::new(Common {
        scheduler: attach.scheduler,
        changes: attach.changes,
        opened: Instant::now(),
        stop: AtomicBool::new(false),
        seat_kept: attach.seat_kept,
        seats: Mutex::default(),
    });
    let server = Server {
        file: file_at(&path),
        path: path.clone(),
        listener: listener.clone(),
        common: common.clone(),
    };
    opened?;
    let thread = std::thread::Builder::new().name("quotient-attach".into());
    thread
        .spawn(move || accept(&listener, &common))
        .map_err(|error| AttachError::System(error.to_string()))?;
    Ok(server)
}

/// Which file is at a path.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// One at a time looks at what is in a folder and puts its own socket there: two that find the same left-over one would otherwise both
/// remove it, the second the first's new one. The kernel lets go of it if the process ends.
struct Lock {
    _folder: File,
}

impl Lock {
    fn take(path: &Path) -> std::io::Result<Self> {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")))?;
        let end = Instant::now() + PATIENCE;
        loop {
            let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            match rustix::fs::flock(&folder, operation) {
                Ok(()) => break,
                // Whoever may read the folder can hold it: the race is rarer than that is harmful.
                Err(_) if Instant::now() > end => break,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(Self { _folder: folder })
    }
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
        // A stranger takes no seat, and nobody's away.
        let place = if may_come(&stream) {
            Place::take(common, &stream).ok_or_else(|| {
                let kept = common.seat_kept.as_secs();
                format!(
                    "all {CONNECTIONS_MAX} connections are taken, by clients of this user that were heard of in the last {kept} s: end one, or wait"
                )
            })
        } else {
            Err("the connection is refused".to_owned())
        };
        let place = match place {
            Ok(place) => place,
            Err(refusal) => {
                send(&stream, common, &Answer::Error(refusal)).ok();
                continue;
            }
        };
        let thread = std::thread::Builder::new().name("quotient-attach".into());
        // Without a thread the connection is closed, which says it.
        thread
            .spawn(move || {
                // Whatever goes wrong ends with the connection.
                converse(&stream, &place).ok();
            })
            .ok();
    }
}

/// A taken seat; given back when this is dropped.
struct Place {
    common: Arc<Common>,
    seat: Arc<Seat>,
}

impl Place {
    /// A free seat, or that of whoever has been silent for longest, if that is long: nobody keeps others out by holding connections.
    fn take(common: &Arc<Common>, stream: &UnixStream) -> Option<Self> {
        let now = common.now();
        let seat = Arc::new(Seat {
            stream: stream.try_clone().ok()?,
            heard: AtomicU64::new(now),
            traces: AtomicBool::new(false),
        });
        let mut seats = common.seats();
        if seats.len() >= CONNECTIONS_MAX {
            let kept = u64::try_from(common.seat_kept.as_millis()).unwrap_or(u64::MAX);
            let silent = |seat: &Arc<Seat>| {
                let silence = now.saturating_sub(seat.heard.load(Ordering::Relaxed));
                (silence >= kept && !seat.traces.load(Ordering::Relaxed)).then_some(silence)
            };
            let of_all = seats.iter().enumerate();
            let longest = of_all
                .filter_map(|(index, seat)| Some((silent(seat)?, index)))
                .max();
            let left = seats.swap_remove(longest?.1);
            // Its thread reads the end, and ends.
            left.stream.shutdown(std::net::Shutdown::Both).ok();
        }
        seats.push(seat.clone());
        drop(seats);
        let common = common.clone();
        Some(Self { common, seat })
    }

    fn is_heard(&self) {
        self.seat.heard.store(self.common.now(), Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Unless another has it by now.
        let is_other = |seat: &Arc<Seat>| !Arc::ptr_eq(seat, &self.seat);
        self.common.seats().retain(is_other);
    }
}

/// Whether the peer is our own user, or root.
fn may_come(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

fn send<T: serde::Serialize>(
    stream: &UnixStream,
    common: &Common,
    line: &T,
) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Writer { stream, common }.write_all(&text)
}

/// Writes to a client that may not read: for [`SILENCE_MAX`] at most, and not longer than the socket is open.
struct Writer<'connection> {
    stream: &'connection UnixStream,
    common: &'connection Common,
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(PATIENCE))?;
        let began = Instant::now();
        loop {
            match self.stream.write(bytes) {
                Err(error) if is_pause(&error) => {}
                written => return written,
            }
            if self.common.stop.load(Ordering::Acquire) || began.elapsed() > SILENCE_MAX {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn converse(stream: &UnixStream, place: &Place) -> std::io::Result<()> {
    let common = &*place.common;
    send(
        stream,
        common,
        &Hello {
            quotient: VERSION,
            pid: std::process::id(),
            vcpus: common.scheduler.vcpus(),
            changes: common.changes,
        },
    )?;
    let mut lines = Lines::new(stream)?;
    while let Some(line) = lines.next(&common.stop)? {
        place.is_heard();
        let request = match line {
            Ok(line) => serde_json::from_slice(line).map_err(|error| error.to_string()),
            Err(TooLong) => {
                let message = format!("a request has more than {REQUEST_BYTES_MAX} bytes");
                return send(stream, common, &Answer::Error(message));
            }
        };
        match request {
            Ok(Request::Groups {}) => send(stream, common, &Answer::Groups(snapshot(common)))?,
            Ok(Request::Set(change)) => send(stream, common, &set(common, &change))?,
            Ok(Request::Trace { millis }) => {
                place.seat.traces.store(true, Ordering::Relaxed);
                return trace(stream, common, millis);
            }
            Err(error) => send(
                stream,
                common,
                &Answer::Error(format!("no request: {error}")),
            )?,
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
    // The weight is looked at before the limit is set: what is refused has changed nothing.
    let asked = GroupConfig::new();
    let asked = change
        .weight
        .map_or(asked.clone(), |weight| asked.weight(weight));
    let checked = asked.check(&change.group, common.scheduler.vcpus());
    let group = checked.and_then(|()| common.scheduler.find(&change.group));
    let changed = group.and_then(|group| {
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
        return send(stream, common, &Answer::Error(message));
    }
    let recording = match common.scheduler.record(TRACE_EVENTS) {
        Ok(recording) => recording,
        Err(error) => return send(stream, common, &Answer::Error(error.to_string())),
    };
    send(stream, common, &Answer::Trace {})?;
    let log = JsonLines::new(BufWriter::new(Writer { stream, common }));
    let mut sink = Remarked {
        log,
        vcpus: Some(common.scheduler.vcpus()),
    };
    let end = Instant::now() + Duration::from_millis(millis);
    while !common.stop.load(Ordering::Acquire) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || has_gone(stream) {
            break;
        }
        std::thread::sleep(left.min(PATIENCE));
        recording.drain(&mut sink);
    }
    recording.finish(&mut sink);
    sink.log.finish().map(drop)
}

/// A log that says with its first event how many virtual CPUs there are: others that are seen later stand in for these.
struct Remarked<W> {
    log: JsonLines<W>,
    /// Until it is said.
    vcpus: Option<usize>,
}

/// Nobody else remarks anything in such a log.
const REMARK: NameId = NameId(1);

impl<W: Write> Sink for Remarked<W> {
    fn define(&mut self, definition: &Definition) {
        self.log.define(definition);
    }

    fn event(&mut self, event: &Event) {
        if let Some(vcpus) = self.vcpus.take() {
            let text = VCPUS_REMARK.to_owned();
            self.log.define(&Definition::Name { id: REMARK, text });
            let value = Amount::new(i64::try_from(vcpus).unwrap_or(i64::MAX));
            let kind = Kind::Mark {
                name: REMARK,
                value,
            };
            self.log.event(&Event::new(event.time, event.cpu, kind));
        }
        self.log.event(event);
    }

    fn is_done(&self) -> bool {
        self.log.is_done()
    }
}

/// Whether the client is not there any more: then nobody is to wait for the end of its trace. What it says meanwhile is not read.
fn has_gone(stream: &UnixStream) -> bool {
    let mut polled = [rustix::event::PollFd::new(
        stream,
        rustix::event::PollFlags::empty(),
    )];
    let now = rustix::event::Timespec::default();
    let gone = rustix::event::PollFlags::HUP | rustix::event::PollFlags::ERR;
    rustix::event::poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(gone)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    /// Whoever holds all connections and says nothing keeps nobody out; who asks, or traces, is not sent away.
    #[tokio::test]
    async fn one_user_holds_all_connections() {
        let scheduler = Scheduler::builder().build().expect("a scheduler");
        let path = std::env::temp_dir().join(format!("quotient-seats-{}.sock", std::process::id()));
        let mut attach = Attach::new(&scheduler).path(&path);
        attach.seat_kept = Duration::from_secs(3_600);
        let patient = attach.clone().open().expect("a socket");
        let client = || Client::connect(&path);
        let held: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| client().expect("a seat"))
            .collect();
        let Err(refused) = client() else {
            panic!("all were heard of lately");
        };
        assert!(refused.to_string().contains("are taken"), "{refused}");
        drop((held, patient));

        attach.seat_kept = Duration::ZERO;
        let attached = attach.open().expect("a socket");
        let mut traces = client().expect("a seat");
        traces
            .ask(&Request::Trace {
                millis: TRACE_MILLIS_MAX,
            })
            .expect("a trace");
        let mut silent: Vec<_> = (1..CONNECTIONS_MAX)
            .map(|_| client().expect("a seat"))
            .collect();
        for _ in 0..3 * CONNECTIONS_MAX {
            let mut comes = client().expect("somebody gives way");
            comes.ask(&Request::Groups {}).expect("and is not missed");
            silent.push(comes);
        }
        assert!(silent[0].ask(&Request::Groups {}).is_err(), "gave way");
        assert_eq!(attached.server().common.seats().len(), CONNECTIONS_MAX);
        let seats = attached.server().common.seats().clone();
        assert!(seats.iter().any(|seat| seat.traces.load(Ordering::Relaxed)));
        drop((silent, traces, attached));
        scheduler.shutdown().await;
    }
}
