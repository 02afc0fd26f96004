//! Pressure: for how much of the time tasks of a group were ready to run and did not, as the kernel's PSI says it of a control group.
//!
//! # What it means
//! *some*: at least one task of the group or below it waits for a processor, in a queue or because a limit holds it back. *full*: one
//! waits, and none runs. Each as a total and as averages over 10, 60 and 300 s, in which older times count exponentially
//! less; one step every [`WINDOW`], as in the kernel. Unlike there, a group's virtual CPUs are not told apart: one task that waits anywhere
//! is *some*.
//!
//! # How
//! By samples: the tick thread looks who runs and who waits, while anybody asks for pressure at all. What a look finds is taken to hold until
//! the next one. It looks every tick while tasks wait, which it does anyway, but never spends more than a hundredth of its
//! time so: with many groups it looks less often. The switch path knows nothing of it. While all virtual CPUs sleep the thread does too: what
//! it saw last holds on, nothing, or that a limit holds tasks back.
//!
//! # Who writes
//! One lock a group, a leaf. The tick thread takes it at a change only; readers bring the figures up to now under it. Readers are
//! shielded from being stopped inside (`Shared::shield`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quotient_core::{CpuId, Nanos};

use crate::clock::thread_cpu_time;
use crate::cpu_clock::duration;
use crate::group::{Group, GroupShared};
use crate::scheduler::Scheduler;
use crate::shared::{Shared, VcpuShared};

/// Time between two steps of the averages. Unit: nanoseconds. Default 2 s, the kernel's.
const WINDOW: Nanos = Nanos::from_secs(2);
/// The averages' times. Unit: seconds. The kernel's.
const TIMES: [f64; 3] = [10.0, 60.0, 300.0];
/// How many times longer than a look the pause after it is at least, up to [`PAUSE_MAX`]. Default 100: a hundredth of a processor.
const PAUSE_FACTOR: u64 = 100;
/// The longest pause all the same. Unit: nanoseconds. Default 100 ms: of 10 s, what an average may be wrong by.
const PAUSE_MAX: Nanos = Nanos::from_micros(100_000);
/// How long groups that come or go may be missed. Unit: nanoseconds. Default 100 ms.
const LIST_AGE: Nanos = Nanos::from_micros(100_000);
/// Steps after which an average is what it converges to. Unit: windows; 3,000 s are ten of the longest time.
const STEPS_MAX: u64 = 1_500;

/// *Some* or *full*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureLine {
    /// Average over 10 s. Unit: hundredths of a per cent of the time, 0 to 10,000.
    pub avg10: u32,
    /// Over 60 s.
    pub avg60: u32,
    /// Over 300 s.
    pub avg300: u32,
    /// Since the group was made, or since pressure is recorded if that was later.
    pub total: Duration,
}

/// How much of the time tasks of a group, or below it, waited for a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// At least one waited.
    pub some: PressureLine,
    /// One waited, and none ran.
    pub full: PressureLine,
}

/// A share of time, as totals and averages.
#[derive(Debug, Default)]
struct Track {
    /// What holds since the last look.
    holds: bool,
    total: u64,
    /// Of it, in the window that is not over.
    window: u64,
    /// 0 to 1.
    averages: [f64; 3],
}

impl Track {
    /// `time` passes inside a window.
    fn pass(&mut self, time: u64) {
        if self.holds {
            self.total = self.total.saturating_add(time);
            self.window = self.window.saturating_add(time);
        }
    }

    /// The window is over, and `more` whole ones in which nothing changed.
    fn step(&mut self, more: u64) {
        let share = self.window as f64 / WINDOW.as_nanos() as f64;
        self.window = 0;
        let then = f64::from(u8::from(self.holds));
        for (average, time) in self.averages.iter_mut().zip(TIMES) {
            let keep = (-(WINDOW.as_nanos() as f64 / 1e9) / time).exp();
            *average = *average * keep + share * (1.0 - keep);
            // STEPS_MAX fits.
            let kept = keep.powi(more.min(STEPS_MAX) as i32);
            *average = *average * kept + then * (1.0 - kept);
        }
        if self.holds {
            self.total = self
                .total
                .saturating_add(more.saturating_mul(WINDOW.as_nanos()));
        }
    }

    fn line(&self) -> PressureLine {
        let hundredths = |share: f64| (share * 1e4).round().clamp(0.0, 1e4) as u32;
        let [avg10, avg60, avg300] = self.averages.map(hundredths);
        let total = duration(Nanos(self.total));
        PressureLine {
            avg10,
            avg60,
            avg300,
            total,
        }
    }
}

