//! Nobody is passed over on its CPU for good because its group has its part on another, and what that costs is bounded.

use quotient_core::{Config, CpuId, Enqueue, GroupTree, Nanos, RunQueue, TaskEntity};

const STEP: Nanos = Nanos::from_millis(1);

/// Two equal groups on two CPUs that nobody balances: `a` has a task on each, `b` one beside it on the first. The second CPU is all that is due to `a`,
/// so that by the groups' times its task on the first one has nothing. Returns the CPU time of that one and of `b`, in parts of `seconds`.
fn parts(seconds: u64) -> (f64, f64) {
    let tree = GroupTree::new(Config::new(2));
    let (a, b) = (tree.group("a").unwrap(), tree.group("b").unwrap());
    let mut queues = [0, 1].map(|cpu| RunQueue::<&str>::new(&tree, CpuId(cpu)));
    let start = Nanos::ZERO;
    queues[0].enqueue(&b, TaskEntity::default(), "b", Enqueue::New, start);
    queues[0].enqueue(&a, TaskEntity::default(), "a", Enqueue::New, start);
    queues[1].enqueue(
        &a,
        TaskEntity::default(),
        "a elsewhere",
        Enqueue::New,
        start,
    );
    let mut running = [0, 1].map(|cpu: usize| queues[cpu].pick(start).unwrap());
    let mut steps = [0_u32; 2];
    let mut now = start;
    while now < Nanos::from_secs(seconds) {
        now += STEP;
        steps[usize::from(running[0] == "b")] += 1;
        for (queue, task) in queues.iter_mut().zip(&mut running) {
            queue.charge(now);
            queue.look_around(now);
            if queue.should_resched(now) {
                queue.put_prev_preempt(task, now);
                *task = queue.pick(now).unwrap();
                let _ = queue.take_pull();
            }
        }
    }
    let all = f64::from(steps[0] + steps[1]);
    (f64::from(steps[0]) / all, f64::from(steps[1]) / all)
}

#[test]
fn who_is_passed_over_has_turns_and_no_more_than_a_thirty_third() {
    let (passed_over, beside) = parts(60);
    assert!(passed_over > 0.004, "{passed_over}; without the floor 0");
    assert!(beside >= 1.0 - 1.0 / 33.0, "{beside}");
}
