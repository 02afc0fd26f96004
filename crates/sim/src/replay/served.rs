//! A closed loop that is seen from both ends: clients that ask, and threads that answer.
//!
//! Who waits for an answer is woken by who computed it. Which thread that is depends on the day: whoever is free takes the oldest request. So
//! neither the order in which a thread answered is kept nor who it answered, as chains of wake-ups would have it (under a limit a thread finds the next
//! request when it is done with one, and answers three clients in a burst), but what each request computed, and how long each client thought:
//!
//! - an *answer* wakes a client; the client's burst before it *asked*, by waking the thread or while that was at work already;
//! - a request's work is what the thread computed since its last answer in that burst, or since the burst began;
//! - threads of one name, but for a number behind it, are one pool, with one queue;
//! - a client does what it did between an answer and its next request, and sleeps as long: neither depends on a limit.
//!
//! What else these threads did is played beside it, as it was.

use super::play::{again, serve, task};
use super::{Burst, Demand};
use crate::meters::Percentiles;
use crate::plan::{Plan, WorkloadPlan};
use crate::program::{Program, Step};
use crate::synthetic::GroupIndex;
use core::ops::Range;
use quotient_core::{Nanos, Weight};
use std::collections::{BTreeMap, HashMap};

/// Fewer answers have no 99th percentile. Origin: as requests.
const ANSWERS_MIN: usize = 100;
/// Bursts that answer somebody have to hold this part of the work, per cent, or there is more to it than clients and a pool.
const ANSWERING_PERCENT: u64 = 95;

/// In a burst of a client that is longer, ns, when it asked is not known, unless it woke somebody then. Default 1 ms.
const ASKING_MAX: u64 = 1_000_000;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
struct Ask {
    /// What it had computed in its burst.
    offset: u64,
    pool: usize,
    work: u64,
}

/// A burst of a client.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// How long it slept before; `None`: until it had its answer.
    thought: Option<u64>,
    work: u64,
    asks: Option<Ask>,
}

/// Clients and pools.
#[derive(Clone, Debug)]
pub(super) struct Served {
    /// Threads of each pool, by their weights.
    pools: Vec<Vec<Weight>>,
    clients: Vec<Client>,
    /// Bursts of the threads that answer nobody, by thread, with its weight.
    others: Vec<(Vec<Burst>, Weight)>,
    /// From each ask whose time is known to its answer, as recorded.
    spans: Vec<Range<u64>>,
}

#[derive(Clone, Debug)]
struct Client {
    weight: Weight,
    seat: GroupIndex,
    turns: Vec<Turn>,
    /// The end of its last burst.
    end: u64,
}

/// Where a client was woken by an answer: client, and the place of that burst among its bursts; and what the thread had computed.
#[derive(Clone, Copy, Debug)]
struct Answer {
    client: usize,
    place: usize,
    offset: u64,
}

