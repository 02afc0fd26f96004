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

use super::served::Served;
use super::{Burst, Demand, Evidence, Loop, OUTSIDE, Recording, again, task};
use crate::meters::{Percentiles, Times};
use crate::plan::{Plan, WorkloadPlan};
use crate::program::{Program, Step};
use crate::random::Random;
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
    /// How long they took while they were recorded, as the meter of the replay would have it; `None` of marked ones, whose begin is drawn.
    pub recorded: Option<Percentiles>,
    /// What the bursts without a waker show of their loop.
    #[serde(skip)]
    pub evidence: Evidence,
    #[serde(skip)]
    tasks: Vec<Chained>,
    /// Parts of each.
    #[serde(skip)]
    counts: Vec<u32>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Open(u32),
    /// One that came while the burst ran: after the one before it, and before it begins here.
    Came(u32),
    Close(u32),
    /// Wakes the task of this index.
    Wake(u32),
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
            begins: BTreeMap::new(),
            of: HashMap::new(),
            roots: Vec::new(),
            spans: Vec::new(),
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
            begins,
            spans,
            ..
        } = builder;
        for piece in tasks.iter_mut().flat_map(|task| &mut task.bursts) {
            piece.acts.sort_unstable();
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
            recorded: recorded(&spans),
            evidence,
            tasks,
            counts,
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

struct Builder<'a> {
    demands: &'a [&'a Demand],
    /// So many of them are selected.
    own: usize,
    places: &'a Places,
    tasks: Vec<Chained>,
    counts: Vec<u32>,
    begins: BTreeMap<String, usize>,
    /// The request of each burst.
    of: HashMap<u32, u32>,
    /// The task with which each request began.
    roots: Vec<usize>,
    /// From the wake-up with which each began to the end of its last part.
    spans: Vec<Range<u64>>,
}

impl Builder<'_> {
    fn burst(&self, id: u32) -> (usize, usize, Burst) {
        let (task, place) = self.places[&id];
        (task, place, self.demands[task].bursts[place])
    }

    /// Tasks that are woken by their own chain nearly always.
    fn clients(&self) -> Vec<bool> {
        let is_woken = |burst: &&Burst| {
            let waker = self.places.get(&burst.by);
            waker.is_some_and(|(task, _)| *task < self.own)
        };
        let is_client = |demand: &&Demand| {
            let woken = demand.bursts.iter().filter(is_woken).count();
            woken * 100 > demand.bursts.len() * CLIENT_PERCENT
        };
        self.demands.iter().map(is_client).collect()
    }

    fn chain(&mut self, order: &[(u64, u32)], from: &[String]) {
        let clients = self.clients();
        for (_, id) in order {
            let (task, place, burst) = self.burst(*id);
            if task >= self.own {
                continue;
            }
            let above = self.of.get(&burst.by).copied();
            let name = &self.demands[task].name;
            let begins = if from.is_empty() {
                let comes_back =
                    above.is_some_and(|above| self.roots[above as usize] == task && clients[task]);
                above.is_none() || comes_back
            } else {
                from.contains(name)
            };
            let request = match (begins, above) {
                (true, _) => {
                    *self.begins.entry(name.clone()).or_insert(0) += 1;
                    self.open(task, place, &burst)
                }
                (false, Some(above)) => above,
                (false, None) => continue,
            };
            self.counts[request as usize] += 1;
            let span = &mut self.spans[request as usize];
            span.end = span.end.max(burst.end);
            self.of.insert(*id, request);
            self.tasks[task].bursts[place].closes = Some(request);
        }
    }

    /// A request begins with that burst: when it is woken, not when it runs at last.
    fn open(&mut self, task: usize, place: usize, burst: &Burst) -> u32 {
        let request = u32::try_from(self.counts.len()).unwrap_or(u32::MAX);
        self.counts.push(0);
        self.roots.push(task);
        self.spans.push(burst.at..burst.end);
        match self.places.get(&burst.by) {
            Some((waker, at)) => {
                let acts = &mut self.tasks[*waker].bursts[*at].acts;
                acts.push((burst.offset, Act::Open(request)));
            }
            None => self.tasks[task].bursts[place].opens = Some(request),
        }
        request
    }

    /// A marked request begins. A program marks it when it gets to it, which is later than it came: the first of a burst came with its
    /// wake-up, and one that follows another without a sleep came after that one and before its own begin. Nobody knows when, so it is drawn when a plan
    /// is made: a fixed place, like half-way, has the right mean and a 99th percentile that is a sixth too short.
    fn begin_marked(
        &mut self,
        request: u32,
        (task, place): (usize, usize),
        offset: u64,
        served: &HashMap<(usize, usize), u64>,
    ) {
        let burst = self.demands[task].bursts[place];
        let before = served.get(&(task, place)).copied();
        let idle_from = before.unwrap_or(0);
        let piece = &mut self.tasks[task].bursts[place];
        if offset.saturating_sub(idle_from) > ON_THE_WAY {
            // It did something else first: who knows since when this has waited.
            piece.acts.push((offset, Act::Open(request)));
        } else if before.is_some() {
            piece.acts.push((offset, Act::Came(request)));
        } else if piece.is_woken {
            let (waker, at) = self.places[&burst.by];
            let acts = &mut self.tasks[waker].bursts[at].acts;
            acts.push((burst.offset, Act::Open(request)));
        } else if piece.opens.is_none() {
            piece.opens = Some(request);
        } else {
            piece.acts.push((offset, Act::Open(request)));
        }
    }

    /// Requests as the program sees them, from when they came.
    fn mark(&mut self, selected: &Recording, names: &[String]) {
        let mut served = HashMap::new();
        for marked in &selected.marked {
            let (Some(begin), Some(end)) = (
                self.places.get(&marked.begin.burst),
                self.places.get(&marked.end.burst),
            ) else {
                continue;
            };
            let is_own = begin.0 < self.own || end.0 < self.own;
            if !is_own || !names.is_empty() && !names.contains(&marked.name) {
                continue;
            }
            let request = u32::try_from(self.counts.len()).unwrap_or(u32::MAX);
            self.counts.push(1);
            *self.begins.entry(marked.name.clone()).or_insert(0) += 1;
            let (begin, end) = (*begin, *end);
            self.begin_marked(request, begin, marked.begin.offset, &served);
            served.insert(end, marked.end.offset);
            self.tasks[end.0].bursts[end.1]
                .acts
                .push((marked.end.offset, Act::Close(request)));
        }
    }

    /// What wakes what.
    fn wake(&mut self) {
        for (index, demand) in self.demands.iter().enumerate() {
            for burst in &demand.bursts {
                if let Some((waker, place)) = self.places.get(&burst.by) {
                    let act = Act::Wake(u32::try_from(index).unwrap_or(u32::MAX));
                    let acts = &mut self.tasks[*waker].bursts[*place].acts;
                    acts.push((burst.offset, act));
                }
            }
        }
    }
}

