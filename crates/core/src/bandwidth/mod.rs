//! CPU bandwidth control: a group may use so much CPU time, summed over all CPUs, in each period.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | quota Q, period P, burst B | the limit: Q ns in each P, and up to B of unused quota carried over |
//! | pool R | what CPUs may still take; at most Q + B; negative is a debt of the whole group |
//! | balance r | what one CPU has taken and not yet run; negative is a debt |
//! | slice | how far a balance is filled at once |
//! | dry | a balance of zero or less that the pool could not fill |
//! | throttled | a dry group on one CPU: taken out of its parent's timeline there, its tasks left in its own |
//!
//! # The life of a nanosecond
//!
//! ```text
//!                 period timer                take                    charge
//!      quota ────────────────────► pool R ────────────► balance r ────────────► consumed
//!                  │ beyond Q+B     ▲  │  give back / reclaim  │
//!                  ▼                └──┼───────────────────────┘
//!              discarded               └── pays debts of waiting CPUs, oldest first
//!
//!      refilled - discarded  ==  R + sum(r) + consumed          exactly, at every level, at any quiescent moment
//! ```
//!
//! Every limited level of the path is charged the same nanoseconds that the clocks are ([`crate::RunQueue::charge`] and the
//! batches in front of it): the remaining balance bounds the batch, so that a batch ends with the first poll that
//! empties a balance. What that poll ran beyond is a debt, and debts are paid before anything else.
//!
//! # Who may do what
//!
//! | state | written by | under |
//! |---|---|---|
//! | pool, waiting list, limit, timer | anybody | the group's pool lock |
//! | balance: charge | its CPU | atomic subtraction, no lock |
//! | balance: pay | anybody | atomic addition, pool lock |
//! | balance: reclaim what is positive | anybody, of an idle CPU; of any if the pool owes | compare-and-swap, pool lock |
//! | busy, throttled (of a balance) | its CPU | its run queue's exclusive borrow |
//! | mailbox of a CPU | posted by anybody, emptied by its CPU | its own lock |
//! | which mailbox a balance has | the run queue that begins to serve its CPU | pool lock |
//! | the tree's timer map | anybody | its own lock |
//!
//! **Locks** are taken in this order, never the other way: the host's run queue lock, a limit change's lock, one pool's
//! lock, then a mailbox's or the timer map's. No two pools are ever locked at once, and no run queue from here at all.
//! Under a pool's lock there is work for O(CPUs that met the group), no callback and no allocation in proportion to tasks.
//!
//! # Throttle and unthrottle
//!
//! 1. A charge leaves the balance at zero or less. The CPU takes a slice (pool lock). If that fails, a throttle is *due*:
//!    the current task should give way, and the chain is put back at the next choice.
//! 2. At the choice, under the pool lock once more: try to take; if the pool is empty, join the waiting list **in the same
//!    critical section**. So either the refill sees the CPU on the list, or the CPU sees the refill: no wake-up is lost.
//! 3. Only then, under the run queue's borrow, the group's entity leaves its parent's timeline: O(1), whatever it holds.
//!    Whatever is woken meanwhile is queued in place and found there later. How many tasks that keeps back is known at once:
//!    each level counts what may run below it. A task that comes or goes is added there later (`RunQueue::settle_counts`): as
//!    long as all are below the same limits and none of those throttles, one number is kept for all their levels.
//! 4. A refill pays debts plus 1 ns, oldest first. Who is paid leaves the list and is *posted*: its CPU's mailbox gets
//!    the group's name (once), and the host is told to kick the CPU. Post before removal, so that a throttled balance is
//!    always on the list, or posted, or about to be looked at.
//! 5. The CPU empties its mailbox under its run queue's borrow: it marks the entry as seen, *then* looks. With a positive
//!    balance (or no limit any more) the entity is put back. Without (a change of the limit took it), step 2 again.
//! 6. A CPU that follows the end of a limit takes its meter away *before* it puts the entity back: putting back asks for a
//!    balance, and the limit may be in force again by then, but what has no meter is never closed. An entry that it finds
//!    without a meter means nothing; when it begins to charge again the entry counts as not posted.
//!
//! A host must make a kicked CPU look, even one about to park: the mailbox's flag is set before the kick, and the CPU
//! looks at it last before it reports that there is nothing to run.
//!
//! A group that gets something to run while its balance is dry goes through step 2 instead of being linked. A group about
//! to be chosen whose balance was reclaimed in the meantime does so, too. Hence *no task of a throttled hierarchy is ever
//! chosen*, but for two exemptions, which open a throttled group on one CPU without touching the waiting list:
//! - **deferring** tasks (lock holders): the group runs on into debt there, up to [`rules::OVERDRAFT_MAX`];
//! - **soft** limits: a CPU with nothing else to run takes one poll at a time, booked as overage and not as usage.
//!
//! # No false throttle (default rules)
//!
//! Before a CPU waits it takes back what idle CPUs hold. An idle CPU that empties at the same moment is not missed:
//!
//! ```text
//!     throttling CPU (pool lock)            CPU that runs out of tasks
//!     1  waiting := waiting + 1             a  busy := false
//!        fence(SeqCst)                         fence(SeqCst)
//!     2  read busy of the others            b  read waiting
//!        idle: take its balance                > 0: give the balance back, arm the slack timer for now
//! ```
//!
//! Not both reads can come before both writes. Idle balances thus need no return as long as nobody waits: a group that
//! sleeps and wakes all the time takes no lock.
//!
//! # Debts
//!
//! A poll that ran beyond its CPU's balance leaves a debt there. Time spent beside the run queues
//! ([`crate::Group::charge_foreign_cpu_time`]) and limits that are lowered leave one in the pool, of any size: none is
//! forgiven (but beyond [`rules::DEBT_MAX`], 36 years, nothing is counted). A pool that owes *calls in* what CPUs hold, also
//! of busy ones, so that R < 0 and a positive balance do not go together: no CPU runs on, not even in polls too small to use
//! a balance up, and who comes later waits. Refills pay R first, then the CPUs that wait. A CPU that was called in finds out
//! at its next charge, a publication later at most; the two exemptions above hold. What changes of a limit are worth: [`ledger`].
//! A poll that is longer than the period loses none of the refills that fall due before it is charged: [`spills`].
//!
//! # Time
//!
//! The period timer of a group runs from its first use to the first period in which nothing was taken, nobody waits and
//! no CPU has anything of the group to run (it may be in the middle of a poll that is charged at its end). By the kernel's rules it then goes on in phase; by the default rules the next use begins a new period, so that
//! no window of a period's length sees two refills after an idle time. A timer that would change nothing, since nothing was taken in its last period, the pool is full, and nobody waits or owes, *rests* by the
//! default rules: it runs every 64 ms until something is taken, or a CPU has nothing left of the group ([`pool`]). What was due by then happens before that, refill by refill at its time, so that nobody can tell but
//! by how often the timer ran, and by [`BandwidthStats::nr_periods`], which is up to 64 ms late. All timers of a tree are in one map ([`timer`]);
//! the host calls [`crate::GroupTree::refill`] at [`crate::GroupTree::next_refill`].
//!
//! # Rooms
//!
//! | file | what |
//! |---|---|
//! | `limit`, `parse`, `rules` | what users write; constants |
//! | `pool` | the arithmetic, without locks |
//! | `ledger`, `spans` | changes of the limit in absolute time |
//! | `spills` | refills that fall due in the middle of a poll |
//! | `local`, `mailbox`, `meter` | one CPU's part |
//! | `timer` | which group is due |
//! | `configure` | changing limits |
//! | `outside` | time that is spent outside the run queues |
//! | `stats` | what users read |
//! | `watch` | who is told of a throttle |
//! | `sync`, `model` | locks and atomics, and every order of them |
//! | `../run_queue/throttle`, `budget` | the CPU's side: taking entities out and putting them back |

