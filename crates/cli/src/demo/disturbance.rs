//! Whether what a round measured was the set-ups' doing: a figure beside a compiler is none.
//!
//! A round is one slot of every set-up. It does not count, and is taken again ([`super::plan::Plan::retakes`]), if in one of its slots
//!
//! - others on this machine, its host included, used more than [`OTHERS_MAX`] CPUs: the machine's account less that of the demo's own
//!   processes;
//! - the client's threads, or the server's where it is alone, were ready and waited for a processor for more than [`WAITED_MAX`] of the
//!   time. (Beside hogs the server's threads wait for each other: that is what is measured.)
//! - the victim alone did less than [`ALONE_PART_MIN`] of what it did alone in another slot of the run, on tokio or on Quotient.
//!
//! *What Quotient did beside hogs is never a reason:* who drops rounds for a bad result has a good one in the end. It can only keep the
//! whole run from being judged, as any set-up can whose rounds differ by more than [`ROUNDS_DIFFER`].
//!
//! Why the last rule: a server that is alone and asked for all it can do never sleeps, so a computing neighbour of the machine gets its fair
//! share against it. The set-ups whose threads sleep and wake come before such a neighbour. So it is the yardstick that a busy machine
//! makes too short.

use serde::Serialize;

use super::mode::Mode;
use super::results::capacity_rps;
use super::slot::Slot;

/// What others may use during a slot of a round that counts. Unit: CPUs. Default 0.1, as in `quotient bench conserve`: the account is in
/// ticks of 10 ms.
const OTHERS_MAX: f64 = 0.1;
/// For how long threads that should have their CPUs to themselves may wait for one. Unit: part of the time, summed over threads.
const WAITED_MAX: f64 = 0.1;
/// What the victim alone does at least, as a part of the most that it does alone in a slot of the run. Default 0.8: quiet rounds differ by
/// less than a tenth, and Quotient alone costs some per cent.
const ALONE_PART_MIN: f64 = 0.8;
/// The fastest round of a set-up that counts does not exceed the slowest by more than this factor.
const ROUNDS_DIFFER: f64 = 1.33;
/// A client that uses this much of its one CPU in the closed loop is what is measured. Unit: CPUs.
const CLIENT_CPU_MAX: f64 = 0.95;

/// What a slot met on the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Met {
    /// CPUs that others used, the time the host took included; nothing where the machine does not say.
    pub others: Option<f64>,
    /// CPUs that the host took.
    pub stolen: f64,
}

/// One slot, for the report.
#[derive(Debug, Clone, Serialize)]
pub struct SlotFacts {
    mode: Mode,
    /// Closed loop: requests per second.
    capacity_rps: f64,
    /// CPUs that others on the machine used during the slot, its host included.
    others_cpu: Option<f64>,
    /// CPUs that the host took.
    stolen_cpu: f64,
    /// CPUs that the client used in the closed loop, of one.
    client_cpu: f64,
    /// How long the client's threads were ready and waited for a processor, as a part of both loops.
    client_waited: f64,
    /// The same of the server's.
    server_waited: f64,
}

/// One round, for the report.
#[derive(Debug, Clone, Serialize)]
pub struct RoundFacts {
    /// From 1, in the order in which they were taken.
    round: usize,
    /// Whether the figures are of it.
    counts: bool,
    /// Why not.
    disturbed: Vec<String>,
    slots: Vec<SlotFacts>,
}

/// What is to be held of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Validity {
    /// Whether enough rounds counted for a verdict.
    pub judged: bool,
    /// Why not.
    pub disturbed: Option<String>,
    /// How many rounds the figures are of: those that count, or without enough of those, all.
    pub figures_of_rounds: usize,
    rounds: Vec<RoundFacts>,
}

impl Validity {
    /// How many rounds were taken, and how many count.
    pub fn counted(&self) -> (usize, usize) {
        let counted = self.rounds.iter().filter(|round| round.counts).count();
        (self.rounds.len(), counted)
    }

