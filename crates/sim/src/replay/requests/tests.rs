use super::super::Selection;
use super::super::lines::{self, switch, waking};
use super::*;
use crate::{Machine, Simulation};
use quotient_trace::Discard;
use std::fmt::Write;

/// ftrace lines of requests every 10 ms: a device wakes `front` (1), which computes 1 ms, then wakes `worker` (2) on the other
/// CPU, which computes 3 ms, and is done itself after another millisecond.
fn front_and_worker(requests: u64, marks: bool) -> String {
    let mut text = String::from("# tracer: nop\n");
    let idle = "swapper";
    let mut line = |who: &str, cpu: u32, flags: &str, micros: u64, what: String| {
        text += &lines::line(who, cpu, flags, micros, what);
    };
    for number in 0..requests {
        let at = 1_000_000 + number * 10_000;
        line("<idle>-0", 0, "d.h2.", at, waking("front", 1, 0));
        line(
            "<idle>-0",
            0,
            "d..2.",
            at + 1,
            switch((idle, 0, "R"), ("front", 1)),
        );
        if marks {
            line(
                "front-1",
                0,
                ".....",
                at + 1,
                format!("tracing_mark_write: S|1|get|{number}"),
            );
        }
        line("front-1", 0, "d..2.", at + 1_001, waking("worker", 2, 1));
        line(
            "<idle>-0",
            1,
            "d..2.",
            at + 1_002,
            switch((idle, 0, "R"), ("worker", 2)),
        );
        line(
            "front-1",
            0,
            "d..2.",
            at + 2_001,
            switch(("front", 1, "S"), (idle, 0)),
        );
        if marks {
            line(
                "worker-2",
                1,
                ".....",
                at + 4_000,
                format!("tracing_mark_write: F|1|get|{number}"),
            );
        }
        line(
            "worker-2",
            1,
            "d..2.",
            at + 4_002,
            switch(("worker", 2, "S"), (idle, 0)),
        );
    }
    text
}

fn read(text: &str) -> Recording {
    Recording::read(&mut text.as_bytes()).unwrap()
}

fn played(requests: &Requests, cpus: u32, how: Loop) -> crate::Outcome {
    let mut plan = Plan::new(Machine::flat(cpus));
    plan.duration = Nanos::from_secs(5);
    let group = plan.group("app");
    requests.add_to(&mut plan, "requests", group, how, Nanos::ZERO);
    let mut simulation = Simulation::new(&plan, Discard).unwrap();
    simulation.run().unwrap();
    simulation.outcome()
}

#[test]
fn a_request_lasts_from_its_arrival_to_the_end_of_its_last_worker() {
    let recording = read(&front_and_worker(200, false));
    let requests = Requests::of(&recording, None, &Rule::Chains(Vec::new()));
    assert_eq!((requests.requests, requests.parts), (200, 400));
    assert_eq!(requests.begin_with, [("front".to_owned(), 200)]);
    // The trace itself says as much.
    let recorded = requests.recorded_in(Loop::Open).unwrap();
    assert_eq!((recorded.count, recorded.p50_ns / 100_000), (200, 40));
    for how in [Loop::Open, Loop::Closed] {
        let outcome = played(&requests, 2, how);
        let times = outcome.meter("requests").unwrap().times;
        // Five seconds of a recording of two: who waits for answers goes on asking.
        let counts = if how == Loop::Open {
            200..=200
        } else {
            499..=501
        };
        assert!(counts.contains(&times.count), "{how:?} {times:?}");
        assert_eq!(times.p50_ns / 100_000, 40, "{how:?}");
        // On one CPU, who was woken runs after or before the rest of its waker: 5 ms in all.
        let times = played(&requests, 1, how).meter("requests").unwrap().times;
        assert!(counts.contains(&times.count), "{how:?} {times:?}");
        assert_eq!(times.p99_ns / 100_000, 50, "{how:?}");
    }
}

#[test]
fn marks_are_requests_as_the_program_sees_them() {
    let recording = read(&front_and_worker(150, true));
    let rule = |name: &str| Rule::Marks(vec![name.to_owned()]);
    let requests = Requests::of(&recording, None, &rule("get"));
    assert_eq!(requests.requests, 150);
    let times = played(&requests, 2, Loop::Open)
        .meter("requests")
        .unwrap()
        .times;
    assert_eq!((times.count, times.p50_ns / 100_000), (150, 40));
    let recorded = requests.recorded_in(Loop::Open).expect("times");
    assert_eq!(recorded.p50_ns / 100_000, 40);
    assert_eq!(Requests::of(&recording, None, &rule("put")).requests, 0);
}

