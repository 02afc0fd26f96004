//! A group's sum on real threads: nothing is lost between additions, withdrawals and changes of mode.

use quotient_core::load_average::{GroupSum, LiveRules, SumRules, UpdateMode};
use quotient_core::{CpuId, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

const CPUS: u32 = 20;
const TICKS: u64 = 20_000;

#[test]
fn additions_of_all_threads_meet_and_all_leave() {
    let sum = Arc::new(GroupSum::new(CPUS));
    let live = LiveRules::new(SumRules::new(UpdateMode::EveryTick, 4, Nanos(1)));
    let published = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for cpu in 0..CPUS {
            let (sum, live, published) = (&sum, &live, &published);
            workers.push(scope.spawn(move || {
                let mut part = sum.join(CpuId(cpu), cpu % 4).expect("a CPU of the sum");
                for tick in 0..TICKS {
                    let rules = live.get();
                    let average = (tick * 7 + u64::from(cpu)) % 1000;
                    part.tick(average, None, Nanos(tick), &rules);
                    part.others(Nanos(tick), &rules);
                    if tick % 997 == 0 {
                        part.withdraw();
                    }
                }
                part.tick(
                    1000,
                    None,
                    Nanos(TICKS),
                    &SumRules::new(UpdateMode::EveryTick, 1, Nanos(1)),
                );
                published.fetch_add(part.published(), SeqCst);
                // Leaves its part in the sum: what the other threads add must not disturb it.
                std::mem::forget(part);
            }));
        }
        scope.spawn(|| {
            // A mode lasts until somebody had a chance to follow it; the threads end by themselves.
            while !stop.load(SeqCst) {
                for mode in UpdateMode::ALL {
                    live.set_mode(mode);
                    assert!(sum.total(Nanos(0), mode) <= 1000 * u64::from(CPUS));
                    thread::yield_now();
                }
            }
        });
        let ended: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        stop.store(true, SeqCst);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(published.load(SeqCst), 1000 * u64::from(CPUS));
    assert_eq!(
        sum.total(Nanos(0), UpdateMode::EveryTick),
        published.load(SeqCst)
    );
    assert_eq!(sum.exact(Nanos(TICKS)), published.load(SeqCst));
    // The CPUs come back, and go.
    for cpu in 0..CPUS {
        let mut part = sum.join(CpuId(cpu), 0).expect("a CPU of the sum");
        let rules = SumRules::new(UpdateMode::EveryTick, 1, Nanos(1));
        part.tick(5, None, Nanos(TICKS), &rules);
    }
    assert_eq!(
        sum.total(Nanos(0), UpdateMode::EveryTick),
        published.load(SeqCst)
    );
}
