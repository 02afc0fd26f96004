//! A complete description of a run, before it runs: plain data, which scenarios and traces are turned into.

mod validate;

use crate::costs::Costs;
use crate::machine::{Machine, MachineError};
use crate::policy::Plugin;
use crate::program::Program;
use crate::random::Span;
use core::fmt;
use quotient_core::{
    Config, ConfigError, GroupError, GroupTree, Limit, LimitError, Nanos, Slice, Weight,
};

/// Everything that a run depends on. Equal plans give equal runs, byte for byte.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The machine.
    pub machine: Machine,
    /// What its mechanisms cost.
    pub costs: Costs,
    /// How the scheduler is set.
    pub settings: Settings,
    /// Groups, parents before or after their children.
    pub groups: Vec<GroupPlan>,
    /// Sets of CPUs that tasks are kept to, each ascending.
    pub cpusets: Vec<Vec<u32>>,
    /// What tasks do; several tasks may share a program.
    pub programs: Vec<Program>,
    /// Who does it.
    pub workloads: Vec<WorkloadPlan>,
    /// Tokens in each channel at first.
    pub channels: Vec<u32>,
    /// How many tasks each barrier is for.
    pub barriers: Vec<u32>,
    /// Number of request queues.
    pub queues: u32,
    /// Requests that several tasks have parts in, for [`Step::Open`](crate::program::Step::Open) and [`Step::Close`](crate::program::Step::Close): how many parts each has.
    pub requests: Vec<u32>,
    /// Names of the meters.
    pub meters: Vec<String>,
    /// Where requests come from.
    pub sources: Vec<Source>,
    /// What is changed on the way.
    pub changes: Vec<Change>,
    /// What runs on CPUs before everything else.
    pub real_time: Vec<RealTime>,
    /// CPUs that go and come.
    pub hotplug: Vec<Hotplug>,
    /// When the run ends at the latest.
    pub duration: Nanos,
    /// What all randomness derives from.
    pub seed: u64,
}

/// Settings of the scheduler and of the host around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of the core; the number of CPUs comes from the machine.
    pub config: Config,
    /// When a group's tick-time averages are computed, for their cost.
    pub load_average: LoadAverage,
    /// How often a busy CPU looks whether to pull, ns; `None`: every 500 us, on more than 8 CPUs that much more
    /// seldom, so that all together look equally often on any machine.
    pub balance_every: Option<Nanos>,
    /// Whether a busy CPU also looks as it chooses, once in 20 ms or so: what comes in step with the ticks is never looked at by these.
    pub looks_at_choices: bool,
    /// When a used-up budget takes the CPU away.
    pub throttling: Throttling,
    /// Whether a woken task only looks for an idle CPU on the node where it ran last and on its waker's, as the kernel does, rather than
    /// on the whole machine.
    pub wake_within_node: bool,
    /// For how long after it has run a waiting task is left to its CPU by one that falls idle, since its caches are warm: the kernel's
    /// `migration_cost_ns`. Zero (default): an idle CPU takes whatever waits.
    pub hot_for: Nanos,
    /// How long a CPU has to be idle on average, as of late, to look for work as it falls idle: the kernel compares with what
    /// looking took. Zero (default): it always looks.
    pub idle_at_least: Nanos,
    /// How often it is noticed that a CPU idles.
    pub notice: Notice,
    /// How long a class above may keep a CPU from everybody else in a period: the kernel's `sched_rt_runtime_us` and
    /// `sched_rt_period_us`. `None` (default): for ever.
    pub rt_throttling: Option<(Nanos, Nanos)>,
    /// Who chooses instead of the scheduler core, if anybody does.
    pub plugin: Option<Plugin>,
    /// Whether the run queues are verified after every event: slow.
    pub check: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            config: Config::new(1),
            load_average: LoadAverage::Off,
            balance_every: None,
            looks_at_choices: true,
            throttling: Throttling::Queue,
            wake_within_node: false,
            hot_for: Nanos::ZERO,
            idle_at_least: Nanos::ZERO,
            notice: Notice::EVERYTHING,
            rt_throttling: None,
            plugin: None,
            check: false,
        }
    }
}

/// How often a kernel notices that a CPU idles, of a thousand times; drawn by dice where it is not always. Real ones overlook idle CPUs: on
/// virtual machines a halted one looks like one that its host took away, and searches that found little are made seldom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Wake-ups whose own CPU is busy, and nobody waits there, that look for an idle one.
    pub woken_permille: u16,
    /// The same where somebody waits there already.
    pub crowded_permille: u16,
    /// CPUs that fall idle that look for what waits elsewhere. What is left is offered at ticks.
    pub fell_idle_permille: u16,
    /// Wake-ups by a task that runs alone on another CPU while their own idles that go to the waker's all the same.
    pub drawn_permille: u16,
    /// The same where somebody waits beside the waker already.
    pub drawn_crowded_permille: u16,
}

