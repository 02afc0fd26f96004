//! Threads that are not the scheduler's and compute for a group: closures of `spawn_blocking`, jobs of other pools. They take turns as the
//! bearers of long polls do.
//!
//! # Protocol
//! Before such a thread begins it becomes what a thread is after a detachment: a [`Carrier`] that the watch knows, with a proxy in its
//! group's queue. What it runs is one region. From there on all that the parent module says of bearers holds for it: it runs while its
//! proxy is the chosen one of a virtual CPU, or while it is blocked and competes for nothing; it stands while its group is
//! throttled or others are ahead; it gets short turns, in case that it holds a lock; and its CPU clock is what the proxy is charged. What
//! differs:
//!
//! | | a long poll | a foreign thread |
//! |---|---|---|
//! | begins | running, chosen if nobody else is | needs a place (`functions`); beside the virtual CPUs, its proxy away (`uncharged`): at once, or with a limit or behind others once its proxy is picked; not in a frozen group (`frozen`) |
//! | priority | lowered | left alone: nobody could raise it again |
//! | counts | as one of `Preempt::max_borne` | as one of as many again, and of what is shared beyond (`places`) |
//! | the scheduler's end | waits for the poll | does not wait: the proxy is no live task, and from the end on the thread is free |
//! | its meter | none | knows the group, and bills nothing |
//!
//! # Who waits as its group is killed
//! A function that has not begun ends by a kill. Jobs and checkpoints, which have nobody who could be told, wait on and begin; and a
//! [`kill_immediately`](crate::Group::kill_immediately), which stops what has begun before, is not for them. So what waits for its first turn is not
//! killed (its proxy is picked as ever), and what begins after a kill *began* after it: the thread, before it begins, (F1) looks
//! whether its group was killed since it began to wait; (F2) looks whether it has ended by that; (F3) if not, begins to
//! wait anew; then it notes that it has begun (G1 of `frozen`). (F4) Who picks its proxy looks for that note, and then at the kill: with the note it sees F3.
//! The kill (K1) counts itself, by which functions end, and then (K2) says from when on it stops: if F1 sees K2, F2 sees K1, so no function
//! that was killed takes itself for one that began later. A thread that F1 lets pass just before K2 was in progress as it was killed, and
//! gets on by short turns, as all such.
//!
//! # Nobody stands for ever
//! Enlisting and setting free both hold the lock of the newcomers, and the phase is written before the latter: a thread that comes too late
//! for being set free sees the phase, and runs without turns. The region's end posts the outcome as a bearer's does (E1 to E3), so the
//! proxy goes wherever it is: queued, it is picked and finds the end; napped for, the nap ends; away, it comes back by E1.
//! *Locks:* as for polls. A closure that stands may hold a lock of the program's, or of tokio's, for the length of a throttle, but for
//! aging and rescue.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use quotient_core::{Enqueue, Nanos, TaskEntity, Weight};

use super::Preempting;
use super::between;
use super::carrier::{Carrier, Outcome};
use super::frozen::keeps_from_beginning;
use super::others::{may_be_current, set_current};
use super::overtime::charge_so_far;
use super::places::Place;
use crate::cpu_clock::OwnTime;
use crate::group::{Group, GroupShared};
use crate::meter::ThreadMeter;
use crate::shared::{CLOSED, OPEN, Shared};
use crate::task_context::{Task, TaskContext};
use crate::vcpu;

/// Whether blocking functions and jobs of the group are scheduled.
pub(crate) fn is_scheduled(group: &Group) -> bool {
    group.shared.preempt.is_some() && group.inner.is_preemptible() && group.shared.phase() == OPEN
}

/// Runs `body` with `state` for `group` on the calling thread, which nobody bills yet, by turns. Not, and the state stays where it is, if the
/// group's functions are not scheduled, the thread is known already, or it has `ended` before its
/// turn: the caller asks. While the group is frozen it waits with what has not ended.
pub(crate) fn by_turns<T, R>(
    group: &Group,
    place: Option<Place>,
    state: &mut Option<T>,
    ended: impl Fn(&T) -> bool,
    body: impl FnOnce(T) -> R,
) -> Option<R> {
    in_turn(group, place, state, (&ended, true), body)
}

