//! Traces of kernels that leave out what some tasks do in their own context.

use quotient_trace::check::{Check, Findings, Options, Rule};
use quotient_trace::{Item, Reader, Repair};

/// One CPU, a line a switch: moment in us, who leaves in which state, who comes. `a>b` is a wake-up of b by a.
fn trace(steps: &[(u64, &str)]) -> String {
    let number = |name: &str| match name {
        "idle" => 0,
        "silent" => 7,
        name => 10 + u32::from(name.as_bytes()[0]),
    };
    let mut text = String::from("# tracer: nop\n#\n");
    for (at, step) in steps {
        let (seconds, micros) = (at / 1_000_000, at % 1_000_000);
        let words: Vec<&str> = step.split(' ').collect();
        if let [waker, "wakes", woken] = words[..] {
            text += &format!(
                " {waker}-{} [000] d.s3. {seconds}.{micros:06}: sched_waking: comm={woken} pid={} prio=120 target_cpu=000\n",
                number(waker),
                number(woken)
            );
        } else if *step == "limit" {
            // A timer of somebody else's, and that of a limit's periods.
            for function in ["tick_nohz_handler", "sched_cfs_period_timer"] {
                text += &format!(
                    " idle-0 [000] d.h1. {seconds}.{micros:06}: hrtimer_expire_entry: hrtimer=0000000008049f60 function={function} now=50488564535984\n"
                );
            }
        } else if let [prev, state, next] = words[..] {
            text += &format!(
                " {prev}-{0} [000] d..2. {seconds}.{micros:06}: sched_switch: prev_comm={prev} prev_pid={0} prev_prio=120 prev_state={state} ==> next_comm={next} next_pid={1} next_prio=120\n",
                number(prev),
                number(next)
            );
        }
    }
    text
}

fn judged(text: &str) -> (Findings, Repair) {
    let mut reader = Reader::open(text.as_bytes()).expect("a trace");
    let mut check = Check::new(Options::default());
    let mut repair = Repair::default();
    while let Some(item) = reader.next_item().expect("a trace") {
        match item {
            Item::Definition(definition) => check.define(&definition),
            Item::Event(event) => {
                if let Some(missing) = repair.missing(&event) {
                    check.fill_in(&missing, reader.line());
                }
                check.event(&event, reader.line());
                if let Some(found) = repair.contradiction() {
                    check.contradict(&found, reader.line());
                }
            }
        }
    }
    (check.finish(), repair)
}

/// `silent` runs three times, and no line is its own; then `b` runs, whom only `silent` can have woken.
const SILENT: [(u64, &str); 9] = [
    (1_000, "a R b"),
    (2_000, "b S a"),
    (3_000, "a R silent"),
    (4_000, "a R silent"),
    (5_000, "silent wakes a"),
    (6_000, "a S idle"),
    (7_000, "idle R silent"),
    (8_000, "idle wakes b"),
    (9_000, "b S a"),
];

#[test]
fn who_is_never_seen_to_leave_has_left_when_others_act() {
    let (findings, repair) = judged(&trace(&SILENT));
    assert!(findings.is_clean(), "{:?}", findings.breaches);
    assert_eq!((repair.count(), repair.silent_count()), (3, 1));
    assert_eq!(findings.events, SILENT.len() as u64);
}

#[test]
fn who_leaves_once_was_to_be_seen_before() {
    let mut steps = SILENT.to_vec();
    steps.push((10_000, "a R silent"));
    steps.push((11_000, "silent S a"));
    let (findings, repair) = judged(&trace(&steps));
    assert_eq!(
        findings.counts.into_keys().collect::<Vec<_>>(),
        [Rule::Chain]
    );
    let line = 2 + steps.len() as u64;
    assert_eq!(findings.breaches[0].line, line);
    assert!(findings.breaches[0].message.contains("3 switches"));
    assert_eq!((repair.count(), repair.silent_count()), (0, 0));
    // From then on nothing of it is filled in.
    steps.extend([(12_000, "a R silent"), (13_000, "a S b")]);
    let (findings, repair) = judged(&trace(&steps));
    assert_eq!((findings.counts[&Rule::Chain], repair.count()), (2, 0));
}

/// Woken on an idle CPU of which no switch is seen, and gone again when others act there.
#[test]
fn who_is_woken_and_never_seen_may_have_run_where_switches_are_missing() {
    let waits = (7_000, "idle wakes silent");
    let mut steps = vec![
        (1_000, "a S idle"),
        (2_000, "idle wakes a"),
        (5_000, "a S idle"),
        waits,
    ];
    steps.extend([(9_000, "idle wakes b"), (5_000_000, "b S idle")]);
    let (findings, repair) = judged(&trace(&steps));
    assert!(findings.is_clean(), "{:?}", findings.breaches);
    assert_eq!(repair.count(), 2);
    let complete = [(1_000, "a S idle"), waits, (5_000_000, "idle R b")];
    let (findings, _) = judged(&trace(&complete));
    assert!(
        findings.counts.contains_key(&Rule::Starvation),
        "{:?}",
        findings.counts
    );
}