impl Notice {
    /// As the rules say: nothing is overlooked.
    pub const EVERYTHING: Notice = Notice {
        woken_permille: 1_000,
        crowded_permille: 1_000,
        fell_idle_permille: 1_000,
        drawn_permille: 0,
        drawn_crowded_permille: 0,
    };
}

impl Default for Notice {
    fn default() -> Notice {
        Notice::EVERYTHING
    }
}

/// When the averages of the groups of the running task are computed and added to the groups' shared sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadAverage {
    /// Never.
    #[default]
    Off,
    /// At every tick.
    EveryTick,
    /// Each CPU at one tick in as many as there are nodes (rounded up to a power of two), nodes taking turns; and at
    /// once if the average has changed by more than 1/8, as Linux 3.11 did below the patch that made nodes take turns.
    Staggered,
    /// At most once a millisecond, and only if the average has changed by more than 1/64.
    RateLimited,
}

/// When a used-up budget takes the CPU away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttling {
    /// At the next tick or switch, wherever the task is: the whole queue of the group stands still.
    #[default]
    Queue,
    /// At the next tick or switch, but not inside the kernel: a task that holds a lock there goes on until it leaves.
    ExitToUser,
    /// At the very nanosecond.
    Exact,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// Names from the root down, joined by `/`.
    pub path: String,
    /// Its weight.
    pub weight: Weight,
    /// Whether it runs only when nothing else wants to.
    pub idle: bool,
    /// Its limit, if it has one.
    pub limit: Option<Limit>,
}

/// Tasks that belong together: one line of the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadPlan {
    /// What it is called.
    pub name: String,
    /// Its tasks.
    pub tasks: Vec<TaskPlan>,
}

/// One task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPlan {
    /// Index of its group in [`Plan::groups`]; `None` for the root.
    pub group: Option<u32>,
    /// Index of its program.
    pub program: u32,
    /// Its weight within the group.
    pub weight: Weight,
    /// Its own request length.
    pub slice: Option<Slice>,
    /// When it begins.
    pub begin: Nanos,
    /// Where it begins; `None`: where the machine has room.
    pub cpu: Option<u32>,
    /// Index of the CPUs that it may run on in [`Plan::cpusets`]; `None` for all.
    pub cpuset: Option<u32>,
}

/// Requests that arrive whether or not anybody is ready for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The queue that they arrive in.
    pub queue: u32,
    /// When the first one comes.
    pub begin: Nanos,
    /// Time from one to the next.
    pub gap: Span,
    /// Parts of a request, each taken by itself; it is done when all are.
    pub parts: u32,
    /// Exact arrival times instead of gaps, ascending; empty: by gaps.
    pub times: Vec<Nanos>,
    /// CPU time of each of them, for [`Step::Serve`](crate::program::Step::Serve); as many as times, or none.
    pub works: Vec<Nanos>,
}

/// A load of a class above, a real-time thread on each of some CPUs: when it is due, whoever runs there gives way until it is done. Nothing
/// of it is charged to any group, and it does not move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealTime {
    /// What it is called.
    pub name: String,
    /// The CPUs, each with its own.
    pub cpus: Vec<u32>,
    /// When it is due first.
    pub begin: Nanos,
    /// From one time to the next.
    pub period: Span,
    /// How long it takes each time.
    pub work: Span,
    /// Exact times at which it is due, ascending, instead of begin and period; empty: by those.
    pub times: Vec<Nanos>,
    /// How long it takes each of these times; as many.
    pub works: Vec<Nanos>,
}

/// A CPU that goes or comes.
///
/// What waits on one that goes moves at once to CPUs that are there, what limits keep back included; what its tasks may not run on any
/// of the CPUs that are left to them, they may run anywhere, as the kernel does with cpusets, until one of them is back. The last CPU stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hotplug {
    /// When.
    pub at: Nanos,
    /// Which.
    pub cpu: u32,
    /// Whether it comes.
    pub online: bool,
}

/// Something that is changed during the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Nanos,
    /// Index of the group.
    pub group: u32,
    /// To what.
    pub action: Action,
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Another weight.
    Weight(Weight),
    /// Idle or not.
    Idle(bool),
    /// Another limit, or none.
    Limit(Option<Limit>),
}