    /// The first reason for which a round does not count.
    pub fn first_reason(&self) -> Option<&str> {
        let mut reasons = self.rounds.iter().flat_map(|round| &round.disturbed);
        reasons.next().map(String::as_str)
    }
}

/// For each round why it does not count; nothing for one that does. O(slots).
pub fn reasons(rounds: &[Vec<Slot>], own_cpu_for_client: bool) -> Vec<Vec<String>> {
    let alone = rounds.iter().flatten().filter(|slot| !slot.mode.has_hogs());
    let most = alone.map(capacity_rps).fold(0.0, f64::max);
    let of_round = |slots: &Vec<Slot>| {
        let reasons = slots
            .iter()
            .filter_map(|slot| reason(slot, most, own_cpu_for_client));
        reasons.collect()
    };
    rounds.iter().map(of_round).collect()
}

/// Whether a slot for itself shows that others computed beside it.
pub fn is_disturbed(slot: &Slot, own_cpu_for_client: bool) -> bool {
    reason(slot, 0.0, own_cpu_for_client).is_some()
}

fn reason(slot: &Slot, most_alone: f64, own_cpu_for_client: bool) -> Option<String> {
    let mode = slot.mode;
    if let Some(others) = slot.met.others.filter(|others| *others > OTHERS_MAX) {
        let host = if slot.met.stolen > OTHERS_MAX {
            format!(", {:.2} of them the host", slot.met.stolen)
        } else {
            String::new()
        };
        return Some(format!(
            "{mode}: others used {others:.2} CPUs of this machine{host}"
        ));
    }
    let waited = client_waited(slot);
    if own_cpu_for_client && waited > WAITED_MAX {
        return Some(format!(
            "{mode}: the client waited for a CPU for {:.0} % of the time",
            100.0 * waited
        ));
    }
    let waited = server_waited(slot);
    if own_cpu_for_client && mode == Mode::Alone && waited > WAITED_MAX {
        return Some(format!(
            "{mode}: the server waited for a CPU for {:.0} % of the time",
            100.0 * waited
        ));
    }
    let capacity = capacity_rps(slot);
    (mode == Mode::Alone && capacity < ALONE_PART_MIN * most_alone).then(|| {
        format!("{mode}: {capacity:.0} req/s, where the victim alone did {most_alone:.0} in another slot")
    })
}

/// What is to be held of the rounds, of which `planned` were wanted.
pub fn validity(rounds: &[Vec<Slot>], planned: u32, own_cpu_for_client: bool) -> Validity {
    let reasons = reasons(rounds, own_cpu_for_client);
    let counted: Vec<&Vec<Slot>> = rounds
        .iter()
        .zip(&reasons)
        .filter_map(|(slots, reasons)| reasons.is_empty().then_some(slots))
        .collect();
    let needed = planned.div_ceil(2) as usize;
    let disturbed = if counted.len() < needed {
        let first = reasons.iter().flatten().next();
        let first = first.map_or("no round was taken", String::as_str);
        Some(format!(
            "{} of {} rounds count, of {needed} needed ({first})",
            counted.len(),
            rounds.len()
        ))
    } else {
        differing(&counted).or_else(|| client_bound(&counted))
    };
    let figures_of_rounds = if counted.len() < needed {
        rounds.len()
    } else {
        counted.len()
    };
    let facts = (1..).zip(rounds.iter().zip(reasons));
    let facts = facts.map(|(round, (slots, disturbed))| RoundFacts {
        round,
        counts: disturbed.is_empty(),
        disturbed,
        slots: slots.iter().map(slot_facts).collect(),
    });
    Validity {
        judged: disturbed.is_none(),
        disturbed,
        figures_of_rounds,
        rounds: facts.collect(),
    }
}