impl Served {
    /// Finds them among the tasks that are asked about and those beside that wake them or are woken by them. O(bursts log bursts).
    pub(super) fn of(own: &[Demand], beside: &[Demand]) -> Option<Served> {
        let answers = answers(own, beside);
        let count: usize = answers.values().map(Vec::len).sum();
        if count < ANSWERS_MIN {
            return None;
        }
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let mut pools = Vec::new();
        let mut asks: HashMap<(usize, usize), Ask> = HashMap::new();
        let (mut answering, mut all) = (0_u64, 0_u64);
        let (mut others, mut spans) = (Vec::new(), Vec::new());
        for demand in own {
            let (mine, rest): (Vec<&Burst>, Vec<&Burst>) = demand
                .bursts
                .iter()
                .partition(|burst| answers.contains_key(&burst.id));
            all += demand.work();
            // What was cut off at the end would be asked for anew.
            let last = demand.bursts.last();
            let last = last.filter(|burst| demand.restored > 0 || !answers.contains_key(&burst.id));
            let rest: Vec<Burst> = rest
                .into_iter()
                .filter(|burst| Some(*burst) != last)
                .copied()
                .collect();
            others.push((rest, demand.weight));
            all -= last.map_or(0, |burst| burst.work);
            if mine.is_empty() {
                continue;
            }
            let pool = *names
                .entry(without_number(&demand.name))
                .or_insert_with(|| {
                    pools.push(Vec::new());
                    pools.len() - 1
                });
            pools[pool].push(demand.weight);
            for burst in mine {
                answering += if Some(burst) == last { 0 } else { burst.work };
                let mut from = 0;
                let list = &answers[&burst.id];
                for (index, answer) in list.iter().enumerate() {
                    let is_last = index + 1 == list.len();
                    let to = if is_last {
                        burst.work
                    } else {
                        answer.offset.min(burst.work)
                    }
                    .max(from);
                    let asker = &beside[answer.client].bursts[answer.place - 1];
                    // Who wakes the thread asks then. Who finds it at work asks some time in its burst, which is a long one if it was preempted.
                    let woke_it = asker.id == burst.by;
                    let (asked, offset) = if woke_it {
                        (burst.at, burst.offset)
                    } else {
                        (asker.end, asker.work)
                    };
                    if woke_it || asker.end - asker.at <= ASKING_MAX {
                        spans.push(asked..beside[answer.client].bursts[answer.place].at);
                    }
                    let work = to - from;
                    asks.insert(
                        (answer.client, answer.place - 1),
                        Ask { offset, pool, work },
                    );
                    from = to;
                }
            }
        }
        if u128::from(answering) * 100 < u128::from(all) * u128::from(ANSWERING_PERCENT) {
            return None;
        }
        let clients = beside.iter().enumerate();
        let clients = clients.map(|(index, demand)| client(demand, index, &asks));
        Some(Served {
            pools,
            clients: clients.collect(),
            others,
            spans,
        })
    }

    /// How long answers took while they were recorded; `None` if that is known of too few.
    pub(super) fn recorded(&self) -> Option<Percentiles> {
        let is_enough = self.spans.len() >= ANSWERS_MIN;
        super::requests::recorded(&self.spans).filter(|_| is_enough)
    }

    /// Clients that ask, and threads.
    pub(super) fn size(&self) -> (usize, u32) {
        let asks = |client: &&Client| client.turns.iter().any(|turn| turn.asks.is_some());
        (
            self.clients.iter().filter(asks).count(),
            self.pools.iter().map(Vec::len).sum::<usize>() as u32,
        )
    }

    /// Adds them to a plan: the threads in `group`, the clients in the root or where they have their seats, all later by a shift; a recording of that length begins again at its end.
    pub(super) fn add_to(
        &self,
        plan: &mut Plan,
        (name, meter): (&str, u32),
        group: GroupIndex,
        (shift, length): (Nanos, u64),
    ) {
        let queues: Vec<u32> = self.pools.iter().map(|_| plan.queue()).collect();
        let mut own = Vec::new();
        for (threads, queue) in self.pools.iter().zip(&queues) {
            let program = plan.program(serve(*queue, meter));
            own.extend(threads.iter().map(|weight| task(group, program, *weight)));
        }
        let others = self.others.iter();
        for (bursts, weight) in others.filter(|(bursts, _)| !bursts.is_empty()) {
            let program = plan.program(as_it_was(bursts, length));
            let mut task = task(group, program, *weight);
            task.begin = shift;
            own.push(task);
        }
        let mut others = Vec::new();
        for client in &self.clients {
            let channel = plan.channel(0);
            let program = plan.program(client.program(&queues, channel, length));
            let mut task = task(client.seat, program, client.weight);
            task.begin = shift;
            others.push(task);
        }
        for (name, tasks) in [(name.to_owned(), own), (format!("{name}, others"), others)] {
            plan.workloads.push(WorkloadPlan { name, tasks });
        }
    }
}

