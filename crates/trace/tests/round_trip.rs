//! What is written can be read back, and says the same.

use std::ops::ControlFlow;

use proptest::prelude::*;
use quotient_core::{CpuId, Nanos, Nice};
use quotient_trace::{
    Amount, Counter, Definition, Event, Ftrace, GroupId, GroupInfo, InterruptKind, Item, JsonLines,
    Kind, NameId, Reader, RescueReason, ResumeReason, Sink, TaskId, TaskInfo, TaskState,
};

fn items(text: &[u8]) -> Vec<Item> {
    let mut reader = Reader::open(text).expect("a known format");
    let mut items = Vec::new();
    while let Some(item) = reader.next_item().expect("what we wrote ourselves") {
        items.push(item);
    }
    items
}

fn of_jsonl(all: &[Item]) -> Vec<u8> {
    let mut writer = JsonLines::new(Vec::new());
    feed(all, &mut writer);
    writer.finish().expect("memory")
}

fn of_ftrace(all: &[Item]) -> Vec<u8> {
    let mut writer = Ftrace::new(Vec::new());
    feed(all, &mut writer);
    writer.finish().expect("memory")
}

fn feed(all: &[Item], sink: &mut impl Sink) {
    for item in all {
        match item {
            Item::Definition(definition) => sink.define(definition),
            Item::Event(event) => sink.event(event),
        }
    }
}

fn events(all: &[Item]) -> Vec<Event> {
    let event = |item: &Item| match item {
        Item::Event(event) => Some(*event),
        Item::Definition(_) => None,
    };
    all.iter().filter_map(event).collect()
}

fn definitions(all: &[Item]) -> Vec<Definition> {
    let definition = |item: &Item| match item {
        Item::Event(_) => None,
        Item::Definition(definition) => Some(definition.clone()),
    };
    all.iter().filter_map(definition).collect()
}

fn task() -> impl Strategy<Value = TaskId> {
    (0_u32..6).prop_map(TaskId)
}

fn cpu() -> impl Strategy<Value = CpuId> {
    (0_u32..5).prop_map(CpuId)
}

fn group() -> impl Strategy<Value = GroupId> {
    (0_u32..5).prop_map(GroupId)
}

fn amount() -> impl Strategy<Value = Amount> {
    any::<i64>().prop_map(Amount::new)
}

fn state() -> impl Strategy<Value = TaskState> {
    prop::sample::select(TaskState::ALL.to_vec())
}

fn sort() -> impl Strategy<Value = InterruptKind> {
    prop_oneof![Just(InterruptKind::Hard), Just(InterruptKind::Soft)]
}

fn kind() -> impl Strategy<Value = Kind> {
    let of_tasks = prop_oneof![
        (task(), state(), task()).prop_map(|(prev, state, next)| Kind::Switch {
            prev,
            state,
            next
        }),
        (task(), cpu(), task()).prop_map(|(task, target, waker)| Kind::Waking {
            task,
            target,
            waker
        }),
        (task(), cpu(), task()).prop_map(|(task, target, waker)| Kind::Wakeup {
            task,
            target,
            waker
        }),
        (task(), cpu(), task()).prop_map(|(task, target, parent)| Kind::Spawn {
            task,
            target,
            parent
        }),
        task().prop_map(|task| Kind::Exit { task }),
        (task(), amount()).prop_map(|(task, time)| Kind::Uncharged { task, time }),
        (task(), cpu(), cpu()).prop_map(|(task, from, to)| Kind::Migrate { task, from, to }),
        (task(), group()).prop_map(|(task, group)| Kind::Attach { task, group }),
        task().prop_map(|task| Kind::Detach { task }),
        task().prop_map(|task| Kind::Pause { task }),
        (task(), prop::sample::select(ResumeReason::ALL.to_vec()))
            .prop_map(|(task, reason)| Kind::Resume { task, reason }),
        prop::sample::select(RescueReason::ALL.to_vec()).prop_map(|reason| Kind::Rescue { reason }),
    ];
    let of_groups = prop_oneof![
        group().prop_map(|group| Kind::Throttle { group }),
        group().prop_map(|group| Kind::Unthrottle { group }),
        (group(), any::<u16>(), amount()).prop_map(|(group, periods, pool)| Kind::Refill {
            group,
            periods,
            pool
        }),
        (group(), amount()).prop_map(|(group, used)| Kind::Burst { group, used }),
        (group(), 1_000_000_i64.., 1_000_u32..=1_000_000).prop_map(|(group, quota, period_us)| {
            Kind::SetLimit {
                group,
                quota: Amount::new(quota),
                period_us,
            }
        }),
        (group(), 0_i64..).prop_map(|(group, burst)| Kind::SetBurst {
            group,
            burst: Amount::new(burst)
        }),
        (group(), any::<u32>()).prop_map(|(group, weight)| Kind::SetWeight { group, weight }),
        (
            prop::sample::select(Counter::ALL.to_vec()),
            group(),
            amount()
        )
            .prop_map(|(counter, group, value)| Kind::Counter {
                counter,
                group,
                value
            }),
    ];
    let of_cpus = prop_oneof![
        Just(Kind::Tick),
        any::<bool>().prop_map(|online| Kind::Hotplug { online }),
        cpu().prop_map(|target| Kind::Ipi { target }),
        (sort(), any::<u32>()).prop_map(|(sort, number)| Kind::InterruptEntry { sort, number }),
        (sort(), any::<u32>()).prop_map(|(sort, number)| Kind::InterruptExit { sort, number }),
        amount().prop_map(|count| Kind::Lost { count }),
        (0_u32..3, amount()).prop_map(|(name, value)| Kind::Mark {
            name: NameId(name),
            value
        }),
    ];
    prop_oneof![of_tasks, of_groups, of_cpus]
}

