//! What can happen: one 32-byte record for each event, the same for threads, simulated machines and real kernels.
//!
//! An event carries numbers only. Names come once, as [`Definition`]s, before the first event that
//! uses them.

use crate::{CpuId, Nanos};
mod sink;
mod state;
mod table;

pub use sink::{Discard, Sink};
pub use state::TaskState;
pub use table::{Definition, GroupId, GroupInfo, NameId, Table, TaskId, TaskInfo};

/// Something that happened on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, ns of the recorder's monotonic clock.
    pub time: Nanos,
    /// Where it was noticed: the CPU whose state changed, or the waker's for wake-ups.
    pub cpu: CpuId,
    /// What.
    pub kind: Kind,
}

const _: () = assert!(
    size_of::<Event>() <= 32,
    "two events fit into one cache line"
);

impl Event {
    /// Puts the parts together.
    #[inline]
    pub const fn new(time: Nanos, cpu: CpuId, kind: Kind) -> Event {
        Event { time, cpu, kind }
    }
}

/// What happened. In JSON the variant is the key: `{"switch":{"prev":7,"state":"S","next":0}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(rename_all = "snake_case", deny_unknown_fields)
)]
pub enum Kind {
    /// The CPU stops running `prev` and starts running `next`; [`TaskId::IDLE`] stands for nobody.
    Switch {
        /// Who ran until now.
        prev: TaskId,
        /// What `prev` does from now on.
        state: TaskState,
        /// Who runs from now on.
        next: TaskId,
    },
    /// Somebody is about to wake `task`: the kernel's `sched_waking`, which comes before the choice of a CPU.
    Waking {
        /// Who is to become runnable.
        task: TaskId,
        /// Where it ran last.
        target: CpuId,
        /// Who wakes; [`TaskId::IDLE`] for interrupts on an idle CPU and for drivers.
        waker: TaskId,
    },
    /// `task` became runnable and was queued on `target`.
    Wakeup {
        /// Who became runnable.
        task: TaskId,
        /// Where it was queued.
        target: CpuId,
        /// Who woke it; [`TaskId::IDLE`] if unknown or nobody.
        waker: TaskId,
    },
    /// A new task became runnable for the first time: the kernel's `sched_wakeup_new`.
    Spawn {
        /// The new task.
        task: TaskId,
        /// Where it was queued.
        target: CpuId,
        /// Who made it; [`TaskId::IDLE`] if unknown.
        parent: TaskId,
    },
    /// `task` ends. Its last switch may follow.
    Exit {
        /// Who ends.
        task: TaskId,
    },
    /// `task` moves between run queues.
    Migrate {
        /// Who moves.
        task: TaskId,
        /// From whose queue.
        from: CpuId,
        /// To whose queue.
        to: CpuId,
    },
    /// Part of the run in progress is not billed to `task`: the host ran something else, or somebody else was charged.
    Uncharged {
        /// Whose run.
        task: TaskId,
        /// How much of it, ns; negative if the task is billed for more than the run.
        time: Amount,
    },
    /// `task` belongs to `group` from now on.
    Attach {
        /// Who moves.
        task: TaskId,
        /// Its new group.
        group: GroupId,
    },
    /// `group` may not run on this CPU: its budget is used up. Counts for the whole subtree.
    Throttle {
        /// Whose budget.
        group: GroupId,
    },
    /// `group` may run on this CPU again.
    Unthrottle {
        /// Whose budget.
        group: GroupId,
    },
    /// The period timer of `group` fired and filled its pool.
    Refill {
        /// Whose pool.
        group: GroupId,
        /// How many periods this firing stands for.
        periods: u16,
        /// Pool after the refill, ns.
        pool: Amount,
    },
    /// In the period that just ended `group` used `used` ns more than its quota, from its burst.
    Burst {
        /// Whose burst.
        group: GroupId,
        /// How much of it, ns.
        used: Amount,
    },
    /// The limit of `group` was written. Unlimited is [`Amount::UNLIMITED`].
    SetLimit {
        /// Whose limit.
        group: GroupId,
        /// ns in each period.
        quota: Amount,
        /// µs; the kernel's range is 1,000 to 1,000,000.
        period_us: u32,
    },
    /// The burst of `group` was written.
    SetBurst {
        /// Whose burst.
        group: GroupId,
        /// ns that may be saved up.
        burst: Amount,
    },
    /// The weight of `group` was written.
    SetWeight {
        /// Whose weight.
        group: GroupId,
        /// cgroup weight, 1..=10000; 0 stands for idle.
        weight: u32,
    },
    /// The periodic tick of this CPU.
    Tick,
    /// This CPU comes or goes: one that is gone is neither idle nor at work.
    Hotplug {
        /// Whether it is there from now on.
        online: bool,
    },
    /// This CPU asks another one to look at something.
    Ipi {
        /// Whom it asks.
        target: CpuId,
    },
    /// An interrupt begins on this CPU. The task below keeps its place.
    InterruptEntry {
        /// What sort.
        sort: InterruptKind,
        /// Its number, whatever the recorder means by it.
        number: u32,
    },
    /// An interrupt ends on this CPU.
    InterruptExit {
        /// What sort.
        sort: InterruptKind,
        /// Its number.
        number: u32,
    },
    /// The value of something that changes over time.
    Counter {
        /// Of what.
        counter: Counter,
        /// Of whom; [`GroupId::ROOT`] for the whole machine.
        group: GroupId,
        /// Its value from now on.
        value: Amount,
    },
    /// The poll of `task` outlived its turn: its thread goes on with it, and is not the CPU's own any more. From here on `task` runs while
    /// a CPU has chosen it, as any other.
    Detach {
        /// Whose poll.
        task: TaskId,
    },
    /// The thread that `task` has to itself is asked to stand still, wherever it is.
    Pause {
        /// Whose thread.
        task: TaskId,
    },
    /// That thread may go on.
    Resume {
        /// Whose thread.
        task: TaskId,
        /// Why.
        reason: ResumeReason,
    },
    /// Something does not get on, perhaps because of a lock that one of those holds that stand: all of them get a short turn.
    Rescue {
        /// What does not get on.
        reason: RescueReason,
    },
    /// The recorder lost events of this CPU here: what follows may not fit what went before.
    Lost {
        /// How many.
        count: Amount,
    },
    /// A remark of the recorder, such as the end of a warm-up.
    Mark {
        /// What it says.
        name: NameId,
        /// A figure that goes with it.
        value: Amount,
    },
}

