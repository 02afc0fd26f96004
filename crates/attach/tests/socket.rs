//! Hazards of a door into a process: that strangers come in, that a request without end fills the memory, that a look waits for the very
//! workers that are stuck, that a socket outlives its process or takes the place of another.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quotient::Scheduler;
use quotient_attach::{
    Answer, Attach, AttachError, Attached, CONNECTIONS_MAX, Change, Client, ClientError,
    GroupFigures, REQUEST_BYTES_MAX, Request, Snapshot,
};
use quotient_trace::{Amount, Definition, Item, Kind, ReadError, Reader, VCPUS_REMARK};

/// Hangs are bounded by this and nothing else is: seconds on the slowest machine.
const HANG: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("quotient-attach-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for temporary files");
        Self(folder)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn scheduler() -> Scheduler {
    Scheduler::builder().vcpus(2).build().expect("a scheduler")
}

fn client(attached: &Attached) -> Client {
    Client::connect(attached.path()).expect("somebody answers")
}

fn look(client: &mut Client) -> Snapshot {
    match client.ask(&Request::Groups {}).expect("an answer") {
        Answer::Groups(snapshot) => snapshot,
        other => panic!("{other:?}"),
    }
}

fn group(snapshot: &Snapshot, path: &str) -> GroupFigures {
    let found = snapshot.groups.iter().find(|group| group.path == path);
    found.expect(path).clone()
}

