//! What each mode of a group's sum promises: how often it writes, how far off it is, and that nothing is left behind.

use quotient_core::load_average::{
    CLUSTER_CPUS, Contribution, GroupSum, LiveRules, REFRESH_INTERVAL, SumRules, UpdateMode,
    averaged_load,
};
use quotient_core::pelt::{PERIOD, QueueAverage, QueueInput};
use quotient_core::{CpuId, Nanos};
use std::sync::Arc;

const TICK: Nanos = Nanos::from_millis(1);

fn machine(cpus: u32, nodes: u32) -> (Arc<GroupSum>, Vec<Contribution>) {
    let sum = Arc::new(GroupSum::new(cpus));
    let join = |cpu| {
        sum.join(CpuId(cpu), cpu * nodes / cpus)
            .expect("a CPU of the sum")
    };
    let parts = (0..cpus).map(join).collect();
    (sum, parts)
}

fn rules(mode: UpdateMode, nodes: u32) -> SumRules {
    SumRules::new(mode, nodes, TICK)
}

/// Ticks of all CPUs for `ticks` ms with the averages that `average(cpu, tick)` gives; returns shared writes.
fn run(
    parts: &mut [Contribution],
    rules: &SumRules,
    ticks: std::ops::Range<u64>,
    mut average: impl FnMut(usize, u64) -> u64,
) -> u32 {
    let mut writes = 0;
    for tick in ticks {
        let now = Nanos::from_millis(tick);
        for (cpu, part) in parts.iter_mut().enumerate() {
            writes += part.tick(average(cpu, tick), None, now, rules);
            writes += part.others(now, rules).shared_writes;
        }
    }
    writes
}

#[test]
fn every_tick_writes_every_tick_and_is_exact() {
    let (sum, mut parts) = machine(8, 8);
    let rules = rules(UpdateMode::EveryTick, 8);
    let writes = run(&mut parts, &rules, 0..1000, |cpu, tick| {
        cpu as u64 * 100 + tick
    });
    assert_eq!(writes, 8_000);
    assert_eq!(sum.total(Nanos(0), rules.mode), 28 * 100 + 8 * 999);
}

#[test]
fn eight_nodes_that_take_turns_write_an_eighth() {
    let (sum, mut parts) = machine(16, 8);
    let rules = rules(UpdateMode::NodeStaggered, 8);
    let writes = run(&mut parts, &rules, 0..8000, |_, tick| tick);
    // The first time is everybody's turn.
    assert!((16_000..=16_016).contains(&writes), "{writes}");
    // Two CPUs of each node; the node of turn t wrote t.
    let expected: u64 = (7_992..8_000).map(|tick| 2 * tick).sum();
    assert_eq!(sum.total(Nanos(0), rules.mode), expected);
}

#[test]
fn a_cpu_that_missed_its_turn_takes_the_next_tick() {
    let (_, mut parts) = machine(8, 8);
    let rules = rules(UpdateMode::NodeStaggered, 8);
    let part = &mut parts[3];
    let mut at = |tick| part.tick(tick, None, Nanos::from_millis(tick), &rules);
    assert_eq!(at(3), 1);
    // Its turn was tick 11; at 12 its last time is more than a round ago.
    assert_eq!((at(12), at(13)), (1, 0));
    assert_eq!(at(19), 1);
}

#[test]
fn saved_averages_expire_after_a_round() {
    let (_, mut parts) = machine(8, 8);
    let rules = rules(UpdateMode::NodeStaggered, 8);
    let at = Nanos::from_millis;
    parts[0].tick(100, None, at(0), &rules);
    assert_eq!(parts[0].others(at(0), &rules).sum, 0);
    parts[1].tick(50, None, at(1), &rules);
    let (kept, fresh) = (
        parts[0].others(at(7), &rules),
        parts[0].others(at(8), &rules),
    );
    assert_eq!((kept.sum, kept.looked), (0, false));
    assert_eq!((fresh.sum, fresh.looked), (50, true));
}

#[test]
fn rate_limited_keeps_back_less_than_a_sixty_fourth() {
    let (_, mut parts) = machine(1, 1);
    let rules = rules(UpdateMode::RateLimited, 1);
    let part = &mut parts[0];
    let at = Nanos::from_millis;
    assert_eq!(part.tick(6400, None, at(0), &rules), 1);
    assert_eq!(part.tick(6500, None, at(1), &rules), 0);
    assert_eq!(part.tick(6501, None, at(2), &rules), 1);
    // Too soon, however much it is.
    assert_eq!(part.tick(0, None, Nanos(at(2).0 + 999_999), &rules), 0);
    assert_eq!(part.tick(0, None, at(3), &rules), 1);
    assert_eq!(part.published(), 0);
}

#[test]
fn on_demand_writes_nothing_shared_within_a_cluster() {
    let (sum, mut parts) = machine(16, 8);
    let rules = rules(UpdateMode::OnDemand, 8);
    let writes = run(&mut parts, &rules, 0..2000, |cpu, tick| tick * cpu as u64);
    assert_eq!(writes, 0);
    assert_eq!(sum.exact(Nanos(0)), 120 * 1999);
    let others = parts[15].others(Nanos::from_millis(2100), &rules).sum;
    assert_eq!(others, 105 * 1999);
}

