//! Hazards of a runtime that ends under a preempting scheduler, whose polls are on threads that are not the runtime's: polls that go on after the
//! end has returned and touch what is gone by then, futures that are not dropped yet, timers that panic because their driver is gone; and,
//! once the end waits for polls, ends that wait for themselves or for ever.
#![cfg(all(
    not(loom),
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{CountDrop, repetitions};
use quotient::{Group, Preempt, Scheduler};
use tokio::runtime::{Builder, Runtime};

/// A hang.
const HANG: Duration = Duration::from_secs(60);

/// The runtimes that are ended: with so many workers, or a current-thread one.
const WORKERS: [usize; 3] = [0, 1, 2];

fn runtime(workers: usize) -> Runtime {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    builder.enable_all().build().unwrap()
}

fn scheduler(runtime: &Runtime) -> (Scheduler, Group) {
    let builder = Scheduler::builder().handle(runtime.handle().clone());
    let scheduler = builder.preempt(Preempt::default()).build().unwrap();
    let group = scheduler.group("tenants/acme").unwrap().create().unwrap();
    (scheduler, group)
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn sleep(runtime: &Runtime, time: Duration) {
    runtime.block_on(async { tokio::time::sleep(time).await });
}

/// Fails if `act` takes longer than [`HANG`].
fn within_time<R: Send + 'static>(what: &str, act: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(act());
    });
    match result.recv_timeout(HANG) {
        Ok(result) => result,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} did not end"),
        Err(_) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

/// Ends a runtime in each of the ways there are that wait for polls.
const ENDS: [fn(Runtime); 2] = [drop, |runtime| runtime.shutdown_timeout(HANG)];

/// A poll of 20 ms goes on after the end has returned, and uses what the program has closed by then.
#[test]
fn no_poll_goes_on_after_the_end_has_returned() {
    for workers in WORKERS {
        for end in ENDS {
            for _ in 0..5 * repetitions() {
                let (is_open, used) = (
                    Arc::new(AtomicBool::new(true)),
                    Arc::<AtomicUsize>::default(),
                );
                let runtime = runtime(workers);
                let (_scheduler, group) = scheduler(&runtime);
                for _ in 0..2 {
                    let (is_open, used) = (is_open.clone(), used.clone());
                    drop(group.spawn(async move {
                        loop {
                            let begun = Instant::now();
                            while begun.elapsed() < Duration::from_millis(20) {
                                if !is_open.load(Ordering::SeqCst) {
                                    used.fetch_add(1, Ordering::SeqCst);
                                    return;
                                }
                            }
                            tokio::task::yield_now().await;
                        }
                    }));
                }
                sleep(&runtime, Duration::from_millis(5));
                end(runtime);
                is_open.store(false, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(30));
                assert_eq!(used.load(Ordering::SeqCst), 0, "{workers} workers");
            }
        }
    }
}

/// Polls that stand, for want of budget or because of a freeze, are let go on and waited for.
#[test]
fn polls_that_stand_come_to_their_end_before_the_runtime_does() {
    for workers in WORKERS {
        let runtime = runtime(workers);
        let (scheduler, frozen) = scheduler(&runtime);
        let limited = scheduler.group("tenants/limited").unwrap();
        let limited = limited.max("1ms/100ms").create().unwrap();
        let ended = Arc::<AtomicUsize>::default();
        let mut handles = Vec::new();
        for group in [&frozen, &limited, &limited] {
            let ended = ended.clone();
            handles.push(group.spawn(async move {
                spin(Duration::from_millis(60));
                ended.fetch_add(1, Ordering::SeqCst);
                pending::<()>().await;
            }));
        }
        sleep(&runtime, Duration::from_millis(20));
        frozen.freeze_immediately().unwrap();
        sleep(&runtime, Duration::from_millis(10));
        within_time("the runtime", move || drop(runtime));
        let ended_then = ended.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(200));
        let ended_later = ended.load(Ordering::SeqCst);
        assert_eq!(ended_then, ended_later, "{workers} workers");
        assert!(
            handles.iter().all(quotient::JoinHandle::is_finished),
            "{workers} workers"
        );
    }
}

