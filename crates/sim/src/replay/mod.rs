//! Recorded traces as workloads: what each task wanted, freed from what a limit did to it.
//!
//! A recording is cut into *bursts*: from a wake-up to the next sleep. What a burst ran is demand; what it waited is the
//! machine's doing and forgotten. Then there are two ways to play it. A recording shows only sometimes which is right
//! ([`Evidence`]); otherwise the caller must say it:
//!
//! - **open loop:** bursts come when they came, whether or not the last one is done (arrivals from outside);
//! - **closed loop:** a task sleeps as long after each burst as it did (clients that wait for answers). Then a slower
//!   machine gets less to do, and a faster one more: the recording begins again at its end. Where it shows who asks and who answers,
//!   these are played as clients and a pool of threads (`served`).
//!
//! **Censoring.** A task that was throttled had its demand cut off in two places. Between bursts nothing is lost: what
//! arrived meanwhile was run later and is part of a burst. But a burst that was still waiting when the recording ended
//! would have run on: its demand is scaled up by the part of its time for which it was throttled,
//! `work * time / (time - throttled)`.

mod blocks;
mod causes;
mod change;
mod contradiction;
mod evidence;
mod family;
mod holes;
mod limited;
#[cfg(test)]
mod lines;
mod marked;
mod own;
mod placement;
mod play;
mod read;
mod requests;
mod restore;
mod runs;
mod seats;
mod select;
mod served;

pub use blocks::Blocks;
pub use change::Change;
pub use contradiction::{Beyond, Contradiction};
pub use evidence::Evidence;
pub use family::Family;
pub use holes::{Hole, Holes};
pub use limited::RecordedLimit;
pub use placement::{Part, Placement};
pub use requests::{Requests, Rule};
pub use restore::Restored;
pub use seats::{Seat, Seats};
pub use select::{Selection, is_within};

use crate::meters::Percentiles;
use crate::synthetic::GroupIndex;
use core::fmt;
use core::ops::Range;
use limited::LongWait;
use marked::Marked;
use own::OwnLimit;
use quotient_core::{Nanos, Weight};
use quotient_trace::{
    Gaps, NotedChange, NotedLimit, NotedThrottles, NotedWeight, ReadError, TaskId,
};
use runs::Ran;
use std::collections::BTreeMap;

/// Most bursts of a recording: 48 bytes each, so that a huge trace is refused before it fills the memory.
const BURSTS_MAX: usize = 16_000_000;

/// Who wants a CPU for this part of the time, per cent, is never idle: pauses between requests would be longer.
const NEVER_IDLE_PERCENT: u128 = 95;
/// Who got less than this part of what it wanted, per cent, had to wait.
const GOT_PERCENT: u128 = 90;

/// The part of the work at either end of a recording that does not say when the load was there: one of so many.
const EDGE: u64 = 100;

/// How a recording is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// Bursts come when they came.
    Open,
    /// Each task sleeps after a burst as long as it did.
    Closed,
}

/// A recording that cannot be used.
#[derive(Debug)]
pub enum RecordingError {
    /// It cannot be read.
    Read(ReadError),
    /// It is too long.
    TooLong,
    /// Nobody ran in it.
    Nothing,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordingError::Read(error) => error.fmt(formatter),
            RecordingError::TooLong => write!(
                formatter,
                "more than {BURSTS_MAX} bursts: cut the trace into shorter ones"
            ),
            RecordingError::Nothing => formatter.write_str("nobody runs in this trace"),
        }
    }
}

impl std::error::Error for RecordingError {}

/// One stretch of demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Burst {
    /// When it was woken, from the begin of the recording.
    at: u64,
    /// When it was done.
    end: u64,
    work: u64,
    /// How much the burst that woke it had computed by then.
    offset: u64,
    /// The group that it ran in last, an index into [`Recording::groups`]: tasks move.
    group: u32,
    /// Its number among all bursts.
    id: u32,
    /// The CPU on which it ran last.
    cpu: u32,
    /// The number of the burst that woke it; [`OUTSIDE`] for a timer, a device, or who is not in the trace.
    by: u32,
}

/// "Woken by nobody in this trace."
const OUTSIDE: u32 = u32::MAX;

/// The bursts of one task.
#[derive(Clone, Debug, Default)]
struct Demand {
    id: TaskId,
    name: String,
    bursts: Vec<Burst>,
    /// What was added to the last burst, which a limit cut off.
    restored: u64,
    /// Long waits for a CPU: what a limit may have done.
    waits: Vec<LongWait>,
    /// When it ran.
    runs: Vec<Ran>,
    /// Whether the trace never shows it leaving a CPU: for how long it ran is not known.
    is_silent: bool,
    /// By how nice it was last.
    weight: Weight,
    /// Whether it was in the real-time class last.
    is_real_time: bool,
    /// The group of a plan that it is in when it runs beside others.
    seat: GroupIndex,
}

