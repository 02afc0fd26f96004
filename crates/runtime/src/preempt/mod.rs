//! Polls that do not return: another thread takes over, and the poll goes on at lower priority, by turns.
//!
//! # The idea
//! The virtual CPUs of a preempting scheduler are polled by threads of ours, *carriers*, each with the tokio handle entered. A poll
//! that outlives its turn is *detached* (`quotient_pause`): the *watch* (the tick thread) lowers the priority of its thread and
//! gives the virtual CPU to a spare carrier. The thread that is left with the poll is its *bearer*. A *proxy* takes the poll's place
//! in the run queue: a token with the task's scheduling state, which policy picks like any other. What "polling" a proxy means is
//! that the carrier sleeps (a *nap*), so that the processor is free and the bearer runs; an arrival ends the nap, and the kernel gives
//! the carrier, which is of normal priority, the processor at once. The bearer is charged by its thread's CPU clock.
//! So nothing is stopped for an arrival. *Paused* is only what policy forbids to run: of several bearers of a virtual CPU all
//! but the chosen one, those of throttled groups, those of frozen ones, and those who compute for another group that has no budget (`payers`).
//!
//! # Words and states
//! | thread | does | left by |
//! |---|---|---|
//! | `idle` | waits in the pool | a job |
//! | `carrier` of k | turns virtual CPU k; its polls are regions | the virtual CPU ends → `idle`; detached → `bearer` |
//! | `bearer` | finishes the poll (and the task's next ones, as long as they are long and ready at once) | posts the outcome → `idle` if it may raise its priority again, else it ends |
//!
//! # Who may touch what
//! - *The right to turn k* is held by one thread: the carrier whose poll is in a region, or who is between polls. Only the watch takes
//!   it, by committing a detachment, and gives it away in the same step, by a job in the pool. A thread whose region ended
//!   `Detached` touches neither the run queue nor the cells of k any more: its virtual CPU's future ends without being counted as
//!   ended, since the new carrier's future continues it.
//! - *What happened before the poll* on the old carrier happens before the new one's turn: begin of the region (release) → the watch's
//!   look at it (acquire) → the pool's lock → the new carrier.
//! - *The poll's own code* may call the runtime on the old thread at any time: wake-ups go to the inbox of k and wake its carrier,
//!   whoever that is (`local`), or one of them into k's `next` slot, as long as k is the thread's. A carrier takes the slot over when it sits
//!   down, before it does anything else; from then on nobody else fills it, by the slot's own word, and what the borne poll has left there
//!   goes to the run queue with the first arrivals. Clocks are not shown in the middle of a poll, since that has one writer.
//! - *Locks of a seat* (`carrier`, `chosen`): the watch waits for them, and only the watch lets a stopped poll go on that holds the
//!   allocator's lock. So nothing is freed under one: what comes out of a seat is dropped after it. Nor does the watch free anything: of
//!   each carrier that it looks at it keeps a reference, and gives that to the tick thread.
//! - A bearer's fields ([`turns::Turns`]) are behind its lock, a leaf: held for a few instructions and one or two system calls of
//!   `quotient_pause`, by carriers, the watch, and the bearer itself outside regions. So no paused thread ever holds it.
//!
//! # The token
//! The borne task's own token is on its bearer's stack until the poll's end, then in `Turns::outcome` until the proxy is picked and
//! settled. The proxy's token is where any token is: inbox, run queue, frozen list, a carrier's hand; or `Turns::away`, while the
//! bearer is blocked in the kernel and competes for nothing. The scheduling state (lag, service) goes along: from the
//! task to the proxy at the take-over, back to the task when the outcome is settled. A proxy counts as a live task, so that virtual CPUs
//! do not end before it; it is in no group's list, so that kill and shutdown reach the borne task only, whose next
//! step after the poll ends it.
//!
//! # One runnable bearer a virtual CPU
//! `Seat::chosen` is the bearer whose proxy was picked last on k. Whoever is chosen may run even while the carrier runs short tasks: the
//! kernel prefers those. `Turns::by` says which virtual CPU chose it last: proxies can be stolen, so k may only forbid what k
//! has chosen. A pick of another proxy resumes the new bearer before it pauses the old one. After each pick the chosen one is
//! paused if its group is throttled. A choice ends with the virtual CPU (a stand-in that retires), and where the proxy is taken elsewhere or
//! comes back from being *away* the watch ends it: who may run and is nobody's choice would run for as long as its group has no budget
//! where the proxy waits. *Allowed* is what policy wants, *paused* what is so: a request can miss (the bearer is between two
//! regions, or somebody else holds its slot), and the watch brings the two together at each look, so an error lasts a tick.
//!
//! # Where bearers go on
//! With one bearer a virtual CPU allowed to run, the kernel may put two of them on one processor while another idles: a thread that is
//! woken is placed before the one that it replaces stops. So it is let go on where its predecessor was (`Handle::wake_on`), or
//! if another virtual CPU's chosen one was put there, where none was. Nothing stays bound: the kernel may move it at once, and does
//! if other programs want the processor.
//!
//! # No end is missed
//! Bearer: (E1) under its lock: outcome and final CPU time are stored, `finished` is set; (E2) fence; (E3) look at the nap of the
//! virtual CPU in `by`, end it if it is on. Carrier: (N1) nap := on, fence; (N2) look at the inbox, the unthrottles, the phase,
//! and `finished`; (N3) sleep for the turn at most. Not both E3 and N2 can miss the other's store. A waker does E2 and E3 after its push.
//! If the proxy is away, its token is in the lock's keeping, and E1 takes it along and submits it. If neither, the proxy is queued and will be
//! picked.
//!
//! # Locks held by paused threads
//! User code may be paused while it holds a lock (of the allocator, of tokio, its own). Nobody who resumes may wait for such a lock:
//! the watch allocates nothing, logs nothing and takes leaves only; spares are started before they are needed. The runtime's
//! wake-ups, spawns and holders of `Shared::shape` shield themselves (`quotient_pause::uninterrupted`), and are not lowered meanwhile
//! (`priority`); a wake-up from before the word says that it has come, since from then on nobody else can bring it. Users' guards
//! (`quotient_pause::undisturbed`) end with their poll, forgotten or not, and keep it going for 50 ms of CPU time in all: then the watch insists
//! (`overtime`). For all other locks: *aging*, every 20 ms one paused
//! bearer, round robin, runs for 200 us, charged to it, and every 4 ms while a borne poll is blocked in the kernel, since what it waits for may be
//! a lock of theirs that no carrier wants (not if both are under the same limit: what a tenant waits for of its own is no reason to let it
//! have more), or a task of another scheduler is (`elsewhere`); and *rescue*: if a carrier sleeps in the kernel, not by itself,
//! for two looks while somebody is paused (one that only waits for a processor waits for nobody who stands), all paused bearers run for 200 us, at most once in 4 ms; the same if the host or the tick
//! thread does not get on (`heartbeat`, where the bound stands). Such a turn lasts until half of
//! that was used, 10 ms at most: on a busy machine a thread of low priority waits for its processor. What either costs in CPU time
//! stays below 1 % (5 % in the latter case) and 5 % of a processor, so that a busy machine does not make limits void. Both are counted.
//!
//! # Freezes and kills
//! A freeze holds a group's tasks between polls, and functions and jobs that have not begun (`frozen`); its other proxies go on being chosen, so that a
//! poll that holds a lock comes to its end.
//! After [`freeze_immediately`](crate::Group::freeze_immediately) a proxy that is picked stops its bearer and is held as any token;
//! such a bearer has no part in aging and rescue (a tenant that is frozen is to use nothing), until it is chosen again, or found killed.
//! So nobody should be stopped so while it holds a lock that the thaw, or anybody else's group, needs: whatever of the runtime's own locks user
//! code can take in a poll is taken under a shield (`Shared::shield`). If a virtual CPU, the host or the tick thread has not got on
//! for 250 ms all the same (a lock of the allocator's, of tokio's), the frozen have short turns with the others until they do. A group that is removed is frozen inside no more, since nobody could
//! thaw it. An end outranks a freeze: the proxy of a task that was aborted or killed, or whose poll has ended, is not held (`GroupShared::lets_end`),
//! and one that is held already goes back to a virtual CPU.
//! After [`kill_immediately`](crate::Group::kill_immediately) a proxy of a poll that began before is put *away*, as a blocked one's,
//! with its bearer stopped; aging goes on, and the end of the poll takes the proxy along (E1). Neither outlives the scheduler: once it
//! closes, every proxy is chosen as usual (the watch brings back what was put away so, `dozing`), and at its end everybody is set free.
//!
//! # Order of locks
//! Run queue, then `Seat`'s, then one bearer's; the pool's is a leaf.

