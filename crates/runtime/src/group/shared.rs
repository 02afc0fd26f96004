//! What the scheduler keeps for each group.
//!
//! # Frozen tasks
//! A group is *held* while it or an ancestor is frozen. A virtual CPU that picks a task of a held group gives the token to
//! [`GroupShared::hold`] instead of polling it; thaw takes the tokens out and queues them. Both look at the flag under the
//! group's `parked` lock, so a token is either seen by thaw or goes back to its virtual CPU. Freezing costs nothing per task
//! and one relaxed load a dispatch.
//!
//! A task that is moved while its token lies in that list takes the token along: the mover marks the task as moved and then empties
//! the list, and `hold` looks for the mark under the list's lock. So no token stays in a group to which its task does not belong.
//!
//! # The dead
//! Neither a freeze nor a limit keeps back a task that was aborted: what it holds (a request, a connection of a database) would stay
//! for as long, and whoever waits for its end with it. Whoever aborts sets the task's mark (L1) and calls [`GroupShared::let_go`]:
//! - *frozen:* it takes the token out of the list, under the list's lock, under which `hold` looks for the mark. Of a task whose poll was
//!   stopped inside (`preempt`), the proxy's token lies there instead: `hold` looks for the mark of the task that it stands for.
//! - *limited:* it lists the group in `Shared::dying` (L2), and the tick thread asks every virtual CPU (L3) to queue the group's dead
//!   anew: in the place of the lowest group above that has no limit (`vcpu::release`, [`GroupShared::seat_of_the_dead`]), where they are
//!   dispatched at once, 10 ms of CPU time ahead of what the limits earn and some at a time (`group::dead`): the rest waits in its own group, so
//!   that destructors are no way round a limit. The limited group's clocks, budgets and virtual times pay
//!   ([`GroupShared::pay_for_the_dead`]), not those of the group that lends the place. *Nobody is missed*: a virtual CPU that looked at L1's
//!   mark before it was set has the task in its queue when it is asked; one that queues the task after it was asked sees the mark; and a search
//!   that has passed some which could not go yet begins anew. `dying_listed` is taken back before L3, so a mark that is set later lists the
//!   group again, and so does who queues a dead task for which there is no place (two virtual CPUs may take out more than there are places for).
//!
//! # Kills
//! See `kills`. The tokens that a frozen group keeps go back to the virtual CPUs, which drop the futures: no destructor runs on the
//! thread of whoever kills.
//!
//! # Removal
//! The group is closed first (see `population`): spawns are refused from then on. The core gives the group up when its last task has
//! left every run queue; if the last task ends while it is still current there, the group waits in `Shared::leaving` for the next tick.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use quotient_core::{Enqueue, GroupError, Nanos};
use quotient_keys::EnableGuard;

use super::ahead::Ahead;
use super::dead::Dead;
use super::kept::Kept;
use crate::estates;
use crate::in_group::Allowance;
use crate::kills::KilledAt;
use crate::loss::{ENDED, Loss, LossCounters, note};
use crate::owned::OwnedTasks;
use crate::population::{Closed, Left, Population};
use crate::preempt::{Carrier, Line};
use crate::pressure::Recorded;
use crate::queue_wait::{QueueWait, Tickets, TooLong};
use crate::shared::{Shared, usual_slots};
use crate::stats::GroupCpus;
use crate::task::Id;
use crate::task_context::Task;

