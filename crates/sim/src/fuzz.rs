//! A swarm of random scenarios under the invariant checker; what fails is shrunk to a scenario file.
//!
//! Each case turns features on and off at random first (the swarm), so that some runs are all limits and others have
//! none. Everything follows from the seed.

use crate::engine::Simulation;
use crate::machine::Machine;
use crate::random::Random;
use crate::scenario::{Files, Scenario};
use quotient_trace::Discard;
use std::fmt::Write;
use std::io::BufRead;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Paths that groups are taken from.
const PATHS: [&str; 7] = ["a", "a/x", "a/y", "b", "b/z", "b/z/deep", "c"];

/// Longest time that a CPU may run before it notices that a budget is used up: a tick at HZ=100, ms.
const NOTICE_MS: u64 = 10;

/// Most that a CPU holds of a budget, ms.
const SLICE_MS: u64 = 5;

/// A limit, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    quota: u64,
    period: u64,
    burst: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    path: &'static str,
    weight: u64,
    idle: bool,
    limit: Option<Limit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Load {
    path: &'static str,
    kind: &'static str,
    threads: u64,
    work_us: u64,
    other_us: u64,
    weight: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    at_ms: u64,
    path: &'static str,
    what: String,
}

/// A random scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    seed: u64,
    shape: (u64, u64, u64),
    hz: u64,
    duration_ms: u64,
    settings: Vec<String>,
    costs: bool,
    groups: Vec<Group>,
    loads: Vec<Load>,
    changes: Vec<Change>,
}

/// A case that failed, in its smallest form, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed of the case.
    pub seed: u64,
    /// What broke.
    pub what: String,
    /// A scenario file that shows it.
    pub scenario: String,
}

struct NoFiles;

impl Files for NoFiles {
    fn read(&mut self, name: &str) -> Result<String, String> {
        Err(format!("{name}: there are no files here"))
    }

    fn open(&mut self, name: &str) -> Result<Box<dyn BufRead>, String> {
        self.read(name).map(|_| unreachable!("read never succeeds"))
    }
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

impl Case {
    /// The case of a seed.
    pub fn random(seed: u64) -> Case {
        let random = &mut Random::new(seed, 0xf022);
        let (limits, changes, costs) = (
            random.below(3) > 0,
            random.below(2) > 0,
            random.below(3) > 0,
        );
        let mut settings = Vec::new();
        let mut choose = |random: &mut Random, key: &str, values: &[&str]| {
            if random.below(2) > 0 {
                settings.push(format!("{key} = {}", pick(random, values)));
            }
        };
        choose(random, "pick", &["\"cfs\"", "\"eevdf\""]);
        choose(
            random,
            "throttle",
            &["\"exact\"", "\"exit-to-user\"", "\"queue\""],
        );
        choose(random, "group_clock", &["\"smp\"", "\"concur\"", "\"up\""]);
        choose(random, "quantum", &["\"50us\"", "\"1us\""]);
        choose(random, "run_to_parity", &["false"]);
        choose(random, "debts_fade", &["false"]);
        choose(random, "moves_keep_requests", &["false"]);
        choose(
            random,
            "load_average",
            &["\"every-tick\"", "\"staggered\"", "\"rate-limited\""],
        );
        if random.below(2) > 0 {
            settings.push("bandwidth = \"kernel\"".into());
            if random.below(2) > 0 {
                settings.push("slice_expiry = true".into());
            }
        }
        let groups = (0..random.below(6))
            .map(|_| Group {
                path: pick(random, &PATHS),
                weight: pick(random, &[1, 20, 100, 100, 300, 10_000]),
                idle: random.below(8) == 0,
                limit: (limits && random.below(2) > 0).then(|| limit(random)),
            })
            .collect::<Vec<_>>();
        let groups = unique(groups);
        let loads = (0..1 + random.below(5)).map(|_| load(random)).collect();
        let changes = (0..if changes { random.below(6) } else { 0 })
            .map(|_| change(random, limits))
            .collect();
        Case {
            seed,
            shape: (
                1 + random.below(3),
                1 + random.below(4),
                1 + random.below(2),
            ),
            hz: pick(random, &[100, 250, 1000]),
            duration_ms: pick(random, &[20, 60, 200]),
            settings,
            costs,
            groups,
            loads,
            changes,
        }
    }

