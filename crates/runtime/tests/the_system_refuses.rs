//! Preemption where the system or the program refuses what it needs: typed errors when it is built, counted ways back to today's behaviour
//! afterwards. Each case changes the whole process, so each has one of its own.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quotient::{BuildError, InstallError, Preempt, Scheduler, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// Longer than anything here takes: a hang.
const HANG: Duration = Duration::from_secs(120);
const CASE: &str = "QUOTIENT_REFUSED_CASE";
const SIGUSR2: i32 = 12;

/// Runs the test of that name in a process of its own, in which `body` is run instead.
fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        body();
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        // An arena that a thread of the host's is about to get, and trims, would be room for stacks afterwards.
        .env("MALLOC_ARENA_MAX", "1")
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > HANG {
            child.kill().unwrap();
            panic!("{name} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{name}: {status}");
}

/// No room for another thread's stack from now on, for a privileged process too (which `RLIMIT_NPROC` would not bind). Returns what restores it.
fn refuse_threads() -> impl FnOnce() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib: u64 = size
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    let before = getrlimit(Resource::As);
    let tight = Rlimit {
        current: Some(kib * 1_024 + 1_024 * 1_024),
        ..before
    };
    setrlimit(Resource::As, tight).unwrap();
    move || setrlimit(Resource::As, before).unwrap()
}

fn compute_for(time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        std::hint::spin_loop();
    }
}

async fn within<T>(scheduler: &Scheduler, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(HANG, future).await;
    ended.unwrap_or_else(|_| panic!("hangs: {:?}", scheduler.preempt_stats()))
}

#[test]
fn a_scheduler_is_built_without_the_threads_that_it_needs() {
    alone(
        "a_scheduler_is_built_without_the_threads_that_it_needs",
        || {
            let runtime = common::runtime(1);
            let _inside = runtime.enter();
            let build = || {
                let builder = Scheduler::builder().vcpus(4);
                builder.preempt(Preempt::default()).build()
            };
            let restore = refuse_threads();
            let refused = build().map(drop);
            restore();
            assert!(
                matches!(refused, Err(BuildError::PreemptThread(_))),
                "{refused:?}"
            );
            let scheduler = build().unwrap();
            assert!(
                scheduler.preempt_stats().unwrap().threads > 4,
                "none to spare"
            );
        },
    );
}

/// By the bound on a user's processes, which does not hold for root: so the thread that builds is not root's any more.
#[test]
fn a_scheduler_is_built_beyond_the_processes_of_its_user() {
    alone(
        "a_scheduler_is_built_beyond_the_processes_of_its_user",
        || {
            let runtime = common::runtime(1);
            let _inside = runtime.enter();
            let before = getrlimit(Resource::Nproc);
            let none = Rlimit {
                current: Some(0),
                ..before
            };
            setrlimit(Resource::Nproc, none).unwrap();
            if rustix::process::getuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                if rustix::thread::set_thread_res_uid(nobody, nobody, nobody).is_err() {
                    println!("not shown: this container's root may not become another user");
                    return;
                }
            }
            let builder = Scheduler::builder().vcpus(2);
            let refused = builder.preempt(Preempt::default()).build().map(drop);
            assert!(
                matches!(refused, Err(BuildError::PreemptThread(_))),
                "{refused:?}"
            );
            // What was begun is undone: with room again it is built.
            setrlimit(Resource::Nproc, before).unwrap();
            let builder = Scheduler::builder().vcpus(2);
            drop(builder.preempt(Preempt::default()).build().unwrap());
        },
    );
}

