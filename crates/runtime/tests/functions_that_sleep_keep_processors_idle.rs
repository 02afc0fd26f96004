//! Hazards: work that computes in bursts and sleeps in between, as whatever reads files does, keeps virtual CPUs that it does not use while others
//! wait for them, under preemption; or, since it holds none, computes beyond its group's weight or limit; or has the watch look at it for as
//! long as it sleeps. On real threads: bounds are generous, and taken from what the machine gave others just before.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::eventually;
use preempted::{Used, keeps_to_a_tenth, limited};
use quotient::{Group, Scheduler, ThreadMeter};

const SLEEPERS: usize = 8;
const WINDOW: Duration = Duration::from_millis(700);

fn on_two<F: Future<Output = ()>>(body: impl FnOnce(Scheduler) -> F) {
    preempted::run(2, Duration::from_secs(10), body);
}

/// Who computes in bursts.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Not scheduled, and only billed: what others are measured by.
    Thread,
    Function,
    Job,
    Poll,
}

/// Starts `SLEEPERS` in the group that compute for `burst` and sleep for `rest` until `used` stops.
fn start(kind: Kind, group: &Group, used: &Arc<Used>, burst: Duration, rest: Duration) {
    for _ in 0..SLEEPERS {
        let (group, used) = (group.clone(), used.clone());
        let (of_thread, bursts) = (group.clone(), move || {
            while !used.stop.load(Ordering::Relaxed) {
                used.compute(burst);
                std::thread::sleep(rest);
            }
        });
        match kind {
            Kind::Thread => drop(std::thread::spawn(move || {
                let meter = ThreadMeter::enter(&of_thread);
                bursts();
                drop(meter);
            })),
            Kind::Function => drop(group.spawn_blocking(bursts)),
            Kind::Job => drop(std::thread::spawn(move || {
                ThreadMeter::run(&of_thread, bursts)
            })),
            Kind::Poll => drop(group.spawn(async move { bursts() })),
        }
    }
}

/// Whoever computes so ends with the test, however that ends: it would keep the runtime from its end.
#[derive(Default)]
struct UntilTheEnd(Arc<Used>);

