//! Which bursts are parts of which request, by chains of wake-ups or by the program's marks.

use super::super::{Burst, Demand, Recording};
use super::{Act, CLIENT_PERCENT, Chained, ON_THE_WAY, Places};
use core::ops::Range;
use std::collections::{BTreeMap, HashMap};

/// Gives bursts to requests, one after the other.
pub(super) struct Builder<'a> {
    pub(super) demands: &'a [&'a Demand],
    /// So many of them are selected.
    pub(super) own: usize,
    pub(super) places: &'a Places,
    pub(super) tasks: Vec<Chained>,
    pub(super) counts: Vec<u32>,
    pub(super) begun: Vec<u64>,
    pub(super) begins: BTreeMap<String, usize>,
    /// The request of each burst.
    pub(super) of: HashMap<u32, u32>,
    /// The task with which each request began.
    pub(super) roots: Vec<usize>,
    /// From the wake-up with which each began to the end of its last part; of marked ones from the mark with which each began to that with which it ended.
    pub(super) spans: Vec<Range<u64>>,
    /// When each marked one came, if that was before the program had got to it; `None`: that is drawn.
    pub(super) came: Vec<Option<u64>>,
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

    pub(super) fn chain(&mut self, order: &[(u64, u32)], from: &[String]) {
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
        self.begun.push(burst.at);
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
    /// is made: a fixed place, like half-way, has the right mean and a 99th percentile that is a sixth too short. Returns when it came, if that is known.
    fn begin_marked(
        &mut self,
        request: u32,
        (task, place): (usize, usize),
        offset: u64,
        served: &HashMap<(usize, usize), u64>,
    ) -> Option<u64> {
        let burst = self.demands[task].bursts[place];
        let before = served.get(&(task, place)).copied();
        let idle_from = before.unwrap_or(0);
        let piece = &mut self.tasks[task].bursts[place];
        if offset.saturating_sub(idle_from) > ON_THE_WAY {
            // It did something else first: who knows since when this has waited.
            piece.acts.push((offset, Act::Open(request)));
            Some(self.begun[request as usize])
        } else if before.is_some() {
            piece.acts.push((offset, Act::Came(request)));
            None
        } else if piece.is_woken {
            let (waker, at) = self.places[&burst.by];
            let acts = &mut self.tasks[waker].bursts[at].acts;
            acts.push((burst.offset, Act::Open(request)));
            Some(burst.at)
        } else if piece.opens.is_none() {
            piece.opens = Some(request);
            Some(burst.at)
        } else {
            piece.acts.push((offset, Act::Open(request)));
            Some(self.begun[request as usize])
        }
    }

    /// Requests as the program sees them, from when they came.
    pub(super) fn mark(&mut self, selected: &Recording, names: &[String]) {
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
            self.begun.push(marked.begin.at);
            *self.begins.entry(marked.name.clone()).or_insert(0) += 1;
            let (begin, end) = (*begin, *end);
            self.spans.push(marked.begin.at..marked.end.at);
            let came = self.begin_marked(request, begin, marked.begin.offset, &served);
            self.came.push(came);
            served.insert(end, marked.end.offset);
            self.tasks[end.0].bursts[end.1]
                .acts
                .push((marked.end.offset, Act::Close(request)));
        }
    }

    /// What wakes what.
    pub(super) fn wake(&mut self) {
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