#[test]
fn a_spare_that_was_refused_once_is_missing_for_ever() {
    alone("a_spare_that_was_refused_once_is_missing_for_ever", || {
        let runtime = common::runtime(1);
        runtime.block_on(async {
            let builder = Scheduler::builder().vcpus(1);
            let scheduler = builder.preempt(Preempt::default()).build().unwrap();
            let group = scheduler.group("group").unwrap().create().unwrap();
            let hogs = |count: usize| -> Vec<_> {
                let hog = || group.spawn(async { compute_for(Duration::from_millis(60)) });
                (0..count).map(|_| hog()).collect()
            };
            let stats = || scheduler.preempt_stats().unwrap();
            // A thread's own allocations come at its first work.
            for hog in hogs(1) {
                within(&scheduler, hog).await.unwrap();
            }
            let restore = refuse_threads();
            let started = Instant::now();
            while stats().refused == 0 || stats().threads_refused < 2 {
                assert!(started.elapsed() < HANG / 3, "{:?}", stats());
                // More than there are threads: on a busy machine the first hog alone may have taken several.
                for hog in hogs(stats().threads + 4) {
                    within(&scheduler, hog).await.unwrap();
                }
            }
            restore();
            let before = stats().detached;
            while stats().detached < before + 4 {
                assert!(started.elapsed() < HANG / 2, "{:?}", stats());
                for hog in hogs(4) {
                    within(&scheduler, hog).await.unwrap();
                }
            }
            within(&scheduler, scheduler.shutdown()).await;
        });
    });
}

/// How often tokio has said that the system gives its blocking pool no thread: by a panic, of which nothing else is to be said here.
fn count_refusals() -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let refusals = count.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.to_string().contains("OS can't spawn worker thread") {
            refusals.fetch_add(1, Ordering::Relaxed);
        } else {
            eprintln!("{panic}");
        }
    }));
    count
}

/// A preempting scheduler, and what restores the room for threads, of which the runtime's blocking pool has none.
async fn without_threads() -> (Scheduler, impl FnOnce()) {
    let builder = Scheduler::builder().vcpus(1);
    let scheduler = builder.preempt(Preempt::default()).build().unwrap();
    let group = scheduler.group("warm").unwrap().create().unwrap();
    let hog = group.spawn(async { compute_for(Duration::from_millis(20)) });
    within(&scheduler, hog).await.unwrap();
    (scheduler, refuse_threads())
}

