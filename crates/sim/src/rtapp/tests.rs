//! Files that run, and files that are refused.

use super::*;
use crate::{Machine, Simulation};
use quotient_trace::Discard;

const EXAMPLE: &str = r#"{
    /* two threads that alternate, and a hog in a box */
    "global": { "duration": 1, "calibration": "CPU0" },
    "tasks": {
        "ping": { "loop": 100, "run": 1000, "resume": "pong", "suspend": "ping", "run": 500 },
        "pong": { "loop": 100, "suspend": "pong", "run": 2000, "resume": "ping" },
        "hog": {
            "taskgroup": { "path": "/box", "weight": 50, "quota": 20000, "period": 100000 },
            "phases": { "a": { "loop": 2, "run": 10 }, "b": { "timer": { "ref": "t", "period": 5000 } } }
        }
    }
}"#;

#[test]
fn an_example_runs() {
    let mut plan = Plan::new(Machine::flat(2));
    add(&mut plan, "app", None, EXAMPLE).unwrap();
    let mut simulation = Simulation::new(&plan, Discard).unwrap();
    simulation.run().unwrap();
    let outcome = simulation.outcome();
    assert_eq!(outcome.workload("app.ping").unwrap().usage_ns, 150_000_000);
    assert_eq!(outcome.workload("app.pong").unwrap().usage_ns, 200_000_000);
    assert_eq!(outcome.meter("app.hog").unwrap().done, 200);
    assert_eq!(outcome.group("box").unwrap().usage_ns, 200 * 20_000);
}

#[test]
fn tasks_are_kept_to_their_cpus_and_meet_at_barriers() {
    let text = r#"{ "tasks": {
        "fast": { "cpus": [1], "loop": 10, "run": 1000, "barrier": "b" },
        "slow": { "cpus": [0], "instance": 1, "loop": 10, "phases": { "p": { "run": 4000, "barrier": "b" } } }
    } }"#;
    let mut plan = Plan::new(Machine::flat(2));
    add(&mut plan, "app", None, text).unwrap();
    let mut simulation = Simulation::new(&plan, Discard).unwrap();
    simulation.run().unwrap();
    let outcome = simulation.outcome();
    // Each of ten rounds lasts as long as its slower half.
    let finished = outcome.workload("app.fast").unwrap().finished_ns;
    assert_eq!(finished, Some(40_000_000));
    assert_eq!(outcome.mechanisms.migrations, 0);
}

#[test]
fn faults_have_line_and_column() {
    for (text, place) in [
        (
            "{\"tasks\":{\"a\":{\"policy\":\"SCHED_FIFO\",\"priority\":10,\"run\":1}}}",
            "1:25: policy SCHED_FIFO is not modelled",
        ),
        (
            "{\"global\":{\"default_policy\":\"SCHED_RR\"},\"tasks\":{}}",
            "policy SCHED_RR is not modelled",
        ),
        (
            "{\"tasks\":{\"a\":{\"dl-deadline\":5}}}",
            "\"dl-deadline\" of a task is not modelled: there is no deadline class",
        ),
        (
            "{\"tasks\":{\"a\":{\"phases\":{\"p\":{\"cpus\":[0],\"run\":1}}}}}",
            "\"cpus\" of a phase is not modelled",
        ),
        (
            "{\"tasks\":{\"a\":{\"cpus\":[1],\"run\":1}}}",
            "1:24: cpu = 1 is outside 0..=0",
        ),
        (
            "{\n \"tasks\": { \"a\": { \"mem\": 5 } }\n}",
            "2:27: \"mem\" of a task is not modelled: it measures memory",
        ),
        ("{\n\n}", "1:1: there are no \"tasks\""),
        (
            "{\"tasks\":{\"a\":{\"run\":-1}}}",
            "1:22: run = -1 is outside",
        ),
        (
            "{\"tasks\":{\"a\":{\"loop\":0.5,\"timer\":{}}}}",
            "1:35: a timer without",
        ),
        (
            "{\"tasks\":{\"a\":{\"taskgroup\":{\"path\":\"x\",\"quota\":5}}}}",
            "quota",
        ),
    ] {
        let error = add(&mut Plan::new(Machine::flat(1)), "x", None, text).unwrap_err();
        assert!(error.to_string().contains(place), "{error}");
    }
}