mod configure;
mod ledger;
mod limit;
mod local;
mod mailbox;
mod meter;
#[cfg(all(test, feature = "model"))]
mod model;
mod outside;
mod parse;
mod pool;
pub(crate) mod rules;
mod spans;
mod spills;
mod stats;
mod sync;
mod timer;
mod watch;

pub use configure::LimitChanges;
pub use limit::{Limit, LimitError};
pub use rules::{BandwidthRules, RatioRule};
pub use stats::{BandwidthStats, THROTTLE_BUCKETS};
pub use timer::REFILLS_MAX;
pub use watch::ThrottleWatch;

pub(crate) use local::Local;
pub(crate) use mailbox::Mailbox;
pub(crate) use meter::{Meter, Opened};
pub(crate) use timer::Timers;

use self::pool::Pool;
use self::rules::{KEPT, OVERDRAFT_MAX, SLACK_DELAY, SLACK_MARGIN};
use self::stats::Lengths;
use self::sync::{
    Acquire, AtomicBool, AtomicI64, AtomicU32, AtomicU64, Mutex, MutexGuard, Relaxed, Release,
    SeqCst, fence, lock,
};
use self::timer::NEVER;
use self::watch::Watched;
use crate::config::Config;
use crate::units::{CpuId, Nanos};
use core::fmt;
use std::sync::Arc;