/// The pressure on one group.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Up to when it is counted, and when the window ends.
    now: Nanos,
    ends: Nanos,
    some: Track,
    full: Track,
}

impl Recorded {
    fn new(now: Nanos) -> Self {
        let ends = now.saturating_add(WINDOW);
        let (some, full) = Default::default();
        Self {
            now,
            ends,
            some,
            full,
        }
    }

    /// What held goes on to `now`. O(1), however long ago the last time was.
    fn advance(&mut self, now: Nanos) {
        if now >= self.ends {
            let rest = self.ends.saturating_sub(self.now).as_nanos();
            let more = now.saturating_sub(self.ends).as_nanos() / WINDOW.as_nanos();
            for track in [&mut self.some, &mut self.full] {
                track.pass(rest);
                track.step(more);
            }
            self.now = self
                .ends
                .saturating_add(Nanos(more.saturating_mul(WINDOW.as_nanos())));
            self.ends = self.now.saturating_add(WINDOW);
        }
        let time = now.saturating_sub(self.now).as_nanos();
        self.some.pass(time);
        self.full.pass(time);
        self.now = self.now.max(now);
    }

    fn set(&mut self, now: Nanos, state: State) {
        self.advance(now);
        self.some.holds = state.some;
        self.full.holds = state.full;
    }
}

/// What a look finds of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    some: bool,
    full: bool,
}

/// A group in the list of the tick thread.
#[derive(Debug)]
struct Watched {
    group: Arc<GroupShared>,
    /// The index of the group above; its own for the root.
    parent: usize,
    state: State,
    /// Of the look in progress: tasks of the group and below that are queued or running, and whether a limit holds some back.
    runnable: u32,
    running: u32,
    throttled: bool,
}

/// The tick thread's part.
#[derive(Debug, Default)]
pub(crate) struct PressureWatch {
    /// Groups above first.
    groups: Vec<Watched>,
    listed: Nanos,
    next: Nanos,
}

impl PressureWatch {
    /// A look, if one is due. O(groups x virtual CPUs).
    pub(crate) fn look(&mut self, shared: &Shared, now: Nanos) {
        if !shared.records_pressure.load(Ordering::Relaxed) {
            for watched in std::mem::take(&mut self.groups) {
                if watched.state != State::default() {
                    watched
                        .group
                        .recorded_pressure(now)
                        .set(now, State::default());
                }
            }
            return;
        }
        if now < self.next {
            return;
        }
        let own_time = || thread_cpu_time().unwrap_or_else(|| shared.now());
        let began = own_time();
        if self.groups.is_empty() || now.saturating_sub(self.listed) >= LIST_AGE {
            self.list(shared, now);
        }
        // Odd during a turn.
        let turns = |vcpu: &VcpuShared| vcpu.turns.load(Ordering::Acquire);
        let works = |cpu: CpuId| {
            let vcpu = shared.vcpus.get(cpu.index());
            vcpu.is_some_and(|vcpu| !turns(vcpu).is_multiple_of(2))
        };
        for watched in &mut self.groups {
            let found = watched.group.core.occupancy(works);
            watched.runnable = found.runnable;
            watched.running = found.running;
            watched.throttled = found.throttled && watched.group.population.count() > 0;
        }
        for index in (0..self.groups.len()).rev() {
            let Watched {
                parent,
                runnable,
                running,
                throttled,
                ..
            } = self.groups[index];
            if parent != index {
                let above = &mut self.groups[parent];
                above.runnable = above.runnable.saturating_add(runnable);
                above.throttled |= throttled;
            }
            let some = throttled || runnable > running;
            let state = State {
                some,
                full: some && running == 0,
            };
            let watched = &mut self.groups[index];
            if state != watched.state {
                watched.state = state;
                watched.group.recorded_pressure(now).set(now, state);
            }
        }
        // By the thread's own clock: on a busy machine a look is interrupted for as long as a hundred looks take.
        let took = own_time().saturating_sub(began).as_nanos();
        let pause = Nanos(took.saturating_mul(PAUSE_FACTOR)).min(PAUSE_MAX);
        self.next = now.saturating_add(pause);
    }

