//! The load of a trace: as it was recorded, or drawn anew with each seed.

use std::sync::OnceLock;

use quotient_sim::Plan;
use quotient_sim::advise::phase;
use quotient_sim::replay::{Blocks, Change, Loop, RecordedLimit, Recording, Requests, Rule};

use super::How;

/// Draws are kept for the next run up to so many bursts of all of them, else made again each time. Default four million: some hundreds of MB.
const KEPT_BURSTS_MAX: usize = 4_000_000;

/// The part of a trace that is asked about, beside the rest.
pub(super) struct Load {
    pub(super) limited: Recording,
    /// What ran beside it, not limited.
    pub(super) beside: Option<Recording>,
    /// Who recorded all that.
    pub(super) recorder: Option<Recording>,
    pub(super) how: How,
    /// What a request is; `None`: bursts.
    pub(super) rule: Option<Rule>,
    pub(super) requests: Option<Requests>,
    /// The limit that it was recorded under: what it held back is undone, another way with each seed.
    pub(super) limit: Option<RecordedLimit>,
    /// Whether the trace itself says that.
    pub(super) is_limit_noted: bool,
    /// How it changed meanwhile, if it did.
    pub(super) change: Option<Change>,
    /// How its time is cut.
    pub(super) blocks: Blocks,
    /// The draws of the seeds from 1 on, once they are made; none if they are too much to keep.
    pub(super) kept: Kept,
}

/// What was made for each seed, kept for the next limit.
pub(super) struct Kept {
    anew: Vec<OnceLock<Drawn>>,
    /// The recording itself with what its limit held back undone, another way with each seed; none of one without a limit.
    as_recorded: Vec<OnceLock<Drawn>>,
}

/// What may have been wanted.
pub(super) struct Drawn {
    limited: Recording,
    beside: Option<Recording>,
    requests: Option<Requests>,
}

/// Which load is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Draw {
    /// The one that was recorded, for what it can be compared with.
    AsRecorded,
    /// The same beside who recorded it, for what the trace can be compared with.
    BesideRecorder,
    /// The one that was recorded without who ran beside it, but for those who take part in its requests.
    Alone,
    /// Another one of its kind: its blocks, drawn anew for each seed.
    Anew,
}

impl Load {
    /// Who ran beside it and takes no part in its requests.
    pub(super) fn company(&self) -> Option<&Recording> {
        let rest = self.requests.as_ref().map(|requests| &requests.rest);
        let company = self.beside.as_ref().map(|beside| rest.unwrap_or(beside));
        company.filter(|company| company.tasks() > 0)
    }

    /// Places for the draws of so many seeds, unless these are too much to keep.
    pub(super) fn places(
        limited: &Recording,
        beside: Option<&Recording>,
        seeds: u32,
        is_limited: bool,
    ) -> Kept {
        let bursts = limited.bursts() + beside.map_or(0, Recording::bursts);
        let kinds = 1 + usize::from(is_limited);
        let is_little = bursts.saturating_mul(kinds * seeds as usize) <= KEPT_BURSTS_MAX;
        let places = |are_wanted: bool| {
            let count = if is_little && are_wanted { seeds } else { 0 };
            (0..count).map(|_| OnceLock::new()).collect()
        };
        Kept {
            anew: places(true),
            as_recorded: places(is_limited),
        }
    }

    /// Adds it to a plan, with a number of threads (0: as it is).
    pub(super) fn add_to(
        &self,
        plan: &mut Plan,
        (threads, group): (u32, Option<u32>),
        (seed, draw): (u64, Draw),
    ) {
        self.add_load_to(plan, (threads, group), (seed, draw));
        if let Some(recorder) = self
            .recorder
            .as_ref()
            .filter(|_| draw == Draw::BesideRecorder)
        {
            recorder.add_to(plan, "recorder", None, Loop::Open);
        }
    }

    fn add_load_to(
        &self,
        plan: &mut Plan,
        (threads, group): (u32, Option<u32>),
        (seed, draw): (u64, Draw),
    ) {
        if draw != Draw::Anew && self.limit.is_none() {
            let parts = (&self.limited, self.beside.as_ref(), self.requests.as_ref());
            self.add_parts_to(plan, (threads, group), (seed, draw), parts);
            return;
        }
        let index = usize::try_from(seed.saturating_sub(1)).unwrap_or(usize::MAX);
        let place = match draw {
            Draw::Anew => self.kept.anew.get(index),
            Draw::AsRecorded | Draw::BesideRecorder | Draw::Alone => {
                self.kept.as_recorded.get(index)
            }
        };
        let made;
        let drawn = match place {
            Some(place) => place.get_or_init(|| self.drawn(seed, draw)),
            None => {
                made = self.drawn(seed, draw);
                &made
            }
        };
        let parts = (
            &drawn.limited,
            drawn.beside.as_ref(),
            drawn.requests.as_ref(),
        );
        self.add_parts_to(plan, (threads, group), (seed, draw), parts);
    }

    fn drawn(&self, seed: u64, draw: Draw) -> Drawn {
        let unlimited = self.limit.as_ref();
        let unlimited = unlimited.map(|limit| self.limited.without_limit(limit, seed));
        let limited = unlimited.as_ref().unwrap_or(&self.limited);
        let (limited, beside) = match draw {
            Draw::AsRecorded | Draw::BesideRecorder | Draw::Alone => {
                (limited.clone(), self.beside.clone())
            }
            Draw::Anew => {
                let index = usize::try_from(seed.saturating_sub(1)).unwrap_or(0);
                self.blocks.draw(index, limited, self.beside.as_ref())
            }
        };
        let rule = self.rule.as_ref();
        let requests = rule.map(|rule| Requests::of(&limited, beside.as_ref(), rule));
        Drawn {
            limited,
            beside,
            requests,
        }
    }

    fn add_parts_to(
        &self,
        plan: &mut Plan,
        (threads, group): (u32, Option<u32>),
        (seed, draw): (u64, Draw),
        (limited, mut beside, requests): (&Recording, Option<&Recording>, Option<&Requests>),
    ) {
        let how = self.how.as_loop();
        match (threads, self.how, requests) {
            (0, How::Open | How::Closed, Some(requests)) => {
                // Sources are moved by the sweep itself, by as much.
                requests.add_to(plan, "requests", group, how, phase(seed));
                beside = beside.map(|_| &requests.rest);
            }
            (0, How::Open | How::Closed, None) => {
                limited.add_later(plan, "bursts", group, how, phase(seed));
            }
            (0, How::Pooled, _) => {
                let threads = u32::try_from(limited.tasks()).unwrap_or(u32::MAX);
                limited.add_pooled(plan, "bursts", group, threads);
            }
            (threads, ..) => limited.add_pooled(plan, "bursts", group, threads),
        }
        let is_wanted = |beside: &&Recording| draw != Draw::Alone && beside.tasks() > 0;
        if let Some(beside) = beside.filter(is_wanted) {
            beside.add_beside(plan, "beside");
        }
    }
}
