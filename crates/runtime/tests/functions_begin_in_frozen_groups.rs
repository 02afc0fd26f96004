//! Hazards: blocking functions, jobs and checkpoints of a frozen group begin and end as if it were not, under preemption; or they wait where they keep others
//! from the blocking pool; or for ever: for a thaw that nobody sees, in a group that was killed or removed, or for a scheduler or a runtime that ends.
//! On real threads: bounds of time are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{CountDrop, burn, eventually};
use preempted::{HANG, limited};
use quotient::{Group, JoinHandle, Leftover, MeterError, Preempt, Scheduler, ThreadMeter};

/// More than there are places, and threads in tokio's pool.
const MANY: usize = 700;
/// As long as functions that may begin take to do so, several times over.
const A_WHILE: Duration = Duration::from_millis(200);

fn on_two<F: Future<Output = ()>>(body: impl FnOnce(Scheduler) -> F) {
    preempted::run(2, Duration::from_secs(10), body);
}

/// Functions, jobs and checkpoints of a group.
#[derive(Default)]
struct Load {
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
    functions: Vec<JoinHandle<()>>,
    threads: Vec<std::thread::JoinHandle<Result<(), MeterError>>>,
}

impl Load {
    fn functions(group: &Group, count: usize) -> Self {
        let mut load = Self::default();
        for _ in 0..count {
            let (begun, held) = (load.begun.clone(), CountDrop(load.dropped.clone()));
            load.functions.push(group.spawn_blocking(move || {
                let _held = held;
                begun.fetch_add(1, Ordering::SeqCst);
            }));
        }
        load
    }

    fn and_jobs(mut self, group: &Group) -> Self {
        for _ in 0..2 {
            let (group, begun) = (group.clone(), self.begun.clone());
            self.threads.push(std::thread::spawn(move || {
                ThreadMeter::run(&group, || {
                    begun.fetch_add(1, Ordering::SeqCst);
                })
            }));
        }
        self
    }

