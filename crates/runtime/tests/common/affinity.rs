//! Which processors threads may use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The calling thread's.
pub fn allowed() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("own affinity");
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}

/// From here on the calling thread, and those that it starts, use this one.
pub fn stay_on(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).expect("a part of what is allowed");
}
