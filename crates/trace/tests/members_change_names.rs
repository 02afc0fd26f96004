//! Whose cgroup a task of a kernel's trace is in, when lines call it by several names.

use quotient_trace::{Item, Observer, Reader, Replay, Run};

/// The groups of those who ran, and for how many milliseconds, in the order in which they stopped.
#[derive(Default)]
struct Runs(Vec<(String, u64)>);

impl Observer for Runs {
    fn ran(&mut self, replay: &Replay, run: &Run) {
        if !run.task.is_idle() {
            let path = replay.table().group_path(run.group).to_owned();
            self.0.push((path, (run.to - run.from).0 / 1_000_000));
        }
    }
}

fn runs(text: &str) -> Vec<(String, u64)> {
    let mut reader = Reader::open(text.as_bytes()).expect("text");
    let (mut replay, mut runs) = (Replay::new(), Runs::default());
    while let Some(item) = reader.next_item().expect("a good line") {
        match item {
            Item::Event(event) => replay.event(&event, &mut runs),
            Item::Definition(definition) => replay.define(&definition),
        }
    }
    replay.finish(&mut runs);
    runs.0
}

/// A shell forks, the child is put into a cgroup, becomes another program, and makes a thread; at last somebody else
/// gets its number.
#[test]
fn a_member_stays_one_when_it_changes_its_name_and_its_children_are_members() {
    let text = "\
bash-9 [000] ..... 1.000: sched_wakeup_new: comm=bash pid=50 prio=120 target_cpu=000
bash-9 [000] d..1. 1.001: cgroup_attach_task: dst_root=0 dst_id=7 dst_level=1 dst_path=/web pid=50 comm=bash
bash-9 [000] d..2. 1.010: sched_switch: prev_comm=bash prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=bash next_pid=50 next_prio=120
web-50 [000] d..2. 1.020: sched_wakeup_new: comm=web pid=51 prio=120 target_cpu=000
web-50 [000] d..2. 1.030: sched_switch: prev_comm=web prev_pid=50 prev_prio=120 prev_state=S ==> next_comm=web pool next_pid=51 next_prio=120
web pool-51 [000] d..2. 1.050: sched_switch: prev_comm=web pool prev_pid=51 prev_prio=120 prev_state=X ==> next_comm=bash next_pid=9 next_prio=120
bash-9 [000] ..... 1.060: sched_wakeup_new: comm=cron pid=51 prio=120 target_cpu=000
bash-9 [000] d..2. 1.070: sched_switch: prev_comm=bash prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=cron next_pid=51 next_prio=120
cron-51 [000] d..2. 1.080: sched_switch: prev_comm=cron prev_pid=51 prev_prio=120 prev_state=S ==> next_comm=swapper next_pid=0 next_prio=120
";
    let expected = [("", 10), ("web", 20), ("web", 20), ("", 20), ("", 10)];
    let expected = expected.map(|(path, length)| (path.to_owned(), length));
    assert_eq!(runs(text), expected);
}