#[test]
fn requests_that_found_their_server_busy_are_told_apart_by_marks() {
    // Every 100 ms a device wakes `svc`, which serves two requests of 2 ms, the second of which came while it did, and sleeps.
    let mut text = String::from("# tracer: nop\n");
    for number in 0..120_u64 {
        let at = 1_000_000 + number * 100_000;
        let mut line = |who: &str, micros: u64, what: &str| {
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            let _ = writeln!(text, "{who} [000] d..2. {seconds}.{rest:06}: {what}");
        };
        line(
            "<idle>-0",
            at,
            "sched_waking: comm=svc pid=7 prio=120 target_cpu=000",
        );
        line(
            "<idle>-0",
            at + 10,
            "sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=svc next_pid=7 next_prio=120",
        );
        for (begin, mark) in [
            (20, "B|7|get"),
            (2_020, "E|7"),
            (2_030, "B|7|get"),
            (4_030, "E|7"),
        ] {
            line("svc-7", at + begin, &format!("tracing_mark_write: {mark}"));
        }
        line(
            "svc-7",
            at + 4_040,
            "sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120",
        );
    }
    let recording = read(&text);
    let requests = Requests::of(&recording, None, &Rule::Marks(vec!["get".to_owned()]));
    assert_eq!(requests.requests, 240);
    let times = |plan: &dyn Fn(&mut Plan)| {
        let mut run = Plan::new(Machine::flat(1));
        run.duration = Nanos::from_secs(13);
        let group = run.group("app");
        requests.add_to(&mut run, "requests", group, Loop::Open, Nanos::ZERO);
        plan(&mut run);
        let mut simulation = Simulation::new(&run, Discard).unwrap();
        simulation.run().unwrap();
        simulation.outcome().meter("requests").unwrap().times
    };
    // The first from its wake-up: 2.01 ms; the second came at some time until its begin, so 2.00 to 4.02: a 99th percentile that a fixed
    // time would not have. As bursts all would be of 4.03.
    let free = times(&|_| {});
    assert_eq!((free.count, free.p50_ns / 100_000), (240, 20), "{free:?}");
    assert!((390..=403).contains(&(free.p99_ns / 10_000)), "{free:?}");
    // The trace itself says the same; of clients that wait, the second one comes when the first is done.
    let recorded = |how| requests.recorded_in(how).expect("times");
    let open = recorded(Loop::Open);
    assert!((390..=403).contains(&(open.p99_ns / 10_000)), "{open:?}");
    assert!(open.mean_ns.abs_diff(free.mean_ns) < 60_000, "{open:?}");
    assert_eq!(recorded(Loop::Closed).p99_ns / 100_000, 20);
    // With 3 of the 4 ms that each period needs, the second ones wait for the next period, and from when they came.
    let late = times(&|plan| {
        let limit = quotient_core::Limit::new(Nanos::from_millis(3), Nanos::from_millis(100));
        plan.groups[0].limit = Some(limit);
    });
    assert!(late.max_ns > 50_000_000, "{late:?}");
}

#[test]
fn marks_behind_a_switch_that_the_trace_leaves_out_count() {
    let marked = |text: &str| {
        let rule = Rule::Marks(vec!["get".to_owned()]);
        Requests::of(&read(text), None, &rule)
    };
    let text = front_and_worker(150, true);
    // A kernel that leaves out switches from idle, but for the first ones: then these are known to be left out.
    let mut seen = 0;
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| {
            let is_from_idle = line.starts_with("<idle>") && line.contains("sched_switch");
            seen += usize::from(is_from_idle);
            !is_from_idle || seen <= 4
        })
        .collect();
    let (whole, without) = (marked(&text), marked(&kept.join("\n")));
    assert_eq!(whole.requests, 150);
    assert!(without.requests >= 148, "{}", without.requests);
    let p50 = |requests: &Requests| {
        played(requests, 2, Loop::Open)
            .meter("requests")
            .unwrap()
            .times
            .p50_ns
            / 100_000
    };
    assert_eq!(p50(&without), p50(&whole));
}

