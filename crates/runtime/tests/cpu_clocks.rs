//! CPU clocks on threads: who reads sees no step back, no group behind its members, and exact sums once all is quiet.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{burn, eventually, on_every_host, scheduler};
use quotient::{ClockError, InGroupExt, TaskClock, TaskClockExt, ThreadMeter};

const MS: Duration = Duration::from_millis(1);

/// A group has what its tasks had, to the nanosecond. Only where a task's end, which wakes who awaits it, took 250 us of processor time or
/// longer (on a busy machine it may), that is the group's, too: the task is gone.
fn assert_adds_up(group: Duration, tasks: Duration) {
    let beyond = group.saturating_sub(tasks);
    let reason = beyond.is_zero() || beyond >= Duration::from_micros(250);
    assert!(group >= tasks && reason, "group {group:?}, tasks {tasks:?}");
}

#[test]
fn the_poll_in_progress_counts_for_who_reads_inside_it() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let inside = group.clone();
        let whole = scheduler.clone();
        let task = group.spawn(async move {
            let clock = TaskClock::current().unwrap();
            let before = (clock.cpu_time(), inside.cpu_time());
            // CPU time, not wall time: the machine may be busy with others.
            while clock.cpu_time() < before.0 + 3 * MS {
                burn(MS / 10);
            }
            let own = clock.cpu_time();
            let of_group = inside.cpu_time();
            let of_all = whole.cpu_time();
            assert!(own >= before.0 + 3 * MS, "{own:?}");
            assert!(of_group >= own, "group {of_group:?}, its task {own:?}");
            assert!(of_all >= of_group, "all {of_all:?}, group {of_group:?}");
            own
        });
        let clock = task.clock().unwrap();
        let seen_inside = task.await.unwrap();
        assert!(clock.cpu_time() >= seen_inside, "nothing is taken back");
        assert_adds_up(group.cpu_time(), clock.cpu_time());
        scheduler.shutdown().await;
    });
}

#[test]
fn sums_are_exact_once_all_is_quiet() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let child = group.child("below").create().unwrap();
        let mut handles = Vec::new();
        for index in 0..40_u32 {
            let home = if index % 2 == 0 { &group } else { &child };
            let reads = home.clone();
            handles.push(home.spawn(async move {
                for round in 0..20 {
                    burn(Duration::from_micros(20));
                    if (round + index) % 3 == 0 {
                        let _ = reads.cpu_time();
                    }
                    tokio::task::yield_now().await;
                }
            }));
        }
        let clocks: Vec<_> = handles
            .iter()
            .map(|handle| handle.clock().unwrap())
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
        let tasks: Duration = clocks.iter().map(TaskClock::cpu_time).sum();
        assert_adds_up(group.cpu_time(), tasks);
        assert_eq!(scheduler.cpu_time(), group.cpu_time());
        assert!(child.cpu_time() < tasks && !child.cpu_time().is_zero());
        scheduler.shutdown().await;
    });
}

#[test]
fn readers_that_hear_of_each_other_see_no_step_back() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let child = group.child("below").create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        // The most that anybody has read so far of the group, and of the child.
        let told = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let reads = Arc::new(AtomicU64::new(0));
        let mut handles = Vec::new();
        for home in [&group, &child, &child] {
            let (home, group, child) = (home.clone(), group.clone(), child.clone());
            let (stop, told, reads) = (stop.clone(), told.clone(), reads.clone());
            handles.push(home.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..50 {
                        check_once(&group, &child, &told, &reads);
                    }
                    tokio::task::yield_now().await;
                }
            }));
        }
        let outside = {
            let (group, child) = (group.clone(), child.clone());
            let (stop, told, reads) = (stop.clone(), told.clone(), reads.clone());
            std::thread::spawn(move || {
                let meter = ThreadMeter::enter(&child).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    check_once(&group, &child, &told, &reads);
                }
                drop(meter);
            })
        };
        let enough = Arc::clone(&reads);
        eventually("60,000 readings", || {
            enough.load(Ordering::Relaxed) > 60_000
        })
        .await;
        stop.store(true, Ordering::Relaxed);
        outside.join().unwrap();
        for handle in handles {
            handle.await.unwrap();
        }
        scheduler.shutdown().await;
    });
}

