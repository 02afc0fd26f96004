//! Hazards of pressure: time in which nobody waited, waiting that is missed, what a limit holds back, groups above that do not know. On real
//! threads: half of what is exact is asked for, since the machine is shared.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{burn, eventually, guarded, runtime};
use quotient::{Group, Pressure, Scheduler};

/// Computes in polls of 0.2 ms until told to stop.
fn hog(group: &Group, stop: &Arc<AtomicBool>) {
    let stop = stop.clone();
    drop(group.spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            burn(Duration::from_micros(200));
            tokio::task::yield_now().await;
        }
    }));
}

#[test]
fn who_waits_is_told_from_who_does_not() {
    runtime(1).block_on(guarded(async {
        let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
        let group = |path| scheduler.group(path).unwrap().create().unwrap();
        let (many, asleep) = (group("above/many"), group("above/asleep"));
        let capped = scheduler.group("capped").unwrap();
        let capped = capped.max("5ms/100ms").create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        // More than can be polled at a time: on a busy machine a stand-in comes beside the virtual CPU.
        (0..6).for_each(|_| hog(&many, &stop));
        hog(&capped, &stop);
        drop(asleep.spawn(std::future::pending::<()>()));
        eventually("the sleeper's first poll", || asleep.stats().polls > 0).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(many.pressure(), Pressure::default(), "nobody asked");
        scheduler.set_pressure(true);
        // A window in which it is so: on a machine that is busy elsewhere the worker may have stood, and whoever stands in ran others.
        let above = scheduler.find("above").unwrap();
        let mut seen = Vec::new();
        loop {
            let read = || [many.pressure(), above.pressure(), capped.pressure()];
            let (before, begun) = (read(), Instant::now());
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            let (after, took) = (read(), begun.elapsed().as_secs_f64());
            let share = |now: Duration, then: Duration| (now - then).as_secs_f64() / took;
            let some = |index: usize| share(after[index].some.total, before[index].some.total);
            let full = |index: usize| share(after[index].full.total, before[index].full.total);
            seen.push((some(0), full(0), some(1), full(2)));
            if some(0) > 0.5 && full(0) < 0.5 && some(1) > 0.5 && full(2) > 0.5 {
                break;
            }
            assert!(
                seen.len() < 40,
                "some, full, above some, capped full: {seen:?}"
            );
        }
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        let read = many.pressure();
        assert!(
            read.some.avg10 > read.some.avg300,
            "a step of 2 s: {read:?}"
        );
        assert!(read.some.total >= read.full.total, "{read:?}");
        assert_eq!(asleep.pressure(), Pressure::default());
        scheduler.set_pressure(false);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = many.pressure();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(
            many.pressure().some.total,
            before.some.total,
            "switched off"
        );
        stop.store(true, Ordering::Relaxed);
        scheduler.shutdown().await;
    }));
}
