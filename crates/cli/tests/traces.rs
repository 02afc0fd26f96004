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
    let broken: Vec<_> = text.lines().filter(|line| *line != switches[5]).collect();
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
