//! Who brings work waits while what it has brought is worked off.
//!
//! # Why
//! Carriers are threads of ours, so a socket is read by another thread, a worker of tokio's, which hands the woken task in. Where the two share a
//! processor the kernel lets that worker, which mostly sleeps, interrupt the carrier for each packet: 0.9 times a request of 52 us, at 13 us each,
//! of an HTTP server on one processor. A runtime that reads its sockets itself does so when it has worked off what it has read before.
//!
//! # What is done
//! The thread that hands tasks in from outside is the *guest* (`quotient_pause::Guest`); the last one that did, if there are several. What it
//! hands in is *brought*, and stays so while it yields: an HTTP connection yields after each request, and what comes for it next wakes nobody
//! then, so that nothing is handed in for any of the guest's interruptions. Until a poll of it takes longer than [`LONG_POLL`].
//! A virtual CPU that has brought tasks to poll, [`TASKS_MIN`] or [`POLLS_MIN`] at least (one, after it was at work for [`LASTING_POLLS`]
//! polls), is *at work* until it polls another task, sleeps, or a poll took longer than [`LONG_POLL`]. While all regular virtual CPUs are
//! at work the guest waits: its wake-ups interrupt nobody. Each time that [`AT_WORK_MAX`] is over, and when the work is done, the virtual
//! CPU's thread offers the guest the processor (`sched_yield`), so that whatever has come meanwhile is handed in at once, by one change
//! of threads; when it is done, the guest is as it was before. Five system calls for all of it, some 2 us. (On a server that is never
//! idle, eight connections on one processor: 0.2 to 0.4 of the guest's turns a request, 0.95 when only what was handed in and not polled
//! yet counted. Beside a limited group, whose turns end the work, 0.3 to 0.4; 0.7 when polls of tasks that were not handed in anew did
//! not begin it again.)
//!
//! # An offer that is refused, and one that others take
//! The kernel lets who yields go on if the other one has had more of late than its part, which is often so of one that has interrupted others, and it
//! waits for the next tick then, 4 ms. (91 of 302 offers of a server beside a limited group.) So the offer is repeated, three times at most, until the
//! thread has lost its processor (`quotient_pause::has_stayed`).
//!
//! And since Linux 6.18 who yields forfeits the rest of its slice, 3 ms: a process that computes on the same processor has that each time. (A server
//! alone in its process answered 500 requests a second beside one, for 9,000 that half a processor is good for.) An offer that takes longer than
//! [`OFFER_MAX`] was such a one's, and nothing is offered, nor the guest told to wait, for [`OFFER_PART`] times as long.
//!
//! # Not beside a long poll
//! Not on a virtual CPU that has a long poll to let run: its bearer, and not the guest, would have the processor that is offered, and be
//! woken past by whoever comes next. (An echo server beside 64 hogs of equal weight answered 6,100 and 6,600 a second so, and 8,500 and
//! 8,900 without. The kernel protects who runs for no longer than the shortest slice that waits, and a bearer's is 100 us. Bearers that
//! are `SCHED_IDLE` leave it at 3 ms: an HTTP server beside 64 hogs answered 6,400 requests a second so, and 5,600 without, but its median
//! in an open loop was 510 us for 270. Where who goes to work stops the bearer until its next turn, the demo's server answers 8,600 to 9,200 a second
//! for 7,400, and p99 in its open loop is 1.5 to 2.6 ms for 1.1; without `SteadyAllocator` up to 7 ms, since one in a hundred is stopped with a lock of
//! the allocator's.)
//!
//! So an arrival waits for those that came before it, as it would anyway, and for a long poll that policy lets go before them: at most
//! [`AT_WORK_MAX`] and one poll, until the watch detaches that. In a group that is not preemptible: until it returns. A tenant that was
//! once woken by the guest and goes on in short polls keeps others' arrivals for [`AT_WORK_MAX`] and a poll, time and again.
//!
//! # Who takes it back
//! Who goes to work says C1 of `guest`, and its word lies in the seat (`at_work`): who takes it out of there says C2: the thread that went to work, when it has done, sleeps or ends; the thread
//! that sits down there, if the virtual CPU was taken from the former in a poll; the future's end, if its host is gone. (A panic that leaves
//! a virtual CPU ends the process.) The scheduler takes back what is left when it closes and when it is dropped. The guest's own state
//! has a lock of its own (`quotient_pause::Guest`): one that has ended is told nothing, one that waits for another scheduler is that one's
//! to wake, and one that was given another policy meanwhile keeps it. A new guest is met only while none waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use quotient_core::Nanos;
use quotient_pause::Guest;