mod bells;
mod between;
mod burials;
mod carrier;
mod charges;
mod choices;
mod courtesy;
mod dozing;
mod elsewhere;
mod finished;
mod foreign;
mod frozen;
mod functions;
mod guest;
mod heartbeat;
mod holds;
mod in_line;
mod jobs;
mod lookout;
mod nap;
mod newcomers;
mod others;
mod overtime;
mod parts;
mod payers;
mod places;
mod pool;
mod priority;
mod prompt;
mod seat;
mod settings;
mod short_turns;
mod shortage;
mod turns;
mod unbegun;
mod uncharged;
mod uninterrupted;
mod waiter;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use quotient_core::{Enqueue, Nanos};
use quotient_keys::EnableGuard;
use quotient_pause::{Pauser, Processor};

use self::bells::AllBells;
pub(crate) use self::bells::ring;
pub(crate) use self::burials::bill_burial;
pub(crate) use self::carrier::{Carrier, Outcome};
pub(crate) use self::charges::{Charge, Parting};
pub(crate) use self::courtesy::Brought;
use self::courtesy::Courtesy;
pub(crate) use self::foreign::{by_turns, is_scheduled, wait_for_turn};
pub(crate) use self::frozen::keeps_from_beginning;
use self::functions::Functions;
pub(crate) use self::functions::{Aborted, LINE_MAX, Line};
use self::heartbeat::Heartbeat;
pub(crate) use self::holds::{begins_deferring, ends_deferring, ends_loan, notes_a_lock};
use self::nap::Nap;
pub(crate) use self::others::{
    Around, begins_for_others, borne_is_due, current, nothing_for_others, shown_for_others,
};
pub(crate) use self::overtime::is_used_up;
use self::parts::Parts;
pub(crate) use self::pool::PoolHost;
use self::pool::{Pool, SPARES};
pub(crate) use self::priority::at_usual_priority;
pub(crate) use self::seat::Seat;
pub use self::settings::{Preempt, PreemptStats};
use self::shortage::Shortage;
pub(crate) use self::unbegun::{Begin, Waiting, hand_to_host};
pub use self::uninterrupted::{Uninterrupted, uninterrupted};
use self::watch::WatchState;
pub(crate) use self::watch::start as start_watch;
use crate::clock::Clock;
use crate::event_log::PauseLog;
use crate::group::GroupShared;
use crate::shared::Shared;

