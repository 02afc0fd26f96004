//! What is said of every field and of every kind of workload.

use super::super::document::{
    BandwidthName, ChangeTable, ClockName, CostTable, Document, ExpectTable, GroupClockName,
    GroupTable, HotplugTable, Kind, LoadAverageName, LoopName, MachineTable, PickName, PolicyName,
    RealTimeTable, SchedulerTable, SweepTable, ThrottleName, TicksName, VariantTable,
    WorkloadTable,
};
use super::names;
use crate::kernel::Kernel;

/// What is said of a field: its name, what it takes and what for.
pub(super) type Line = (&'static str, Takes, &'static str);

/// What a field takes.
#[derive(Clone, Copy)]
pub(super) enum Takes {
    /// Something that a word describes.
    A(&'static str),
    /// One of some names.
    One(fn() -> Vec<&'static str>),
}
use Takes::{A, One};

/// A part of the file: its heading, what it is for, its fields as read and as described.
pub(super) struct Part {
    pub(super) heading: &'static str,
    pub(super) about: &'static str,
    pub(super) fields: fn() -> Vec<&'static str>,
    pub(super) lines: &'static [Line],
}

const TIME: Takes = A("time");
const SPAN: Takes = A("span");
const COUNT: Takes = A("count");
const NUMBER: Takes = A("number");
const TEXT: Takes = A("text");
const FLAG: Takes = A("true or false");
const PATH: Takes = A("path");

pub(super) const PARTS: &[Part] = &[
    Part {
        heading: "the file itself",
        about: "Fields before the first table.",
        fields: names::<Document>,
        lines: &[
            (
                "name",
                TEXT,
                "what the scenario is called, one letter or more; needed",
            ),
            ("about", TEXT, "what it shows, and where it comes from"),
            (
                "base",
                A("file"),
                "another scenario whose fields are taken over where this one says nothing",
            ),
            (
                "seed",
                NUMBER,
                "what all randomness derives from; default 1",
            ),
            (
                "duration",
                TIME,
                "when a run ends at the latest, up to a day; needed",
            ),
            ("machine", A("table"), "the machine, see [machine]; needed"),
            ("scheduler", A("table"), "see [scheduler]"),
            ("costs", A("table"), "see [costs]"),
            ("group", A("tables"), "see [[group]]"),
            ("workload", A("tables"), "see [[workload]]"),
            ("change", A("tables"), "see [[change]]"),
            ("realtime", A("tables"), "see [[realtime]]"),
            ("hotplug", A("tables"), "see [[hotplug]]"),
            ("variant", A("tables"), "see [[variant]]"),
            ("sweep", A("tables"), "see [[sweep]]"),
            ("expect", A("tables"), "see [[expect]]"),
        ],
    },
    Part {
        heading: "[machine]",
        about: "CPUs are numbered node by node, core by core, thread by thread.",
        fields: names::<MachineTable>,
        lines: &[
            (
                "shape",
                TEXT,
                "CORES, NODESxCORES or NODESxCORESxTHREADS, such as \"8x10\"; needed",
            ),
            (
                "caches",
                NUMBER,
                "last-level caches of a node, a divisor of its cores; default 1",
            ),
            (
                "hz",
                NUMBER,
                "ticks a second of each CPU, 1..=100000; default 250",
            ),
            (
                "tick_skew",
                FLAG,
                "whether the CPUs' ticks are spread over the period; default true",
            ),
            (
                "ticks",
                One(names::<TicksName>),
                "while they can change something (default), or while the CPU runs anything",
            ),
            (
                "smt_speed",
                NUMBER,
                "speed of a hyperthread beside a busy one, per cent, 1..=100; default 62",
            ),
            (
                "distances",
                A("rows"),
                "distances between nodes as the firmware tells them; default 20 between any two",
            ),
        ],
    },
    Part {
        heading: "[scheduler]",
        about: "What is left out is as the library has it.",
        fields: names::<SchedulerTable>,
        lines: &[
            (
                "kernel",
                One(names::<Kernel>),
                "rules after that release of Linux, which the fields below change; default ours",
            ),
            (
                "pick",
                One(names::<PickName>),
                "how the next is chosen; default eevdf",
            ),
            (
                "policy",
                One(names::<PolicyName>),
                "who chooses; the second is a plug-in's example and has no limits; default core",
            ),
            (
                "throttle",
                One(names::<ThrottleName>),
                "when a used-up budget takes the CPU away; default queue: at a tick or switch",
            ),
            (
                "bandwidth",
                One(names::<BandwidthName>),
                "the rules of limits; default ours",
            ),
            (
                "slice_expiry",
                FLAG,
                "kernel rules only: slices are lost at the end of the period (2014 to 2019)",
            ),
            (
                "bandwidth_slice",
                TIME,
                "what a CPU takes of a limit at once, 1us..=1s; default 5ms",
            ),
            (
                "rt_runtime",
                TIME,
                "how long [[realtime]] may keep a CPU in each rt_period; default without end",
            ),
            ("rt_period", TIME, "up to 1s; default 1s"),
            (
                "load_average",
                One(names::<LoadAverageName>),
                "when ticks compute averages, for their cost; default off",
            ),
            (
                "group_clock",
                One(names::<GroupClockName>),
                "how groups are kept to weights across CPUs; default foreign: one virtual time each",
            ),
            (
                "base_slice",
                TIME,
                "request length, 0.1ms..=100ms; default 0.7ms times 1 + log2 of up to 8 CPUs",
            ),
            (
                "wakeup_granularity",
                TIME,
                "how far a buddy or a woken task may be preferred, up to 1s",
            ),
            (
                "quantum",
                TIME,
                "width of the buckets of deadlines, up to 100ms; default 0s, exact",
            ),
            (
                "balance_every",
                TIME,
                "how often a busy CPU looks whether to pull, above 0; default 0.5ms for every 8 CPUs",
            ),
            (
                "run_to_parity",
                FLAG,
                "whether the current task keeps the CPU to its deadline; default true",
            ),
            (
                "debts_fade",
                FLAG,
                "whether what a sleeper owes is paid as others catch up; default true",
            ),
            (
                "moves_keep_requests",
                FLAG,
                "whether a task that is moved goes on with its request; default true",
            ),
            (
                "next_buddy",
                FLAG,
                "whether the task that a peer woke last runs next; default true",
            ),
            (
                "last_buddy",
                FLAG,
                "CFS only: whether a task preempted by a wake-up goes on first; default true",
            ),
        ],
    },
    Part {
        heading: "[costs]",
        about: "All zero by default: an ideal machine. Say where figures come from.",
        fields: names::<CostTable>,
        lines: &[
            (
                "sources",
                A("texts"),
                "where the figures come from, printed with the result",
            ),
            ("switch", TIME, "switching to another task"),
            ("tick", TIME, "one tick; less than the time to the next"),
            ("ipi_send", TIME, "sending an interrupt to another CPU"),
            ("ipi_receive", TIME, "being interrupted by another CPU"),
            ("wake", TIME, "waking a task, paid by the waker"),
            ("syscall", TIME, "entering and leaving the kernel"),
            ("lock", TIME, "a lock whose line is here"),
            (
                "line_near",
                TIME,
                "a cache line from another core of the node",
            ),
            (
                "line_far",
                TIME,
                "a cache line from another node at distance 20",
            ),
            (
                "migrate_near",
                TIME,
                "cold caches on another CPU of the node",
            ),
            ("migrate_far", TIME, "cold caches on another node"),
            (
                "load_average",
                TIME,
                "holding a group's shared line to add an average",
            ),
            (
                "average_local",
                TIME,
                "computing a group's averages at a tick, added or not",
            ),
            (
                "bandwidth_switch",
                TIME,
                "bookkeeping of limits at a switch",
            ),
            ("clock_read", TIME, "reading one thread's clock"),
            (
                "clock_read_running",
                TIME,
                "the same of a thread that runs elsewhere",
            ),
            (
                "answer_delay",
                TIME,
                "mean time until a busy CPU answers an interrupt",
            ),
            (
                "noise_every",
                TIME,
                "mean time between disturbances of a CPU; 0s for none",
            ),
            ("noise_length", TIME, "mean length of a disturbance"),
        ],
    },
    Part {
        heading: "[[group]]",
        about: "Where there is one, every group of a workload or change has to be described, or lie above one that is.",
        fields: names::<GroupTable>,
        lines: &[
            ("path", PATH, "its place, such as \"web/api\"; needed"),
            (
                "cpus",
                TEXT,
                "CPUs that its tasks, and those below it, are kept to, such as \"0-3,8\"; default all",
            ),
            ("weight", NUMBER, "1..=10000; default 100"),
            ("idle", FLAG, "runs only when nothing else wants to"),
            ("quota", TIME, "CPU time in a period; default none"),
            ("period", TIME, "default 100ms"),
            ("burst", TIME, "what may be saved up"),
            ("smooth", FLAG, "refilled in parts; our rules only"),
            ("soft", FLAG, "idle CPUs are for the taking; our rules only"),
        ],
    },
    Part {
        heading: "[[workload]]",
        about: "Tasks that belong together. What a kind takes beyond the common fields is below.",
        fields: names::<WorkloadTable>,
        lines: &[
            ("name", TEXT, "unique; needed"),
            ("kind", One(names::<Kind>), "needed"),
            ("group", PATH, "default the root"),
            (
                "groups",
                COUNT,
                "makes as many groups `group.0`, `group.1` ... with one such workload each",
            ),
            ("threads", COUNT, "tasks; default 1"),
            (
                "weight",
                NUMBER,
                "of each task within its group, 1..=10000; default 100",
            ),
            ("slice", TIME, "request length of each task, 0.1ms..=100ms"),
            (
                "begin",
                TIME,
                "when it begins, up to the run's end; default at once",
            ),
            (
                "cpu",
                NUMBER,
                "where it begins; default where there is room",
            ),
            (
                "cpus",
                TEXT,
                "CPUs that its tasks are kept to, such as \"0-3,8\"; default all",
            ),
            ("work", SPAN, "CPU time of a piece of work"),
            (
                "gap",
                SPAN,
                "time from one arrival to the next: 1us or more on average",
            ),
            ("think", SPAN, "time from an answer to the next request"),
            ("kernel", SPAN, "work inside the kernel"),
            ("wait", SPAN, "waiting for a disk or the like"),
            ("pause", SPAN, "sleep between pieces of work"),
            ("merge", SPAN, "work of the last stage on a batch"),
            ("period", TIME, "of periodic work: 1us or more"),
            ("write", TIME, "writing one place in the code"),
            (
                "parts",
                COUNT,
                "pieces of a request that run at the same time",
            ),
            ("rounds", NUMBER, "of the conversation"),
            ("teams", NUMBER, "of senders and receivers; pipelines"),
            ("fan", NUMBER, "senders, and receivers, of a team"),
            (
                "loops",
                NUMBER,
                "messages from each sender to each receiver",
            ),
            ("jobs", NUMBER, "to be done in all"),
            ("calls", NUMBER, "of each thread"),
            ("sites", NUMBER, "branches of a key"),
            (
                "batched",
                FLAG,
                "whether all sites are written under one interrupt",
            ),
            (
                "how",
                One(names::<ClockName>),
                "which threads a reader brings up to date",
            ),
            ("file", A("file"), "beside the scenario"),
            (
                "loop",
                One(names::<LoopName>),
                "whether recorded arrivals come when they did, or after the work before",
            ),
        ],
    },
    Part {
        heading: "[[change]]",
        about: "Changes a group on the way.",
        fields: names::<ChangeTable>,
        lines: &[
            ("at", TIME, "when, up to the run's end; needed"),
            ("group", PATH, "whom; needed"),
            ("weight", NUMBER, "1..=10000"),
            ("idle", FLAG, "whether it is idle from then on"),
            ("quota", TIME, "another limit"),
            ("period", TIME, "its period; default 100ms"),
            ("burst", TIME, "its burst"),
            ("unlimited", FLAG, "no limit any more; not beside a quota"),
        ],
    },
    Part {
        heading: "[[realtime]]",
        about: "What runs before everything else, on each of its CPUs by itself: whoever runs there gives way.",
        fields: names::<RealTimeTable>,
        lines: &[
            ("name", TEXT, "unique; needed"),
            ("cpus", TEXT, "such as \"0-3,8\"; default all"),
            (
                "work",
                SPAN,
                "how long it takes each time: no more than `period` on average; needed",
            ),
            (
                "period",
                SPAN,
                "from one time to the next: 1us or more on average; needed",
            ),
            (
                "begin",
                TIME,
                "the first time, up to the run's end; default at once",
            ),
        ],
    },
    Part {
        heading: "[[hotplug]]",
        about: "A CPU goes: what is there moves, and is bound to no CPUs while none of its own is left. Or it comes.",
        fields: names::<HotplugTable>,
        lines: &[
            ("at", TIME, "when, up to the run's end; needed"),
            ("cpu", NUMBER, "which; needed"),
            (
                "online",
                FLAG,
                "whether it comes, or goes: in turns, online at first; needed. The last one stays",
            ),
        ],
    },
    Part {
        heading: "[[variant]]",
        about: "One run each; without any, and without a sweep, there is one run called \"run\".",
        fields: names::<VariantTable>,
        lines: &[
            ("name", TEXT, "of the run; needed"),
            (
                "set",
                A("table"),
                "fields that differ, such as { \"workload.0.threads\" = 4 }",
            ),
        ],
    },
    Part {
        heading: "[[sweep]]",
        about: "One run for each value, called like it; of several, and of variants, all combinations.",
        fields: names::<SweepTable>,
        lines: &[
            ("key", TEXT, "the field, such as \"machine.hz\"; needed"),
            ("values", A("list"), "its values; needed"),
        ],
    },
    Part {
        heading: "[[expect]]",
        about: "What has to come out on the scenario's own machine and seed.",
        fields: names::<ExpectTable>,
        lines: &[
            ("what", TEXT, "what is expected, in words; needed"),
            ("value", A("expression"), "of figures, see below; needed"),
            ("unit", TEXT, "printed behind it"),
            ("seed", NUMBER, "what the source says, printed beside it"),
            (
                "min",
                NUMBER,
                "the least that is accepted, finite; one of `min` and `max` has to be there",
            ),
            ("max", NUMBER, "the most that is accepted, finite"),
        ],
    },
];

/// What is said of a kind of workload: its name, what it needs, what it may have, and what it does.
pub(super) type KindLine = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

pub(super) const KINDS: &[KindLine] = &[
    ("spin", &[], &["threads"], "compute for ever"),
    ("once", &["work"], &["threads"], "compute that long and end"),
    (
        "open-loop",
        &["work", "gap"],
        &["threads", "parts"],
        "serve requests that come whether or not anybody is ready",
    ),
    (
        "closed-loop",
        &["work", "think"],
        &["threads"],
        "work, think, and so on",
    ),
    (
        "periodic",
        &["work", "period"],
        &["threads"],
        "work once in each period",
    ),
    (
        "pipe",
        &["rounds", "work"],
        &[],
        "two tasks that wake each other in turns",
    ),
    (
        "messaging",
        &["teams", "fan", "loops", "work"],
        &[],
        "teams in which every sender writes to every receiver",
    ),
    (
        "pipeline",
        &["work", "merge"],
        &["threads", "teams"],
        "lanes of a producer and a consumer each, of batches, and a merge of them",
    ),
    (
        "build",
        &["jobs", "work", "kernel", "wait"],
        &["threads"],
        "jobs one after another on so many threads",
    ),
    (
        "wake-and-work",
        &["work", "pause"],
        &["threads"],
        "sleep and work, each by itself",
    ),
    (
        "clock-readers",
        &["calls", "how"],
        &["threads"],
        "read the process's CPU clock as fast as they can",
    ),
    (
        "key-flips",
        &["sites", "batched", "pause", "write"],
        &[],
        "rewrite the code of a static key",
    ),
    ("rt-app", &["file"], &[], "an rt-app JSON file"),
    (
        "replay",
        &["file", "loop"],
        &[],
        "the bursts of a recorded trace",
    ),
];
