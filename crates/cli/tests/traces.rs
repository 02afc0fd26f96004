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

/// Hazard: a reader puts events in order, so that nobody hears of a log in which time goes back.
#[test]
fn check_finds_time_that_goes_back_in_a_log_of_our_own() {
    let folder = Folder::new("order");
    let log = folder.file("log.jsonl");
    let tick = |at: u64| format!("{{\"time\":{at},\"cpu\":0,\"event\":\"tick\"}}\n");
    for (back_to, is_found) in [(6_950_000_000, false), (5_600_000_000, true)] {
        let text = "{\"quotient_trace\":1}\n".to_owned() + &tick(7_000_000_000) + &tick(back_to);
        std::fs::write(&log, text).expect("our own folder");
        let output = quotient(&["check", &log]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.success(), !is_found, "{said}");
        let told = "log.jsonl:3: order: time goes back by 1.4";
        assert_eq!(said.contains(told), is_found, "{said}");
    }
}

/// Hazard: one command refuses what the next one takes, and plays for centuries.
#[test]
fn what_cannot_be_is_refused_by_every_command_that_reads_traces() {
    let folder = Folder::new("impossible");
    let file = folder.file("log.jsonl");
    let head = "{\"quotient_trace\":1}\n{\"group\":{\"id\":1,\"path\":\"box\",\"parent\":0}}\n{\"task\":{\"id\":1,\"name\":\"hog\",\"group\":1}}\n";
    let switch = |time: u64, cpu: u32, (prev, next): (u32, u32)| {
        format!(
            "{{\"time\":{time},\"cpu\":{cpu},\"event\":{{\"switch\":{{\"prev\":{prev},\"state\":\"S\",\"next\":{next}}}}}}}\n"
        )
    };
    let whole = switch(0, 0, (0, 1)) + &switch(5_000_000, 0, (1, 0));
    let limit = "{\"time\":0,\"cpu\":0,\"event\":{\"set_limit\":{\"group\":1,\"quota\":10000000,\"period_us\":0}}}\n";
    for (text, words) in [
        (
            head.to_owned() + &whole + &switch(u64::MAX, 0, (0, 1)),
            "line 6: time stamp 18446744073.709551615 is 18446744073.704551615 s behind the event before it, at 0.005000000: allowed are 0..=86400 s",
        ),
        (head.to_owned() + limit + &whole, "line 4, column "),
        (
            whole.clone(),
            "line 1, column 1: expected the first line of a log",
        ),
        (
            head.to_owned() + &switch(0, 4_000_000_000, (0, 1)),
            "a cpu in 0..=8191, not 4000000000",
        ),
        (
            head.replace("\"parent\":0", "\"parent\":1") + &whole,
            "line 2, ",
        ),
    ] {
        std::fs::write(&file, text).expect("our own folder");
        let to = folder.file("to.ftrace");
        for question in [
            &["check", &file][..],
            &["advise", &file],
            &["convert", &file, &to],
            &["diff", &file, &file],
        ] {
            let output = quotient(question);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(3), "{question:?} {said}");
            assert!(said.contains(words), "{question:?} {said}");
        }
        assert!(!Path::new(&to).exists());
    }
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

/// What `check` says of a trace, but for its name and its lines.
fn verdict(file: &str) -> (Option<i32>, serde_json::Value) {
    let output = quotient(&["check", file, "--json"]);
    let mut answer: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    answer["trace"] = serde_json::Value::Null;
    for breach in answer["breaches"].as_array_mut().expect("breaches") {
        breach["line"] = serde_json::Value::Null;
    }
    (output.status.code(), answer)
}

/// Hazard: what was converted to the native log is taken for Quotient's own, nobody fills anything in, and the kernel is called broken; or
/// Quotient's own log becomes text, is taken for a kernel's, and what is broken there is filled in.
#[test]
fn one_recording_has_one_verdict_in_every_format() {
    let folder = Folder::new("whole");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data");
    let short = data.join("idle_left_out.txt").display().to_string();
    let own = folder.file("own.jsonl");
    let lines = [
        r#"{"quotient_trace":1}"#,
        r#"{"time":1000,"cpu":0,"event":{"switch":{"prev":7,"state":"S","next":0}}}"#,
        r#"{"time":2000,"cpu":0,"event":{"waking":{"task":7,"target":0,"waker":0}}}"#,
        r#"{"time":3000,"cpu":0,"event":{"switch":{"prev":7,"state":"S","next":0}}}"#,
    ];
    std::fs::write(&own, lines.join("\n") + "\n").expect("our own folder");
    assert_eq!(verdict(&own).0, Some(1), "a switch is missing");
    assert_eq!(verdict(&short).0, Some(0), "a kernel's are filled in");
    for (index, source) in [short, own].iter().enumerate() {
        let expected = verdict(source);
        let mut last = source.clone();
        for extension in ["jsonl", "ftrace", "jsonl", "txt", "txt"] {
            let next = folder.file(&format!("{index}-{}.{extension}", last.len()));
            let output = quotient(&["convert", &last, &next]);
            assert!(output.status.success(), "{}", stderr(&output));
            assert_eq!(verdict(&next), expected, "{last} to {next}");
            last = next;
        }
        let output = quotient(&["diff", source, &last, "--json"]);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
        let rows = answer["rows"].as_array().expect("rows");
        assert!(rows.iter().all(|row| row["difference"] == 0.0), "{rows:?}");
    }
}