/// The runtime has the functions, and nobody comes for them: their handles gave no answer until somebody else called `spawn_blocking`.
#[test]
fn a_function_waits_for_a_thread_that_nobody_asks_for() {
    alone("a_function_waits_for_a_thread_that_nobody_asks_for", || {
        let runtime = common::runtime(1);
        runtime.block_on(async {
            let refusals = count_refusals();
            let (scheduler, restore) = without_threads().await;
            let group = |path: &str| scheduler.group(path).unwrap().create().unwrap();
            let (group, other, killed) = (group("a"), group("b/c"), group("d"));
            let stats = || scheduler.preempt_stats().unwrap();
            let started = Instant::now();
            let functions: Vec<_> = (0..5)
                .map(|number| group.spawn_blocking(move || number))
                .chain((5..8).map(|number| other.spawn_blocking(move || number)))
                .collect();
            let ended = [killed.spawn_blocking(|| 8), group.spawn_blocking(|| 9)];
            killed.kill().unwrap();
            ended[1].abort();
            // It asks again, and not all the time.
            while refusals.load(Ordering::Relaxed) < 4 {
                assert!(started.elapsed() < HANG / 2, "{:?}", stats());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let refused = refusals.load(Ordering::Relaxed) as u128;
            let attempts = started.elapsed().as_millis() / 100 + 1;
            let seen = stats();
            assert!(functions.iter().all(|function| !function.is_finished()));
            restore();
            for (number, function) in functions.into_iter().enumerate() {
                assert_eq!(within(&scheduler, function).await.unwrap(), number);
            }
            for function in ended {
                let ended = within(&scheduler, function).await;
                assert!(ended.unwrap_err().is_cancelled());
            }
            assert!(refused <= attempts, "{refused} in {attempts} x 100 ms");
            assert!(seen.threads_refused >= 4, "{seen:?}");
            assert_eq!((seen.in_line, stats().in_line), (8, 0));
            // With a thread they begin at once again.
            let again = within(&scheduler, group.spawn_blocking(|| 10)).await;
            assert_eq!(again.unwrap(), 10);
            within(&scheduler, scheduler.shutdown()).await;
        });
    });
}

/// Functions that wait for a thread, of a group that was killed, too, are dropped at the end that `end` brings about. In a process of its own: threads that have
/// ended leave their stacks to others.
fn ends_without_threads(end: impl FnOnce(tokio::runtime::Runtime, &Scheduler)) {
    let runtime = common::runtime(1);
    let _refusals = count_refusals();
    let dropped = Arc::new(AtomicUsize::new(0));
    let (scheduler, restore) = runtime.block_on(without_threads());
    let function = |path: &str| {
        let group = scheduler.group(path).unwrap().create().unwrap();
        let captured = common::CountDrop(dropped.clone());
        group.spawn_blocking(move || drop(captured))
    };
    let functions = ["a", "a", "b/c", "killed"].map(function);
    scheduler.find("killed").unwrap().kill().unwrap();
    end(runtime, &scheduler);
    let started = Instant::now();
    let are_told = || functions.iter().all(|function| function.is_finished());
    while dropped.load(Ordering::SeqCst) < 4 || !are_told() {
        assert!(started.elapsed() < HANG / 2, "{:?}", scheduler.losses());
        std::thread::sleep(Duration::from_millis(1));
    }
    restore();
    let losses = scheduler.losses();
    assert_eq!((losses.killed_tasks, losses.dropped_tasks), (1, 3));
}

#[test]
fn a_shutdown_waits_for_a_thread_that_is_not_to_be_had() {
    alone(
        "a_shutdown_waits_for_a_thread_that_is_not_to_be_had",
        || {
            ends_without_threads(|runtime, scheduler| {
                runtime.block_on(within(scheduler, scheduler.shutdown()));
            });
        },
    );
}

#[test]
fn a_runtime_waits_for_a_thread_that_is_not_to_be_had() {
    alone("a_runtime_waits_for_a_thread_that_is_not_to_be_had", || {
        ends_without_threads(|runtime, _| drop(runtime));
    });
}

#[test]
fn a_signal_that_the_program_handles_is_taken_from_it() {
    alone("a_signal_that_the_program_handles_is_taken_from_it", || {
        let runtime = common::runtime(1);
        let _inside = runtime.enter();
        let _users = signal(SignalKind::from_raw(SIGUSR2)).unwrap();
        let preempt = Preempt::default().signal(Signal::new(SIGUSR2).unwrap());
        let refused = Scheduler::builder().preempt(preempt).build().map(drop);
        let taken = InstallError::SignalTaken { signal: SIGUSR2 };
        assert_eq!(refused, Err(BuildError::Pause(taken)));
    });
}

/// Polls are taken off their virtual CPUs as before, and go on instead of being stopped.
#[test]
fn a_handler_that_is_displaced_stops_the_scheduler_in_silence() {
    alone(
        "a_handler_that_is_displaced_stops_the_scheduler_in_silence",
        || {
            let runtime = common::runtime(1);
            runtime.block_on(async {
                let preempt = Preempt::default().signal(Signal::new(SIGUSR2).unwrap());
                let builder = Scheduler::builder().vcpus(1);
                let scheduler = builder.preempt(preempt).build().unwrap();
                let _users = signal(SignalKind::from_raw(SIGUSR2)).unwrap();
                let group = scheduler.group("group").unwrap().create().unwrap();
                let stop = Arc::new(AtomicBool::new(false));
                let hogs: Vec<_> = (0..3)
                    .map(|_| {
                        let stop = stop.clone();
                        group.spawn(async move {
                            while !stop.load(Ordering::Relaxed) {
                                std::hint::spin_loop();
                            }
                        })
                    })
                    .collect();
                let started = Instant::now();
                while scheduler.preempt_stats().unwrap().unpaused == 0 {
                    assert!(started.elapsed() < HANG, "{:?}", scheduler.preempt_stats());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                within(&scheduler, group.spawn(async {})).await.unwrap();
                stop.store(true, Ordering::Relaxed);
                for hog in hogs {
                    within(&scheduler, hog).await.unwrap();
                }
                within(&scheduler, scheduler.shutdown()).await;
            });
        },
    );
}

/// Nobody chooses a poll whose group has no budget, or is frozen, and so nobody charged it: the clocks of one that could not be stopped stood still, and a
/// limit's debt with them.
#[test]
fn a_poll_that_cannot_be_stopped_is_not_charged() {
    alone("a_poll_that_cannot_be_stopped_is_not_charged", || {
        #[cfg(feature = "tracing")]
        let said = said::listen();
        let runtime = common::runtime(1);
        runtime.block_on(async {
            let preempt = Preempt::default().signal(Signal::new(SIGUSR2).unwrap());
            let builder = Scheduler::builder().vcpus(2);
            let scheduler = builder.preempt(preempt).build().unwrap();
            let _users = signal(SignalKind::from_raw(SIGUSR2)).unwrap();
            let group = |name: &str| scheduler.group(name).unwrap().create().unwrap();
            let (limited, frozen) = (group("limited"), group("frozen"));
            limited.set_max("5ms/100ms").unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let started = Instant::now();
            for hog in [&limited, &frozen] {
                let (stop, runs) = (stop.clone(), Arc::new(AtomicBool::new(false)));
                let running = runs.clone();
                drop(hog.spawn(async move {
                    running.store(true, Ordering::Relaxed);
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }));
                while !runs.load(Ordering::Relaxed) {
                    assert!(started.elapsed() < HANG, "{:?}", scheduler.preempt_stats());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            frozen.freeze_immediately().unwrap();
            // Longer than whoever froze it waits for its choice, which charges it once.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let before = [limited.cpu_time(), frozen.cpu_time()];
            let much = Duration::from_millis(300);
            let are_charged = || {
                let now = [limited.cpu_time(), frozen.cpu_time()];
                now.iter()
                    .zip(before)
                    .all(|(now, before)| *now > before + much)
            };
            while !are_charged() {
                let now = [limited.cpu_time(), frozen.cpu_time()];
                assert!(started.elapsed() < HANG / 2, "{before:?}, then {now:?}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(scheduler.preempt_stats().unwrap().unpaused > 1);
            #[cfg(feature = "tracing")]
            said::once(&said, SIGUSR2);
            frozen.thaw().unwrap();
            stop.store(true, Ordering::Relaxed);
            within(&scheduler, scheduler.shutdown()).await;
        });
    });
}

/// What is said by `tracing`.
#[cfg(feature = "tracing")]
mod said {
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    #[derive(Clone, Default)]
    pub struct Said(Arc<Mutex<Vec<String>>>);

    struct Line<'a>(&'a mut String);

    impl Visit for Line<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0.push_str(&format!("{field}={value:?} "));
        }
    }

    impl Subscriber for Said {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "quotient"
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = String::new();
            event.record(&mut Line(&mut line));
            self.0.lock().unwrap().push(line);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    pub fn listen() -> Said {
        let said = Said::default();
        tracing::subscriber::set_global_default(said.clone()).unwrap();
        said
    }

    /// One event names the signal.
    pub fn once(said: &Said, signal: i32) {
        let said = said.0.lock().unwrap();
        let named = format!("signal={signal} ");
        let about = said
            .iter()
            .filter(|line| line.contains("cannot be stopped"));
        let about: Vec<_> = about.collect();
        assert!(about.len() == 1 && about[0].contains(&named), "{said:?}");
        assert!(about[0].contains("another handler"), "{said:?}");
    }
}

/// One thread polls the host's tasks, and the carriers are threads of ours: nothing more is needed.
#[test]
fn a_host_with_a_single_thread_is_too_small() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let builder = Scheduler::builder().vcpus(2);
        let scheduler = builder.preempt(Preempt::default()).build().unwrap();
        let group = scheduler.group("group").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                group.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        for round in 0..5 {
            let answer = within(&scheduler, group.spawn(async move { round })).await;
            assert_eq!(answer.unwrap(), round);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for hog in hogs {
            within(&scheduler, hog).await.unwrap();
        }
        within(&scheduler, scheduler.shutdown()).await;
    });
}
