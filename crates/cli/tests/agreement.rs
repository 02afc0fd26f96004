//! One run told in several ways: what the terminal says, what the JSON object says and what the trace says.

mod common;

use common::{Folder, quotient, stderr, stdout};
use serde_json::Value;

/// Nested limits, of which the outer one always throttles and the inner ones never and always.
const NESTED: &str = r#"
name = "nested"
duration = "2s"
[machine]
shape = "2"
[scheduler]
bandwidth = "RULES"
[[group]]
path = "outer"
quota = "30ms"
period = "100ms"
[[group]]
path = "outer/wide"
quota = "60ms"
period = "100ms"
[[group]]
path = "outer/narrow"
quota = "5ms"
period = "100ms"
[[workload]]
name = "wide"
kind = "spin"
group = "outer/wide"
threads = 2
[[workload]]
name = "narrow"
kind = "spin"
group = "outer/narrow"
threads = 2
[[workload]]
name = "served"
kind = "closed-loop"
threads = 3
work = "~1ms"
think = "~2ms"
"#;

/// The words of the rows of a table that begins with `title`.
fn rows<'a>(text: &'a str, title: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(title));
    let rows = lines.skip(1).take_while(|line| !line.is_empty());
    rows.map(|line| line.split_whitespace().collect()).collect()
}

fn object(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(arguments)).expect("one object")
}

/// A group's figure in the comparison of a trace with itself.
fn traced(comparison: &Value, group: &str, figure: &str) -> f64 {
    let rows = comparison["rows"].as_array().expect("rows");
    let row = rows
        .iter()
        .find(|row| row["of"] == "group" && row["name"] == group && row["metric"] == figure)
        .unwrap_or_else(|| panic!("the trace has no {figure} of {group}: {comparison}"));
    row["a"].as_f64().expect("a number")
}

#[test]
fn terminal_object_and_trace_say_the_same_of_nested_limits() {
    for rules in ["default", "kernel"] {
        let folder = Folder::new("agreement");
        let (scenario, trace) = (folder.file("nested.toml"), folder.file("nested.jsonl"));
        std::fs::write(&scenario, NESTED.replace("RULES", rules)).expect("our own folder");
        let terminal = stdout(&["sim", &scenario]);
        let json = object(&["sim", &scenario, "--json", "--trace", &trace]);
        let outcome = &json["runs"][0]["outcome"];
        let groups = outcome["groups"].as_array().expect("groups");
        let shown = rows(&terminal, "group ");
        assert_eq!(shown.len(), groups.len(), "{terminal}");
        let comparison = object(&["diff", &trace, &trace, "--json"]);
        for (row, group) in shown.iter().zip(groups) {
            let path = group["path"].as_str().expect("a path");
            let millis = |name: &str| group[name].as_f64().expect("a time") / 1e6;
            let count = |name: &str| group[name].as_u64().expect("a count");
            let told = [
                if path.is_empty() { "(all)" } else { path }.to_owned(),
                format!("{:.3}", millis("usage_ns")),
                count("nr_periods").to_string(),
                count("nr_throttled").to_string(),
                format!("{:.3}", millis("throttled_ns")),
            ];
            assert_eq!(row, &told, "{rules}: {terminal}");
            if path.is_empty() {
                continue;
            }
            // The trace ends in the middle of a period, which the counters count when it is over; on each of the two CPUs.
            let traced = |figure: &str| traced(&comparison, &format!("/{path}"), figure);
            let periods = traced("nr_throttled") - count("nr_throttled") as f64;
            assert!(periods.abs() <= 1.0, "{rules}: {path} {periods}");
            let time = traced("throttled_ms") - millis("throttled_ns");
            assert!(time.abs() <= 200.0, "{rules}: {path} {time}");
            let used = traced("cpus") * 2_000.0 - millis("usage_ns");
            assert!(used.abs() <= 1.0, "{rules}: {path} {used}");
        }
        // What made terminal and trace differ once: 0 of 20 in one, 20 of 20 in the other.
        let throttled = |path: &str| {
            let group = groups.iter().find(|group| group["path"] == path);
            group.and_then(|group| group["nr_throttled"].as_u64())
        };
        assert_eq!(throttled("outer/wide"), Some(0), "{rules}");
        assert!(throttled("outer") >= Some(18), "{rules}");
        let meters = rows(&terminal, "meter ");
        let meter = &outcome["meters"][0];
        assert_eq!(meters[0][0], meter["name"].as_str().expect("a name"));
        assert_eq!(meters[0][1], meter["done"].to_string());
        let p99 = meter["times"]["p99_ns"].as_f64().expect("a time") / 1e3;
        assert_eq!(meters[0][3], format!("{p99:.1}"));
    }
}