/// Something that is drawn as a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Counter {
    /// Budget left in a group's pool, ns. One for each group.
    Pool,
    /// Budget that a CPU holds for a group, ns; negative is debt. One for each (group, CPU).
    Balance,
    /// Throttled CPUs of a group. One for each group.
    Throttled,
    /// Load average of a group, in shares. One for each (group, CPU).
    Load,
    /// Runnable tasks of a group. One for each (group, CPU).
    Runnable,
}

impl Counter {
    /// All of them, in the order of their numbers.
    pub const ALL: [Counter; 5] = [
        Counter::Pool,
        Counter::Balance,
        Counter::Throttled,
        Counter::Load,
        Counter::Runnable,
    ];

    /// The name in texts, the same as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Counter::Pool => "pool",
            Counter::Balance => "balance",
            Counter::Throttled => "throttled",
            Counter::Load => "load",
            Counter::Runnable => "runnable",
        }
    }

    /// Whether each CPU has a value of its own.
    pub const fn per_cpu(self) -> bool {
        matches!(self, Counter::Balance | Counter::Load | Counter::Runnable)
    }
}

/// Why a thread that stood goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ResumeReason {
    /// A CPU has chosen its task.
    Turn,
    /// A short turn of one that stands: it may hold a lock.
    Aging,
    /// A short turn of all that stand, see [`Kind::Rescue`].
    Rescue,
    /// Its poll is over, or nobody schedules it any more.
    End,
}

impl ResumeReason {
    /// All of them.
    pub const ALL: [ResumeReason; 4] = [
        ResumeReason::Turn,
        ResumeReason::Aging,
        ResumeReason::Rescue,
        ResumeReason::End,
    ];

    /// The name in texts, the same as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ResumeReason::Turn => "turn",
            ResumeReason::Aging => "aging",
            ResumeReason::Rescue => "rescue",
            ResumeReason::End => "end",
        }
    }
}

/// What did not get on while threads stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RescueReason {
    /// A CPU.
    Stall,
    /// The host, or a thread of the scheduler's.
    Heartbeat,
}

impl RescueReason {
    /// All of them.
    pub const ALL: [RescueReason; 2] = [RescueReason::Stall, RescueReason::Heartbeat];

    /// The name in texts, the same as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            RescueReason::Stall => "stall",
            RescueReason::Heartbeat => "heartbeat",
        }
    }
}

/// What sort of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum InterruptKind {
    /// From a device or another CPU.
    Hard,
    /// Work put off to just after a hard one.
    Soft,
}

/// Quota, period and burst of a group in one piece, for sinks that keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Limit {
    /// ns in each period; [`Amount::UNLIMITED`] for no limit.
    pub quota: Amount,
    /// µs.
    pub period_us: u32,
    /// ns that may be saved up.
    pub burst: Amount,
}

/// A 64-bit figure that lies at any multiple of four bytes, which is what keeps an [`Event`] at 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(4))]
pub struct Amount(i64);

impl Amount {
    /// Zero.
    pub const ZERO: Amount = Amount(0);
    /// A quota without end.
    pub const UNLIMITED: Amount = Amount(i64::MAX);

    /// Of a signed figure.
    #[inline]
    pub const fn new(value: i64) -> Amount {
        Amount(value)
    }

    /// Of a duration, at most [`i64::MAX`] ns (292 years).
    #[inline]
    pub const fn of_nanos(nanos: Nanos) -> Amount {
        let value = nanos.as_nanos();
        Amount(if value > i64::MAX as u64 {
            i64::MAX
        } else {
            value.cast_signed()
        })
    }

    /// The figure.
    #[inline]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The figure as a duration; zero if negative.
    #[inline]
    pub const fn as_nanos(self) -> Nanos {
        let value = self.0;
        Nanos(if value < 0 { 0 } else { value.unsigned_abs() })
    }
}

impl From<Nanos> for Amount {
    fn from(nanos: Nanos) -> Amount {
        Amount::of_nanos(nanos)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.get())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Amount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        <i64 as serde::Deserialize>::deserialize(deserializer).map(Amount)
    }
}