/// Why the figures of a set-up are not one figure. Plain tokio beside hogs answers by chance, or not at all.
fn differing(rounds: &[&Vec<Slot>]) -> Option<String> {
    let modes = Mode::ALL.into_iter().filter(|mode| *mode != Mode::Tokio);
    let mut ranges = modes.map(|mode| {
        let slots = rounds.iter().flat_map(|slots| slots.iter());
        let of_mode = slots.filter(|slot| slot.mode == mode).map(capacity_rps);
        let range = of_mode.fold((f64::INFINITY, 0.0), |(least, most), rate| {
            (rate.min(least), rate.max(most))
        });
        (mode, range)
    });
    ranges.find_map(|(mode, (least, most))| {
        (most > least * ROUNDS_DIFFER).then(|| {
            format!("{mode}: {least:.0} req/s in one round that counts and {most:.0} in another")
        })
    })
}

/// Why the yardstick is the client's and not the victim's.
fn client_bound(rounds: &[&Vec<Slot>]) -> Option<String> {
    let mut slots = rounds.iter().flat_map(|slots| slots.iter());
    let bound = |slot: &&Slot| slot.mode == Mode::Alone && client_cpu(slot) > CLIENT_CPU_MAX;
    slots.find(bound).map(|_| {
        "alone: the client, one thread, was at its end before the server was: give --workers 1"
            .to_owned()
    })
}

fn slot_facts(slot: &Slot) -> SlotFacts {
    SlotFacts {
        mode: slot.mode,
        capacity_rps: capacity_rps(slot),
        others_cpu: slot.met.others,
        stolen_cpu: slot.met.stolen,
        client_cpu: client_cpu(slot),
        client_waited: client_waited(slot),
        server_waited: server_waited(slot),
    }
}

fn client_cpu(slot: &Slot) -> f64 {
    let length = slot.capacity.ended.since(slot.capacity.started);
    slot.capacity.threads.ran_us as f64 / 1e6 / length.as_secs_f64().max(1e-9)
}

fn client_waited(slot: &Slot) -> f64 {
    let closed = slot.capacity.ended.since(slot.capacity.started);
    let open = slot.open.as_ref();
    let length = closed + open.map_or_else(Default::default, |open| open.ended.since(open.started));
    let waited = slot.capacity.threads.waited_us + open.map_or(0, |open| open.threads.waited_us);
    waited as f64 / 1e6 / length.as_secs_f64().max(1e-9)
}

/// Over all samples: from the server's start to the end of the slot.
fn server_waited(slot: &Slot) -> f64 {
    let (Some(first), Some(last)) = (slot.samples.first(), slot.samples.last()) else {
        return 0.0;
    };
    let waited = last.waited_ns.saturating_sub(first.waited_ns) as f64 / 1e9;
    waited / last.at.since(first.at).as_secs_f64().max(1e-9)
}

#[cfg(test)]
pub mod tests {
    use super::super::clock::SharedMicros;
    use super::super::protocol::{Capacity, ClientThreads, Sample};
    use super::*;

    /// What a report is made of where nothing was disturbed, or something was.
    pub fn sample_validity(disturbed: Option<&str>) -> Validity {
        Validity {
            judged: disturbed.is_none(),
            disturbed: disturbed.map(str::to_owned),
            figures_of_rounds: 1,
            rounds: Vec::new(),
        }
    }

    fn slot(mode: Mode, capacity: u64) -> Slot {
        let sample = |second: u64, waited_ns| Sample {
            at: SharedMicros(second * 1_000_000),
            process_cpu_ns: 0,
            hog_cpu_ns: 0,
            hog_documents: 0,
            requests: 0,
            waited_ns,
            groups: None,
        };
        Slot {
            mode,
            capacity: Capacity {
                started: SharedMicros(0),
                ended: SharedMicros(1_000_000),
                completed: capacity,
                threads: ClientThreads {
                    ran_us: 500_000,
                    waited_us: 1_000,
                },
            },
            open: None,
            samples: vec![sample(0, 0), sample(2, 10_000_000)],
            met: Met {
                others: Some(0.02),
                stolen: 0.0,
            },
        }
    }

