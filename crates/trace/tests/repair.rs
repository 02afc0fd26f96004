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
