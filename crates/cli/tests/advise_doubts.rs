//! What `quotient advise` says against a recording, as a person reads it.

mod common;

use common::{Folder, quotient, recorded, stderr};
use serde_json::Value;

/// A second of a CPU for each of two in groups of their own: what stands in their place is the test's.
const MACHINE: &str = "name = \"doubts\"\nduration = \"5s\"\n[machine]\nshape = \"1\"\n";

/// The doubts of a question, each with whether it decides.
fn doubts(arguments: &[&str]) -> Vec<(String, bool)> {
    let mut all = vec!["advise"];
    all.extend(arguments);
    all.extend([
        "--json", "--seeds", "2", "--cpus", "0.8", "--period", "100ms", "--burst", "0",
    ]);
    let output = quotient(&all);
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let doubts = answer["doubts"].as_array().expect("doubts");
    let doubts: Vec<(String, bool)> = doubts
        .iter()
        .map(|doubt| {
            let reason = doubt["reason"].as_str().expect("words").to_owned();
            (reason, doubt["decisive"] == true)
        })
        .collect();
    if doubts.iter().any(|doubt| doubt.1) {
        assert_eq!(answer["recommended"], Value::Null);
    }
    doubts
}

/// Whether the doubt with these words decides; `None` if there is none.
fn found(doubts: &[(String, bool)], words: &str) -> Option<bool> {
    let doubt = doubts.iter().find(|(reason, _)| reason.contains(words));
    doubt.map(|doubt| doubt.1)
}

fn load(name: &str, group: &str, kind: &str) -> String {
    format!("[[workload]]\nname = \"{name}\"\ngroup = \"{group}\"\n{kind}\n")
}

