//! A task that computes inside `in_group` of a limited group is held to that limit, though its own group has none: in the middle of its polls in
//! a preempting scheduler, between them in any. On real threads: bounds are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{burn, eventually};
use preempted::{HANG, Used, alone};
use quotient::{Group, InGroupExt, Leftover, Preempt, Scheduler};

const WATCHED: Duration = Duration::from_secs(2);
const MS: Duration = Duration::from_millis(1);

/// What is used by the end of `WATCHED`, by each of `used`, in CPUs.
async fn watch<const N: usize>(used: [&Used; N]) -> [f64; N] {
    let (before, began) = (used.map(Used::so_far), Instant::now());
    tokio::time::sleep(WATCHED).await;
    let passed = began.elapsed().as_secs_f64();
    let after = used.map(Used::so_far);
    std::array::from_fn(|at| (after[at] - before[at]).as_secs_f64() / passed)
}

/// Tasks of `own`, each an endless poll in `payer`.
fn compute_in(own: &Group, payer: &Group, tasks: usize, used: &Arc<Used>) -> Arc<AtomicUsize> {
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..tasks {
        let (used, payer, ended) = (used.clone(), payer.clone(), ended.clone());
        drop(own.spawn(async move {
            async move { used.compute(HANG) }.in_group(&payer).await;
            ended.fetch_add(1, Ordering::SeqCst);
        }));
    }
    ended
}

#[test]
fn an_endless_poll_in_a_limited_group_has_no_limit() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let free = scheduler.group("free").unwrap().create().unwrap();
        let above = preempted::limited(&scheduler, "payer", "5ms/100ms");
        let below = above.child("below").create().unwrap();
        for payer in [&above, &below] {
            let [inside, beside] = [(); 2].map(|()| Arc::new(Used::default()));
            let ended = compute_in(&free, payer, 4, &inside);
            let hog = beside.clone();
            let hog = free.spawn(async move { hog.compute(HANG) });
            // The first period has its quota at once.
            tokio::time::sleep(300 * MS).await;
            let [inside_cpus, beside_cpus] = watch([&inside, &beside]).await;
            let stats = scheduler.preempt_stats().unwrap();
            println!(
                "{}: {inside_cpus:.4} of 0.05, {beside_cpus:.3} beside",
                payer.path()
            );
            // The limit, what short turns add on a busy machine, and no more.
            assert!(inside_cpus < 0.06, "{inside_cpus} {stats:?}");
            assert!(inside_cpus > 0.02, "{inside_cpus} {stats:?}");
            assert!(beside_cpus > 2.0 * inside_cpus, "{beside_cpus} {stats:?}");
            for used in [&inside, &beside] {
                used.stop.store(true, Ordering::SeqCst);
            }
            eventually("they end", || ended.load(Ordering::SeqCst) == 4).await;
            hog.await.unwrap();
        }
    });
}

#[test]
fn short_polls_in_a_limited_group_have_no_limit() {
    let _alone = alone();
    for preempts in [false, true] {
        common::runtime(2).block_on(async {
            let mut builder = Scheduler::builder().vcpus(2);
            if preempts {
                builder = builder.preempt(Preempt::default());
            }
            let scheduler = builder.build().unwrap();
            let free = scheduler.group("free").unwrap().create().unwrap();
            let payer = preempted::limited(&scheduler, "payer", "5ms/100ms");
            let used = Arc::new(Used::default());
            let tasks = (0..4).map(|_| {
                let (used, payer) = (used.clone(), payer.clone());
                free.spawn(async move {
                    let part = async {
                        while !used.stop.load(Ordering::SeqCst) {
                            used.compute(MS / 5);
                            tokio::task::yield_now().await;
                        }
                    };
                    part.in_group(&payer).await;
                })
            });
            let tasks: Vec<_> = tasks.collect();
            tokio::time::sleep(300 * MS).await;
            let [cpus] = watch([&used]).await;
            println!("preempts {preempts}: {cpus:.4} of 0.05");
            assert!(cpus < 0.065 && cpus > 0.02, "{cpus}");
            used.stop.store(true, Ordering::SeqCst);
            for task in tasks {
                let ended = tokio::time::timeout(HANG, task).await;
                ended.expect("hangs").unwrap();
            }
            assert!(
                tokio::time::timeout(HANG, scheduler.shutdown())
                    .await
                    .is_ok()
            );
        });
    }
}

