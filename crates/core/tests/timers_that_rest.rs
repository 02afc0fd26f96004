//! A period timer whose refills would change nothing, since its group's tasks only wait for others, stays away for a while: two hundred groups of 1 ms a period below a parent without
//! budget cost a quarter of a processor otherwise. What is taken after that is what it would have been.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{Config, CpuId, Enqueue, GroupTree, Limit, Nanos, RunQueue, TaskEntity};

fn limit(quota: u64, period: u64) -> Option<Limit> {
    Some(Limit::new(Nanos(quota), Nanos(period)))
}

/// Twenty groups below one of 2 ms in 100: in how many milliseconds of a second any timer is due.
#[test]
fn below_a_parent_without_budget_no_timer_runs() {
    let mut machine = Machine::new(Config::new(2));
    let parent = machine.group("p", 100);
    machine.limit(&parent, limit(2 * MILLI, 100 * MILLI));
    let children: Vec<_> = (0..20)
        .map(|child| machine.group(&format!("p/c{child}"), 100))
        .collect();
    for (place, child) in children.iter().enumerate() {
        machine.limit(child, limit(MILLI, MILLI));
        machine.spawn(place % 2, child, Work::Hog { chunk: 20_000 });
    }
    let mut due = 0;
    for step in 1..=1_000 {
        machine.run_until(step * MILLI);
        let next = machine.tree.next_refill();
        due += u32::from(next.is_some_and(|next| next.0 <= machine.now + MILLI));
    }
    let used = usage(&parent);
    assert!((20 * MILLI..=22 * MILLI).contains(&used), "{used}");
    assert!(due <= 300, "due in {due} of 1000 milliseconds");
}

/// A group of polls of 8 ms waits for a sibling's of half a second between them, and rests if it owes nothing. Each poll uses 5 ms more than there is and is due meanwhile, so the group is throttled
/// for some 20 ms after it: what was due in the rest does not pay for that.
#[test]
fn a_rest_pays_no_debt_of_what_comes_after_it() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 1_000);
    let sibling = machine.group("other", 1_000);
    machine.limit(&group, limit(MILLI, 4 * MILLI));
    let task = machine.spawn(0, &group, Work::Hog { chunk: 8 * MILLI });
    machine.spawn(0, &sibling, Work::Hog { chunk: 500 * MILLI });
    machine.run_until(20 * SECOND);
    let polls = machine.tasks[task].runs;
    assert!(polls >= 20, "{polls}");
    let stats = group.bandwidth_stats();
    let each = stats.throttled_time.0 / polls;
    assert!((18 * MILLI..=25 * MILLI).contains(&each), "{each}");
}

/// What falls due in a rest spills at its time: a poll that began in the rest finds what fell due since, and no more. (Joined into one spill, the first of these had 200 ms of 395, and the second
/// 5,459 of 4,000.)
#[test]
fn a_poll_that_begins_in_a_rest_finds_what_falls_due_in_it() {
    let of = |(quota, period), poll, other| {
        let mut machine = Machine::new(Config::new(1));
        let group = machine.group("g", 1_000);
        let sibling = machine.group("other", 1_000);
        machine.limit(&group, limit(quota * MILLI, period * MILLI));
        machine.spawn(
            0,
            &group,
            Work::Hog {
                chunk: poll * MILLI,
            },
        );
        machine.spawn(
            0,
            &sibling,
            Work::Hog {
                chunk: other * MILLI,
            },
        );
        machine.run_until(20 * SECOND);
        usage(&group) / MILLI
    };
    let few = of((3, 10), 5, 500);
    assert!((385..=405).contains(&few), "{few}");
    let many = of((2, 5), 5, 20);
    assert!((3_950..=4_050).contains(&many), "{many}");
}

/// A group whose task comes back after a while of waiting below a parent that is throttled.
#[test]
fn what_waited_for_its_parent_has_one_quota_and_what_is_due_from_then_on() {
    let mut machine = Machine::new(Config::new(1));
    let parent = machine.group("p", 100);
    machine.limit(&parent, limit(100 * MILLI, 1_000 * MILLI));
    let child = machine.group("p/c", 100);
    machine.limit(&child, limit(MILLI, 10 * MILLI));
    let heavy = machine.group("p/heavy", 10_000);
    machine.spawn(0, &child, Work::Hog { chunk: 100_000 });
    machine.spawn(0, &heavy, Work::Hog { chunk: MILLI });
    machine.run_until(20 * SECOND);
    let used = usage(&child);
    // It runs in a tenth of each second: in eleven periods of its own at most.
    assert!(used <= 20 * 11 * MILLI, "{used}");
    assert!(used >= 10 * MILLI, "{used}");
}

/// A group rests while its task waits behind a poll of 16 ms, runs for a moment of what its CPU holds, and has nothing to run for 24 ms. What it uses then in a period is one quota: the period
/// begins with it. (While nobody told the timer that the group was idle, it was two: what was left of the old period, and the next.)
#[test]
fn an_idle_time_in_a_rest_ends_the_grid_of_periods() {
    const STEP: u64 = 10_000;
    let (period, quota) = (4 * MILLI, MILLI);
    let tree = GroupTree::new(Config::new(1));
    let mut queue: RunQueue<u32> = RunQueue::new(&tree, CpuId(0));
    let (group, other) = (tree.group("g").unwrap(), tree.group("o").unwrap());
    let set = group.set_limit(limit(quota, period), Nanos(0), &mut |_| ());
    set.unwrap();
    let refill = |now: u64| while tree.refill(Nanos(now), &mut |_| ()) {};
    for idle in (0..40).map(|step| 24 * MILLI + step * 100_000) {
        let task = TaskEntity::default();
        let mut now = MILLI + 1_000 * idle;
        queue.enqueue(&group, task, 1, Enqueue::New, Nanos(now));
        assert_eq!(queue.pick(Nanos(now)), Some(1));
        now += STEP;
        queue.enqueue(&other, task, 2, Enqueue::New, Nanos(now));
        while {
            queue.put_prev_yield(1, Nanos(now));
            queue.pick(Nanos(now)) == Some(1)
        } {
            now += STEP;
        }
        for _ in 0..160 {
            now += 100_000;
            refill(now);
        }
        assert!(queue.put_prev_exit(Nanos(now)).is_some());
        assert_eq!(queue.pick(Nanos(now)), Some(1));
        now += STEP;
        let task = queue.put_prev_sleep(Nanos(now)).unwrap();
        assert_eq!(queue.pick(Nanos(now)), None);
        for _ in 0..idle / 100_000 {
            now += 100_000;
            refill(now);
        }
        let before = group.cpu_time();
        queue.enqueue(&group, task, 1, Enqueue::Wake, Nanos(now));
        let end = now + period;
        while now < end {
            refill(now);
            queue.unthrottle_pending(Nanos(now));
            let runs = queue.pick(Nanos(now)) == Some(1);
            now += STEP;
            if runs {
                queue.put_prev_yield(1, Nanos(now));
            }
        }
        let used = group.cpu_time().0 - before.0;
        assert!(used <= quota + 2 * STEP, "{idle}: {used}");
        assert!(used >= quota - 2 * STEP, "{idle}: {used}");
        while queue.pick(Nanos(now)).is_none() {
            now += STEP;
            refill(now);
            queue.unthrottle_pending(Nanos(now));
        }
        queue.put_prev_exit(Nanos(now));
    }
}