impl Client {
    fn program(&self, queues: &[u32], channel: u32, length: u64) -> Program {
        let mut steps = Vec::new();
        let run = |steps: &mut Vec<Step>, work: u64| {
            if work > 0 {
                steps.push(Step::Run(Nanos(work).into()));
            }
        };
        for turn in &self.turns {
            steps.push(match turn.thought {
                Some(thought) => Step::Sleep(Nanos(thought).into()),
                None => Step::Wait(channel),
            });
            let Some(ask) = turn.asks else {
                run(&mut steps, turn.work);
                continue;
            };
            let before = ask.offset.min(turn.work);
            run(&mut steps, before);
            steps.push(Step::Ask {
                queue: queues[ask.pool],
                work: Nanos(ask.work),
                reply: channel,
            });
            run(&mut steps, turn.work - before);
        }
        again(steps, length.saturating_sub(self.end))
    }
}

/// Threads of a pool often have numbers: `worker-3`.
fn without_number(name: &str) -> &str {
    let is_number = |letter: char| letter.is_ascii_digit() || "-_.:/#".contains(letter);
    let rest = name.trim_end_matches(is_number);
    if rest.is_empty() { name } else { rest }
}

/// The answers of each burst of the threads, by what it had computed.
fn answers(own: &[Demand], beside: &[Demand]) -> HashMap<u32, Vec<Answer>> {
    let bursts = own.iter().flat_map(|demand| &demand.bursts);
    let began: HashMap<u32, (u64, u32)> = bursts
        .map(|burst| (burst.id, (burst.at, burst.by)))
        .collect();
    let mut answers: HashMap<u32, Vec<Answer>> = HashMap::new();
    for (client, demand) in beside.iter().enumerate() {
        for (place, pair) in (1..).zip(demand.bursts.windows(2)) {
            let (asker, woken) = (&pair[0], &pair[1]);
            let Some(&(at, by)) = began.get(&woken.by) else {
                continue;
            };
            // Otherwise it was woken for a reason of the thread's own.
            if asker.by != woken.by && (asker.id == by || asker.end > at) {
                let offset = woken.offset;
                answers.entry(woken.by).or_default().push(Answer {
                    client,
                    place,
                    offset,
                });
            }
        }
    }
    for list in answers.values_mut() {
        list.sort_unstable_by_key(|answer| (answer.offset, answer.client));
    }
    answers
}

fn client(demand: &Demand, index: usize, asks: &HashMap<(usize, usize), Ask>) -> Client {
    let mut turns = Vec::with_capacity(demand.bursts.len());
    let mut last = 0;
    for (place, burst) in demand.bursts.iter().enumerate() {
        let asked = place > 0 && asks.contains_key(&(index, place - 1));
        turns.push(Turn {
            thought: (!asked).then(|| burst.at.saturating_sub(last)),
            work: burst.work,
            asks: asks.get(&(index, place)).copied(),
        });
        last = burst.end;
    }
    Client {
        weight: demand.weight,
        seat: demand.seat,
        turns,
        end: last,
    }
}

fn as_it_was(bursts: &[Burst], length: u64) -> Program {
    let mut steps = Vec::new();
    let mut last = 0;
    for burst in bursts.iter().filter(|burst| burst.work > 0) {
        steps.push(Step::Sleep(Nanos(burst.at.saturating_sub(last)).into()));
        steps.push(Step::Run(Nanos(burst.work).into()));
        last = burst.end;
    }
    again(steps, length.saturating_sub(last))
}

#[cfg(test)]
mod tests {
    use super::super::{Loop, Recording, Requests, Rule, Selection};
    use super::*;
    use crate::random::Span;
    use crate::{Machine, Simulation};
    use quotient_core::{BandwidthRules, Limit};
    use quotient_trace::{Discard, JsonLines};

    const fn millis(count: u64) -> Nanos {
        Nanos::from_millis(count)
    }

    fn plan(limit: Option<Limit>) -> Plan {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(10);
        plan.settings.config.bandwidth = BandwidthRules::KERNEL;
        plan.group("app");
        plan.groups[0].limit = limit;
        plan
    }