use super::guest::{Tell, Word};
use super::{Preempting, Seat, current};
use crate::watch::thread_number;

/// Fewer tasks than that are not worth the system calls. Unit: tasks. The guest has brought one, and may bring no more.
const TASKS_MIN: usize = 2;
/// Nor are fewer polls. Unit: polls. An HTTP connection has two for a request that comes alone.
const POLLS_MIN: u32 = 3;
/// After so many polls at work there is more to come: next time the first poll goes to work. Unit: polls. Eight: half a millisecond of HTTP
/// requests. (A server that is never idle goes to sleep every 23 polls, when all its connections wait for their clients. It was
/// interrupted in each of its first polls after that: 0.27 turns of the guest a request, and an interruption costs 20 us.)
const LASTING_POLLS: u32 = 8;
/// How long a guest waits, and one poll more. Unit: nanoseconds. 0.5 ms, half the turn of a poll while others wait: the call is 0.1 % of it.
const AT_WORK_MAX: Nanos = Nanos::from_micros(500);
/// After a poll longer than this what else has come is looked at first. Unit: nanoseconds. Five times the calls of five polls between which
/// a guest does not come.
const LONG_POLL: Nanos = Nanos::from_micros(250);

/// An offer that took longer was not the guest's. Unit: nanoseconds. 1 ms: it hands in what has come in some 10 us, and others take a slice, 3 ms.
const OFFER_MAX: Nanos = Nanos::from_micros(1_000);
/// For how many times as long nothing is offered then: 64 lets who else wants the processor have 1.5 % of it for nothing.
const OFFER_PART: u64 = 64;

/// The guest of one scheduler.
#[derive(Debug)]
pub(super) struct Courtesy {
    /// By its thread's number; 0 for none.
    number: AtomicU32,
    word: Word<Met>,
    /// As in `Met`, to be read without the lock. Wraps never: once for each thread.
    refused: Arc<AtomicU64>,
}

impl Default for Courtesy {
    fn default() -> Self {
        let refused = Arc::default();
        let met = Met {
            guest: None,
            refused: Arc::clone(&refused),
        };
        Self {
            number: AtomicU32::new(0),
            word: Word::of(met),
            refused,
        }
    }
}

/// Who was met last.
#[derive(Debug)]
pub(super) struct Met {
    guest: Option<Guest>,
    /// How often the system has refused to tell one.
    refused: Arc<AtomicU64>,
}

impl Tell for Met {
    fn tell(&mut self, waits: bool) -> bool {
        let told = self.guest.as_ref().map(|guest| guest.waits(waits));
        if let Some(Err(_)) = told {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        matches!(told, Some(Ok(true)))
    }
}

impl Courtesy {
    /// Whether the calling thread is the guest, from now on at least.
    #[inline]
    fn is_brought_by_guest(&self) -> bool {
        let number = thread_number();
        number != 0 && (self.number.load(Ordering::Relaxed) == number || self.meet(number))
    }

