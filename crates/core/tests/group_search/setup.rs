//! What is searched: groups on two levels, tasks that spin or sleep, and what each group is entitled to.

use crate::common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::Config;

/// What a search lets pass before it judges, ns.
const START: u64 = SECOND / 5;

/// When a search looks, ms after the start, and from what part of the share on it has seen enough. Who has a hundredth of a CPU
/// gets three polls of a millisecond in the first, and may well be one behind.
const LOOKS: [(u64, f64); 4] = [
    (300, 0.97),
    (1_000, 0.95),
    (3_000, 0.92),
    (10_000, f64::INFINITY),
];

/// xorshift64*: enough to draw set-ups, the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, index: u64) -> Random {
        Random((seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A leaf group: so many tasks, which all do the same.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub name: String,
    pub weight: u32,
    pub tasks: usize,
    pub work: Work,
}

/// A group at the top as a row of `finds`: its weight, and of each leaf the weight, the number of tasks and their work.
pub type Top<'a> = (u32, &'a [(u32, usize, Work)]);

/// A machine and what is on it.
#[derive(Clone, Debug)]
pub struct Setup {
    pub cpus: u32,
    /// Weights of the groups at the top, with what is in them.
    pub tops: Vec<(u32, Vec<Leaf>)>,
}

impl Setup {
    /// The same with spinners that yield after at most `chunk` ns.
    pub fn with_polls_of(&self, chunk: u64) -> Setup {
        let mut setup = self.clone();
        for leaf in setup.tops.iter_mut().flat_map(|(_, leaves)| leaves) {
            if let Work::Hog { chunk: each } = &mut leaf.work {
                *each = chunk.min(*each);
            }
        }
        setup
    }

    /// One that was found.
    pub fn of(cpus: u32, tops: &[Top]) -> Setup {
        let mut setup = Setup {
            cpus,
            tops: Vec::new(),
        };
        for (top, (weight, leaves)) in tops.iter().enumerate() {
            let leaves = leaves.iter().enumerate();
            let leaves = leaves.map(|(number, &(weight, tasks, work))| Leaf {
                name: format!("{top}/{number}"),
                weight,
                tasks,
                work,
            });
            setup.tops.push((*weight, leaves.collect()));
        }
        setup
    }
}

pub fn draw(random: &mut Random) -> Setup {
    let cpus = random.of(&[1, 2, 3, 4, 8]);
    let weights = [50, 100, 100, 200, 700, 2_000];
    let mut tops = Vec::new();
    for top in 0..1 + random.below(3) {
        let mut leaves = Vec::new();
        for leaf in 0..1 + random.below(3) {
            let run = random.of(&[50, 200, 600, 2_000]) * 1_000;
            let sleep = random.of(&[100, 500, 1_500, 5_000]) * 1_000;
            let chunk = random.of(&[50_000, 250_000, MILLI]);
            let work = if random.below(2) == 0 {
                Work::Hog { chunk }
            } else {
                Work::Periodic { run, sleep }
            };
            leaves.push(Leaf {
                name: format!("{top}/{leaf}"),
                weight: random.of(&weights),
                tasks: 1 + random.below(2 * u64::from(cpus)) as usize,
                work,
            });
        }
        tops.push((random.of(&weights), leaves));
    }
    Setup { cpus, tops }
}

/// CPUs that a leaf can use at most.
fn demand(leaf: &Leaf, cpus: u32) -> f64 {
    let each = match leaf.work {
        Work::Periodic { run, sleep } => run as f64 / (run + sleep) as f64,
        _ => 1.0,
    };
    (each * leaf.tasks as f64).min(f64::from(cpus))
}

/// Divides `capacity` by weight; who wants less leaves the rest to the others.
pub fn fill(capacity: f64, wants: &[(u32, f64)]) -> Vec<f64> {
    let mut parts = vec![None; wants.len()];
    loop {
        let open = || (0..wants.len()).filter(|&n| parts[n].is_none());
        let left = capacity - parts.iter().flatten().sum::<f64>();
        let weight: f64 = open().map(|n| f64::from(wants[n].0)).sum();
        let part = |n: usize| left * f64::from(wants[n].0) / weight;
        let satisfied: Vec<usize> = open().filter(|&n| wants[n].1 <= part(n)).collect();
        if satisfied.is_empty() {
            return (0..wants.len())
                .map(|n| parts[n].unwrap_or_else(|| part(n)))
                .collect();
        }
        for n in satisfied {
            parts[n] = Some(wants[n].1);
        }
    }
}