#[test]
fn requests_that_came_during_a_throttle_come_when_they_came() {
    // Every 100 ms `svc` is woken, serves 2 ms, is throttled for 60 ms, and serves two more that came some time before it got to them.
    let mut text = String::from("# tracer: nop\n");
    let number_of = |name: &str| if name == "svc" { 7 } else { 0 };
    let switch = |from: &str, state: &str, to: &str| {
        switch((from, number_of(from), state), (to, number_of(to)))
    };
    for number in 0..120_u64 {
        let at = 1_000_000 + number * 100_000;
        let mut line = |who: &str, micros: u64, what: &str| {
            text += &lines::line(who, 0, "d..2.", at + micros, what);
        };
        let idle = "swapper/0";
        line(
            "<idle>-0",
            0,
            "sched_waking: comm=svc pid=7 prio=120 target_cpu=000",
        );
        line("<idle>-0", 1, &switch(idle, "R", "svc"));
        line("svc-7", 2, "tracing_mark_write: B|7|get");
        line("svc-7", 2_000, "tracing_mark_write: E|7");
        line("svc-7", 2_001, &switch("svc", "R", idle));
        line("<idle>-0", 62_001, &switch(idle, "R", "svc"));
        for (begin, mark) in [
            (62_002, "B|7|get"),
            (64_002, "E|7"),
            (64_002, "B|7|get"),
            (66_002, "E|7"),
        ] {
            line("svc-7", begin, &format!("tracing_mark_write: {mark}"));
        }
        line("svc-7", 66_004, &switch("svc", "S", idle));
    }
    let requests = Requests::of(&read(&text), None, &Rule::Marks(vec!["get".to_owned()]));
    assert_eq!(requests.requests, 360);
    let mut plan = Plan::new(Machine::flat(1));
    plan.duration = Nanos::from_secs(13);
    let group = plan.group("app");
    requests.add_to(&mut plan, "requests", group, Loop::Open, Nanos::ZERO);
    let mut simulation = Simulation::new(&plan, quotient_trace::Discard).unwrap();
    simulation.run().unwrap();
    let outcome = simulation.outcome();
    let times = outcome.meter("requests").unwrap().times;
    // Without the limit hardly any finds another one there. As close together as they were served, two of three would wait: 3 ms on average.
    assert_eq!(
        (times.count, times.p50_ns / 100_000),
        (360, 20),
        "{times:?}"
    );
    assert!(times.mean_ns < 2_300_000, "{times:?}");
    // In the trace one of three waited for half of the throttle, and another one for half of that.
    let recorded = requests.recorded_in(Loop::Open).expect("times");
    assert!(
        recorded.mean_ns > 10_000_000 && recorded.max_ns > 50_000_000,
        "{recorded:?}"
    );
    assert!(outcome.group("app").unwrap().usage_ns.abs_diff(720_000_000) < 2_000_000);
}

#[test]
fn who_begins_requests_can_be_said() {
    let recording = read(&front_and_worker(200, false));
    let from = |name: &str| Rule::Chains(vec![name.to_owned()]);
    let requests = Requests::of(&recording, None, &from("worker"));
    assert_eq!((requests.requests, requests.parts), (200, 200));
    let times = played(&requests, 2, Loop::Open)
        .meter("requests")
        .unwrap()
        .times;
    assert_eq!(times.p50_ns / 100_000, 30);
    assert!(!Requests::of(&recording, None, &from("nobody")).is_enough());
}

#[test]
fn only_a_part_of_a_chain_is_limited_but_all_of_it_is_played() {
    let whole = read(&front_and_worker(200, false));
    let selection = Selection {
        names: vec!["worker".into()],
        ..Selection::default()
    };
    let (worker, front) = whole.split(&selection);
    let requests = Requests::of(&worker, Some(&front), &Rule::Chains(Vec::new()));
    assert_eq!((requests.requests, requests.others), (200, 1));
    assert_eq!(requests.rest.tasks(), 0);
    let outcome = played(&requests, 2, Loop::Open);
    assert_eq!(
        outcome.meter("requests").unwrap().times.p50_ns / 100_000,
        30
    );
    assert!(outcome.group("app").unwrap().usage_ns.abs_diff(600_000_000) < 2_000_000);
}

