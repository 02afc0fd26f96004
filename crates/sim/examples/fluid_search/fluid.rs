//! A machine of fluid: whoever is awake has its part at every instant, max-min fair by weight at each level of the tree, no task more than one CPU, and nobody
//! is owed anything for sleep.

use crate::setup::{SECONDS, Setup, Workload};

/// Most instants at which somebody wakes or falls asleep: a few seconds of the quickest. Shares are those until then.
const INSTANTS_MAX: u32 = 1_000_000;

/// What a group or task competes with, among its siblings.
struct Node {
    parent: usize,
    weight: f64,
    /// What it can use, CPUs, and what it gets.
    can: f64,
    rate: f64,
    task: Option<Task>,
}

struct Task {
    workload: usize,
    /// s; what is left of its work, and when it wakes.
    left: f64,
    wakes: f64,
    is_awake: bool,
    had: f64,
}

/// What the least task of each workload gets, in CPUs.
pub(crate) fn shares(setup: &Setup) -> Vec<f64> {
    let mut nodes = nodes(setup);
    let (mut now, mut instants) = (0.0, 0);
    while now < SECONDS && instants < INSTANTS_MAX {
        instants += 1;
        now += step(setup, &mut nodes, now);
    }
    least(setup, &nodes, |_, task| task.had / now)
}

/// What a task of each workload is due in the long run, in CPUs: max-min fair by weight at each level among what everybody would use if alone. Who sleeps may
/// have later what it did not use.
pub(crate) fn long_run(setup: &Setup) -> Vec<f64> {
    let mut nodes = nodes(setup);
    for node in &mut nodes {
        let workload = node
            .task
            .as_ref()
            .map(|task| &setup.workloads[task.workload]);
        node.can = workload.map_or(0.0, |workload| {
            let (work, think) = workload.cycle.unwrap_or((1, 0));
            work as f64 / (work + think) as f64
        });
    }
    divide_all(setup, &mut nodes);
    least(setup, &nodes, |node, _| node.rate)
}

/// The least of the tasks of each workload.
fn least(setup: &Setup, nodes: &[Node], part: impl Fn(&Node, &Task) -> f64) -> Vec<f64> {
    let mut least = vec![f64::INFINITY; setup.workloads.len()];
    for node in nodes {
        if let Some(task) = &node.task {
            least[task.workload] = least[task.workload].min(part(node, task));
        }
    }
    least
}

fn nodes(setup: &Setup) -> Vec<Node> {
    let node = |parent, weight: u64, task| Node {
        parent,
        weight: weight as f64,
        can: 0.0,
        rate: 0.0,
        task,
    };
    let place = |group: Option<usize>| group.map_or(0, |group| group + 1);
    let mut nodes = vec![node(0, 1, None)];
    for group in &setup.groups {
        nodes.push(node(place(group.parent), group.weight, None));
    }
    for (number, workload) in setup.workloads.iter().enumerate() {
        for _ in 0..workload.threads {
            let task = Task {
                workload: number,
                left: work(workload),
                wakes: workload.begin as f64 / 1e3,
                is_awake: false,
                had: 0.0,
            };
            nodes.push(node(place(workload.group), workload.weight, Some(task)));
        }
    }
    nodes
}

fn work(workload: &Workload) -> f64 {
    workload
        .cycle
        .map_or(f64::INFINITY, |(work, _)| work as f64 / 1e6)
}

/// Goes on to the next instant at which somebody wakes or falls asleep. Returns how long that took, s.
fn step(setup: &Setup, nodes: &mut [Node], now: f64) -> f64 {
    for node in nodes.iter_mut() {
        node.can = match &mut node.task {
            None => 0.0,
            Some(task) => {
                task.is_awake |= task.wakes <= now + 1e-12;
                f64::from(u8::from(task.is_awake))
            }
        };
        node.rate = 0.0;
    }
    divide_all(setup, nodes);
    let mut length = SECONDS - now;
    for (task, rate) in nodes
        .iter()
        .filter_map(|node| Some((node.task.as_ref()?, node.rate)))
    {
        let until = match task.is_awake {
            true if rate > 0.0 => task.left / rate,
            true => f64::INFINITY,
            false => task.wakes - now,
        };
        length = length.min(until);
    }
    for node in nodes.iter_mut() {
        let rate = node.rate;
        let Some(task) = node.task.as_mut().filter(|task| task.is_awake) else {
            continue;
        };
        task.had += rate * length;
        task.left -= rate * length;
        if task.left <= 1e-12 {
            let workload = &setup.workloads[task.workload];
            let sleep = workload.cycle.map_or(0.0, |(_, think)| think as f64 / 1e6);
            (task.left, task.is_awake) = (work(workload), false);
            task.wakes = now + length + sleep;
        }
    }
    length
}

/// Divides the machine, by what each task can use.
fn divide_all(setup: &Setup, nodes: &mut [Node]) {
    // Parents come first.
    let cpus = setup.cpus as f64;
    for index in (1..nodes.len()).rev() {
        let can = nodes[index].can.min(cpus);
        nodes[index].can = can;
        let parent = nodes[index].parent;
        nodes[parent].can += can;
    }
    nodes[0].rate = nodes[0].can.min(cpus);
    for parent in 0..=setup.groups.len() {
        divide(nodes, parent);
    }
}

/// Divides what a group gets among what competes in it: who can use less than its part leaves the rest to the others.
fn divide(nodes: &mut [Node], parent: usize) {
    let mut left = nodes[parent].rate;
    let competes = |index: &usize| nodes[*index].parent == parent && nodes[*index].can > 0.0;
    let mut waiting: Vec<usize> = (1..nodes.len()).filter(competes).collect();
    while !waiting.is_empty() {
        let weight: f64 = waiting.iter().map(|&index| nodes[index].weight).sum();
        let part = left / weight;
        let is_met = |node: &Node| node.can <= part * node.weight + 1e-12;
        let (met, others): (Vec<usize>, Vec<usize>) =
            waiting.iter().partition(|&&index| is_met(&nodes[index]));
        for &index in &met {
            nodes[index].rate = nodes[index].can;
            left -= nodes[index].can;
        }
        if met.is_empty() {
            for &index in &others {
                nodes[index].rate = part * nodes[index].weight;
            }
            return;
        }
        waiting = others;
    }
}
