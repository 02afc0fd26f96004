//! Random machines of spinners in groups of one or two levels, of which half have limits, most near what they would have without.

/// A group.
#[derive(Clone, Debug)]
pub struct Row {
    pub path: String,
    /// The place of its parent, before its own; `None`: at the root.
    pub parent: Option<usize>,
    pub weight: u32,
    /// Tasks of its own; none where it has children.
    pub tasks: usize,
    /// Length of their polls, ns.
    pub poll: u64,
    /// Quota and period, us.
    pub limit: Option<(u64, u64)>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A limit of some part of these CPUs, or none.
    fn limit(&mut self, cpus: f64) -> Option<(u64, u64)> {
        if self.below(10) < 5 {
            return None;
        }
        let period = self.one_of(&[10_000_u64, 20_000, 100_000, 100_000]);
        let part = self.one_of(&[0.1, 0.3, 0.6, 0.9, 0.97, 1.03, 1.1, 1.5]) * cpus;
        Some((((period as f64 * part) as u64).max(1_000), period))
    }
}

/// The set-up of that number: CPUs and groups.
pub fn draw(number: u64) -> (u32, Vec<Row>) {
    let mut random = Random(number.wrapping_mul(7_919));
    let cpus = random.one_of(&[1_u32, 2, 2, 4, 4, 8]);
    let tops = 2 + random.below(3) as usize;
    let weights: Vec<u32> = (0..tops)
        .map(|_| random.one_of(&[100, 100, 100, 300, 700, 1_000, 10]))
        .collect();
    let sum: u32 = weights.iter().sum();
    let mut rows = Vec::new();
    for (top, &weight) in weights.iter().enumerate() {
        let part = f64::from(cpus) * f64::from(weight) / f64::from(sum);
        let children = if random.below(3) == 0 { 2 } else { 0 };
        let parent = rows.len();
        let limit = random.limit(part);
        let tasks = match children {
            0 => 1 + random.below(2 * u64::from(cpus)) as usize,
            _ => 0,
        };
        let poll = random.one_of(&[50_000, 50_000, 250_000, 1_000_000]);
        rows.push(Row {
            path: format!("g{top}"),
            parent: None,
            weight,
            tasks,
            poll,
            limit,
        });
        for child in 0..children {
            let limit = random.limit(part / 2.0);
            rows.push(Row {
                path: format!("g{top}/k{child}"),
                parent: Some(parent),
                weight: random.one_of(&[100, 100, 300]),
                tasks: 1 + random.below(u64::from(cpus) + 1) as usize,
                poll: random.one_of(&[50_000, 50_000, 250_000]),
                limit,
            });
        }
    }
    (cpus, rows)
}