/// Definitions of everything, with names that hurt, then events in the order of time.
fn trace() -> impl Strategy<Value = Vec<Item>> {
    let name = prop_oneof![
        "[ -~]{0,20}",
        Just("a b [001] 1.0: x-3 ==> next_comm= pid=9".to_owned()),
        Just("tab\tline\nnull\0 \u{1f980}".to_owned()),
    ];
    let names = prop::collection::vec(name, 6);
    let steps = prop::collection::vec((0_u64..2_000_000_000, cpu(), kind()), 1..60);
    (names, steps).prop_map(|(names, steps)| {
        let mut all = Vec::new();
        for (index, text) in names.into_iter().enumerate() {
            let id = u32::try_from(index).expect("six");
            let info = GroupInfo {
                path: text.clone(),
                parent: GroupId(id / 2),
            };
            let task_info = TaskInfo {
                name: text.clone(),
                group: Some(GroupId(id)),
                process: Some(TaskId(id / 2)),
                parent: (id > 2).then_some(TaskId(id / 3)),
                nice: Nice::new(id as i32 - 3).ok(),
                real_time: (id > 3).then_some(id as u8),
            };
            all.extend([
                Item::Definition(Definition::Group {
                    id: GroupId(id),
                    info,
                }),
                Item::Definition(Definition::Task {
                    id: TaskId(id),
                    info: task_info,
                }),
                Item::Definition(Definition::Name {
                    id: NameId(id),
                    text,
                }),
            ]);
        }
        let mut time = 0;
        for (gap, cpu, kind) in steps {
            time += gap;
            all.push(Item::Event(Event::new(Nanos(time), cpu, kind)));
        }
        all
    })
}

proptest! {
    // No file of failures: a found case becomes a test of its own.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_texts_keep_everything(all in trace()) {
        prop_assert_eq!(&items(&of_jsonl(&all)), &all);
        let back = items(&of_ftrace(&all));
        prop_assert_eq!(events(&back), events(&all));
        prop_assert_eq!(definitions(&back), definitions(&all));
    }

    #[test]
    fn no_mutation_of_a_trace_is_a_panic(
        all in trace(),
        as_ftrace in any::<bool>(),
        cut in 0.0_f64..1.0,
        changes in prop::collection::vec((0.0_f64..1.0, any::<u8>()), 0..8),
    ) {
        let mut text = if as_ftrace { of_ftrace(&all) } else { of_jsonl(&all) };
        for (place, byte) in changes {
            let index = (place * text.len() as f64) as usize;
            text[index] = byte;
        }
        text.truncate((cut * text.len() as f64) as usize);
        read_quietly(&text);
    }

    #[test]
    fn no_bytes_are_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
        read_quietly(&text);
    }

    #[test]
    fn no_line_is_a_panic(
        comm in ".{0,20}",
        event in prop::sample::select(vec![
            "sched_switch", "sched_wakeup", "sched_process_fork", "sched_process_exit", "sched_migrate_task",
            "cgroup_attach_task", "irq_handler_entry", "softirq_exit", "ipi_send_cpu", "quotient", "other",
        ]),
        arguments in "([ -~]{0,30}|(prev_comm=|comm=|prev_pid=|pid=| ==> |next_comm=|7| |:| \\[120\\] |S|\\{\"tick\"\\}){0,12})",
    ) {
        read_quietly(format!("{comm}-7 [001] d..2. 1.000001: {event}: {arguments}\n").as_bytes());
    }
}

/// An error must name a line that exists.
fn read_quietly(text: &[u8]) {
    let lines = text.split(|&byte| byte == b'\n').count() as u64;
    let result = Reader::open(text)
        .and_then(|mut reader| reader.pump(&mut Vec::new(), |_| ControlFlow::Continue(())));
    if let Err(error) = result {
        assert!(error.line() <= lines, "{error}");
        assert!(!error.to_string().is_empty());
    }
}