/// What the scheduler keeps for a group.
#[derive(Debug)]
pub(crate) struct GroupShared {
    pub(crate) core: Arc<quotient_core::Group>,
    /// `None` for the root group.
    pub(super) parent: Option<Arc<GroupShared>>,
    pub(crate) owned: OwnedTasks,
    pub(crate) cpus: GroupCpus,
    /// Tasks of the group and below it; nothing in the root group, whose are `Shared::live`.
    pub(crate) population: Population,
    pub(crate) killed_at: KilledAt,
    /// It was removed, and its tasks move to the parent; written under `Shared::shape`, before the population is closed.
    moves_up: AtomicBool,
    pub(crate) losses: LossCounters,
    /// Made when pressure is first recorded for the group.
    pub(crate) pressure: OnceLock<Box<Mutex<Recorded>>>,
    /// How long requests and new tasks may wait for their first poll, and which tasks do.
    pub(crate) queue_wait: QueueWait,
    /// This group itself was frozen; written under `Shared::shape`.
    pub(super) frozen: AtomicBool,
    /// ... and polls in progress are to stop, too; written under `Shared::shape`.
    pub(super) frozen_inside: AtomicBool,
    /// This group or an ancestor is frozen; written under `Shared::shape`.
    held: AtomicBool,
    /// This group or an ancestor is frozen so that polls in progress stop; written under `Shared::shape`.
    held_inside: AtomicBool,
    /// What was said of the group itself: whether its polls may be preempted; [`UNSAID`], [`YES`] or [`NO`]. Written under `Shared::shape`.
    says_preemptible: AtomicU8,
    /// What holds: what was said of the topmost group that anything was said of, from the root down to this one.
    preemptible: AtomicU8,
    /// Polls that began before this, on the scheduler's clock, were killed at once. Unit: nanoseconds; 0 for never.
    killed_inside: AtomicU64,
    /// Tokens of tasks that were picked while held, or kept back (`preempt::parts`), by the number of the task.
    parked: Mutex<BTreeMap<u64, Task>>,
    /// Tasks of the group are kept back, and the tick thread knows. Written under `parked`'s lock.
    pub(super) keeps_back: AtomicBool,
    /// Long polls of the group and below it that other threads bear.
    pub(crate) borne: AtomicU32,
    /// What polls of it and below use although they should stand (`preempt::overtime`).
    pub(crate) overtime: Ahead,
    /// Its blocking functions under preemption.
    pub(crate) line: Line,
    /// The group is in `Shared::dying`.
    dying_listed: AtomicBool,
    /// What its dead use ahead of its limit.
    pub(super) dead: Dead,
    /// This group or an ancestor has a limit; written under `Shared::shape`.
    limited: AtomicBool,
    /// This group or an ancestor bounds the wait for first polls; written under `Shared::shape`.
    wait_bounded: AtomicBool,
    /// The last poll of an `in_group` of this group was long: the next one is likely to be. A hint.
    pub(crate) long_wraps: AtomicBool,
    /// Its thread did not run for a part of the last one that was looked at: it sleeps, or the processors are short. A hint.
    pub(crate) absent_wraps: AtomicBool,
    /// What may be computed in foreign tasks without a turn.
    pub(crate) allowance: Allowance,
    /// Keeps bandwidth control switched on while the group has a limit.
    gate: Mutex<Option<EnableGuard>>,
    /// What libraries remember with the group.
    pub(super) kept: Kept,
}

