//! The turn of a poll that another thread bears: its proxy was picked, so the carrier sleeps and the bearer runs.
//!
//! # Who pays for the carrier
//! The turn ends, for the books, as the nap does: what it takes from there to find out what the bearer has used and to choose is paid for by who is polled next,
//! as the switch between two polls of ordinary tasks. (It was nobody's: who woke five hundred tasks in one poll ended each turn in microseconds.) What it takes
//! from a choice to the nap is nobody's: charged to the bearer it was a tenth of the part of one whose turns others end, and the less a group's
//! weight the more of it. So naps that arrivals end have to be cheap.
//!
//! # How often the kernel is asked
//! Whether a bearer sleeps, or waits for a processor, is asked after a nap that lasted, or when naps have come to [`PEEK`] together in which it had
//! nothing: arrivals that end each nap do not make it more often.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quotient_core::{Gates, Nanos};

use super::Vcpu;
use super::borne::charge_others;
use super::limits::{Payer, look_at_refill};
use super::switch::Previous;
use crate::gates::RuntimeGates;
use crate::group::GroupShared;
use crate::local::PollNotes;
use crate::preempt::{Carrier, Charge, Preempting, Seat};
use crate::shared::{CLOSED, Shared, VcpuShared};
use crate::task_context::Task;

/// Turn of a borne poll. Unit: time. 4 ms: a change of bearers costs a signal and two hand-overs, some 30 us.
pub(super) const TURN: Duration = Duration::from_millis(4);
/// The same in a limited group, whose budget is looked at after it. Unit: time.
const LIMITED_TURN: Duration = Duration::from_millis(1);
/// The same while other tasks wait in the run queue and policy has let the borne one go first, the rest of its request: nothing
/// will end the nap for them. Unit: time. The base slice.
const SHARED_TURN: Duration = Duration::from_micros(250);
/// How long the first turn of a thread of others, and of a poll that has slept, lasts before the carrier looks whether the thread sleeps in the kernel, in a file or a socket perhaps.
/// Unit: time. A timer and a system call of 3 us, for some of them in a turn: a thread that computes for one, or is found awake at each look of one, is not looked at again until it is found to sleep. (Found by the watch's second look,
/// a function that sleeps kept its virtual CPU for 1 to 2 ms: 400 of 20 ms at a time took 270 ms, and 1,000 of 2 ms as long.)
const PEEK: Duration = Duration::from_micros(100);
/// A bearer that used less than this part of a turn may be blocked, and is asked for; so often where turns are long. Where they are short, a bearer of
/// low priority has little of each.
const IDLE_PART: u64 = 2;
/// The same where turns are short. If it is not blocked, it has had no processor.
const STARVED_PART: u64 = 16;
/// A turn after which one is asked for that used little of it. Unit: nanoseconds. A [`LIMITED_TURN`].
const LONG_TURN: Nanos = Nanos::from_millis(1);
/// Turns that were cut short come to this before one is asked for that had nothing of them. Unit: nanoseconds. A [`PEEK`].
const STARVED_FOR: Nanos = Nanos::from_micros(100);
/// Who used this much in a turn, and more than [`IDLE_PART`] of it, is not looked at early in the next. Unit: nanoseconds. As others leave of a
/// [`SHARED_TURN`] at least: each look is one more change of threads, on the processor where it computes.
const COMPUTES_AFTER: Nanos = Nanos::from_micros(150);