    /// Groups that are only named.
    fn plain_groups(&self) -> std::collections::BTreeSet<&str> {
        let loads = self.loads.iter().map(|load| load.path);
        let changes = self.changes.iter().map(|change| change.path);
        loads
            .chain(changes)
            .filter(|path| !path.is_empty() && self.groups.iter().all(|group| group.path != *path))
            .collect()
    }

    /// The case as a scenario file.
    pub fn scenario(&self) -> String {
        let mut text = String::new();
        let (nodes, cores, threads) = self.shape;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "name = \"swarm case {}\"\nseed = {}\nduration = \"{}ms\"\n\n[machine]\nshape = \"{nodes}x{cores}x{threads}\"\nhz = {}\n",
            self.seed, self.seed, self.duration_ms, self.hz
        );
        let _ = writeln!(text, "[scheduler]\n{}\n", self.settings.join("\n"));
        if self.costs {
            text += "[costs]\nswitch = \"1us\"\ntick = \"2us\"\nwake = \"300ns\"\nsyscall = \"100ns\"\nipi_send = \"200ns\"\nipi_receive = \"1us\"\nline_near = \"50ns\"\nline_far = \"200ns\"\nmigrate_far = \"5us\"\nnoise_every = \"3ms\"\nnoise_length = \"20us\"\n\n";
        }
        for group in &self.groups {
            let _ = writeln!(
                text,
                "[[group]]\npath = \"{}\"\nweight = {}\nidle = {}",
                group.path, group.weight, group.idle
            );
            if let Some(limit) = group.limit {
                text += &limit_text(limit);
            }
        }
        for path in self.plain_groups() {
            let _ = writeln!(text, "[[group]]\npath = \"{path}\"");
        }
        for (number, load) in self.loads.iter().enumerate() {
            let _ = writeln!(
                text,
                "\n[[workload]]\nname = \"w{number}\"\ngroup = \"{}\"\nkind = \"{}\"",
                load.path, load.kind
            );
            text += &load.fields();
        }
        // What comes after the end is no part of a scenario.
        let in_time = |change: &&Change| change.at_ms <= self.duration_ms;
        for change in self.changes.iter().filter(in_time) {
            let _ = writeln!(
                text,
                "\n[[change]]\nat = \"{}ms\"\ngroup = \"{}\"\n{}",
                change.at_ms, change.path, change.what
            );
        }
        text
    }