/// Nothing was said; what was.
const UNSAID: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl GroupShared {
    pub(crate) fn new(
        core: Arc<quotient_core::Group>,
        parent: Option<&Arc<GroupShared>>,
        slots: usize,
    ) -> Self {
        Self {
            core,
            parent: parent.cloned(),
            owned: OwnedTasks::default(),
            cpus: GroupCpus::new(slots),
            population: Population::new(parent.map(|parent| &parent.population)),
            killed_at: KilledAt::inherited(parent.map(|parent| &parent.killed_at)),
            moves_up: AtomicBool::new(false),
            losses: LossCounters::default(),
            pressure: OnceLock::new(),
            queue_wait: QueueWait::new(),
            frozen: AtomicBool::new(false),
            frozen_inside: AtomicBool::new(false),
            held: AtomicBool::new(parent.is_some_and(|parent| parent.is_held())),
            held_inside: AtomicBool::new(parent.is_some_and(|parent| parent.is_held_inside())),
            says_preemptible: AtomicU8::new(UNSAID),
            preemptible: AtomicU8::new(
                parent.map_or(UNSAID, |parent| parent.preemptible.load(Ordering::Relaxed)),
            ),
            killed_inside: AtomicU64::new(0),
            parked: Mutex::default(),
            keeps_back: AtomicBool::new(false),
            borne: AtomicU32::new(0),
            overtime: Ahead::default(),
            line: Line::default(),
            dying_listed: AtomicBool::new(false),
            dead: Dead::default(),
            limited: AtomicBool::new(parent.is_some_and(|parent| parent.is_limited())),
            wait_bounded: AtomicBool::new(parent.is_some_and(|parent| parent.is_wait_bounded())),
            long_wraps: AtomicBool::new(false),
            absent_wraps: AtomicBool::new(false),
            allowance: Allowance::default(),
            gate: Mutex::new(None),
            kept: Kept::default(),
        }
    }

    /// Whether tasks of the group must not be polled now.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether polls in progress are to stop, too.
    pub(crate) fn is_held_inside(&self) -> bool {
        self.held_inside.load(Ordering::Relaxed)
    }

    /// Whether polls of the group may be preempted.
    #[inline]
    pub(crate) fn is_preemptible(&self) -> bool {
        self.preemptible.load(Ordering::Relaxed) != NO
    }

    /// Polls in progress `now` are to get on no more, but for short turns.
    pub(super) fn kill_inside(&self, now: Nanos) {
        // K2 of `preempt::foreign`.
        self.killed_inside
            .fetch_max(now.as_nanos(), Ordering::Release);
    }

    /// Whether a poll that began then is killed in its middle.
    pub(crate) fn is_killed_inside(&self, began: Nanos) -> bool {
        began.as_nanos() < self.killed_inside.load(Ordering::Acquire)
    }

    /// Sets whether polls of the group, and of everything below, may be preempted; `None`: nothing is said of it any more. Called under
    /// `Shared::shape`.
    pub(crate) fn settle_preemptible(self: &Arc<Self>, shared: &Shared, says: Option<bool>) {
        let says = match says {
            None => UNSAID,
            Some(true) => YES,
            Some(false) => NO,
        };
        self.says_preemptible.store(says, Ordering::Relaxed);
        let mut groups = vec![self.clone()];
        while let Some(group) = groups.pop() {
            let above = group.parent.as_ref();
            let above = above.map_or(UNSAID, |parent| parent.preemptible.load(Ordering::Relaxed));
            let own = group.says_preemptible.load(Ordering::Relaxed);
            let holds = if above == UNSAID { own } else { above };
            group.preemptible.store(holds, Ordering::Relaxed);
            let children = group.core.children();
            groups.extend(children.iter().map(|core| lookup(shared, core)));
        }
    }

    /// Whether the group or one above has a limit.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Whether work for the group outside the run queues has to wait: the group, or one above, has used up its limit at `now`, by the clock of
    /// its own scheduler. One load without limits, else it takes the locks of budgets.
    pub(crate) fn is_kept_back(&self, now: Nanos) -> bool {
        self.is_limited() && self.core.keeps_back_foreign(now)
    }

    /// Whether the group or one above bounds the wait for first polls.
    #[inline]
    pub(crate) fn is_wait_bounded(&self) -> bool {
        self.wait_bounded.load(Ordering::Relaxed)
    }

    /// Keeps bandwidth control on while there is a limit, or lets go of it.
    pub(crate) fn keep_gate(&self, gate: Option<EnableGuard>) {
        *self
            .gate
            .lock()
            .unwrap_or_else(|poison| poison.into_inner()) = gate;
    }

    /// Sets `limited` for the group and everything below it, after its limit changed. Called under `Shared::shape`.
    pub(crate) fn settle_limited_below(self: &Arc<Self>, shared: &Shared) {
        let now = shared.now();
        let mut groups = vec![self.clone()];
        while let Some(group) = groups.pop() {
            let above = group
                .parent
                .as_ref()
                .is_some_and(|parent| parent.is_limited());
            let own = group.core.limit();
            group.overtime.set_limit(own, now);
            group.dead.set_limit(own, now);
            let limited = above || own.is_some();
            group.limited.store(limited, Ordering::Relaxed);
            groups.extend(
                group
                    .core
                    .children()
                    .iter()
                    .map(|core| lookup(shared, core)),
            );
        }
    }

    /// Keeps the token of a task that was picked while the group is held; gives it back if it no longer is.
    pub(crate) fn hold(&self, mut task: Task) -> Result<(), Task> {
        let mut parked = self.lock_parked();
        // A killed task goes on to its end: kill marks its tasks before it takes this lock to empty the list.
        // A moved task is not the group's to keep: its mover marks it before it takes this lock.
        let moved = task.context().marks.is_moved(Ordering::Acquire);
        let bearer = task.owned_mut().bearer();
        let goes_on = bearer.is_some_and(|bearer| self.lets_go_on(bearer));
        if !self.is_held() || moved || task.is_aborted() || goes_on {
            return Err(task);
        }
        parked.insert(task.id().number(), task);
        Ok(())
    }

    /// Whether a freeze of the group lets what the thread bears go on: what has begun, unless it is to stop where it is; and what ends.
    pub(crate) fn lets_go_on(&self, bearer: &Carrier) -> bool {
        let stops = if bearer.is_unbegun() {
            self.holds_unbegun()
        } else {
            self.is_held_inside()
        };
        !stops || self.lets_end(bearer)
    }

    /// What had not begun has ended: its proxy, of this number, is not to be kept here.
    pub(crate) fn let_go_of_unbegun(&self, shared: &Shared, proxy: Id) {
        let released = self.lock_parked().remove(&proxy.number());
        if let Some(proxy) = released {
            shared.submit_remote(proxy, Enqueue::Wake);
        }
    }

    /// The group above; `None` for the root group.
    pub(crate) fn above(&self) -> Option<&Self> {
        self.parent.as_deref()
    }

    /// Whether a freeze of the group does not hold what the thread bears: a poll that has ended, or whose task was aborted or is in another
    /// group by now; or destructors of what never began. O(tasks); asked only of polls that are to stop where they are.
    pub(crate) fn lets_end(&self, bearer: &Carrier) -> bool {
        let is_dead = |number| !self.owned.has_living(number);
        bearer.is_finished() || bearer.buries() || bearer.task_borne().is_some_and(is_dead)
    }

    pub(super) fn lock_parked(&self) -> MutexGuard<'_, BTreeMap<u64, Task>> {
        self.parked
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Bounds the wait for first polls, here and for everything below; `Duration::MAX` lifts the bound. Called under `Shared::shape`.
    pub(crate) fn settle_queue_wait_max(self: &Arc<Self>, shared: &Shared, wait: Duration) {
        let wait = u64::try_from(wait.as_nanos()).ok();
        self.queue_wait.set_max(wait.map(Nanos));
        let mut groups = vec![self.clone()];
        while let Some(group) = groups.pop() {
            let above = group.parent.as_ref();
            let above = above.is_some_and(|parent| parent.is_wait_bounded());
            let bounded = above || group.queue_wait.max().is_some();
            group.wait_bounded.store(bounded, Ordering::Relaxed);
            let children = group.core.children();
            groups.extend(children.iter().map(|core| lookup(shared, core)));
        }
    }

    /// How long a request may wait for its first poll, by this group's bound and those above it.
    #[cfg(feature = "tower")]
    pub(crate) fn queue_wait_max(self: &Arc<Self>) -> Option<Nanos> {
        let waits = self.lineage().filter_map(|group| group.queue_wait.max());
        waits.min()
    }

    /// A new task comes; its place in the lines of the bounds that there are. The group is bounded.
    ///
    /// # Errors
    /// Its oldest task, or that of a group above, has waited for too long; and which group that is.
    #[cold]
    pub(super) fn stand_in_line(
        self: &Arc<Self>,
        shared: &Shared,
    ) -> Result<Tickets, (TooLong, Arc<Self>)> {
        // Nobody is to be stopped while it holds a line.
        let _shield = shared.shield();
        Tickets::draw(self.lineage(), shared.now())
    }

    /// Whether it weighs more than `other`, each as what of it is directly below the first group that both are in. Not if one is above the other. O(depth).
    pub(crate) fn outweighs(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        fn path(group: &Arc<GroupShared>, depth: usize) -> impl Iterator<Item = &Arc<GroupShared>> {
            let below = group.core.depth() - depth;
            std::iter::successors(Some(group), |at| at.parent.as_ref()).skip(below)
        }
        let depth = self.core.depth().min(other.core.depth());
        let siblings = |(mine, theirs): &(&Arc<GroupShared>, &Arc<GroupShared>)| {
            let parents = (mine.parent.as_ref(), theirs.parent.as_ref());
            matches!(parents, (Some(my), Some(their)) if Arc::ptr_eq(my, their))
        };
        let mut levels = path(self, depth).zip(path(other, depth));
        let Some((mine, theirs)) = levels.find(siblings) else {
            return false;
        };
        let weight = |group: &GroupShared| match group.core.is_idle() {
            true => None,
            false => Some(group.core.weight()),
        };
        weight(mine) > weight(theirs)
    }

    /// The group and those above it whose populations count its tasks.
    pub(crate) fn lineage(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |group| group.parent.as_ref())
            .filter(|group| group.parent.is_some())
    }

    /// Counts a task that comes into the group, in it and above it; `bounded` as for a new task. Nothing is counted if it is refused.
    ///
    /// # Errors
    /// Why, and which group of the lineage it was.
    pub(super) fn join(
        self: &Arc<Self>,
        shared: &Shared,
        bounded: bool,
    ) -> Result<(), (Closed, Arc<Self>)> {
        for (level, group) in self.lineage().enumerate() {
            let joined = if bounded {
                group.population.join()
            } else {
                group.population.join_beyond()
            };
            if let Err(closed) = joined {
                // A removed group has counted the task all the same, so that its removal waits for this.
                let counted = level + usize::from(closed == Closed::Removed);
                self.leave(shared, counted);
                return Err((closed, group.clone()));
            }
        }
        Ok(())
    }

    /// A task has left the group for good.
    pub(crate) fn left(self: &Arc<Self>, shared: &Shared) {
        self.leave(shared, usize::MAX);
    }

    /// One task less in `levels` groups from here upwards.
    fn leave(self: &Arc<Self>, shared: &Shared, levels: usize) {
        for group in self.lineage().take(levels) {
            if group.population.leave() == Left::Empty {
                group.queue_removal(shared);
            }
        }
    }

    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.population.is_removed()
    }

    /// Has the core give the group up, now or in a tick. At most one entry a group.
    pub(super) fn queue_removal(self: &Arc<Self>, shared: &Shared) {
        let _shield = shared.shield();
        let mut leaving = shared
            .leaving
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        if !leaving.iter().any(|known| Arc::ptr_eq(known, self)) {
            leaving.push(self.clone());
        }
        drop(leaving);
        shared.tick.run();
    }

    /// Aborts the group's own tasks, those that are held included. O(tasks).
    pub(crate) fn abort_own(&self, shared: &Shared) {
        for task in self.owned.snapshot() {
            task.abort();
        }
        self.release_parked(shared);
    }

    /// The scheduler ends: what lives here is counted as dropped, once.
    pub(crate) fn count_dropped(&self, shared: &Shared) {
        let (_, dropped) = self.owned.flag_killed();
        note(shared, self, Loss::DroppedTask, dropped, &ENDED);
    }

    /// Queues every token that is kept here: those that are to stay come back.
    pub(super) fn release_parked(&self, shared: &Shared) {
        // Nobody is to be stopped with the tokens of others in its hand.
        let _shield = shared.shield();
        let parked = std::mem::take(&mut *self.lock_parked());
        for task in parked.into_values() {
            shared.submit_remote(task, Enqueue::Wake);
        }
    }

    /// The task `id` of the group was aborted: it is not to be kept back here. O(log of the tasks that are).
    pub(crate) fn let_go(self: &Arc<Self>, shared: &Shared, id: Id) {
        let _shield = shared.shield();
        if shared.preempt.is_some() {
            // After the mark; see `preempt::parts`.
            fence(Ordering::SeqCst);
        }
        if self.is_held() || self.keeps_back.load(Ordering::Relaxed) {
            let released = {
                let mut parked = self.lock_parked();
                let own = parked.remove(&id.number());
                own.or_else(|| take_proxy(&mut parked, id))
            };
            if let Some(task) = released {
                shared.submit_remote(task, Enqueue::Wake);
            }
        }
        self.list_dying(shared);
    }

    /// L2, if its limit may keep the dead back. Takes a leaf.
    pub(crate) fn list_dying(self: &Arc<Self>, shared: &Shared) {
        if self.is_limited() && !self.dying_listed.swap(true, Ordering::AcqRel) {
            shared.list_dying(self.clone());
        }
    }

    /// The group is no longer in `Shared::dying`: marks that are set from here on list it again. Acquires those before.
    pub(crate) fn unlist_dying(&self) {
        self.dying_listed.swap(false, Ordering::AcqRel);
    }

    /// Sets `held` from the parent's and the own flag; queues what may run again. Called under `Shared::shape`, for parents before
    /// their children.
    pub(super) fn settle_held(&self, shared: &Shared) {
        let above = self.parent.as_ref().is_some_and(|parent| parent.is_held());
        let frozen = self.frozen.load(Ordering::Relaxed);
        let held = above || frozen;
        let inside_above = self.parent.as_ref();
        let inside_above = inside_above.is_some_and(|parent| parent.is_held_inside());
        let inside = inside_above || frozen && self.frozen_inside.load(Ordering::Relaxed);
        // Nobody can thaw a group that is removed, and whoever thaws its parent does not find it: polls that stand in it go on to their ends.
        let inside = inside && !self.is_removed();
        let released = {
            let mut parked = self.lock_parked();
            self.held.store(held, Ordering::Relaxed);
            let stood = self.held_inside.swap(inside, Ordering::Relaxed);
            // Polls that stood and now may end come out, and what may begin since the group is removed; what is to stay is held again.
            if held && (inside || !stood) && !self.is_removed() {
                BTreeMap::new()
            } else {
                std::mem::take(&mut *parked)
            }
        };
        for task in released.into_values() {
            shared.submit_remote(task, Enqueue::Wake);
        }
    }

    /// Who inherits what the group leaves: the nearest group above that the core has not given up; `None` for the root.
    fn heir(&self) -> Option<&Arc<Self>> {
        let above = std::iter::successors(self.parent.as_ref(), |group| group.parent.as_ref());
        let mut above = above.skip_while(|group| group.core.is_removed());
        above.next()
    }

    /// It is about to be removed, and its tasks will move to the parent. Not if it was removed before: those that are left go with it.
    pub(super) fn will_move_up(&self) {
        if !self.is_removed() {
            self.moves_up.store(true, Ordering::Relaxed);
        }
    }

    /// The group that its tasks are in, or about to be moved to: the group itself, unless it was removed with
    /// [`Leftover::MoveToParent`](super::Leftover::MoveToParent). O(depth) then, else one load.
    pub(crate) fn where_its_tasks_are(self: &Arc<Self>) -> &Arc<Self> {
        let mut group = self;
        // The mark is older than the removal, which acquires it.
        while group.is_removed() && group.moves_up.load(Ordering::Relaxed) {
            let Some(parent) = &group.parent else {
                break;
            };
            group = parent;
        }
        group
    }

    pub(super) fn path(&self) -> String {
        self.core.path().to_owned()
    }
}

