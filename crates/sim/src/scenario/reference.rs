//! The reference of scenario files. Names of fields and of choices come from the structures that files are read into, and a test
//! compares what is said of them with those: a field without its line, or a line without its field, is a failed test.

use super::document::{
    BandwidthName, ChangeTable, ClockName, CostTable, Document, ExpectTable, GroupClockName,
    GroupTable, Kind, LoadAverageName, LoopName, MachineTable, PickName, SchedulerTable,
    SweepTable, ThrottleName, TicksName, VariantTable, WorkloadTable,
};
use super::expression;
use crate::kernel::Kernel;
use core::fmt::Write;
use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

/// Notes what a structure asks for: the names of its fields, or of its choices.
struct Probe<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("only names are wanted"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(fields);
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(variants);
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// The names of a structure's fields, or of an enumeration's choices, as files write them.
fn names<'de, T: Deserialize<'de>>() -> Vec<&'static str> {
    let mut found = Vec::new();
    // Refused at the first field, as it should be.
    let _ = T::deserialize(Probe(&mut found));
    found
}

/// What is said of a field: its name, what it takes and what for.
type Line = (&'static str, Takes, &'static str);

/// What a field takes.
#[derive(Clone, Copy)]
enum Takes {
    /// Something that a word describes.
    A(&'static str),
    /// One of some names.
    One(fn() -> Vec<&'static str>),
}
use Takes::{A, One};

/// A part of the file: its heading, what it is for, its fields as read and as described.
struct Part {
    heading: &'static str,
    about: &'static str,
    fields: fn() -> Vec<&'static str>,
    lines: &'static [Line],
}

const TIME: Takes = A("time");
const SPAN: Takes = A("span");
const COUNT: Takes = A("count");
const NUMBER: Takes = A("number");
const TEXT: Takes = A("text");
const FLAG: Takes = A("true or false");
const PATH: Takes = A("path");

const PARTS: &[Part] = &[
    Part {
        heading: "the file itself",
        about: "Fields before the first table.",
        fields: names::<Document>,
        lines: &[
            ("name", TEXT, "what the scenario is called; needed"),
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
                "kernel rules: slices are lost at the end of the period (2014 to 2019)",
            ),
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
                "request length; default 0.7ms times 1 + log2 of up to 8 CPUs",
            ),
            (
                "wakeup_granularity",
                TIME,
                "how far a buddy or a woken task may be preferred",
            ),
            (
                "quantum",
                TIME,
                "width of the buckets of deadlines; default 0s, exact",
            ),
            (
                "balance_every",
                TIME,
                "how often a busy CPU looks whether to pull; default 0.5ms for every 8 CPUs",
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
                "next_buddy",
                FLAG,
                "whether the task that a peer woke last runs next; default true",
            ),
            (
                "last_buddy",
                FLAG,
                "whether a task preempted by a wake-up goes on first; default true",
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
            ("tick", TIME, "one tick"),
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
            ("load_average", TIME, "the averages of one group at a tick"),
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
            ("begin", TIME, "when it begins"),
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
            ("gap", SPAN, "time from one arrival to the next"),
            ("think", SPAN, "time from an answer to the next request"),
            ("kernel", SPAN, "work inside the kernel"),
            ("wait", SPAN, "waiting for a disk or the like"),
            ("pause", SPAN, "sleep between pieces of work"),
            ("period", TIME, "of periodic work"),
            ("write", TIME, "writing one place in the code"),
            (
                "parts",
                COUNT,
                "pieces of a request that run at the same time",
            ),
            ("rounds", NUMBER, "of the conversation"),
            ("teams", NUMBER, "of senders and receivers"),
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
            ("at", TIME, "when; needed"),
            ("group", PATH, "whom; needed"),
            ("weight", NUMBER, "1..=10000"),
            ("idle", FLAG, "whether it is idle from then on"),
            ("quota", TIME, "another limit"),
            ("period", TIME, "its period; default 100ms"),
            ("burst", TIME, "its burst"),
            ("unlimited", FLAG, "no limit any more"),
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
            ("min", NUMBER, "the least that is accepted"),
            ("max", NUMBER, "the most that is accepted"),
        ],
    },
];

/// What is said of a kind of workload: its name, what it needs, what it may have, and what it does.
type KindLine = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

const KINDS: &[KindLine] = &[
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

/// The reference of scenario files as text.
pub fn reference() -> String {
    let mut text = String::new();
    // A string takes everything.
    let _ = write(&mut text);
    text
}

fn write(text: &mut String) -> core::fmt::Result {
    writeln!(
        text,
        "Scenario files are TOML: a machine, groups, workloads, variants of them, and what is expected.\n\
         Unknown fields, groups, runs and figures are errors, with line and column, before anything runs.\n\n\
         A time is a number with a unit (ns, us, ms, s, min), as text: \"1.5ms\". A span is a time (\"5ms\"), a range in\n\
         which each length is as likely as any other (\"1ms..3ms\"), or an exponential distribution with that mean\n\
         (\"~5ms\"). A count is a number or follows the machine: \"cpus\", \"2*cpus\", \"cpus/4\"."
    )?;
    for part in PARTS {
        writeln!(text, "\n{}\n  {}", part.heading, part.about)?;
        for name in (part.fields)() {
            let line = part.lines.iter().find(|(described, ..)| *described == name);
            let (_, takes, about) = line.unwrap_or(&("", A(""), ""));
            let takes = match takes {
                A(word) => (*word).to_owned(),
                One(names) => names().join(" | "),
            };
            if takes.len() <= 13 {
                writeln!(text, "  {name:<20} {takes:<13} {about}")?;
                continue;
            }
            let mut rows = rows(&takes).into_iter();
            writeln!(text, "  {name:<20} {}", rows.next().unwrap_or_default())?;
            for row in rows {
                writeln!(text, "  {:<20} {row}", "")?;
            }
            writeln!(text, "  {:<34} {about}", "")?;
        }
    }
    writeln!(text, "\nkinds of workloads")?;
    for (name, needs, may, about) in KINDS {
        let mut fields = needs.join(", ");
        if !may.is_empty() {
            let may = may.join(", ");
            fields += &format!("{}[{may}]", if needs.is_empty() { "" } else { " " });
        }
        writeln!(text, "  {name:<20} {about}\n  {:<20}   {fields}", "")?;
    }
    writeln!(
        text,
        "\nexpressions\n  + - * / ( ), numbers, times (\"2ms\" counts ns), close(a, b, per cent), and figures of the first run or of\n  \
         another one, `run:p99[web] / 1ms`. Times are in ns."
    )?;
    for (of, figures) in expression::figures() {
        writeln!(text, "  {of:<20} {}", figures.join(" "))?;
    }
    Ok(())
}

/// Words in rows of at most 90 letters.
fn rows(words: &str) -> Vec<String> {
    let mut rows = vec![String::new()];
    for word in words.split(' ') {
        if let Some(row) = rows.last_mut()
            && row.len() + word.len() < 90
        {
            if !row.is_empty() {
                row.push(' ');
            }
            row.push_str(word);
        } else {
            rows.push(word.to_owned());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::{Files, Scenario};
    use super::*;
    use std::io::BufRead;

    #[test]
    fn every_field_has_its_line_and_every_line_its_field() {
        for part in PARTS {
            let mut said: Vec<&str> = part.lines.iter().map(|(name, ..)| *name).collect();
            let mut read = (part.fields)();
            assert!(!read.is_empty(), "{}", part.heading);
            said.sort_unstable();
            read.sort_unstable();
            assert_eq!(said, read, "{}", part.heading);
        }
        let said: Vec<&str> = KINDS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(said, names::<Kind>());
    }

    struct OneFile;

    impl Files for OneFile {
        fn read(&mut self, _: &str) -> Result<String, String> {
            Ok("{\"tasks\": {\"a\": {\"run\": 1}}}".into())
        }

        fn open(&mut self, _: &str) -> Result<Box<dyn BufRead>, String> {
            let line = "# tracer: nop\n";
            Ok(Box::new(std::io::Cursor::new(line)))
        }
    }

    fn example(field: &str) -> &'static str {
        match field {
            "work" | "gap" | "think" | "kernel" | "wait" | "pause" | "period" | "write" => {
                "\"5ms\""
            }
            "how" => "\"own-thread\"",
            "file" => "\"x\"",
            "loop" => "\"open\"",
            "batched" => "true",
            _ => "1",
        }
    }

    fn parsed(kind: &str, fields: &[&str]) -> Result<(), String> {
        let mut text = format!(
            "name = \"x\"\nduration = \"1s\"\nmachine = {{ shape = \"2\" }}\n[[workload]]\nname = \"w\"\nkind = \"{kind}\"\n"
        );
        for field in fields {
            text += &format!("{field} = {}\n", example(field));
        }
        match Scenario::parse("x.toml", &text, &mut OneFile) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn kinds_need_and_take_what_their_lines_say() {
        let own: Vec<&str> = KINDS
            .iter()
            .flat_map(|(_, needs, may, _)| needs.iter().chain(*may))
            .copied()
            .collect();
        for (kind, needs, may, _) in KINDS {
            for missing in *needs {
                let others: Vec<&str> = needs
                    .iter()
                    .copied()
                    .filter(|need| need != missing)
                    .collect();
                let error = parsed(kind, &others).expect_err(kind);
                assert!(
                    error.contains("needs `"),
                    "{kind} without {missing}: {error}"
                );
            }
            let all: Vec<&str> = needs.iter().chain(*may).copied().collect();
            let fault = parsed(kind, &all).err().unwrap_or_default();
            // An empty recording is none, which is said last.
            let is_about_fields = fault.contains("needs `") || fault.contains("no use for");
            assert!(
                !is_about_fields && (fault.is_empty() || *kind == "replay"),
                "{kind}: {fault}"
            );
            for other in own.iter().filter(|field| !all.contains(field)) {
                let mut more = all.clone();
                more.push(other);
                let refused = parsed(kind, &more).expect_err(kind);
                assert!(
                    *kind == "replay" || refused.contains("no use for"),
                    "{kind} with {other}: {refused}"
                );
            }
        }
    }

    #[test]
    fn the_reference_fits_a_screen_and_names_choices() {
        let text = reference();
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
        for word in [
            "[[expect]]",
            "closed-loop",
            "needed | busy",
            "p999",
            "exit-to-user",
        ] {
            assert!(text.contains(word), "{word}");
        }
    }
}
