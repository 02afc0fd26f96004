//! Requests: bursts that belong together because one woke the other, or because the program marked them.
//!
//! **Chains.** A burst that a timer, a device or somebody outside the selection wakes begins a request; what it wakes, and what
//! that wakes, are parts of it, and it is over with the last of them. Two things cut chains. Who is asked for by name begins a
//! request with every burst (`from`), and then nobody else does. Otherwise a thread that is woken by what it began itself, and by
//! nobody else, is a client that got its answer: it begins the next one.
//!
//! **Replay.** What caused what is kept: a burst that was woken waits in the replay until its waker has computed as much as it
//! had, so a server that is slower gets less from clients in the trace without anybody saying so. Tasks outside the selection
//! that wake it or are woken by it take part in that, unlimited and unmeasured. Only bursts without a waker are played as an open
//! or as a closed loop. Of two that wake the same task, either may come first in a replay; the number is what counts.

mod build;
mod compile;

use self::build::Builder;
use self::compile::Compiler;
use super::play::task;
use super::served::Served;
use super::{Burst, Demand, Evidence, Loop, OUTSIDE, Recording};
use crate::meters::{Percentiles, Times};
use crate::plan::{Plan, WorkloadPlan};
use crate::synthetic::GroupIndex;
use core::ops::Range;
use quotient_core::{Nanos, Weight};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// A thread of whose bursts more than this part, per cent, is woken by others in its chain begins requests itself. Origin: who
/// takes requests from outside and answers when its workers are done has one of each.
const CLIENT_PERCENT: usize = 75;
/// Fewer requests have no 99th percentile. Origin: as bursts.
const REQUESTS_MIN: usize = 100;

/// How often the moments are drawn at which marked requests came, for what the trace says of their times. Default 8: more change the percentiles of
/// a hundred requests by less than their own spread.
const DRAWS: u64 = 8;

/// What a thread may compute, ns, from its wake-up or from the end of a marked request to the mark of the next one, if that one has caused it.
/// Default 200 us: reading and parsing, not work of its own.
const ON_THE_WAY: u64 = 200_000;

/// What a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A chain of wake-ups; empty: guessed where they begin, else from the bursts of the threads of these names.
    Chains(Vec<String>),
    /// What the program marked with one of these names; empty: with any.
    Marks(Vec<String>),
}

/// The requests of a recording.
#[derive(Clone, Debug, Serialize)]
pub struct Requests {
    /// How many there are.
    pub requests: usize,
    /// Bursts that are parts of one.
    pub parts: usize,
    /// Bursts that were woken by another one that is played.
    pub woken: usize,
    /// Names of the threads with whose bursts most of them begin, and how many.
    pub begin_with: Vec<(String, usize)>,
    /// Tasks outside the selection that take part.
    pub others: usize,
    /// Bursts without a waker behind one with a waker: their task may have slept since it got an answer, or until something was due.
    pub answered: usize,
    /// How long they took while they were recorded, as the meter of the replay would have it. Of marked ones whose begin is drawn, over some draws.
    pub recorded: Option<Percentiles>,
    /// The same of a closed loop, where it differs: marked ones that follow others come when the program has got to them.
    #[serde(skip)]
    recorded_closed: Option<Percentiles>,
    /// What the bursts without a waker show of their loop.
    #[serde(skip)]
    pub evidence: Evidence,
    #[serde(skip)]
    tasks: Vec<Chained>,
    /// Parts of each.
    #[serde(skip)]
    counts: Vec<u32>,
    /// When the program had got to each that it marked, as recorded.
    #[serde(skip)]
    begun: Vec<u64>,
    /// Clients and the threads that answer them, if that is all there is.
    #[serde(skip)]
    served: Option<Served>,
    #[serde(skip)]
    length: u64,
    /// Who does not take part.
    #[serde(skip)]
    pub rest: Recording,
}

/// What one task does.
#[derive(Clone, Debug)]
struct Chained {
    is_selected: bool,
    weight: Weight,
    seat: GroupIndex,
    bursts: Vec<Piece>,
}

/// A burst in its chain.
#[derive(Clone, Debug)]
struct Piece {
    at: u64,
    end: u64,
    work: u64,
    is_woken: bool,
    /// The request that begins with it, if it has no waker.
    opens: Option<u32>,
    /// The request that it is a part of.
    closes: Option<u32>,
    /// What it does on the way, by what it has computed.
    acts: Vec<(u64, Act)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Open(u32),
    /// One that came while the burst ran: after the one before it, and before it begins here.
    Came(u32),
    Close(u32),
    /// Wakes the task of this index.
    Wake(u32),
}

impl Act {
    /// Its place among those at one moment. Requests have their numbers in the order in which they end, and one that ends does so before the next one
    /// is waited for.
    fn place(self) -> (u32, u32) {
        match self {
            Act::Open(request) | Act::Came(request) => (request, 0),
            Act::Close(request) => (request, 1),
            Act::Wake(task) => (u32::MAX, task),
        }
    }
}

