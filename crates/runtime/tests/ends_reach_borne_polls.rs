//! Hazard: a task that computes in a loop of checkpoints is taken off its virtual CPU by preemption, nobody asks it to give way any more, and so its
//! one poll goes on for ever: neither an abort nor the end of its group or of the scheduler gets to it.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::time::Duration;

use quotient::{Group, JoinHandle, Preempt, Scheduler};

/// A hang.
const HANG: Duration = Duration::from_secs(60);

fn works(group: &Group, alive: &Arc<()>) -> JoinHandle<()> {
    let alive = alive.clone();
    group.spawn(async move {
        loop {
            let mut sum = 1_u64;
            for number in 0..100_000_u64 {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
            }
            quotient::checkpoint().await;
            if Arc::strong_count(&alive) == 0 {
                return;
            }
        }
    })
}

/// Eight of them in a group each, of which most are borne.
async fn begin(scheduler: &Scheduler, alive: &Arc<()>) -> (Vec<Group>, Vec<JoinHandle<()>>) {
    let group = |number| scheduler.group(&format!("tenants/{number}")).unwrap();
    let groups: Vec<Group> = (0..8)
        .map(|number| group(number).create().unwrap())
        .collect();
    let tasks = groups.iter().map(|group| works(group, alive)).collect();
    while scheduler
        .preempt_stats()
        .is_none_or(|stats| stats.borne == 0)
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (groups, tasks)
}

async fn all_end(alive: &Arc<()>) {
    let ended = async {
        while Arc::strong_count(alive) > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = tokio::time::timeout(HANG, ended).await;
    let left = Arc::strong_count(alive) - 1;
    assert!(ended.is_ok(), "{left} tasks go on");
}

fn scheduler() -> Scheduler {
    let builder = Scheduler::builder().preempt(Preempt::default());
    builder.build().expect("a scheduler")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_never_comes() {
    let (scheduler, alive) = (scheduler(), Arc::new(()));
    let (_groups, tasks) = begin(&scheduler, &alive).await;
    for task in &tasks {
        task.abort();
    }
    all_end(&alive).await;
    tokio::time::timeout(HANG, scheduler.shutdown())
        .await
        .expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_group_never_comes() {
    let (scheduler, alive) = (scheduler(), Arc::new(()));
    let (groups, _tasks) = begin(&scheduler, &alive).await;
    for group in &groups {
        group.kill().expect("it is there");
    }
    all_end(&alive).await;
    tokio::time::timeout(HANG, scheduler.shutdown())
        .await
        .expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_scheduler_never_comes() {
    let (scheduler, alive) = (scheduler(), Arc::new(()));
    let (_groups, _tasks) = begin(&scheduler, &alive).await;
    tokio::time::timeout(HANG, scheduler.shutdown())
        .await
        .expect("it ends");
    all_end(&alive).await;
}
