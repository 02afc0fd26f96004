//! `quotient advise` as a person calls it.

mod common;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, command, doubt, quotient, stderr};
use serde_json::Value;

/// Four clients that think for 7 ms after each answer.
const CLIENTS: &str = r#"
name = "clients"
duration = "3s"
[machine]
shape = "2"

[[group]]
path = "web"

[[workload]]
name = "client"
kind = "closed-loop"
group = "web"
threads = 4
work = "200us..1ms"
think = "7ms"
"#;

fn answer(arguments: &[&str]) -> Value {
    let output = quotient(arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one object")
}

/// A file of the folder with that text.
fn written(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.file(name);
    std::fs::write(&path, text).expect("our own folder");
    path
}

/// A recorded trace of [`CLIENTS`].
fn recorded(folder: &Folder) -> String {
    let scenario = written(folder, "clients.toml", CLIENTS);
    let trace = folder.file("clients.jsonl");
    let output = quotient(&["sim", &scenario, "--trace", &trace]);
    assert!(output.status.success(), "{}", stderr(&output));
    trace
}

/// ftrace lines of one CPU on which task 50 runs for 30 ms in every 100, and is moved into `/web` at `attach`.
fn moved(bursts: usize, attach: usize) -> String {
    let mut text = String::from("# tracer: nop\n#\n");
    let idle = "comm=swapper/0 prev_pid=0 prev_prio=120";
    for burst in 0..bursts {
        let at = 100.0 + burst as f64 / 10.0;
        if burst == attach {
            text += &format!(
                "bash-9 [000] d..1. {:.6}: cgroup_attach_task: dst_root=1 dst_id=7 dst_level=1 dst_path=/web pid=50 comm=web\n",
                at - 0.001
            );
        }
        text += &format!(
            "<idle>-0 [000] d..3. {at:.6}: sched_wakeup: comm=web pid=50 prio=120 target_cpu=000\n\
             <idle>-0 [000] d..2. {:.6}: sched_switch: prev_{idle} prev_state=R ==> next_comm=web next_pid=50 next_prio=120\n\
             web-50 [000] d..2. {:.6}: sched_switch: prev_comm=web prev_pid=50 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n",
            at + 0.000_010,
            at + 0.030
        );
    }
    text
}

#[test]
fn nothing_is_recommended_from_nothing() {
    let folder = Folder::new("advise-tiny");
    let tiny = written(&folder, "tiny.txt", &moved(1, usize::MAX));
    let answer = answer(&["advise", &tiny, "--json", "--seeds", "1"]);
    assert_eq!(answer["recommended"], Value::Null);
    let doubts = answer["doubts"].as_array().expect("doubts");
    assert!(doubts.iter().any(|doubt| doubt["decisive"] == true));
    // And in words.
    let words = quotient(&["advise", &tiny, "--seeds", "1"]);
    let words = String::from_utf8_lossy(&words.stdout).into_owned();
    assert!(
        words.contains("recommended: nothing") && words.contains("  DECISIVE DOUBT: 1 bursts"),
        "{words}"
    );
}

#[test]
fn a_task_that_was_moved_late_belongs_to_its_group_from_then_on() {
    let folder = Folder::new("advise-moved");
    let trace = written(&folder, "moved.txt", &moved(40, 10));
    let answer = answer(&["advise", &trace, "--group", "web", "--json", "--seeds", "1"]);
    let notes = answer["notes"].to_string();
    assert!(
        notes.contains("to be limited: 1 tasks, 30 bursts"),
        "{notes}"
    );
    assert!(
        notes.contains("beside it, not limited: 1 tasks, 10 bursts"),
        "{notes}"
    );
}

#[test]
fn who_is_not_in_the_trace_is_refused_with_those_who_are() {
    let folder = Folder::new("advise-nobody");
    let trace = written(&folder, "moved.txt", &moved(5, 2));
    for wrong in [["--comm", "wbe"], ["--pid", "51"], ["--group", "wb"]] {
        let output = quotient(&["advise", &trace, wrong[0], wrong[1]]);
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output);
        assert!(
            said.contains("\"web\"") && said.contains(wrong[1]) && !said.contains("[]"),
            "{said}"
        );
    }
    let scenario = written(&folder, "clients.toml", CLIENTS);
    let refused = quotient(&["advise", &scenario, "--comm", "client"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn no_option_is_ignored_and_what_is_missing_is_named() {
    let folder = Folder::new("advise-options");
    let trace = written(&folder, "moved.txt", &moved(5, 2));
    let groupless = CLIENTS.replace("[[group]]\npath = \"web\"\n", "");
    let groupless = groupless.replace("group = \"web\"\n", "");
    let groupless = written(&folder, "groupless.toml", &groupless);
    let clients = written(&folder, "clients.toml", CLIENTS);
    for (arguments, words) in [
        (
            ["advise", &trace, "--meter", "client"],
            "--meter is about scenarios",
        ),
        (["advise", &trace, "--period", "0ms"], "1ms..=1s"),
        (["advise", &trace, "--period", "2s"], "1ms..=1s"),
        (["advise", &trace, "--jobs", "0"], "1..=1024"),
        (["advise", &groupless, "--seeds", "1"], "has no group"),
        (
            ["advise", &clients, "--group", "wbe"],
            "there are [\"web\"]",
        ),
        (
            ["bench", "switch", "--only", "no such row"],
            "no row was selected",
        ),
    ] {
        let output = quotient(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = stderr(&output);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}

#[test]
fn clients_that_think_are_played_as_such() {
    let folder = Folder::new("advise-loop");
    let trace = recorded(&folder);
    let small = [
        "--cpus", "0.2", "--period", "100ms", "--burst", "0", "--seeds", "1",
    ];
    let mut how = vec!["advise", &trace, "--json"];
    how.extend(small);
    let guessed = answer(&how);
    assert_eq!(guessed["loop"]["how"], "closed");
    assert_eq!(guessed["loop"]["given"], false);
    how.extend(["--loop", "open"]);
    let open = answer(&how);
    assert_eq!(open["loop"]["given"], true);
    // Who waits for answers cannot have more than one request in the queue; arrivals pile up without end.
    let p99 = |answer: &Value| answer["predictions"][0]["added_p99_ns"]["mid"].as_f64();
    let (closed, open) = (
        p99(&guessed).expect("a figure"),
        p99(&open).expect("a figure"),
    );
    assert!(closed * 3.0 < open, "{closed} {open}");
}

/// ftrace lines in which a device wakes `front` every 10 ms, which wakes `worker` after a millisecond and goes on for another one;
/// the worker computes for three.
fn chained(requests: u64) -> String {
    let mut text = String::from("# tracer: nop\n");
    let switch = |line: &str, at: u64, from: (&str, u32, &str), to: (&str, u32)| {
        format!(
            "{line} d..2. {}.{:06}: sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state={} ==> next_comm={} next_pid={} next_prio=120\n",
            at / 1_000_000,
            at % 1_000_000,
            from.0,
            from.1,
            from.2,
            to.0,
            to.1
        )
    };
    let waking = |line: &str, flags: &str, at: u64, name: &str, pid: u32| {
        format!(
            "{line} {flags} {}.{:06}: sched_waking: comm={name} pid={pid} prio=120 target_cpu=000\n",
            at / 1_000_000,
            at % 1_000_000
        )
    };
    let idle = ("swapper", 0, "R");
    for number in 0..requests {
        let at = 1_000_000 + number * 10_000;
        text += &waking("<idle>-0 [000]", "d.h2.", at, "front", 1);
        text += &switch("<idle>-0 [000]", at + 1, idle, ("front", 1));
        text += &waking("front-1 [000]", "d..2.", at + 1_001, "worker", 2);
        text += &switch("<idle>-0 [001]", at + 1_002, idle, ("worker", 2));
        text += &switch(
            "front-1 [000]",
            at + 2_001,
            ("front", 1, "S"),
            ("swapper", 0),
        );
        text += &switch(
            "worker-2 [001]",
            at + 4_002,
            ("worker", 2, "S"),
            ("swapper", 0),
        );
    }
    text
}

#[test]
fn a_request_is_more_than_a_burst_of_a_thread() {
    let folder = Folder::new("advise-chains");
    let trace = written(&folder, "chained.txt", &chained(300));
    let small = [
        "advise", &trace, "--json", "--cpus", "2", "--period", "100ms", "--burst", "0", "--seeds",
        "1",
    ];
    let with = |more: &[&str]| {
        let mut arguments = small.to_vec();
        arguments.extend(more);
        answer(&arguments)
    };
    let requests = with(&[]);
    assert_eq!(requests["latency_of"], "requests");
    assert_eq!(requests["requests"]["requests"], 300);
    assert_eq!(requests["requests"]["begin_with"][0][0], "front");
    let p99 = |answer: &Value| answer["free_p99_ns"].as_u64().expect("a figure") / 100_000;
    assert_eq!(p99(&requests), 40);
    let bursts = with(&["--requests", "bursts"]);
    assert_eq!(
        (bursts["latency_of"].as_str(), p99(&bursts)),
        (Some("bursts"), 30)
    );
    assert_eq!(p99(&with(&["--request-from", "worker"])), 30);
    let words = quotient(&["advise", &trace, "--cpus", "2", "--seeds", "1"]);
    let words = String::from_utf8_lossy(&words.stdout).into_owned();
    assert!(
        words.contains("ms of requests") && words.contains("300 requests of 600 bursts"),
        "{words}"
    );
    // Nobody was selected.
    assert!(
        words.contains("all 2 tasks of the trace (2 names, 1 groups) are limited together"),
        "{words}"
    );
    let nobody = quotient(&["advise", &trace, "--request-from", "fornt"]);
    assert_eq!(nobody.status.code(), Some(2));
    assert!(stderr(&nobody).contains("\"front\""), "{}", stderr(&nobody));
    let no_marks = quotient(&["advise", &trace, "--requests", "marks"]);
    assert_eq!(no_marks.status.code(), Some(2));
}

#[test]
fn the_limit_of_a_recording_is_said_and_undone() {
    let folder = Folder::new("advise-limited");
    let limited = CLIENTS
        .replace(
            "path = \"web\"",
            "path = \"web\"\nquota = \"20ms\"\nperiod = \"100ms\"",
        )
        .replace("duration = \"3s\"", "duration = \"5s\"");
    let scenario = written(&folder, "limited.toml", &limited);
    let trace = folder.file("limited.jsonl");
    let output = quotient(&["sim", &scenario, "--trace", &trace]);
    assert!(output.status.success(), "{}", stderr(&output));
    let small = [
        "advise", &trace, "--json", "--cpus", "0.3", "--period", "100ms", "--burst", "0",
        "--seeds", "2", "--group", "web",
    ];
    // Our own log says it, to the nanosecond.
    let said = answer(&small);
    assert_eq!(said["recorded_limit"]["quota_ns"], 20_000_000);
    assert_eq!(said["recorded_limit"]["given"], true);
    let words = "recorded under a limit, as the trace notes: 20.0 ms in every 100 ms";
    assert!(said["notes"].to_string().contains(words), "{said}");
    assert_eq!(doubt(&said, "if there was a limit"), None, "{said}");
    let silent = common::recorded(&folder, "silent", &limited);
    let mut asked = small;
    asked[1] = &silent;
    let found = answer(&asked);
    assert_eq!(found["recorded_limit"]["period_ns"], 100_000_000);
    assert_eq!(found["recorded_limit"]["given"], false);
    let quota = found["recorded_limit"]["quota_ns"]
        .as_u64()
        .expect("a figure");
    assert!(quota.abs_diff(20_000_000) < 3_000_000, "{quota}");
    let with = |given: &str| {
        let mut arguments = small.to_vec();
        arguments.extend(["--recorded-limit", given]);
        quotient(&arguments)
    };
    let given: Value = serde_json::from_slice(&with("20000/100000").stdout).expect("one object");
    assert_eq!(given["recorded_limit"]["quota_ns"], 20_000_000);
    let none: Value = serde_json::from_slice(&with("none").stdout).expect("one object");
    assert_eq!(none["recorded_limit"], Value::Null);
    for wrong in ["20000", "x/y", "0/100000", "1000/2000000"] {
        assert_eq!(with(wrong).status.code(), Some(2), "{wrong}");
    }
}

/// Who runs beside the group that is asked about, and neither wakes it nor is woken by it, takes its CPU away in the replay as well.
#[test]
fn co_runners_without_a_link_are_kept_as_load() {
    let folder = Folder::new("advise-beside");
    let beside = "\n[[group]]\npath = \"other\"\n[[workload]]\nname = \"other\"\nkind = \"closed-loop\"\ngroup = \"other\"\nthreads = 2\nwork = \"20ms\"\nthink = \"11ms\"\n";
    let text = CLIENTS.replace("shape = \"2\"", "shape = \"1\"") + beside;
    let scenario = written(&folder, "beside.toml", &text);
    let trace = folder.file("beside.jsonl");
    let output = quotient(&["sim", &scenario, "--trace", &trace]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut arguments = vec!["advise", &trace, "--group", "web", "--json", "--seeds", "1"];
    arguments.extend(["--cpus", "1", "--period", "100ms", "--burst", "0"]);
    let with = answer(&arguments);
    arguments.push("--alone");
    let alone = answer(&arguments);
    let free = |answer: &Value| answer["free_p99_ns"].as_f64().expect("a figure");
    assert!(
        free(&with) > 1.2 * free(&alone),
        "{} {}",
        free(&with),
        free(&alone)
    );
    assert!(
        with["notes"]
            .to_string()
            .contains("beside it, not limited: 2 tasks")
    );
    assert!(alone["notes"].to_string().contains("left out: 2 tasks"));
}

#[test]
fn a_page_shows_the_bar_the_recommendation_and_what_grows_without_end() {
    let folder = Folder::new("advise-page");
    let trace = written(&folder, "chained.txt", &chained(300));
    let page = folder.file("page.html");
    let output = quotient(&[
        "advise",
        &trace,
        "--cpus",
        "0.2,0.45,1.9",
        "--period",
        "100ms",
        "--burst",
        "0",
        "--seeds",
        "2",
        "--loop",
        "open",
        "--added-p99",
        "20ms",
        "--report",
        &page,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.contains("grows without end"), "{words}");
    let page = std::fs::read_to_string(page).expect("written");
    for part in [
        "class=\"bar\"",
        "class=\"recommended\"",
        "&#9650;",
        "max-width:760px",
        "recommended: cpu.max",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    // The axis ends where figures do: a queue that grows for three seconds is not on it.
    assert!(!page.contains("class=\"tick\">1000.0<"), "{page}");
}

/// Hazard: who asks about a kernel's limit gets what a limit does beside our own policy, because an option was not given.
#[test]
fn a_kernels_trace_is_played_by_the_nearest_kernels_rules() {
    let folder = Folder::new("advise-kernel");
    let asked = |release: &str, more: &[&str]| {
        let heading = "# tracer: nop\n";
        let text = chained(120).replacen(heading, &format!("{heading}{release}"), 1);
        let trace = written(&folder, "trace.txt", &text);
        let small = [
            "advise", &trace, "--json", "--cpus", "2", "--period", "100ms", "--burst", "0",
            "--seeds", "1",
        ];
        let mut arguments = small.to_vec();
        arguments.extend(more);
        answer(&arguments)
    };
    let older = "which chooses by other rules than any that can be played";
    for (release, kernel, why, is_older) in [
        ("", "6.18", "does not say its release", false),
        (
            "# quotient record 0.3.0, Linux 6.12.7-arch\n",
            "6.12",
            "by Linux 6.12.7-arch",
            false,
        ),
        ("# os release : 7.0.1\n", "6.18", "by Linux 7.0.1", false),
        (
            "# os release : 5.15.0-91\n",
            "6.6",
            "by Linux 5.15.0-91",
            true,
        ),
    ] {
        let answer = asked(release, &[]);
        assert_eq!(answer["kernel"], kernel, "{answer}");
        let notes = answer["notes"].to_string();
        assert!(
            notes.contains(why) && notes.contains("no --kernel"),
            "{notes}"
        );
        let doubts = answer["doubts"].to_string();
        assert_eq!(doubts.contains(older), is_older, "{doubts}");
    }
    let given = asked("# os release : 6.12.7\n", &["--kernel", "6.6"]);
    assert_eq!(given["kernel"], "6.6");
    assert_eq!(asked("", &["--rules", "kernel"])["kernel"], Value::Null);
    // What Quotient recorded itself is played by its own rules.
    let own = recorded(&folder);
    let own = answer(&["advise", &own, "--json", "--cpus", "2", "--seeds", "1"]);
    assert_eq!(own["kernel"], Value::Null);
}

#[test]
fn broken_and_unreadable_have_codes_of_their_own() {
    let folder = Folder::new("advise-codes");
    let nonsense = written(&folder, "nonsense.txt", "hello\nworld\n");
    for command in [["check"], ["advise"]] {
        let output = quotient(&[command[0], &nonsense]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let a_folder = quotient(&[command[0], &folder.file("")]);
        assert_eq!(a_folder.status.code(), Some(3), "{}", stderr(&a_folder));
        assert!(
            stderr(&a_folder).contains("a folder, and a trace is one file"),
            "{}",
            stderr(&a_folder)
        );
    }
}

#[test]
#[cfg(unix)]
fn a_reader_that_goes_away_is_no_accident() {
    let folder = Folder::new("advise-pipe");
    let scenario = written(&folder, "clients.toml", CLIENTS);
    let trace = recorded(&folder);
    for arguments in [
        vec!["sim", &scenario, "--json"],
        vec!["sim", &scenario],
        vec!["check", &trace],
        vec!["advise", &trace, "--cpus", "1", "--seeds", "1"],
        vec!["convert", &trace, "-", "--to", "ftrace"],
        vec!["convert", &trace, "-", "--to", "html"],
    ] {
        let mut child = spawn(&arguments);
        // Before it has anything to say.
        drop(child.stdout.take());
        let mut said = String::new();
        let mut errors = child.stderr.take().expect("piped");
        errors.read_to_string(&mut said).expect("text");
        assert_eq!(child.wait().expect("it ends").code(), Some(141), "{said}");
        assert_eq!(said, "", "{arguments:?}");
    }
}

/// Hazard: minutes of runs, and then the page has no folder.
#[test]
fn a_file_that_cannot_be_written_is_said_before_anything_is_computed() {
    let folder = Folder::new("advise-unwritable");
    let trace = recorded(&folder);
    // Hours of a large machine.
    let long = CLIENTS.replace("\"3s\"", "\"60min\"");
    let long = long.replace("threads = 4", "threads = 4000");
    let long = written(&folder, "long.toml", &long.replace("\"2\"", "\"64\""));
    let page = folder.file("no/such/page.html");
    for arguments in [
        ["advise", &trace, "--seeds", "100", "--report", &page],
        ["sim", &long, "--jobs", "1", "--report", &page],
        ["sim", &long, "--jobs", "1", "--trace", &page],
    ] {
        let began = Instant::now();
        let output = quotient(&arguments);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("page.html"), "{}", stderr(&output));
        assert!(began.elapsed() < Duration::from_secs(60), "{arguments:?}");
    }
}

#[test]
#[cfg(unix)]
fn interrupted_in_the_second_batch() {
    let folder = Folder::new("advise-interrupt");
    let trace = recorded(&folder);
    // 2,400 runs of three seconds: minutes, even where nothing else runs.
    let mut child = spawn(&["advise", &trace, "--seeds", "100"]);
    let pid = child.id().to_string();
    // Not before it listens: on a busy machine that takes seconds.
    let end = Instant::now() + Duration::from_secs(60);
    while cfg!(target_os = "linux") && !catches_interrupts(&pid) {
        assert!(Instant::now() < end, "it never listened for Ctrl-C");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(2));
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill runs").success());
    // Generous: the whole takes far longer.
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("it goes on after Ctrl-C");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130));
}

/// Whether the process has a handler for SIGINT, which is signal 2.
#[cfg(unix)]
fn catches_interrupts(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (2 - 1)) != 0)
}

fn spawn(arguments: &[&str]) -> Child {
    let mut command = command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary runs")
}