#[test]
fn on_demand_writes_partial_sums_once_an_interval_beyond_a_cluster() {
    let cpus = 4 * CLUSTER_CPUS as u32;
    let (_, mut parts) = machine(cpus, 4);
    let rules = rules(UpdateMode::OnDemand, 4);
    let writes = run(&mut parts, &rules, 0..1000, |_, tick| tick);
    let bound = 4 * 1000 / (REFRESH_INTERVAL.0 / TICK.0) as u32;
    assert!(writes <= bound + 8, "{writes} of {bound}");
    assert!(cpus * 1000 / writes >= 50, "{writes}");
    // A little over two intervals after everything stood still everybody knows everything.
    run(&mut parts, &rules, 1000..1020, |_, _| 999);
    for part in &mut parts {
        let others = part.others(Nanos::from_millis(1024), &rules).sum;
        assert_eq!(others, 999 * u64::from(cpus - 1));
    }
}

#[test]
fn a_partial_sum_whose_cpus_sleep_is_added_up_by_others() {
    let (_, mut parts) = machine(2 * CLUSTER_CPUS as u32, 2);
    let rules = rules(UpdateMode::OnDemand, 2);
    let at = Nanos::from_millis;
    parts[20].tick(4096, Some(at(100)), at(100), &rules);
    let (near, far) = (
        parts[0].others(at(110), &rules),
        parts[0].others(at(2_500), &rules),
    );
    assert!((3200..=3400).contains(&near.sum), "{near:?}");
    assert_eq!(far.sum, 0);
}

#[test]
fn what_sleeps_fades_without_a_tick_as_with_ticks() {
    let (sum, mut parts) = machine(2, 1);
    let rules = rules(UpdateMode::OnDemand, 1);
    let mut average = QueueAverage::new(Nanos(0));
    let busy = QueueInput {
        load: 3072,
        runnable: 3,
        ran: Nanos(0),
    };
    let slept = Nanos(70 * PERIOD.0 + 123_456);
    average.advance(slept, busy);
    parts[1].tick(average.load(), Some(slept), slept, &rules);
    for millisecond in 1..800 {
        let now = slept + Nanos::from_millis(millisecond);
        average.advance(now, QueueInput::default());
        let seen = sum.total(now, rules.mode);
        assert!(
            seen.abs_diff(average.load()) <= 2,
            "{seen} and {}",
            average.load()
        );
    }
    assert_eq!(sum.total(slept + Nanos::from_secs(3), rules.mode), 0);
}

#[test]
fn a_cpu_that_goes_away_takes_its_part_along_in_every_mode() {
    for mode in UpdateMode::ALL {
        let (sum, mut parts) = machine(20, 2);
        let rules = rules(mode, 2);
        run(&mut parts, &rules, 0..100, |cpu, _| 10 + cpu as u64);
        let now = Nanos::from_millis(100);
        let before = sum.total(now, mode);
        parts[7].withdraw();
        assert_eq!(sum.total(now, mode), before - 17, "{mode:?}");
        parts.pop();
        assert_eq!(sum.total(now, mode), before - 17 - 29, "{mode:?}");
        parts.clear();
        assert_eq!(sum.total(now, mode), 0, "{mode:?}");
        assert_eq!(sum.exact(now), 0);
    }
}

#[test]
fn a_change_of_mode_leaves_nothing_behind() {
    let (sum, mut parts) = machine(4, 4);
    let live = LiveRules::new(rules(UpdateMode::EveryTick, 4));
    for (round, mode) in UpdateMode::ALL.into_iter().cycle().take(12).enumerate() {
        live.set_mode(mode);
        let start = round as u64 * 50;
        run(&mut parts, &live.get(), start..start + 50, |cpu, _| {
            64 + cpu as u64
        });
        let now = Nanos::from_millis(start + 50);
        let total = sum.total(now, mode);
        assert_eq!(total, 4 * 64 + 6, "{mode:?}");
        let published: u64 = parts.iter().map(Contribution::published).sum();
        assert_eq!(
            published,
            if mode == UpdateMode::OnDemand {
                0
            } else {
                total
            }
        );
    }
}

#[test]
fn only_cpus_of_the_sum_may_join() {
    let sum = Arc::new(GroupSum::new(17));
    assert!(sum.join(CpuId(16), 0).is_some());
    assert!(sum.join(CpuId(17), 0).is_none());
    let nobody = Arc::new(GroupSum::new(0));
    assert!(nobody.join(CpuId(0), 0).is_none());
    assert_eq!(nobody.total(Nanos(0), UpdateMode::OnDemand), 0);
}

#[test]
fn a_group_costs_memory_where_it_runs() {
    let sum = Arc::new(GroupSum::new(512));
    let empty = sum.bytes();
    let _part = sum.join(CpuId(100), 0).map(|mut part| {
        part.tick(1, None, Nanos(0), &rules(UpdateMode::OnDemand, 1));
        part
    });
    assert!(empty <= 1024 && sum.bytes() - empty <= 64 * CLUSTER_CPUS + 256);
}

#[test]
fn averages_give_what_the_weight_modes_need() {
    let load = averaged_load(2048, 1024, 3072, 5 * 1024 + 511, 8);
    assert_eq!(
        (load.local, load.total, load.tasks, load.cpus),
        (2048, 5120, 5, 8)
    );
    let woken = averaged_load(1024, 3, 0, 0, 8);
    assert_eq!((woken.local, woken.total, woken.tasks), (1024, 1024, 1));
    let huge = averaged_load(u64::MAX, 0, u64::MAX, u64::MAX, 8);
    assert_eq!((huge.total, huge.tasks > 1 << 30), (u64::MAX, true));
}
