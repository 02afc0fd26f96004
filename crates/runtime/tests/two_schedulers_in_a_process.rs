//! Hazard: inside an `in_group` of another scheduler, the charged group and the virtual CPU that polls belong to different schedulers.

#[path = "common/repeat.rs"]
mod repeat;

use std::future::Future;
use std::time::Duration;

use quotient::{Group, InGroupExt, Scheduler};
use repeat::on_one_two_and_four_workers;

/// Runs `inner` in a group of a scheduler with one virtual CPU, inside tasks of one with many.
fn from_a_large_scheduler<F>(inner: fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    on_one_two_and_four_workers(|_, _| async move {
        let (large, small) = (scheduler(8), scheduler(1));
        let (outer, other) = (group(&large), group(&small));
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let other = other.clone();
                outer.spawn(async move {
                    tokio::task::yield_now().await;
                    inner().in_group(&other).await;
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // Nobody is left marked as blocked: it would never be given work again.
        let after: Vec<_> = (0..16).map(|_| outer.spawn(async {})).collect();
        for task in after {
            task.await.unwrap();
        }
    });
}

fn scheduler(vcpus: usize) -> Scheduler {
    Scheduler::builder().vcpus(vcpus).build().unwrap()
}

fn group(scheduler: &Scheduler) -> Group {
    scheduler.group("g").unwrap().create().unwrap()
}

#[test]
fn checkpoint_in_a_group_of_another() {
    from_a_large_scheduler(|| async {
        for _ in 0..3 {
            quotient::checkpoint().await;
            repeat::compute(Duration::from_micros(300));
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn block_in_place_in_a_group_of_another() {
    from_a_large_scheduler(|| async {
        quotient::block_in_place(|| std::thread::sleep(Duration::from_millis(1)));
    });
}
