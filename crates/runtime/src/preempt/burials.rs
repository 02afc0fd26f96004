//! Blocking functions that ended without having begun, and what groups have left (`estates`): who drops what they have captured, and when.
//!
//! They are dropped on threads of the blocking pool, *diggers*, one for each group, one function after the other. So a destructor that sleeps
//! keeps the others of its group. A panic of a destructor ends with it.
//!
//! # By turns
//! A digger takes turns as a blocking function does (`foreign`), all that it drops in one region: a destructor may compute for as long as it likes,
//! and has what its group's limit gives. (It used to be charged when it had ended: one that computed for seconds under a limit of 5 % had 3.9 s
//! in 10.) What differs from a function:
//! - *It needs no place, and does not wait for its first turn*, since somebody waits for what it drops: it begins if the dead of the group may
//!   (`group::dead`), 10 ms ahead of the limit, and runs until it is chosen once. What a digger uses is counted for the dead as it comes,
//!   by the watch at each look and by the digger after each function (one swap decides who counts what). Once they have used up what they
//!   may, the watch stops one that nobody has chosen yet; from then on it waits for its turns.
//! - *Neither a freeze nor a kill is for it*: what it drops has ended.
//! - *Its group is charged at once* (`overtime`), by the tick thread while it runs and nobody has chosen it, and by itself at its end: its proxy may
//!   wait for long.
//!
//! # How many
//! [`DIGGERS_MAX`], shared by the rule of `parts`: a group (with what is below it) may have seven times as many as are left for all, and who has
//! none may have one, up to twice as many in all. So a tenant whose diggers stand keeps nobody else's from theirs.
//!
//! # The end
//! *Nothing stays, whoever comes late.* Who finds that something never begins (N1) notes it, under the list's lock; (N2) passes a fence; (N3) looks whether the
//! scheduler has closed. If not, the tick thread calls a digger; if so, that may have stopped, and the finder calls the digger itself. The end (C1) sets the
//! phase, (C2) passes a fence, and (C3) calls diggers for all that is noted. If N3 misses C1, C3 finds N1. If the digger of the group, or all diggers, are at work then,
//! one of these looks at its end, as N2 and N3. The runtime is mostly gone by then: so who comes late drops the function itself, as tokio's
//! `spawn_blocking` does, outside of every shield. (One of five to nine ends beside a thread that spawned functions lost one: its handle never answered, and what
//! it had captured stayed, with the scheduler.)
//!
//! The scheduler's end waits for them: `ending` counts threads that take functions out of lines, `unburied` groups with functions to drop, and
//! `digging` the threads that drop one. A function is in the next of these before it is in the one before no more, so who sees none of them, in
//! this order, sees all dropped.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use quotient_core::Nanos;

use super::carrier::Carrier;
use super::foreign::{buries_for, drop_by_turns};
use super::places::SHARE;
use super::unbegun::{Waiting, hand_to_host};
use super::{NOBODY, Preempting, current, lock};
use crate::estates::{Estate, drop_apart};
use crate::group::{Group, GroupShared};
use crate::meter::ThreadMeter;
use crate::shared::{CLOSED, OPEN, Shared};

/// Threads that drop what has ended without having begun, but for those of groups that have no other. Unit: threads. An eighth of tokio's pool by
/// default.
const DIGGERS_MAX: usize = 64;
/// All of them. Unit: threads.
pub(super) const ALL_DIGGERS_MAX: usize = 2 * DIGGERS_MAX;

/// Runs what is `group`'s, and for which somebody waits as for what it drops, by turns on the calling thread. False, and nothing was done, if that cannot be.
pub(super) fn at_once_by_turns(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    act: impl Fn(),
) -> bool {
    drop_by_turns(&Group::of(shared, group), || {
        act();
        if let Some(carrier) = current() {
            carrier.count_burials(group, shared.now());
        }
    })
}

/// Runs `drop_it`, which drops what has ended in the group, here: the group pays, as for its dead.
pub(crate) fn bill_burial(group: &Group, drop_it: impl FnOnce()) {
    if buries_for(group) {
        // By turns: it is charged as it comes.
        return drop_it();
    }
    let meter = ThreadMeter::enter_within(group);
    drop_it();
    let used = meter.ok().and_then(|mut meter| meter.leave().ok());
    let used = used.map_or(Nanos::ZERO, |used| {
        Nanos(u64::try_from(used.as_nanos()).unwrap_or(u64::MAX))
    });
    group.inner.dead_have_used(used, group.shared.now());
}

/// Who drops what has ended in a group.
struct Digger {
    shared: Arc<Shared>,
    group: Arc<GroupShared>,
}