    /// Runs the case with every queue verified after every event.
    ///
    /// # Errors
    /// What broke: an invariant, a panic, or the books.
    pub fn run(&self) -> Result<(), String> {
        let run = catch_unwind(AssertUnwindSafe(|| self.run_unguarded()));
        run.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        })
    }

    fn run_unguarded(&self) -> Result<(), String> {
        let scenario = Scenario::parse("case", &self.scenario(), &mut NoFiles)
            .map_err(|error| error.to_string())?;
        let mut plan = scenario
            .plan(0, None, None, &mut NoFiles)
            .map_err(|error| error.to_string())?;
        plan.settings.check = true;
        let mut simulation = Simulation::new(&plan, Discard).map_err(|error| error.to_string())?;
        simulation.run().map_err(|error| error.to_string())?;
        let outcome = simulation.outcome();
        let sum: u64 = outcome.workloads.iter().map(|load| load.usage_ns).sum();
        if outcome.busy_ns != sum {
            return Err(format!(
                "the root was charged {}, tasks ran {sum}",
                outcome.busy_ns
            ));
        }
        if outcome.busy_ns > outcome.elapsed_ns * u64::from(outcome.cpus) {
            return Err("more CPU time than there was".into());
        }
        for group in simulation.groups() {
            let account = group.bandwidth_account();
            if group.limit().is_some() && !account.is_balanced() {
                return Err(format!("budget of {}: {account:?}", group.path()));
            }
        }
        self.check_limits(&outcome, &plan.machine)
    }

    /// A limit that is never changed holds for the whole run: usage <= (periods + 2) Q + B + N (S + D).
    fn check_limits(&self, outcome: &crate::Outcome, machine: &Machine) -> Result<(), String> {
        let noise = if self.costs { 2 } else { 0 };
        let kernel_excess = 10;
        let slack = u64::from(machine.cpus()) * (SLICE_MS + NOTICE_MS + noise + kernel_excess);
        for group in &self.groups {
            let Some(limit) = group.limit else { continue };
            if self.changes.iter().any(|change| change.path == group.path) {
                continue;
            }
            let periods = self.duration_ms / limit.period + 2;
            let allowed = periods * limit.quota + limit.burst + slack;
            let used = outcome.group(group.path).map_or(0, |group| group.usage_ns);
            if used > allowed * 1_000_000 {
                return Err(format!(
                    "{} used {used} ns, at most {allowed} ms are allowed",
                    group.path
                ));
            }
        }
        Ok(())
    }

    /// Smaller cases, the smallest steps last.
    fn smaller(&self) -> Vec<Case> {
        let mut smaller = Vec::new();
        let mut with = |change: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            change(&mut case);
            if case != *self {
                smaller.push(case);
            }
        };
        for index in 0..self.loads.len() {
            if self.loads.len() > 1 {
                with(&|case| {
                    case.loads.remove(index);
                });
            }
        }
        for index in 0..self.changes.len() {
            with(&|case| {
                case.changes.remove(index);
            });
        }
        for index in 0..self.groups.len() {
            with(&|case| {
                case.groups.remove(index);
            });
            with(&|case| case.groups[index].limit = None);
            with(&|case| case.groups[index].idle = false);
            with(&|case| case.groups[index].weight = 100);
        }
        for index in 0..self.settings.len() {
            with(&|case| {
                case.settings.remove(index);
            });
        }
        with(&|case| case.costs = false);
        with(&|case| case.duration_ms = (case.duration_ms / 2).max(5));
        with(&|case| case.shape.0 = 1);
        with(&|case| case.shape.1 = (case.shape.1 - 1).max(1));
        with(&|case| case.shape.2 = 1);
        for index in 0..self.loads.len() {
            with(&|case| case.loads[index].threads = (case.loads[index].threads / 2).max(1));
            with(&|case| case.loads[index].weight = 100);
            with(&|case| case.loads[index].path = "");
        }
        smaller
    }
}

impl Load {
    fn fields(&self) -> String {
        let Load {
            threads,
            work_us,
            other_us,
            weight,
            ..
        } = self;
        let own = match self.kind {
            "spin" => format!("threads = {threads}"),
            "closed-loop" => {
                format!("threads = {threads}\nwork = \"~{work_us}us\"\nthink = \"~{other_us}us\"")
            }
            "open-loop" => format!(
                "threads = {threads}\nwork = \"~{work_us}us\"\ngap = \"~{other_us}us\"\nparts = 2"
            ),
            "periodic" => {
                format!("threads = {threads}\nwork = \"{work_us}us\"\nperiod = \"{other_us}us\"")
            }
            "pipe" => format!("rounds = 200\nwork = \"{work_us}us\""),
            "build" => format!(
                "threads = {threads}\njobs = 30\nwork = \"~{work_us}us\"\nkernel = \"~{other_us}us\"\nwait = \"100us\""
            ),
            "wake-and-work" => {
                format!("threads = {threads}\nwork = \"~{work_us}us\"\npause = \"{other_us}us\"")
            }
            _ => format!(
                "teams = 1\nfan = {}\nloops = 5\nwork = \"{work_us}us\"",
                threads.div_ceil(2)
            ),
        };
        format!("weight = {weight}\n{own}\n")
    }
}

