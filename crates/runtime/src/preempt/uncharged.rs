//! What bearers may use before they are charged: functions and jobs of groups without a limit that begin ahead of their first turn, and whoever
//! goes on beside the tasks of the virtual CPU that has chosen it.
//!
//! # Why any
//! Whoever waits for a turn is handed over twice before it begins, 40 us where a virtual CPU idles: as much as an empty function takes in all. And the
//! turn of one that computes for a moment and then waits for a file or the network is one in which the virtual CPU waits for nothing, until its carrier
//! looks: 350 us for 5 us of work. (Ten tenants with 20 such functions of 10 ms each, one after the other, left an equal one that computed 0.04 CPUs of two;
//! nobody paid for it, so policy gave them the next turn, too.) So a function begins at once, *ahead* of its first turn,
//! and its proxy begins *away*, as that of a bearer that dozes (`dozing`): it competes for nothing until it is found to compute; if it ends before
//! that, its proxy comes once, to pay, and nobody sleeps for it. In a group with a limit whose functions are [`SHORT`], and where there was no room, it
//! begins so once its proxy is picked for the first time, which is when policy says that it is its turn: the virtual CPU goes on with others at once. Only where there
//! is no room even then, it has that turn. It is ahead until its proxy is picked, the next time.
//!
//! # Why not any number
//! While the group owes, that is late; and if each function that comes begins, the group has the more the more it owes. (Four threads with jobs of 1.5
//! ms in a group of weight 100 had 8.1 s of CPU time beside long polls of one of 300, which had 1.4; the group's clock said 0.5 s.) So, in a *tenant*, which
//! is a group below the root with all below it:
//! - *Those that are ahead and awake* count as [`UNCHARGED_MAX`] each, and as many are let begin as there are virtual CPUs. Where the tenant's functions
//!   are [`SHORT`] they count as what they are expected to use. Others wait for their first turn. In a frozen group nobody begins (`frozen`).
//! - *What those that have ended owe* is [`OWED_MAX`] for each virtual CPU, or nobody begins ahead.
//! - *Who is ahead stands after [`UNCHARGED_MAX`]* until it is picked: the watch sees to that, as it does for whoever runs beside the
//!   tasks of the virtual CPU that has chosen it. Under a limit it stands as soon as it is found awake (`dozing`).
//!
//! # States of a function
//! | it is | it counts as | left by |
//! |---|---|---|
//! | *awake* | what it may use | A2, A3, A4 |
//! | *asleep*: one that came later found it so, in the kernel | nothing | A2, A4 |
//! | *owing*: it has ended, or stands | what it has used | A2 |
//! | not ahead | nothing | A1, before it begins, at the latest as its proxy is picked for the first time |
//!
//! Who only sleeps keeps nobody from beginning. One that wakes computes beside the others as those do that doze: until the watch finds it, or it ends; by
//! either it owes. So to sleep as somebody looks makes room for one more, but what was computed meanwhile is counted before the next one begins in its place.
//!
//! # Protocol
//! The state is one word of the carrier, changed by compare-and-swap, and each change is added to the tenant's sums. A1: the function's thread, before it is
//! known to any virtual CPU, or who has picked its proxy while it waits, adds it, and takes that back where there is no room. A2: whoever picks its proxy takes
//! it out of the sums, once, by the word; so does the carrier's end, if its proxy never was picked. A3: a function that finds no room looks at some of those
//! that are awake, whose names are behind a lock of the tenant that nobody holds in a poll, and takes the place of one that sleeps. (One that *stands* waits in the kernel,
//! too, but is not allowed to run.) A4: the thread at its end, before its outcome is posted, and the watch as it has it stand. Numbers and nothing else: a
//! reader that comes late lets one more or one less begin.
//!
//! *No proxy is lost, and nobody waits for ever*: the proxy is put away by the function's own thread before its region begins, or by who has picked it, which is what lets the thread
//! begin ([`Turns::put_away`](super::turns::Turns::put_away)). From there on it is as any that is away: the end finds it (E1), or the watch brings it back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use quotient_core::Nanos;

use super::carrier::Carrier;
use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::shared::{OPEN, Shared};

/// What a thread of others may use beside its virtual CPU's other tasks before it is charged. Unit: nanoseconds. 1 ms, the watch's period.
const UNCHARGED_MAX: Nanos = Nanos::from_millis(1);

/// What those that have ended, or stand, may owe for each virtual CPU. Unit: nanoseconds. 4 ms, a turn: those that have used 50 us each are 80, and wait
/// for a pick that costs some microseconds.
const OWED_MAX: Nanos = Nanos::from_millis(4);