impl Digger {
    fn dig(self) {
        // Its drop does the rest.
        let Some(preempting) = &self.shared.preempt else {
            return;
        };
        let group = Group::of(&self.shared, &self.group);
        let see_to_ended = || preempting.see_to_ended(&self.shared, &self.group);
        if !drop_by_turns(&group, see_to_ended) {
            see_to_ended();
        }
    }
}

/// Diggers that were called, for whoever called them to drop *outside of every shield*: one that its runtime has not taken, since that has ended or gets no thread,
/// does what it has to do as it is dropped, and destructors of the program's are not to run where nobody may stop them.
#[derive(Default)]
#[must_use = "dropped outside of every shield"]
pub(crate) struct Undug(Vec<Arc<Mutex<Option<Digger>>>>);

impl Undug {
    /// The scheduler has ended: who was not taken does it on a thread for that. Nobody who waits for the end waits for destructors on its own thread.
    pub(super) fn apart(mut self) {
        let refused: Vec<Digger> = std::mem::take(&mut self.0)
            .into_iter()
            .filter_map(Arc::into_inner)
            .filter_map(|digger| digger.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        if !refused.is_empty() {
            drop_apart(refused);
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
        for group in self.group.bearing() {
            group.line.diggers.fetch_sub(1, Ordering::SeqCst);
        }
        self.group.line.is_burying.store(false, Ordering::SeqCst);
        preempting.functions.digging.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if shared.phase() == CLOSED {
            // No tick thread looks any more: for what came just before.
            drop(preempting.bury(shared));
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
            if let Some(carrier) = current() {
                carrier.count_burials(group, shared.now());
            }
        }
    }

    /// The watch: what a digger uses is counted as it comes; and if nobody has chosen it yet, it stands once the dead may use no more.
    pub(super) fn look_at_burials(&self, shared: &Shared, bearer: &Carrier) {
        if !bearer.buries() || bearer.is_finished() {
            return;
        }
        let Some(group) = bearer.group() else {
            return;
        };
        let now = shared.now();
        bearer.count_burials(group, now);
        // Once the scheduler has closed everybody is free.
        if bearer.chosen_by() == NOBODY && bearer.is_allowed() && shared.phase() == OPEN {
            bearer.is_to_be_charged();
            if group.dead_are_in_debt(now) {
                self.forbid(bearer, NOBODY);
            }
        }
    }

    /// Whether another digger may see to the group.
    fn may_dig(&self, group: &Arc<GroupShared>) -> bool {
        let all = self.functions.digging.load(Ordering::SeqCst);
        let part = SHARE * DIGGERS_MAX.saturating_sub(all);
        let has_room = |group: &Arc<GroupShared>| {
            (group.line.diggers.load(Ordering::SeqCst) as usize) < part.max(1)
        };
        all < ALL_DIGGERS_MAX && group.bearing().all(has_room)
    }

    /// Whether all functions that ended without having begun are dropped.
    pub(crate) fn has_buried_all(&self) -> bool {
        self.functions.ending.load(Ordering::SeqCst) == 0
            && self.functions.unburied.load(Ordering::SeqCst) == 0
            && self.functions.digging.load(Ordering::SeqCst) == 0
    }

    /// What has ended without having begun is dropped by a thread of the pool.
    pub(crate) fn end_unbegun(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
        functions: Vec<Waiting>,
    ) -> Undug {
        self.note_unbegun([(group.clone(), functions)]);
        self.bury(shared)
    }

    /// What groups have left is dropped with what never began of their heirs.
    pub(crate) fn settle(&self, shared: &Arc<Shared>, estates: Vec<Estate>) -> Undug {
        let mut heirs = HashMap::new();
        for estate in estates {
            let heir = Arc::as_ptr(&estate.heir);
            let (_, all) = heirs
                .entry(heir)
                .or_insert_with(|| (estate.heir.clone(), Vec::new()));
            all.push(Waiting::new(None, move |_| estate.settle()));
        }
        self.note_unbegun(heirs.into_values());
        self.bury(shared)
    }

    /// What has ended without having begun is to be dropped. The lock is taken once: diggers take it, which may not have a processor just then, and at
    /// the end of a scheduler each wait for it was a tenth of a second. O(groups) for each group.
    pub(super) fn note_unbegun(
        &self,
        groups: impl IntoIterator<Item = (Arc<GroupShared>, Vec<Waiting>)>,
    ) {
        let _shield = quotient_pause::uninterrupted();
        let mut ended = lock(&self.functions.ended);
        for (group, functions) in groups {
            let known = ended
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, &group));
            match known {
                Some((_, all)) => all.extend(functions),
                None => ended.push((group, functions)),
            }
        }
        self.functions.unburied.store(ended.len(), Ordering::SeqCst);
    }