/// Where a burst is: task and place among its bursts.
type Places = HashMap<u32, (usize, usize)>;

impl Requests {
    /// Finds the requests of `selected`, in which tasks of `beside` may take part. O(bursts log bursts).
    pub fn of(selected: &Recording, beside: Option<&Recording>, rule: &Rule) -> Requests {
        let (linked, rest) = linked(selected, beside);
        let demands: Vec<&Demand> = selected.tasks.iter().chain(&linked).collect();
        let own = selected.tasks.len();
        let mut places = Places::new();
        let mut order: Vec<(u64, u32)> = Vec::new();
        for (task, demand) in demands.iter().enumerate() {
            for (place, burst) in demand.bursts.iter().enumerate() {
                // Pieces of a burst share its number; the first one is it.
                places.entry(burst.id).or_insert((task, place));
                order.push((burst.at, burst.id));
            }
        }
        order.sort_unstable();
        order.dedup_by_key(|(_, id)| *id);
        let mut builder = Builder {
            demands: &demands,
            own,
            places: &places,
            tasks: demands
                .iter()
                .enumerate()
                .map(|(index, demand)| chained(demand, index < own, &places))
                .collect(),
            counts: Vec::new(),
            begun: Vec::new(),
            begins: BTreeMap::new(),
            of: HashMap::new(),
            roots: Vec::new(),
            spans: Vec::new(),
            came: Vec::new(),
        };
        match rule {
            Rule::Chains(from) => builder.chain(&order, from),
            Rule::Marks(names) => builder.mark(selected, names),
        }
        builder.wake();
        let is_root = |burst: &Burst| !places.contains_key(&burst.by);
        let clients = clients_of(&demands, own, &places);
        let evidence = if clients.pairs > 0 {
            clients
        } else {
            Recording::evidence_of(&demands, &is_root)
        };
        let answered = demands
            .iter()
            .map(|demand| behind_answers(demand, &is_root))
            .sum();
        let Builder {
            mut tasks,
            counts,
            begun,
            begins,
            spans,
            came,
            ..
        } = builder;
        for piece in tasks.iter_mut().flat_map(|task| &mut task.bursts) {
            piece
                .acts
                .sort_unstable_by_key(|(offset, act)| (*offset, act.place()));
        }
        let pieces = || tasks.iter().flat_map(|task| &task.bursts);
        let mut begin_with: Vec<(String, usize)> = begins.into_iter().collect();
        begin_with.sort_by_key(|(_, count)| core::cmp::Reverse(*count));
        let served = match rule {
            Rule::Chains(from) if from.is_empty() => Served::of(&selected.tasks, &linked),
            _ => None,
        };
        Requests {
            requests: counts.len(),
            parts: counts.iter().map(|count| *count as usize).sum(),
            woken: pieces().filter(|piece| piece.is_woken).count(),
            begin_with,
            others: linked.len(),
            answered,
            recorded: match rule {
                Rule::Chains(_) => recorded(&spans),
                Rule::Marks(_) => recorded(&marked_spans(&tasks, &spans, &came)),
            },
            recorded_closed: match rule {
                Rule::Chains(_) => None,
                Rule::Marks(_) => recorded(&marked_spans_of_closed(&spans, &came)),
            },
            evidence,
            tasks,
            counts,
            begun,
            served,
            length: selected.length.0,
            rest,
        }
    }

    /// Clients, and threads that answer them, if a closed loop is played as those.
    pub fn served_by(&self) -> Option<(usize, u32)> {
        self.served.as_ref().map(Served::size)
    }

    /// How long they took while they were recorded, as they are played in that loop.
    pub fn recorded_in(&self, how: Loop) -> Option<Percentiles> {
        match (&self.served, how) {
            (Some(served), Loop::Closed) => served.recorded(),
            (None, Loop::Closed) => self.recorded_closed.or(self.recorded),
            _ => self.recorded,
        }
    }

    /// Whether there are enough to judge by.
    pub fn is_enough(&self) -> bool {
        self.requests >= REQUESTS_MIN
    }

    /// Adds them to a plan: the selected tasks in `group`, the others in the root or where [`Seats`](super::Seats) put them, with one meter for requests. Everything is
    /// later by `shift`.
    pub fn add_to(&self, plan: &mut Plan, name: &str, group: GroupIndex, how: Loop, shift: Nanos) {
        let meter = plan.meter(name);
        if let (Some(served), Loop::Closed) = (&self.served, how) {
            served.add_to(plan, (name, meter), group, (shift, self.length));
            return;
        }
        let channels: Vec<u32> = self.tasks.iter().map(|_| plan.channel(0)).collect();
        let first = u32::try_from(plan.requests.len()).unwrap_or(u32::MAX);
        plan.requests.extend(&self.counts);
        let mut loads = [Vec::new(), Vec::new()];
        for (index, chained) in self.tasks.iter().enumerate() {
            let program = Compiler {
                how,
                shift: shift.0,
                length: self.length,
                meter,
                first,
                begun: &self.begun,
                channels: &channels,
            }
            .program(chained, channels[index]);
            let program = plan.program(program);
            let group = if chained.is_selected {
                group
            } else {
                chained.seat
            };
            let mut task = task(group, program, chained.weight);
            task.begin = shift;
            loads[usize::from(!chained.is_selected)].push(task);
        }
        let [own, others] = loads;
        for (name, tasks) in [(name.to_owned(), own), (format!("{name}, others"), others)] {
            if !tasks.is_empty() {
                plan.workloads.push(WorkloadPlan { name, tasks });
            }
        }
    }
}

