//! Threads that wait in line for a place: jobs, checkpoints, and functions that have come to a thread without one.
//!
//! # Whom a place wakes
//! Nobody but who may begin. (All threads of all groups used to wait at one gate, and each place that was given up woke all of them: 1,500 threads with
//! jobs of 50 us did 400 of these a second with all processors taken, which nobody paid for.) A thread waits in its group's line, behind those that
//! came before, and whoever takes it out of the line gives it the place, or tells it to look again, and wakes it (`waiter`).
//!
//! # Who gives places to threads
//! The thread that gives one up (R2 of `functions`): to its own group's line, by which no number changes for anybody else, and if there is nobody, or
//! the group has its part even so, to those of [`LOOKS`] other listed groups, in turn. Only if more are listed, or a
//! function is first, which needs a thread of the pool, the tick thread looks. A thread that lists its group (L2) looks at the line itself then, in place
//! of the tick thread (L3). One whose group is listed already need not: all who look take the line's lock after R1, as it did before it
//! found no place; so either it has seen R1 or it is seen.
//! In each line functions and threads alternate, unless there is room for one of the two only.
//! The tick thread looks once a period at all that are listed, for what is not told by a place: groups that were removed, or are not scheduled any more.
//!
//! # Bounds
//! A waiter is a thread that the program has. A giver looks at [`LOOKS`] lines beside its own, and gives away no more than there are places.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::foreign::is_scheduled;
use super::functions::Queue;
use super::places::Place;
use super::waiter::Waiter;
use super::{Preempting, lock};
use crate::group::{Group, GroupShared};
use crate::shared::{OPEN, Shared};

/// Listed groups to which a place may go at once, beside the one that gives it up. Unit: groups.
const LOOKS: usize = 4;

/// Threads in a group's line.
#[derive(Default)]
pub(super) struct Threads(VecDeque<InLine>);

/// One of them, and whether its group was removed before it came: it knows that.
struct InLine {
    waiter: Arc<Waiter<Place>>,
    knows_of_removal: bool,
}

impl Threads {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Arc<Waiter<Place>>> {
        self.0.pop_front().map(|first| first.waiter)
    }

    /// Whether it was there. O(threads).
    fn remove(&mut self, waiter: &Arc<Waiter<Place>>) -> bool {
        let same = |one: &InLine| Arc::ptr_eq(&one.waiter, waiter);
        let found = self.0.iter().position(same);
        found.and_then(|index| self.0.remove(index)).is_some()
    }

    /// Those who do not know that their group was removed. O(threads).
    pub(super) fn take_unaware(&mut self) -> Vec<Arc<Waiter<Place>>> {
        let all = std::mem::take(&mut self.0);
        let (aware, unaware) = all.into_iter().partition(|one| one.knows_of_removal);
        self.0 = aware;
        let unaware: VecDeque<InLine> = unaware;
        unaware.into_iter().map(|one| one.waiter).collect()
    }
}

/// What a giver of a place has found in a line.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Found {
    /// Nobody who may begin.
    Nobody,
    /// A thread, which has the place.
    Thread,
    /// A function that may begin.
    Function,
}

impl Preempting {
    /// For a thread that takes no turns yet: a place, for which it waits unless it `has_ended`. `None` if it is to look at everything again.
    pub(super) fn wait_for_place(
        &self,
        group: &Group,
        has_ended: &dyn Fn() -> bool,
    ) -> Option<Place> {
        let (shared, inner) = (&group.shared, &group.inner);
        let knows_of_removal = inner.is_removed();
        let waiter = {
            let _shield = quotient_pause::uninterrupted();
            let mut line = lock(&inner.line.waiting);
            if self.lets_a_thread_begin(&line, inner)
                && let Some(place) = self.find_place(shared, inner, false)
            {
                return Some(place);
            }
            let waiter = Arc::new(Waiter::here());
            line.threads.0.push_back(InLine {
                waiter: waiter.clone(),
                knows_of_removal,
            });
            let is_new = !inner.keeps_its_line(shared) && self.list(inner, line);
            if is_new {
                // L3.
                fence(Ordering::SeqCst);
                self.let_threads_go(shared, inner);
                shared.tick.run();
            }
            waiter
        };
        let is_to_leave = || {
            let was_removed = !knows_of_removal && inner.is_removed();
            has_ended() || was_removed || !is_scheduled(group)
        };
        let leaves = || lock(&inner.line.waiting).threads.remove(&waiter);
        waiter.wait(is_to_leave, leaves)
    }

    /// Whether nobody is before a thread that comes: functions that wait for a thread of the pool are not.
    fn lets_a_thread_begin(&self, line: &Queue, group: &Arc<GroupShared>) -> bool {
        let is_first = !line.has_functions() || !self.has_room(group, true);
        line.threads.is_empty() && is_first && !group.holds_unbegun()
    }

    /// R2, by the thread that has given a place up, with a thread of the pool if it `was_pooled`.
    pub(super) fn hand_on(&self, shared: &Arc<Shared>, group: &Arc<GroupShared>, was_pooled: bool) {
        fence(Ordering::SeqCst);
        if !self.has_lines() {
            return;
        }
        let _shield = quotient_pause::uninterrupted();
        match self.let_threads_go(shared, group) {
            // What was given up is taken, but for the pool's thread, which a function may wait for.
            Found::Thread if !was_pooled => return,
            Found::Function => return shared.tick.hurry(),
            Found::Thread | Found::Nobody => {}
        }
        let (some, are_all) = self.some_listed();
        for other in some.iter().flatten() {
            if self.let_threads_go(shared, other) == Found::Function {
                return shared.tick.hurry();
            }
        }
        if !are_all {
            shared.tick.hurry();
        }
    }

    /// [`LOOKS`] groups of those listed, in turn, and whether these are all and nothing else is the tick thread's.
    fn some_listed(&self) -> ([Option<Arc<GroupShared>>; LOOKS], bool) {
        let mut lines = lock(&self.functions.lines);
        let count = lines.len().min(LOOKS);
        let some = std::array::from_fn(|index| lines.get(index).cloned());
        lines.rotate_left(count);
        drop(lines);
        // The tick thread has taken those that are not in the list, and may have looked at them.
        (some, self.is_all_there_is(count))
    }

    /// Gives places to threads of the line that may begin.
    fn let_threads_go(&self, shared: &Arc<Shared>, group: &Arc<GroupShared>) -> Found {
        let mut found = Found::Nobody;
        loop {
            let mut line = lock(&group.line.waiting);
            let is_held = group.keeps_its_line(shared) || group.holds_unbegun();
            if line.is_empty() || is_held || shared.phase() != OPEN {
                return found;
            }
            if line.functions_are_next() && self.has_room(group, true) {
                return Found::Function;
            }
            if line.threads.is_empty() {
                return found;
            }
            let Some(place) = self.find_place(shared, group, false) else {
                return found;
            };
            let Some(waiter) = line.pop_thread() else {
                return found;
            };
            drop(line);
            waiter.goes_on(Some(place));
            found = Found::Thread;
        }
    }
}