    fn list(&mut self, shared: &Shared, now: Nanos) {
        self.listed = now;
        let mut groups = shared.all_groups();
        groups.sort_by_key(|group| group.core.depth());
        let states: std::collections::HashMap<u32, State> = self
            .groups
            .iter()
            .map(|watched| (watched.group.core.id(), watched.state))
            .collect();
        let places: std::collections::HashMap<u32, usize> = groups
            .iter()
            .enumerate()
            .map(|(index, group)| (group.core.id(), index))
            .collect();
        self.groups = groups
            .into_iter()
            .enumerate()
            .map(|(index, group)| {
                let above = group
                    .core
                    .parent()
                    .and_then(|parent| places.get(&parent.id()));
                Watched {
                    parent: above.copied().unwrap_or(index),
                    state: states.get(&group.core.id()).copied().unwrap_or_default(),
                    group,
                    runnable: 0,
                    running: 0,
                    throttled: false,
                }
            })
            .collect();
    }
}

impl GroupShared {
    /// Made when something is first known of the group.
    fn recorded_pressure(&self, now: Nanos) -> MutexGuard<'_, Recorded> {
        let recorded = self
            .pressure
            .get_or_init(|| Box::new(Mutex::new(Recorded::new(now))));
        recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    /// For how much of the time tasks of the group or below it were ready and did not run: the kernel's `cpu.pressure`, by samples
    /// of a millisecond (longer with thousands of groups). All zero before [`Scheduler::set_pressure`]. O(1).
    pub fn pressure(&self) -> Pressure {
        let _shield = self.shared.shield();
        let now = self.shared.now();
        let Some(recorded) = self.inner.pressure.get() else {
            return Pressure::default();
        };
        let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.advance(now);
        Pressure {
            some: recorded.some.line(),
            full: recorded.full.line(),
        }
    }
}

impl Scheduler {
    /// Switches the recording of [`Group::pressure`] on or off; off by default. While it is on the scheduler's own thread looks at every
    /// group, for a hundredth of a processor at most; tasks and their switches pay nothing. Switched off, the totals stand
    /// and the averages go on as if nothing waited.
    pub fn set_pressure(&self, on: bool) {
        let shared = self.shared();
        shared.records_pressure.store(on, Ordering::SeqCst);
        // It may sleep, and has to see it.
        shared.tick.run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: State = State {
        some: true,
        full: false,
    };
    const FULL: State = State {
        some: true,
        full: true,
    };

    fn ms(time: u64) -> Nanos {
        Nanos::from_micros(time * 1_000)
    }

    #[test]
    fn totals_count_what_held_to_the_nanosecond() {
        let mut recorded = Recorded::new(ms(0));
        recorded.set(ms(100), SOME);
        recorded.set(ms(350), FULL);
        recorded.set(ms(5_350), State::default());
        recorded.advance(ms(60_000));
        assert_eq!(recorded.some.line().total, Duration::from_millis(5_250));
        assert_eq!(recorded.full.line().total, Duration::from_millis(5_000));
    }

    /// One long pause and many short ones are the same.
    #[test]
    fn averages_depend_on_when_somebody_looked() {
        let (mut often, mut seldom) = (Recorded::new(ms(0)), Recorded::new(ms(0)));
        for recorded in [&mut often, &mut seldom] {
            recorded.set(ms(1_500), SOME);
        }
        for at in (1_500..100_000).step_by(7) {
            often.advance(ms(at));
        }
        for recorded in [&mut often, &mut seldom] {
            recorded.set(ms(100_000), State::default());
            recorded.advance(ms(110_000));
        }
        assert_eq!(often.some.line(), seldom.some.line());
        let line = seldom.some.line();
        // What 98.5 s of waiting leave after 10 s of none.
        assert!((3_600..3_750).contains(&line.avg10), "{line:?}");
        assert!((6_800..7_000).contains(&line.avg60), "{line:?}");
        assert!((2_650..2_800).contains(&line.avg300), "{line:?}");
        seldom.advance(ms(110_000_000));
        let line = seldom.some.line();
        assert_eq!((line.avg10, line.avg60, line.avg300), (0, 0, 0));
    }

    #[test]
    fn averages_leave_their_range() {
        let mut recorded = Recorded::new(ms(0));
        recorded.set(ms(0), FULL);
        recorded.advance(Nanos(u64::MAX));
        let line = recorded.full.line();
        assert_eq!(
            (line.avg10, line.avg60, line.avg300),
            (10_000, 10_000, 10_000)
        );
        // The clock that steps back changes nothing.
        recorded.advance(ms(1));
        assert_eq!(recorded.full.line(), line);
    }
}
