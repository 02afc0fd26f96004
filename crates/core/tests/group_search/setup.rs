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

/// Weight of a task beside groups.
const TASK_WEIGHT: u32 = 100;

/// Tasks of weight 100 directly in a group at the top, beside its leaves, or in the root, beside the groups at the top.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Which group at the top; the root if none.
    pub top: Option<usize>,
    pub tasks: usize,
    pub work: Work,
}

/// A machine and what is on it.
#[derive(Clone, Debug)]
pub struct Setup {
    pub cpus: u32,
    /// Weights of the groups at the top, with what is in them.
    pub tops: Vec<(u32, Vec<Leaf>)>,
    pub beside: Vec<Beside>,
}

impl Setup {
    /// The same with spinners that yield after at most `chunk` ns.
    pub fn with_polls_of(&self, chunk: u64) -> Setup {
        let mut setup = self.clone();
        let leaves = setup.tops.iter_mut().flat_map(|(_, leaves)| leaves);
        let works = leaves.map(|leaf| &mut leaf.work);
        for work in works.chain(setup.beside.iter_mut().map(|row| &mut row.work)) {
            if let Work::Hog { chunk: each } = work {
                *each = chunk.min(*each);
            }
        }
        setup
    }

    /// The same with tasks beside the leaves of a group at the top, or beside the groups there.
    pub fn with(mut self, top: Option<usize>, tasks: usize, work: Work) -> Setup {
        self.beside.push(Beside { top, tasks, work });
        self
    }