    fn and_checkpoint(mut self, group: &Group) -> Self {
        let (group, begun) = (group.clone(), self.begun.clone());
        self.threads.push(std::thread::spawn(move || {
            let meter = ThreadMeter::enter(&group)?;
            meter.checkpoint();
            begun.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }));
        self
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// All of it has begun, and ends.
    async fn ends(self, what: &str) {
        for function in self.functions {
            function.await.unwrap();
        }
        for thread in self.threads {
            eventually(what, || thread.is_finished()).await;
            thread.join().unwrap().unwrap();
        }
    }
}

/// What kinds of groups there are: a limit, and how they are frozen.
const KINDS: [(&str, bool, bool); 5] = [
    ("max", false, false),
    ("max", true, false),
    ("50ms/100ms", false, false),
    ("50ms/100ms", true, true),
    ("max", false, true),
];

/// A group, and what is frozen: itself, or the one above.
fn frozen(scheduler: &Scheduler, (max, inside, above): (&str, bool, bool)) -> (Group, Group) {
    // A name is free again some time after the removal.
    static GROUPS: AtomicUsize = AtomicUsize::new(0);
    let parent = format!("above {}", GROUPS.fetch_add(1, Ordering::Relaxed));
    let group = limited(scheduler, &format!("{parent}/frozen"), max);
    let target = if above {
        scheduler.find(&parent).unwrap()
    } else {
        group.clone()
    };
    if inside {
        target.freeze_immediately().unwrap();
    } else {
        target.freeze().unwrap();
    }
    (group, target)
}

#[test]
fn functions_and_jobs_begin_before_the_thaw() {
    on_two(|scheduler| async move {
        let free = limited(&scheduler, "free", "max");
        for kind in KINDS {
            let (group, target) = frozen(&scheduler, kind);
            let load = Load::functions(&group, MANY);
            let load = load.and_jobs(&group).and_checkpoint(&group);
            tokio::time::sleep(A_WHILE).await;
            assert_eq!(load.begun(), 0, "{kind:?} {:?}", scheduler.preempt_stats());
            let stats = scheduler.preempt_stats().unwrap();
            assert_eq!((stats.in_line, stats.foreign), (MANY, 0), "{kind:?}");
            // They keep nobody from the pool's threads.
            free.spawn_blocking(|| ()).await.unwrap();
            eventually("its end", || {
                scheduler.preempt_stats().unwrap().foreign == 0
            })
            .await;
            target.thaw().unwrap();
            load.ends("a thaw").await;
            group.remove(Leftover::Refuse).unwrap();
        }
    });
}

/// They are on their way to threads, in line, or wait for their first turns by then.
#[test]
fn functions_that_wait_begin_after_a_freeze() {
    on_two(|scheduler| async move {
        let free = limited(&scheduler, "free", "max");
        let stop = Arc::new(AtomicBool::new(false));
        // Nobody has a turn at once.
        let hogs: Vec<_> = (0..4)
            .map(|_| {
                let stop = stop.clone();
                free.spawn(async move { preempted::compute(|| stop.load(Ordering::Relaxed)) })
            })
            .collect();
        for (max, inside) in [("max", false), ("50ms/100ms", false), ("max", true)] {
            let group = limited(&scheduler, "frozen", max);
            let begun = Arc::new(AtomicUsize::new(0));
            let ended = Arc::new(AtomicUsize::new(0));
            let functions: Vec<_> = (0..MANY)
                .map(|_| {
                    let (begun, ended) = (begun.clone(), ended.clone());
                    group.spawn_blocking(move || {
                        begun.fetch_add(1, Ordering::SeqCst);
                        burn(Duration::from_micros(300));
                        ended.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let freeze = || {
                if inside {
                    group.freeze_immediately()
                } else {
                    group.freeze()
                }
            };
            for _ in 0..3 {
                freeze().unwrap();
                // Those that are about to begin.
                tokio::time::sleep(A_WHILE).await;
                let before = begun.load(Ordering::SeqCst);
                tokio::time::sleep(A_WHILE).await;
                assert_eq!(begun.load(Ordering::SeqCst), before, "{max} {inside}");
                if !inside {
                    eventually("the end of what has begun", || {
                        ended.load(Ordering::SeqCst) == before
                    })
                    .await;
                }
                let other = free.spawn_blocking(|| ());
                let other = tokio::time::timeout(HANG / 2, other).await;
                assert!(other.is_ok(), "no thread: {:?}", scheduler.preempt_stats());
                group.thaw().unwrap();
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            for function in functions {
                function.await.unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        for hog in hogs {
            hog.await.unwrap();
        }
    });
}

#[test]
fn what_has_begun_stands_in_a_frozen_group() {
    on_two(|scheduler| async move {
        for max in ["max", "50ms/100ms"] {
            let group = limited(&scheduler, "frozen", max);
            let begun = Arc::new(AtomicUsize::new(0));
            let stop = Arc::new(AtomicBool::new(false));
            let functions: Vec<_> = (0..4)
                .map(|_| {
                    let (begun, stop) = (begun.clone(), stop.clone());
                    group.spawn_blocking(move || {
                        begun.fetch_add(1, Ordering::SeqCst);
                        preempted::compute(|| stop.load(Ordering::Relaxed))
                    })
                })
                .collect();
            eventually("four that begin", || begun.load(Ordering::SeqCst) == 4).await;
            group.freeze().unwrap();
            tokio::time::sleep(A_WHILE).await;
            stop.store(true, Ordering::Relaxed);
            for function in functions {
                function.await.unwrap();
            }
            group.thaw().unwrap();
        }
    });
}

#[test]
fn frozen_functions_do_not_hear_of_their_ends() {
    on_two(|scheduler| async move {
        for kind in KINDS {
            let (group, target) = frozen(&scheduler, kind);
            let load = Load::functions(&group, MANY);
            let aborted = &load.functions[..100];
            aborted.iter().for_each(JoinHandle::abort);
            let dropped = || load.dropped.load(Ordering::SeqCst);
            eventually("an abort", || dropped() == 100).await;
            target.kill().unwrap();
            eventually("a kill", || dropped() == MANY).await;
            for function in load.functions {
                assert!(function.await.unwrap_err().is_cancelled());
            }
            assert_eq!(load.begun.load(Ordering::SeqCst), 0, "{kind:?}");
            // What comes later lives, and waits.
            let later = Load::functions(&group, 10).and_jobs(&group);
            tokio::time::sleep(A_WHILE).await;
            assert_eq!(later.begun(), 0, "{kind:?}");
            target.thaw().unwrap();
            later.ends("a thaw after a kill").await;
        }
    });
}

#[test]
fn frozen_functions_wait_for_a_group_that_was_removed() {
    on_two(|scheduler| async move {
        for kind in KINDS {
            for leftover in [Leftover::Kill, Leftover::MoveToParent] {
                let (group, target) = frozen(&scheduler, kind);
                let load = Load::functions(&group, 20).and_jobs(&group);
                tokio::time::sleep(A_WHILE / 4).await;
                group.remove(leftover).unwrap();
                for thread in load.threads {
                    eventually("a job's end", || thread.is_finished()).await;
                    let refused =
                        matches!(thread.join().unwrap(), Err(MeterError::GroupRemoved { .. }));
                    assert!(refused, "{kind:?}");
                }
                let (_, _, is_above) = kind;
                if leftover == Leftover::MoveToParent && is_above {
                    tokio::time::sleep(A_WHILE).await;
                    assert_eq!(load.begun.load(Ordering::SeqCst), 0, "{kind:?}");
                    target.thaw().unwrap();
                }
                for function in load.functions {
                    let lives = function.await.is_ok();
                    assert_eq!(lives, leftover == Leftover::MoveToParent, "{kind:?}");
                }
                if is_above {
                    target.thaw().unwrap();
                }
            }
        }
    });
}

#[test]
fn frozen_functions_keep_a_scheduler_from_its_end() {
    for kind in KINDS {
        let dropped: Arc<AtomicUsize> = Arc::default();
        on_two(|scheduler| {
            let dropped = dropped.clone();
            async move {
                let (group, _) = frozen(&scheduler, kind);
                let load = Load::functions(&group, MANY);
                let load = load.and_jobs(&group).and_checkpoint(&group);
                tokio::time::sleep(A_WHILE / 4).await;
                scheduler.shutdown().await;
                for function in load.functions {
                    assert!(function.await.unwrap_err().is_cancelled());
                }
                // From here on the threads are free.
                for thread in load.threads {
                    eventually("a thread", || thread.is_finished()).await;
                    thread.join().unwrap().unwrap();
                }
                dropped.store(load.dropped.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        });
        assert_eq!(dropped.load(Ordering::SeqCst), MANY);
    }
}

/// The runtime goes with nobody to shut the scheduler down.
#[test]
fn a_runtime_waits_for_frozen_functions() {
    let _alone = preempted::alone();
    for kind in KINDS {
        for workers in [0, 2] {
            let runtime = match workers {
                0 => tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap(),
                _ => common::runtime(workers),
            };
            let load = runtime.block_on(async {
                let scheduler = Scheduler::builder().vcpus(2).preempt(Preempt::default());
                let scheduler = scheduler.build().unwrap();
                let (group, _) = frozen(&scheduler, kind);
                let load = Load::functions(&group, MANY).and_jobs(&group);
                tokio::time::sleep(A_WHILE / 4).await;
                load
            });
            let began = Instant::now();
            drop(runtime);
            assert!(began.elapsed() < HANG / 2, "{:?}", began.elapsed());
            let all = || {
                load.dropped.load(Ordering::SeqCst) == MANY
                    && load.threads.iter().all(|thread| thread.is_finished())
            };
            while !all() {
                assert!(began.elapsed() < HANG, "{kind:?}: {:?}", load.dropped);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(load.begun() <= 2, "{} have begun", load.begun());
        }
    }
}

/// How often the process's threads have gone to sleep so far.
fn sleeps() -> u64 {
    let of = |status: String| {
        let line = status.lines().find(|line| line.starts_with("voluntary_"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = threads.filter_map(|thread| {
        let status = thread.ok()?.path().join("status");
        std::fs::read_to_string(status).ok()
    });
    statuses.filter_map(of).sum()
}

/// Nobody pays for that: a tenant had 0.8 processors in wake-ups of other tenants' functions, by thaws of its own group.
#[test]
fn a_thaw_wakes_all_that_have_not_begun() {
    const WAITING: u64 = 100;
    const ROUNDS: u64 = 200;
    on_two(|scheduler| async move {
        let debtor = limited(&scheduler, "debtor", "1ms/1s");
        let other = limited(&scheduler, "debtor/other", "max");
        // Owes more than this test takes: in a poll that is not stopped, or that alone would take half a minute.
        let burns = debtor.child("burns").preemptible(false).create().unwrap();
        let debt = burns.spawn(async { burn(Duration::from_millis(300)) });
        debt.await.unwrap();
        let waiting = Load::functions(&other, WAITING as usize);
        let stands = limited(&scheduler, "stands", "max");
        stands.freeze().unwrap();
        let stands_at_the_gate = Load::default().and_jobs(&stands);
        let (own, calm) = (
            limited(&scheduler, "own", "max"),
            limited(&scheduler, "calm", "max"),
        );
        eventually("those that wait for their first turn", || {
            scheduler.preempt_stats().unwrap().foreign as u64 >= WAITING
        })
        .await;
        let rounds = async |act: &dyn Fn()| {
            let before = sleeps();
            for _ in 0..ROUNDS {
                act();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            sleeps() - before
        };
        let none = rounds(&|| ()).await;
        let acts: [(&str, &dyn Fn()); 4] = [
            ("a thaw of what is not frozen", &|| own.thaw().unwrap()),
            ("another freeze", &|| stands.freeze().unwrap()),
            ("a freeze and a thaw", &|| {
                calm.freeze().unwrap();
                calm.thaw().unwrap();
            }),
            ("a kill", &|| calm.kill().unwrap()),
        ];
        for (what, act) in acts {
            let some = rounds(act).await;
            let more = some.saturating_sub(none);
            assert!(more < WAITING * ROUNDS / 4, "{what}: {some} and {none}");
        }
        assert!(
            waiting.begun() < WAITING as usize / 2,
            "{}",
            waiting.begun()
        );
        stands.thaw().unwrap();
        stands_at_the_gate.ends("a thaw").await;
        debtor.set_max("max").unwrap();
        waiting.ends("a limit that is lifted").await;
    });
}