/// The same of a long poll. Unit: nanoseconds. 4 ms, a turn: of low priority it has a tenth of the processor beside others, and one stop in a hundred
/// finds the allocator's lock taken.
const UNCHARGED_POLL_MAX: Nanos = Nanos::from_millis(4);

/// Those that are awake at whom one that finds no room looks. Unit: functions. A system call of 3 us each; a hand-over costs 40.
const LOOKS: usize = 4;

/// What one function is expected to use at least. Unit: nanoseconds. 50 us: to begin and to end takes half of that.
const EXPECTED_MIN: Nanos = Nanos::from_micros(50);
/// Functions of a tenant that use less count by that, without a look at any. Unit: nanoseconds. 75 us, for which a look and two hand-overs are much. With
/// functions of 200 us that counted so, eight in each of two groups of weight 1 and 3, one group had 1.8 times what the other had: all began ahead,
/// and no proxy was left to choose from.
const SHORT: Nanos = Nanos::from_micros(75);
/// By which part of the difference a function that used less than was expected of it lowers that.
const EXPECTED_PART: u64 = 8;

/// What a tenant may have used, and was not charged for.
#[derive(Debug)]
pub(crate) struct Uncharged {
    /// The sum of those that are awake. Unit: nanoseconds.
    sum: AtomicU64,
    /// The sum of those that owe. Unit: nanoseconds.
    owed: AtomicU64,
    /// What is expected of the next one. Unit: nanoseconds.
    expected: AtomicU64,
    /// Those that were awake when they were looked at last; some that are gone, too.
    awake: Mutex<VecDeque<Weak<Carrier>>>,
}

impl Default for Uncharged {
    fn default() -> Self {
        Self {
            sum: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            expected: AtomicU64::new(UNCHARGED_MAX.as_nanos()),
            awake: Mutex::default(),
        }
    }
}

/// The state of one function: which, and what it may have used, four times that in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Ahead(AtomicU64);

const NOT_AHEAD: u64 = 0;
const AWAKE: u64 = 1;
const ASLEEP: u64 = 2;
const OWING: u64 = 3;

fn word(state: u64, time: u64) -> u64 {
    state | time << 2
}

fn state(word: u64) -> u64 {
    word & 3
}

fn counted(word: u64) -> u64 {
    word >> 2
}

impl Ahead {
    fn state(&self) -> u64 {
        state(self.0.load(Ordering::Relaxed))
    }

    /// The word becomes `to`, if it is of a state that `may` change.
    fn change(&self, all: &Uncharged, to: u64, may: impl Fn(u64) -> bool) -> bool {
        let relaxed = Ordering::Relaxed;
        let changed = self
            .0
            .fetch_update(relaxed, relaxed, |word| may(state(word)).then_some(to));
        if let Ok(before) = changed {
            all.sum_of(to).fetch_add(counted(to), relaxed);
            all.sum_of(before).fetch_sub(counted(before), relaxed);
        }
        changed.is_ok()
    }
}

impl Uncharged {
    fn sum_of(&self, word: u64) -> &AtomicU64 {
        match state(word) {
            OWING => &self.owed,
            _ => &self.sum,
        }
    }

    /// A1, if there is room.
    fn lets_begin(&self, ahead: &Ahead, vcpus: usize) -> bool {
        let most = |each: Nanos| each.as_nanos().saturating_mul(vcpus as u64);
        if self.owed.load(Ordering::Relaxed) > most(OWED_MAX) {
            return false;
        }
        let more = match self.expects_short_ones() {
            true => self.expected.load(Ordering::Relaxed),
            false => UNCHARGED_MAX.as_nanos(),
        };
        let before = self.sum.fetch_add(more, Ordering::Relaxed);
        let has_room = before.saturating_add(more) <= most(UNCHARGED_MAX);
        if has_room {
            ahead.0.store(word(AWAKE, more), Ordering::Relaxed);
        } else {
            self.sum.fetch_sub(more, Ordering::Relaxed);
        }
        has_room
    }

    fn expects_short_ones(&self) -> bool {
        self.expected.load(Ordering::Relaxed) <= SHORT.as_nanos()
    }

    /// A function has ended, or stands, and used so much. Numbers and nothing else: of two that end at once one may count for nothing.
    fn learns(&self, used: Nanos) {
        let expected = self.expected.load(Ordering::Relaxed);
        let used = used.max(EXPECTED_MIN).min(UNCHARGED_MAX).as_nanos();
        let less = expected.saturating_sub(used).div_ceil(EXPECTED_PART);
        let now = used.max(expected - less);
        if now != expected {
            self.expected.store(now, Ordering::Relaxed);
        }
    }