/// [`by_turns`]; `may_go_ahead` of its first turn, in a group without a limit.
fn in_turn<T, R>(
    group: &Group,
    mut place: Option<Place>,
    state: &mut Option<T>,
    (ended, may_go_ahead): (&dyn Fn(&T) -> bool, bool),
    body: impl FnOnce(T) -> R,
) -> Option<R> {
    let mut body = Some(body);
    let has_ended = |state: &Option<T>| state.as_ref().is_some_and(ended);
    let leaves = |state: &Option<T>| has_ended(state) || keeps_from_beginning(group);
    loop {
        let takes_part = is_scheduled(group) && !is_known();
        if takes_part && has_ended(state) {
            return None;
        }
        if takes_part && keeps_from_beginning(group) {
            place = None;
            group.shared.preempt.as_ref()?.wait_for_thaw(group);
            continue;
        }
        if takes_part && place.is_none() {
            // A checkpoint has nothing that ends with its group: it waits for no place there that nobody may give up.
            let waits = may_go_ahead || !group.inner.is_removed();
            place = take_place(group, waits, &|| has_ended(state));
            if place.is_none() && waits {
                continue;
            }
        }
        let work = Work::Function(&mut place);
        let tried = enlisted(group, work, |preempting, carrier, place| {
            let mut run = |state| body.take().map(|body| body(state));
            take_turns(
                group,
                (preempting, carrier, place),
                Begins::InTurn {
                    may_go_ahead: may_go_ahead && !keeps_from_beginning(group),
                    has_ended: &leaves,
                },
                state,
                &mut run,
            )
        });
        match tried {
            // Frozen before its first turn, and perhaps thawed since.
            Some(None) if state.is_some() && !has_ended(state) => {}
            Some(done) => return done,
            None if place.is_some() && is_scheduled(group) && !is_known() => {
                // All the room is taken by what has not ended, and by what the tick thread has not freed yet.
                std::thread::sleep(FULL);
            }
            None => return None,
        }
    }
}

/// How long whoever has a place, but cannot be enlisted, waits. Unit: time. The watch's period.
const FULL: std::time::Duration = std::time::Duration::from_millis(1);

/// Waits until the thread's first turn for `group`, if its scheduler preempts and has room, and gives that back at once.
pub(crate) fn wait_for_turn(group: &Group) {
    let never = |_: &()| false;
    in_turn(group, None, &mut Some(()), (&never, false), |()| ());
}

/// Runs `drop_all`, which drops what of the group has ended without having begun, by turns on the calling thread (`burials`). False, and nothing was
/// done, if that cannot be.
pub(super) fn drop_by_turns(group: &Group, drop_all: impl Fn()) -> bool {
    let done = enlisted(group, Work::Burial, |preempting, carrier, place| {
        let mut run = |()| {
            drop_all();
            Some(())
        };
        let known = (preempting, carrier, place);
        take_turns(group, known, Begins::AtOnce, &mut Some(()), &mut run)
    });
    done.is_some()
}

/// Whether the calling thread drops for the group, by turns, what never began there.
pub(crate) fn buries_for(group: &Group) -> bool {
    let is_its = |known: &Arc<GroupShared>| Arc::ptr_eq(known, &group.inner);
    super::current().is_some_and(|carrier| carrier.buries() && carrier.group().is_some_and(is_its))
}

/// Whether the calling thread takes turns already, or cannot any more.
fn is_known() -> bool {
    !may_be_current() || super::current().is_some()
}

/// A place; nothing if there is none and it does not wait, or if the caller is to look at everything again.
fn take_place(group: &Group, waits: bool, has_ended: &dyn Fn() -> bool) -> Option<Place> {
    let preempting = group.shared.preempt.as_ref()?;
    match waits {
        true => preempting.wait_for_place(group, has_ended),
        false => preempting.find_place(&group.shared, &group.inner, false),
    }
}

