//! Hazards of pressure: time in which nobody waited, waiting that is missed, what a limit holds back, groups above that do not know. On real
//! threads: half of what is exact is asked for, since the machine is shared.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{burn, guarded, runtime};
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
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(many.pressure(), Pressure::default(), "nobody asked");
        scheduler.set_pressure(true);
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_millis(2_600)).await;
        let share = |time: Duration| time.as_secs_f64() / begun.elapsed().as_secs_f64();
        let read = many.pressure();
        assert!(share(read.some.total) > 0.5, "{read:?}");
        assert!(share(read.full.total) < 0.5, "{read:?}");
        assert!(read.some.avg10 > 300, "a step of 2 s in 10: {read:?}");
        assert!(read.some.avg10 > read.some.avg300, "{read:?}");
        let above = scheduler.find("above").unwrap().pressure();
        assert!(share(above.some.total) > 0.5, "{above:?}");
        let read = capped.pressure();
        assert!(share(read.full.total) > 0.5, "{read:?}");
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