/// From bursts to steps.
struct Compiler<'a> {
    how: Loop,
    /// How much later everything is; what is drawn follows from it.
    shift: u64,
    /// That of the recording.
    length: u64,
    meter: u32,
    /// The number of the first request in the plan.
    first: u32,
    channels: &'a [u32],
}

impl Compiler<'_> {
    fn program(&self, chained: &Chained, channel: u32) -> Program {
        let mut steps = Vec::new();
        let mut last = 0;
        for piece in &chained.bursts {
            self.begin(piece, channel, last, &mut steps);
            let (mut done, mut came) = (0, 0);
            for (offset, act) in &piece.acts {
                let offset = (*offset).clamp(done, piece.work);
                if offset > done {
                    steps.push(Step::Run(Nanos(offset - done).into()));
                    done = offset;
                }
                steps.push(self.act(*act, piece.at, (&mut came, offset)));
            }
            if piece.work > done {
                steps.push(Step::Run(Nanos(piece.work - done).into()));
            }
            if let Some(request) = piece.closes {
                steps.push(self.close(request));
            }
            last = piece.end;
        }
        if self.how == Loop::Closed {
            let begins = chained.bursts.iter().any(|piece| !piece.is_woken);
            return again(
                steps,
                if begins {
                    self.length.saturating_sub(last)
                } else {
                    0
                },
            );
        }
        Program::new(steps)
    }

    /// Until the burst begins.
    fn begin(&self, piece: &Piece, channel: u32, last: u64, steps: &mut Vec<Step>) {
        let at = Nanos(piece.at + self.shift);
        let came = match (piece.is_woken, self.how) {
            (true, _) => {
                steps.push(Step::Wait(channel));
                Step::NOW
            }
            (false, Loop::Open) => {
                steps.push(Step::Until(at));
                at
            }
            (false, Loop::Closed) => {
                steps.push(Step::Sleep(Nanos(piece.at.saturating_sub(last)).into()));
                Step::WOKEN
            }
        };
        if let Some(request) = piece.opens {
            let request = self.first + request;
            steps.push(Step::Open { request, at: came });
        }
    }

    /// `came` is when the last request of the burst came, as what it had computed by then; `offset` what it has computed now.
    fn act(&self, act: Act, burst: u64, (came, offset): (&mut u64, u64)) -> Step {
        match act {
            Act::Open(request) => {
                *came = offset;
                Step::Open {
                    request: self.first + request,
                    at: Step::NOW,
                }
            }
            Act::Came(request) => {
                let earliest = (*came).min(offset);
                let mut dice = Random::new(self.shift, u64::from(request));
                *came = earliest + dice.below(offset - earliest + 1);
                Step::Open {
                    request: self.first + request,
                    at: match self.how {
                        Loop::Open => Nanos(burst + *came + self.shift),
                        // It comes when somebody else is done, whenever that is.
                        Loop::Closed => Step::NOW,
                    },
                }
            }
            Act::Close(request) => self.close(request),
            Act::Wake(task) => Step::Post(self.channels[task as usize]),
        }
    }

    fn close(&self, request: u32) -> Step {
        Step::Close {
            request: self.first + request,
            meter: self.meter,
        }
    }
}

#[cfg(test)]
mod tests;