    /// A thread that is no guest so far hands something in.
    #[cold]
    fn meet(&self, number: u32) -> bool {
        // A driver, a task or a function of a runtime. (On a worker the two first look the same.) Not one of ours: a carrier that comes to its
        // processor late is worse than one that is interrupted.
        let brings = tokio::runtime::Handle::try_current().is_ok() && current().is_none();
        let Some(guest) = brings.then(Guest::this_thread).flatten() else {
            return false;
        };
        let Some(mut known) = self.word.try_lock() else {
            return false;
        };
        if known.waits {
            return false;
        }
        known.guest.guest = Some(guest);
        self.number.store(number, Ordering::Relaxed);
        true
    }
}

impl Preempting {
    /// Whether the calling thread, which polls none of ours, is the guest.
    #[inline]
    pub(crate) fn is_brought_by_guest(&self) -> bool {
        self.courtesy.is_brought_by_guest()
    }

    /// The guest has handed in a task for `vcpu`.
    #[inline]
    pub(crate) fn note_brought(&self, vcpu: usize) {
        if (vcpu as u64) < self.regular {
            self.seats[vcpu].brought.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often the system has refused to have a guest wait.
    pub(super) fn guests_refused(&self) -> u64 {
        self.courtesy.refused.load(Ordering::Relaxed)
    }

    /// What the scheduler has told others is taken back: it ends.
    pub(super) fn take_leave(&self) {
        self.courtesy.word.take_back();
    }
}

/// What a virtual CPU knows of what was brought to it.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// The seat's count at the last look; wraps.
    seen: u32,
    /// Tasks that came and had no poll since; about: others may have taken some of them.
    left: usize,
    /// Polls of such tasks since it rested, to [`POLLS_MIN`].
    polls: u32,
    /// Since when it is at work, or has let the guest in meanwhile.
    since: Option<Nanos>,
    /// Polls of brought tasks while it is at work, to [`LASTING_POLLS`]; and whether there were as many when it was last.
    run: u32,
    lasts: bool,
    /// One of these three is so: saves looking at them around each poll.
    active: bool,
    /// What was polled last was not brought, or took long.
    strange: bool,
    /// Until when it does not go to work, nor offers its processor: others than the guest want that.
    alone_until: Nanos,
}

impl Brought {
    /// The calling thread has sat down, or sleeps: what was counted so far is nobody's work any more.
    #[inline]
    pub(super) fn forget(&mut self, seat: &Seat) {
        self.seen = seat.brought.load(Ordering::Relaxed);
        self.left = 0;
        self.polls = 0;
        self.note_active();
    }

    fn note_active(&mut self) {
        self.active = self.left != 0 || self.polls != 0 || self.since.is_some();
    }

    /// Whether a poll's begin and end mean anything to it, and whether it may have [done](Self::is_done).
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// A thread sits down at `vcpu`.
    pub(crate) fn sit(&mut self, preempting: &Preempting, vcpu: usize) {
        self.forget(&preempting.seats[vcpu]);
    }

    /// The inbox was emptied.
    #[inline]
    pub(crate) fn look(&mut self, preempting: &Preempting, vcpu: usize) {
        self.look_at(&preempting.seats[vcpu]);
    }

    #[inline]
    fn look_at(&mut self, seat: &Seat) {
        let count = seat.brought.load(Ordering::Relaxed);
        let new = count.wrapping_sub(self.seen);
        if new != 0 {
            self.seen = count;
            self.came(new as usize);
        }
    }

    fn came(&mut self, tasks: usize) {
        self.left = self.left.saturating_add(tasks);
        self.active = true;
    }

    fn is_worth_it(&self) -> bool {
        self.left >= TASKS_MIN || self.polls >= POLLS_MIN || self.lasts
    }

