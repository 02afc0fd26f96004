//! Invariant 16 in virtual time: clocks of groups never go back, cover their descendants at every step, however much of a
//! poll was shown before it was charged, and are exact once everything is charged.

use proptest::prelude::*;
use quotient_core::{CpuId, Enqueue, GroupTree, Nanos, RunQueue, TaskEntity};

/// What a CPU does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A new task in one of the groups.
    Spawn { cpu: usize, group: usize },
    /// Runs the next task: shows a part of its poll (in percent), twice, and puts it back or lets it end.
    Run {
        cpu: usize,
        nanos: u64,
        shown: u64,
        ends: bool,
    },
    /// Time spent outside the run queues.
    Outside {
        place: usize,
        group: usize,
        nanos: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2_usize, 0..3_usize).prop_map(|(cpu, group)| Step::Spawn { cpu, group }),
        (0..2_usize, 0..200_000_u64, 0..=100_u64, any::<bool>()).prop_map(
            |(cpu, nanos, shown, ends)| Step::Run {
                cpu,
                nanos,
                shown,
                ends
            }
        ),
        (0..2_usize, 0..200_000_u64, 0..=100_u64).prop_map(|(cpu, nanos, shown)| Step::Run {
            cpu,
            nanos,
            shown,
            ends: false
        }),
        (0..20_usize, 0..3_usize, 0..50_000_u64).prop_map(|(place, group, nanos)| Step::Outside {
            place,
            group,
            nanos
        }),
    ]
}

proptest! {
    #[test]
    fn clocks_never_go_back_and_cover_what_is_below(steps in prop::collection::vec(step(), 1..200)) {
        let tree = GroupTree::new(quotient_core::Config::new(2));
        let paths = ["a", "a/b", "a/c"];
        let groups = paths.map(|path| tree.group(path).unwrap());
        let mut queues = [0, 1].map(|cpu| RunQueue::<usize>::new(&tree, CpuId(cpu)));
        let mut now = Nanos(0);
        // The group's own tasks and its time outside, ns.
        let mut expected = [0_u64; 3];
        let mut seen = [0_u64; 4];
        for step in steps {
            match step {
                Step::Spawn { cpu, group } => {
                    let task = TaskEntity::default();
                    queues[cpu].enqueue(&groups[group], task, group, Enqueue::New, now);
                }
                Step::Outside { place, group, nanos } => {
                    groups[group].show_foreign_cpu_time(place, Nanos(nanos));
                    groups[group].charge_foreign_cpu_time(Nanos(nanos), now);
                    expected[group] += nanos;
                }
                Step::Run { cpu, nanos, shown, ends } => {
                    let queue = &mut queues[cpu];
                    let Some(group) = queue.pick(now) else { continue };
                    let part = nanos * shown / 100;
                    queue.clock().show(Nanos(part / 2));
                    look(&tree, &groups, &mut seen)?;
                    queue.clock().show(Nanos(part));
                    look(&tree, &groups, &mut seen)?;
                    prop_assert_eq!(queue.clock().shown(), Nanos(part));
                    now = Nanos(now.0 + nanos);
                    expected[group] += nanos;
                    if ends {
                        queue.put_prev_exit(now);
                    } else {
                        queue.put_prev_preempt(group, now);
                    }
                    prop_assert_eq!(queue.clock().shown(), Nanos(0));
                }
            }
            look(&tree, &groups, &mut seen)?;
            let whole = expected.iter().sum::<u64>();
            prop_assert_eq!(groups[0].cpu_time(), Nanos(whole));
            prop_assert_eq!(tree.root().cpu_time(), Nanos(whole));
            prop_assert_eq!(groups[1].cpu_time(), Nanos(expected[1]));
            prop_assert_eq!(groups[2].cpu_time(), Nanos(expected[2]));
        }
    }
}

/// Children are read before their parents.
fn look(
    tree: &GroupTree,
    groups: &[std::sync::Arc<quotient_core::Group>; 3],
    seen: &mut [u64; 4],
) -> Result<(), TestCaseError> {
    let [a, b, c] = groups;
    let (b, c) = (b.cpu_time().0, c.cpu_time().0);
    let a = a.cpu_time().0;
    let root = tree.root().cpu_time().0;
    prop_assert!(a >= b + c, "{a} in the parent, {b} and {c} below");
    prop_assert!(root >= a, "{root} in all, {a} in one");
    for (now, before) in [a, b, c, root].into_iter().zip(seen.iter_mut()) {
        prop_assert!(now >= *before, "{now} after {before}");
        *before = now;
    }
    Ok(())
}
