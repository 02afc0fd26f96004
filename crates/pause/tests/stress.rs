//! Everything at once: many threads with short and long regions, several askers that detach, demote, pause, resume and
//! forget.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Numbers, duration, spawn, until};
use quotient_pause::{Handle, Pause, PauseState};

const WORKERS: usize = 4;
const ASKERS: u64 = 3;

/// One worker as the askers see it.
struct Worker {
    handle: Handle,
    /// Steps inside regions.
    progress: Arc<AtomicU64>,
    /// Regions whose end said that they were detached.
    detached: Arc<AtomicU64>,
    /// Regions that askers committed.
    committed: AtomicU64,
}

/// One request of an asker's choice.
fn ask(worker: &Worker, numbers: &mut Numbers, kept: &mut Vec<Pause>) {
    let Some(region) = worker.handle.region() else {
        return;
    };
    match numbers.below(4) {
        0 => {
            if let Ok(caught) = worker.handle.detach(region) {
                assert_eq!(
                    worker.handle.detach(region).err(),
                    Some(quotient_pause::DetachError::Busy)
                );
                if numbers.below(2) == 0 {
                    worker.committed.fetch_add(1, Ordering::Relaxed);
                    caught.commit();
                }
            }
        }
        1 => {
            // Forgotten for a while, then dropped: resumed by that.
            if let Ok(pause) = worker.handle.pause(region) {
                kept.push(pause);
            }
            if kept.len() > 3 {
                kept.clear();
            }
        }
        _ => {
            let Ok(pause) = worker.handle.pause(region) else {
                return;
            };
            if pause.wait(Duration::from_millis(3)) == PauseState::Standing {
                assert_eq!(worker.handle.region(), Some(region), "stands elsewhere");
                let before = worker.progress.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(numbers.below(300)));
                assert_eq!(
                    worker.progress.load(Ordering::Relaxed),
                    before,
                    "moves while it stands"
                );
            }
            pause.resume();
        }
    }
}

#[test]
fn regions_under_all_requests_at_once_agree_with_their_askers() {
    let stop = Arc::new(AtomicBool::new(false));
    let (workers, threads): (Vec<_>, Vec<_>) = (0..WORKERS)
        .map(|index| {
            let progress = Arc::new(AtomicU64::new(0));
            let detached = Arc::new(AtomicU64::new(0));
            let (steps, ends, stop) = (progress.clone(), detached.clone(), stop.clone());
            let (handle, thread) = spawn(move |thread| {
                let mut numbers = Numbers(7 + index as u64);
                let mut regions = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let length = [1, 10, 1_000, 100_000][numbers.below(4) as usize];
                    let expected = thread.next_region();
                    let ((), end) = thread.region(|| {
                        for _ in 0..length {
                            steps.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    regions += 1;
                    assert_eq!(expected.number(), regions);
                    ends.fetch_add(u64::from(end.is_detached()), Ordering::Relaxed);
                }
                regions
            });
            let worker = Worker {
                handle,
                progress,
                detached,
                committed: AtomicU64::new(0),
            };
            (worker, thread)
        })
        .unzip();
    let workers = Arc::new(workers);
    let askers: Vec<_> = (0..ASKERS)
        .map(|seed| {
            let (workers, stop) = (workers.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut numbers = Numbers(1 + seed);
                let mut kept = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let worker = &workers[numbers.below(WORKERS as u64) as usize];
                    ask(worker, &mut numbers, &mut kept);
                    std::thread::sleep(Duration::from_micros(numbers.below(60)));
                }
            })
        })
        .collect();
    std::thread::sleep(duration() * 2);
    stop.store(true, Ordering::Relaxed);
    for asker in askers {
        until("an asker's end", || asker.is_finished());
        asker.join().expect("asks without panic");
    }
    let mut committed = 0;
    for (worker, thread) in workers.iter().zip(threads) {
        until("a worker's end", || thread.is_finished());
        assert!(thread.join().expect("works without panic") > 0);
        assert_eq!(
            worker.detached.load(Ordering::Relaxed),
            worker.committed.load(Ordering::Relaxed),
            "the two sides disagree on who was detached"
        );
        committed += worker.committed.load(Ordering::Relaxed);
        assert!(worker.handle.region().is_none());
        assert!(worker.handle.cpu_time().is_none(), "it has left");
    }
    assert!(committed > 0, "nobody was ever detached");
}
