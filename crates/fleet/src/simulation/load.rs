//! What simulated processes want.

use rand_core::Rng;
use rand_pcg::Pcg32;

use super::{STEP, Scenario};
use crate::units::Micros;

/// How the wish for CPU time is spread over processes and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// All processes want the same.
    Even,
    /// The k-th process wants 1/k of what the first wants (Zipf's law), as far as its CPUs go.
    Skewed,
    /// One tenth of the processes wants all of it; after each of these times, the next tenth.
    Moving(Micros),
    /// Each process wants ten times its mean for half to one and a half of this time, and then nothing for nine times as long,
    /// at random.
    Bursty(Micros),
}

impl Load {
    /// The start of the period that `now` is in, for a load that moves.
    pub(super) fn shift(self, now: Micros) -> Option<Micros> {
        match self {
            Load::Moving(every) if now >= every => Some(Micros(now.0 / every.0 * every.0)),
            _ => None,
        }
    }

    /// What process `index` of `count` wants of one unit that all want, and whether it is one of those the load has moved to.
    pub(super) fn part(self, index: usize, count: usize, now: Micros, burst: bool) -> (f64, bool) {
        let all = count as f64;
        match self {
            Load::Even => (1.0 / all, false),
            Load::Skewed => {
                let harmonic = all.ln() + 0.577;
                (1.0 / (index as f64 + 1.0) / harmonic, false)
            }
            Load::Moving(every) => {
                let block = count.div_ceil(10);
                let blocks = count.div_ceil(block);
                let turn = (now.0 / every.0) as usize % blocks;
                let hot = index / block == turn;
                let size = block.min(count - turn * block);
                (if hot { 1.0 / size as f64 } else { 0.0 }, hot)
            }
            Load::Bursty(_) => (if burst { 10.0 / all } else { 0.0 }, false),
        }
    }
}

/// What process `index` wants in the step that ends at `now`, us, and whether it is one of those the load has moved to.
pub(super) fn wants(
    scenario: &Scenario,
    bursts: &mut Bursts,
    index: usize,
    now: Micros,
) -> (f64, bool) {
    let burst = bursts.at(now, scenario.load);
    let (part, fresh) = scenario.load.part(index, scenario.processes, now, burst);
    let quota = scenario.limit.quota.unwrap_or_default().as_cpus();
    let rate = (part * quota * scenario.pressure).min(scenario.cpus.as_cpus());
    (rate * STEP.0 as f64, fresh)
}

/// When a process's next burst begins and ends.
#[derive(Clone, Debug)]
pub(super) struct Bursts {
    random: Pcg32,
    on: bool,
    until: Micros,
}

impl Bursts {
    pub(super) fn new(random: Pcg32) -> Bursts {
        Bursts {
            random,
            on: false,
            until: Micros::ZERO,
        }
    }

    pub(super) fn at(&mut self, now: Micros, load: Load) -> bool {
        let Load::Bursty(mean) = load else {
            return false;
        };
        if now >= self.until {
            let first = self.until == Micros::ZERO;
            self.on = !self.on && !first;
            let length = mean.0 / 2 + self.random.next_u64() % mean.0.max(1);
            let off = if first {
                self.random.next_u64() % 10
            } else {
                9
            };
            self.until = now + Micros(if self.on { length } else { length * off });
        }
        self.on
    }
}
