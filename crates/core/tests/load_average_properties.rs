//! Invariant 14 over random CPUs, ticks, sleeps and changes of mode.

use proptest::prelude::*;
use quotient_core::load_average::{Contribution, GroupSum, REFRESH_INTERVAL, SumRules, UpdateMode};
use quotient_core::pelt::{QueueAverage, QueueInput};
use quotient_core::{CpuId, Nanos};
use std::sync::Arc;

const TICK: Nanos = Nanos::from_millis(1);

#[derive(Clone, Debug)]
enum Step {
    /// Time passes, ns.
    Pass(u64),
    /// A CPU's queue changes to so many shares.
    Load(usize, u64),
    Tick(usize),
    Look(usize),
    Withdraw(usize),
    Mode(usize),
}

fn steps(cpus: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => prop_oneof![0..2_000_000u64, 0..40_000_000u64].prop_map(Step::Pass),
        3 => (0..cpus, prop_oneof![Just(0), 0..10_000u64]).prop_map(|(cpu, load)| Step::Load(cpu, load)),
        8 => (0..cpus).prop_map(Step::Tick),
        3 => (0..cpus).prop_map(Step::Look),
        1 => (0..cpus).prop_map(Step::Withdraw),
        1 => (0..UpdateMode::ALL.len()).prop_map(Step::Mode),
    ];
    prop::collection::vec(step, 1..300)
}

struct Cpu {
    part: Contribution,
    average: QueueAverage,
    load: u64,
    ticked: Option<(Nanos, UpdateMode)>,
}

impl Cpu {
    fn advance(&mut self, now: Nanos) {
        let input = QueueInput {
            load: self.load,
            runnable: 0,
            ran: Nanos(0),
        };
        self.average.advance(now, input);
    }
}

/// What a tick must keep, whatever the mode.
fn tick(cpu: &mut Cpu, now: Nanos, rules: &SumRules) -> Result<(), TestCaseError> {
    cpu.advance(now);
    let before = cpu.part.published();
    let average = cpu.average.load();
    let empty = (cpu.load == 0).then(|| cpu.average.updated_at());
    let writes = cpu.part.tick(average, empty, now, rules);
    let after = cpu.part.published();
    prop_assert!(writes == 1 || before == after);
    match rules.mode {
        UpdateMode::EveryTick => prop_assert_eq!((after, writes), (average, 1)),
        UpdateMode::OnDemand => prop_assert_eq!(after, 0),
        UpdateMode::NodeStaggered | UpdateMode::RateLimited if writes == 1 => {
            prop_assert_eq!(after, average)
        }
        UpdateMode::NodeStaggered => {}
        UpdateMode::RateLimited => {
            let soon = cpu.ticked.is_some_and(|(at, _)| now - at < TICK);
            prop_assert!(soon || average.abs_diff(after) <= after / 64);
        }
    }
    if writes == 1 {
        cpu.ticked = Some((now, rules.mode));
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_sum_is_what_was_published_and_nothing_is_left(steps in steps(20), nodes in 1..9u32) {
        let sum = Arc::new(GroupSum::new(20));
        let join = |cpu: u32| Cpu {
            part: sum.join(CpuId(cpu), cpu * nodes / 20).expect("a CPU of the sum"),
            average: QueueAverage::new(Nanos(0)),
            load: 0,
            ticked: None,
        };
        let mut cpus: Vec<Cpu> = (0..20).map(join).collect();
        let mut rules = SumRules::new(UpdateMode::EveryTick, nodes, TICK);
        let mut now = Nanos(0);
        for step in steps {
            match step {
                Step::Pass(nanos) => now += Nanos(nanos),
                Step::Load(cpu, load) => {
                    cpus[cpu].advance(now);
                    cpus[cpu].load = load;
                }
                Step::Tick(cpu) => tick(&mut cpus[cpu], now, &rules)?,
                Step::Look(cpu) => {
                    cpus[cpu].part.others(now, &rules);
                    let again = cpus[cpu].part.others(now, &rules);
                    prop_assert_eq!(again.shared_writes, 0);
                }
                Step::Withdraw(cpu) => {
                    cpus[cpu].part.withdraw();
                    cpus[cpu].ticked = None;
                    prop_assert_eq!(cpus[cpu].part.published(), 0);
                }
                Step::Mode(mode) => rules.mode = UpdateMode::ALL[mode],
            }
            let published: u64 = cpus.iter().map(|cpu| cpu.part.published()).sum();
            prop_assert_eq!(sum.total(now, UpdateMode::EveryTick), published);
        }
        drop(cpus);
        prop_assert_eq!((sum.total(now, UpdateMode::RateLimited), sum.exact(now)), (0, 0));
    }

    #[test]
    fn what_is_known_on_demand_is_at_most_an_interval_old(steps in steps(6)) {
        let sum = Arc::new(GroupSum::new(6));
        let mut parts: Vec<Contribution> =
            (0..6).map(|cpu| sum.join(CpuId(cpu), 0).expect("a CPU of the sum")).collect();
        let rules = SumRules::new(UpdateMode::OnDemand, 1, TICK);
        let (mut now, mut values) = (Nanos(0), [0u64; 6]);
        // Every value that the others of each CPU had, with the time until which it was true.
        let mut history: Vec<Vec<(Nanos, u64)>> = vec![vec![(Nanos(0), 0)]; 6];
        for step in steps {
            match step {
                Step::Pass(nanos) => now += Nanos(nanos),
                Step::Load(cpu, load) => {
                    values[cpu] = load;
                    parts[cpu].tick(load, None, now, &rules);
                }
                Step::Tick(cpu) | Step::Look(cpu) => {
                    let known = parts[cpu].others(now, &rules).sum;
                    let mut recent = history[cpu].iter().filter(|(until, _)| now - *until < REFRESH_INTERVAL);
                    let current = values.iter().sum::<u64>() - values[cpu];
                    prop_assert!(known == current || recent.any(|&(_, others)| others == known));
                }
                Step::Withdraw(_) | Step::Mode(_) => {}
            }
            for cpu in 0..6 {
                let others = values.iter().sum::<u64>() - values[cpu];
                history[cpu].push((now, others));
            }
        }
    }
}