fn set(
    client: &mut Client,
    group: &str,
    weight: Option<u32>,
    max: Option<&str>,
) -> Result<Answer, String> {
    let change = Change {
        group: group.to_owned(),
        weight,
        max: max.map(str::to_owned),
    };
    client
        .ask(&Request::Set(change))
        .map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_was_allowed_changes_anything() {
    let (folder, scheduler) = (Folder::new("changes"), scheduler());
    let web = scheduler
        .group("web")
        .unwrap()
        .weight(7)
        .max("50ms/100ms")
        .create()
        .unwrap();
    web.spawn(async {}).await.unwrap();
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .open()
        .unwrap();
    let mode = std::fs::metadata(attached.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut looking = client(&attached);
    assert_eq!(
        (looking.hello().pid, looking.hello().vcpus),
        (std::process::id(), 2)
    );
    let shown = group(&look(&mut looking), "web");
    assert_eq!(
        (shown.weight, shown.quota_us, shown.polls),
        (7, Some(50_000), 1)
    );
    assert!(
        shown
            .longest_poll_at
            .is_some_and(|at| at.contains("socket.rs:"))
    );
    let refused = set(&mut looking, "web", Some(9), None).expect_err("not allowed");
    assert!(refused.contains("allows no changes"), "{refused}");
    assert_eq!(web.weight(), 7);
    let other = folder.0.join("other");
    let attached = Attach::new(&scheduler)
        .path(other)
        .allow_changes()
        .open()
        .unwrap();
    let mut changing = client(&attached);
    assert_eq!(
        set(&mut changing, "web", Some(9), Some("max")),
        Ok(Answer::Done {})
    );
    assert_eq!((web.weight(), web.max()), (9, None));
    for (path, weight, max, reason) in [
        ("web", Some(0), None, "1..=10000"),
        ("web", Some(3), Some("never"), "no limit"),
        ("nowhere", Some(3), None, "nowhere"),
    ] {
        let refused = set(&mut changing, path, weight, max).expect_err(reason);
        assert!(refused.contains(reason), "{refused}");
    }
    assert_eq!(web.weight(), 9);
    scheduler.shutdown().await;
}

/// Reads lines until the server ends the connection.
fn answers(stream: &UnixStream) -> Vec<String> {
    BufReader::new(stream)
        .lines()
        .map_while(Result::ok)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_sense_or_end_are_answered_and_bounded() {
    let (folder, scheduler) = (Folder::new("bounds"), scheduler());
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .open()
        .unwrap();
    let mut stream = UnixStream::connect(attached.path()).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
        .write_all(b"\xff\xfe\nnull\n{\"groups\":{}}\n{\"trace\":{\"millis\":0}}\n")
        .unwrap();
    let lines = answers(&stream);
    assert_eq!(lines.len(), 5, "{lines:?}");
    let error = |line: &String| line.starts_with("{\"error\"");
    assert!(lines[0].starts_with("{\"quotient\":1,") && lines[3].starts_with("{\"groups\""));
    assert!(error(&lines[1]) && error(&lines[2]) && lines[4].contains("allowed are 1 to 60000"));
    let mut stream = UnixStream::connect(attached.path()).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(&vec![b' '; REQUEST_BYTES_MAX]).unwrap();
    let lines = answers(&stream);
    assert!(lines[1].contains("more than 8192 bytes"), "{lines:?}");
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_too_many_is_told_so_until_another_goes() {
    let (folder, scheduler) = (Folder::new("many"), scheduler());
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .open()
        .unwrap();
    let mut clients: Vec<Client> = (0..CONNECTIONS_MAX).map(|_| client(&attached)).collect();
    assert!(matches!(
        Client::connect(attached.path()),
        Err(ClientError::Refused(_))
    ));
    clients.pop();
    let began = Instant::now();
    while Client::connect(attached.path()).is_err() {
        assert!(began.elapsed() < HANG, "the place is not free again");
        std::thread::sleep(Duration::from_millis(1));
    }
    let path = attached.path().to_owned();
    drop(attached);
    assert!(!path.exists());
    // Their threads end, and with them the connections.
    let mut rest = clients.pop().expect("some are left").into_rest(HANG);
    assert_eq!(rest.read_to_end(&mut Vec::new()).ok(), Some(0));
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_workers_are_stuck_is_seen() {
    let (folder, scheduler) = (Folder::new("stuck"), scheduler());
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .open()
        .unwrap();
    let group_of_stuck = scheduler.group("stuck").unwrap().create().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Arc::new(std::sync::Mutex::new(released));
    let (polled, are_polled) = std::sync::mpsc::channel();
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let (polled, released) = (polled.clone(), released.clone());
            group_of_stuck.spawn(async move {
                polled.send(()).ok();
                let released = released.lock().unwrap_or_else(|poison| poison.into_inner());
                released.recv().ok();
            })
        })
        .collect();
    are_polled.recv_timeout(HANG).unwrap();
    are_polled.recv_timeout(HANG).unwrap();
    let snapshot = look(&mut client(&attached));
    assert_eq!(group(&snapshot, "stuck").tasks, 2);
    drop(release);
    for task in tasks {
        task.await.unwrap();
    }
    scheduler.shutdown().await;
}

/// Events of a short trace, read to its end.
fn recorded(attached: &Attached) -> usize {
    let mut tracing = client(attached);
    tracing
        .ask(&Request::Trace { millis: 50 })
        .expect("it records");
    let mut text = Vec::new();
    tracing
        .into_rest(HANG)
        .read_to_end(&mut text)
        .expect("until its end");
    let mut reader = match Reader::open(text.as_slice()) {
        // A whole trace of nothing: no worker ran.
        Err(ReadError::Empty { lines: 1 }) => return 0,
        reader => reader.expect("our own format"),
    };
    let (mut events, mut remark) = (0, None);
    while let Some(item) = reader.next_item().expect("our own format") {
        match item {
            Item::Definition(Definition::Name { id, text }) if text == VCPUS_REMARK => {
                remark = Some(id);
            }
            Item::Definition(_) => {}
            Item::Event(event) if events == 0 => {
                // Stand-ins have numbers, too: who reads the trace has to know which are the scheduler's.
                let value = Amount::new(2);
                let name = remark.expect("named before");
                assert_eq!(event.kind, Kind::Mark { name, value });
                events = 1;
            }
            Item::Event(_) => events += 1,
        }
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_comes_whole_and_leaves_no_recording() {
    let (folder, scheduler) = (Folder::new("trace"), scheduler());
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .open()
        .unwrap();
    // From before the recordings until after them.
    let work = scheduler.group("work").unwrap().create().unwrap();
    let busy = work.spawn(async {
        loop {
            std::thread::sleep(Duration::from_micros(200));
            tokio::task::yield_now().await;
        }
    });
    let began = Instant::now();
    for _ in 0..2 {
        // A busy machine may let no worker run in the time of one.
        while recorded(&attached) == 0 {
            assert!(began.elapsed() < HANG, "nothing is recorded");
        }
    }
    busy.abort();
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_is_left_over_is_replaced_and_no_other() {
    let (folder, scheduler) = (Folder::new("stale"), scheduler());
    let open = || Attach::new(&scheduler).path(folder.socket()).open();
    drop(std::os::unix::net::UnixListener::bind(folder.socket()).unwrap());
    let attached = open().expect("nobody answers there");
    assert!(matches!(open(), Err(AttachError::Taken(_))));
    client(&attached);
    drop(attached);
    std::fs::write(folder.socket(), "mine").unwrap();
    assert!(matches!(open(), Err(AttachError::Taken(_))));
    assert_eq!(std::fs::read_to_string(folder.socket()).unwrap(), "mine");
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_refused_changes_a_half() {
    let (folder, scheduler) = (Folder::new("half"), scheduler());
    let web = scheduler.group("web").unwrap().create().unwrap();
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .allow_changes()
        .open()
        .unwrap();
    let refused = set(&mut client(&attached), "web", Some(0), Some("10ms/100ms"));
    assert!(refused.is_err_and(|reason| reason.contains("1..=10000")));
    assert_eq!((web.weight(), web.max()), (100, None));
    scheduler.shutdown().await;
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANG, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_socket_whose_file_went_keeps_its_thread_and_its_scheduler() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = Folder::new("gone");
    let scheduler = runtime.block_on(async { scheduler() });
    let open = || Attach::new(&scheduler).path(folder.socket()).open();
    let attached = open().unwrap();
    let first = UnixStream::connect(attached.path()).unwrap();
    first.set_read_timeout(Some(HANG)).unwrap();
    // Greeted: what still waits to be taken when the socket goes is cut off without a word.
    let mut greeting = String::new();
    BufReader::new(&first).read_line(&mut greeting).unwrap();
    assert!(!greeting.is_empty());
    std::fs::remove_file(attached.path()).unwrap();
    let other = open().expect("nothing is there");
    drop(attached);
    // What the first held is gone, its connection too, and what is another's is there.
    assert_eq!(answers(&first).len(), 0);
    client(&other);
    drop(other);
    assert!(!folder.socket().exists());
    until("the threads end", || {
        let open = std::fs::read_to_string("/proc/net/unix").unwrap();
        !open.contains(&*folder.socket().to_string_lossy())
    });
    runtime.block_on(scheduler.shutdown());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_outlives_the_socket() {
    let (folder, scheduler) = (Folder::new("unread"), scheduler());
    for index in 0..1_000 {
        let path = format!("many/{index:0>200}");
        scheduler.group(&path).unwrap().create().unwrap();
    }
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .open()
        .unwrap();
    let mut stream = UnixStream::connect(attached.path()).unwrap();
    stream.write_all(&b"{\"groups\":{}}\n".repeat(16)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    drop(attached);
    // Its thread gives up before the client has read anything, and not after a minute of silence.
    let mut polled = [rustix::event::PollFd::new(
        &stream,
        rustix::event::PollFlags::empty(),
    )];
    let most = rustix::event::Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&most)).unwrap();
    let closed = polled[0].revents();
    assert!(closed.contains(rustix::event::PollFlags::HUP));
    assert!(began.elapsed() < Duration::from_secs(30));
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_went_keeps_others_from_recording() {
    let (folder, scheduler) = (Folder::new("left"), scheduler());
    let attached = Attach::new(&scheduler)
        .path(folder.socket())
        .open()
        .unwrap();
    let mut left = client(&attached);
    left.ask(&Request::Trace { millis: 60_000 }).unwrap();
    drop(left);
    let began = Instant::now();
    while client(&attached)
        .ask(&Request::Trace { millis: 1 })
        .is_err()
    {
        assert!(began.elapsed() < HANG / 2, "still recording");
        std::thread::sleep(Duration::from_millis(10));
    }
    scheduler.shutdown().await;
}