    /// A3: whether one of those that are awake was found asleep.
    fn finds_a_sleeper(&self) -> bool {
        let mut awake = lock(&self.awake);
        for _ in 0..awake.len().min(LOOKS) {
            let Some(one) = awake.pop_front() else {
                break;
            };
            let Some(carrier) = one.upgrade().filter(|carrier| carrier.is_ahead_and_awake()) else {
                continue;
            };
            if carrier.is_found_asleep() {
                return true;
            }
            awake.push_back(one);
        }
        false
    }

    /// It is awake from now on. Names of others that are not go, those that came first at least: `most` are awake at once, and twice as many are kept.
    fn knows(&self, carrier: &Arc<Carrier>, most: usize) {
        let is_awake = |one: &Weak<Carrier>| {
            let carrier = one.upgrade();
            carrier.is_some_and(|carrier| carrier.is_ahead_and_awake())
        };
        let mut awake = lock(&self.awake);
        while awake.front().is_some_and(|first| !is_awake(first)) {
            awake.pop_front();
        }
        if awake.len() >= 2 * most {
            awake.retain(is_awake);
        }
        awake.push_back(Arc::downgrade(carrier));
    }
}

impl Carrier {
    /// A1: whether it may begin ahead of its first turn, where the tenant may have as many awake as there are `vcpus`. O(depth).
    pub(super) fn goes_ahead(self: &Arc<Self>, group: &Arc<GroupShared>, vcpus: usize) -> bool {
        let uncharged = of_tenant(group);
        let may = uncharged.lets_begin(&self.ahead, vcpus)
            || uncharged.finds_a_sleeper() && uncharged.lets_begin(&self.ahead, vcpus);
        if may {
            let each = UNCHARGED_MAX.as_nanos() / EXPECTED_MIN.as_nanos();
            uncharged.knows(self, vcpus.saturating_mul(each as usize));
        }
        may
    }

    /// It is a function or a job: it may begin beside the turns, be it once its proxy was picked.
    pub(super) fn may_begin_beside(&self) {
        self.begins_beside.store(true, Ordering::Relaxed);
    }

    /// Its proxy was picked for its first turn: whether it begins beside the virtual CPU, as one that is ahead. Its proxy is to be put away, by which it begins.
    pub(crate) fn begins_away(self: &Arc<Self>, shared: &Shared, group: &Arc<GroupShared>) -> bool {
        self.begins_beside.load(Ordering::Relaxed)
            && self.is_unbegun()
            && shared.phase() == OPEN
            && (!group.is_limited() || of_tenant(group).expects_short_ones())
            && self.goes_ahead(group, shared.regular)
    }

    /// Whether it began ahead of its first turn, and has not had that.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead.state() != NOT_AHEAD
    }

    /// The same, and it was not found to sleep, nor has it come to its end.
    fn is_ahead_and_awake(&self) -> bool {
        self.ahead.state() == AWAKE && !self.is_finished()
    }

    /// A3: whether it sleeps, and was awake when it was looked at last.
    fn is_found_asleep(&self) -> bool {
        self.is_stuck_in_its_turn() && self.changes(word(ASLEEP, 0), |state| state == AWAKE)
    }

    /// A2: its proxy was picked, or never will be.
    #[inline]
    pub(crate) fn has_had_a_turn(&self) {
        if self.is_ahead() {
            self.changes(NOT_AHEAD, |state| state != NOT_AHEAD);
        }
    }

    /// It has ended, or stands, and used so much in all: the tenant's next are expected to use as much, if it is a function or a job.
    pub(super) fn has_used_in_all(&self, used: Nanos) {
        if self.begins_beside.load(Ordering::Relaxed)
            && let Some(group) = self.group()
        {
            of_tenant(group).learns(used);
        }
    }

    /// A4: it has ended, or stands, its thread at `cpu`.
    pub(super) fn owes_if_ahead(&self, cpu: Nanos) {
        if self.is_ahead() {
            let used = self.uncharged_at(cpu);
            let owes = word(OWING, used.as_nanos());
            self.changes(owes, |state| state != NOT_AHEAD);
        }
    }

    fn changes(&self, to: u64, may: impl Fn(u64) -> bool) -> bool {
        let all = self.group().map(of_tenant);
        all.is_some_and(|all| self.ahead.change(all, to, may))
    }
}

