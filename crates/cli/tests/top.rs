//! `quotient top` and `quotient trace` on a process that opened a socket: this one, or one that means no good.
//!
//! Hazards: that a name of another process reaches the terminal as a command, that one that hangs or says nonsense is waited for or
//! believed, that a trace which broke off looks whole.
#![cfg(target_os = "linux")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Folder, command, quotient, stderr};
use quotient::{Group, Scheduler};
use quotient_attach::{Attach, Attached};
use serde_json::Value;

/// Hangs are bounded by this and nothing else is.
const HANG: Duration = Duration::from_secs(60);

/// A runtime with a scheduler, a group with a task that computes for ever in short polls, and a socket.
struct Process {
    _runtime: tokio::runtime::Runtime,
    _web: Group,
    attached: Attached,
}

impl Process {
    fn new(socket: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let scheduler = Scheduler::builder().vcpus(2).build().expect("a scheduler");
        let web = scheduler
            .group("tenants/web")
            .and_then(|builder| builder.max("20ms/100ms").create())
            .expect("a group");
        web.spawn(async {
            loop {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(200) {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
        });
        let attached = Attach::new(&scheduler).path(socket).open();
        drop(entered);
        Self {
            _runtime: runtime,
            _web: web,
            attached: attached.expect("a socket"),
        }
    }

    fn socket(&self) -> &str {
        self.attached.path().to_str().expect("our own folder")
    }
}

/// A process that greets as ours do and then says `answer` to the first line; `None` says nothing at all.
fn impostor(socket: &str, answer: Option<&'static [u8]>) {
    let listener = UnixListener::bind(socket).expect("a socket");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            if let Some(answer) = answer {
                answer_all(&stream, answer).ok();
            } else {
                held.push(stream);
            }
        }
    });
}

fn answer_all(mut stream: &UnixStream, answer: &[u8]) -> std::io::Result<()> {
    stream.write_all(b"{\"quotient\":1,\"pid\":7,\"vcpus\":2,\"changes\":false}\n")?;
    let mut requests = BufReader::new(stream);
    while requests.read_line(&mut String::new())? > 0 {
        stream.write_all(answer)?;
        // A trace ends with the connection, and so does nonsense.
        if !answer.starts_with(b"{\"groups\"") {
            return Ok(());
        }
    }
    Ok(())
}

/// What a look at the socket says in each form, and its exit code.
fn look(socket: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let arguments = ["top", socket, "--once", "--interval-ms", "100"];
    let output = quotient(&[&arguments[..], more].concat());
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    (output.status.code(), text, stderr(&output))
}