/// What ends the reason why polls stand, by name.
type End = (&'static str, fn(&Group));

/// Whatever ends the reason why it stands lets it go on, though the limit will not for an hour.
#[test]
fn who_has_stood_for_a_payer_stands_for_ever() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let free = scheduler.group("free").unwrap().create().unwrap();
        let ends: [End; 4] = [
            ("lifted", |payer| payer.set_max("max").unwrap()),
            ("raised", |payer| payer.set_max("100ms/100ms").unwrap()),
            ("removed", |payer| payer.remove(Leftover::Kill).unwrap()),
            ("killed", |payer| {
                payer.kill().unwrap();
                payer.set_max("max").unwrap();
            }),
        ];
        for (name, end) in ends {
            let payer = preempted::limited(&scheduler, name, "1ms/1s");
            let used = Arc::new(Used::default());
            let ended = compute_in(&free, &payer, 3, &used);
            // They owe some seconds.
            eventually("they have begun", || used.so_far() > 5 * MS).await;
            tokio::time::sleep(200 * MS).await;
            let before = used.so_far();
            assert!(before < 400 * MS, "{name}: {before:?}");
            end(&payer);
            eventually(name, || used.so_far() > before + 100 * MS).await;
            used.stop.store(true, Ordering::SeqCst);
            eventually("they end", || ended.load(Ordering::SeqCst) == 3).await;
        }
    });
}

/// An abort, and the scheduler's end, reach what stands for its payer as they reach any poll: after it.
#[test]
fn who_stands_for_a_payer_has_no_end() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let free = scheduler.group("free").unwrap().create().unwrap();
        let payer = preempted::limited(&scheduler, "payer", "1ms/1s");
        let used = Arc::new(Used::default());
        let tasks = (0..3).map(|_| {
            let (used, payer) = (used.clone(), payer.clone());
            free.spawn(async move {
                async { used.compute(HANG) }.in_group(&payer).await;
                std::future::pending::<()>().await;
            })
        });
        let tasks: Vec<_> = tasks.collect();
        eventually("they have begun", || used.so_far() > 5 * MS).await;
        tokio::time::sleep(100 * MS).await;
        for task in &tasks {
            task.abort();
        }
        used.stop.store(true, Ordering::SeqCst);
        for task in tasks {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        // More of the kind at the end: it waits for polls, which go on once it closes.
        let used = Arc::new(Used::default());
        compute_in(&free, &payer, 3, &used);
        tokio::time::sleep(100 * MS).await;
        let last = used.clone();
        std::thread::spawn(move || {
            std::thread::sleep(500 * MS);
            last.stop.store(true, Ordering::SeqCst);
        });
    });
}

/// It holds a lock that its own group wants, while limits, freezes and its group change: the lock comes back, and nobody is left standing.
#[test]
fn who_stands_for_a_payer_keeps_its_lock_for_ever() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let free = scheduler.group("free").unwrap().create().unwrap();
        let payer = preempted::limited(&scheduler, "payer", "1ms/1s");
        let used = Arc::new(Used::default());
        let ended = compute_in(&free, &payer, 6, &used);
        eventually("they have begun", || used.so_far() > 5 * MS).await;
        let lock = Arc::new(std::sync::Mutex::new(()));
        let held = Arc::new(AtomicUsize::new(0));
        let (lent, holds, for_it) = (lock.clone(), held.clone(), payer.clone());
        payer.set_max("max").unwrap();
        let holder = free.spawn(async move {
            let part = async {
                let guard = lent.lock().unwrap();
                holds.store(1, Ordering::SeqCst);
                burn(20 * MS);
                drop(guard);
            };
            part.in_group(&for_it).await;
        });
        eventually("it holds", || held.load(Ordering::SeqCst) == 1).await;
        payer.set_max("1ms/1s").unwrap();
        let waiter = free.spawn(async move { drop(lock.lock().unwrap()) });
        for step in 0..40 {
            match step % 4 {
                0 => free.freeze_immediately().unwrap(),
                1 => free.thaw().unwrap(),
                2 => payer.set_max("2ms/100ms").unwrap(),
                _ => payer.set_max("1ms/1s").unwrap(),
            }
            tokio::time::sleep(7 * MS).await;
        }
        free.thaw().unwrap();
        for task in [holder, waiter] {
            task.await.unwrap();
        }
        used.stop.store(true, Ordering::SeqCst);
        // Who has not begun waits until what the others owe is paid, some minutes at this rate.
        payer.set_max("50ms/100ms").unwrap();
        eventually("they end", || ended.load(Ordering::SeqCst) == 6).await;
    });
}