/// One file that says everything that is modelled.
const ALL: &str = r#"{
    "resources": 3,
    "global": { "duration": 1, "default_policy": "SCHED_OTHER", "calibration": "CPU0", "lock_pages": true, "logdir": "./",
        "log_basename": "x", "logbasename": "x", "log_size": "file", "ftrace": "none", "gnuplot": false, "io_device": "/dev/null",
        "mem_buffer_size": 4194304, "pi_enabled": false, "cumulative_slack": false },
    "tasks": {
        "one": { "instance": 2, "delay": 10, "loop": -1, "policy": "SCHED_OTHER", "priority": -5, "cpus": [0], "taskgroup": "/tg",
            "dl-runtime": 3000, "run": 100, "runtime1": 50, "sleep": 100, "yield": "", "lock": "m", "unlock": "m",
            "timer": { "ref": "unique", "period": 4000, "mode": "relative" } },
        "two": { "phases": { "p": { "loop": 3, "lock": "m", "wait": { "ref": "c", "mutex": "m" }, "unlock": "m", "run": 10 } } },
        "three": { "signal": "c", "broad": "c", "run": 20, "sync": { "ref": "c", "mutex": "m" }, "resume": "four" },
        "four": { "suspend": "four", "signa": "c", "run": 1, "barrier": "b" },
        "five": { "taskgroup": { "path": "/x", "weight": 50, "quota": 20000, "period": 100000, "burst": 10000 }, "run": 5, "barrier": "b" }
    }
}"#;

#[test]
fn every_key_is_modelled_or_refused_by_its_name() {
    let mut plan = Plan::new(Machine::flat(2));
    add(&mut plan, "app", None, ALL).unwrap();
    assert_eq!(plan.duration, Nanos::from_secs(1));
    let one = &plan.workloads[0].tasks[0];
    assert_eq!(one.slice, Some(Slice::new(Nanos::from_millis(3)).unwrap()));
    for key in [
        "mem",
        "iorun",
        "fork",
        "dl-period",
        "dl-deadline",
        "period",
        "deadline",
        "util_min",
        "util_max",
        "nodes_membind",
        "colour",
    ] {
        for (place, text) in [
            (
                "a task",
                format!("{{\"tasks\":{{\"a\":{{\n\"{key}\":1}}}}}}"),
            ),
            (
                "a phase",
                format!("{{\"tasks\":{{\"a\":{{\"phases\":{{\"p\":{{\n\"{key}\":1}}}}}}}}}}"),
            ),
        ] {
            let error = add(&mut Plan::new(Machine::flat(1)), "x", None, &text).unwrap_err();
            assert_eq!(error.line, 2, "{error}");
            let expected = format!("{key:?} of {place} is not modelled");
            assert!(error.what.contains(&expected), "{error}");
        }
    }
    for key in [
        "instance",
        "delay",
        "cpus",
        "policy",
        "priority",
        "taskgroup",
        "dl-runtime",
    ] {
        let text = format!("{{\"tasks\":{{\"a\":{{\"phases\":{{\"p\":{{\"{key}\":1}}}}}}}}}}");
        let error = add(&mut Plan::new(Machine::flat(1)), "x", None, &text).unwrap_err();
        assert!(
            error
                .what
                .contains("of a phase is not modelled, only of a task"),
            "{error}"
        );
    }
    for (text, expected) in [
        (
            "{\"tasks\":{},\"taks\":1}",
            "\"taks\" of the file is not modelled",
        ),
        (
            "{\"tasks\":{},\"global\":{\"durations\":1}}",
            "\"durations\" of global is not modelled",
        ),
        (
            "{\"tasks\":{},\"global\":{\"pi_enabled\":true}}",
            "\"pi_enabled\" is not modelled, only false",
        ),
        (
            "{\"tasks\":{\"a\":{\"timer\":{\"ref\":\"t\",\"period\":5,\"mode\":\"absolute\"}}}}",
            "with mode \"relative\" only",
        ),
        (
            "{\"tasks\":{\"a\":{\"wait\":{\"ref\":\"t\",\"mutexes\":\"m\"}}}}",
            "\"mutexes\" of wait",
        ),
        (
            "{\"tasks\":{\"a\":{\"taskgroup\":{\"path\":\"x\",\"quotas\":5}}}}",
            "\"quotas\" of a taskgroup",
        ),
    ] {
        let error = add(&mut Plan::new(Machine::flat(1)), "x", None, text).unwrap_err();
        assert!(error.what.contains(expected), "{error}");
    }
}

#[test]
fn slack_is_what_is_left_of_a_period() {
    let text = r#"{ "tasks": { "a": { "loop": 50, "run": 3000, "timer": { "ref": "t", "period": 10000 } } } }"#;
    let mut plan = Plan::new(Machine::flat(1));
    add(&mut plan, "app", None, text).unwrap();
    let mut simulation = Simulation::new(&plan, Discard).unwrap();
    simulation.run().unwrap();
    let outcome = simulation.outcome();
    let slack = outcome.meter("app.a.slack").unwrap();
    assert_eq!(slack.done, 50);
    // Figures are within 1 %.
    assert!(
        slack.times.p50_ns.abs_diff(7_000_000) <= 70_000,
        "{slack:?}"
    );
}