/// When the end has returned, each future is gone.
#[test]
fn every_future_is_dropped_when_the_end_returns() {
    const TASKS: usize = 200;
    for workers in WORKERS {
        for end in ENDS {
            for _ in 0..5 * repetitions() {
                let dropped = Arc::<AtomicUsize>::default();
                let (is_over, late) = (
                    Arc::new(AtomicBool::new(false)),
                    Arc::<AtomicUsize>::default(),
                );
                let runtime = runtime(workers);
                let (scheduler, group) = scheduler(&runtime);
                for number in 0..TASKS {
                    let count = CountDrop(dropped.clone());
                    let (is_over, late) = (is_over.clone(), late.clone());
                    drop(group.spawn(async move {
                        let _count = count;
                        loop {
                            if number < 4 {
                                spin(Duration::from_micros(200));
                                late.fetch_add(
                                    usize::from(is_over.load(Ordering::SeqCst)),
                                    Ordering::SeqCst,
                                );
                            }
                            tokio::time::sleep(Duration::from_micros(500)).await;
                        }
                    }));
                }
                sleep(&runtime, Duration::from_millis(10));
                end(runtime);
                is_over.store(true, Ordering::SeqCst);
                assert_eq!(dropped.load(Ordering::SeqCst), TASKS, "{workers} workers");
                assert_eq!(scheduler.tasks(), 0);
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(late.load(Ordering::SeqCst), 0, "{workers} workers");
            }
        }
    }
}

/// Ends runtimes while `future` sleeps and computes in their groups; no handle may say that it has panicked.
fn no_task_panics<Fut>(future: fn() -> Fut)
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let ends: [fn(Runtime); 3] = [drop, Runtime::shutdown_background, |runtime| {
        runtime.shutdown_timeout(Duration::from_millis(300));
    }];
    let outside = Builder::new_current_thread().build().unwrap();
    for workers in WORKERS {
        for end in ends {
            for number in 0..10 * repetitions() as u64 {
                let runtime = runtime(workers);
                let (_scheduler, group) = scheduler(&runtime);
                let handles: Vec<_> = (0..8).map(|_| group.spawn(future())).collect();
                sleep(
                    &runtime,
                    Duration::from_micros(3_000 + number * 370 % 2_000),
                );
                end(runtime);
                for handle in handles {
                    let error = outside.block_on(handle).unwrap_err();
                    assert!(error.is_cancelled(), "{workers} workers: {error}");
                }
            }
        }
    }
}

#[test]
fn no_timer_panics_at_the_end() {
    no_task_panics(|| async {
        loop {
            tokio::time::sleep(Duration::from_micros(300)).await;
            spin(Duration::from_micros(50));
        }
    });
}

#[test]
fn no_timer_or_socket_panics_at_the_end_of_longer_polls() {
    no_task_panics(|| async {
        loop {
            spin(Duration::from_micros(200));
            tokio::time::sleep(Duration::from_micros(100)).await;
            tokio::task::yield_now().await;
            let _ = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        }
    });
}

/// As a program does whose `main` makes the scheduler, and returns.
#[test]
fn a_main_that_returns_ends_tasks_without_a_panic() {
    let outside = Builder::new_current_thread().build().unwrap();
    for workers in WORKERS {
        for _ in 0..5 * repetitions() {
            let runtime = runtime(workers);
            let handles = runtime.block_on(async {
                let builder = Scheduler::builder().preempt(Preempt::default());
                let scheduler = builder.build().unwrap();
                let group = scheduler.group("tenants/acme").unwrap().create().unwrap();
                let task = |number| async move {
                    loop {
                        tokio::time::sleep(Duration::from_micros(200)).await;
                        spin(Duration::from_micros(if number < 3 { 3_000 } else { 20 }));
                    }
                };
                let handles: Vec<_> = (0..20).map(|number| group.spawn(task(number))).collect();
                tokio::time::sleep(Duration::from_millis(30)).await;
                handles
            });
            drop(runtime);
            for handle in handles {
                let handle: quotient::JoinHandle<()> = handle;
                let error = outside.block_on(handle).unwrap_err();
                assert!(error.is_cancelled(), "{workers} workers: {error}");
            }
        }
    }
}

/// A poll that does not end until it is told to.
fn endless(group: &Group) -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let (begun, may_end) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (says, looks) = (begun.clone(), may_end.clone());
    drop(group.spawn(async move {
        says.store(true, Ordering::SeqCst);
        while !looks.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    }));
    (begun, may_end)
}

