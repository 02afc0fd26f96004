//! What static keys switch in the runtime. Keys belong to the process, so this file has one test.

use std::time::{Duration, Instant};

use quotient::{Group, Scheduler};
use quotient_keys::{Mode, find};

/// Polls of one task that yields.
const YIELDS: u64 = 100;

/// Runs a yielder in `group` and returns by how much its polls and its histogram have grown.
async fn grown(group: &Group) -> (u64, u64) {
    let before = group.stats();
    let task = group.spawn(async {
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
    });
    task.await.expect("the task does not panic");
    let after = group.stats();
    (
        after.polls - before.polls,
        after.run_delay.count() - before.run_delay.count(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn features_are_switched_while_tasks_run() {
    let names = ["bandwidth", "load_averages", "events", "checks"];
    for name in names {
        let key = find(&format!("quotient.{name}")).expect("the key is listed");
        assert!(!key.is_enabled(), "{name} is off until somebody uses it");
    }
    let scheduler = Scheduler::builder().build().expect("inside a runtime");
    let group = scheduler.group("g").and_then(|builder| builder.create());
    let group = group.expect("a valid path");

    let (polls, recorded) = grown(&group).await;
    assert!(
        polls > YIELDS && recorded == polls,
        "{recorded} of {polls} recorded"
    );
    scheduler.set_histograms(false).expect("nothing hinders");
    let (polls, recorded) = grown(&group).await;
    assert!(
        polls > YIELDS && recorded == 0,
        "{recorded} of {polls} recorded"
    );
    scheduler.set_histograms(true).expect("nothing hinders");

    scheduler.set_checks(true).expect("nothing hinders");
    let (polls, recorded) = grown(&group).await;
    assert_eq!(recorded, polls);
    scheduler.set_checks(false).expect("nothing hinders");

    // The sites reach their cheap form without anybody waiting for it.
    let histograms = find("quotient.histograms").expect("the key is listed");
    if quotient_keys::status().default_mode != Mode::Soft {
        let patient_until = Instant::now() + Duration::from_secs(20);
        while histograms.status().patched == 0 && Instant::now() < patient_until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let status = histograms.status();
        assert!(status.sites > 0 && status.patched == status.sites);
    }
    scheduler.shutdown().await;
}