fn limit(random: &mut Random) -> Limit {
    let period = pick(random, &[1, 5, 20, 100]);
    let quota = 1 + random.below(2 * period);
    Limit {
        quota,
        period,
        burst: if random.below(2) > 0 {
            random.below(quota + 1)
        } else {
            0
        },
    }
}

fn limit_text(limit: Limit) -> String {
    let Limit {
        quota,
        period,
        burst,
    } = limit;
    format!("quota = \"{quota}ms\"\nperiod = \"{period}ms\"\nburst = \"{burst}ms\"\n")
}

fn load(random: &mut Random) -> Load {
    const KINDS: [&str; 8] = [
        "spin",
        "closed-loop",
        "open-loop",
        "periodic",
        "pipe",
        "build",
        "wake-and-work",
        "messaging",
    ];
    Load {
        path: pick(
            random,
            &["", "a", "a/x", "a/y", "b", "b/z", "b/z/deep", "c"],
        ),
        kind: pick(random, &KINDS),
        threads: 1 + random.below(6),
        work_us: pick(random, &[1, 20, 300, 2_000, 10_000]),
        other_us: pick(random, &[5, 50, 1_000, 7_000]),
        weight: pick(random, &[100, 100, 1, 1_000]),
    }
}

fn change(random: &mut Random, limits: bool) -> Change {
    let what = match random.below(if limits { 4 } else { 2 }) {
        0 => format!("weight = {}", 1 + random.below(10_000)),
        1 => format!("idle = {}", random.below(2) > 0),
        2 => "unlimited = true".to_owned(),
        _ => limit_text(limit(random)),
    };
    Change {
        at_ms: random.below(100),
        path: pick(random, &PATHS),
        what,
    }
}

/// The first of each path.
fn unique(groups: Vec<Group>) -> Vec<Group> {
    let mut kept: Vec<Group> = Vec::new();
    for group in groups {
        if !kept.iter().any(|known| known.path == group.path) {
            kept.push(group);
        }
    }
    kept
}

/// Runs the cases of some seeds. `Err` is the first that fails, shrunk.
///
/// # Errors
/// [`Failure`], which is a bug of Quotient.
pub fn run(seeds: impl Iterator<Item = u64>) -> Result<u64, Box<Failure>> {
    let mut count = 0;
    for seed in seeds {
        let case = Case::random(seed);
        if let Err(what) = case.run() {
            let (case, what) = shrink(case, what);
            return Err(Box::new(Failure {
                seed,
                what,
                scenario: case.scenario(),
            }));
        }
        count += 1;
    }
    Ok(count)
}

/// Most attempts to make a failing case smaller.
const ATTEMPTS_MAX: usize = 300;

fn shrink(mut case: Case, mut what: String) -> (Case, String) {
    let mut attempts = 0;
    'again: while attempts < ATTEMPTS_MAX {
        for smaller in case.smaller() {
            attempts += 1;
            if let Err(still) = smaller.run() {
                (case, what) = (smaller, still);
                continue 'again;
            }
        }
        break;
    }
    (case, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_follow_from_their_seed_and_are_scenarios() {
        for seed in 0..50 {
            let case = Case::random(seed);
            assert_eq!(case, Case::random(seed));
            let parsed = Scenario::parse("case", &case.scenario(), &mut NoFiles);
            assert!(parsed.is_ok(), "{parsed:?}\n{}", case.scenario());
        }
    }

    #[test]
    fn shrinking_ends_with_less() {
        let case = Case::random(11);
        // Nothing fails here; only the way down is followed.
        let smallest = case
            .smaller()
            .into_iter()
            .map(|case| case.scenario().len())
            .min();
        assert!(smallest.unwrap() < case.scenario().len());
    }
}