/// The innermost one computes: its limit holds, and nobody else's.
#[test]
fn an_outer_payer_stops_who_computes_for_another() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let free = scheduler.group("free").unwrap().create().unwrap();
        let rich = scheduler.group("rich").unwrap().create().unwrap();
        let poor = preempted::limited(&scheduler, "poor", "5ms/100ms");
        let [inner_rich, inner_poor] = [(); 2].map(|()| Arc::new(Used::default()));
        let nest = |outer: &Group, inner: &Group, used: &Arc<Used>| {
            let (outer, inner, used) = (outer.clone(), inner.clone(), used.clone());
            let inner = async move { async { used.compute(HANG) }.in_group(&inner).await };
            free.spawn(async move { inner.in_group(&outer).await })
        };
        let tasks = [
            nest(&poor, &rich, &inner_rich),
            nest(&rich, &poor, &inner_poor),
        ];
        let before = (rich.cpu_time(), poor.cpu_time());
        let [rich_cpus, poor_cpus] = watch([&inner_rich, &inner_poor]).await;
        println!("rich {rich_cpus:.3}, poor {poor_cpus:.4}");
        assert!(
            rich_cpus > 0.15 && poor_cpus < 0.075,
            "{rich_cpus} {poor_cpus}"
        );
        assert!(rich.cpu_time() - before.0 > WATCHED / 8);
        assert!(poor.cpu_time() - before.1 < WATCHED / 12);
        for (used, task) in [inner_rich, inner_poor].into_iter().zip(tasks) {
            used.stop.store(true, Ordering::SeqCst);
            task.await.unwrap();
        }
    });
}

/// The payer is of a scheduler whose clock began later: it is charged by its own. (By the other's it was refilled for seconds that never were, and
/// not any more until its own clock had come to that.)
#[test]
fn a_payer_of_another_scheduler_is_charged_by_the_wrong_clock() {
    let _alone = alone();
    common::runtime(2).block_on(async {
        let preempting = || {
            let builder = Scheduler::builder().vcpus(2);
            builder.preempt(Preempt::default()).build().unwrap()
        };
        let older = preempting();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let younger = preempting();
        let free = older.group("free").unwrap().create().unwrap();
        let payer = preempted::limited(&younger, "payer", "5ms/100ms");
        let used = Arc::new(Used::default());
        let ended = compute_in(&free, &payer, 4, &used);
        tokio::time::sleep(300 * MS).await;
        let [cpus] = watch([&used]).await;
        println!("{cpus:.4} of 0.05");
        assert!(cpus < 0.065, "{cpus}");
        used.stop.store(true, Ordering::SeqCst);
        eventually("they end", || ended.load(Ordering::SeqCst) == 4).await;
        // What they owe is some periods'.
        let began = Instant::now();
        payer.spawn(async { burn(MS) }).await.unwrap();
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(4), "{waited:?}");
        for scheduler in [older, younger] {
            assert!(
                tokio::time::timeout(HANG, scheduler.shutdown())
                    .await
                    .is_ok()
            );
        }
    });
}