/// No virtual CPU.
pub(crate) const NOBODY: usize = usize::MAX;

/// Locks what no panic can leave broken.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Figures of one scheduler. Each saturates after 584 years of nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) detached: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) pauses: AtomicU64,
    pub(crate) aged: AtomicU64,
    pub(crate) rescues: AtomicU64,
    pub(crate) missed_beats: AtomicU64,
    pub(crate) blocked: AtomicU64,
    pub(crate) undemoted: AtomicU64,
    pub(crate) guest_waits: AtomicU64,
    pub(crate) insisted: AtomicU64,
    pub(crate) kept_back: AtomicU64,
}

/// All of a preempting scheduler beside what every scheduler has.
pub(crate) struct Preempting {
    pub(crate) seats: Box<[Seat]>,
    pub(crate) counters: Counters,
    /// What a recording has of bearers that are stopped and resumed.
    pub(crate) log: PauseLog,
    pool: Arc<Pool>,
    settings: Preempt,
    /// Where bearers may run, as it was at the beginning.
    processors: Vec<Processor>,
    /// Bearers now.
    borne: AtomicUsize,
    parts: Parts,
    /// Groups that keep tasks back, each once. A leaf.
    keeping: Mutex<Vec<Arc<GroupShared>>>,
    /// Threads of others that take turns now.
    foreign: AtomicUsize,
    functions: Functions,
    /// Of threads of the runtime's blocking pool.
    shortage: Shortage,
    bells: AllBells,
    watch: Mutex<WatchState>,
    /// Those that it does not know yet (`newcomers`). A leaf.
    newcomers: Mutex<Vec<Arc<Carrier>>>,
    /// Somebody runs who should stand, and is to be charged.
    overtime: AtomicBool,
    /// Somebody may stand because its payer has no budget (`payers`).
    unpaid_wait: AtomicBool,
    heartbeat: Arc<Heartbeat>,
    courtesy: Courtesy,
    /// Regular virtual CPUs.
    regular: u64,
    /// What was said already.
    #[cfg(feature = "tracing")]
    said: [AtomicBool; 2],
    control: watch::Control,
    /// Keeps the branches open that ask for preemption, as long as a virtual CPU may need them.
    _gate: EnableGuard,
}