impl Drop for UntilTheEnd {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Functions that compute without end.
fn computers(group: &Group, count: usize) -> UntilTheEnd {
    let all = UntilTheEnd::default();
    for _ in 0..count {
        let used = all.0.clone();
        drop(group.spawn_blocking(move || used.compute(Duration::from_secs(3_600))));
    }
    all
}

async fn in_a_window(used: &Used) -> Duration {
    let before = used.so_far();
    tokio::time::sleep(WINDOW).await;
    used.so_far() - before
}

/// A group that computes beside an equal one of `kind` has about what it has beside threads that nobody schedules. (An eighth of that, when the
/// sleepers kept their virtual CPUs.)
fn leave_room(kind: Kind) {
    on_two(|scheduler| async move {
        // Of its own, since threads leave what they have used for the tasks of their group to pay.
        let [threads, sleeping, computing] = ["threads", "sleeping", "computing"]
            .map(|path| scheduler.group(path).unwrap().create().unwrap());
        let victim = computers(&computing, 4);
        let mut seen = Vec::new();
        let mut is_fair = false;
        while !is_fair {
            assert!(
                seen.len() < 4,
                "beside threads, and beside {kind:?}: {seen:?}"
            );
            let mut had = [Duration::ZERO; 2];
            let kinds = [(Kind::Thread, &threads), (kind, &sleeping)];
            for ((kind, group), had) in kinds.into_iter().zip(&mut had) {
                let all = UntilTheEnd::default();
                let (burst, rest) = (Duration::from_micros(60), Duration::from_micros(800));
                start(kind, group, &all.0, burst, rest);
                tokio::time::sleep(Duration::from_millis(50)).await;
                *had = in_a_window(&victim.0).await;
                drop(all);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            is_fair = had[1] * 3 > had[0];
            seen.push(had);
        }
    });
}

#[test]
fn functions_that_sleep_leave_their_virtual_cpu_to_others() {
    leave_room(Kind::Function);
}

#[test]
fn jobs_that_sleep_leave_their_virtual_cpu_to_others() {
    leave_room(Kind::Job);
}

#[test]
fn polls_that_sleep_leave_their_virtual_cpu_to_others() {
    leave_room(Kind::Poll);
}

/// They ask for four times the machine, and their group is due a quarter of it.
#[test]
fn bursts_do_not_escape_their_groups_weight() {
    on_two(|scheduler| async move {
        let group = |path, weight| {
            let group = scheduler.group(path).unwrap().weight(weight);
            group.create().unwrap()
        };
        let (light, heavy) = (group("light", 100), group("heavy", 300));
        let (sleepers, step) = (UntilTheEnd::default(), Duration::from_millis(1));
        start(Kind::Function, &light, &sleepers.0, step, step);
        let used = &sleepers.0;
        let victim = computers(&heavy, 4);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut seen = Vec::new();
        loop {
            let before = (used.so_far(), victim.0.so_far());
            tokio::time::sleep(2 * WINDOW).await;
            let had = (used.so_far() - before.0, victim.0.so_far() - before.1);
            seen.push(had);
            // 3 if each has its part.
            if had.1 * 2 > had.0 * 3 {
                break;
            }
            assert!(seen.len() < 4, "1 to 3: {seen:?}");
        }
    });
}

#[test]
fn bursts_do_not_escape_their_groups_limit() {
    on_two(|scheduler| async move {
        let group = limited(&scheduler, "limited", "10ms/100ms");
        let all = UntilTheEnd::default();
        let (burst, rest) = (Duration::from_micros(300), Duration::from_micros(500));
        start(Kind::Function, &group, &all.0, burst, rest);
        tokio::time::sleep(Duration::from_millis(300)).await;
        keeps_to_a_tenth(&scheduler, &group).await;
    });
}

/// What each of many that begin and sleep, one after the other, does.
const SHORT_SLEEP: Duration = Duration::from_millis(2);

/// Has `round` begin `started` functions or jobs that sleep, a few times at most, until less than a third of these had a turn in which a virtual CPU waited
/// for nothing, or the virtual CPUs are kept from whoever else wants them. (Nine of ten, when each had its first turn to itself; one in a hundred
/// since, and more on a machine that gives the threads no processor, where they are not seen to sleep.)
async fn leave_turns<F: Future<Output = ()>>(
    scheduler: &Scheduler,
    started: u64,
    round: impl Fn() -> F,
) {
    let mut seen = Vec::new();
    loop {
        let before = scheduler.preempt_stats().unwrap().blocked;
        round().await;
        let stats = scheduler.preempt_stats().unwrap();
        if (stats.blocked - before) * 3 < started {
            break;
        }
        seen.push(stats);
        assert!(seen.len() < 4, "{seen:?}");
    }
}

#[test]
fn short_functions_that_sleep_take_turns_in_which_nobody_computes() {
    on_two(|scheduler| async move {
        let group = scheduler.group("short").unwrap().create().unwrap();
        let (tasks, each) = (20, 40);
        let start = |_| {
            let here = group.clone();
            group.spawn(async move {
                for _ in 0..each {
                    let function = || std::thread::sleep(SHORT_SLEEP);
                    here.spawn_blocking(function).await.unwrap();
                }
            })
        };
        let round = || async {
            for task in (0..tasks).map(start).collect::<Vec<_>>() {
                task.await.unwrap();
            }
        };
        leave_turns(&scheduler, tasks * each, round).await;
    });
}

#[test]
fn short_jobs_that_sleep_take_turns_in_which_nobody_computes() {
    on_two(|scheduler| async move {
        let group = scheduler.group("short").unwrap().create().unwrap();
        let (threads, each) = (8, 50);
        let start = |_| {
            let group = group.clone();
            tokio::task::spawn_blocking(move || {
                for _ in 0..each {
                    ThreadMeter::run(&group, || std::thread::sleep(SHORT_SLEEP)).unwrap();
                }
            })
        };
        let round = || async {
            for thread in (0..threads).map(start).collect::<Vec<_>>() {
                thread.await.unwrap();
            }
        };
        leave_turns(&scheduler, threads * each, round).await;
    });
}

/// Tasks, each of which starts a function that sleeps and waits for it, again and again: of tokio's own, or of the group's.
fn start_short(group: Option<&Group>, tasks: usize, used: &Arc<Used>) {
    for _ in 0..tasks {
        let (group, used) = (group.cloned(), used.clone());
        tokio::spawn(async move {
            while !used.stop.load(Ordering::Relaxed) {
                let function = || std::thread::sleep(SHORT_SLEEP);
                match &group {
                    Some(group) => group.spawn_blocking(function).await.unwrap(),
                    None => tokio::task::spawn_blocking(function).await.unwrap(),
                }
            }
        });
    }
}

/// A group that computes beside equal ones whose functions sleep has an eighth at least of what it has beside functions that nobody schedules: those are fewer,
/// where the machine has no time. (A fifteenth, when each of them kept a virtual CPU for as long as it takes to see that it sleeps.)
#[test]
fn short_functions_that_sleep_leave_their_virtual_cpu_to_others() {
    on_two(|scheduler| async move {
        let computing = scheduler.group("computing").unwrap().create().unwrap();
        let groups: Vec<_> = (0..5)
            .map(|index| format!("sleeping{index}"))
            .map(|path| scheduler.group(&path).unwrap().create().unwrap())
            .collect();
        let victim = UntilTheEnd::default();
        for _ in 0..4 {
            let used = victim.0.clone();
            drop(computing.spawn(async move {
                while !used.stop.load(Ordering::Relaxed) {
                    used.compute(Duration::from_micros(300));
                    tokio::task::yield_now().await;
                }
            }));
        }
        let mut seen = Vec::new();
        let mut is_fair = false;
        while !is_fair {
            assert!(seen.len() < 4, "beside tokio's, and scheduled: {seen:?}");
            let mut had = [Duration::ZERO; 2];
            for (is_scheduled, had) in [false, true].into_iter().zip(&mut had) {
                let all = UntilTheEnd::default();
                for group in &groups {
                    start_short(is_scheduled.then_some(group), 10, &all.0);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                *had = in_a_window(&victim.0).await;
                drop(all);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            is_fair = had[1] * 8 > had[0];
            seen.push(had);
        }
    });
}

/// How often the watch's thread has gone to sleep. `None` if the system does not tell.
fn looks() -> Option<u64> {
    let of_watch = |task: std::fs::DirEntry| {
        let path = task.path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let switches = status.lines().find_map(|line| {
            let count = line.strip_prefix("voluntary_ctxt_switches:")?;
            count.trim().parse::<u64>().ok()
        });
        switches.filter(|_| name.trim() == "quotient-watch")
    };
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let looks = tasks.filter_map(|task| of_watch(task.ok()?));
    looks.reduce(|a, b| a + b)
}

/// A thousand looks a second, when the watch never parked; and once it looks seldom it still finds who wakes.
#[test]
fn who_sleeps_for_long_is_looked_at_seldom_and_found_as_it_wakes() {
    on_two(|scheduler| async move {
        let group = limited(&scheduler, "sleeping", "10ms/100ms");
        let one = UntilTheEnd::default();
        let used = &one.0;
        let (wakes, of_one) = (Instant::now() + Duration::from_millis(2_500), used.clone());
        drop(group.spawn_blocking(move || {
            std::thread::sleep(wakes - Instant::now());
            of_one.compute(Duration::from_secs(3_600));
        }));
        // This thread's own time-outs wake no virtual CPU.
        std::thread::sleep(Duration::from_millis(700));
        if let Some(before) = looks() {
            std::thread::sleep(Duration::from_millis(1_000));
            let looks = looks().unwrap_or_default() - before;
            assert!(looks < 400, "{looks} looks in a second");
        }
        eventually("it has computed", || used.so_far() > Duration::ZERO).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        keeps_to_a_tenth(&scheduler, &group).await;
    });
}