fn wait_for(flag: &AtomicBool) {
    let end = Instant::now() + HANG;
    while !flag.load(Ordering::SeqCst) {
        assert!(Instant::now() < end, "it did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// As with tokio: `drop` waits for as long as a poll takes.
#[test]
fn a_poll_that_takes_seconds_holds_the_drop_of_a_runtime_with_workers() {
    let runtime = runtime(2);
    let (_scheduler, group) = scheduler(&runtime);
    let (begun, may_end) = endless(&group);
    wait_for(&begun);
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = is_over.clone();
    let dropping = std::thread::spawn(move || {
        drop(runtime);
        ends.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(
        !is_over.load(Ordering::SeqCst),
        "the runtime was dropped under a poll"
    );
    may_end.store(true, Ordering::SeqCst);
    within_time("the runtime", move || dropping.join().unwrap());
}

/// Nobody waits longer than asked for.
#[test]
fn an_endless_poll_does_not_hold_an_end_with_a_bound() {
    for workers in WORKERS {
        let ends: [fn(Runtime); 2] = [Runtime::shutdown_background, |runtime| {
            runtime.shutdown_timeout(Duration::from_millis(100));
        }];
        for end in ends {
            let runtime = runtime(workers);
            let (_scheduler, group) = scheduler(&runtime);
            let (begun, may_end) = endless(&group);
            wait_for(&begun);
            within_time("the end", move || end(runtime));
            may_end.store(true, Ordering::SeqCst);
        }
    }
}

/// A task that ends its own runtime does not wait for itself.
#[test]
fn a_task_may_end_its_own_runtime() {
    let ends: [fn(Runtime); 3] = [
        Runtime::shutdown_background,
        // Tokio panics in there, and so does the poll: on a runtime with workers.
        drop,
        |runtime| quotient::block_in_place(|| runtime.shutdown_background()),
    ];
    for workers in WORKERS {
        for (number, end) in ends.into_iter().enumerate() {
            let runtime = runtime(workers);
            let (_scheduler, group) = scheduler(&runtime);
            let (sender, receiver) = std::sync::mpsc::channel::<Runtime>();
            let handle = group.spawn(async move {
                let runtime = receiver.recv().unwrap();
                end(runtime);
            });
            sleep(&runtime, Duration::from_millis(5));
            sender.send(runtime).unwrap();
            let outside = Builder::new_current_thread().build().unwrap();
            let what = format!("end {number} with {workers} workers");
            let _ = within_time(&what, move || outside.block_on(handle));
        }
    }
}

/// A poll that blocks in place may wait for a task of the runtime, which the end drops.
#[test]
fn a_poll_that_blocks_in_place_for_a_foreign_task_does_not_hold_the_end() {
    for workers in [1, 2] {
        let runtime = runtime(workers);
        let (_scheduler, group) = scheduler(&runtime);
        let (begun, says) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let begins = begun.clone();
        let ends = says.clone();
        drop(group.spawn(async move {
            begins.store(true, Ordering::SeqCst);
            let _ = quotient::block_in_place(|| receiver.blocking_recv());
            ends.store(true, Ordering::SeqCst);
        }));
        wait_for(&begun);
        drop(runtime.spawn(async move {
            let _sender = sender;
            pending::<()>().await;
        }));
        sleep(&runtime, Duration::from_millis(5));
        within_time("the runtime", move || drop(runtime));
        wait_for(&says);
    }
}

/// Tokio's own `block_in_place` cannot tell us: a poll that waits in it for what the end itself brings is given up after some seconds.
#[test]
fn a_poll_that_waits_for_the_end_is_not_waited_for_for_ever() {
    let runtime = runtime(1);
    let (_scheduler, group) = scheduler(&runtime);
    let (sender, receiver) = std::sync::mpsc::channel::<Runtime>();
    let handle = group.spawn(async move {
        let runtime = receiver.recv().unwrap();
        tokio::task::block_in_place(|| drop(runtime));
    });
    sleep(&runtime, Duration::from_millis(5));
    sender.send(runtime).unwrap();
    let outside = Builder::new_current_thread().build().unwrap();
    let _ = within_time("the task", move || outside.block_on(handle));
}
