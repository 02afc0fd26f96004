//! A preempting scheduler for tests whose polls do not return. On real threads: what is asserted of time is generous, since the machine
//! is shared.
#![allow(dead_code)] // each test file uses its part

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use quotient::{Group, Preempt, Scheduler};

use crate::common::{burn, time_here};

/// Longer than anything in these tests takes, on a busy machine too: a hang, not a measurement.
pub const HANG: Duration = Duration::from_secs(120);

/// One test at a time: each keeps processors busy, and would be the others' noise.
pub fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Runs `body` on a tokio runtime of two workers with a preempting scheduler of `vcpus`; panics at a hang, at the end too. The runtime's
/// own end is waited for `end` long.
pub fn run<F>(vcpus: usize, end: Duration, body: impl FnOnce(Scheduler) -> F)
where
    F: Future<Output = ()>,
{
    run_with(Preempt::default(), vcpus, end, body);
}

/// [`run`] with few places for what does not return: `max_borne` of them, on two virtual CPUs.
pub fn run_with_places<F>(max_borne: usize, body: impl FnOnce(Scheduler) -> F)
where
    F: Future<Output = ()>,
{
    let preempt = Preempt::default().max_borne(max_borne);
    run_with(preempt, 2, Duration::from_secs(10), body);
}

fn run_with<F>(preempt: Preempt, vcpus: usize, end: Duration, body: impl FnOnce(Scheduler) -> F)
where
    F: Future<Output = ()>,
{
    let _alone = alone();
    let runtime = EndsInTime(Some(crate::common::runtime(2)), end);
    runtime.0.as_ref().unwrap().block_on(async {
        let builder = Scheduler::builder().vcpus(vcpus);
        let scheduler = builder.preempt(preempt).build().unwrap();
        let ended = tokio::time::timeout(HANG, body(scheduler.clone())).await;
        assert!(ended.is_ok(), "hangs: {:?}", scheduler.preempt_stats());
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {:?}", scheduler.preempt_stats());
    });
}

/// A runtime that ends so when a test fails, too: one that is dropped waits for polls that do not return, and what has failed is never said.
struct EndsInTime(Option<tokio::runtime::Runtime>, Duration);

impl Drop for EndsInTime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(self.1);
        }
    }
}

/// A group with this limit.
pub fn limited(scheduler: &Scheduler, path: &str, max: &str) -> Group {
    scheduler.group(path).unwrap().max(max).create().unwrap()
}

/// Computes until `until`, in one poll.
pub fn compute(until: impl Fn() -> bool) -> u64 {
    let mut steps = 0_u64;
    while !until() {
        for _ in 0..1_000 {
            steps = std::hint::black_box(steps + 1);
        }
    }
    steps
}

/// Of the thread's processor time: how long the poll takes on a clock on the wall is for the rest of the machine to say.
pub fn compute_for(time: Duration) -> u64 {
    let end = time_here() + time;
    compute(|| time_here() >= end)
}

/// How often threads of the process have gone to sleep so far.
#[cfg(target_os = "linux")]
fn sleeps() -> u64 {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        // One that has ended meanwhile has no file.
        let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
        let status = status.unwrap_or_default();
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += count.map_or(0, |count| count.trim().parse::<u64>().unwrap());
    }
    sum
}

/// The same, in the quietest of three half seconds: what a machine does by the way is not asked for.
#[cfg(target_os = "linux")]
pub async fn sleeps_a_second() -> u64 {
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut least = u64::MAX;
    for _ in 0..3 {
        let before = sleeps();
        tokio::time::sleep(Duration::from_millis(500)).await;
        least = least.min(2 * (sleeps() - before));
    }
    least
}

/// The same beside so many polls of `group` that do not return, until then.
#[cfg(target_os = "linux")]
pub async fn sleeps_beside_long_polls(group: &Group, polls: usize) -> u64 {
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..polls {
        let stop = stop.clone();
        drop(group.spawn(async move {
            compute(|| stop.load(Ordering::Relaxed));
        }));
    }
    let sleeps = sleeps_a_second().await;
    stop.store(true, Ordering::Relaxed);
    sleeps
}

/// Waits for a window in which the group used about the 0.1 CPUs that it may. More than that in three windows is a fault: it is more than
/// the limit and the debt of a turn. Less may be the machine's doing: what a bearer of low priority had is seen in lumps on a machine that
/// is busy elsewhere, and it may get nothing at all for a while.
pub async fn keeps_to_a_tenth(scheduler: &Scheduler, group: &Group) {
    let (mut over, mut seen) = (0, Vec::new());
    loop {
        let before = (group.cpu_time(), Instant::now());
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        let passed = before.1.elapsed().as_secs_f64();
        let used = (group.cpu_time() - before.0).as_secs_f64() / passed;
        if (0.02..0.13).contains(&used) {
            return;
        }
        over += u32::from(used >= 0.13);
        seen.push(used);
        assert!(
            over < 3 && seen.len() < 40,
            "CPUs of 0.1 at most: {seen:?}, {:?}",
            scheduler.preempt_stats()
        );
    }
}

/// CPU time of those that compute. Unit: nanoseconds.
#[derive(Default)]
pub struct Used {
    time: AtomicU64,
    pub stop: AtomicBool,
}

impl Used {
    /// Computes for `most` of the thread's CPU time, counted in steps, or until `stop`.
    pub fn compute(&self, most: Duration) {
        let mut before = time_here();
        let end = before + most;
        while before < end && !self.stop.load(Ordering::Relaxed) {
            burn(Duration::from_micros(100));
            let now = time_here();
            let step = u64::try_from((now - before).as_nanos()).unwrap();
            self.time.fetch_add(step, Ordering::Relaxed);
            before = now;
        }
    }

    pub fn so_far(&self) -> Duration {
        Duration::from_nanos(self.time.load(Ordering::Relaxed))
    }
}
