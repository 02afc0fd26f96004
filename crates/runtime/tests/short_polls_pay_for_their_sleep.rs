//! Short polls were billed by the clock on the wall, in which they may sleep or wait for a processor: all groups together had up to 1.6 times what
//! the process used. What groups are billed is compared with the process's CPU clock, and with what the polls found on their threads' clocks.

#![cfg(target_os = "linux")]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{burn, time_here};
use quotient::{Group, InGroupExt as _, Preempt, Scheduler};

const SCENE: Duration = Duration::from_secs(2);
/// What a poll computes, and how long it sleeps.
const COMPUTES: Duration = Duration::from_micros(50);
const SLEEPS: Duration = Duration::from_micros(300);

/// What of a poll's sleep may be billed at most: the runtime's steps around a poll are billed, too, and take some 15 us after a sleep in a debug
/// build, 30 on a slow machine. Who is billed by the wall pays the whole sleep.
const STEPS: Duration = Duration::from_micros(75);

/// What tasks have used, by their threads' clocks.
#[derive(Clone, Default)]
struct Books {
    used: Arc<AtomicU64>,
    slept: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Books {
    fn poll(&self, computes: Duration, sleeps: Duration) {
        let before = time_here();
        burn(computes);
        if !sleeps.is_zero() {
            std::thread::sleep(sleeps);
            self.slept.fetch_add(1, Ordering::Relaxed);
        }
        let used = (time_here() - before).as_nanos();
        self.used
            .fetch_add(u64::try_from(used).unwrap(), Ordering::Relaxed);
    }

    fn used(&self) -> f64 {
        self.used.load(Ordering::Relaxed) as f64 * 1e-9
    }

    /// What the steps of the runtime around the polls that slept may have taken.
    fn steps(&self) -> f64 {
        self.slept.load(Ordering::Relaxed) as f64 * STEPS.as_secs_f64()
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// How tasks compute for their group.
#[derive(Clone, Copy, Debug)]
enum Way {
    Tasks,
    InGroup,
}

fn spawn(way: Way, from: &Group, group: &Group, books: &Books, sleeps: Duration) {
    let (books, group) = (books.clone(), group.clone());
    let body = async move {
        while books.goes_on() {
            let poll = async { books.poll(COMPUTES, sleeps) };
            match way {
                Way::Tasks => poll.await,
                Way::InGroup => poll.in_group(&group).await,
            }
            tokio::task::yield_now().await;
        }
    };
    drop(from.spawn(body));
}

/// Tasks that sleep in short polls beside some that compute; `waiting` threads of the process want processors, too.
fn scene(way: Way, preempt: bool, waiting: usize) {
    let _alone = preempted::alone();
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let mut builder = Scheduler::builder().vcpus(2);
        if preempt {
            builder = builder.preempt(Preempt::default());
        }
        let scheduler = builder.build().unwrap();
        let group = |path: &str| scheduler.group(path).unwrap().create().unwrap();
        let groups = [group("sleepers"), group("computing")];
        let from = match way {
            Way::Tasks => None,
            Way::InGroup => Some(group("from")),
        };
        let books = [Books::default(), Books::default()];
        for _ in 0..8 {
            let from = from.as_ref();
            spawn(way, from.unwrap_or(&groups[0]), &groups[0], &books[0], SLEEPS);
        }
        for _ in 0..2 {
            let from = from.as_ref();
            let none = Duration::ZERO;
            spawn(way, from.unwrap_or(&groups[1]), &groups[1], &books[1], none);
        }
        let others = Books::default();
        let threads: Vec<_> = (0..waiting)
            .map(|_| {
                let others = others.clone();
                std::thread::spawn(move || {
                    while others.goes_on() {
                        others.poll(Duration::from_micros(200), Duration::from_micros(60));
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let read = || {
            let clocks = groups.each_ref().map(|group| group.cpu_time().as_secs_f64());
            let used = books.each_ref().map(Books::used);
            let steps = books.each_ref().map(Books::steps);
            (clocks, used, others.used(), common::process_time().as_secs_f64(), steps)
        };
        let (before, began) = (read(), Instant::now());
        tokio::time::sleep(SCENE).await;
        let after = read();
        let passed = began.elapsed().as_secs_f64();
        let billed = [0, 1].map(|index| after.0[index] - before.0[index]);
        let used = [0, 1].map(|index| after.1[index] - before.1[index]);
        let steps = [0, 1].map(|index| after.4[index] - before.4[index]);
        let process = after.3 - before.3 - (after.2 - before.2);
        println!(
            "{way:?}, preempting {preempt}, {waiting} threads: billed {billed:.3?}, used {used:.3?}, process {process:.3} in {passed:.3} s"
        );
        for books in books.iter().chain([&others]) {
            books.stop.store(true, Ordering::Relaxed);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let sum = billed[0] + billed[1];
        assert!(sum < 1.1 * process, "all: {sum:.3} of {process:.3}");
        for ((billed, used), steps) in billed.into_iter().zip(used).zip(steps) {
            let fair = billed > 0.7 * used && billed < (1.5 * used).max(used + steps);
            assert!(fair, "billed {billed:.3}, used {used:.3}, steps {steps:.3}");
        }
        scheduler.shutdown().await;
    });
}

/// What was shown on a clock is never taken back.
#[test]
fn a_poll_that_looks_at_its_clock_is_billed_for_its_sleep() {
    common::runtime(2).block_on(async {
        let scheduler = Scheduler::builder().vcpus(2).build().unwrap();
        let group = scheduler.group("group").unwrap().create().unwrap();
        let (own, books) = (group.clone(), Books::default());
        let entries = books.clone();
        let task = group.spawn(async move {
            for _ in 0..2_000 {
                entries.poll(COMPUTES, SLEEPS / 3);
                std::hint::black_box(own.cpu_time());
            }
        });
        task.await.unwrap();
        let (billed, used) = (group.cpu_time().as_secs_f64(), books.used());
        println!("billed {billed:.3}, used {used:.3}");
        assert!(
            billed > 0.7 * used && billed < 1.5 * used,
            "{billed:.3} of {used:.3}"
        );
        scheduler.shutdown().await;
    });
}

#[test]
fn short_polls_that_sleep_are_billed_for_it() {
    for preempt in [false, true] {
        scene(Way::Tasks, preempt, 0);
    }
}

#[test]
fn short_polls_that_wait_for_a_processor_are_billed_for_it() {
    for preempt in [false, true] {
        scene(Way::Tasks, preempt, 3);
    }
}

#[test]
fn short_polls_in_a_group_that_sleep_are_billed_for_it() {
    for preempt in [false, true] {
        scene(Way::InGroup, preempt, 0);
    }
}
