//! The screen of `quotient top` in a terminal of its own.
//!
//! Hazard: that the terminal is left raw, or on the other screen, when the program is ended from outside.
#![cfg(target_os = "linux")]

#[allow(dead_code)] // what other tests call
mod common;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Folder, command};
use quotient::{Group, Scheduler};
use quotient_attach::{Attach, Attached};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

/// Hangs are bounded by this and nothing else is.
const HANG: Duration = Duration::from_secs(120);

/// A terminal: what a person types, what a program has, and what was written so far.
struct Terminal {
    keys: File,
    inside: File,
    written: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

/// Both ends of a new terminal.
fn ends() -> (File, File) {
    let keys =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&keys).and_then(|()| unlockpt(&keys)).expect("ours");
    let name = ptsname(&keys, Vec::new()).expect("a name");
    let name = OsStr::from_bytes(name.as_bytes());
    let inside = File::options().read(true).write(true).open(name);
    let inside = inside.expect("the other end");
    let size = Winsize {
        ws_row: 24,
        ws_col: 100,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&keys, size).expect("a size");
    (File::from(keys), inside)
}

impl Terminal {
    fn new() -> Self {
        let (keys, inside) = ends();
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (mut screen, seen) = (keys.try_clone().expect("a copy"), written.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // It fails when nobody has the other end any more.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.extend_from_slice(&bytes[..count]);
            }
        });
        Self {
            keys,
            inside,
            written,
            reader,
        }
    }

    fn written(&self) -> String {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&written).into_owned()
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.inside).expect("a terminal")
    }

    /// The screen of the process at `socket`, as soon as it shows its group.
    fn top(&self, socket: &str) -> Child {
        let mut call = command(&["top", socket, "--interval-ms", "100"]);
        let end = || self.inside.try_clone().expect("a copy");
        let mut top = call
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the binary runs");
        within_hang(&mut top, |top| {
            let ended = top.try_wait().expect("our child");
            assert!(ended.is_none(), "{ended:?}: {}", self.written());
            self.written().contains("tenants/web")
        });
        top
    }
}

fn within_hang(top: &mut Child, mut is_over: impl FnMut(&mut Child) -> bool) {
    let began = Instant::now();
    while !is_over(top) {
        if began.elapsed() > HANG {
            top.kill().expect("our child");
            panic!("hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the screen shows: one group, behind a socket.
struct Process {
    _attached: Attached,
    _group: Group,
    _scheduler: Scheduler,
    _runtime: tokio::runtime::Runtime,
}

impl Process {
    fn new(socket: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
        let group = scheduler.group("tenants/web").expect("a path").create();
        let attached = Attach::new(&scheduler).path(socket).open();
        drop(entered);
        Self {
            _attached: attached.expect("a socket"),
            _group: group.expect("a group"),
            _scheduler: scheduler,
            _runtime: runtime,
        }
    }
}

/// Ends the screen by `end`, and looks at what is left of the terminal.
fn left_after(name: &str, end: impl FnOnce(&Child, &Terminal)) {
    let folder = Folder::new(name);
    let _process = Process::new(&folder.file("socket"));
    let terminal = Terminal::new();
    let before = terminal.modes();
    assert!(before.local_modes.contains(LocalModes::ICANON));

    let mut top = terminal.top(&folder.file("socket"));
    assert!(!terminal.modes().local_modes.contains(LocalModes::ICANON));
    end(&top, &terminal);
    let mut status = None;
    within_hang(&mut top, |top| {
        status = top.try_wait().expect("our child");
        status.is_some()
    });

    let after = terminal.modes();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(after.output_modes, before.output_modes);
    let Terminal {
        keys,
        inside,
        written,
        reader,
    } = terminal;
    drop(inside);
    reader.join().expect("no panic");
    drop(keys);
    let written = written.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&written);
    let (taken, given_back) = (text.rfind("\x1b[?1049h"), text.rfind("\x1b[?1049l"));
    assert!(taken.is_some() && taken < given_back, "{text:?}");
    assert!(
        text.rfind("\x1b[?25l") < text.rfind("\x1b[?25h"),
        "{text:?}"
    );
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

/// Hazard: a terminal goes without a signal, since the program is not of its session, and reading what is not there takes a processor.
#[test]
fn the_screen_goes_on_without_its_terminal() {
    let folder = Folder::new("screen-gone");
    let _process = Process::new(&folder.file("socket"));
    let (mut keys, inside) = ends();
    let end = || inside.try_clone().expect("a copy");
    // So long that nothing is written to the terminal before it is looked at.
    let arguments = ["top", &folder.file("socket"), "--interval-ms", "60000"];
    let mut top = command(&arguments)
        .stdin(end())
        .stdout(end())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    drop(inside);
    let (mut seen, mut bytes) = (String::new(), [0; 4_096]);
    while !seen.contains("tenants/web") {
        let count = keys.read(&mut bytes).expect("it runs");
        seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    drop(keys);
    let mut status = None;
    within_hang(&mut top, |top| {
        status = top.try_wait().expect("our child");
        status.is_some()
    });
    assert!(status.is_some_and(|status| !status.success()), "{status:?}");
}

fn signal(signal: Signal) -> impl FnOnce(&Child, &Terminal) {
    move |top, _| kill_process(Pid::from_child(top), signal).expect("our child")
}

#[test]
fn the_screen_leaves_the_terminal_raw_after_sigterm() {
    left_after("screen-term", signal(Signal::TERM));
}

#[test]
fn the_screen_leaves_the_terminal_raw_after_sighup() {
    left_after("screen-hup", signal(Signal::HUP));
}

#[test]
fn the_screen_leaves_the_terminal_raw_after_a_key() {
    left_after("screen-key", |_, terminal| {
        (&terminal.keys).write_all(b"q").expect("a terminal");
    });
}