/// The bandwidth of one group, made when it gets its first limit.
pub(crate) struct Bandwidth {
    /// Id and generation of the group.
    id: (u32, u32),
    pub(crate) rules: BandwidthRules,
    /// CPUs of the machine.
    cpus: u32,
    /// Whether there is a limit. Written under the pool's lock.
    enabled: AtomicBool,
    /// Whether the limit is soft.
    soft: AtomicBool,
    /// Whether the quota is all that the CPUs can run, so that by default it never throttles; but for debts.
    ample: AtomicBool,
    /// How far deferring tasks may run into debt on one CPU, ns.
    overdraft: AtomicI64,
    /// Length of the waiting list.
    waiting: AtomicU32,
    /// Whether the period timer rests.
    rests: AtomicBool,
    /// Number of the current period.
    period: AtomicU64,
    lengths: Lengths,
    watched: Watched,
    pool: Mutex<Pool>,
}

/// Where every nanosecond of a group's budget is: `refilled - discarded == pool + local + consumed`. Exact while no CPU
/// charges at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandwidthAccount {
    /// What refills and limit changes brought in, ns.
    pub refilled: i128,
    /// What did not fit in, expired, or ended with a limit, ns; forgiven debts are negative.
    pub discarded: i128,
    /// What the pool holds, ns.
    pub pool: i128,
    /// What the CPUs hold, debts subtracted, ns.
    pub local: i128,
    /// What was charged, ns.
    pub consumed: i128,
    /// CPUs on which the group waits for budget.
    pub waiting: usize,
}

/// What one CPU holds of a group's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthBalance {
    /// The CPU.
    pub cpu: CpuId,
    /// What it may run before it has to take more, ns; negative is a debt.
    pub balance: i64,
    /// Whether it has anything of the group to run.
    pub busy: bool,
    /// Whether it waits for budget.
    pub waiting: bool,
}

impl BandwidthAccount {
    /// Whether nothing was lost or made up.
    pub fn is_balanced(&self) -> bool {
        self.refilled - self.discarded == self.pool + self.local + self.consumed
    }
}

impl Bandwidth {
    pub(crate) fn new(id: (u32, u32), config: &Config) -> Bandwidth {
        let rules = config.bandwidth;
        Bandwidth {
            id,
            rules,
            cpus: config.cpus,
            enabled: AtomicBool::new(false),
            soft: AtomicBool::new(false),
            ample: AtomicBool::new(false),
            overdraft: AtomicI64::new(0),
            waiting: AtomicU32::new(0),
            rests: AtomicBool::new(false),
            period: AtomicU64::new(0),
            lengths: Lengths::default(),
            watched: Watched::default(),
            pool: Mutex::new(Pool::new(rules, config.bandwidth_slice)),
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Acquire)
    }

    pub(crate) fn is_soft(&self) -> bool {
        self.soft.load(Acquire)
    }

    /// Whether the group does not throttle, because its quota is all that there is and it owes nothing.
    #[inline]
    pub(crate) fn is_ample(&self) -> bool {
        self.ample.load(Acquire)
    }

    /// How far a deferring task may run into debt on a CPU, ns.
    pub(crate) fn overdraft(&self) -> i64 {
        self.overdraft.load(Acquire)
    }

    pub(crate) fn period(&self) -> u64 {
        self.period.load(Acquire)
    }

    pub(crate) fn limit(&self) -> Option<Limit> {
        let pool = self.pool();
        pool.enabled.then_some(pool.limit)
    }

    /// Whether a CPU that has nothing left could take something now. Old news; no, while somebody else is at the pool.
    pub(crate) fn may_have_left(&self) -> bool {
        let pool = self.pool.try_lock();
        pool.is_ok_and(|pool| !pool.enabled || pool.runtime > 0)
    }

    /// The limit in force, or the last one.
    pub(crate) fn last_limit(&self) -> Limit {
        self.pool().limit
    }

    /// The balance of a CPU, made when the CPU meets the limited group. O(1) amortized.
    pub(crate) fn local(&self, cpu: CpuId, mailbox: &Arc<Mailbox>) -> Arc<Local> {
        let mut pool = self.pool();
        if let Some(local) = pool.local_of(cpu) {
            local.serve(mailbox);
            return Arc::clone(local);
        }
        let local = Arc::new(Local::new(cpu, self.id, Arc::clone(mailbox)));
        pool.meet(Arc::clone(&local));
        local
    }

