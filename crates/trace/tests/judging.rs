//! Real traces pass, and each rule is broken by a trace made for it.

use quotient_core::{CpuId, Nanos};
use quotient_trace::check::{Check, Findings, Options, Rule};
use quotient_trace::{
    Amount, Counter, Definition, Event, Figures, GroupId, GroupInfo, Html, Item, JsonLines, Kind,
    Limit, Perfetto, Reader, Repair, ResumeReason, Sink, Statistics, TaskId, TaskInfo, TaskState,
    compare,
};

const PERF: &[u8] = include_bytes!("data/perf_sched.txt");
const TRACEFS: &[u8] = include_bytes!("data/tracefs.txt");
/// Of a virtual machine whose second CPU's switches from idle are missing.
const IDLE_LEFT_OUT: &[u8] = include_bytes!("data/idle_left_out.txt");

const A: TaskId = TaskId(7);
const B: TaskId = TaskId(8);
const GROUP: GroupId = GroupId(1);

/// A trace by hand; times in µs.
#[derive(Default)]
struct Script(Vec<Event>);

impl Script {
    fn at(mut self, micros: u64, cpu: u32, kind: Kind) -> Script {
        let event = Event::new(Nanos::from_micros(micros), CpuId(cpu), kind);
        self.0.push(event);
        self
    }

    fn switch(self, micros: u64, cpu: u32, prev: TaskId, state: TaskState, next: TaskId) -> Script {
        self.at(micros, cpu, Kind::Switch { prev, state, next })
    }

    fn wake(self, micros: u64, task: TaskId, cpu: u32) -> Script {
        let kind = Kind::Wakeup {
            task,
            target: CpuId(cpu),
            waker: TaskId::IDLE,
        };
        self.at(micros, cpu, kind)
    }

    fn check(&self, options: Options) -> Findings {
        let mut check = Check::new(options);
        definitions()
            .iter()
            .for_each(|definition| check.define(definition));
        for (line, event) in (1..).zip(&self.0) {
            check.event(event, line);
        }
        check.finish()
    }

    /// The broken rules and the line of the first breach.
    fn broken(&self) -> (Vec<Rule>, u64) {
        let findings = self.check(Options::default());
        let line = findings.breaches.first().map_or(0, |breach| breach.line);
        (findings.counts.into_keys().collect(), line)
    }
}

fn definitions() -> Vec<Definition> {
    let task = |id| Definition::Task {
        id,
        info: TaskInfo {
            name: "worker".to_owned(),
            group: Some(GROUP),
            ..TaskInfo::default()
        },
    };
    let info = GroupInfo {
        path: "tenants/acme".to_owned(),
        parent: GroupId::ROOT,
    };
    vec![Definition::Group { id: GROUP, info }, task(A), task(B)]
}

const IDLE: TaskId = TaskId::IDLE;
const R: TaskState = TaskState::Runnable;
const S: TaskState = TaskState::Sleeping;

fn limit(quota_us: i64) -> Kind {
    Kind::SetLimit {
        group: GROUP,
        quota: Amount::new(quota_us * 1_000),
        period_us: 100_000,
    }
}

fn resume(task: TaskId) -> Kind {
    let reason = ResumeReason::Turn;
    Kind::Resume { task, reason }
}

fn refill() -> Kind {
    Kind::Refill {
        group: GROUP,
        periods: 1,
        pool: Amount::new(1),
    }
}

#[test]
fn a_right_trace_breaks_nothing() {
    let script = Script::default()
        .switch(0, 0, IDLE, R, IDLE)
        .wake(10, A, 0)
        .switch(12, 0, IDLE, R, A)
        .wake(20, B, 0)
        .switch(500, 0, A, TaskState::Preempted, B)
        .switch(900, 0, B, S, A)
        .switch(1_000, 0, A, S, IDLE);
    assert_eq!(script.broken(), (vec![], 0));
}

#[test]
fn a_cpu_that_is_gone_is_not_idle() {
    // B ran on the second CPU, which idles, and waits beside A on the first one.
    let wait = |script: Script| {
        script
            .switch(0, 1, IDLE, R, B)
            .switch(5, 1, B, S, IDLE)
            .switch(10, 0, IDLE, R, A)
            .wake(20, B, 0)
    };
    let ends = |script: Script| script.switch(30_000, 0, A, R, B).switch(31_000, 0, B, S, A);
    assert_eq!(
        ends(wait(Script::default())).broken().0,
        [Rule::WorkConservation]
    );
    let goes =
        |micros, online| move |script: Script| script.at(micros, 1, Kind::Hotplug { online });
    let gone = wait(Script::default());
    assert_eq!(ends(goes(30, false)(gone)).broken(), (vec![], 0));
    // Where B may run is known anew, from what it does after the change: on CPUs that come and go it may have been a guest.
    let back = goes(40, true)(goes(30, false)(wait(Script::default())));
    assert_eq!(ends(back).broken(), (vec![], 0));
    let begins = Script::default().at(0, 1, Kind::Hotplug { online: false });
    let again = wait(begins.at(0, 1, Kind::Hotplug { online: true }));
    assert_eq!(ends(again).broken().0, [Rule::WorkConservation]);
}

