//! What a tick costs when all vCPUs tick without pause: the price of fighting over cache lines.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use quotient_core::load_average::{SumRules, UpdateMode};
use quotient_core::{CpuId, Nanos};

use super::plan::Workload;
use super::vcpu::{Groups, Vcpu};
use super::{GROUPS, NODES, TICK};
use crate::bench::statistics::Spread;

/// Ticks a thread and round.
const TICKS: u64 = 20_000;

/// Rounds; the median counts. Modes take turns, so that all meet the same machine.
const ROUNDS: usize = 5;

/// CPU ns of one group's averaging in one tick for every mode, in the order of [`UpdateMode::ALL`].
pub fn measure(vcpus: u32, cpus_online: usize, quick: bool) -> [f64; 4] {
    let divisor = if quick { 5 } else { 1 };
    let ticks = (TICKS / divisor / u64::from(vcpus)).max(200);
    let mut rounds = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        for (mode, figures) in UpdateMode::ALL.into_iter().zip(&mut rounds) {
            figures.push(round(mode, vcpus, cpus_online, ticks));
        }
    }
    rounds.map(|figures| Spread::of(&figures).map_or(0.0, |spread| spread.median))
}

fn round(mode: UpdateMode, vcpus: u32, cpus_online: usize, ticks: u64) -> f64 {
    let groups = Groups::new(GROUPS, vcpus);
    let rules = SumRules::new(mode, NODES, TICK);
    let barrier = Barrier::new(vcpus as usize);
    let spans: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let (groups, barrier) = (&groups, &barrier);
        let spawn = |cpu: u32| {
            scope.spawn(move || {
                let node = cpu * NODES / vcpus;
                let mut vcpu = Vcpu::new(groups, Workload::Varying, CpuId(cpu), node);
                barrier.wait();
                let began = Instant::now();
                for tick in 1..=ticks {
                    vcpu.tick(Nanos(TICK.0 * tick), &rules, None);
                }
                let ended = Instant::now();
                // Nobody withdraws while others still tick.
                barrier.wait();
                (began, ended)
            })
        };
        let threads: Vec<_> = (0..vcpus).map(spawn).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.filter_map(Result::ok).collect()
    });
    let began = spans.iter().map(|(began, _)| *began).min();
    let ended = spans.iter().map(|(_, ended)| *ended).max();
    let whole = began.zip(ended).map(|(began, ended)| ended - began);
    let nanos = whole.unwrap_or_default().as_nanos() as f64;
    let busy = cpus_online.min(vcpus as usize) as f64;
    nanos * busy / (ticks * u64::from(vcpus) * GROUPS as u64) as f64
}