    /// Whether the group itself is throttled on a CPU, as last published. O(1).
    pub(crate) fn is_throttled_on(&self, cpu: CpuId) -> bool {
        let pool = self.pool();
        pool.local_of(cpu).is_some_and(|local| local.is_throttled())
    }

    /// Whether the group itself is throttled anywhere, as last published. O(CPUs that met it).
    pub(crate) fn is_throttled(&self) -> bool {
        self.pool().locals.iter().any(|local| local.is_throttled())
    }

    /// Fills a CPU's balance from the pool, after the `charged` ns up to `now` were taken off it. Returns whether it is
    /// positive then. O(CPUs that met the group).
    pub(crate) fn take(
        self: &Arc<Self>,
        local: &Local,
        charged: u64,
        now: Nanos,
        timers: &Timers,
    ) -> bool {
        let mut pool = self.pool();
        if !pool.enabled {
            return true;
        }
        pool.recover(local, charged, now);
        let filled = pool.take(local, false, now);
        self.settle(&mut pool, timers);
        filled
    }

    /// The last look before a throttle: fills the balance, or puts the CPU on the waiting list. Returns whether it has to
    /// wait.
    pub(crate) fn wait(self: &Arc<Self>, local: &Arc<Local>, now: Nanos, timers: &Timers) -> bool {
        let mut pool = self.pool();
        if !pool.enabled || pool.suffices() {
            return false;
        }
        // The kernel asks for no more than it takes to go on, since it is about to stop.
        let filled = pool.take(local, self.rules.is_kernel(), now);
        if !filled {
            pool.throttled_lately = true;
            if !local.is_queued() {
                local.set_queued(true);
                pool.waiting.push_back(Arc::clone(local));
            }
            self.publish_waiting(&pool);
            // Somebody may have become idle since the pool looked; whoever does so later sees this CPU wait.
            fence(SeqCst);
            if pool.reclaim_idle() {
                pool.slack_at = now.0;
            }
        }
        self.settle(&mut pool, timers);
        drop(pool);
        if !filled {
            self.watched.say();
        }
        !filled
    }

    /// Puts the group's number on this list when it is next throttled.
    pub(crate) fn watch(&self, watch: &Arc<ThrottleWatch>, number: u64) {
        self.watched.set(watch, number);
    }

    /// A CPU has nothing of the group left to run.
    pub(crate) fn idle(self: &Arc<Self>, local: &Local, now: Nanos, timers: &Timers) {
        local.clear_busy();
        if self.rules.is_kernel() {
            if local.balance() > KEPT && self.is_enabled() {
                self.return_slack(local, now, timers);
            }
        } else if self.rests.load(Relaxed) {
            // The timer is to see within the period that nobody is busy. (Missed by who reads this as a rest begins, it sees that when the rest ends.)
            let mut pool = self.pool();
            pool.ends_rest(now);
            self.settle(&mut pool, timers);
        } else if self.waiting.load(Relaxed) > 0 {
            let mut pool = self.pool();
            if local.is_queued() {
                // Nothing to pay for; should something come, it waits from then on.
                pool.waiting.retain(|other| !core::ptr::eq(&**other, local));
                local.set_queued(false);
            }
            if pool.enabled && pool.reclaim_idle() && !pool.waiting.is_empty() {
                pool.slack_at = now.0;
            }
            self.settle(&mut pool, timers);
        }
    }

    /// The kernel's way: all but a reserve goes back, and is given out a little later if it is worth it.
    fn return_slack(self: &Arc<Self>, local: &Local, now: Nanos, timers: &Timers) {
        let mut pool = self.pool();
        let slack = local.take_above(KEPT);
        pool.give_back(slack);
        let worth = pool.runtime > pool.slice_max && !pool.waiting.is_empty();
        let near = pool.next_refill() < now.0.saturating_add(SLACK_DELAY + SLACK_MARGIN);
        if worth && !near && pool.slack_at == NEVER {
            pool.slack_at = now.0.saturating_add(SLACK_DELAY);
        }
        self.settle(&mut pool, timers);
    }

    /// How much of the `time` ns up to `now` has to be charged by somebody who did not know whether there was a limit: that
    /// for which there was one.
    #[cold]
    pub(crate) fn limited_part(&self, time: u64, now: Nanos) -> u64 {
        if self.rules.is_kernel() {
            return 0;
        }
        let within = self.pool().spans.within(now.0.saturating_sub(time), now.0);
        within.min(time)
    }

