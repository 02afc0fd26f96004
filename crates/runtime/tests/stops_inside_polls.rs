//! Hazards: a freeze or a kill does not reach inside a poll that does not return; or it does so where the poll was promised to be left
//! alone; or what it stopped is never let go again. On real threads: counters and hang bounds only.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use quotient::{Group, JoinHandle, Leftover, Scheduler, ThreadMeter};

/// Runs `body` with two virtual CPUs.
fn run<F>(body: impl FnOnce(Scheduler) -> F)
where
    F: Future<Output = ()>,
{
    preempted::run(2, Duration::from_secs(1), body);
}

/// What a hog and its test share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    shielded: AtomicBool,
    /// CPU time of the hog's thread. Unit: nanoseconds.
    used: AtomicU64,
    dropped: AtomicBool,
}

impl Shared {
    fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(SeqCst))
    }

    fn compute(&self, until: impl Fn() -> bool) {
        while !until() {
            let now = common::time_here();
            self.used
                .store(u64::try_from(now.as_nanos()).unwrap(), SeqCst);
        }
    }
}

struct Dropped(Arc<Shared>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.store(true, SeqCst);
    }
}

/// A task that computes in one poll until it is told to stop, at first under a guard if asked to.
async fn hog(group: &Group, shielded: bool) -> (Arc<Shared>, JoinHandle<()>) {
    let shared = Arc::new(Shared::default());
    shared.shielded.store(shielded, SeqCst);
    let held = Dropped(shared.clone());
    let handle = group.spawn(async move {
        let shared = &held.0;
        let guard = quotient::uninterrupted();
        shared.compute(|| !shared.shielded.load(SeqCst));
        drop(guard);
        shared.compute(|| shared.stop.load(SeqCst));
        std::future::pending::<()>().await;
    });
    goes_on(&shared).await;
    (shared, handle)
}