/// What `advise` answers about the group `web` of a trace, under one limit.
fn about_web(trace: &str) -> Value {
    let output = quotient(&[
        "advise", trace, "--group", "web", "--loop", "closed", "--json", "--seeds", "2", "--cpus",
        "0.9", "--period", "100ms", "--burst", "0",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one object")
}

#[test]
fn a_machine_that_held_back_what_is_asked_about_is_no_ground_for_advice() {
    let folder = Folder::new("advise-full");
    let groups = "[[group]]\npath = \"web\"\n[[group]]\npath = \"build\"\n";
    let build = load("cc", "build", "kind = \"spin\"\nthreads = 2");
    let asked = |name: &str, work: &str| {
        let kind = format!("kind = \"open-loop\"\nthreads = 2\nwork = \"{work}\"\ngap = \"~20ms\"");
        let web = load("svc", "web", &kind);
        let trace = recorded(&folder, name, &format!("{MACHINE}{groups}{web}{build}"));
        doubts(&[&trace, "--group", "web"])
    };
    // It wants 0.75 CPUs, and beside a builder there is half of one.
    let held = asked("held", "~15ms");
    assert_eq!(
        found(&held, "the machine held them back"),
        Some(true),
        "{held:?}"
    );
    // It wants a fifth and gets it.
    let late = asked("late", "~4ms");
    assert_eq!(
        found(&late, "what was wanted came late"),
        Some(false),
        "{late:?}"
    );
    assert_eq!(found(&late, "the machine held them back"), None);
}

#[test]
fn who_shares_a_cgroup_or_its_limit_is_named() {
    let folder = Folder::new("advise-shared");
    let asked = |name: &str, limit: &str, more: &[&str]| {
        let group = format!("[[group]]\npath = \"web\"\n{limit}");
        let kind = "kind = \"closed-loop\"\nthreads = 2\nwork = \"1ms\"\nthink = \"9ms\"";
        let loads = load("front", "web", kind) + &load("back", "web", kind);
        let trace = recorded(&folder, name, &format!("{MACHINE}{group}{loads}"));
        let mut arguments = vec![trace.as_str()];
        arguments.extend(more);
        doubts(&arguments)
    };
    let (limit, comm) = (
        "quota = \"35ms\"\nperiod = \"100ms\"\n",
        ["--comm", "front.0", "--comm", "front.1"],
    );
    let free = asked("free", "", &comm);
    assert_eq!(
        found(&free, "a limit on it holds for them too"),
        Some(false),
        "{free:?}"
    );
    let given = [
        "--comm",
        "front.0",
        "--comm",
        "front.1",
        "--recorded-limit",
        "35000/100000",
    ];
    let limited = asked("limited", limit, &given);
    let words = "of the limit that this was recorded under";
    assert_eq!(found(&limited, words), Some(true), "{limited:?}");
    let both = asked(
        "both",
        limit,
        &["--group", "web", "--recorded-limit", "35000/100000"],
    );
    assert_eq!(found(&both, words), None);
}

/// Hazard: a service of weight 300 beside a builder is predicted with half of the CPU, and nobody says that it was a guess.
#[test]
fn weights_are_played_and_said_or_said_to_be_missing() {
    let folder = Folder::new("advise-weights");
    let groups = "[[group]]\npath = \"web\"\n[[group]]\npath = \"build\"\n";
    let web = load(
        "svc",
        "web",
        "kind = \"closed-loop\"\nthreads = 2\nwork = \"3ms\"\nthink = \"2ms\"",
    );
    let build = load("cc", "build", "kind = \"spin\"\nthreads = 2");
    let trace = recorded(&folder, "plain", &format!("{MACHINE}{groups}{web}{build}"));
    let text = std::fs::read_to_string(&trace).expect("it was written");
    let (first, rest) = text.split_once('\n').expect("a header");
    let with = |name: &str, notes: &[(&str, u32, &str)]| {
        let notes = notes.iter().map(|(path, weight, more)| {
            format!(
                "{{\"note\":{{\"weight\":{{\"cgroup\":\"{path}\",\"weight\":{weight}{more}}}}}}}\n"
            )
        });
        let notes: String = notes.collect();
        let file = folder.file(name);
        std::fs::write(&file, format!("{first}\n{notes}{rest}")).expect("our own folder");
        file
    };
    let said = |answer: &Value, part: &str, words: &str| answer[part].to_string().contains(words);
    let used = |answer: &Value| answer["free_usage_permille"].as_u64().expect("a figure");
    let (missing, changed) = (
        "does not say the weights of its groups",
        "the weight of /build was changed",
    );
    let unknown = about_web(&trace);
    assert!(said(&unknown, "doubts", missing), "{unknown}");
    assert!(said(
        &unknown,
        "notes",
        "/web 100 (not noted), /build 100 (not noted)"
    ));
    let heavy = about_web(&with("heavy.jsonl", &[("web", 300, ""), ("build", 50, "")]));
    assert!(said(&heavy, "notes", "/web 300, /build 50"), "{heavy}");
    assert!(!said(&heavy, "doubts", missing) && !said(&heavy, "doubts", changed));
    assert!(used(&heavy) * 10 > used(&unknown) * 13, "{heavy} {unknown}");
    let idle = [
        ("build", 100, ",\"idle\":true"),
        ("build", 200, ",\"at\":2000000000"),
    ];
    let idle = about_web(&with("idle.jsonl", &idle));
    assert!(
        said(&idle, "notes", "/web 100 (not noted), /build 100 (idle)"),
        "{idle}"
    );
    assert!(said(&idle, "doubts", changed), "{idle}");
    assert!(used(&idle) > used(&heavy), "{idle} {heavy}");
}

/// ftrace lines of a generator that wakes a service of 3 ms ten times in every other period of 100 ms and else twice; with 20 ms in each period
/// the service is held back with the last four of ten, and does these behind it in one go.
fn generated() -> String {
    let mut text = String::from("# tracer: nop\n");
    let time = |micros: u64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let mut switches: Vec<(u64, String)> = Vec::new();
    let mut line = |at: u64, text: String| switches.push((at, text));
    for cycle in 0..40_u64 {
        let begin = 1_000_000 + cycle * 200_000;
        let requests = (0..10)
            .map(|number| number * 10_000)
            .chain([150_000, 170_000]);
        for (number, at) in requests.enumerate() {
            let at = begin + at;
            line(
                at,
                format!(
                    "<idle>-0 [001] d.h3. {}: sched_waking: comm=gen pid=9 prio=120 target_cpu=001\n<idle>-0 [001] d..2. {}: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=gen next_pid=9 next_prio=120\n",
                    time(at),
                    time(at + 5)
                ),
            );
            line(
                at + 100,
                format!(
                    "gen-9 [001] d..2. {}: sched_switch: prev_comm=gen prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n",
                    time(at + 100)
                ),
            );
            // The seventh is cut off after 2 ms, and the three behind it find the service waiting.
            let runs: &[(u64, u64, &str)] = match number {
                6 => &[(20, 2_000, "R"), (40_000, 11_000, "S")],
                7..10 => &[],
                _ => &[(20, 3_000, "S")],
            };
            if !runs.is_empty() {
                line(
                    at + 10,
                    format!(
                        "gen-9 [001] d..2. {}: sched_waking: comm=svc pid=7 prio=120 target_cpu=000\n",
                        time(at + 10)
                    ),
                );
            }
            for (after, length, state) in runs {
                let from = at + after;
                line(
                    from,
                    format!(
                        "<idle>-0 [000] d..2. {}: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=svc next_pid=7 next_prio=120\n",
                        time(from)
                    ),
                );
                line(
                    from + length,
                    format!(
                        "svc-7 [000] d..2. {}: sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state={state} ==> next_comm=swapper/0 next_pid=0 next_prio=120\n",
                        time(from + length)
                    ),
                );
            }
        }
    }
    switches.sort();
    for (_, line) in switches {
        text += &line;
    }
    text
}

#[test]
fn requests_that_a_limit_hid_are_missed() {
    let folder = Folder::new("advise-woken");
    let file = folder.file("generated.txt");
    std::fs::write(&file, generated()).expect("our own folder");
    let words = "threads that others in the trace wake";
    let asked = |limit: &str| {
        let given = ["--comm", "svc", "--loop", "open", "--recorded-limit", limit];
        let mut arguments = vec![file.as_str()];
        arguments.extend(given);
        found(&doubts(&arguments), words)
    };
    assert_eq!(asked("20000/100000"), Some(true));
    assert_eq!(asked("none"), None);
}

#[test]
fn a_limit_that_was_changed_meanwhile_is_no_ground_for_advice() {
    let folder = Folder::new("advise-changed");
    let file = folder.file("changed.txt");
    let attached = "x-1 [000] ..... 0.000001: cgroup_attach_task: dst_root=1 dst_id=7 dst_level=1 dst_path=/web pid=7 comm=svc\n";
    let noted = "# tracer: nop\n# recorded under the limit of /web: 20000 us in every 100000 us, burst 5000 us\n";
    let events = generated().replace("# tracer: nop\n", "");
    let asked = |change: &str, comm: &str| {
        let text = format!("{noted}{attached}{events}{change}");
        std::fs::write(&file, text).expect("our own folder");
        doubts(&[&file, "--comm", comm, "--loop", "open"])
    };
    let words = "the limit was changed while this was recorded";
    let changed = "# at 3.000000 s the limit of /web: 50000 us in every 100000 us\n# at 4.000000 s no limit any more\n";
    let doubts = asked(changed, "svc");
    assert_eq!(found(&doubts, words), Some(true), "{doubts:?}");
    assert_eq!(
        found(&doubts, "2 times, first to 0.50 CPUs"),
        Some(true),
        "{doubts:?}"
    );
    assert_eq!(found(&asked("", "svc"), words), None);
    // It was not theirs.
    assert_eq!(found(&asked(changed, "gen"), words), None);
}

/// Hazard: a recording goes on for long after the load has ended, and a limit for its mean throttles it all the time.
#[test]
fn a_load_that_ended_long_before_the_recording_is_no_ground_for_advice() {
    let folder = Folder::new("advise-ended");
    let file = folder.file("ended.txt");
    let mut text = generated();
    // 8 s of load, and then a glance of 100 us now and then.
    for second in 10..70 {
        text += &format!(
            "<idle>-0 [000] d..2. {second}.000000: sched_waking: comm=svc pid=7 prio=120 target_cpu=000\n\
             <idle>-0 [000] d..2. {second}.000010: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=svc next_pid=7 next_prio=120\n\
             svc-7 [000] d..2. {second}.000110: sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n"
        );
    }
    let asked = |text: &str| {
        std::fs::write(&file, text).expect("our own folder");
        doubts(&[
            &file,
            "--comm",
            "svc",
            "--loop",
            "open",
            "--recorded-limit",
            "none",
        ])
    };
    let words = "98 % of their work in";
    let ended = asked(&text);
    assert_eq!(found(&ended, words), Some(true), "{ended:?}");
    let whole = asked(&generated());
    assert_eq!(found(&whole, words), None, "{whole:?}");
    // The same without wake-ups: nothing says what was waited for.
    let words = "no wake-up is in the trace";
    assert_eq!(found(&whole, words), None);
    let lines = generated();
    let kept = lines.lines().filter(|line| !line.contains("sched_waking"));
    let silent = asked(&(kept.collect::<Vec<_>>().join("\n") + "\n"));
    assert_eq!(found(&silent, words), Some(false), "{silent:?}");
}

/// Hazard: a job that ran for a moment of the recording makes the 99th percentile, and nobody says that it is not the service's.
#[test]
fn company_that_came_once_and_made_the_percentile_is_said() {
    let folder = Folder::new("advise-once");
    let groups = "[[group]]\npath = \"web\"\n[[group]]\npath = \"job\"\n";
    let web = "kind = \"open-loop\"\nthreads = 1\nwork = \"4ms\"\ngap = \"20ms\"";
    let web = load("svc", "web", web);
    let asked = |name: &str, job: &str, more: &[&str]| {
        let job = load("job", "job", job);
        let trace = recorded(&folder, name, &format!("{MACHINE}{groups}{web}{job}"));
        let mut arguments = vec![trace.as_str(), "--group", "web", "--loop", "open"];
        arguments.extend(more);
        doubts(&arguments)
    };
    let once = "kind = \"once\"\nthreads = 1\nwork = \"100ms\"\nbegin = \"2s\"";
    let words = "and the 99th percentile is of that time";
    let found_once = asked("once", once, &[]);
    assert_eq!(found(&found_once, words), Some(false), "{found_once:?}");
    assert_eq!(found(&asked("alone", once, &["--alone"]), words), None);
    let always = "kind = \"open-loop\"\nthreads = 1\nwork = \"4ms\"\ngap = \"20ms\"";
    let always = asked("always", always, &[]);
    assert_eq!(found(&always, words), None, "{always:?}");
}

/// Hazard: the check whether what is played is what was recorded does not see requests with marks, and a wrong limit is recommended for them.
#[test]
fn marked_requests_are_compared_with_what_the_trace_says_of_them() {
    let folder = Folder::new("advise-marked");
    let file = folder.file("marked.txt");
    // Every 100 ms 5 ms of work; every fourth time it stands still on the way, beside an idle CPU, and nothing in the trace says why.
    let asked = |still: u64| {
        let mut text = String::from("# tracer: nop\n");
        for number in 0..150_u64 {
            let at = 1_000_000 + number * 100_000;
            let still = if number % 4 == 0 { still } else { 0 };
            let mut line = |who: &str, after: u64, what: &str| {
                let micros = at + after;
                let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
                text += &format!("{who} [000] d..2. {seconds}.{rest:06}: {what}\n");
            };
            let comes = "sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=svc next_pid=7 next_prio=120";
            let goes = |state: &str| {
                format!(
                    "sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state={state} ==> next_comm=swapper/0 next_pid=0 next_prio=120"
                )
            };
            let wakes = "sched_waking: comm=svc pid=7 prio=120 target_cpu=000";
            line("<idle>-0", 0, wakes);
            line("<idle>-0", 1, comes);
            line("svc-7", 2, "tracing_mark_write: B|7|get");
            if still > 0 {
                line("svc-7", 1_000, &goes("R"));
                line("<idle>-0", 1_000 + still, comes);
            }
            line("svc-7", 5_000 + still, "tracing_mark_write: E|7");
            line("svc-7", 5_010 + still, &goes("S"));
        }
        std::fs::write(&file, text).expect("our own folder");
        doubts(&[
            &file,
            "--marker",
            "get",
            "--loop",
            "open",
            "--recorded-limit",
            "none",
        ])
    };
    let words = "played as it was recorded, this comes to";
    let still = asked(40_000);
    assert_eq!(found(&still, words), Some(true), "{still:?}");
    let moving = asked(0);
    assert_eq!(found(&moving, words), None, "{moving:?}");
}

/// Hazard: whoever recorded is played as company, and a limit is judged beside it although nobody records in production.
#[test]
fn who_recorded_is_left_out_but_for_what_is_compared_with_the_trace() {
    let folder = Folder::new("advise-recorder");
    let web = load(
        "svc",
        "web",
        "kind = \"closed-loop\"\nthreads = 2\nwork = \"~4ms\"\nthink = \"~16ms\"",
    );
    let recorder = "kind = \"closed-loop\"\nthreads = 1\nwork = \"15ms\"\nthink = \"25ms\"";
    // In a group of its own, and in that of the service.
    for group in ["other", "web"] {
        let groups = "[[group]]\npath = \"web\"\n[[group]]\npath = \"other\"\n";
        let beside = load("rec", group, recorder);
        let trace = recorded(&folder, group, &format!("{MACHINE}{groups}{web}{beside}"));
        let text = std::fs::read_to_string(&trace).expect("it was written");
        let number = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["task"]["name"] == "rec")
            .and_then(|line| line["task"]["id"].as_u64())
            .expect("the recorder's number");
        let (first, rest) = text.split_once('\n').expect("a header");
        let noted = format!("{first}\n{{\"note\":{{\"process\":{number}}}}}\n{rest}");
        let with_note = folder.file(&format!("{group}-noted.jsonl"));
        std::fs::write(&with_note, noted).expect("our own folder");
        let (unknown, known) = (about_web(&trace), about_web(&with_note));
        let figure = |answer: &Value, path: &str| answer.pointer(path).and_then(Value::as_f64);
        let free = |answer: &Value| figure(answer, "/free_p99_ns").expect("a figure");
        if group == "other" {
            assert!(free(&known) * 1.3 < free(&unknown), "{known} {unknown}");
        } else {
            let used =
                |answer: &Value| figure(answer, "/recorded/usage_permille").expect("a figure");
            assert!(used(&known) * 1.3 < used(&unknown), "{known} {unknown}");
        }
        let notes = known["notes"].to_string();
        assert!(
            notes.contains("left out: `quotient record` itself, 0."),
            "{notes}"
        );
        assert!(!unknown["notes"].to_string().contains("record` itself"));
        let itself = quotient(&["advise", &with_note, "--comm", "rec"]);
        assert_eq!(itself.status.code(), Some(2));
        assert!(
            stderr(&itself).contains("record` itself"),
            "{}",
            stderr(&itself)
        );
        // What is compared with the trace has it, for the trace has it as well.
        let doubts = known["doubts"].to_string();
        assert!(!doubts.contains("played as it was recorded"), "{doubts}");
    }
}