#[test]
fn where_nobody_is_silent_a_task_needs_a_wake_up() {
    let steps = [(1_000, "a R b"), (2_000, "b S a"), (3_000, "a R b")];
    let (findings, repair) = judged(&trace(&steps));
    assert_eq!(
        findings.counts.into_keys().collect::<Vec<_>>(),
        [Rule::Woken]
    );
    assert_eq!(repair.count(), 0);
}

/// When the switches that are missing should have been, in us.
fn filled_in(steps: &[(u64, &str)]) -> Vec<u64> {
    let text = trace(steps);
    let mut reader = Reader::open(text.as_bytes()).expect("a trace");
    let mut repair = Repair::default();
    let mut found = Vec::new();
    while let Some(item) = reader.next_item().expect("a trace") {
        if let Item::Event(event) = item {
            while let Some(at) = reader.period_before() {
                repair.period(at);
            }
            found.extend(
                repair
                    .missing(&event)
                    .map(|missing| missing.event.time.0 / 1_000),
            );
        }
    }
    found
}

#[test]
fn who_was_throttled_ran_from_when_the_limit_began_anew() {
    let mut steps = vec![
        // Throttled until 3 ms, then for 2 ms; woken at 6 ms by a timer, for 1 ms; and throttled again.
        (1_000, "a R idle"),
        (3_000, "limit"),
        (5_000, "a S idle"),
        (6_000, "idle wakes a"),
        (7_000, "a R idle"),
        (13_000, "limit"),
        (15_000, "a S idle"),
        // Another one of the group has used it up; who is woken meanwhile waits, too. But not who has no limit.
        (16_000, "idle wakes b"),
        (17_000, "b R idle"),
        (18_000, "idle wakes c"),
        (19_000, "c S idle"),
        (20_000, "idle wakes a"),
        (23_000, "limit"),
        (25_000, "a S idle"),
    ];
    assert_eq!(
        filled_in(&steps),
        [3_000, 6_000, 13_000, 16_000, 18_000, 23_000]
    );
    // Where the trace has no such timer nobody knows.
    steps.retain(|(_, step)| *step != "limit");
    assert_eq!(
        filled_in(&steps),
        [1_000, 6_000, 7_000, 16_000, 18_000, 20_000]
    );
}

/// Hazard: who leaves a CPU that was not seen yet is taken to have run there since the trace began, though he was woken in it: 22 ms for half of one.
#[test]
fn who_was_woken_since_has_not_run_on_an_unseen_cpu_from_the_begin() {
    let first = |before: &str| {
        let text = format!(
            "# tracer: nop\n\
             a-11 [000] d..2. 1.000000: sched_switch: prev_comm=a prev_pid=11 prev_prio=120 prev_state=S ==> next_comm=b next_pid=12 next_prio=120\n\
             {before}\
             svc-13 [001] d..2. 1.022000: sched_switch: prev_comm=svc prev_pid=13 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n"
        );
        let (mut reader, mut repair) = (
            Reader::open(text.as_bytes()).expect("a trace"),
            Repair::default(),
        );
        let mut found = Vec::new();
        while let Some(item) = reader.next_item().expect("a trace") {
            if let Item::Event(event) = item
                && let Some(missing) = repair.missing(&event)
            {
                assert_eq!((missing.event.cpu.0, missing.silent), (1, None));
                found.push((missing.event.time.0 - 1_000_000_000) / 1_000);
            }
        }
        found
    };
    let woken = "b-12 [000] d..2. 1.021500: sched_waking: comm=svc pid=13 prio=120 target_cpu=000\n\
                 b-12 [000] d..2. 1.021502: sched_migrate_task: comm=svc pid=13 prio=120 orig_cpu=0 dest_cpu=1\n";
    assert_eq!(first(woken), [21_500]);
    // He may have run all the time, have been woken in what was lost, or come while tracing began on one CPU after the other.
    assert_eq!(first(&woken.replace("1.0215", "1.0005")), [0; 0]);
    assert_eq!(first(""), [0; 0]);
    let lost = format!("{woken}CPU:1 [LOST 5 EVENTS]\n");
    assert_eq!(first(&lost), [0; 0]);
}

#[test]
fn switches_that_no_kernel_leaves_out_are_counted_as_lost() {
    let whole = [
        (1_000, "a S b"),
        (2_000, "b S a"),
        (3_000, "a S b"),
        (4_000, "b S idle"),
        (5_000, "idle R a"),
        (6_000, "a S idle"),
    ];
    let lost = |left_out: &[usize]| {
        let kept = whole.iter().enumerate();
        let kept = kept.filter(|(index, _)| !left_out.contains(index));
        let kept: Vec<_> = kept.map(|(_, step)| *step).collect();
        let (_, repair) = judged(&trace(&kept));
        (repair.lost(), repair.shown())
    };
    assert_eq!(lost(&[]), (0, 6));
    // From idle: some kernels never show it.
    assert_eq!(lost(&[4]), (0, 5));
    // Between two tasks, and one to idle.
    assert_eq!(lost(&[2]), (1, 5));
    assert_eq!(lost(&[3]), (1, 5));
    // Who has not been seen to leave may be one who never is, until he does.
    assert_eq!(lost(&[1]), (1, 5));
}