/// What a recording says of long polls that are stopped and resumed, one from before the recording began, and one that is over.
#[test]
fn threads_that_stand_and_go_on_in_turn_break_nothing() {
    let script = Script::default()
        .switch(0, 0, IDLE, R, A)
        .at(1, 0, resume(B))
        .at(5, 0, Kind::Detach { task: A })
        .at(6, 0, Kind::Pause { task: A })
        .switch(7, 0, A, R, B)
        .at(8, 0, Kind::Pause { task: B })
        .switch(9, 0, B, R, A)
        .at(9, 0, resume(A))
        // Killed in its poll: it has no turn, and sleeps until it has used time.
        .switch(12, 0, A, R, B)
        .switch(13, 0, B, S, A)
        .switch(20, 0, A, TaskState::Dead, IDLE);
    assert_eq!(script.broken(), (vec![], 0));
}

/// Text of a kernel, judged with or without what it left out.
fn judged(text: &[u8], mut repair: Option<Repair>) -> (Findings, u64) {
    let mut reader = Reader::open(text).expect("a recorded trace");
    let mut check = Check::new(Options {
        clock_skew: Nanos::from_micros(10),
        ..Options::default()
    });
    while let Some(item) = reader.next_item().expect("a recorded trace") {
        match item {
            Item::Definition(definition) => check.define(&definition),
            Item::Event(event) => {
                if let Some(missing) = repair.as_mut().and_then(|repair| repair.missing(&event)) {
                    check.fill_in(&missing, reader.line());
                }
                check.event(&event, reader.line());
                if let Some(found) = repair.as_mut().and_then(Repair::contradiction) {
                    check.contradict(&found, reader.line());
                }
            }
        }
    }
    (check.finish(), repair.map_or(0, |repair| repair.count()))
}

#[test]
fn switches_from_idle_that_a_kernel_left_out_are_filled_in() {
    let (plain, _) = judged(IDLE_LEFT_OUT, None);
    let (filled, count) = judged(IDLE_LEFT_OUT, Some(Repair::default()));
    assert!(plain.counts[&Rule::Chain] >= 10, "{:?}", plain.counts);
    assert!(filled.is_clean(), "{:#?}", filled.breaches);
    assert!(count >= plain.counts[&Rule::Chain], "{count}");
    // What was filled in is no event of the trace.
    assert_eq!(filled.events, plain.events);
    // Where nothing is missing nothing is filled in.
    for text in [PERF, TRACEFS] {
        assert_eq!(judged(text, Some(Repair::default())).1, 0);
    }
}

#[test]
fn every_rule_can_be_broken() {
    let start = || {
        Script::default()
            .switch(0, 0, IDLE, R, IDLE)
            .switch(0, 1, IDLE, R, IDLE)
    };
    let running = || start().wake(1, A, 0).switch(2, 0, IDLE, R, A);
    let cases = [
        (
            Rule::OneCpu,
            running().switch(5, 1, IDLE, R, A).switch(9, 0, A, S, IDLE),
            6,
        ),
        (Rule::Chain, running().switch(9, 0, B, S, IDLE), 5),
        (
            Rule::Woken,
            running().switch(5, 0, A, S, IDLE).switch(9, 0, IDLE, R, A),
            6,
        ),
        (
            Rule::Throttled,
            start()
                .at(1, 0, Kind::Throttle { group: GROUP })
                .wake(2, A, 0)
                .switch(3, 0, IDLE, R, A),
            5,
        ),
        (
            Rule::Pairs,
            start().at(1, 0, Kind::Throttle { group: GROUP }).at(
                2,
                0,
                Kind::Throttle { group: GROUP },
            ),
            4,
        ),
        (
            Rule::Standing,
            running()
                .at(3, 0, Kind::Pause { task: A })
                .at(4, 0, Kind::Pause { task: A }),
            6,
        ),
        (
            Rule::Standing,
            running()
                .at(3, 0, Kind::Pause { task: A })
                .at(4, 0, resume(A))
                .at(5, 0, resume(A)),
            7,
        ),
        (
            Rule::Standing,
            running()
                .at(3, 0, Kind::Pause { task: A })
                .switch(5, 0, A, TaskState::Dead, IDLE),
            6,
        ),
        (
            Rule::Standing,
            running()
                .switch(5, 0, A, R, B)
                .at(6, 0, Kind::Pause { task: A })
                .switch(7, 0, B, R, A)
                .switch(9, 0, A, R, B),
            8,
        ),
        (
            Rule::Window,
            (0..100)
                .fold(
                    running().at(3, 0, limit(60_000)).at(4, 0, refill()),
                    |script, step| script.switch(500 + step * 1_000, 0, A, R, A),
                )
                .at(100_000, 0, Kind::Tick),
            107,
        ),
        (
            Rule::Pool,
            start().at(1, 0, limit(1_000)).at(
                2,
                0,
                Kind::Counter {
                    counter: Counter::Pool,
                    group: GROUP,
                    value: Amount::new(-1),
                },
            ),
            4,
        ),
        (
            Rule::WorkConservation,
            start().wake(10, A, 0).switch(20_000, 0, IDLE, R, A),
            4,
        ),
        (
            Rule::Starvation,
            running().wake(10, B, 0).switch(3_000_000, 0, A, S, B),
            6,
        ),
    ];
    for (rule, script, line) in cases {
        let (rules, first) = script.broken();
        assert_eq!(rules, [rule], "{rule:?}");
        assert!(first.abs_diff(line) <= 1, "{rule:?}: line {first}");
    }
}