#[test]
fn one_look_shows_every_group() {
    let folder = Folder::new("top");
    let process = Process::new(&folder.file("socket"));
    let began = Instant::now();
    let web = loop {
        let (code, text, said) = look(process.socket(), &["--json"]);
        assert_eq!(code, Some(0), "{said}");
        let answer: Value = serde_json::from_str(&text).expect("one object");
        assert_eq!(
            (&answer["schema"], &answer["pid"]),
            (&"quotient-top/1".into(), &std::process::id().into())
        );
        let groups = answer["groups"].as_array().expect("groups").clone();
        let mut groups = groups.into_iter();
        let web = groups.find(|group| group["path"] == "/tenants/web");
        let web = web.expect("it is there");
        // On a machine that is busy otherwise, it may not run between two looks.
        if web["cpus"].as_f64().is_some_and(|cpus| cpus > 0.0) {
            break web;
        }
        assert!(began.elapsed() < HANG, "it never runs: {web}");
    };
    assert_eq!(
        (&web["weight"], &web["limit_cpus"], &web["tasks"]),
        (&100.into(), &0.2.into(), &1.into())
    );
    let place = web["longest_poll_at"].as_str();
    assert!(place.is_some_and(|at| at.contains("top.rs:")), "{web}");
    let (code, text, said) = look(process.socket(), &["--filter", "web", "--sort", "path"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        text.lines().count() == 2 && text.contains("/tenants/web"),
        "{text}"
    );
}

#[test]
fn a_process_is_found_by_its_number() {
    let folder = Folder::new("top-number");
    let pid = std::process::id().to_string();
    let _process = Process::new(&folder.file(&format!("quotient-{pid}.sock")));
    let mut call = command(&["top", &pid, "--once", "--interval-ms", "100"]);
    let found = call.env("XDG_RUNTIME_DIR", folder.file(""));
    let found = found.output().expect("the binary runs");
    assert!(found.status.success(), "{}", stderr(&found));
    let lost = call.env_remove("XDG_RUNTIME_DIR").output();
    let lost = lost.expect("the binary runs");
    assert_eq!(lost.status.code(), Some(2), "{}", stderr(&lost));
    assert!(
        stderr(&lost).contains("XDG_RUNTIME_DIR"),
        "{}",
        stderr(&lost)
    );
}

#[test]
fn a_trace_is_one_that_other_commands_read() {
    let folder = Folder::new("top-trace");
    let process = Process::new(&folder.file("socket"));
    let (events, text) = (folder.file("events.jsonl"), folder.file("events.txt"));
    let began = Instant::now();
    loop {
        let traced = quotient(&["trace", process.socket(), "200ms", "--out", &events]);
        assert!(traced.status.success(), "{}", stderr(&traced));
        // On a machine that is busy otherwise, nothing may run for so long.
        if !stderr(&traced).contains(": 0 events") {
            break;
        }
        assert!(began.elapsed() < HANG, "nothing ever runs");
    }
    let converted = quotient(&["convert", &events, &text]);
    assert!(converted.status.success(), "{}", stderr(&converted));
    let refused = quotient(&["trace", process.socket(), "61s", "--out", &events]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn nobody_at_the_socket_is_an_argument_that_cannot_be_used() {
    let folder = Folder::new("top-nobody");
    let (code, _, said) = look(&folder.file("socket"), &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("quotient_attach"), "{said}");
    assert!(!Path::new(&folder.file("socket")).exists());
    // Everything that is wrong at once, and in words about the argument.
    let empty = quotient(&["top", "", "--once"]);
    assert_eq!(empty.status.code(), Some(2));
    assert!(
        stderr(&empty).contains("PID|SOCKET is empty"),
        "{}",
        stderr(&empty)
    );
    #[cfg(not(feature = "screen"))]
    {
        let nobody = quotient(&["top", "/nowhere/at/all"]);
        let said = stderr(&nobody);
        assert_eq!(nobody.status.code(), Some(2));
        assert!(
            said.contains("no process of yours") && said.contains("--once"),
            "{said}"
        );
    }
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let folder = Folder::new("top-names");
    let socket = folder.file("socket");
    let answer = "{\"groups\":{\"at_ns\":1,\"more\":18446744073709551615,\"groups\":[{\"path\":\"a\\u001b[2J\u{9b}m\u{202e}\",\"cpu_ns\":\
         18446744073709551615,\"longest_poll_at\":\"\\u001b]0;x\\u0007\"}]}}\n";
    impostor(&socket, Some(answer.as_bytes()));
    let (code, table, said) = look(&socket, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(table.contains("/a?[2J?m?"), "{table:?}");
    let (_, json, _) = look(&socket, &["--json"]);
    let harmless = |text: &str| {
        let lines = text.lines();
        lines
            .flat_map(str::chars)
            .all(|letter| !letter.is_control())
    };
    assert!(harmless(&table) && harmless(&json), "{table:?} {json:?}");
    let read: Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(read["groups"][0]["path"], "/a\u{1b}[2J\u{9b}m\u{202e}");
}

#[test]
fn nonsense_is_unreadable_and_is_not_repeated_raw() {
    let folder = Folder::new("top-nonsense");
    let answers: [(&[u8], i32); 4] = [
        (b"\x1b[2J\n", 3),
        (b"{\"\\u001b[2J\":{}}\n", 3),
        (b"{\"done\":{}}\n", 3),
        (b"{\"error\":\"no \\u001b[2J\"}\n", 1),
    ];
    for (number, (answer, expected)) in answers.into_iter().enumerate() {
        let socket = folder.file(&format!("socket-{number}"));
        impostor(&socket, Some(answer));
        let (code, text, said) = look(&socket, &["--json"]);
        assert_eq!((code, text.as_str()), (Some(expected), ""), "{said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
}

#[test]
fn one_that_says_nothing_is_not_waited_for() {
    let folder = Folder::new("top-silence");
    let socket = folder.file("socket");
    impostor(&socket, None);
    let (code, _, said) = look(&socket, &["--timeout-ms", "100"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no answer within 100 ms"), "{said}");
}

#[test]
fn a_trace_that_broke_off_does_not_look_whole() {
    let folder = Folder::new("top-broken-trace");
    let traces: [(&[u8], i32, &str); 2] = [
        (b"{\"trace\":{}}\n{\"quotient_trace\":1}\n", 1, "early"),
        (b"{\"trace\":{}}\n\x1b[2Jnonsense\n", 3, "expected"),
    ];
    for (number, (answer, expected, reason)) in traces.into_iter().enumerate() {
        let socket = folder.file(&format!("socket-{number}"));
        impostor(&socket, Some(answer));
        let out = folder.file("events.jsonl");
        let traced = quotient(&["trace", &socket, "60s", "--out", &out]);
        let said = stderr(&traced);
        assert_eq!(traced.status.code(), Some(expected), "{said}");
        assert!(
            said.contains(reason) && !said.contains('\u{1b}'),
            "{said:?}"
        );
    }
}

/// The recording would take a minute; the signal ends it at once, and what came is a trace.
#[test]
fn an_interruption_keeps_what_was_recorded() {
    let folder = Folder::new("top-interrupted");
    let process = Process::new(&folder.file("socket"));
    let out = folder.file("events.jsonl");
    let mut call = command(&["trace", process.socket(), "60s", "--out", &out]);
    let child = call.stderr(std::process::Stdio::piped()).spawn();
    let child = child.expect("the binary runs");
    let began = Instant::now();
    // It has its name once it is whole.
    let partial = format!("{out}.{}.partial", child.id());
    while !Path::new(&partial).exists() {
        assert!(began.elapsed() < HANG, "it does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = i32::try_from(child.id()).ok();
    let pid = pid.and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("events in"), "{}", stderr(&ended));
    let text = std::fs::read_to_string(&out).expect("what was kept");
    assert!(text.ends_with('\n'), "{text}");
}
