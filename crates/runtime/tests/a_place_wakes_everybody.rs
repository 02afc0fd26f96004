//! Hazards: a place that is given up wakes all threads that wait for one, of all groups, so that the more wait the less gets done; each of them
//! looks again and again while nothing happens, which nobody pays for; or, since a place wakes one only, it wakes nobody, or one that is not there any
//! more, and the others wait for ever. On real threads. What is counted is how often a thread was waiting and went on, not time.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use common::{burn, eventually};
use preempted::{HANG, Used, limited, run_with_places as run};
use quotient::{Group, Leftover, MeterError, ThreadMeter};

/// How often a thread has gone to sleep so far.
fn sleeps(thread: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

fn thread(job: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    thread.spawn(job).unwrap()
}

#[test]
fn a_place_that_is_given_up_wakes_all_who_wait() {
    const THREADS: u64 = 300;
    const JOBS: u64 = 5;
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "group", "max");
        let slept = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (group, slept) = (group.clone(), slept.clone());
                thread(move || {
                    let before = sleeps("thread-self");
                    for _ in 0..JOBS {
                        ThreadMeter::run(&group, || burn(Duration::from_micros(50))).unwrap();
                    }
                    slept.fetch_add(sleeps("thread-self") - before, Ordering::SeqCst);
                })
            })
            .collect();
        eventually("their ends", || threads.iter().all(|one| one.is_finished())).await;
        // Once for the place, once for the first turn, and where a lock is taken.
        let per_job = slept.load(Ordering::SeqCst) as f64 / (THREADS * JOBS) as f64;
        println!("{per_job} sleeps a job");
        assert!(per_job < 12.0, "{per_job} sleeps a job");
    });
}

#[test]
fn who_waits_for_a_place_looks_again_and_again() {
    run(4, |scheduler| async move {
        let group = limited(&scheduler, "group", "1ms/1s");
        let used = Arc::new(Used::default());
        let numbers = Arc::new(std::sync::Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..60)
            .map(|_| {
                let (group, used, numbers) = (group.clone(), used.clone(), numbers.clone());
                thread(move || {
                    let here = std::fs::read_link("/proc/thread-self").unwrap();
                    let here = here.to_str().unwrap().to_owned();
                    numbers.lock().unwrap().push(here);
                    ThreadMeter::run(&group, || used.compute(HANG)).unwrap();
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let numbers = numbers.lock().unwrap().clone();
        let all = || numbers.iter().map(|number| sleeps(number)).sum::<u64>();
        let before = all();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let slept = all() - before;
        println!("{slept} sleeps of 60 threads in a second");
        assert!(slept < 600, "{slept} sleeps of 60 threads in a second");
        used.stop.store(true, Ordering::Relaxed);
        group.set_max("max").unwrap();
        eventually("their ends", || threads.iter().all(|one| one.is_finished())).await;
    });
}

/// Threads with short jobs, and functions, of two groups with and without a limit, beside kills and freezes.
#[test]
fn threads_and_functions_in_one_line_wait_for_ever() {
    run(3, |scheduler| async move {
        let groups = ["max", "50ms/100ms"].map(|max| {
            let group = limited(&scheduler, &format!("tenant {}", max.len()), max);
            (group, Arc::new(AtomicUsize::new(0)))
        });
        let jobs = |(group, done): &(Group, Arc<AtomicUsize>)| {
            let some = |_| {
                let (group, done) = (group.clone(), done.clone());
                thread(move || {
                    for round in 0..40 {
                        let job = || match round % 4 {
                            0 => std::thread::sleep(Duration::from_micros(200)),
                            _ => burn(Duration::from_micros(30)),
                        };
                        ThreadMeter::run(&group, job).unwrap();
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                })
            };
            (0..25).map(some).collect::<Vec<_>>()
        };
        let threads: Vec<_> = groups.iter().flat_map(jobs).collect();
        let mut functions = Vec::new();
        for round in 0..400 {
            for (group, _) in &groups {
                functions.push(group.spawn_blocking(|| burn(Duration::from_micros(30))));
            }
            let group = &groups[round % 2].0;
            match round {
                100 | 101 => group.freeze().unwrap(),
                120 | 121 => group.thaw().unwrap(),
                200 | 201 => group.kill().unwrap(),
                _ => {}
            }
            if round % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        for function in functions {
            let _ = function.await;
        }
        eventually("their ends", || threads.iter().all(|one| one.is_finished())).await;
        for (_, done) in &groups {
            assert_eq!(done.load(Ordering::SeqCst), 25);
        }
    });
}

/// With all kinds of ends: a job ends with its group, whatever becomes of the rest.
#[test]
fn threads_in_line_wait_for_a_group_that_was_removed() {
    run(1, |scheduler| async move {
        for (number, leftover) in [Leftover::Kill, Leftover::MoveToParent]
            .into_iter()
            .enumerate()
        {
            for freezes in [false, true] {
                let path = format!("above {number}{freezes}/group");
                let group = limited(&scheduler, &path, "1ms/1s");
                let (used, ended) = (Arc::new(Used::default()), Arc::new(AtomicUsize::new(0)));
                let threads: Vec<_> = (0..20)
                    .map(|_| {
                        let (group, used, ended) = (group.clone(), used.clone(), ended.clone());
                        thread(move || {
                            let done = ThreadMeter::run(&group, || used.compute(HANG));
                            if matches!(done, Err(MeterError::GroupRemoved { .. })) {
                                ended.fetch_add(1, Ordering::SeqCst);
                            }
                        })
                    })
                    .collect();
                tokio::time::sleep(Duration::from_millis(100)).await;
                if freezes {
                    group.freeze().unwrap();
                }
                group.remove(leftover).unwrap();
                eventually("the end of those that wait", || {
                    ended.load(Ordering::SeqCst) >= 18
                })
                .await;
                used.stop.store(true, Ordering::Relaxed);
                eventually("the others", || threads.iter().all(|one| one.is_finished())).await;
            }
        }
    });
}

/// The scheduler ends while threads wait: they go on without it.
#[test]
fn threads_in_line_wait_for_a_scheduler_that_has_ended() {
    run(1, |scheduler| async move {
        let group = limited(&scheduler, "group", "1ms/1s");
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..20)
            .map(|_| {
                let (group, stop) = (group.clone(), stop.clone());
                thread(move || {
                    let job = || {
                        while !stop.load(Ordering::Relaxed) {
                            burn(Duration::from_micros(100));
                        }
                    };
                    let _ = ThreadMeter::run(&group, job);
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let ended = scheduler.shutdown_timeout(Duration::from_secs(20)).await;
        assert!(ended.is_ok(), "{ended:?}");
        stop.store(true, Ordering::Relaxed);
        eventually("their ends", || threads.iter().all(|one| one.is_finished())).await;
    });
}