impl Demand {
    /// What it wanted in all, ns. O(bursts).
    fn work(&self) -> u64 {
        self.bursts.iter().map(|burst| burst.work).sum()
    }
}

/// What the tasks of a recorded trace wanted.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    tasks: Vec<Demand>,
    /// Paths of groups; the root is "".
    groups: Vec<String>,
    /// From its first to its last event.
    pub length: Nanos,
    /// CPUs of the machine: as a log of Quotient's own says, else those that were seen, but for stand-ins.
    pub cpus: u32,
    /// Virtual CPUs that were seen beside these: they stood in for others. A part of a recording does not know.
    pub stand_ins: u32,
    /// CPU time of all tasks, as recorded.
    pub recorded: Nanos,
    /// What was added for bursts that a limit cut off.
    pub restored: Nanos,
    /// Switches that the trace does not show, filled in.
    pub repaired: u64,
    /// Switches that were lost though no kernel leaves them out, and are not filled in. A part of a recording does not know.
    pub switches_lost: u64,
    /// Switches that the trace shows. A part of a recording does not know.
    pub switches_shown: u64,
    /// Who made whom.
    pub(crate) family: Family,
    /// How well the recorded kernel saw idle CPUs. A part of a recording does not know.
    pub placement: Placement,
    /// Pieces of work that the program itself marked.
    marked: Vec<Marked>,
    /// Wake-ups in it, of anybody. A part of a recording does not know.
    pub wakeups: u64,
    /// The process that recorded it, if the trace says so. A part of a recording does not know.
    pub recording_process: Option<TaskId>,
    /// Whether a kernel recorded it. A part of a recording does not know.
    pub is_kernels: bool,
    /// The release of that kernel, where the trace says it. A part of a recording does not know.
    pub release: Option<String>,
    /// The limit that the trace says it was recorded under. A part of a recording does not know.
    pub noted_limit: Option<NotedLimit>,
    /// How often that limit was reached meanwhile, by the kernel's own count.
    pub noted_throttles: Option<NotedThrottles>,
    /// How that limit was changed meanwhile.
    pub noted_changes: Vec<NotedChange>,
    /// Limits of groups by the events of a log of Quotient's own. A part of a recording does not know.
    own_limits: Vec<OwnLimit>,
    /// Weights of cgroups, at first and as they were seen to be others later. A part of a recording does not know.
    pub noted_weights: Vec<NotedWeight>,
    /// What is missing from the trace, as far as that shows. A part of a recording ([`split`](Recording::split)) does not
    /// know.
    pub gaps: Gaps,
    /// Stretches in which nothing at all happened: the recording is without them. A part of a recording does not know.
    pub holes: Holes,
}

impl Recording {
    /// The groups whose tasks ran, by path, with what these wanted; the root is "". O(bursts).
    pub fn groups(&self) -> BTreeMap<&str, Nanos> {
        let mut groups = BTreeMap::new();
        for burst in self.tasks.iter().flat_map(|demand| &demand.bursts) {
            let path = self.groups[burst.group as usize].as_str();
            *groups.entry(path).or_insert(Nanos::ZERO) += Nanos(burst.work);
        }
        groups
    }

    /// The names of the tasks that ran, with what all tasks of that name wanted. O(bursts).
    pub fn names(&self) -> BTreeMap<&str, Nanos> {
        let mut names = BTreeMap::new();
        for demand in &self.tasks {
            *names.entry(demand.name.as_str()).or_insert(Nanos::ZERO) += Nanos(demand.work());
        }
        names
    }

    /// What the program marked, by name.
    pub fn marks(&self) -> std::collections::BTreeSet<&str> {
        self.marked
            .iter()
            .map(|marked| marked.name.as_str())
            .collect()
    }

