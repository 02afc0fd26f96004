//! When a group lately had a limit: so that a poll which was under way while limits were set and lifted is charged with the
//! time for which there was one.

use std::collections::VecDeque;

/// Ended spans that are kept. Unit: spans. Default 8: a CPU looks at changes at the end of each poll, and who lifts and sets
/// a limit more often than that within one poll has the oldest spans joined, as if the limit had been in force between them.
const SPANS_MAX: usize = 8;

/// The spans of time in which there was a limit. All times in ns.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// Since when there has been a limit, if there is.
    since: Option<u64>,
    /// Those that ended, oldest first: beginning and end.
    ended: VecDeque<(u64, u64)>,
}

impl Spans {
    /// A limit is in force from `now` on.
    pub(super) fn begin(&mut self, now: u64) {
        self.since = Some(now);
    }

    /// There is no limit from `now` on.
    pub(super) fn end(&mut self, now: u64) {
        let Some(since) = self.since.take() else {
            return;
        };
        self.ended.push_back((since, now));
        if self.ended.len() > SPANS_MAX
            && let Some((oldest, _)) = self.ended.pop_front()
            && let Some(next) = self.ended.front_mut()
        {
            next.0 = oldest;
        }
    }

    /// For how long there has been no limit at `now`; for ever if there never was one.
    pub(super) fn lifted_for(&self, now: u64) -> u64 {
        let last = self.ended.back();
        last.map_or(u64::MAX, |&(_, end)| now.saturating_sub(end))
    }

    /// For how much of the time between two moments there was a limit.
    pub(super) fn within(&self, from: u64, to: u64) -> u64 {
        let current = self.since.map(|since| (since, u64::MAX));
        let spans = self.ended.iter().copied().chain(current);
        spans
            .map(|(begin, end)| end.min(to).saturating_sub(begin.max(from)))
            .sum()
    }
}