/// What a thread takes turns for.
enum Work<'a> {
    /// A function or job, with its place if it has one.
    Function(&'a mut Option<Place>),
    /// Destructors of what never began.
    Burial,
}

/// Runs `part` with the calling thread as one that the watch knows; `None` if it cannot be, or need not.
fn enlisted<R>(
    group: &Group,
    work: Work<'_>,
    part: impl FnOnce(&Preempting, &Arc<Carrier>, Option<Place>) -> R,
) -> Option<R> {
    let preempting = group.shared.preempt.as_ref()?;
    if !is_scheduled(group) || !may_be_current() {
        return None;
    }
    let entered = preempting.pool.pauser().enter(|thread| {
        let carrier = Arc::new(Carrier::foreign(thread.handle()));
        let (place, has_room) = match work {
            Work::Function(place) => {
                let has_room = place.is_some();
                (Some(place), has_room)
            }
            Work::Burial => {
                carrier.buries_from(carrier.cpu_time().unwrap_or_default());
                (None, true)
            }
        };
        let known = preempting.enlist(&group.shared, &carrier, has_room);
        known.then(|| part(preempting, &carrier, place.and_then(Option::take)))
    });
    entered.ok().flatten()
}

/// Ends the thread's part, on unwinding too.
struct Ends<'a> {
    shared: &'a Arc<Shared>,
    preempting: &'a Preempting,
    carrier: &'a Arc<Carrier>,
    meter: Option<ThreadMeter>,
    began: Nanos,
    place: Option<Place>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        set_current(None);
        let end = self.carrier.cpu_time().unwrap_or_default();
        between::ends(end);
        let others = self.carrier.others();
        let rest = others.close(end);
        // What is not the meter's is others': a meter inside this one, a future in another group. It knows exactly, if none was forgotten.
        let own = self.meter.take().and_then(|mut meter| meter.leave().ok());
        if let Some(own) = own {
            let own = Nanos(u64::try_from(own.as_nanos()).unwrap_or(u64::MAX));
            let all = end.saturating_sub(self.began);
            others.come_to(all.saturating_sub(own));
        }
        if let Some(due) = rest {
            due.charge();
        }
        if self.carrier.buries() {
            charge_so_far(self.shared, self.carrier);
        }
        self.preempting.foreign.fetch_sub(1, Ordering::Relaxed);
        // Before anybody can find that it has ended.
        self.carrier.owes_if_ahead(end);
        let used = end.saturating_sub(self.began);
        self.carrier.has_used_in_all(used);
        let (chosen_by, away) = self.carrier.finish(&self.preempting.log, Outcome::Done);
        if let Some(place) = &mut self.place {
            // Blocked to its end, it has given it up.
            place.counts = away.is_none();
        }
        fence(Ordering::SeqCst);
        self.preempting.end_nap(chosen_by);
        if let Some(proxy) = away {
            self.shared.submit_at_its_end(proxy, Enqueue::Wake);
        }
    }
}

/// Whether what is in this state has ended.
type HasEnded<'a, T> = &'a dyn Fn(&Option<T>) -> bool;

/// When a thread's part begins.
enum Begins<'a, T> {
    AtOnce,
    /// With its first turn, unless what has not begun `has_ended`, with this state, before; or ahead of that, if it may, there is room and no limit.
    InTurn {
        may_go_ahead: bool,
        has_ended: HasEnded<'a, T>,
    },
}

impl<'a, T> Begins<'a, T> {
    /// How `carrier` begins: what it waits for its first turn with, if it does, and whether it is ahead of that.
    fn of(self, group: &Group, carrier: &Arc<Carrier>) -> (Option<HasEnded<'a, T>>, bool) {
        let Self::InTurn {
            may_go_ahead,
            has_ended,
        } = self
        else {
            return (None, false);
        };
        if may_go_ahead {
            carrier.may_begin_beside();
            let is_limited = group.inner.is_limited();
            if !is_limited && carrier.goes_ahead(&group.inner, group.shared.regular) {
                return (None, true);
            }
        }
        carrier.waits_for_its_turn();
        (Some(has_ended), false)
    }
}