    /// Four clients that think for 15 to 45 ms and ask for 8 ms of two threads.
    fn service(limit: Option<Limit>) -> Plan {
        let mut plan = plan(limit);
        let (meter, queue) = (plan.meter("requests"), plan.queue());
        let program = plan.program(serve(queue, meter));
        plan.workloads.push(WorkloadPlan {
            name: "svc".into(),
            tasks: vec![task(Some(0), program, Weight::DEFAULT); 2],
        });
        for _ in 0..4 {
            let reply = plan.channel(0);
            let thought = Span::Uniform {
                low: millis(15),
                high: millis(45),
            };
            let program = plan.program(Program::forever([
                Step::Sleep(thought),
                Step::Run(Nanos::from_micros(20).into()),
                Step::Ask {
                    queue,
                    work: millis(8),
                    reply,
                },
                Step::Wait(reply),
                Step::Run(Nanos::from_micros(20).into()),
            ]));
            plan.workloads.push(WorkloadPlan {
                name: "client".into(),
                tasks: vec![task(None, program, Weight::DEFAULT)],
            });
        }
        plan
    }

    /// CPU time of the group, and the requests' count, p50 and p99.
    fn outcome(plan: &Plan) -> (u64, [u64; 3]) {
        let mut simulation = Simulation::new(plan, Discard).unwrap();
        simulation.run().unwrap();
        let outcome = simulation.outcome();
        let times = outcome.meter("requests").unwrap().times;
        let group = &outcome.groups[1];
        (group.usage_ns, [times.count, times.p50_ns, times.p99_ns])
    }

    fn recorded(limit: Option<Limit>) -> Requests {
        let mut simulation = Simulation::new(&service(limit), JsonLines::new(Vec::new())).unwrap();
        simulation.run().unwrap();
        let text = simulation.into_sink().finish().unwrap();
        // A kernel's trace has no such events.
        let text = String::from_utf8(text).unwrap();
        let kept = text.lines().filter(|line| !line.contains("throttle"));
        let text = kept.collect::<Vec<_>>().join("\n");
        let selection = Selection {
            groups: vec!["app".into()],
            ..Selection::default()
        };
        let (own, beside) = Recording::read(&mut text.as_bytes())
            .unwrap()
            .split(&selection);
        Requests::of(&own, Some(&beside), &Rule::Chains(Vec::new()))
    }

    #[test]
    fn clients_that_wait_are_found_under_a_limit_and_ask_as_they_would_without() {
        let tight = Limit::new(millis(50), millis(100));
        let wide = Limit::new(millis(70), millis(100));
        for recorded_under in [None, Some(tight)] {
            let requests = recorded(recorded_under);
            assert_eq!(requests.served_by(), Some((4, 2)));
            let (_, [_, median, worst]) = outcome(&service(recorded_under));
            let found = requests.recorded_in(Loop::Closed).unwrap();
            let ratios = [(found.p50_ns, median), (found.p99_ns, worst)]
                .map(|(found, real)| found * 100 / real);
            assert!(
                ratios.iter().all(|ratio| (95..=105).contains(ratio)),
                "{recorded_under:?} {ratios:?}"
            );
            for limit in [None, Some(wide), Some(tight)] {
                let (cpu, [count, median, worst]) = outcome(&service(limit));
                let mut again = plan(limit);
                requests.add_to(&mut again, "requests", Some(0), Loop::Closed, Nanos::ZERO);
                let (cpu_again, [count_again, median_again, worst_again]) = outcome(&again);
                let near = |one: u64, other: u64, percent: u64| {
                    one.abs_diff(other) * 100 <= one.max(other) * percent
                };
                let told = format!(
                    "recorded under {recorded_under:?}, asked for {limit:?}: {cpu} {cpu_again}, {count} {count_again}, {median} {median_again}, {worst} {worst_again}"
                );
                assert!(
                    near(cpu, cpu_again, 3) && near(count, count_again, 3),
                    "{told}"
                );
                assert!(near(worst, worst_again, 15), "{told}");
                // In the middle of a throttle the median is steep.
                assert!(limit.is_some() || near(median, median_again, 5), "{told}");
            }
        }
    }
}