impl Preempting {
    pub(crate) fn new(
        settings: Preempt,
        regular: usize,
        slots: usize,
        pool: Arc<Pool>,
        clock: &Clock,
        gate: EnableGuard,
    ) -> Self {
        Self {
            seats: (0..slots).map(|_| Seat::default()).collect(),
            counters: Counters::default(),
            log: PauseLog::new(clock.reader()),
            watch: Mutex::new(WatchState::new(slots, settings.max_borne)),
            newcomers: Mutex::new(Vec::with_capacity(newcomers::ROOM)),
            overtime: AtomicBool::new(false),
            unpaid_wait: AtomicBool::new(false),
            heartbeat: Arc::default(),
            courtesy: Courtesy::default(),
            regular: regular as u64,
            #[cfg(feature = "tracing")]
            said: Default::default(),
            settings,
            processors: Processor::allowed(),
            pool,
            borne: AtomicUsize::new(0),
            parts: Parts::new(settings.max_borne, slots),
            keeping: Mutex::default(),
            foreign: AtomicUsize::new(0),
            functions: Functions::default(),
            shortage: Shortage::default(),
            bells: AllBells::default(),
            control: watch::Control::default(),
            _gate: gate,
        }
    }

    /// The calling thread starts to turn virtual CPU `vcpu`.
    pub(crate) fn sit(&self, vcpu: usize) {
        let seat = &self.seats[vcpu];
        seat.nap.owned_by_this_thread();
        // Of a poll that was taken from its thread.
        self.stops_work(vcpu);
        // Freed after the lock, as everywhere here: see "Locks of a seat" in the header.
        let former = std::mem::replace(&mut *lock(&seat.carrier), current());
        drop(former);
    }

    /// A virtual CPU begins a turn: the watch looks from now on. One load while it does.
    #[inline]
    pub(crate) fn wake_watch(&self) {
        self.control.wake();
    }

    /// The tick thread begins a look.
    pub(crate) fn tick_begins(&self, now: Nanos) {
        self.heartbeat.look_begins(now);
    }

    /// What the tick thread does, which may allocate: proxies of bearers that are not blocked any more compete again, and what the
    /// watch has done with goes.
    pub(crate) fn tick(&self, shared: &Arc<Shared>) {
        self.charge_overtime(shared);
        self.let_paid_go(shared);
        while let Some(mut proxy) = self.returned() {
            if let Some(bearer) = proxy.owned_mut().bearer() {
                // It is stopped unless its turn comes at once, and what it has used by then is used.
                overtime::charge_so_far(shared, bearer);
                if bearer.is_placed() {
                    let group = bearer.group().cloned();
                    group.inspect(|group| self.takes_place(group));
                }
            }
            shared.submit_remote(proxy, Enqueue::Wake);
        }
        while let Some(bearer) = self.buried() {
            drop(bearer);
        }
        self.let_kept_go(shared);
        if self.has_lines() {
            self.let_lines_go(shared);
        }
        self.control.wake();
        self.pool.make_up(shared.now());
        #[cfg(feature = "tracing")]
        self.say_what_is_refused();
        self.heartbeat.look_ends(shared.now());
    }