impl Preempting {
    /// Stops a bearer that was chosen and is not charged yet for more than [`UNCHARGED_MAX`] or [`UNCHARGED_POLL_MAX`], used beside the other tasks of its
    /// virtual CPU, until it is chosen again. A thread of others has its usual priority: beside polls of 100 us it had half of the processor, and
    /// since policy knew of that at its next turn only, which was the later the more that came to, its group had four times what was its due.
    pub(super) fn bound_uncharged(&self, shared: &Shared, bearer: &Arc<Carrier>) {
        let by = bearer.chosen_by();
        let is_bound = match self.seats.get(by) {
            Some(seat) => !seat.nap.is_on(),
            // Not one that was detached just now, which the new carrier takes over. Once the scheduler has closed everybody is free.
            None => bearer.is_ahead() && shared.phase() == OPEN,
        };
        let most = match bearer.bears_a_task() {
            true => UNCHARGED_POLL_MAX,
            false => UNCHARGED_MAX,
        };
        let is_over = || bearer.uncharged() > most && !bearer.may_pay_later();
        if is_bound && bearer.may_run_for(by) && is_over() {
            bearer.owes_if_ahead(bearer.cpu_time().unwrap_or_default());
            bearer.has_used_in_all(most);
            self.forbid(bearer, by);
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.has_had_a_turn();
    }
}

/// What is counted for the tenant that the group is of.
fn of_tenant(group: &Arc<GroupShared>) -> &Uncharged {
    let tenant = group.bearing().last().unwrap_or(group);
    &tenant.line.uncharged
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const VCPUS: usize = 2;

    /// As many as may begin at once, and the next is refused.
    fn begin(all: &Uncharged) -> Vec<Ahead> {
        let next = || {
            let ahead = Ahead::default();
            all.lets_begin(&ahead, VCPUS).then_some(ahead)
        };
        std::iter::from_fn(next).collect()
    }

    fn becomes(ahead: &Ahead, all: &Uncharged, to: u64) {
        assert!(ahead.change(all, to, |state| state != NOT_AHEAD));
    }

    fn sums(all: &Uncharged) -> [u64; 2] {
        [&all.sum, &all.owed].map(|sum| sum.load(Ordering::Relaxed))
    }

    #[test]
    fn who_sleeps_keeps_nobody_from_beginning_and_who_owes_does() {
        let all = Uncharged::default();
        let first = begin(&all);
        assert_eq!(first.len(), VCPUS);
        becomes(&first[0], &all, word(ASLEEP, 0));
        let second = begin(&all);
        assert_eq!(second.len(), 1, "in the place of the one that sleeps");
        // They end, and each has used five times what it might.
        let used = word(OWING, 5 * UNCHARGED_MAX.as_nanos());
        becomes(&first[0], &all, used);
        assert_eq!(begin(&all).len(), 0, "two are awake");
        becomes(&first[1], &all, used);
        becomes(&second[0], &all, NOT_AHEAD);
        assert_eq!(
            begin(&all).len(),
            0,
            "nobody is awake, and too much is owed"
        );
        becomes(&first[0], &all, NOT_AHEAD);
        assert_eq!(begin(&all).len(), VCPUS, "one has paid");
    }

    #[test]
    fn each_state_is_taken_out_as_it_was_counted() {
        let all = Uncharged::default();
        for path in [&[ASLEEP, OWING][..], &[OWING, OWING], &[ASLEEP], &[]] {
            let one = Ahead::default();
            assert!(all.lets_begin(&one, VCPUS));
            for state in path {
                becomes(&one, &all, word(*state, 7 * u64::from(*state == OWING)));
            }
            becomes(&one, &all, NOT_AHEAD);
            let again = one.change(&all, NOT_AHEAD, |state| state != NOT_AHEAD);
            assert!(!again, "taken out twice");
            assert_eq!(sums(&all), [0, 0]);
        }
    }

    #[test]
    fn short_ones_count_as_what_they_use_until_one_is_long() {
        let all = Uncharged::default();
        let micros = Nanos::from_micros;
        for _ in 0..100 {
            all.learns(micros(10));
        }
        let each = UNCHARGED_MAX.as_nanos() / EXPECTED_MIN.as_nanos();
        let short = begin(&all);
        assert_eq!(short.len() as u64, VCPUS as u64 * each);
        for one in &short {
            becomes(one, &all, NOT_AHEAD);
        }
        all.learns(micros(200));
        assert_eq!(begin(&all).len(), VCPUS);
    }
}