/// The max-min share of each leaf, in CPUs, with what sleepers want on average.
fn shares(setup: &Setup) -> Vec<f64> {
    let wants = |leaves: &[Leaf]| -> Vec<(u32, f64)> {
        let each = leaves.iter();
        each.map(|leaf| (leaf.weight, demand(leaf, setup.cpus)))
            .collect()
    };
    let tops: Vec<(u32, f64)> = setup
        .tops
        .iter()
        .map(|(weight, leaves)| {
            let sum: f64 = wants(leaves).iter().map(|(_, wants)| wants).sum();
            (*weight, sum.min(f64::from(setup.cpus)))
        })
        .collect();
    let parts = fill(f64::from(setup.cpus), &tops);
    let leaves = setup.tops.iter().zip(parts);
    leaves
        .flat_map(|((_, leaves), part)| fill(part, &wants(leaves)))
        .collect()
}

/// A machine that runs a set-up, from when the start is over.
pub struct Trial<'a> {
    leaves: Vec<&'a Leaf>,
    machine: Machine,
    begin: u64,
    before: Vec<u64>,
}

impl Trial<'_> {
    /// Runs the set-up for `start` ns that are not judged: from wherever tasks happened to be put.
    pub fn begin(setup: &Setup, start: u64) -> Trial<'_> {
        let mut machine = Machine::new(Config::new(setup.cpus));
        machine.check_every = 10_007;
        let all = setup.cpus as usize;
        for (top, (weight, leaves)) in setup.tops.iter().enumerate() {
            machine.group(&format!("{top}"), *weight);
            for leaf in leaves {
                let parent = leaf.name.split('/').next();
                assert_eq!(parent, Some(&*format!("{top}")), "a leaf elsewhere");
                let group = machine.group(&leaf.name, leaf.weight);
                for number in 0..leaf.tasks {
                    machine.spawn(number % all, &group, leaf.work);
                }
            }
        }
        machine.run_until(start);
        let mut trial = Trial {
            leaves: setup.tops.iter().flat_map(|(_, leaves)| leaves).collect(),
            machine,
            begin: start,
            before: Vec::new(),
        };
        trial.before = trial.used();
        trial
    }

    fn used(&self) -> Vec<u64> {
        let groups = self.leaves.iter();
        let groups = groups.map(|leaf| self.machine.tree.find(&leaf.name));
        groups.map(|group| usage(&group.unwrap())).collect()
    }

    /// Goes on until `millis` ms after the start, and says what part of its share a group of steady tasks had since then at
    /// least, and which.
    pub fn worst(&mut self, millis: u64, shares: &[f64]) -> (f64, String) {
        self.machine.run_until(self.begin + millis * MILLI);
        let mut worst = (f64::INFINITY, String::new());
        for (number, (&share, used)) in shares.iter().zip(self.used()).enumerate() {
            let leaf = self.leaves[number];
            let got = (used - self.before[number]) as f64 / (millis * MILLI) as f64;
            if matches!(leaf.work, Work::Hog { .. }) && got / share < worst.0 {
                let what = format!("{} got {got:.4} of {share:.4}", leaf.name);
                worst = (got / share, what);
            }
        }
        worst
    }
}

/// The least part of its max-min share that a group of steady tasks got over `seconds`, and which group that was.
pub fn worst(setup: &Setup, seconds: u64) -> (f64, String) {
    Trial::begin(setup, SECOND / 2).worst(seconds * 1_000, &shares(setup))
}

/// The least part of what a machine of fluid would give a group of steady tasks, over `seconds`.
pub fn worst_of_fluid(setup: &Setup, seconds: u64) -> (f64, String) {
    let shares = crate::fluid::shares(setup, seconds);
    Trial::begin(setup, SECOND / 2).worst(seconds * 1_000, &shares)
}

/// The least part of its max-min share that a group of steady tasks got, over as long as it takes: who is clear of the bar
/// early is not looked at for longer, and nobody is found before ten seconds.
pub fn worst_at_last(setup: &Setup) -> (f64, String) {
    let shares = shares(setup);
    let mut trial = Trial::begin(setup, START);
    let mut found = (f64::INFINITY, String::new());
    for (millis, clear) in LOOKS {
        found = trial.worst(millis, &shares);
        if found.0 >= clear {
            break;
        }
    }
    found
}