/// Waits until it has computed for 10 ms more.
async fn goes_on(hog: &Shared) {
    let from = hog.used();
    while hog.used() < from + Duration::from_millis(10) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until it has used less than `most` in 200 ms. One that runs uses more; on a busy machine it may use little all the same,
/// and then this proves nothing.
async fn uses_at_most(hog: &Shared, most: Duration) {
    loop {
        let (from, started) = (hog.used(), Instant::now());
        tokio::time::sleep(Duration::from_millis(200)).await;
        if hog.used() - from <= most && started.elapsed() < Duration::from_millis(400) {
            return;
        }
    }
}

#[test]
fn a_freeze_that_is_to_stop_polls_lets_them_run_on() {
    run(|scheduler| async move {
        let group = scheduler.group("above/group").unwrap().create().unwrap();
        let above = scheduler.find("above").unwrap();
        let (hog, handle) = hog(&group, false).await;
        for _ in 0..2 {
            above.freeze_immediately().unwrap();
            uses_at_most(&hog, Duration::ZERO).await;
            above.thaw().unwrap();
            goes_on(&hog).await;
        }
        // Frozen as usual, the poll goes on to its end, and so does one that stood.
        above.freeze().unwrap();
        goes_on(&hog).await;
        above.freeze_immediately().unwrap();
        uses_at_most(&hog, Duration::ZERO).await;
        above.freeze().unwrap();
        goes_on(&hog).await;
        hog.stop.store(true, SeqCst);
        above.thaw().unwrap();
        handle.abort();
        assert!(handle.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_section_that_is_not_to_be_interrupted_is_stopped_by_a_freeze() {
    run(|scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let (hog, handle) = hog(&group, true).await;
        let from = hog.used();
        group.freeze_immediately().unwrap();
        // It may have 50 ms; without a guard it would not get as far.
        while hog.used() < from + Duration::from_millis(40) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        hog.shielded.store(false, SeqCst);
        uses_at_most(&hog, Duration::ZERO).await;
        group.thaw().unwrap();
        hog.stop.store(true, SeqCst);
        handle.abort();
        assert!(handle.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_guard_that_is_never_dropped_keeps_its_poll_going_for_ever() {
    run(|scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let (hog, handle) = hog(&group, true).await;
        group.freeze_immediately().unwrap();
        let stands = || scheduler.preempt_stats().unwrap().insisted > 0;
        common::eventually("that it stands under its guard", stands).await;
        uses_at_most(&hog, Duration::ZERO).await;
        group.thaw().unwrap();
        goes_on(&hog).await;
        hog.shielded.store(false, SeqCst);
        hog.stop.store(true, SeqCst);
        handle.abort();
        assert!(handle.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_scheduler_never_ends_because_a_poll_stands_frozen() {
    let mut seen = None;
    run(|scheduler| {
        let seen = &mut seen;
        async move {
            let group = scheduler.group("group").unwrap().create().unwrap();
            let (hog, _handle) = hog(&group, false).await;
            group.freeze_immediately().unwrap();
            uses_at_most(&hog, Duration::ZERO).await;
            hog.stop.store(true, SeqCst);
            *seen = Some(hog);
        }
    });
    // The end of `run` has waited for the shutdown.
    assert!(seen.unwrap().dropped.load(SeqCst));
}

#[test]
fn a_killed_poll_keeps_its_share_or_its_future_for_ever() {
    run(|scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let (hog, handle) = hog(&group, false).await;
        group.kill_immediately().unwrap();
        // Short turns are 200 us in 20 ms: 2 ms here, and 20 of them at most.
        uses_at_most(&hog, Duration::from_millis(20)).await;
        assert!(!hog.dropped.load(SeqCst), "dropped under a poll");
        // Who comes later is alive.
        assert_eq!(group.spawn(async { 7 }).await.unwrap(), 7);
        hog.stop.store(true, SeqCst);
        assert!(handle.await.unwrap_err().is_cancelled());
        assert!(hog.dropped.load(SeqCst));
    });
}

/// A poll that is borne by a thread of its own is followed there by the task's next one. Killed between the two it waited for a turn that nobody would
/// give it, and neither its handle nor the shutdown ended: 5 tasks of 64.
#[test]
fn tasks_that_are_killed_between_two_long_polls_are_lost() {
    run(|scheduler| async move {
        for round in 0..12_u64 {
            let group = scheduler.group(&format!("group{round}")).unwrap();
            let group = group.create().unwrap();
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    group.spawn(async {
                        loop {
                            let end = common::time_here() + Duration::from_micros(1_500);
                            while common::time_here() < end {}
                            tokio::task::yield_now().await;
                        }
                    })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(10 + 3 * round)).await;
            group.kill_immediately().unwrap();
            for task in tasks {
                let ended: Result<(), _> = task.await;
                assert!(ended.unwrap_err().is_cancelled());
            }
        }
    });
}

#[test]
fn polls_of_a_group_that_is_not_preemptible_are_taken_off_their_virtual_cpus() {
    run(|scheduler| async move {
        let above = scheduler.group("above").unwrap();
        above.preemptible(false).create().unwrap();
        let group = scheduler.group("above/group").unwrap().create().unwrap();
        let round = || async {
            let hogs: Vec<_> = (0..4)
                .map(|_| {
                    group.spawn(async {
                        let end = common::time_here() + Duration::from_millis(25);
                        while common::time_here() < end {}
                    })
                })
                .collect();
            for hog in hogs {
                hog.await.unwrap();
            }
        };
        let detached = || scheduler.preempt_stats().unwrap().detached;
        for _ in 0..3 {
            round().await;
        }
        assert_eq!(detached(), 0);
        // What is set for the group itself does not lift what is set above it; but that can be taken back.
        let own = scheduler.group("above/group").unwrap();
        own.preemptible(true).create().unwrap();
        round().await;
        assert_eq!(detached(), 0);
        let above = scheduler.group("above").unwrap();
        above.preemptible(true).create().unwrap();
        while detached() == 0 {
            round().await;
        }
    });
}

/// A tenant has a handle of its own group, and can make children of it.
#[test]
fn a_tenant_exempts_itself_by_a_child_that_is_not_preemptible() {
    run(|scheduler| async move {
        let tenants = scheduler.group("tenants").unwrap();
        tenants.preemptible(true).create().unwrap();
        let tenant = scheduler.group("tenants/one").unwrap().create().unwrap();
        let made = tenant.spawn(async {
            let own = quotient::Group::current().unwrap();
            own.child("exempt").preemptible(false).create().unwrap()
        });
        let exempt = made.await.unwrap();
        let (hog, handle) = hog(&exempt, false).await;
        // Nobody would take it off its virtual CPU.
        let detached = || scheduler.preempt_stats().unwrap().detached > 0;
        common::eventually("a long poll", detached).await;
        hog.stop.store(true, SeqCst);
        handle.abort();
        assert!(handle.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn the_end_of_a_poll_that_stands_frozen_waits_for_a_thaw() {
    run(|scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let kill = |group: &Group, _: &JoinHandle<()>| group.kill().unwrap();
        let stop = |group: &Group, _: &JoinHandle<()>| group.kill_immediately().unwrap();
        let abort = |_: &Group, handle: &JoinHandle<()>| handle.abort();
        let endings: [fn(&Group, &JoinHandle<()>); 3] = [kill, stop, abort];
        for (freeze_first, end) in [true, false]
            .map(|first| endings.map(|end| (first, end)))
            .concat()
        {
            let (hog, handle) = hog(&group, false).await;
            if freeze_first {
                group.freeze_immediately().unwrap();
                uses_at_most(&hog, Duration::ZERO).await;
                end(&group, &handle);
            } else {
                end(&group, &handle);
                group.freeze_immediately().unwrap();
            }
            // It runs on, if only by the short turns of the killed, and its future is dropped at its return.
            goes_on(&hog).await;
            assert!(!hog.dropped.load(SeqCst), "dropped under a poll");
            hog.stop.store(true, SeqCst);
            assert!(handle.await.unwrap_err().is_cancelled());
            assert!(hog.dropped.load(SeqCst) && group.is_frozen());
            group.thaw().unwrap();
        }
    });
}

#[test]
fn a_group_is_removed_while_its_poll_stands_frozen_and_never_goes() {
    run(|scheduler| async move {
        for leftover in [Leftover::Kill, Leftover::MoveToParent] {
            let group = scheduler.group("group/inner").unwrap().create().unwrap();
            let (hog, handle) = hog(&group, false).await;
            group.freeze_immediately().unwrap();
            uses_at_most(&hog, Duration::ZERO).await;
            scheduler.find("group").unwrap().remove(leftover).unwrap();
            hog.stop.store(true, SeqCst);
            handle.abort();
            assert!(handle.await.unwrap_err().is_cancelled());
            while scheduler.find("group").is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn a_function_that_begins_in_a_frozen_group_runs() {
    run(|scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        group.freeze_immediately().unwrap();
        let function = Arc::new(Shared::default());
        let (come, comes) = tokio::sync::oneshot::channel();
        let thread = {
            let (function, group) = (function.clone(), group.clone());
            std::thread::spawn(move || {
                let body = || function.compute(|| function.stop.load(SeqCst));
                come.send(()).unwrap();
                ThreadMeter::run(&group, body).unwrap();
            })
        };
        comes.await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        uses_at_most(&function, Duration::ZERO).await;
        group.thaw().unwrap();
        goes_on(&function).await;
        function.stop.store(true, SeqCst);
        while !thread.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        thread.join().unwrap();
    });
}

/// Ends loops when it is dropped: a runtime waits for polls that do not return, also for those of a test that fails.
struct StopAtEnd(Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_poll_that_is_frozen_holds_a_lock_of_the_scheduler() {
    run(|scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let stop = StopAtEnd(Arc::default());
        let looking = {
            let (scheduler, group, stop) = (scheduler.clone(), group.clone(), stop.0.clone());
            group.clone().spawn(async move {
                while !stop.load(SeqCst) {
                    scheduler.groups();
                    group.stats();
                    group.task_stats();
                    group.max();
                    scheduler.find("elsewhere").ok();
                }
            })
        };
        for round in 0..60 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            group.freeze_immediately().unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let other = scheduler.group(&format!("other-{round}")).unwrap();
            let other = other.create().unwrap();
            assert_eq!(other.spawn(async { 7 }).await.unwrap(), 7);
            other.remove(Leftover::Kill).unwrap();
            group.task_stats();
            group.thaw().unwrap();
        }
        drop(stop);
        looking.await.unwrap();
    });
}

/// A tenant had the tick thread, and every virtual CPU whose tasks have timers, wait for its frozen polls.
#[test]
fn a_poll_that_is_frozen_holds_the_list_of_timers() {
    const ROUNDS: u32 = 20;
    run(|scheduler| async move {
        let group = scheduler.group("group").unwrap().create().unwrap();
        let far = Duration::from_secs(1_000_000);
        // So that most of what follows is done with the list locked.
        let armed = (0..1_000).map(|_| group.on_cpu_time(far).unwrap());
        let armed: Vec<_> = armed.collect();
        let stop = StopAtEnd(Arc::default());
        let arms = |_| {
            let (group, stop) = (group.clone(), stop.0.clone());
            group.clone().spawn(async move {
                while !stop.load(SeqCst) {
                    drop(group.on_cpu_time(far).unwrap());
                }
            })
        };
        let arming: Vec<_> = (0..2).map(arms).collect();
        let other = scheduler.group("other").unwrap().create().unwrap();
        let mut late = 0;
        for _ in 0..ROUNDS {
            tokio::time::sleep(Duration::from_millis(20)).await;
            group.freeze_immediately().unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let before = scheduler.preempt_stats().unwrap().missed_beats;
            let clock = other.cpu_time();
            let task = other.spawn(async { common::burn(Duration::from_millis(1)) });
            let timer = other.on_cpu_time(clock + Duration::from_millis(1)).unwrap();
            task.await.unwrap();
            assert!(timer.await.is_ok());
            let missed = scheduler.preempt_stats().unwrap().missed_beats - before;
            late += u32::from(missed > 0);
            group.thaw().unwrap();
        }
        // Only who is not given the lock is rescued so late that the frozen are let go, which was so in most rounds; and a busy machine, now and then.
        assert!(
            late <= ROUNDS / 2,
            "somebody waited for frozen polls: {late}"
        );
        drop(stop);
        for task in arming {
            task.await.unwrap();
        }
        drop(armed);
    });
}