#[test]
fn the_long_run_is_judged_over_many_periods() {
    // Each window is within its margin of a slice and a charge, all of them together are not.
    let mut script = Script::default()
        .switch(0, 0, IDLE, R, A)
        .at(0, 0, limit(1_000));
    for period in 0..40 {
        script = script
            .switch(period * 100_000 + 5_000, 0, A, R, IDLE)
            .switch(period * 100_000 + 99_999, 0, IDLE, R, A);
    }
    let mut options = Options {
        charge_max: Some(Nanos::from_millis(1)),
        ..Options::default()
    };
    options.hidden_limits = true;
    let findings = script.check(options);
    assert_eq!(
        findings.counts.into_keys().collect::<Vec<_>>(),
        [Rule::LongRun]
    );
}

#[test]
fn a_limit_may_come_from_outside() {
    let mut script = Script::default().switch(0, 0, IDLE, R, A);
    for step in 1..=300 {
        script = script.switch(step * 1_000, 0, A, R, A);
    }
    let given = Limit {
        quota: Amount::new(1_000_000),
        period_us: 100_000,
        burst: Amount::ZERO,
    };
    let options = Options {
        limits: vec![("tenants/acme".to_owned(), given)],
        ..Options::default()
    };
    assert!(script.check(options).counts.contains_key(&Rule::Window));
    assert!(script.check(Options::default()).is_clean());
}

#[test]
fn throttled_waits_and_losses_are_excused() {
    let script = Script::default()
        .switch(0, 0, IDLE, R, IDLE)
        .at(1, 0, Kind::Throttle { group: GROUP })
        .wake(10, A, 0)
        .at(50_000, 0, Kind::Unthrottle { group: GROUP })
        .switch(50_001, 0, IDLE, R, A)
        .at(
            60_000,
            0,
            Kind::Lost {
                count: Amount::new(3),
            },
        )
        .switch(70_000, 0, B, S, IDLE);
    assert_eq!(script.broken(), (vec![], 0));
}

fn read(text: &[u8], sink: &mut impl Sink) -> usize {
    let mut reader = Reader::open(text).expect("a text trace");
    let mut events = 0;
    while let Some(item) = reader.next_item().expect("a good trace") {
        match item {
            Item::Definition(definition) => sink.define(&definition),
            Item::Event(event) => {
                sink.event(&event);
                events += 1;
            }
        }
    }
    events
}

/// Hazard: a simulator whose time goes back writes a log that readers put in order, and nobody hears of it.
#[test]
fn time_that_goes_back_is_told() {
    let ticks = |times: [u64; 4]| times.map(|at| Event::new(Nanos(at), CpuId(0), Kind::Tick));
    for (times, strictly, in_a_log) in [
        ([1, 7_000_000_000, 5_600_000_000, 7_000_000_001], 1, 1),
        ([1, 7_000_000_000, 6_900_000_000, 7_000_000_001], 1, 0),
        ([1, 7_000_000_000, 7_000_000_000, 7_000_000_001], 0, 0),
    ] {
        let (mut check, mut log) = (Check::new(Options::default()), JsonLines::new(Vec::new()));
        for event in ticks(times) {
            Sink::event(&mut check, &event);
            log.event(&event);
        }
        let counted = |check: Check| check.finish().counts.get(&Rule::Order).copied();
        assert_eq!(counted(check).unwrap_or(0), strictly, "{times:?}");
        let log = log.finish().expect("into memory");
        let mut reader = Reader::open(&log[..]).expect("our own log");
        let mut check = Check::new(Options::default());
        while let Some(item) = reader.next_item().expect("our own log") {
            if let Some(late) = reader.take_late() {
                // A heading, and two events before it.
                assert_eq!(late.line, 4);
                check.late(&late);
            }
            if let Item::Event(event) = item {
                check.event(&event, reader.line());
            }
        }
        assert_eq!(counted(check).unwrap_or(0), in_a_log, "{times:?}");
    }
}