/// Hazard: a scenario without workloads is a good one that took no time.
#[test]
fn a_scenario_in_which_nothing_runs_is_refused() {
    let folder = Folder::new("no-workload");
    let scenario = folder.file("s.toml");
    let text =
        "name = \"s\"\nduration = \"1s\"\nmachine = { shape = \"2\" }\n[[group]]\npath = \"a\"\n";
    std::fs::write(&scenario, text).expect("our own folder");
    let output = quotient(&["sim", &scenario]);
    assert_eq!(output.status.code(), Some(3));
    let said = stderr(&output);
    assert!(said.contains("needs one [[workload]] or more"), "{said}");
}

/// Half of nothing is no number. JSON has none for it, and `null` alone would be a figure that was lost.
#[test]
fn what_is_no_figure_is_called_so_and_meets_nothing() {
    let folder = Folder::new("no-figure");
    let scenario = folder.file("s.toml");
    let text = "name = \"s\"\nduration = \"10ms\"\nmachine = { shape = \"2\" }\n[[workload]]\nname = \"w\"\nkind = \"spin\"\n\
        [[expect]]\nwhat = \"endless\"\nvalue = \"busy / (busy - busy)\"\nmin = 2\n\
        [[expect]]\nwhat = \"nothing of nothing\"\nvalue = \"(busy - busy) / (busy - busy)\"\nmax = 2\n\
        [[expect]]\nwhat = \"a figure\"\nvalue = \"busy / 1ms\"\nmin = 2\n";
    std::fs::write(&scenario, text).expect("our own folder");
    let output = quotient(&["sim", &scenario, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let findings = json["expectations"].as_array().expect("findings");
    let told: Vec<_> = findings
        .iter()
        .map(|finding| (&finding["value_is"], finding["met"] == true))
        .collect();
    let expected = [
        (&Value::from("infinite"), false),
        (&Value::from("undefined"), false),
        (&Value::Null, true),
    ];
    assert_eq!(told, expected, "{json}");
}

/// A trace says which CPUs went, so that nobody is said to wait beside one that is not there.
#[test]
fn a_run_with_cpus_that_go_breaks_no_rule() {
    let folder = Folder::new("gone");
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/hotplug.toml");
    for name in ["gone.jsonl", "gone.txt"] {
        let trace = folder.file(name);
        stdout(&["sim", scenario, "--trace", &trace]);
        let judged = stdout(&["check", &trace]);
        assert!(judged.contains("every rule was kept"), "{judged}");
    }
}

/// A trace that breaks a rule ten thousand times is not ten thousand lines on a terminal.
#[test]
fn of_one_rule_twenty_breaches_are_shown_and_all_are_counted() {
    let folder = Folder::new("breaches");
    let file = folder.file("broken.txt");
    let mut text = String::from("# tracer: nop\n#\n");
    for number in 0..1_000u32 {
        // Each time somebody leaves the CPU who was not on it.
        let (prev, next) = (2 * number + 100, 2 * number + 101);
        text += &format!(
            "  t-{prev} [000] d... {}.{:06}: sched_switch: prev_comm=t prev_pid={prev} prev_prio=120 prev_state=S ==> \
             next_comm=t next_pid={next} next_prio=120\n",
            10 + number / 1_000,
            number % 1_000 * 1_000
        );
    }
    std::fs::write(&file, text).expect("our own folder");
    // By itself it fills in what a kernel may have left out, but not for half of all tasks.
    for (arguments, breaches) in [
        (&["check", "--as-recorded", &file][..], 999),
        (&["check", &file], 800),
    ] {
        let output = quotient(arguments);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        let places = text
            .lines()
            .filter(|line| line.contains("broken.txt:"))
            .count();
        let counted = rows_with_counts(&text);
        assert!(counted.iter().any(|&count| count >= breaches), "{text}");
        assert!(places >= 20 && places <= 20 * counted.len(), "{text}");
    }
}

/// The counts at the beginnings of lines.
fn rows_with_counts(text: &str) -> Vec<u64> {
    let words = text.lines().filter(|line| line.starts_with(' '));
    words
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect()
}
