//! Hazard: a poll is stopped for good, by a freeze, just as it wakes what is another tenant's, which nobody else can wake from then on. On real
//! threads: counters and hang bounds only.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use quotient::{Group, InGroupExt, JoinHandle, Scheduler};

/// Unit: freezes. One in twenty met a wake-up half way.
const ROUNDS: u32 = 200;
/// So many that most wake-ups find somebody who sleeps.
const VICTIMS: usize = 256;

/// Ends loops when it is dropped: a runtime waits for polls that do not return, also for those of a test that fails.
struct StopAtEnd(Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// What waits, how often it was polled, and its waker.
#[derive(Default)]
struct Victim {
    polls: AtomicU64,
    waker: OnceLock<Waker>,
}

#[derive(Clone)]
struct Victims {
    all: Arc<Vec<Victim>>,
    end: Arc<AtomicBool>,
}

type Waits = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Victims {
    fn new() -> Self {
        Self {
            all: Arc::new((0..VICTIMS).map(|_| Victim::default()).collect()),
            end: Arc::default(),
        }
    }

    /// The future of one: ready at the end.
    fn future(&self, index: usize) -> Waits {
        let victims = self.clone();
        Box::pin(poll_fn(move |context| {
            let victim = &victims.all[index];
            victim.waker.get_or_init(|| context.waker().clone());
            victim.polls.fetch_add(1, SeqCst);
            match victims.end.load(SeqCst) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }))
    }

    fn wake(&self) {
        for victim in self.all.iter() {
            if let Some(waker) = victim.waker.get() {
                waker.wake_by_ref();
            }
        }
    }

    /// A poll that does nothing else.
    fn are_woken_by(&self, group: &Group) -> JoinHandle<()> {
        let victims = self.clone();
        group.spawn(async move {
            while !victims.end.load(SeqCst) {
                victims.wake();
            }
        })
    }

    /// Whoever wakes them now has them polled.
    async fn can_be_woken(&self) {
        let polls = || self.all.iter().map(|victim| victim.polls.load(SeqCst));
        let before: Vec<_> = polls().collect();
        self.wake();
        let all_polled = || polls().zip(&before).all(|(now, before)| now > *before);
        common::eventually("a wake-up", all_polled).await;
    }
}

/// Freezes polls that wake what `spawn` makes of the futures of others.
fn freeze_who_wakes<H: Future<Output = ()>>(spawn: impl Fn(&Group, Waits) -> H) {
    preempted::run(
        2,
        Duration::from_secs(10),
        |scheduler: Scheduler| async move {
            let group = scheduler.group("group").unwrap().create().unwrap();
            let other = scheduler.group("other").unwrap().create().unwrap();
            let victims = Victims::new();
            let stop = StopAtEnd(victims.end.clone());
            let tasks: Vec<_> = (0..VICTIMS)
                .map(|index| spawn(&other, victims.future(index)))
                .collect();
            let known = || {
                victims
                    .all
                    .iter()
                    .all(|victim| victim.waker.get().is_some())
            };
            common::eventually("wakers", known).await;
            let waking = [victims.are_woken_by(&group), victims.are_woken_by(&group)];
            for _ in 0..ROUNDS {
                tokio::time::sleep(Duration::from_millis(5)).await;
                group.freeze_immediately().unwrap();
                // Until it stands; where it does not yet, the round is wasted.
                tokio::time::sleep(Duration::from_millis(10)).await;
                victims.can_be_woken().await;
                group.thaw().unwrap();
            }
            drop(stop);
            victims.wake();
            for task in waking {
                task.await.unwrap();
            }
            for task in tasks {
                task.await;
            }
        },
    );
}

#[test]
fn of_a_task() {
    freeze_who_wakes(|group, future| {
        let task = group.spawn(future);
        async move { task.await.unwrap() }
    });
}

#[test]
fn of_a_future_in_a_group() {
    freeze_who_wakes(|group, future| {
        let task = tokio::spawn(future.in_group(group));
        async move { task.await.unwrap() }
    });
}