/// A recording under a limit, with marks of a program.
fn noted() -> String {
    let text = std::fs::read_to_string(recorded()).expect("the recorded trace");
    let (head, body) = text.split_at(text.find("sched_switch").expect("a switch"));
    let (head, line) = head.split_at(head.rfind('\n').expect("a heading") + 1);
    let time = line.split_whitespace().next_back().expect("a time stamp");
    let mut noted = head.to_owned()
        + "# recorded by process 4242\n# recorded by Linux 6.12.3\n# recorded under the limit of /a: 60000 us in every 100000 us\n# weight of /a: 300\n# weight of /b: 1, idle\n";
    noted += &format!(
        "  <idle>-0 [000] d.h1. {time} hrtimer_expire_entry: hrtimer=0 function=sched_cfs_period_timer now=5\n"
    );
    noted += &format!("  web-77 [001] ..... {time} tracing_mark_write: S|70|get|5\n");
    noted += &format!("  web-78 [001] ..... {time} tracing_mark_write: F|70|get|5\n");
    noted
        + line
        + body
        + "# at 7.000042 s the limit of /a: 50000 us in every 100000 us, burst 9 us\n"
        + "# at 8.000000 s no limit any more\n"
        + "# at 8.500000 s the weight of /a: 200\n"
        + "# meanwhile throttled in 3 of 9 periods\n"
}

/// Hazard: `convert` says who recorded a log that does not say it.
#[test]
fn a_log_becomes_the_same_log() {
    let folder = Folder::new("same");
    let (source, result) = (folder.file("a.jsonl"), folder.file("b.jsonl"));
    let text = "{\"quotient_trace\":1}\n{\"time\":1000,\"cpu\":0,\"event\":\"tick\"}\n";
    std::fs::write(&source, text).expect("our own folder");
    let output = quotient(&["convert", &source, &result]);
    assert!(output.status.success(), "{}", stderr(&output));
    let copied = std::fs::read_to_string(&result).expect("it was written");
    assert_eq!(copied, text);
}

/// Hazard: `convert` drops what `advise` reads beside the events, and nobody is told.
#[test]
fn what_a_trace_says_beside_its_events_is_kept_or_said_to_be_lost() {
    let folder = Folder::new("notes");
    let source = folder.file("source.txt");
    std::fs::write(&source, noted()).expect("our own folder");
    let convert = |from: &str, to: &str| {
        let output = quotient(&["convert", from, to]);
        assert!(output.status.success(), "{}", stderr(&output));
        (std::fs::read_to_string(to), stderr(&output))
    };
    let [first, log, second, again] =
        ["1.txt", "2.jsonl", "3.txt", "4.jsonl"].map(|name| folder.file(name));
    let text = convert(&source, &first).0.expect("text");
    for part in [
        "# recorded by process 4242\n",
        "# recorded by Linux 6.12.3\n",
        "# recorded under the limit of /a: 60000 us in every 100000 us\n",
        "# at 7.000042 s the limit of /a: 50000 us in every 100000 us, burst 9 us\n",
        "# at 8.000000 s no limit any more\n",
        "# weight of /a: 300\n",
        "# weight of /b: 1, idle\n",
        "# at 8.500000 s the weight of /a: 200\n",
        "# meanwhile throttled in 3 of 9 periods\n",
        "function=sched_cfs_period_timer",
        "tracing_mark_write: S|77|get|5\n",
        "tracing_mark_write: F|78|get|5\n",
    ] {
        assert!(text.contains(part), "{part}");
    }
    let as_log = convert(&source, &log).0.expect("text");
    for part in [
        "process",
        "release",
        "limit",
        "change",
        "throttles",
        "weight",
        "period",
        "mark",
        "recorder",
    ] {
        assert!(
            as_log.contains(&format!(r#"{{"note":{{"{part}":"#)),
            "{part}"
        );
    }
    assert_eq!(convert(&log, &second).0.expect("text"), text);
    // In comments and definitions, which have no time, the order may differ.
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let as_log_again = convert(&second, &again).0.expect("text");
    assert_eq!(sorted(&as_log_again), sorted(&as_log));
    let said = convert(&source, &folder.file("5.pftrace")).1;
    for part in ["cannot hold", "the limit", "weights", "1 begins", "2 marks"] {
        assert!(said.contains(part), "{said}");
    }
}

/// Hazard: two recordings in one file are read as one with a hole in it, and the limit of the second is taken for that of both.
#[test]
fn a_second_recording_is_refused_with_its_line() {
    let folder = Folder::new("two");
    let text = std::fs::read_to_string(recorded()).expect("the recorded trace");
    let log = folder.file("one.jsonl");
    assert!(quotient(&["convert", &recorded(), &log]).status.success());
    let log = std::fs::read_to_string(log).expect("a log");
    for (name, one) in [("two.txt", text), ("two.jsonl", log)] {
        let file = folder.file(name);
        std::fs::write(&file, one.clone() + &one).expect("our own folder");
        let line = one.lines().count() + 1;
        let out = folder.file("out.jsonl");
        for arguments in [
            &["check", &file][..],
            &["convert", &file, &out],
            &["advise", &file],
        ] {
            let output = quotient(arguments);
            assert_eq!(output.status.code(), Some(3), "{arguments:?}");
            let said = stderr(&output);
            assert!(
                said.contains(&format!("line {line}: another recording begins here")),
                "{said}"
            );
        }
    }
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