impl Vcpu {
    /// The "poll" of a proxy: its bearer has the turn, and this thread sleeps.
    #[inline(never)]
    pub(super) fn give_turn(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        mut proxy: Task,
        started: Nanos,
    ) -> (Previous, Nanos) {
        let owned = proxy.owned_mut();
        let (Some(bearer), Some(preempting)) = (owned.bearer().cloned(), &shared.preempt) else {
            debug_assert!(false, "no proxy");
            return (Previous::Again(proxy), started);
        };
        let bearer = &bearer;
        bearer.has_had_a_turn();
        owned.since = Nanos::ZERO;
        self.enter_group(&owned.group);
        let group = owned.group.clone();
        if let Some((outcome, now)) =
            self.settle_without_turn(shared, me, preempting, (bearer, &group), started)
        {
            let previous = match outcome {
                Some(outcome) => Previous::Returned(proxy, outcome),
                None => Previous::Away(proxy),
            };
            return (previous, now);
        }
        self.brought.rest(preempting, self.index);
        let place = proxy.owned_mut().queued_in().clone();
        preempting.choose(self.index, bearer, &place);
        let is_lent = !Arc::ptr_eq(&place, &group);
        let payer = is_lent
            .then(|| payer_of_turn(bearer, &group, started))
            .flatten();
        let limited = place.is_limited();
        let often = limited || bearer.has_limited_payer();
        self.short_tasks = self.short_tasks.min(self.waiting);
        let turn = if self.short_tasks > 0 {
            SHARED_TURN
        } else if often {
            LIMITED_TURN
        } else {
            TURN
        };
        let before = bearer.cpu_time().unwrap_or_default();
        let seat = &preempting.seats[self.index];
        let has_work = || has_work(shared, me, (self.index, bearer), started);
        let nap = || nap_for(seat, bearer, turn, has_work);
        let sleeps = if limited && !bearer.bears_a_task() {
            // Its priority is not lowered, so who looks after the budget is not ahead of it by that.
            quotient_pause::promptly(nap)
        } else {
            nap()
        };
        let now = shared.now();
        // Before the charge: what the bearer posts later is charged with the outcome.
        let finished = bearer.is_finished();
        let after = bearer.cpu_time().unwrap_or(before);
        self.charge_turn(shared, me, (bearer, payer), started, now);
        // What ends naps and is done between two turns of the virtual CPU would end each nap up to then.
        self.notes.leave = me.is_to_search(started) || me.inbox.is_flooded();
        let said = seat.take_blocked() || sleeps;
        if finished && let Some(outcome) = bearer.take_outcome() {
            preempting.dismiss(self.index, bearer, false);
            return (Previous::Returned(proxy, outcome), now);
        }
        let used = after.saturating_sub(before);
        let wall = now.saturating_sub(started);
        if self.finds_blocked(
            preempting,
            bearer,
            (used, wall),
            (said, turn == SHARED_TURN),
        ) || often && preempting.stops_unpaid(shared, bearer)
        {
            return (Previous::Away(proxy), now);
        }
        self.robbed.lost(wall.saturating_sub(used));
        if shared.loads[self.index].has_unthrottles() {
            // Also where no limit is left, so that no choice looks for that: it would end each turn to come at once.
            me.queue.lock().unthrottle_pending(now);
        }
        (Previous::Interrupted(proxy), now)
    }

    /// After a turn of `wall` time in which the bearer `used` so much of a processor, and which is `said` to sleep: whether it does, and is nobody's choice any
    /// more. One that had no processor while others waited for their turn is brought to this one.
    fn finds_blocked(
        &mut self,
        preempting: &Preempting,
        bearer: &Arc<Carrier>,
        (used, wall): (Nanos, Nanos),
        (said, is_shared): (bool, bool),
    ) -> bool {
        let (used, wall) = (used.as_nanos(), wall.as_nanos());
        let is_long = wall >= LONG_TURN.as_nanos();
        let starved = used < wall / STARVED_PART;
        // Of others that have had a turn meanwhile, too: it is looked at a little earlier.
        self.starved_for = match starved && is_shared {
            true => self.starved_for.saturating_add(Nanos(wall)),
            false => Nanos::ZERO,
        };
        let starves = self.starved_for >= STARVED_FOR;
        let idle = used < wall / IDLE_PART && is_long || starves;
        if used >= (wall / IDLE_PART).max(COMPUTES_AFTER.as_nanos()) {
            bearer.computes(true);
        }
        if !idle && !said {
            return false;
        }
        self.starved_for = Nanos::ZERO;
        let asleep = bearer.handle.is_asleep();
        if asleep == Some(true) {
            preempting.counters.blocked.fetch_add(1, Ordering::Relaxed);
            bearer.computes(false);
            preempting.dismiss(self.index, bearer, false);
            return true;
        }
        if asleep == Some(false) && starved {
            preempting.bring_here(self.index, bearer);
        }
        false
    }

