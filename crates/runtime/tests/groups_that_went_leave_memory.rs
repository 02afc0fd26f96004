//! Hazard: groups that come and go leave something behind, or one that stays takes more than it is worth. What the process holds is
//! asked of the system, so bounds are generous, and the tests of this file take turns.
#![cfg(target_os = "linux")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{burn, eventually, repeatedly, scheduler};
use quotient::{Group, Leftover};

/// One test of this file at a time: the process has one figure.
static TURN: Mutex<()> = Mutex::new(());

/// What the allocator may keep for itself, with an arena for each thread that ever ran. Unit: bytes.
const SLACK: usize = 12 << 20;

/// Resident memory of the process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = text.split_whitespace().nth(1).unwrap();
    pages.parse::<usize>().unwrap() * 4096
}

#[test]
fn groups_that_come_and_go() {
    /// Groups of one round.
    const GROUPS: usize = 400;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (rounds, first) = (AtomicUsize::new(0), AtomicUsize::new(0));
    repeatedly(|workers| {
        let (rounds, first) = (&rounds, &first);
        async move {
            let (scheduler, _) = scheduler(workers);
            for number in 0..GROUPS {
                let path = format!("come/and/go{number}");
                let group = scheduler.group(&path).unwrap().create().unwrap();
                let task = group.spawn(async { tokio::task::yield_now().await });
                task.await.unwrap();
                group.remove(Leftover::Kill).unwrap();
            }
            scheduler
                .find("come")
                .unwrap()
                .remove(Leftover::Kill)
                .unwrap();
            eventually("all are gone", || {
                !scheduler
                    .groups()
                    .iter()
                    .any(|group| group.path().starts_with("come"))
            })
            .await;
            scheduler.shutdown().await;
            if rounds.fetch_add(1, Ordering::Relaxed) == 0 {
                first.store(resident(), Ordering::Relaxed);
            }
        }
    });
    let grown = resident().saturating_sub(first.into_inner());
    let groups = GROUPS * (rounds.into_inner() - 1);
    assert!(
        grown < SLACK + 256 * groups,
        "{grown} bytes after {groups} groups"
    );
}

#[test]
fn what_a_group_takes_on_each_virtual_cpu() {
    const GROUPS: usize = 300;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    repeatedly(|workers| async move {
        let (scheduler, _) = scheduler(workers);
        let before = resident();
        let groups: Vec<Group> = (0..GROUPS)
            .map(|number| {
                scheduler
                    .group(&format!("g{number}"))
                    .unwrap()
                    .create()
                    .unwrap()
            })
            .collect();
        let mut tasks = Vec::new();
        for group in &groups {
            for _ in 0..workers {
                tasks.push(group.spawn(async {
                    for _ in 0..2 {
                        burn(Duration::from_micros(3));
                        tokio::task::yield_now().await;
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        let each = resident().saturating_sub(before) / GROUPS;
        // 300 to 2,900 bytes were seen, with what the allocator kept of the tasks that have ended.
        let bound = 4_096 + 2_048 * workers;
        assert!(each < bound, "{each} bytes a group, {bound} allowed");
        scheduler.shutdown().await;
    });
}

/// Hazard: on a machine of many processors a group takes memory for each of them, though it runs on few.
#[test]
fn a_group_on_few_of_many_virtual_cpus_takes_little() {
    const GROUPS: usize = 4_000;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Kept to the end, so that what one machine's groups give back does not hide what the next one's take.
    let mut kept = Vec::new();
    for (vcpus, most) in [(2, 4_096), (32, 8_192), (128, 8_192)] {
        common::runtime(vcpus).block_on(common::guarded(async {
            let (scheduler, _) = scheduler(vcpus);
            // What the threads and queues of the virtual CPUs take is no group's.
            let first = scheduler.group("first").unwrap().create().unwrap();
            let work = || {
                first.spawn(async {
                    burn(Duration::from_micros(20));
                    tokio::task::yield_now().await;
                })
            };
            let tasks = std::iter::repeat_with(work).take(32 * vcpus);
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
            let before = resident();
            let groups: Vec<Group> = (0..GROUPS)
                .map(|number| {
                    let path = format!("g{number}");
                    scheduler.group(&path).unwrap().create().unwrap()
                })
                .collect();
            for some in groups.chunks(50) {
                // One after the other has another home: on up to four of them, or as many as there are.
                let each = vcpus.min(4);
                let tasks = some
                    .iter()
                    .flat_map(|group| std::iter::repeat_with(|| group.spawn(async {})).take(each));
                for task in tasks.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
            }
            let grown = resident().saturating_sub(before);
            println!("{} bytes a group, {vcpus} virtual CPUs", grown / GROUPS);
            assert!(grown < SLACK + most * GROUPS, "{}", grown / GROUPS);
            scheduler.shutdown().await;
            kept.push(groups);
        }));
    }
}