fn figures(text: &[u8]) -> Figures {
    let mut statistics = Statistics::new();
    read(text, &mut statistics);
    statistics.finish()
}

#[test]
fn traces_of_a_real_kernel_pass() {
    for (text, least) in [(PERF, 100), (TRACEFS, 120)] {
        let mut check = Check::new(Options {
            clock_skew: Nanos::from_micros(10),
            ..Options::default()
        });
        assert!(read(text, &mut check) >= least);
        let findings = check.finish();
        assert!(findings.is_clean(), "{:?}", findings.breaches);
    }
}

#[test]
fn figures_of_a_real_trace_add_up() {
    for text in [PERF, TRACEFS] {
        let figures = figures(text);
        let busy: u64 = figures.cpus.iter().map(|cpu| cpu.busy_ns).sum();
        let tasks: u64 = figures.tasks.iter().map(|task| task.cpu_ns).sum();
        assert_eq!(busy, tasks);
        assert_eq!(figures.cpus.len(), 2);
        assert_eq!(figures.groups[0].cpu_ns, tasks);
        let spinner = figures
            .tasks
            .iter()
            .find(|task| task.name == "spin [a] b-1");
        assert!(spinner.is_some(), "names with brackets and dashes survive");
        let same = compare(&figures, &figures);
        assert!(same.rows.iter().all(|row| row.difference == 0.0));
        assert!(same.only_in_a.is_empty() && same.only_in_b.is_empty());
    }
}

#[test]
fn delays_and_throttling_are_measured() {
    let script = Script::default()
        .switch(0, 0, IDLE, R, IDLE)
        .wake(100, A, 0)
        .switch(300, 0, IDLE, R, A)
        .at(1_300, 0, Kind::Throttle { group: GROUP })
        .switch(1_300, 0, A, R, IDLE)
        .at(5_300, 0, refill())
        .at(5_300, 0, Kind::Unthrottle { group: GROUP })
        .switch(5_300, 0, IDLE, R, A)
        .switch(6_300, 0, A, S, IDLE);
    let mut statistics = Statistics::new();
    definitions()
        .iter()
        .for_each(|definition| statistics.define(definition));
    script.0.iter().for_each(|event| statistics.event(event));
    let figures = statistics.finish();
    let group = &figures.groups[1];
    assert_eq!(group.group, "tenants/acme");
    assert_eq!(
        (
            group.cpu_ns,
            group.nr_periods,
            group.nr_throttled,
            group.throttled_ns
        ),
        (2_000_000, 1, 1, 4_000_000)
    );
    assert_eq!(
        (group.delay.count, group.delay.max_ns, group.delay.sum_ns),
        (2, 4_000_000, 4_200_000)
    );
    let p50 = group.delay.p50_ns as f64;
    assert!((p50 / 200_000.0 - 1.0).abs() < 0.02, "{p50}");
}

#[test]
fn the_page_is_self_contained() {
    let mut page = Html::new();
    read(TRACEFS, &mut page);
    page.define(&definitions()[0]);
    page.event(&Event::new(
        Nanos::from_secs(20_000),
        CpuId(0),
        Kind::Throttle { group: GROUP },
    ));
    let mut text = Vec::new();
    page.finish("<a trace>", &mut text).expect("memory");
    let text = String::from_utf8(text).expect("text");
    for banned in [
        "http:",
        "https:",
        "src=",
        "href=",
        "url(",
        "@import",
        "<script",
        "NaN",
        "<a trace>",
    ] {
        assert!(!text.contains(banned), "the page contains {banned}");
    }
    assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
    assert!(text.len() < 2_000_000);
}

/// Walks the outermost fields: every one is a packet, and the lengths end where the file does.
#[test]
fn a_perfetto_trace_is_a_list_of_packets() {
    let mut writer = Perfetto::new(Vec::new());
    let events = read(TRACEFS, &mut writer);
    let bytes = writer.finish().expect("memory");
    let (mut at, mut packets) = (0, 0);
    while at < bytes.len() {
        assert_eq!(bytes[at], 0x0a, "field 1, wire type 2");
        let (mut length, mut shift) = (0_usize, 0);
        loop {
            at += 1;
            length |= usize::from(bytes[at] & 0x7f) << shift;
            shift += 7;
            if bytes[at] < 0x80 {
                break;
            }
        }
        at += 1 + length;
        packets += 1;
    }
    assert_eq!(at, bytes.len());
    assert!(packets > events / 2);
}
