//! Hazard: a poll that was taken off its virtual CPU ends on a thread of its own, and is in its task's figures only: its group had no polls, no longest one, and no wall time.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::time::Duration;

use preempted::compute_for;

const POLL: Duration = Duration::from_millis(30);
const TASKS: u32 = 8;
const POLLS: u32 = 3;

#[test]
fn long_polls_are_in_the_figures_of_their_group() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        scheduler.set_poll_histograms(true).unwrap();
        let group = scheduler.group("long").unwrap().create().unwrap();
        let other = scheduler.group("other").unwrap().create().unwrap();
        let handles: Vec<_> = (0..TASKS)
            .map(|task| {
                let group = if task % 2 == 0 { &group } else { &other };
                group.spawn(async {
                    for _ in 0..POLLS {
                        compute_for(POLL);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
        for group in [group, other] {
            // The last poll of a task only ends it. Whoever awaited it reads complete figures.
            let stats = group.stats();
            let polls = u64::from(TASKS / 2 * (POLLS + 1));
            assert_eq!(stats.polls, polls);
            assert_eq!(stats.poll_duration.count(), polls);
            assert_eq!(stats.run_delay.count(), polls);
            let longest = stats.longest_poll.unwrap();
            assert!(longest.duration >= POLL, "{longest:?}");
            assert!(longest.location.file().ends_with(file!()), "{longest:?}");
            assert!(stats.wall >= POLL * (TASKS / 2 * POLLS), "{stats:?}");
        }
        let preempted = scheduler.preempt_stats().unwrap();
        assert!(preempted.detached > 0, "{preempted:?}");
    });
}