    /// N2 and N3: somebody comes for what was noted.
    pub(super) fn has_noted(&self, shared: &Arc<Shared>) -> Undug {
        fence(Ordering::SeqCst);
        if shared.phase() == CLOSED {
            return self.bury(shared);
        }
        shared.tick.hurry();
        Undug::default()
    }

    /// Has threads of the pool drop what has ended, one for each group that has none.
    pub(super) fn bury(&self, shared: &Arc<Shared>) -> Undug {
        // Whose turn it is to dig is said first: nobody is to be stopped before the digger has come.
        let _shield = quotient_pause::uninterrupted();
        let functions = &self.functions;
        if shared.phase() != CLOSED && self.shortage.lasts(shared.now()) {
            // The tick thread looks at what is noted once a period, and asks again when it is time.
            shared.tick.run();
            return Undug::default();
        }
        // After the phase was set, before `is_burying` is read; a digger does the two the other way round.
        fence(Ordering::SeqCst);
        let (now, is_open) = (shared.now(), shared.phase() == OPEN);
        let due: Vec<_> = {
            let ended = lock(&functions.ended);
            let groups = ended.iter().map(|(group, _)| group);
            let is_due = |group: &&Arc<GroupShared>| {
                let may = !is_open || !group.dead_are_in_debt(now);
                let is_due = may
                    && self.may_dig(group)
                    && !group.line.is_burying.swap(true, Ordering::SeqCst);
                if is_due {
                    functions.digging.fetch_add(1, Ordering::SeqCst);
                    for group in group.bearing() {
                        group.line.diggers.fetch_add(1, Ordering::SeqCst);
                    }
                }
                is_due
            };
            groups.filter(is_due).cloned().collect()
        };
        let call = |group| {
            let digger = Digger {
                shared: shared.clone(),
                group,
            };
            let digger = Arc::new(Mutex::new(Some(digger)));
            if self.shortage.lasts(now) {
                return digger;
            }
            let called = digger.clone();
            let dig = move || {
                let digger = lock(&called).take();
                digger.into_iter().for_each(Digger::dig);
            };
            if hand_to_host(shared, Box::new(dig)).is_err() {
                // In the runtime's queue is one that has nothing to do. What is left here is called again, or at the end does its work as it is dropped.
                return Arc::new(Mutex::new(lock(&digger).take()));
            }
            digger
        };
        Undug(due.into_iter().map(call).collect())
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

impl Carrier {
    /// It is a digger, and has used nothing so far, at the time `cpu` of its thread.
    pub(super) fn buries_from(&self, cpu: Nanos) {
        self.buried.store(cpu.as_nanos() + 1, Ordering::Relaxed);
    }

    /// Whether it is a digger.
    pub(crate) fn buries(&self) -> bool {
        self.buried.load(Ordering::Relaxed) != 0
    }

    /// What a digger has used since this was called last is the dead's of `group`.
    fn count_burials(&self, group: &Arc<GroupShared>, now: Nanos) {
        let Some(cpu) = self.cpu_time().filter(|_| self.buries()) else {
            return;
        };
        let mark = cpu.as_nanos() + 1;
        let before = self.buried.fetch_max(mark, Ordering::Relaxed);
        group.dead_have_used(Nanos(mark.saturating_sub(before)), now);
    }
}

#[cfg(all(test, not(loom), target_os = "linux"))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::task::Id;
    use crate::{Preempt, Scheduler};

    /// Hazard: the runtime ends between a spawner's look at the scheduler and its function's way to the pool, and nobody is left who drops it.
    #[test]
    fn who_comes_after_the_end_is_lost() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).build().unwrap();
        let handle = runtime.handle().clone();
        let scheduler = Scheduler::builder()
            .handle(handle)
            .preempt(Preempt::default());
        let scheduler = scheduler.build().unwrap();
        let group = scheduler.group("g").unwrap().create().unwrap();
        drop(runtime);
        let shared = &group.shared;
        assert_eq!(shared.phase(), CLOSED);
        let preempting = shared.preempt.as_ref().unwrap();
        let (captured, dropped) = channel::<()>();
        // Functions are dropped with what they have captured.
        let function = Waiting::new(None, move |_| drop(captured));
        let brought = preempting.bring(shared, &group.inner, Id::next(), function);
        assert!(brought.is_ok());
        // The sender has gone, and nothing was sent.
        let told = dropped.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(told, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
        // The note itself goes just after what it is about.
        while !preempting.has_buried_all() {
            std::thread::yield_now();
        }
    }
}
