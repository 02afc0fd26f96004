//! `convert`, `check` and `diff` as a person calls them.

mod common;

use std::path::Path;

use common::{Folder, quotient, stderr};

fn recorded() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data");
    folder.join("tracefs.txt").display().to_string()
}

#[test]
fn every_format_is_written_and_those_that_can_be_read_say_the_same() {
    let folder = Folder::new("convert");
    for name in ["a.ftrace", "a.jsonl", "a.pftrace", "a.html"] {
        let file = folder.file(name);
        let output = quotient(&["convert", &recorded(), &file]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(std::fs::metadata(&file).expect("it was written").len() > 1_000);
    }
    for name in ["a.ftrace", "a.jsonl"] {
        let output = quotient(&["diff", &recorded(), &folder.file(name), "--json"]);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
        let rows = answer["rows"].as_array().expect("rows");
        assert!(rows.len() > 10 && rows.iter().all(|row| row["difference"] == 0.0));
    }
}

#[test]
fn check_finds_the_line_and_says_so_with_its_exit_code() {
    let folder = Folder::new("check");
    assert!(quotient(&["check", &recorded()]).status.success());
    let text = std::fs::read_to_string(recorded()).expect("the recorded trace");
    let switches: Vec<_> = text
        .lines()
        .filter(|line| line.contains("sched_switch"))
        .collect();
    // From one task to another: what is missing from idle is taken for the kernel's doing.
    let missing = switches[5..]
        .iter()
        .find(|line| !line.contains("swapper"))
        .expect("a switch between tasks");
    let broken: Vec<_> = text.lines().filter(|line| line != missing).collect();
    let file = folder.file("broken.txt");
    std::fs::write(&file, broken.join("\n") + "\n").expect("our own folder");
    let output = quotient(&["check", &file, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(answer["clean"], false);
    assert!(
        answer["breaches"][0]["line"]
            .as_u64()
            .is_some_and(|line| line > 10)
    );
}

/// Hazard: the name of a group is misspelt, and its limit is found to be kept.
#[test]
fn check_refuses_a_limit_of_a_group_that_the_trace_does_not_name() {
    let output = quotient(&["check", "--limit", "nosuch=10000/100000", &recorded()]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nosuch"), "{said}");
}

#[test]
fn check_fills_in_switches_from_idle_that_a_kernel_left_out_and_says_so() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data");
    let file = folder.join("idle_left_out.txt").display().to_string();
    let output = quotient(&["check", &file]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("switches are missing"), "{said}");
    let output = quotient(&["check", &file, "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(answer["filled_in"].as_u64().is_some_and(|count| count > 10));
    assert_eq!(
        quotient(&["check", &file, "--as-recorded"]).status.code(),
        Some(1)
    );
}

/// Hazard: in Quotient's own log nobody fills anything in, and what was converted is called broken.
#[test]
fn what_a_kernel_left_out_is_in_what_is_converted() {
    let folder = Folder::new("whole");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data");
    let short = data.join("idle_left_out.txt").display().to_string();
    let log = folder.file("whole.jsonl");
    let output = quotient(&["convert", &short, &log]);
    assert!(output.status.success(), "{}", stderr(&output));
    for file in [&short, &log] {
        let output = quotient(&["check", file]);
        assert!(output.status.success(), "{file}: {}", stderr(&output));
    }
    let output = quotient(&["diff", &short, &log, "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let rows = answer["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["difference"] == 0.0), "{rows:?}");
}

#[test]
fn bad_input_is_an_error_with_line_and_column_and_leaves_no_file() {
    let folder = Folder::new("bad");
    let bad = folder.file("bad.txt");
    std::fs::write(
        &bad,
        "# tracer: nop\n  a-1 [000] d... soon: sched_switch: x\n",
    )
    .expect("our own folder");
    let out = folder.file("out.jsonl");
    let output = quotient(&["convert", &bad, &out]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("line 2, column"),
        "{}",
        stderr(&output)
    );
    assert!(!Path::new(&out).exists() && !Path::new(&folder.file("out.jsonl.partial")).exists());
    for (name, text, words) in [
        ("empty", "", "no scheduling event"),
        ("data", "PERFILE2....", "perf sched script"),
        (
            "cut",
            "  a-1 [000] d... 1.0: sched_switch: prev_comm=a prev_p",
            "breaks off",
        ),
    ] {
        let file = folder.file(name);
        std::fs::write(&file, text).expect("our own folder");
        let output = quotient(&["check", &file]);
        assert_eq!(output.status.code(), Some(3), "{name}");
        assert!(
            stderr(&output).contains(words),
            "{name}: {}",
            stderr(&output)
        );
    }
    assert_eq!(
        quotient(&["convert", &recorded(), &folder.file("x.unknown")])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        quotient(&["check", "/nowhere/at/all"]).status.code(),
        Some(2)
    );
}

/// Two tasks that take turns, with whatever stands between.
fn turns(between: &str, end: &str) -> String {
    let switch = |time: &str, prev: u32, next: u32| {
        format!(
            "  t{prev}-{prev} [000] d..2. {time}: sched_switch: prev_comm=t{prev} prev_pid={prev} prev_prio=120 prev_state=R ==> next_comm=t{next} next_pid={next} next_prio=120"
        )
    };
    let (first, last) = (switch("1.000000", 1, 2), switch("1.001000", 2, 1));
    format!("# tracer: nop\n{first}\n{between}{last}{end}")
}

#[test]
fn what_is_missing_is_said_beside_the_verdict() {
    let folder = Folder::new("gaps");
    let file = folder.file("trace.txt");
    let bad = "  t2-2 [000] d..2. soon: sched_switch: x\n";
    let cases = [
        ("", "\n", "0", "every rule was kept"),
        (
            "CPU:0 [LOST 17 EVENTS]\n",
            "\n",
            "0",
            "but 17 events were lost",
        ),
        (
            "  t2 2 [000] 1.000500: PERF_RECORD_LOST lost 5\n",
            "\n",
            "0",
            "but 5 events were lost",
        ),
        (
            bad,
            "\n",
            "1",
            "but 1 bad lines were left out (the first: line 3",
        ),
        ("", "", "0", "but the last line has no end"),
    ];
    for (between, end, skip, words) in cases {
        std::fs::write(&file, turns(between, end)).expect("our own folder");
        let output = quotient(&["check", &file, "--skip-bad", skip]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", stderr(&output));
        assert!(said.contains(words), "{said}");
    }
    // One more than may be left out, in every command that reads traces.
    std::fs::write(&file, turns(&bad.repeat(2), "\n")).expect("our own folder");
    let out = folder.file("out.jsonl");
    for (command, second) in [("check", None), ("convert", Some(&out)), ("advise", None)] {
        let mut arguments = vec![command, file.as_str(), "--skip-bad", "1"];
        arguments.extend(second.map(String::as_str));
        let output = quotient(&arguments);
        assert_eq!(output.status.code(), Some(3), "{command}");
        assert!(stderr(&output).contains("line 4"), "{}", stderr(&output));
    }
    let output = quotient(&["convert", &file, &out, "--skip-bad", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("2 bad lines were left out"));
}

/// A run's page says which run it is, what it is about, what was measured and expected, and where the limits are; many CPUs are a picture
/// and no list.
#[test]
fn the_page_of_a_run_tells_what_the_terminal_tells() {
    let folder = Folder::new("run-page");
    let scenario = folder.file("s.toml");
    let text = "name = \"a page\"\nabout = \"what <it> shows\"\nduration = \"60ms\"\n[machine]\nshape = \"4x16\"\n\
        [costs]\nsources = [\"nowhere\"]\n[[group]]\npath = \"web\"\nquota = \"40ms\"\nperiod = \"10ms\"\n\
        [[workload]]\nname = \"served\"\nkind = \"closed-loop\"\ngroup = \"web\"\nthreads = 70\nwork = \"1ms\"\nthink = \"1ms\"\n\
        [[variant]]\nname = \"first\"\n[[variant]]\nname = \"second\"\n\
        [[expect]]\nwhat = \"more than there is\"\nvalue = \"busy / 1ms\"\nmin = 1e9\n";
    std::fs::write(&scenario, text).expect("our own folder");
    let page = folder.file("run.html");
    let output = quotient(&["sim", &scenario, "--report", &page]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let page = std::fs::read_to_string(&page).expect("it was written");
    for part in [
        "<h1>a page</h1>",
        "Run <b>first</b>",
        "what &lt;it&gt; shows",
        "cost: nowhere",
        "more than there is",
        "<b>MISS</b>",
        "<h2>Meters</h2>",
        "served",
        "limit of web: 4 CPU",
        "class=\"over\"",
    ] {
        assert!(page.contains(part), "the page lacks {part}");
    }
    assert!(!page.contains("<it>"));
    // 64 CPUs: a number at every eighth.
    let lanes = page.split("<h2>CPU by group</h2>").next().expect("lanes");
    let lanes = lanes.split("<h2>Who ran where</h2>").nth(1).expect("lanes");
    assert_eq!(lanes.matches("text-anchor=\"end\"").count(), 8);
}