/// A plan that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The machine cannot be.
    Machine(MachineError),
    /// A setting is out of range.
    Config(ConfigError),
    /// A group cannot be.
    Group(GroupError),
    /// A limit is out of range.
    Limit(String, Box<LimitError>),
    /// Something refers to what is not there, or there is too much of it.
    Structure(String),
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Machine(error) => write!(formatter, "impossible machine: {error}"),
            PlanError::Config(error) => write!(formatter, "setting out of range: {error}"),
            PlanError::Group(error) => write!(formatter, "impossible group: {error}"),
            PlanError::Limit(path, error) => {
                write!(formatter, "limit of group {path}: {error}")
            }
            PlanError::Structure(what) => formatter.write_str(what),
        }
    }
}

impl std::error::Error for PlanError {}

/// The core's defaults for that machine. Who wakes may have to wait for the end of another one's tick, and keeps what it is owed for that, as in the
/// kernel. (Cut to 4 ms at 100 ticks a second, one of weight 10,000 that slept for 3 us after each ms had 0.11 of a CPU beside three of 100.)
fn default_config(machine: &Machine) -> Config {
    let config = Config::new(machine.cpus());
    let tick = Nanos(machine.tick_length());
    Config {
        lag_limit: config.lag_limit.max(tick).min(config.debt_limit),
        ..config
    }
}

impl Plan {
    /// Most tasks of a plan: more would not end in anybody's lifetime.
    pub const TASKS_MAX: usize = 4_000_000;

    /// An empty plan for a machine.
    pub fn new(machine: Machine) -> Plan {
        let config = default_config(&machine);
        Plan {
            machine,
            costs: Costs::default(),
            settings: Settings {
                config,
                ..Settings::default()
            },
            groups: Vec::new(),
            cpusets: Vec::new(),
            programs: Vec::new(),
            workloads: Vec::new(),
            channels: Vec::new(),
            barriers: Vec::new(),
            queues: 0,
            requests: Vec::new(),
            meters: Vec::new(),
            sources: Vec::new(),
            changes: Vec::new(),
            real_time: Vec::new(),
            hotplug: Vec::new(),
            duration: Nanos::from_secs(1),
            seed: 1,
        }
    }

    /// Replaces the machine and what depends on its size.
    pub fn set_machine(&mut self, machine: Machine) {
        let fresh = default_config(&machine);
        self.settings.config = Config {
            cpus: fresh.cpus,
            base_slice: fresh.base_slice,
            wakeup_granularity: fresh.wakeup_granularity,
            min_granularity: fresh.min_granularity,
            latency: fresh.latency,
            lag_limit: fresh.lag_limit,
            ..self.settings.config
        };
        self.machine = machine;
    }

    /// The index of a group, added with weight 100 if it is not there, its ancestors before it. The root is `None`, by
    /// its path "".
    pub fn group(&mut self, path: &str) -> Option<u32> {
        if path.is_empty() {
            return None;
        }
        let known = self.groups.iter().position(|group| group.path == path);
        if known.is_none() && path.len() <= GroupTree::PATH_LENGTH_MAX {
            let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
            for parent in parents.filter(|parent| !parent.is_empty()) {
                if !self.groups.iter().any(|group| group.path == parent) {
                    self.add_group(parent);
                }
            }
        }
        let index = known.unwrap_or_else(|| {
            self.add_group(path);
            self.groups.len() - 1
        });
        u32::try_from(index).ok()
    }

    fn add_group(&mut self, path: &str) {
        self.groups.push(GroupPlan {
            path: path.into(),
            weight: Weight::DEFAULT,
            idle: false,
            limit: None,
        });
    }

    /// Adds a program and returns its index.
    pub fn program(&mut self, program: Program) -> u32 {
        self.programs.push(program);
        count_of(&self.programs) - 1
    }

    /// The index of a set of CPUs, added if it is not there.
    pub fn cpuset(&mut self, mut cpus: Vec<u32>) -> u32 {
        cpus.sort_unstable();
        cpus.dedup();
        let known = self.cpusets.iter().position(|known| *known == cpus);
        known.map_or_else(
            || {
                self.cpusets.push(cpus);
                count_of(&self.cpusets) - 1
            },
            |index| u32::try_from(index).unwrap_or(u32::MAX),
        )
    }

    /// Adds a channel with that many tokens and returns its index.
    pub fn channel(&mut self, tokens: u32) -> u32 {
        self.channels.push(tokens);
        count_of(&self.channels) - 1
    }

    /// Adds a meter and returns its index.
    pub fn meter(&mut self, name: &str) -> u32 {
        self.meters.push(name.into());
        count_of(&self.meters) - 1
    }

    /// Adds a queue of requests and returns its index.
    pub fn queue(&mut self) -> u32 {
        self.queues += 1;
        self.queues - 1
    }
}

fn count_of<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}