/// Anywhere, and under any lock: nobody's code is run here (`estates`).
impl Drop for GroupShared {
    fn drop(&mut self) {
        let Some((scheduler, left)) = self.kept.take_all() else {
            return;
        };
        let heir = self.heir().cloned();
        estates::leave(&scheduler, left, |shared| {
            heir.unwrap_or_else(|| shared.root.clone())
        });
    }
}

/// The token that stands for a poll of the task `id`, out of those that a group keeps. O(them).
fn take_proxy(parked: &mut BTreeMap<u64, Task>, id: Id) -> Option<Task> {
    let borne = Some(id.number());
    let mut tokens = parked.iter_mut();
    let is_for = |token: &mut Task| {
        let bearer = token.owned_mut().bearer();
        bearer.is_some_and(|bearer| bearer.task_borne() == borne)
    };
    let place = tokens.find_map(|(place, token)| is_for(token).then_some(*place))?;
    parked.remove(&place)
}

/// Gives removed groups without tasks back to the core; returns whether any still waits.
pub(crate) fn finish_removals(shared: &Shared) -> bool {
    let mut leaving = shared
        .leaving
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    if leaving.is_empty() {
        return false;
    }
    let shape = shared.lock_shape();
    let may_wait = |group: &Arc<GroupShared>| {
        if group.population.count() > 0 {
            // A spawn that is being refused is counted for a moment: its end will queue the group again.
            return false;
        }
        match shared.tree.remove(&group.core) {
            Ok(()) => {}
            // It was given up before: a spawn that was refused since then has left it once more.
            Err(GroupError::Removed { .. }) => return false,
            Err(_) => return true,
        }
        let id = group.core.id();
        shared
            .groups
            .write()
            .unwrap_or_else(|poison| poison.into_inner())
            .remove(&id);
        shared.groups_version.fetch_add(1, Ordering::Release);
        false
    };
    let (waiting, gone) = std::mem::take(&mut *leaving)
        .into_iter()
        .partition::<Vec<_>, _>(may_wait);
    let any = !waiting.is_empty();
    *leaving = waiting;
    // What a group holds is not let go of under a lock.
    drop(shape);
    drop(leaving);
    drop(gone);
    any
}