/// What those beside show that ask the selected ones and are woken by them.
fn clients_of(demands: &[&Demand], own: usize, places: &Places) -> Evidence {
    let (selected, beside) = demands.split_at(own);
    let bursts = selected.iter().flat_map(|demand| &demand.bursts);
    let asking: std::collections::HashSet<u32> = bursts.map(|burst| burst.by).collect();
    let is_own = |id: &u32| places.get(id).is_some_and(|(task, _)| *task < own);
    Recording::evidence_of_clients(
        beside,
        &|burst| !places.contains_key(&burst.by),
        &|burst| asking.contains(&burst.id),
        &|burst| is_own(&burst.by),
    )
}

/// Bursts without a waker behind one with a waker.
fn behind_answers(demand: &Demand, is_root: &dyn Fn(&Burst) -> bool) -> usize {
    let pairs = demand.bursts.windows(2);
    pairs
        .filter(|pair| is_root(&pair[1]) && !is_root(&pair[0]))
        .count()
}

/// The tasks beside that wake the selected ones or are woken by them, and the rest.
fn linked(selected: &Recording, beside: Option<&Recording>) -> (Vec<Demand>, Recording) {
    let Some(beside) = beside else {
        return (Vec::new(), Recording::default());
    };
    let ids = |demand: &Demand| {
        demand
            .bursts
            .iter()
            .map(|burst| burst.id)
            .collect::<Vec<_>>()
    };
    let causes = |recording: &Recording| {
        let bursts = recording.tasks.iter().flat_map(|demand| &demand.bursts);
        bursts
            .filter(|burst| burst.by != OUTSIDE)
            .map(|burst| burst.by)
            .collect::<std::collections::HashSet<u32>>()
    };
    let own: std::collections::HashSet<u32> = selected.tasks.iter().flat_map(ids).collect();
    let wanted = causes(selected);
    let (linked, rest) = beside.tasks.iter().cloned().partition(|demand| {
        demand
            .bursts
            .iter()
            .any(|burst| wanted.contains(&burst.id) || own.contains(&burst.by))
    });
    let frame = Recording {
        groups: beside.groups.clone(),
        length: beside.length,
        cpus: beside.cpus,
        ..Recording::default()
    };
    (linked, frame.with(rest))
}

/// How long those took.
pub(super) fn recorded(spans: &[Range<u64>]) -> Option<Percentiles> {
    let mut times = Times::new();
    for span in spans {
        times.record(span.end.saturating_sub(span.start));
    }
    (!spans.is_empty()).then(|| Percentiles::of(&times))
}

/// How long marked requests took, if each came when it is known to have come, or when some draws say.
fn marked_spans(tasks: &[Chained], spans: &[Range<u64>], known: &[Option<u64>]) -> Vec<Range<u64>> {
    let mut all = Vec::with_capacity(spans.len() * DRAWS as usize);
    for seed in 1..=DRAWS {
        let mut begins: Vec<u64> = known.iter().map(|came| came.unwrap_or(0)).collect();
        // As they are played: each after the one before it.
        for piece in tasks.iter().flat_map(|task| &task.bursts) {
            let mut came = piece.at;
            for (_, act) in &piece.acts {
                match *act {
                    Act::Open(request) => came = spans[request as usize].start,
                    Act::Came(request) => {
                        came = compile::drawn(seed, request, came..spans[request as usize].start);
                        begins[request as usize] = came;
                    }
                    Act::Close(_) | Act::Wake(_) => {}
                }
            }
        }
        let ends = spans.iter().map(|span| span.end);
        all.extend(begins.into_iter().zip(ends).map(|(begin, end)| begin..end));
    }
    all
}

/// The same where those that are not known came when the program had got to them.
fn marked_spans_of_closed(spans: &[Range<u64>], known: &[Option<u64>]) -> Vec<Range<u64>> {
    let both = spans.iter().zip(known);
    both.map(|(span, came)| came.unwrap_or(span.start)..span.end)
        .collect()
}

fn chained(demand: &Demand, is_selected: bool, places: &Places) -> Chained {
    let bursts = demand.bursts.iter().map(|burst| Piece {
        at: burst.at,
        end: burst.end,
        work: burst.work,
        is_woken: places.contains_key(&burst.by),
        opens: None,
        closes: None,
        acts: Vec::new(),
    });
    Chained {
        is_selected,
        weight: demand.weight,
        seat: demand.seat,
        bursts: bursts.collect(),
    }
}

#[cfg(test)]
mod tests;