/// Takes part in turns, to the end of `body`, which takes what is in `state`. If it has ended before its first turn, the state stays.
fn take_turns<T, R>(
    group: &Group,
    (preempting, carrier, place): (&Preempting, &Arc<Carrier>, Option<Place>),
    begins: Begins<'_, T>,
    state: &mut Option<T>,
    body: &mut dyn FnMut(T) -> Option<R>,
) -> Option<R> {
    let shared = &group.shared;
    let cpu = carrier.cpu_time().unwrap_or_default();
    carrier.charge_from(between::begins(cpu));
    // Of no task. What drops what has ended is not killed.
    let began = if carrier.buries() {
        Nanos(u64::MAX)
    } else {
        shared.now()
    };
    carrier.bears(0, began);
    carrier.is_of(&group.inner);
    if place.is_some() {
        carrier.has_place();
    }
    let (ended, is_ahead) = begins.of(group, carrier);
    let ends = Ends {
        shared,
        preempting,
        carrier,
        meter: ThreadMeter::enter_unbilled(group).ok(),
        began: cpu,
        place,
    };
    set_current(Some(carrier.clone()));
    let home = u16::try_from(shared.next_home()).unwrap_or(0);
    let location = std::panic::Location::caller();
    let context = TaskContext::uncounted(shared.clone(), location, home);
    let entity = TaskEntity::new(Weight::DEFAULT, None);
    let proxy = vcpu::proxy(context, entity, &group.inner, carrier, shared.now());
    let id = proxy.id();
    carrier.show_as(id.number());
    if is_ahead {
        preempting.begins_away(shared, carrier, proxy, cpu);
    } else {
        shared.submit_remote(proxy, Enqueue::Wake);
    }
    if ended.is_none_or(|ended| carrier.begins(shared, || ended(state))) {
        let state = state.take()?;
        let result = quotient_pause::region(|| body(state)).0;
        drop(ends);
        return result;
    }
    drop(ends);
    group.inner.let_go_of_unbegun(shared, id);
    None
}

impl Preempting {
    /// A function that is ahead of its first turn begins (`uncharged`), its thread at `cpu`: its proxy is away until that computes for long, or
    /// has ended.
    fn begins_away(&self, shared: &Shared, carrier: &Carrier, proxy: Task, cpu: Nanos) {
        let at = OwnTime {
            wall: shared.now(),
            cpu,
        };
        match carrier.put_away(&self.log, proxy, false, at) {
            None => self.has_gone_away(shared, carrier),
            Some(proxy) => shared.submit_remote(proxy, Enqueue::Wake),
        }
    }

    /// A bearer's proxy was put away: it has no place meanwhile.
    pub(crate) fn has_gone_away(&self, shared: &Shared, bearer: &Carrier) {
        if bearer.is_placed()
            && let Some(group) = bearer.group()
        {
            self.gives_up_place(shared, group);
        }
    }

    /// The watch knows the carrier from now on; false if the scheduler has ended, or there is no room and none `is_kept` for it.
    fn enlist(&self, shared: &Shared, carrier: &Arc<Carrier>, is_kept: bool) -> bool {
        let others = self.foreign.load(Ordering::Relaxed);
        let kept = self.begun() + self.functions.digging.load(Ordering::Relaxed);
        let room = is_kept || others.saturating_sub(kept) < self.settings.max_borne;
        if !room || !self.comes(shared, carrier) {
            if room && shared.phase() != CLOSED {
                // Of what has ended: see `finished`.
                shared.tick.hurry();
            }
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.foreign.fetch_add(1, Ordering::Relaxed);
        self.control.wake();
        true
    }
}