    /// Charges what ran under a limit that was lifted before the CPU had noticed it.
    #[cold]
    pub(crate) fn charge_belated(self: &Arc<Self>, time: u64, timers: &Timers) {
        let mut pool = self.pool();
        pool.charge_outside(time);
        pool.call_in();
        self.settle(&mut pool, timers);
    }

    /// Runs whichever of the group's timers is due, and notes which CPUs then have something to unthrottle.
    fn expire(self: &Arc<Self>, now: Nanos, timers: &Timers, kicks: &mut Vec<CpuId>) {
        let mut pool = self.pool();
        if pool.enabled {
            let refilled = pool.run_timer(now);
            let slack = pool.slack_at <= now.0;
            if slack {
                pool.slack_at = NEVER;
            }
            let worth = !self.rules.is_kernel()
                || pool.runtime > pool.slice_max
                    && pool.next_refill() >= now.0.saturating_add(SLACK_MARGIN);
            if refilled || slack && worth {
                self.distribute(&mut pool, kicks);
            }
        }
        self.settle(&mut pool, timers);
    }

    fn distribute(&self, pool: &mut Pool, kicks: &mut Vec<CpuId>) {
        if pool.suffices() {
            return Self::let_go(pool, kicks);
        }
        pool.distribute(|local| {
            // Posted first: a throttled balance is on the list or posted, at any moment.
            local.post();
            local.set_queued(false);
            kicks.push(local.cpu);
        });
    }

    /// Nobody has to wait any more.
    fn let_go(pool: &mut Pool, kicks: &mut Vec<CpuId>) {
        while let Some(local) = pool.waiting.pop_front() {
            local.post();
            local.set_queued(false);
            kicks.push(local.cpu);
        }
    }

    /// Publishes what changed under the pool's lock and moves the timer.
    fn settle(self: &Arc<Self>, pool: &mut Pool, timers: &Timers) {
        pool.note_throttled();
        self.publish_waiting(pool);
        self.ample.store(pool.suffices(), Release);
        self.period.store(pool.period_number, Release);
        self.rests.store(pool.rests_now(), Relaxed);
        let period = if pool.active && pool.enabled {
            pool.timer_at()
        } else {
            NEVER
        };
        let due = period.min(pool.slack_at);
        let armed = core::mem::replace(&mut pool.armed_at, due);
        timers.set(self, armed, due);
    }

    fn publish_waiting(&self, pool: &Pool) {
        let waiting = u32::try_from(pool.waiting.len()).unwrap_or(u32::MAX);
        self.waiting.store(waiting, Relaxed);
    }

    /// A throttle of that length ended on some CPU.
    pub(crate) fn record_throttle(&self, length: Nanos) {
        self.lengths.record(length);
    }

    /// A soft group ran beyond its limit.
    pub(crate) fn add_overage(&self, time: u64) {
        self.lengths.add_overage(time);
    }

    pub(crate) fn stats(&self) -> BandwidthStats {
        self.limit_and_stats().1
    }

    /// Both by one look at the pool.
    pub(crate) fn limit_and_stats(&self) -> (Option<Limit>, BandwidthStats) {
        let pool = self.pool();
        let limit = pool.enabled.then_some(pool.limit);
        // Lengths are counted elsewhere: what stands for them in the pool is empty, and not worth a copy.
        let mut stats = BandwidthStats {
            throttle_lengths: [0; THROTTLE_BUCKETS],
            ..pool.stats
        };
        drop(pool);
        self.lengths.fill(&mut stats);
        (limit, stats)
    }

    pub(crate) fn balances(&self) -> Vec<BandwidthBalance> {
        let pool = self.pool();
        let balances = pool.locals.iter().map(|local| BandwidthBalance {
            cpu: local.cpu,
            balance: local.balance(),
            busy: local.is_busy(),
            waiting: local.is_queued(),
        });
        balances.collect()
    }

    pub(crate) fn account(&self) -> BandwidthAccount {
        let pool = self.pool();
        let sum = |part: fn(&Local) -> i128| -> i128 {
            pool.locals.iter().map(|local| part(local)).sum()
        };
        BandwidthAccount {
            refilled: pool.refilled,
            discarded: pool.discarded + sum(|local| i128::from(local.expired())),
            pool: i128::from(pool.runtime),
            local: sum(|local| i128::from(local.balance())),
            consumed: sum(|local| i128::from(local.consumed())) + pool.outside,
            waiting: pool.waiting.len(),
        }
    }
}

impl fmt::Debug for Bandwidth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Bandwidth")
            .field("id", &self.id)
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}
