//! `quotient demo fleet` as a user meets it: the table, the page, what it says without a server, and what it leaves behind.

#[allow(dead_code)] // no files here
mod common;
#[path = "../../fleet/tests/common/server.rs"]
mod server;

use common::{Folder, command, quotient, stderr};

#[test]
fn without_a_server_it_says_how_to_get_one() {
    let output = command(&["demo", "fleet", "--out", "/tmp/never.html"])
        .env("PATH", "")
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("apt-get install redis-server"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn bad_arguments_of_the_fleets_demo_are_named() {
    for (arguments, said) in [
        (["--seconds", "5"], "6..=3600"),
        (["--out", "/no/such/folder/fleet.html"], "--out /no/such"),
    ] {
        let output = quotient(&[&["demo", "fleet"][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn table_and_page_show_every_phase() {
    if server::start("demo fleet", &[]).is_none() {
        return;
    }
    let folder = Folder::new("demo-fleet");
    let out = folder.file("fleet.html");
    let output = quotient(&["demo", "fleet", "--seconds", "6", "--json", "--out", &out]);
    assert!(output.status.success(), "{}", stderr(&output));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(run["schema"], "quotient-demo-fleet/1");
    let rows = run["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 7, "{run}");
    let page = std::fs::read_to_string(&out).expect("the page");
    let (mut used, mut passed) = (0.0, 0.0);
    for row in rows {
        let phase = row["phase"].as_str().expect("a name");
        assert!(page.contains(phase), "{phase}");
        let cpus = row["cpu"].as_array().expect("nodes");
        let cpu: f64 = cpus.iter().filter_map(serde_json::Value::as_f64).sum();
        let seconds = row["seconds"].as_f64().expect("a number");
        used += cpu * seconds;
        passed += seconds;
    }
    // The quota and its floors, one lease, and a second's worth for newcomers' floors, polls under way and samples that come late.
    assert!(used > 0.0 && used < passed * 1.05 + 2.0, "{used}: {run}");
    assert!(!page.contains("http:") && !page.contains("<script"));
}

/// A demo in its own process group, so that whatever belongs to it can be found by the group.
#[cfg(target_os = "linux")]
mod leftovers {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::{Folder, command, server};

    /// Names of the living processes of a group (a zombie has ended).
    fn living(group: u32) -> Vec<String> {
        let group = group.to_string();
        let entries = std::fs::read_dir("/proc").expect("procfs").flatten();
        let stats =
            entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let ours = stats.filter(|stat| {
            // "pid (name) state ppid pgrp ...": the name may contain anything, so start behind it.
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let fields: Vec<&str> = fields.split_whitespace().collect();
            fields.first() != Some(&"Z") && fields.get(2) == Some(&group.as_str())
        });
        ours.collect()
    }

    fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !reached() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Demo, shell, server and four nodes, or more.
    fn start(folder: &Folder) -> Child {
        let demo = command(&[
            "demo",
            "fleet",
            "--seconds",
            "600",
            "--out",
            &folder.file("fleet.html"),
        ])
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
        wait_for("all processes", || living(demo.id()).len() >= 7);
        demo
    }

    #[test]
    fn nothing_is_left_running_however_it_ends() {
        if server::start("demo fleet", &[]).is_none() {
            return;
        }
        for (signal, code) in [
            (Signal::INT, Some(130)),
            (Signal::TERM, Some(130)),
            // A panic unwinds as an error does; this is what nobody can prepare for.
            (Signal::KILL, None),
        ] {
            let folder = Folder::new("demo-fleet-left");
            let mut demo = start(&folder);
            kill_process(Pid::from_child(&demo), signal).expect("our own child");
            assert_eq!(demo.wait().expect("our own child").code(), code);
            let group = demo.id();
            wait_for("nothing left", || living(group).is_empty());
        }
    }
}