    /// One that was found.
    pub fn of(cpus: u32, tops: &[Top]) -> Setup {
        let mut setup = Setup {
            cpus,
            tops: Vec::new(),
            beside: Vec::new(),
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

fn draw_work(random: &mut Random) -> Work {
    let run = random.of(&[50, 200, 600, 2_000]) * 1_000;
    let sleep = random.of(&[100, 500, 1_500, 5_000]) * 1_000;
    let chunk = random.of(&[50_000, 250_000, MILLI]);
    match random.below(2) {
        0 => Work::Hog { chunk },
        _ => Work::Periodic { run, sleep },
    }
}

/// Groups on two levels, with tasks in the lower ones only.
pub fn draw(random: &mut Random) -> Setup {
    let cpus = random.of(&[1, 2, 3, 4, 8]);
    let weights = [50, 100, 100, 200, 700, 2_000];
    let mut tops = Vec::new();
    for top in 0..1 + random.below(3) {
        let mut leaves = Vec::new();
        for leaf in 0..1 + random.below(3) {
            let work = draw_work(random);
            leaves.push(Leaf {
                name: format!("{top}/{leaf}"),
                weight: random.of(&weights),
                tasks: 1 + random.below(2 * u64::from(cpus)) as usize,
                work,
            });
        }
        tops.push((random.of(&weights), leaves));
    }
    Setup {
        cpus,
        tops,
        beside: Vec::new(),
    }
}

/// The same with tasks beside the leaves, beside the groups at the top, or both.
pub fn draw_beside(random: &mut Random) -> Setup {
    let mut setup = draw(random);
    for _ in 0..1 + random.below(2) {
        let place = random.below(1 + setup.tops.len() as u64) as usize;
        let tasks = 1 + random.below(2 * u64::from(setup.cpus)) as usize;
        let work = draw_work(random);
        setup = setup.with(place.checked_sub(1), tasks, work);
    }
    setup
}

/// CPUs that a task wants on average.
fn wanted(work: Work) -> f64 {
    match work {
        Work::Periodic { run, sleep } => run as f64 / (run + sleep) as f64,
        _ => 1.0,
    }
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

/// What each leaf gets, and then each row of tasks beside them, in CPUs, where leaves want so much together, and so many of the
/// tasks of a row so much each.
pub fn divide(setup: &Setup, leaves: &[f64], beside: &[(usize, f64)]) -> Vec<f64> {
    let cpus = f64::from(setup.cpus);
    // Who competes in the root (none) or in a group at the top, and which row it is for.
    let tasks = |top: Option<usize>| {
        let rows = setup.beside.iter().zip(beside).enumerate();
        let here = rows.filter(move |(_, (row, _))| row.top == top);
        here.flat_map(|(number, (_, &(count, each)))| {
            (0..count).map(move |_| (leaves.len() + number, (TASK_WEIGHT, each)))
        })
    };
    let mut first = 0;
    let mut inside = Vec::new();
    for (top, (_, members)) in setup.tops.iter().enumerate() {
        let rows = members.iter().zip(&leaves[first..]).enumerate();
        let rows = rows.map(|(n, (leaf, &wants))| (first + n, (leaf.weight, wants.min(cpus))));
        inside.push(rows.chain(tasks(Some(top))).collect::<Vec<_>>());
        first += members.len();
    }
    let tops = setup.tops.iter().zip(&inside);
    let tops = tops.map(|((weight, _), members)| {
        let sum: f64 = members.iter().map(|(_, (_, wants))| wants).sum();
        (usize::MAX, (*weight, sum.min(cpus)))
    });
    let root: Vec<_> = tops.chain(tasks(None)).collect();
    let mut got = vec![0.0; leaves.len() + beside.len()];
    let wants = |rows: &[(usize, (u32, f64))]| rows.iter().map(|row| row.1).collect::<Vec<_>>();
    let parts = fill(cpus, &wants(&root));
    for ((row, _), part) in root.iter().zip(&parts).skip(setup.tops.len()) {
        got[*row] += part;
    }
    for (members, part) in inside.iter().zip(parts) {
        for ((row, _), part) in members.iter().zip(fill(part, &wants(members))) {
            got[*row] += part;
        }
    }
    got
}

/// The max-min share of each leaf and of each row of tasks beside them, in CPUs, with what sleepers want on average.
fn shares(setup: &Setup) -> Vec<f64> {
    let leaves = setup.tops.iter().flat_map(|(_, leaves)| leaves);
    let leaves: Vec<f64> = leaves
        .map(|leaf| wanted(leaf.work) * leaf.tasks as f64)
        .collect();
    let beside = setup.beside.iter();
    let beside: Vec<_> = beside.map(|row| (row.tasks, wanted(row.work))).collect();
    divide(setup, &leaves, &beside)
}

/// A machine that runs a set-up, from when the start is over.
pub struct Trial<'a> {
    setup: &'a Setup,
    /// The tasks of each row beside groups.
    beside: Vec<std::ops::Range<usize>>,
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
        let mut beside = Vec::new();
        for row in &setup.beside {
            let group = row.top.map(|top| machine.tree.find(&format!("{top}")));
            let group = group.map_or_else(|| machine.tree.root(), |group| group.unwrap());
            let first = machine.tasks.len();
            for number in 0..row.tasks {
                machine.spawn(number % all, &group, row.work);
            }
            beside.push(first..machine.tasks.len());
        }
        machine.run_until(start);
        let mut trial = Trial {
            setup,
            beside,
            machine,
            begin: start,
            before: Vec::new(),
        };
        trial.before = trial.used();
        trial
    }

    fn used(&self) -> Vec<u64> {
        let leaves = self.setup.tops.iter().flat_map(|(_, leaves)| leaves);
        let groups = leaves.map(|leaf| self.machine.tree.find(&leaf.name));
        let groups = groups.map(|group| usage(&group.unwrap()));
        let rows = self.beside.iter();
        let rows = rows.map(|row| {
            self.machine.tasks[row.clone()]
                .iter()
                .map(|task| task.ran)
                .sum()
        });
        groups.chain(rows).collect()
    }

    /// Name and work of what `used` lists.
    fn rows(&self) -> Vec<(String, Work)> {
        let leaves = self.setup.tops.iter().flat_map(|(_, leaves)| leaves);
        let leaves = leaves.map(|leaf| (leaf.name.clone(), leaf.work));
        let beside = self.setup.beside.iter();
        let beside = beside.map(|row| match row.top {
            Some(top) => (format!("tasks in {top}"), row.work),
            None => ("tasks in the root".to_owned(), row.work),
        });
        leaves.chain(beside).collect()
    }

    /// Goes on until `millis` ms after the start, and says what part of its share a group of steady tasks had since then at
    /// least, and which.
    pub fn worst(&mut self, millis: u64, shares: &[f64]) -> (f64, String) {
        self.machine.run_until(self.begin + millis * MILLI);
        let mut worst = (f64::INFINITY, String::new());
        let used = self.used().into_iter().zip(self.rows());
        for (number, (&share, (used, (name, work)))) in shares.iter().zip(used).enumerate() {
            let got = (used - self.before[number]) as f64 / (millis * MILLI) as f64;
            if matches!(work, Work::Hog { .. }) && got / share < worst.0 {
                let what = format!("{name} got {got:.4} of {share:.4}");
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