    /// A round like the one of the README.
    fn round() -> Vec<Slot> {
        [21_000, 20_000, 0, 10_700, 7_800, 17_000]
            .into_iter()
            .zip(Mode::ALL)
            .map(|(capacity, mode)| slot(mode, capacity))
            .collect()
    }

    #[test]
    fn quiet_rounds_are_judged() {
        let rounds = [round(), round(), round()];
        let found = validity(&rounds, 3, true);
        assert!(found.judged && found.figures_of_rounds == 3, "{found:?}");
        assert_eq!((found.counted(), found.first_reason()), ((3, 3), None));
    }

    type Disturb = fn(&mut Slot);

    #[test]
    fn a_round_beside_others_does_not_count_and_says_why() {
        let disturb: [(&str, Disturb); 5] = [
            ("alone: others used 0.43 CPUs", |slot| {
                slot.met.others = Some(0.43);
            }),
            ("0.30 of them the host", |slot| {
                (slot.met.others, slot.met.stolen) = (Some(0.43), 0.3);
            }),
            ("alone: the client waited for a CPU for 20 %", |slot| {
                slot.capacity.threads.waited_us = 200_000;
            }),
            ("alone: the server waited for a CPU for 50 %", |slot| {
                slot.samples[1].waited_ns = 1_000_000_000;
            }),
            (
                "alone: 8997 req/s, where the victim alone did 21000",
                |slot| {
                    slot.capacity.completed = 8_997;
                },
            ),
        ];
        for (said, disturb) in disturb {
            let mut rounds = [round(), round(), round()];
            disturb(&mut rounds[1][0]);
            let found = validity(&rounds, 3, true);
            assert!(found.judged, "two of three are enough: {found:?}");
            assert_eq!(found.counted(), (3, 2), "{found:?}");
            assert!(
                found.first_reason().is_some_and(|why| why.contains(said)),
                "{said}: {found:?}"
            );
            for round in &mut rounds {
                disturb(&mut round[0]);
            }
            // Where the yardstick is short in every round, Quotient alone shows it.
            let found = validity(&rounds, 3, true);
            let why = found.disturbed.clone().unwrap_or_default();
            assert!(
                !found.judged && why.contains("0 of 3 rounds count"),
                "{found:?}"
            );
        }
    }

    /// Threads wait for the client where there is no CPU for it, and beside hogs.
    #[test]
    fn waiting_that_is_the_set_ups_own_is_no_disturbance() {
        let mut rounds = [round()];
        rounds[0][4].samples[1].waited_ns = 1_000_000_000;
        assert!(validity(&rounds, 1, true).judged);
        rounds[0][0].capacity.threads.waited_us = 900_000;
        assert!(!validity(&rounds, 1, true).judged);
        assert!(validity(&rounds, 1, false).judged);
    }

    #[test]
    fn a_bad_result_of_quotient_drops_no_round() {
        let mut rounds = [round(), round(), round()];
        rounds[1][4].capacity.completed = 3_000;
        let found = validity(&rounds, 3, true);
        assert_eq!(found.counted(), (3, 3));
        let why = found.disturbed.unwrap_or_default();
        assert!(why.contains("quotient: 3000 req/s in one round"), "{why}");
        let mut rounds = [round(), round(), round()];
        for round in &mut rounds {
            round[4].capacity.completed = 3_000;
        }
        assert!(validity(&rounds, 3, true).judged, "it is bad, and judged");
    }

    #[test]
    fn a_client_at_its_end_is_no_yardstick() {
        let mut rounds = [round()];
        rounds[0][0].capacity.threads.ran_us = 990_000;
        let found = validity(&rounds, 1, true);
        assert!(
            !found.judged
                && found
                    .disturbed
                    .is_some_and(|why| why.contains("--workers 1"))
        );
    }
}
