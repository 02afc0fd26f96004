//! What a machine that can divide its processors at will gives each group of spinners, with limits that are refilled each period.

use crate::setup::Row;

/// CPU time of each group from `from` to `end`, ns, descendants included.
pub fn shares(rows: &[Row], cpus: u32, (from, end): (u64, u64)) -> Vec<f64> {
    let nanos = |micros: u64| micros as f64 * 1e3;
    let limits: Vec<Option<(f64, f64)>> = rows
        .iter()
        .map(|row| {
            row.limit
                .map(|(quota, period)| (nanos(quota), nanos(period)))
        })
        .collect();
    let of = |limit: &Option<(f64, f64)>| limit.unwrap_or((f64::INFINITY, f64::INFINITY));
    let mut left: Vec<f64> = limits.iter().map(|limit| of(limit).0).collect();
    let mut due: Vec<f64> = limits.iter().map(|limit| of(limit).1).collect();
    let (from, end) = (from as f64, end as f64);
    let (mut now, mut got) = (0.0_f64, vec![0.0; rows.len()]);
    while now < end {
        let dry: Vec<bool> = left.iter().map(|left| *left <= 0.0).collect();
        let rates = rates(rows, f64::from(cpus), &dry);
        let mut next = if now < from { from } else { end };
        for (index, rate) in rates.iter().enumerate() {
            next = next.min(due[index]);
            if *rate > 1e-12 {
                next = next.min(now + left[index] / rate);
            }
        }
        for (index, rate) in rates.iter().enumerate() {
            let used = rate * (next - now);
            if now >= from {
                got[index] += used;
            }
            left[index] -= used;
            // Less than a picosecond is rounding.
            if left[index] < 1e-3 {
                left[index] = 0.0;
            }
        }
        now = next;
        for (index, limit) in limits.iter().enumerate() {
            if let Some((quota, period)) = limit
                && due[index] <= now
            {
                due[index] += period;
                left[index] = *quota;
            }
        }
    }
    got
}

/// The CPUs that each group has while those that are dry wait for their refill.
fn rates(rows: &[Row], cpus: f64, dry: &[bool]) -> Vec<f64> {
    let children = |of: Option<usize>| {
        let all = rows.iter().enumerate();
        all.filter(move |(_, row)| row.parent == of)
            .map(|(index, _)| index)
            .collect::<Vec<usize>>()
    };
    // Parents come before their children.
    let mut wanted = vec![0.0; rows.len()];
    for index in (0..rows.len()).rev() {
        let below: f64 = children(Some(index))
            .iter()
            .map(|&child| wanted[child])
            .sum();
        if !dry[index] {
            wanted[index] = (rows[index].tasks as f64 + below).min(cpus);
        }
    }
    let mut got = vec![0.0; rows.len()];
    let divide_below = |of: Option<usize>, all: f64, got: &mut Vec<f64>| {
        let children = children(of);
        let wishes: Vec<(f64, f64)> = children
            .iter()
            .map(|&child| (f64::from(rows[child].weight), wanted[child]))
            .collect();
        for (child, part) in children.iter().zip(divide(all, &wishes)) {
            got[*child] = part;
        }
    };
    divide_below(None, cpus, &mut got);
    for index in 0..rows.len() {
        let all = got[index];
        divide_below(Some(index), all, &mut got);
    }
    got
}

/// Divides by weight; who wants less than its part leaves the rest to the others. Weights and what is wanted at most.
fn divide(all: f64, wishes: &[(f64, f64)]) -> Vec<f64> {
    let mut got = vec![0.0; wishes.len()];
    let mut open: Vec<usize> = (0..wishes.len())
        .filter(|&one| wishes[one].1 > 0.0)
        .collect();
    let mut left = all;
    while !open.is_empty() && left > 1e-12 {
        let weights: f64 = open.iter().map(|&one| wishes[one].0).sum();
        let part = |one: usize| left * wishes[one].0 / weights;
        let full: Vec<usize> = open
            .iter()
            .copied()
            .filter(|&one| wishes[one].1 <= part(one) + 1e-12)
            .collect();
        if full.is_empty() {
            for &one in &open {
                got[one] = part(one);
            }
            break;
        }
        for &one in &full {
            got[one] = wishes[one].1;
        }
        left -= full.iter().map(|&one| wishes[one].1).sum::<f64>();
        open.retain(|one| !full.contains(one));
    }
    got
}
