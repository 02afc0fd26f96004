//! Blocking functions that ended without having begun: who drops what they have captured, and when.
//!
//! They are dropped on threads of the blocking pool, one for each group and [`DIGGERS_MAX`] in all, one function after the other, 10 ms ahead of
//! the group's limit, as the dead are (`group::dead`). So a destructor that sleeps keeps the others of its group. A panic of a destructor ends
//! with it.
//!
//! # The end
//! The scheduler's end waits for them: `unburied` counts groups with functions to drop, and `digging` the threads that drop one. A thread takes
//! its last function out (`unburied`) while it is counted (`digging`), so who sees neither, in this order, sees all dropped.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::functions::{Begin, Waiting};
use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::shared::{CLOSED, OPEN, Shared};

/// Threads that drop what has ended without having begun. Unit: threads. An eighth of tokio's pool by default.
const DIGGERS_MAX: usize = 64;

/// Who drops what has ended in a group.
struct Digger {
    shared: Arc<Shared>,
    group: Arc<GroupShared>,
}

impl Digger {
    fn dig(self) {
        // Its drop does the rest.
        if let Some(preempting) = &self.shared.preempt {
            preempting.see_to_ended(&self.shared, &self.group);
        }
    }
}

impl Drop for Digger {
    fn drop(&mut self) {
        let shared = &self.shared;
        let Some(preempting) = &shared.preempt else {
            return;
        };
        if shared.phase() == CLOSED {
            // The runtime may be gone, and has not run this.
            preempting.see_to_ended(shared, &self.group);
        }
        self.group.line.is_burying.store(false, Ordering::SeqCst);
        preempting.functions.digging.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if shared.phase() == CLOSED {
            // No tick thread looks any more: for what came just before.
            preempting.bury(shared);
            shared.function_was_dropped();
        } else {
            // Somebody may have come just before: the tick thread looks again.
            shared.tick.run();
        }
    }
}

impl Preempting {
    fn see_to_ended(&self, shared: &Shared, group: &Arc<GroupShared>) {
        while let Some(function) = self.next_unbegun(shared, group) {
            function.drop_unbegun();
        }
    }

    /// Whether all functions that ended without having begun are dropped.
    pub(crate) fn has_buried_all(&self) -> bool {
        self.functions.unburied.load(Ordering::SeqCst) == 0
            && self.functions.digging.load(Ordering::SeqCst) == 0
    }

    /// What has ended without having begun is dropped by a thread of the pool.
    pub(crate) fn end_unbegun(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
        functions: Vec<Waiting>,
    ) {
        let _shield = quotient_pause::uninterrupted();
        let mut ended = lock(&self.functions.ended);
        let known = ended
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, group));
        match known {
            Some((_, all)) => all.extend(functions),
            None => ended.push((group.clone(), functions)),
        }
        self.functions.unburied.store(ended.len(), Ordering::SeqCst);
        drop(ended);
        self.bury(shared);
    }

    /// Has threads of the pool drop what has ended, one for each group that has none.
    pub(super) fn bury(&self, shared: &Arc<Shared>) {
        let functions = &self.functions;
        // After the phase was set, before `is_burying` is read; a digger does the two the other way round.
        fence(Ordering::SeqCst);
        let (now, is_open) = (shared.now(), shared.phase() == OPEN);
        let due: Vec<_> = {
            let ended = lock(&functions.ended);
            let groups = ended.iter().map(|(group, _)| group);
            let is_due = |group: &&Arc<GroupShared>| {
                let may = !is_open || !group.dead_are_in_debt(now);
                let free = functions.digging.load(Ordering::SeqCst) < DIGGERS_MAX;
                let is_due = may && free && !group.line.is_burying.swap(true, Ordering::SeqCst);
                functions
                    .digging
                    .fetch_add(usize::from(is_due), Ordering::SeqCst);
                is_due
            };
            groups.filter(is_due).cloned().collect()
        };
        for group in due {
            let digger = Digger {
                shared: shared.clone(),
                group,
            };
            Waiting::new(None, move |_| digger.dig()).go(shared, Begin::Never);
        }
    }

    /// One of the group that may be dropped now.
    fn next_unbegun(&self, shared: &Shared, group: &Arc<GroupShared>) -> Option<Waiting> {
        let _shield = quotient_pause::uninterrupted();
        let mut ended = lock(&self.functions.ended);
        if shared.phase() == OPEN && group.dead_are_in_debt(shared.now()) {
            return None;
        }
        let mut groups = ended.iter();
        let place = groups.position(|(known, _)| Arc::ptr_eq(known, group))?;
        let function = ended[place].1.pop();
        if ended[place].1.is_empty() {
            ended.swap_remove(place);
            self.functions.unburied.store(ended.len(), Ordering::SeqCst);
        }
        function
    }
}
