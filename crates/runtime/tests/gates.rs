//! What static keys switch in the runtime. Keys belong to the process, so this file has one test.

use quotient::{Group, Scheduler};
use quotient_keys::{Mode, SoftReason, find};

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
async fn features_are_switched_in_a_program_that_does_not_let_its_code_be_rewritten() {
    let names = [
        "bandwidth",
        "load_averages",
        "events",
        "checks",
        "poll_histograms",
    ];
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

    assert_eq!(group.stats().poll_duration.count(), 0);
    scheduler
        .set_poll_histograms(true)
        .expect("nothing hinders");
    let before = group.stats();
    let (polls, _) = grown(&group).await;
    scheduler
        .set_poll_histograms(false)
        .expect("nothing hinders");
    let after = group.stats();
    assert_eq!(after.poll_duration.count(), polls);
    // The same figure, kept in two ways.
    assert_eq!(after.poll_duration.sum(), after.wall - before.wall);
    let (_, _) = grown(&group).await;
    assert_eq!(group.stats().poll_duration, after.poll_duration);

    scheduler.set_checks(true).expect("nothing hinders");
    let (polls, recorded) = grown(&group).await;
    assert_eq!(recorded, polls);
    scheduler.set_checks(false).expect("nothing hinders");

    // All of this without a byte of code written: the application has not asked.
    let before = quotient_keys::status();
    assert!(before.sites > 0);
    assert_eq!((before.patched, before.barriers), (0, 0));
    if before.soft_reason != Some(SoftReason::Platform) {
        assert_eq!(before.soft_reason, Some(SoftReason::NotAsked));
    }
    if quotient_keys::patch() != Mode::Soft {
        let histograms = find("quotient.histograms").expect("the key is listed");
        let status = histograms.status();
        assert!(status.sites > 0 && status.patched == status.sites);
        // The same behaviour, patched.
        let (polls, recorded) = grown(&group).await;
        assert!(polls > YIELDS && recorded == polls);
        scheduler.set_histograms(false).expect("nothing hinders");
        let (polls, recorded) = grown(&group).await;
        assert!(polls > YIELDS && recorded == 0);
        scheduler.set_histograms(true).expect("nothing hinders");
    }
    scheduler.shutdown().await;
}