    /// The turn of a proxy that began at `started` is over at `now`: its bearer is charged.
    pub(super) fn charge_turn(
        &mut self,
        shared: &Shared,
        me: &VcpuShared,
        (bearer, payer): (&Carrier, Option<Payer>),
        started: Nanos,
        now: Nanos,
    ) {
        charge_others(bearer);
        let mut charge = bearer.take_charge();
        if RuntimeGates::events() {
            shared.log.polled(self.index, charge.sum(), now);
        }
        let wall = now.saturating_sub(started);
        if let Some(payer) = payer {
            // Its part of the turn, of which the bearer had a processor for so much.
            let part = u128::from(payer.part_of(wall, started, now).as_nanos());
            let had = u128::from(charge.own.as_nanos());
            let paid = part * had / u128::from(wall.as_nanos().max(1));
            let paid = Nanos(u64::try_from(paid).unwrap_or(u64::MAX));
            charge.own = charge.own.saturating_sub(paid);
            payer.has_used(charge.own);
            if paid != Nanos::ZERO {
                payer.pays(paid, self.index, now);
                look_at_refill(shared);
            }
        }
        self.note_turn(me, charge, wall);
    }

    /// The turn of a proxy is over: its bearer used `charge`, on another thread, while this one slept for `wall`.
    fn note_turn(&mut self, me: &VcpuShared, charge: Charge, wall: Nanos) {
        self.notes = PollNotes {
            excluded: wall,
            extra: charge.own,
            absent: Nanos::ZERO,
            held: Nanos::ZERO,
            debt: charge.theirs,
            passed: false,
            leave: false,
            noted: true,
        };
        self.move_reference(wall);
        me.clock.show(charge.own);
        me.resched.store(false, Ordering::Relaxed);
    }
}

/// Who pays for the turn of a bearer of `group` in a lender's place, for what it does when the loan is over. (A lock that is taken again before the turn has ended does not begin another one:
/// long polls that took a lock in turns with others, and looked without end whether they have it, had 0.7 CPUs under a limit of 0.01.)
#[cold]
fn payer_of_turn(bearer: &Carrier, group: &Arc<GroupShared>, started: Nanos) -> Option<Payer> {
    let deferral = bearer.holds().deferral()?;
    deferral.begins_on_loan(started);
    Some(Payer::OnLoan(group.clone(), deferral))
}

/// Whether there is something to do before the end of a turn that began at `started`.
fn has_work(
    shared: &Shared,
    me: &VcpuShared,
    (vcpu, bearer): (usize, &Carrier),
    started: Nanos,
) -> bool {
    me.inbox.len() > 0
        || me.next.is_filled()
        || bearer.is_finished()
        || shared.may_end()
        || me.is_to_search(started)
        || shared.loads[vcpu].has_unthrottles()
        || shared.phase() == CLOSED
}

/// Sleeps for the turn of a bearer, or until there is work. Whether that was found asleep in the kernel early in it ([`PEEK`], and then ever later:
/// who computes for as long as it has is found soon after, by one look more for each doubling). Who was awake at all of them computes, however little it had:
/// others have its processor. (Looked at in each turn, 32 long polls on 16 virtual CPUs of two processors had 0.7 of a limit of one CPU, and the looks 1.2 CPUs.)
fn nap_for(seat: &Seat, bearer: &Carrier, turn: Duration, has_work: impl Fn() -> bool) -> bool {
    let (mut peek, mut left, mut looks) = (PEEK, turn, 0);
    while !bearer.is_known_to_compute() && left >= 2 * peek {
        if !seat.nap.sleep(peek, &has_work) || has_work() || seat.is_said_to_be_blocked() {
            return false;
        }
        if bearer.is_stuck_in_its_turn() {
            return true;
        }
        looks += 1;
        left -= peek;
        peek *= 2;
    }
    if seat.nap.sleep(left, has_work) && looks > 1 {
        bearer.computes(true);
    }
    false
}