#[test]
fn a_client_in_the_trace_sends_nothing_before_its_answer() {
    // 3 ms of the worker with a fifth of a CPU: 15 ms; the worker wakes the front again, which is then its client.
    let mut text = front_and_worker(200, false);
    let lines: Vec<&str> = text.lines().collect();
    let kept: Vec<String> = lines
        .iter()
        .map(|line| {
            if line.contains("d.h2.") {
                // Not by a device but by the worker, at the end of its burst.
                return String::new();
            }
            (*line).to_owned()
        })
        .collect();
    text = String::new();
    let mut number = 0;
    for line in kept.iter().filter(|line| !line.is_empty()) {
        if line.starts_with("worker-2") {
            number += 1;
            let at = 1_000_000 + (number - 1) * 10_000 + 4_001;
            let _ = writeln!(
                text,
                "worker-2 [001] d..2. {}.{:06}: sched_waking: comm=front pid=1 prio=120 target_cpu=000",
                at / 1_000_000,
                at % 1_000_000
            );
        }
        let _ = writeln!(text, "{line}");
    }
    let requests = Requests::of(&read(&text), None, &Rule::Chains(Vec::new()));
    assert!(
        requests.requests >= 199 && requests.woken > 390,
        "{requests:?}"
    );
    let times = played(&requests, 2, Loop::Open)
        .meter("requests")
        .unwrap()
        .times;
    // As it was: 4 ms from the front's wake-up to the worker's end, one after the other.
    assert_eq!(times.p99_ns / 100_000, 40);
}

/// A client of its own (3) that begins by a timer, asks `svc` (7) and gets an answer after 1 to 31 ms. Then it thinks for 1 to 61 ms; or it
/// sleeps until 70 ms have gone by since it began.
fn client_and_service(thinks: bool) -> String {
    let mut text = String::from("# tracer: nop\n");
    let mut at = 1_000_000;
    for number in 0..120_u64 {
        let (response, think) = (
            1_000 + number * 7_919 % 30_000,
            1_000 + number * 49_979_687 % 60_000,
        );
        let end = at + 110 + response;
        for (micros, who, what) in [
            (at, "<idle>-0 [000] d.h2.", "W client 3"),
            (at + 10, "<idle>-0 [000] d..2.", "S swapper 0 R client 3"),
            (at + 100, "client-3 [000] d..2.", "W svc 7"),
            (at + 110, "<idle>-0 [001] d..2.", "S swapper 0 R svc 7"),
            (at + 120, "client-3 [000] d..2.", "S client 3 S swapper 0"),
            (end, "svc-7 [001] d..2.", "W client 3"),
            (end + 5, "<idle>-0 [000] d..2.", "S swapper 0 R client 3"),
            (end + 10, "svc-7 [001] d..2.", "S svc 7 S swapper 0"),
            (end + 50, "client-3 [000] d..2.", "S client 3 S swapper 0"),
        ] {
            let _ = write!(
                text,
                "{who} {}.{:06}: ",
                micros / 1_000_000,
                micros % 1_000_000
            );
            let words: Vec<&str> = what.split(' ').collect();
            let _ = match words[..] {
                ["W", name, id] => writeln!(
                    text,
                    "sched_waking: comm={name} pid={id} prio=120 target_cpu=000"
                ),
                [_, prev, from, state, next, to] => writeln!(
                    text,
                    "sched_switch: prev_comm={prev} prev_pid={from} prev_prio=120 prev_state={state} ==> next_comm={next} next_pid={to} next_prio=120"
                ),
                _ => Ok(()),
            };
        }
        at = if thinks {
            end + 50 + think
        } else {
            at + 70_000
        };
    }
    text
}

#[test]
fn clients_beside_show_whether_they_wait_for_answers() {
    for (thinks, verdict) in [(true, Loop::Closed), (false, Loop::Open)] {
        let selection = Selection {
            names: vec!["svc".into()],
            ..Selection::default()
        };
        let (svc, client) = read(&client_and_service(thinks)).split(&selection);
        let requests = Requests::of(&svc, Some(&client), &Rule::Chains(Vec::new()));
        // Every request is woken by something in the trace; that alone would not say how its clients go on.
        assert_eq!((requests.woken, requests.answered), (240, 119), "{thinks}");
        let evidence = requests.evidence;
        assert!(evidence.of_clients && evidence.pairs == 119, "{evidence:?}");
        assert_eq!(evidence.verdict(), Some(verdict), "{evidence:?}");
    }
}