/// The runtime's part of a core group, if there is one.
pub(crate) fn known(shared: &Shared, core: &Arc<quotient_core::Group>) -> Option<Arc<GroupShared>> {
    if core.parent().is_none() {
        return Some(shared.root.clone());
    }
    let groups = shared.groups.read();
    let groups = groups.unwrap_or_else(|poison| poison.into_inner());
    let known = groups.get(&core.id());
    known
        .filter(|known| Arc::ptr_eq(&known.core, core))
        .cloned()
}

/// The runtime's part of a core group, made for it and its ancestors on first use; of one that was removed, a part that nobody else
/// knows and that takes no task. Called under `Shared::shape`.
pub(crate) fn lookup(shared: &Shared, core: &Arc<quotient_core::Group>) -> Arc<GroupShared> {
    if let Some(known) = known(shared, core) {
        return known;
    }
    let Some(parent) = core.parent() else {
        return shared.root.clone();
    };
    let parent = lookup(shared, parent);
    let group = Arc::new(GroupShared::new(
        core.clone(),
        Some(&parent),
        usual_slots(shared.regular),
    ));
    if core.is_removed() {
        // Its number may be another's by now.
        group.population.close();
        return group;
    }
    shared
        .groups
        .write()
        .unwrap_or_else(|poison| poison.into_inner())
        .insert(core.id(), group.clone());
    shared.groups_version.fetch_add(1, Ordering::Release);
    group
}