    /// A task is about to be polled, which was brought, or while it [is active](Self::is_active).
    #[inline(never)]
    pub(crate) fn begin_poll(
        &mut self,
        preempting: &Preempting,
        vcpu: usize,
        is_brought: bool,
        now: Nanos,
    ) {
        if !self.note_poll(is_brought) {
            return;
        }
        let seat = &preempting.seats[vcpu];
        if self.since.is_none() && self.may_offer(now) && !seat.has_chosen.load(Ordering::Relaxed) {
            self.since = Some(now);
            seat.at_work.store(true, Ordering::Relaxed);
            if preempting.courtesy.word.goes_to_work(preempting.regular) {
                let counter = &preempting.counters.guest_waits;
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The next poll is of a task that was brought, or not. Whether there is enough of that to be at work.
    fn note_poll(&mut self, brought: bool) -> bool {
        let enough = brought && self.is_worth_it();
        self.strange = !brought;
        if brought {
            self.left = self.left.saturating_sub(1);
            self.polls = POLLS_MIN.min(self.polls + 1);
            self.run = LASTING_POLLS.min(self.run + u32::from(self.since.is_some()));
        } else {
            self.polls = 0;
        }
        self.note_active();
        enough
    }

    /// A poll took so long, while it [is active](Self::is_active). Whether that was too long for a task that was brought.
    pub(crate) fn end_poll(&mut self, took: Nanos) -> bool {
        let long = took > LONG_POLL;
        if long {
            self.left = 0;
            self.polls = 0;
            self.strange = true;
            self.note_active();
        }
        long
    }

    /// It is done, as [`Self::is_done`] says: whether only since it has been at work for long, so that it stays there and lets the guest in
    /// (not where others had the processor that was offered).
    pub(crate) fn goes_on(&mut self, now: Nanos) -> bool {
        let goes_on = !self.strange && self.may_offer(now);
        if goes_on {
            self.since = Some(now);
        }
        goes_on
    }

    /// Whether it is at work and should not be any more, or should let the guest in.
    #[inline]
    pub(crate) fn is_done(&self, now: Nanos) -> bool {
        self.since
            .is_some_and(|since| self.strange || now.saturating_sub(since) > AT_WORK_MAX)
    }

    /// Whether the guest has had the processor by itself each time that it was offered lately.
    pub(crate) fn may_offer(&self, now: Nanos) -> bool {
        now >= self.alone_until
    }

    /// The processor was offered, and the thread had it back at `now`, after it was `away`.
    pub(crate) fn offered(&mut self, away: Nanos, now: Nanos) {
        if away > OFFER_MAX {
            let pause = Nanos(away.as_nanos().saturating_mul(OFFER_PART));
            self.alone_until = now.saturating_add(pause);
        }
    }

    /// It goes to sleep: as [`Self::stop`]. What was pushed, polled and only then counted would make two of the next that comes alone.
    #[inline]
    pub(crate) fn sleep(&mut self, preempting: &Preempting, vcpu: usize) -> bool {
        self.forget(&preempting.seats[vcpu]);
        self.rest(preempting, vcpu)
    }

    /// It sleeps, or a bearer has the turn: as [`Self::stop`].
    #[inline]
    pub(crate) fn rest(&mut self, preempting: &Preempting, vcpu: usize) -> bool {
        self.polls = 0;
        self.stop(preempting, vcpu)
    }

    /// It is at work no more; whether it was.
    fn ends(&mut self) -> bool {
        let was = self.since.take().is_some();
        if was {
            self.lasts = std::mem::take(&mut self.run) == LASTING_POLLS;
        }
        self.note_active();
        was
    }

    /// It has [done](Self::is_done): whether the guest has waited.
    #[inline]
    pub(crate) fn stop(&mut self, preempting: &Preempting, vcpu: usize) -> bool {
        self.ends() && preempting.stops_work(vcpu)
    }
}

impl Preempting {
    /// C2 of a virtual CPU that may be at work.
    pub(super) fn stops_work(&self, vcpu: usize) -> bool {
        let was = self.seats[vcpu].at_work.swap(false, Ordering::Relaxed);
        was && self.courtesy.word.has_done(self.regular)
    }
}

#[cfg(all(
    test,
    not(loom),
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests;