    /// Once each: that the system gives no threads, and that polls cannot be stopped any more.
    #[cfg(feature = "tracing")]
    fn say_what_is_refused(&self) {
        let said =
            |what: usize, count: u64| count > 0 && !self.said[what].swap(true, Ordering::Relaxed);
        let (threads, pauses) = (self.pool.refused(), self.log.refused());
        if said(0, threads) {
            tracing::warn!(
                target: "quotient",
                threads,
                "the system refuses threads: polls that do not return keep their virtual CPUs, and blocking functions wait, until it gives one"
            );
        }
        if said(1, pauses) {
            let pauser = self.pool.pauser();
            let reason = match pauser.is_in_place() {
                true => "the system does not send the signal",
                false => "the program has put another handler in place for the signal",
            };
            tracing::warn!(
                target: "quotient",
                pauses,
                signal = pauser.signal().number(),
                reason,
                "polls cannot be stopped: limits and freezes do not hold inside them"
            );
        }
    }

    /// Ends the nap of whoever turns `vcpu`; what it is woken for must be visible already, and a fence passed since.
    #[inline]
    pub(crate) fn end_nap(&self, vcpu: usize) {
        if let Some(seat) = self.seats.get(vcpu) {
            seat.nap.end();
        }
    }

    /// Proxies of polls that are not over.
    pub(crate) fn borne(&self) -> usize {
        self.borne.load(Ordering::Relaxed)
    }

    /// A bearer has posted its outcome.
    pub(crate) fn one_less(&self) {
        self.borne.fetch_sub(1, Ordering::Relaxed);
    }

    /// The scheduler has ended: threads of the pool end when they have nothing to do.
    pub(crate) fn close(&self) {
        self.control.stop();
        self.heartbeat.close();
        self.take_leave();
        self.set_all_free();
        self.pool.close();
    }

    pub(crate) fn stats(&self) -> PreemptStats {
        // A poll may ask, and is not stopped under the pool's lock.
        let _shield = quotient_pause::uninterrupted();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (in_line, lined_up) = self.lines_stats();
        PreemptStats {
            detached: read(&self.counters.detached),
            refused: read(&self.counters.refused),
            pauses: read(&self.counters.pauses),
            aged: read(&self.counters.aged),
            rescues: read(&self.counters.rescues),
            missed_beats: read(&self.counters.missed_beats),
            unpaused: self.log.refused(),
            threads_refused: self.pool.refused(),
            blocked: read(&self.counters.blocked),
            undemoted: read(&self.counters.undemoted),
            guest_waits: read(&self.counters.guest_waits),
            guests_refused: self.guests_refused(),
            insisted: read(&self.counters.insisted),
            kept_back: read(&self.counters.kept_back),
            borne: self.borne.load(Ordering::Relaxed),
            foreign: self.foreign.load(Ordering::Relaxed),
            in_line,
            lined_up,
            threads: self.pool.threads(),
        }
    }
}

/// The builder may fail after the pool was started.
impl Drop for Preempting {
    fn drop(&mut self) {
        self.heartbeat.close();
        self.take_leave();
        self.pool.close();
    }
}

/// Starts what a preempting scheduler needs: the pool with its host.
///
/// # Errors
/// The reason of the system if no thread can be started.
pub(crate) fn start(
    (pauser, gate): (Pauser, EnableGuard),
    handle: tokio::runtime::Handle,
    settings: Preempt,
    regular: usize,
    slots: usize,
    clock: &Clock,
) -> std::io::Result<(Preempting, PoolHost)> {
    // A thread a virtual CPU and a long poll, spare ones included.
    let max = slots + settings.max_borne;
    let pool = Pool::start(
        pauser,
        handle.clone(),
        regular + SPARES,
        (max, settings.stack_size),
    )?;
    let host = PoolHost::new(pool.clone(), handle.clone());
    let preempting = Preempting::new(settings, regular, slots, pool, clock, gate);
    drop(handle.spawn(preempting.heartbeat.clone().answer()));
    Ok((preempting, host))
}
