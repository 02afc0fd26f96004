//! Timers on CPU clocks: never early, soon after, once, and gone when dropped.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{burn, on_every_host, scheduler};
use quotient::{CpuTimerError, TaskClock, TaskClockExt, ThreadMeter};

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_group_timer_fires_at_its_limit_and_not_before() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let timer = group.on_cpu_time(10 * MS).unwrap();
        let whole = scheduler.on_cpu_time(5 * MS).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = group.spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                burn(MS / 10);
                tokio::task::yield_now().await;
            }
        });
        let watched = group.clone();
        let seen = group
            .spawn(async move { (timer.await, watched.cpu_time()) })
            .await
            .unwrap();
        stop.store(true, Ordering::Relaxed);
        work.await.unwrap();
        assert!(seen.0.unwrap() >= 10 * MS, "fired at {:?}", seen.0);
        assert!(
            seen.1 >= seen.0.unwrap(),
            "the clock that fired it is visible"
        );
        assert!(whole.await.unwrap() >= 5 * MS);
        scheduler.shutdown().await;
    });
}

#[test]
fn a_task_timer_follows_its_task_alone() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let (tell, told) = tokio::sync::oneshot::channel();
        let other = group.spawn(async { burn(20 * MS) });
        let task = group.spawn(async move {
            let clock = TaskClock::current().unwrap();
            let timer = clock.on_cpu_time(3 * MS).unwrap();
            tell.send(()).unwrap();
            while !timer.is_elapsed() {
                assert!(
                    clock.cpu_time() < 4 * Duration::from_secs(1),
                    "it never fires"
                );
                burn(MS / 10);
                tokio::task::yield_now().await;
            }
            (timer.await.unwrap(), clock.cpu_time())
        });
        told.await.unwrap();
        let (fired, own) = task.await.unwrap();
        other.await.unwrap();
        assert!(fired >= 3 * MS && own >= fired, "{fired:?} of {own:?}");
        scheduler.shutdown().await;
    });
}

#[test]
fn a_limit_in_the_past_is_due_at_once() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        assert!(group.on_cpu_time(Duration::ZERO).unwrap().is_elapsed());
        let used = group.spawn(async { burn(2 * MS) });
        let clock = used.clock().unwrap();
        used.await.unwrap();
        let timer = group.on_cpu_time(MS / 100).unwrap();
        assert!(timer.is_elapsed());
        assert!(timer.await.unwrap() >= MS / 100);
        let late = clock.on_cpu_time(MS / 100).unwrap();
        assert!(late.is_elapsed(), "also for a task that has ended");
        scheduler.shutdown().await;
    });
}

#[test]
fn a_task_that_ends_below_its_limit_says_so() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let gate = Arc::new(tokio::sync::Notify::new());
        let waits = gate.clone();
        let task = group.spawn(async move { waits.notified().await });
        let clock = task.clock().unwrap();
        let timer = clock.on_cpu_time(Duration::from_secs(3600)).unwrap();
        gate.notify_one();
        task.await.unwrap();
        let cpu_time = clock.cpu_time();
        assert_eq!(timer.await, Err(CpuTimerError::Finished { cpu_time }));
        assert_eq!(
            clock.on_cpu_time(Duration::from_secs(3600)).unwrap_err(),
            CpuTimerError::Finished { cpu_time }
        );
        scheduler.shutdown().await;
    });
}

#[test]
fn dropping_disarms_and_frees_the_place() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let far = Duration::from_secs(3600);
        let mut timers = Vec::new();
        let refused = loop {
            match group.on_cpu_time(far) {
                Ok(timer) => timers.push(timer),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, CpuTimerError::TooMany { max: timers.len() });
        drop(timers);
        let mut again = group.on_cpu_time(far).unwrap();
        drop(group.on_cpu_time(MS).unwrap());
        group.spawn(async { burn(3 * MS) }).await.unwrap();
        assert!(!again.is_elapsed(), "only the dropped one was due");
        let waits = tokio::time::timeout(5 * MS, &mut again).await;
        assert!(waits.is_err());
        scheduler.shutdown().await;
        assert_eq!(again.await, Err(CpuTimerError::ShutDown));
        assert_eq!(group.on_cpu_time(far).unwrap_err(), CpuTimerError::ShutDown);
    });
}

/// The bound was the scheduler's, so whoever came first could have all of it, in one group or in many.
#[test]
fn a_tenant_that_arms_all_it_can_keeps_others_from_timers() {
    on_every_host(|vcpus| async move {
        let (scheduler, other) = scheduler(vcpus);
        let far = Duration::from_secs(3600);
        let greedy = scheduler.group("greedy").unwrap().create().unwrap();
        let mut held = Vec::new();
        for number in 0..40 {
            let below = greedy.child(&number.to_string()).create().unwrap();
            held.extend(std::iter::from_fn(|| below.on_cpu_time(far).ok()));
            // A task's timers are its group's.
            let task = below.spawn(std::future::pending::<()>());
            let clock = task.clock().unwrap();
            held.extend(std::iter::from_fn(|| clock.on_cpu_time(far).ok()));
        }
        assert!(greedy.on_cpu_time(far).is_err());
        let mine: Vec<_> = std::iter::from_fn(|| other.on_cpu_time(far).ok()).collect();
        assert!(mine.len() >= 100, "{} beside {}", mine.len(), held.len());
        // However many tenants there are, each has one.
        let mut all = Vec::new();
        for number in 0..500 {
            let group = scheduler.group(&format!("late/{number}")).unwrap();
            all.extend(group.create().unwrap().on_cpu_time(far));
        }
        let late = scheduler.group("last").unwrap().create().unwrap();
        drop(late.on_cpu_time(far).unwrap());
        drop(held);
        drop(greedy.on_cpu_time(far).unwrap());
        scheduler.shutdown().await;
    });
}

#[test]
fn time_of_metered_threads_fires_timers() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let timer = group.on_cpu_time(2 * MS).unwrap();
        let metered = group.clone();
        let thread = std::thread::spawn(move || {
            let meter = ThreadMeter::enter(&metered).unwrap();
            while meter.cpu_time() < 3 * MS {
                burn(MS / 10);
            }
        });
        assert!(timer.await.unwrap() >= 2 * MS);
        thread.join().unwrap();
        scheduler.shutdown().await;
    });
}

/// Panics when it is woken.
struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("in a waker");
    }
}

#[test]
fn a_waker_that_panics_ends_neither_process_nor_timers() {
    on_every_host(|vcpus| async move {
        let (scheduler, group) = scheduler(vcpus);
        let mut panics = std::pin::pin!(group.on_cpu_time(MS).unwrap());
        let next = group.on_cpu_time(2 * MS).unwrap();
        let waker = std::task::Waker::from(Arc::new(Panics));
        let mut context = std::task::Context::from_waker(&waker);
        assert!(panics.as_mut().poll(&mut context).is_pending());
        group.spawn(async { burn(3 * MS) }).await.unwrap();
        assert!(next.await.unwrap() >= 2 * MS);
        assert!(panics.await.unwrap() >= MS);
        scheduler.shutdown().await;
    });
}
