//! Set-ups: groups, nests and tasks of very unequal weights, half of the workloads spinners and half closed loops of microseconds to milliseconds.

use quotient_sim::Random;
use std::fmt::Write;

/// How long it runs, s.
pub(crate) const SECONDS: f64 = 20.0;

const WEIGHTS: [u64; 12] = [1, 10, 20, 50, 100, 100, 100, 100, 200, 300, 1_000, 10_000];

pub(crate) struct Group {
    pub(crate) path: String,
    /// Among those before it; `None` below the root.
    pub(crate) parent: Option<usize>,
    pub(crate) weight: u64,
}

pub(crate) struct Workload {
    /// `None` is the root.
    pub(crate) group: Option<usize>,
    pub(crate) threads: u64,
    pub(crate) weight: u64,
    /// Of work and of sleep in turn, us; `None` computes for ever.
    pub(crate) cycle: Option<(u64, u64)>,
    /// When it begins, ms.
    pub(crate) begin: u64,
}

pub(crate) struct Setup {
    pub(crate) cpus: u64,
    hz: u64,
    pub(crate) groups: Vec<Group>,
    pub(crate) workloads: Vec<Workload>,
}

fn one_of(random: &mut Random, values: &[u64]) -> u64 {
    values[random.below(values.len() as u64) as usize]
}

/// True `percent` of the times.
fn happens(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

/// Ten to a power between `from` and `to` hundredths.
fn power(random: &mut Random, from: i64, to: i64) -> f64 {
    let hundredths = from + random.below((to - from).unsigned_abs()) as i64;
    10_f64.powf(hundredths as f64 / 100.0)
}

impl Setup {
    pub(crate) fn draw(seed: u64, index: u64) -> Setup {
        let random = &mut Random::new(seed, index);
        let cpus = one_of(random, &[2, 2, 3, 4, 4, 6, 8]);
        let hz = one_of(random, &[100, 250, 250, 1_000]);
        let mut groups: Vec<Group> = Vec::new();
        for number in 0..=random.below(4) {
            let nests = !groups.is_empty() && happens(random, 30);
            let parent = nests.then(|| random.below(groups.len() as u64) as usize);
            let path = match parent {
                Some(parent) => format!("{}/g{number}", groups[parent].path),
                None => format!("g{number}"),
            };
            let weight = one_of(random, &WEIGHTS);
            groups.push(Group {
                path,
                parent,
                weight,
            });
        }
        let mut workloads = Vec::new();
        let homes = (0..groups.len()).map(Some).chain([None]);
        for group in homes {
            if group.is_none() && happens(random, 40) {
                continue;
            }
            for _ in 0..=random.below(3) {
                workloads.push(Workload::draw(random, group));
            }
        }
        Setup {
            cpus,
            hz,
            groups,
            workloads,
        }
    }

    /// As a scenario file.
    pub(crate) fn scenario(&self) -> String {
        let mut text = format!(
            "name = \"a random set-up\"\nduration = \"{SECONDS}s\"\n[machine]\nshape = \"{}\"\nhz = {}\n",
            self.cpus, self.hz
        );
        for group in &self.groups {
            let (path, weight) = (&group.path, group.weight);
            let _ = writeln!(text, "[[group]]\npath = \"{path}\"\nweight = {weight}");
        }
        for (number, workload) in self.workloads.iter().enumerate() {
            let _ = writeln!(text, "[[workload]]\nname = \"w{number}\"");
            if let Some(group) = workload.group {
                let _ = writeln!(text, "group = \"{}\"", self.groups[group].path);
            }
            let _ = match workload.cycle {
                None => writeln!(text, "kind = \"spin\""),
                Some((work, think)) => writeln!(
                    text,
                    "kind = \"closed-loop\"\nwork = \"{work}us\"\nthink = \"{think}us\""
                ),
            };
            let (threads, weight, begin) = (workload.threads, workload.weight, workload.begin);
            let _ = writeln!(
                text,
                "threads = {threads}\nweight = {weight}\nbegin = \"{begin}ms\""
            );
        }
        text + "[[variant]]\nname = \"ours\"\n[[variant]]\nname = \"6.18\"\nset = { \"scheduler.kernel\" = \"6.18\" }\n"
    }
}

impl Workload {
    fn draw(random: &mut Random, group: Option<usize>) -> Workload {
        let threads = 1 + random.below(4);
        let cycle = happens(random, 50).then(|| {
            let work = power(random, 150, 400) as u64;
            let think = (work as f64 * power(random, -130, 100)) as u64;
            (work, think.max(1))
        });
        let is_odd = group.is_none() && happens(random, 30);
        let weight = match is_odd {
            true => one_of(random, &[5, 50, 200, 1_000]),
            false => 100,
        };
        let begin = match happens(random, 10) {
            true => one_of(random, &[500, 2_000]),
            false => 0,
        };
        Workload {
            group,
            threads,
            weight,
            cycle,
            begin,
        }
    }
}
