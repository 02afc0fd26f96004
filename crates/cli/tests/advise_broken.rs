//! What `quotient advise` says of recordings that are not whole: parts of these are missing, and nothing in them says so.

mod common;

use common::{Folder, doubt, quotient, stderr};
use serde_json::Value;

/// The answer about `svc` in these lines.
fn asked(folder: &Folder, name: &str, lines: &[String]) -> Value {
    asked_with(folder, name, lines, &[])
}

/// The same with more options.
fn asked_with(folder: &Folder, name: &str, lines: &[String], more: &[&str]) -> Value {
    let file = folder.file(&format!("{name}.txt"));
    let text = format!("# tracer: nop\n{}\n", lines.join("\n"));
    std::fs::write(&file, text).expect("our own folder");
    let mut question = vec![
        "advise", &file, "--comm", "svc", "--loop", "open", "--json", "--seeds", "2", "--cpus",
        "0.8", "--period", "100ms", "--burst", "0",
    ];
    question.extend(more);
    let output = quotient(&question);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one object")
}

/// Four seconds of one CPU: in each 10 ms `svc` computes for 2 ms and `other` behind it for 1 ms. Four lines each, three of them switches; what happens
/// in each second is later by so much.
fn lines(later_micros: &dyn Fn(u64) -> u64) -> Vec<String> {
    let mut lines = Vec::new();
    for number in 0..400 {
        let at = 1_000_000 + number * 10_000 + later_micros(number / 100);
        let mut line = |after: u64, what: &str| {
            let micros = at + after;
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            lines.push(format!("x-1 [000] d..2. {seconds}.{rest:06}: {what}"));
        };
        let switch = |(prev, from): (&str, u32), state: &str, (next, to): (&str, u32)| {
            format!(
                "sched_switch: prev_comm={prev} prev_pid={from} prev_prio=120 prev_state={state} ==> next_comm={next} next_pid={to} next_prio=120"
            )
        };
        let (idle, svc, other) = (("swapper/0", 0), ("svc", 7), ("other", 8));
        line(0, "sched_waking: comm=svc pid=7 prio=120 target_cpu=000");
        line(1, &switch(idle, "R", svc));
        line(2_001, &switch(svc, "S", other));
        line(3_001, &switch(other, "S", idle));
    }
    lines
}

/// Hazard: lines were lost that no recorder counted, tasks seem to use less than they did, and a limit below that is recommended; and what good recordings miss
/// too is a doubt about each of them.
#[test]
fn lost_switches_are_told_from_those_that_a_kernel_leaves_out() {
    let folder = Folder::new("advise-lost");
    let whole = lines(&|_| 0);
    let without = |name: &str, is_lost: &dyn Fn(usize) -> bool| {
        let kept = whole.iter().enumerate();
        let kept = kept.filter(|(index, _)| !is_lost(*index));
        let kept: Vec<String> = kept.map(|(_, line)| line.clone()).collect();
        asked(&folder, name, &kept)
    };
    let words = "switches were lost";
    let good = asked(&folder, "good", &whole);
    assert_eq!(doubt(&good, words), None, "{good}");
    // From idle, one in four.
    let known = without("known", &|index| index % 16 == 5);
    assert_eq!(doubt(&known, words), None, "{known}");
    assert_eq!(doubt(&known, "filled in"), None, "{known}");
    assert!(known["notes"].to_string().contains("were filled in"));
    // One, and one in fifty, between the two.
    let one = without("one", &|index| index == 802);
    assert_eq!(doubt(&one, words), Some(false), "{one}");
    let many = without("many", &|index| index % 200 == 2);
    assert_eq!(doubt(&many, words), Some(true), "{many}");
    assert_eq!(many["recommended"], Value::Null);
}

/// Hazard: a piece of a trace is missing, and whoever ran before it is taken to have run all that time, for hours of a simulation.
#[test]
fn a_hole_in_a_trace_is_no_work_and_no_ground_for_advice() {
    let folder = Folder::new("advise-hole");
    let words = "nothing at all happened on any CPU from 2.0 to ";
    let used = |answer: &Value| answer["recorded"]["usage_permille"].as_u64();
    let whole = asked(&folder, "whole", &lines(&|_| 0));
    assert_eq!(doubt(&whole, words), None, "{whole}");
    for seconds in [1, 60, 36_000] {
        let mut lines = lines(&|second| if second < 2 { 0 } else { seconds * 1_000_000 });
        // The last before it is lost as well: `other` runs when it begins.
        lines.remove(799);
        let hole = asked(&folder, "hole", &lines);
        assert_eq!(doubt(&hole, words), Some(true), "{hole}");
        assert_eq!(hole["recommended"], Value::Null);
        assert_eq!(used(&hole), used(&whole), "{hole}");
        let notes = hole["notes"].to_string();
        assert!(notes.contains("bursts, 0.10 CPUs used"), "{notes}");
    }
}

/// Hazard: one of several names is misspelt, and what is limited is less than was meant.
#[test]
fn a_name_or_number_that_selects_nobody_is_named() {
    let folder = Folder::new("advise-nobody");
    let lines = lines(&|_| 0);
    let said = |more: &[&str], words: &str| {
        let answer = asked_with(&folder, "two", &lines, more);
        doubt(&answer, words)
    };
    assert_eq!(said(&["--comm", "nosuch"], "nosuch"), Some(false));
    assert_eq!(
        said(&["--pid", "7", "--pid", "99"], "--pid 99 selects nobody"),
        Some(false)
    );
    assert_eq!(said(&["--comm", "other"], "selects nobody"), None);
    // By both: `other` is not 7.
    assert_eq!(
        said(&["--comm", "other", "--pid", "7"], "selects nobody"),
        Some(false)
    );
}
