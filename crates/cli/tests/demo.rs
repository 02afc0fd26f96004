//! `quotient demo` as a user meets it: the binary, its output, its exit codes, and what it leaves behind.

use std::path::PathBuf;
use std::process::{Command, Output};

fn quotient(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quotient"))
        .args(arguments)
        .output()
        .expect("the binary under test runs")
}

fn picture(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("quotient-{name}-{}.html", std::process::id()))
}

#[test]
fn json_is_one_object_with_a_row_per_mode_and_the_picture_is_written() {
    let out = picture("json");
    let path = out.to_str().expect("a path in the temporary directory");
    let output = quotient(&[
        "demo",
        "--seconds",
        "6",
        "--json",
        "--hogs",
        "8",
        "--out",
        path,
    ]);
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("standard output is one JSON object");
    let rows = report["rows"].as_array().expect("rows");
    for mode in [
        "alone",
        "quotient-alone",
        "tokio",
        "two-runtimes",
        "quotient",
        "quotient-capped",
    ] {
        let row = rows
            .iter()
            .find(|row| row["mode"] == mode)
            .unwrap_or_else(|| panic!("{mode}: {report}"));
        let number = |key: &str| {
            row[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{mode}.{key}: {row}"))
        };
        // The hog that never returns may leave tokio no worker.
        assert!(
            mode == "tokio" || number("victim_rps") > 0.0 && number("capacity_rps") > 0.0,
            "{row}"
        );
        assert!(
            number("p50_us") <= number("p99_us") && number("p99_us") <= number("max_us"),
            "{row}"
        );
        assert_eq!(number("hog_cpu") > 0.01, !mode.ends_with("alone"), "{row}");
        assert_eq!(
            row["victim_group_cpu"].is_number(),
            mode.starts_with("quotient"),
            "{row}"
        );
        assert!(progress.contains(mode), "{progress}");
    }
    let tenants = report["scene"]["tenants"].as_array().expect("tenants");
    assert_eq!(tenants.len(), 20);
    let shares = tenants.iter().map(|tenant| &tenant["quotient"]["share"]);
    let whole: f64 = shares.map(|share| share.as_f64().expect("a share")).sum();
    assert!((whole - 1.0).abs() < 1e-6, "{report}");
    let page = std::fs::read_to_string(&out).expect("the picture");
    std::fs::remove_file(&out).expect("our own file");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"));
}

/// Hazard: a verdict about a run whose yardstick was measured beside a compiler.
#[cfg(target_os = "linux")]
#[test]
fn beside_others_that_compute_nothing_is_judged() {
    // Our threads are not the demo's: others, to it.
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let spinners: Vec<_> = (0..cpus)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let out = picture("disturbed");
    let path = out.to_str().expect("a path in the temporary directory");
    let output = quotient(&["demo", "--seconds", "5", "--json", "--out", path]);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for spinner in spinners {
        spinner.join().expect("it spins");
    }
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    std::fs::remove_file(&out).expect("our own file");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let validity = &report["validity"];
    assert_eq!(validity["judged"], false, "{validity}");
    let rounds = validity["rounds"].as_array().expect("rounds");
    assert_eq!(rounds.len(), 2, "one was taken again: {validity}");
    for round in rounds {
        assert_eq!(round["counts"], false, "{round}");
        let others = &round["slots"][0]["others_cpu"];
        assert!(
            others.as_f64().is_some_and(|others| others > 0.1),
            "{round}"
        );
        assert!(round["disturbed"][0].is_string(), "{round}");
    }
    for check in report["checks"].as_array().expect("checks") {
        assert!(check["ok"].is_null(), "{check}");
    }
    let verdict = report["verdict"].as_str().expect("words");
    assert!(verdict.starts_with("Disturbed: not judged."), "{verdict}");
    assert!(progress.contains("does not count"), "{progress}");
}

#[test]
fn bad_arguments_name_field_value_and_range_and_exit_with_2() {
    for (field, value, range) in [
        ("--seconds", "3601", "5..=3600"),
        ("--workers", "0", "1..=1024"),
        ("--connections", "257", "1..=256"),
        ("--hogs", "0", "1..=4096"),
        ("--rate", "200001", "1..=200000"),
    ] {
        let output = quotient(&["demo", field, value]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains(field) && error.contains(value) && error.contains(range),
            "{error}"
        );
    }
    let output = quotient(&["demo", "--out", "/no/such/folder/demo.html"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("--out /no/such/folder/demo.html"), "{error}");
}

#[test]
fn version_and_help_answer() {
    let version = quotient(&["--version"]);
    assert_eq!(
        String::from_utf8_lossy(&version.stdout).trim(),
        concat!("quotient ", env!("CARGO_PKG_VERSION"))
    );
    for command in [
        &["--help"][..],
        &["demo", "--help"],
        &["demo-server", "--help"],
        &["demo-client", "--help"],
    ] {
        assert!(quotient(command).status.success(), "{command:?}");
    }
}

/// A demo in its own process group, so that whatever belongs to it can be found by the group.
#[cfg(target_os = "linux")]
mod leftovers {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::picture;

    struct Demo {
        process: Child,
        out: std::path::PathBuf,
    }

    impl Demo {
        /// Starts a demo and waits until its server and its client run as well.
        fn start(name: &str) -> Self {
            let out = picture(name);
            let process = Command::new(env!("CARGO_BIN_EXE_quotient"))
                .args(["demo", "--seconds", "60", "--hogs", "4", "--out"])
                .arg(&out)
                .process_group(0)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("the binary under test starts");
            let demo = Self { process, out };
            demo.wait_for("demo, server and client", |count| count >= 3);
            demo
        }

        fn signal(&self, signal: Signal) {
            let pid = Pid::from_child(&self.process);
            kill_process(pid, signal).expect("our own child, not yet reaped");
        }

        fn wait_for(&self, what: &str, reached: impl Fn(usize) -> bool) {
            let deadline = Instant::now() + Duration::from_secs(30);
            while !reached(self.living_processes()) {
                assert!(Instant::now() < deadline, "never: {what}");
                thread::sleep(Duration::from_millis(10));
            }
        }

        /// Processes of the demo's group that have not ended (a zombie has).
        fn living_processes(&self) -> usize {
            let group = self.process.id().to_string();
            let entries = std::fs::read_dir("/proc").expect("procfs").flatten();
            entries
                .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
                .filter(|stat| {
                    // "pid (name) state ppid pgrp ...": the name may contain anything, so start behind it.
                    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
                    let fields: Vec<&str> = fields.split_whitespace().collect();
                    fields.first() != Some(&"Z") && fields.get(2) == Some(&group.as_str())
                })
                .count()
        }
    }

    impl Drop for Demo {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn interrupted_it_leaves_no_process_and_no_file() {
        let mut demo = Demo::start("interrupt");
        demo.signal(Signal::INT);
        let status = demo.process.wait().expect("our own child");
        assert_eq!(status.code(), Some(130));
        assert_eq!(demo.living_processes(), 0);
        assert!(!demo.out.exists());
    }

    #[test]
    fn terminated_it_leaves_no_process() {
        let mut demo = Demo::start("terminate");
        demo.signal(Signal::TERM);
        assert_eq!(
            demo.process.wait().expect("our own child").code(),
            Some(130)
        );
        assert_eq!(demo.living_processes(), 0);
    }

    #[test]
    fn killed_its_children_end_by_themselves() {
        let mut demo = Demo::start("kill");
        demo.signal(Signal::KILL);
        demo.process.wait().expect("our own child");
        demo.wait_for("no process left", |count| count == 0);
    }
}
