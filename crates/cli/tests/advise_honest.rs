//! Whether what `quotient advise` says of its own figures is true, and the same for the same recording.

mod common;

use common::{Folder, doubt, quotient, recorded, stderr};
use serde_json::Value;

/// What `advise` answers, as an object and as a person reads it.
fn both(arguments: &[&str]) -> (Value, String) {
    let asked = |more: &[&str]| {
        let all = [&["advise"], arguments, more].concat();
        let output = quotient(&all);
        assert!(output.status.success(), "{}", stderr(&output));
        output.stdout
    };
    let answer = serde_json::from_slice(&asked(&["--json"])).expect("one object");
    (answer, String::from_utf8(asked(&[])).expect("text"))
}

fn answer(arguments: &[&str]) -> Value {
    let output = quotient(&[&["advise"], arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one object")
}

/// A trace of two threads on two CPUs, some 0.25 CPUs with arrivals of their own, under a limit of so many ms in 100 or none.
fn service(folder: &Folder, name: &str, limit: Option<u32>) -> String {
    let limit = limit.map_or(String::new(), |quota| {
        format!("quota = \"{quota}ms\"\nperiod = \"100ms\"\n")
    });
    let text = format!(
        "name = \"honest\"\nduration = \"8s\"\n[machine]\nshape = \"2\"\n[[group]]\npath = \"web\"\n{limit}[[workload]]\nname = \"svc\"\ngroup = \"web\"\nkind = \"open-loop\"\nthreads = 2\nwork = \"~4ms\"\ngap = \"~16ms\"\n"
    );
    recorded(folder, name, &text)
}

/// ftrace lines of one CPU: `svc` computes so many us of each 10 ms, by the second.
fn generated(head: &str, work: &dyn Fn(u64) -> u64, seconds: u64) -> String {
    let mut text = format!("# tracer: nop\n{head}");
    for number in 0..seconds * 100 {
        let at = 1_000_000 + number * 10_000;
        let mut line = |after: u64, what: &str| {
            let micros = at + after;
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            text += &format!("x-1 [000] d..2. {seconds}.{rest:06}: {what}\n");
        };
        line(0, "sched_waking: comm=svc pid=7 prio=120 target_cpu=000");
        line(
            1,
            "sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=svc next_pid=7 next_prio=120",
        );
        line(
            1 + work(number / 100),
            "sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120",
        );
    }
    text
}

const ONE: [&str; 4] = ["--period", "100ms", "--burst", "0"];

/// Hazard: all that was tried is harmless since none of it is a limit, and the verdict asks for more CPUs.
#[test]
fn what_never_binds_is_said_to_need_no_limit() {
    let folder = Folder::new("advise-never");
    let trace = service(&folder, "free", None);
    let asked = |cpus: &str| {
        let question = [
            trace.as_str(),
            "--group",
            "web",
            "--seeds",
            "2",
            "--cpus",
            cpus,
        ];
        both(&[&question[..], &ONE].concat())
    };
    for cpus in ["2", "2,3", "8"] {
        let (answer, text) = asked(cpus);
        assert_eq!(answer["verdict"], "never-binds", "{answer}");
        assert_eq!(answer["recommended"], Value::Null);
        assert_eq!(answer["cpus"], 2);
        let words =
            "recommended: no limit; none of these would ever bind, since the machine has 2 CPUs";
        assert!(text.contains(words), "{text}");
        assert!(text.contains("harmless: never binds"), "{text}");
        assert!(!text.contains("try more CPUs"), "{text}");
    }
    for (cpus, verdict, words) in [
        (
            "0.05,2",
            "harm-up-to-the-machine",
            "that give less than the machine do harm",
        ),
        ("0.05", "harm", "none of these; try more CPUs"),
        ("1.9,2", "limit", "cpu.max \"190000 100000\""),
    ] {
        let (answer, text) = asked(cpus);
        assert_eq!(answer["verdict"], verdict, "{answer}");
        assert!(text.contains(words), "{text}");
    }
}

/// Hazard: a doubt decides by a few phases, and is none after some more: who wants a recommendation asks until he gets one.
#[test]
fn whether_a_doubt_decides_is_no_matter_of_how_many_seeds_are_tried() {
    let folder = Folder::new("advise-seeds");
    let trace = service(&folder, "limited", Some(35));
    let asked = |seeds: &str| {
        let question = [
            trace.as_str(),
            "--group",
            "web",
            "--loop",
            "open",
            "--recorded-limit",
            "none",
            "--cpus",
            "1",
            "--seeds",
            seeds,
        ];
        let answer = answer(&[&question[..], &ONE].concat());
        // That there are few seeds is no matter of the recording, and does not decide.
        let doubts = answer["doubts"].as_array().expect("doubts").iter();
        let of_recording = doubts
            .filter(|doubt| doubt["decisive"] == true || !doubt.to_string().contains("tried "));
        let of_recording: Vec<Value> = of_recording.cloned().collect();
        (
            Value::from(of_recording),
            answer["played_as_recorded"].clone(),
        )
    };
    let one = asked("1");
    assert!(
        one.0
            .to_string()
            .contains("played as it was recorded, this comes to"),
        "{one:?}"
    );
    for seeds in ["2", "3", "5", "12"] {
        assert_eq!(asked(seeds), one, "{seeds}");
    }
}

/// Hazard: a limit that cannot have bound, or was another one, is undone, and what is played is a load that there never was.
#[test]
fn a_recorded_limit_that_the_trace_contradicts_is_no_ground_for_advice() {
    let folder = Folder::new("advise-other");
    let (limited, free) = (
        service(&folder, "limited", Some(28)),
        service(&folder, "free", None),
    );
    let asked = |trace: &str, limit: &str| {
        let question = [
            trace,
            "--group",
            "web",
            "--loop",
            "open",
            "--recorded-limit",
            limit,
            "--cpus",
            "1",
            "--seeds",
            "2",
        ];
        answer(&[&question[..], &ONE].concat())
    };
    let other = "this was not recorded under a limit of";
    for (trace, limit, expected) in [
        (&limited, "28000/100000", None),
        // More than that was used.
        (&limited, "20000/100000", Some(true)),
        (&free, "20000/100000", Some(true)),
        // It was throttled before so much was.
        (&limited, "80000/100000", Some(true)),
        (&limited, "50000/150000", Some(true)),
        (&free, "190000/100000", None),
    ] {
        let answer = asked(trace, limit);
        assert_eq!(doubt(&answer, other), expected, "{limit} {answer}");
        if expected.is_some() {
            assert_eq!(answer["recommended"], Value::Null);
        }
    }
    let shape = "by its shape this was throttled";
    for (trace, limit, expected) in [
        (&free, "300000/100000", None),
        (&limited, "300000/100000", Some(false)),
        (&limited, "none", Some(false)),
        (&free, "none", None),
    ] {
        let answer = asked(trace, limit);
        assert_eq!(doubt(&answer, shape), expected, "{limit} {answer}");
        assert_eq!(answer.get("recorded_limit"), None);
        let notes = answer["notes"].to_string();
        let words = "a limit of 3.00 CPUs, as given, never bound: the trace shows 2 CPUs";
        assert_eq!(notes.contains(words), limit != "none", "{notes}");
    }
}

/// Hazard: a load that rose is recommended a limit between what it used at first and what it uses now.
#[test]
fn a_load_that_rose_is_said_and_gets_no_less_than_it_uses_now() {
    let folder = Folder::new("advise-rise");
    let file = folder.file("rise.txt");
    let asked = |work: &dyn Fn(u64) -> u64, seeds: &str| {
        std::fs::write(&file, generated("", work, 8)).expect("our own folder");
        answer(&[&file, "--comm", "svc", "--loop", "open", "--seeds", seeds])
    };
    let rises = |second: u64| {
        if second < 4 {
            1_100
        } else {
            3_400 + 200 * (second - 4)
        }
    };
    let words = "the load changed: ";
    for seeds in ["1", "3"] {
        let rose = asked(&rises, seeds);
        assert_eq!(doubt(&rose, words), Some(false), "{rose}");
        let doubts = rose["doubts"].to_string();
        let halves = [
            "0.11 CPUs from 0.0 to 4.0 s, and 0.37 in the rest",
            "0.37 CPUs from 4.0 to 8.0 s, and 0.11 in the rest",
        ];
        assert!(halves.iter().any(|half| doubts.contains(half)), "{doubts}");
        let index = rose["recommended"].as_u64().expect("a limit");
        let row = &rose["predictions"][index as usize];
        let part = |name: &str| row[name].as_f64().expect("a figure");
        let share = part("quota_ns") / part("period_ns");
        assert!(share > 0.4, "{row}");
    }
    let steady = asked(&|second| 3_000 + 200 * (second % 2), "2");
    assert_eq!(doubt(&steady, words), None, "{steady}");
}

/// Hazard: who recorded with `quotient record` is told to do so, for what that did not find.
#[test]
fn weights_that_record_could_not_find_are_not_asked_of_it() {
    let folder = Folder::new("advise-root");
    let file = folder.file("root.txt");
    let asked = |head: &str| {
        let beside = "x-1 [000] d..2. 1.005000: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=job next_pid=8 next_prio=120\nx-1 [000] d..2. 1.009000: sched_switch: prev_comm=job prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n";
        let mut text = String::new();
        let mut count = 0;
        for line in generated(head, &|_| 3_000, 4).lines() {
            text += line;
            text += "\n";
            if line.contains("next_comm=swapper/0") {
                let at = 1_000_000 + count * 10_000;
                let (seconds, micros) = (at / 1_000_000, at % 1_000_000);
                let moved = |after: u64| format!("{seconds}.{:06}", micros + after);
                text += &beside
                    .replace("1.005000", &moved(5_000))
                    .replace("1.009000", &moved(9_000));
                count += 1;
            }
        }
        std::fs::write(&file, text).expect("our own folder");
        let question = [
            file.as_str(),
            "--comm",
            "svc",
            "--loop",
            "open",
            "--cpus",
            "0.8",
            "--seeds",
            "2",
        ];
        answer(&[&question[..], &ONE].concat())
    };
    let (asks, root, none) = (
        "`quotient record` notes them",
        "all were in the root cgroup, which has no weight",
        "no cgroup had a weight when `quotient record` looked",
    );
    let unknown = asked("");
    assert_eq!(doubt(&unknown, asks), Some(false), "{unknown}");
    let by_us = "# recorded by process 99\n";
    let in_root = asked(by_us);
    assert_eq!(doubt(&in_root, asks), None, "{in_root}");
    assert_eq!(doubt(&in_root, root), Some(false), "{in_root}");
    let attached = "x-1 [000] ..... 0.900000: cgroup_attach_task: dst_root=1 dst_id=7 dst_level=1 dst_path=/web pid=7 comm=svc\n";
    let without = asked(&format!("{by_us}{attached}"));
    assert_eq!(doubt(&without, asks), None, "{without}");
    assert_eq!(doubt(&without, none), Some(false), "{without}");
}

/// Hazard: a tick of ten microseconds is simulated for most of a minute.
#[test]
fn ticks_that_no_kernel_has_are_refused_with_those_that_there_are() {
    for hz in ["0", "23", "1201", "100000"] {
        let output = quotient(&["advise", "there-is-none.txt", "--hz", hz]);
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output);
        assert!(
            said.contains("--hz") && said.contains(hz) && said.contains("24..=1200"),
            "{said}"
        );
    }
}

/// Hazard: a share that no quota can express is tried as a hundred times as much, by as many rows as there were shares, and nothing says so.
#[test]
fn a_share_below_the_least_quota_is_said_to_be_tried_as_more() {
    let folder = Folder::new("advise-least");
    let trace = service(&folder, "least", None);
    let asked = |cpus: &str, periods: &str| {
        let (answer, _) = both(&[
            &trace, "--group", "web", "--seeds", "2", "--cpus", cpus, "--period", periods,
            "--burst", "0",
        ]);
        let rows = answer["predictions"].as_array().expect("rows");
        let quotas: Vec<u64> = rows
            .iter()
            .map(|row| row["quota_ns"].as_u64().expect("a figure"))
            .collect();
        (quotas, answer["notes"].to_string())
    };
    let words = "no quota is less than 1 ms: 0.01 CPUs in periods of 1 ms are tried as 1.00, 0.50 CPUs in periods of 1 ms are tried as 1.00; longer";
    let (quotas, notes) = asked("0.01,0.5,1,1.5", "1ms,100ms");
    let millis = [1.0, 1.5, 1.0, 50.0, 100.0, 150.0];
    assert_eq!(quotas, millis.map(|millis| (millis * 1e6) as u64));
    assert!(notes.contains(words), "{notes}");
    let (quotas, notes) = asked("0.5,0.5", "100ms");
    assert_eq!(quotas, [50_000_000]);
    assert!(!notes.contains("no quota is less"), "{notes}");
}

/// Hazard: one or two draws do not show how others would differ, and a limit is recommended by these as by ten.
#[test]
fn few_seeds_are_a_look_and_said_to_be_one() {
    let folder = Folder::new("advise-few");
    let trace = service(&folder, "few", None);
    for (seeds, words) in [
        ("1", Some("tried once: ")),
        ("2", Some("tried 2 times: ")),
        ("3", None),
    ] {
        let question = [&trace, "--group", "web", "--seeds", seeds, "--cpus", "1.9"];
        let (answer, _) = both(&[&question[..], &ONE].concat());
        let said = doubt(&answer, "no interval is one of 90 %");
        assert_eq!(said, words.map(|_| false), "{answer}");
        assert!(answer["doubts"].to_string().contains(words.unwrap_or("")));
        let notes = answer["notes"].to_string();
        assert_eq!(
            notes.contains("intervals are of 90 %"),
            words.is_none(),
            "{notes}"
        );
        assert_eq!(answer["verdict"], "limit");
    }
}

/// Hazard: a scenario in which no request comes to an end adds nothing to a percentile that is none, and is told to need no limit.
#[test]
fn a_scenario_in_which_nothing_is_done_is_no_ground_for_advice() {
    let folder = Folder::new("advise-undone");
    let file = folder.file("undone.toml");
    let asked = |work: &str| {
        let text = format!(
            "name = \"undone\"\nduration = \"3s\"\n[machine]\nshape = \"2\"\n[[group]]\npath = \"web\"\n[[workload]]\nname = \"w\"\nkind = \"closed-loop\"\ngroup = \"web\"\nwork = \"{work}\"\nthink = \"10ms\"\nthreads = 2\n"
        );
        std::fs::write(&file, text).expect("our own folder");
        answer(&[&file, "--seeds", "3", "--cpus", "1.9"])
    };
    let words = "nothing that is measured was done";
    let undone = asked("10s");
    assert_eq!(doubt(&undone, words), Some(true), "{undone}");
    assert_eq!(undone["verdict"], "doubted");
    let done = asked("10ms");
    assert_eq!(doubt(&done, words), None, "{done}");
}