/// What is known before must be in what is read now; the parent is read after the child.
fn check_once(
    group: &quotient::Group,
    child: &quotient::Group,
    told: &[AtomicU64; 2],
    reads: &AtomicU64,
) {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap();
    let known = [
        told[0].load(Ordering::Acquire),
        told[1].load(Ordering::Acquire),
    ];
    let below = nanos(child.cpu_time());
    let above = nanos(group.cpu_time());
    assert!(
        above >= known[0],
        "group stepped back by {}",
        known[0] - above
    );
    assert!(
        below >= known[1],
        "child stepped back by {}",
        known[1] - below
    );
    assert!(above >= below, "group {above}, child {below}");
    told[0].fetch_max(above, Ordering::AcqRel);
    told[1].fetch_max(below, Ordering::AcqRel);
    reads.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_group_is_never_behind_a_task_that_was_read_before() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let stop = Arc::new(AtomicBool::new(false));
        let handles: Vec<_> = (0..4)
            .map(|_| {
                let stop = stop.clone();
                group.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let clocks: Vec<_> = handles
            .iter()
            .map(|handle| handle.clock().unwrap())
            .collect();
        let reader = {
            let group = group.clone();
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    let tasks: Duration = clocks.iter().map(TaskClock::cpu_time).sum();
                    let all = group.cpu_time();
                    assert!(all >= tasks, "group {all:?}, tasks {tasks:?}");
                }
            })
        };
        while !reader.is_finished() {
            tokio::time::sleep(MS).await;
        }
        stop.store(true, Ordering::Relaxed);
        for handle in handles {
            handle.await.unwrap();
        }
        reader.join().unwrap();
        scheduler.shutdown().await;
    });
}

#[test]
fn a_reader_inside_a_nested_group_brings_that_one_up_to_date() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let other = scheduler.group("other").unwrap().create().unwrap();
        let (inner, outer) = (other.clone(), group.clone());
        group
            .spawn(async move {
                let wrapped = other.clone();
                async move {
                    let before = wrapped.cpu_time();
                    burn(2 * MS);
                    let after = wrapped.cpu_time();
                    assert!(after >= before + MS, "{before:?} to {after:?}");
                    assert!(wrapped.cpu_time() >= after);
                }
                .in_group(&other)
                .await;
            })
            .await
            .unwrap();
        assert!(inner.cpu_time() >= 2 * MS);
        assert!(
            outer.cpu_time() < inner.cpu_time(),
            "outer {:?} paid for inner {:?}",
            outer.cpu_time(),
            inner.cpu_time()
        );
        scheduler.shutdown().await;
    });
}

#[test]
fn clocks_are_found_by_handle_by_name_and_from_inside() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        assert_eq!(TaskClock::current().unwrap_err(), ClockError::NoTask);
        let gate = Arc::new(tokio::sync::Notify::new());
        let waits = gate.clone();
        let task = group.spawn(async move {
            let inside = TaskClock::current().unwrap();
            waits.notified().await;
            inside.id()
        });
        let id = task.id();
        let by_name = scheduler.task_clock(id).unwrap();
        assert_eq!(by_name.id(), id);
        assert_eq!(task.abort_handle().clock().unwrap().id(), id);
        gate.notify_one();
        assert_eq!(task.await.unwrap(), id);
        assert_eq!(
            scheduler.task_clock(id).unwrap_err(),
            ClockError::UnknownTask { id },
            "it has ended"
        );
        assert!(
            !by_name.cpu_time().is_zero(),
            "a kept clock tells its final time"
        );
        scheduler.shutdown().await;
        let refused = group.spawn(async {});
        let id = refused.id();
        assert_eq!(refused.clock().unwrap_err(), ClockError::NotSpawned { id });
        assert_eq!(refused.cpu_time(), Duration::ZERO);
    });
}
