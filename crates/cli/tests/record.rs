//! `quotient record` as an operator calls it. Where this user may not trace, what it says instead.

#![cfg(target_os = "linux")]

mod common;

use std::process::{Child, Command, Stdio};

use common::{Folder, command, quotient, stderr};

/// A process that wants a whole CPU until it is dropped.
struct Busy(Child);

impl Busy {
    fn new() -> Busy {
        let child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        Busy(child.expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Folders of tracefs that recorders made and that are there now.
fn instances() -> Vec<String> {
    let folder = std::fs::read_dir("/sys/kernel/tracing/instances");
    let names = folder.into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("quotient-"))
        .collect()
}

/// Whether the recording was refused for want of rights, or because this is a container; then it must have named the ways out and left no file.
fn is_refused(output: &std::process::Output, file: &str) -> bool {
    if output.status.code() != Some(2) {
        assert!(output.status.success(), "{}", stderr(output));
        return false;
    }
    let message = stderr(output);
    let ways = if message.contains("this is a container") {
        ["on the host", "--pid=host", "nsenter"]
    } else {
        ["root", "perf sched record", "trace-cmd record"]
    };
    for way in ways {
        assert!(message.contains(way), "{message}");
    }
    assert!(!std::path::Path::new(file).exists());
    true
}

#[test]
fn a_recording_shows_who_ran_and_leaves_nothing_behind() {
    let folder = Folder::new("record");
    let file = folder.file("trace.txt");
    let busy = Busy::new();
    let number = busy.0.id().to_string();
    let recorder = command(&["record", "1s", "--pid", &number, "--out", &file])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let recorder_number = recorder.id();
    let own = format!("quotient-{recorder_number}");
    let output = recorder.wait_with_output().expect("a recorder that ends");
    if is_refused(&output, &file) {
        return;
    }
    assert!(!instances().contains(&own));
    let said = stderr(&output);
    let next = format!("quotient advise {file} --pid {number}");
    assert!(said.contains(&next), "{said}");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    if release.starts_with("6.18.") {
        assert!(said.contains(" --kernel 6.18\n"), "{said}");
    }

    let output = quotient(&[
        "advise", &file, "--pid", &number, "--cpus", "0.5", "--json", "--seeds", "1",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let advice: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let notes = advice["notes"].to_string();
    assert!(notes.contains("to be limited: 1 tasks"), "{notes}");
    assert!(notes.contains("beside it, not limited"), "{notes}");
    // Its own work is known, and is no company in production.
    let text = std::fs::read_to_string(&file).expect("a recording");
    let noted = format!("# recorded by process {recorder_number}\n");
    assert!(text.contains(&noted), "no {noted}");
    assert!(
        notes.contains("left out: `quotient record` itself"),
        "{notes}"
    );
}

/// Hazard: an empty trace that looks like one of a service which does nothing.
#[test]
fn a_recording_of_somebody_who_sleeps_says_so() {
    let folder = Folder::new("record-asleep");
    let file = folder.file("trace.txt");
    let sleeper = Command::new("sleep").arg("60").spawn();
    let sleeper = Busy(sleeper.expect("sleep"));
    let number = sleeper.0.id().to_string();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let output = quotient(&[
        "record", "300ms", "--only", "--pid", &number, "--out", &file,
    ]);
    if is_refused(&output, &file) {
        return;
    }
    let said = stderr(&output);
    assert!(
        said.contains("NOBODY RAN") && !said.contains("now:"),
        "{said}"
    );
}

#[test]
fn what_programs_mark_is_in_the_recording() {
    let folder = Folder::new("record-marks");
    let file = folder.file("trace.txt");
    let mut recorder = command(&["record", "1s", "--out", &file])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let option = format!(
        "/sys/kernel/tracing/instances/quotient-{}/options/copy_trace_marker",
        recorder.id()
    );
    let mark = format!("B|{}|seldom", std::process::id());
    let mut is_possible = false;
    while recorder.try_wait().expect("our own child").is_none() {
        is_possible |= std::path::Path::new(&option).exists();
        // Opened each time: tracefs may be there for this recording only, and somebody else's recorder may have gone with it.
        let _ = std::fs::write("/sys/kernel/tracing/trace_marker", &mark);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = recorder.wait_with_output().expect("a recorder that ends");
    if is_refused(&output, &file) || !is_possible {
        return;
    }
    let text = std::fs::read_to_string(&file).expect("a recording");
    assert!(text.contains(&mark), "no {mark} in {} bytes", text.len());
}

#[test]
fn wrong_subjects_are_refused_before_anything_is_touched() {
    let folder = Folder::new("record-refused");
    let file = folder.file("trace.txt");
    let none = u32::MAX.to_string();
    let cases = [
        (vec!["--pid", &none], "--pid 4294967295"),
        (vec!["--cgroup", "no/such/cgroup"], "--cgroup no/such"),
        (vec!["--cgroup", "../.."], "--cgroup ../..: no such cgroup"),
        (vec!["--only"], "--only needs somebody"),
        (vec!["--tracefs", "/proc/self"], "would hide what is there"),
        (vec!["--tracefs", &file], "cannot use tracefs"),
        (vec!["5ms"], "10ms..=1h"),
    ];
    for (arguments, expected) in cases {
        let output = quotient(&[vec!["record", "--out", &file], arguments].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
        assert!(!std::path::Path::new(&file).exists());
    }
}
