//! What happens to threads that have a poll to themselves: stopped, resumed, let run in turn because of locks.
//!
//! # Why it has a buffer of its own
//! The watch and those who stop and resume write here, and they wait for nobody that a stopped thread keeps waiting: not for the allocator,
//! and not for the lock of a ring, under which others allocate. So all memory comes with the recording's start and with each drain,
//! outside the lock, which is a leaf and held for a few instructions. A full buffer forgets its oldest events and counts them.
//! Nobody comes here while nobody in the process records: every place asks the gate `events` first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use quotient_core::event::{Event, Kind, RescueReason, ResumeReason, TaskId};
use quotient_core::{Gates, Nanos};
use quotient_pause::{Pause, PauseError};

use crate::clock::Clock;
use crate::gates::RuntimeGates;
use crate::shared::cpu_id;

/// Most events that are kept. Unit: events of 32 bytes, 2 MiB. There are some 1,000 a second at most.
const CAPACITY_MAX: usize = 65_536;

/// See the module's header.
pub(crate) struct PauseLog {
    clock: Clock,
    kept: Mutex<Kept>,
    /// Requests to stand still that the program (by a handler of its own) or the system (by a filter) refused. Counted always.
    refused: AtomicU64,
}

#[derive(Default)]
struct Kept {
    /// 0 while nobody records; the events have room for as many.
    capacity: usize,
    events: VecDeque<Event>,
    lost: u64,
}

impl Kept {
    /// Without room, one less is kept of the oldest.
    fn push(&mut self, event: Event) {
        if self.capacity == 0 {
            return;
        }
        if self.events.len() == self.capacity {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event);
    }
}

impl PauseLog {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            kept: Mutex::default(),
            refused: AtomicU64::new(0),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// The thread that has `task`'s poll is asked to stand still; virtual CPU `by` was the last to choose it.
    #[inline]
    pub(crate) fn paused(&self, task: TaskId, by: usize) {
        if RuntimeGates::events() {
            self.push(by, Kind::Pause { task });
        }
    }

    /// What became of a request to stand still: one that was refused is counted, one that came too late is not.
    pub(crate) fn asked(&self, answer: Result<Pause, PauseError>) -> Option<Pause> {
        if answer.as_ref().is_err_and(Self::is_refused) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        answer.ok()
    }

    /// Whether such a request was refused, and whoever should stand goes on.
    pub(crate) fn is_refused(error: &PauseError) -> bool {
        matches!(
            error,
            PauseError::Displaced { .. } | PauseError::Refused { .. }
        )
    }

    /// How many requests were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// It may go on.
    #[inline]
    pub(crate) fn resumed(&self, task: TaskId, by: usize, reason: ResumeReason) {
        if RuntimeGates::events() {
            self.push(by, Kind::Resume { task, reason });
        }
    }

    /// All that stand have a short turn.
    #[inline]
    pub(crate) fn rescue(&self, reason: RescueReason) {
        if RuntimeGates::events() {
            self.push(0, Kind::Rescue { reason });
        }
    }

    #[cold]
    fn push(&self, by: usize, kind: Kind) {
        let cpu = if by == crate::preempt::NOBODY { 0 } else { by };
        let mut kept = self.kept();
        // Under the lock: one thread's events are in the order of their times.
        let event = Event::new(self.clock.now(), cpu_id(cpu), kind);
        kept.push(event);
    }

    /// Recording begins: `capacity` events at most.
    pub(super) fn start(&self, capacity: usize) {
        let capacity = capacity.min(CAPACITY_MAX);
        let fresh = Kept {
            capacity,
            events: VecDeque::with_capacity(capacity),
            lost: 0,
        };
        let _shield = quotient_pause::uninterrupted();
        let before = std::mem::replace(&mut *self.kept(), fresh);
        drop(before);
    }

    /// What was written until `until`, and how many were forgotten.
    pub(super) fn take(&self, until: Nanos) -> (Vec<Event>, u64) {
        let _shield = quotient_pause::uninterrupted();
        let capacity = self.kept().capacity;
        let fresh = Kept {
            capacity,
            events: VecDeque::with_capacity(capacity),
            lost: 0,
        };
        let taken = std::mem::replace(&mut *self.kept(), fresh);
        let mut old = taken.events;
        let first_young = old.partition_point(|event| event.time <= until);
        let mut young = VecDeque::with_capacity(capacity);
        young.extend(old.drain(first_young..));
        if !young.is_empty() {
            self.give_back(&mut young);
        }
        (old.into(), taken.lost)
    }

    /// Puts events back in front. `young` has room for all that may be kept.
    fn give_back(&self, young: &mut VecDeque<Event>) {
        let mut kept = self.kept();
        while young.len() + kept.events.len() > kept.capacity && young.pop_front().is_some() {
            kept.lost += 1;
        }
        young.append(&mut kept.events);
        std::mem::swap(young, &mut kept.events);
    }

    /// Recording ends.
    pub(super) fn stop(&self) {
        let _shield = quotient_pause::uninterrupted();
        let before = std::mem::take(&mut *self.kept());
        drop(before);
    }
}

impl std::fmt::Debug for PauseLog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PauseLog").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn log_of(capacity: usize, times: std::ops::Range<u64>) -> PauseLog {
        let log = PauseLog::new(Clock::new());
        log.start(capacity);
        for time in times {
            let task = TaskId(1);
            let event = Event::new(Nanos(time), cpu_id(0), Kind::Pause { task });
            log.kept().push(event);
        }
        log
    }

    fn times(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.time.as_nanos()).collect()
    }

    #[test]
    fn a_full_buffer_grows_or_says_nothing_of_what_it_forgot() {
        let log = log_of(4, 0..10);
        let (events, lost) = log.take(Nanos::MAX);
        assert_eq!((times(&events), lost), (vec![6, 7, 8, 9], 6));
        assert_eq!(log.take(Nanos::MAX), (vec![], 0));
    }

    #[test]
    fn events_that_are_too_young_to_be_drained_are_lost() {
        let log = log_of(4, 0..4);
        let (events, lost) = log.take(Nanos(1));
        assert_eq!((times(&events), lost), (vec![0, 1], 0));
        let room = log.kept().events.capacity();
        assert!(room >= 4, "the next ones would allocate: {room}");
        let (events, lost) = log.take(Nanos::MAX);
        assert_eq!((times(&events), lost), (vec![2, 3], 0));
    }

    #[test]
    fn a_buffer_without_a_recording_keeps_what_it_is_told() {
        let log = log_of(4, 0..0);
        log.stop();
        log.paused(TaskId(1), 0);
        log.push(0, Kind::Tick);
        assert_eq!(log.take(Nanos::MAX), (vec![], 0));
    }
}