    /// Number of tasks that ran.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Tasks that ran and that the trace never shows leaving a CPU: what they wanted is not known. O(tasks).
    pub fn silent_tasks(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_silent).count()
    }

    /// Work of tasks that were never idle and had to wait for a CPU, in thousandths of all: what these wanted does not show. O(bursts).
    pub fn held_back_permille(&self) -> u64 {
        let (mut held, mut all) = (0_u64, 0_u64);
        for demand in &self.tasks {
            let bursts = &demand.bursts;
            let first = bursts.first().map_or(0, |burst| burst.at);
            let last = bursts.iter().map(|burst| burst.end).max().unwrap_or(0);
            let work = demand.work();
            let wanting: u64 = bursts
                .iter()
                .map(|burst| burst.end.saturating_sub(burst.at))
                .sum();
            let percent = |part: u64, of: u64| u128::from(part) * 100 / u128::from(of.max(1));
            let is_idle_seldom = percent(wanting, last.saturating_sub(first)) >= NEVER_IDLE_PERCENT;
            if is_idle_seldom && percent(work, wanting) < GOT_PERCENT {
                held += work;
            }
            all += work;
        }
        u64::try_from(u128::from(held) * 1_000 / u128::from(all.max(1))).unwrap_or(0)
    }

    /// The time in which all of the work was done but for the first and the last hundredth of it: what a load did before and after, when nobody asked
    /// anything of it, is not the load. O(bursts log bursts).
    pub fn active(&self) -> Nanos {
        let bursts = || self.tasks.iter().flat_map(|task| &task.bursts);
        let all: u64 = bursts().map(|burst| burst.work).sum();
        // Where the hundredth is passed, of moments with what was done there, in their order.
        let passed = |moments: &[(u64, u64)]| {
            let mut done = 0_u64;
            let mut moments = moments.iter();
            let passing = moments.find(|(_, work)| {
                done = done.saturating_add(*work);
                done.saturating_mul(EDGE) >= all
            });
            passing.map_or(0, |(at, _)| *at)
        };
        let mut moments: Vec<(u64, u64)> = bursts().map(|burst| (burst.at, burst.work)).collect();
        moments.sort_unstable();
        let first = passed(&moments);
        let mut moments: Vec<(u64, u64)> = bursts().map(|burst| (burst.end, burst.work)).collect();
        moments.sort_unstable_by(|one, other| other.cmp(one));
        Nanos(passed(&moments).saturating_sub(first))
    }

    /// How long bursts took while they were recorded, from their wake-up to their end. O(bursts).
    pub fn recorded_times(&self) -> Option<Percentiles> {
        let bursts = self.tasks.iter().flat_map(|task| &task.bursts);
        let spans: Vec<Range<u64>> = bursts.map(|burst| burst.at..burst.end).collect();
        requests::recorded(&spans)
    }

    /// Number of bursts.
    pub fn bursts(&self) -> usize {
        self.tasks.iter().map(|task| task.bursts.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Plan, Simulation, Span, synthetic};
    use quotient_core::Limit;
    use quotient_trace::{Discard, JsonLines};

    fn recorded(limit: Option<Limit>) -> (Recording, u64) {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(2);
        let group = plan.group("app");
        plan.groups[0].limit = limit;
        let work = Span::Fixed(Nanos::from_millis(3));
        synthetic::closed_loop(
            &mut plan,
            "app",
            group,
            2,
            work,
            Nanos::from_millis(7).into(),
        );
        synthetic::spinners(&mut plan, "hog", group, u32::from(limit.is_some()));
        let mut simulation = Simulation::new(&plan, JsonLines::new(Vec::new())).unwrap();
        simulation.run().unwrap();
        let busy = simulation.outcome().busy_ns;
        let text = simulation.into_sink().finish().unwrap();
        (Recording::read(&mut text.as_slice()).unwrap(), busy)
    }

    fn played(recording: &Recording, how: Loop) -> crate::Outcome {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(2);
        recording.add_to(&mut plan, "again", None, how);
        let mut simulation = Simulation::new(&plan, Discard).unwrap();
        simulation.run().unwrap();
        simulation.outcome()
    }

    #[test]
    fn what_the_host_took_is_no_demand() {
        use quotient_core::CpuId;
        use quotient_trace::{Amount, Event, Kind, Sink, TaskState};
        let (task, idle) = (TaskId(7), TaskId::IDLE);
        let mut log = JsonLines::new(Vec::new());
        let steps = [
            (0, idle, TaskState::Runnable, task),
            (5, task, TaskState::Sleeping, idle),
        ];
        for (at, prev, state, next) in steps {
            if prev == task {
                let time = Amount::of_nanos(Nanos::from_millis(4));
                let kind = Kind::Uncharged { task, time };
                log.event(&Event::new(Nanos::from_millis(at), CpuId(0), kind));
            }
            let kind = Kind::Switch { prev, state, next };
            log.event(&Event::new(Nanos::from_millis(at), CpuId(0), kind));
        }
        let text = log.finish().unwrap();
        let recording = Recording::read(&mut text.as_slice()).unwrap();
        assert_eq!(recording.recorded, Nanos::from_millis(1));
    }

    #[test]
    fn a_recording_plays_as_it_was() {
        let (recording, busy) = recorded(None);
        assert_eq!((recording.tasks(), recording.recorded.0), (2, busy));
        assert_eq!(recording.restored, Nanos::ZERO);
        for how in [Loop::Open, Loop::Closed] {
            let outcome = played(&recording, how);
            assert!(outcome.busy_ns.abs_diff(busy) <= 3_000_000, "{how:?}");
            assert_eq!(outcome.meter("again").unwrap().times.p99_ns / 100_000, 30);
        }
    }

    #[test]
    fn what_a_limit_cut_off_is_restored() {
        let limit = Limit::new(Nanos::from_millis(20), Nanos::from_millis(100));
        let (recording, busy) = recorded(Some(limit));
        // The hog was throttled for four fifths of its time and wanted a whole CPU.
        assert!(
            recording.restored.0 > busy,
            "{:?} {busy}",
            recording.restored
        );
    }

    #[test]
    fn a_kernel_that_leaves_out_switches_from_idle_is_understood() {
        let text: String = (0..50)
            .map(|number| {
                format!(
                    "<idle>-0 [001] d.h3. {number}.100000: sched_waking: comm=svc pid=7 prio=120 target_cpu=001\n\
                     svc-7 [001] d..2. {number}.102000: sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n"
                )
            })
            .collect();
        let recording = Recording::read(&mut text.as_bytes()).unwrap();
        // Whether the first CPU was idle at first is not known.
        assert_eq!((recording.repaired, recording.bursts()), (49, 50));
        assert_eq!(recording.recorded, Nanos::from_millis(2 * 49 + 2));
    }

    #[test]
    fn who_was_preempted_and_moved_is_not_back_before_he_left() {
        // Woken at 0.1 s, preempted on one CPU at 0.3 s, and seen again on another one that had gone idle at 0.2 s.
        let text = "a-1 [001] d..2. 0.200000: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n\
                    b-2 [000] d..2. 0.210000: sched_waking: comm=svc pid=7 prio=120 target_cpu=000\n\
                    b-2 [000] d..2. 0.220000: sched_switch: prev_comm=b prev_pid=2 prev_prio=120 prev_state=S ==> next_comm=svc next_pid=7 next_prio=120\n\
                    svc-7 [000] d..2. 0.300000: sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=b next_pid=2 next_prio=120\n\
                    svc-7 [001] d..2. 0.350000: sched_switch: prev_comm=svc prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n";
        let recording = Recording::read(&mut text.as_bytes()).unwrap();
        assert_eq!(recording.repaired, 1);
        let svc = recording.names()["svc"];
        assert_eq!(svc, Nanos::from_millis(80 + 50));
    }

    /// A process 7 whose thread 8 forks 20; 21 is somebody else's. Each computes 5 ms, as nice as given.
    fn family(nice: [i32; 4]) -> Recording {
        let mut text = String::new();
        let comes = |from: &str, from_nice: i32, to: &str, to_nice: i32, at: u32, state: &str| {
            let (from_comm, from_pid) = from.split_once('-').unwrap();
            let (to_comm, to_pid) = to.split_once('-').unwrap();
            let (from_prio, to_prio) = (120 + from_nice, 120 + to_nice);
            format!(
                "{from} (      7) [000] d..2. 1.{at:06}: sched_switch: prev_comm={from_comm} prev_pid={from_pid} prev_prio={from_prio} prev_state={state} ==> next_comm={to_comm} next_pid={to_pid} next_prio={to_prio}\n"
            )
        };
        text +=
            &comes("swapper/0-0", 0, "svc-8", nice[0], 0, "R").replace("(      7)", "(-------)");
        text += "svc-8 (      7) [000] d..2. 1.001000: sched_wakeup_new: comm=svc pid=20 prio=120 target_cpu=000\n";
        text += &comes("svc-8", nice[0], "job-20", nice[1], 5_000, "S");
        text += &comes("job-20", nice[1], "other-21", nice[2], 10_000, "S")
            .replace("(      7)", "(     20)");
        text += &comes("other-21", nice[2], "rt-22", nice[3], 15_000, "S")
            .replace("(      7)", "(     21)");
        text += &comes("rt-22", nice[3], "swapper/0-0", 0, 20_000, "S")
            .replace("(      7)", "(     22)");
        Recording::read(&mut text.as_bytes()).unwrap()
    }

    #[test]
    fn what_a_process_forks_belongs_to_it() {
        let recording = family([0; 4]);
        let selection = Selection {
            ids: vec![7],
            ..Selection::default()
        };
        let (chosen, rest) = recording.split(&selection);
        let names: Vec<&str> = chosen.names().into_keys().collect();
        assert_eq!(names, ["job", "svc"]);
        assert_eq!((chosen.children_of(&[7]), rest.tasks()), (1, 2));
    }

    #[test]
    fn tasks_weigh_what_their_priorities_say() {
        // Nice 0, 19, -5, and a real-time task of priority 50.
        let recording = family([0, 19, -5, -70]);
        let mut plan = Plan::new(Machine::flat(1));
        recording.add_to(&mut plan, "again", None, Loop::Open);
        let weights: Vec<u32> = plan.workloads[0]
            .tasks
            .iter()
            .map(|task| task.weight.get())
            .collect();
        assert_eq!(weights, [100, 1, 305, 8_674]);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "hello\n", "\0\0\0"] {
            assert!(Recording::read(&mut text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
