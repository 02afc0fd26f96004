//! The same ping-pong through the whole runtime: two tasks of Quotient on one thread of tokio, with and without a limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotient::{Group, Limit, Scheduler};
use tokio::sync::Notify;

use super::Case;
use crate::failure::Failure;

/// Virtual length of a poll while instructions are counted.
const STEP: Duration = Duration::from_nanos(250);
/// The quota of the mail.
const QUOTA_S: u64 = 10_000;

/// A scheduler on a tokio runtime that uses the calling thread alone.
pub struct Stage {
    runtime: tokio::runtime::Runtime,
    scheduler: Scheduler,
    groups: Vec<Group>,
}

impl Stage {
    /// Builds runtime, scheduler and `depth` groups below each other. `counting`: time passes by polls, so that what is
    /// executed does not depend on how fast it is.
    ///
    /// # Errors
    /// When any of them cannot be built.
    pub fn new(depth: u32, counting: bool) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::during("cannot build a tokio runtime"))?;
        let scheduler = {
            let _inside = runtime.enter();
            let builder = Scheduler::builder().vcpus(1);
            let builder = if counting {
                builder.counting_clock(STEP)
            } else {
                builder
            };
            builder
                .build()
                .map_err(Failure::during("cannot build a scheduler"))?
        };
        let mut path = String::new();
        let mut groups = Vec::new();
        for level in 0..depth {
            if level > 0 {
                path.push('/');
            }
            path.push('g');
            let group = scheduler.group(&path).and_then(|builder| builder.create());
            groups.push(group.map_err(Failure::during("cannot create a group"))?);
        }
        Ok(Self {
            runtime,
            scheduler,
            groups,
        })
    }

    /// Limits every group, or none.
    ///
    /// # Errors
    /// When a limit is refused.
    pub fn limit(&self, period_us: Option<u64>) -> Result<(), Failure> {
        let limit = period_us.map(|period_us| {
            let nanos = |duration: Duration| {
                quotient_core::Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
            };
            let quota = nanos(Duration::from_secs(QUOTA_S));
            Limit::new(quota, nanos(Duration::from_micros(period_us)))
        });
        for group in &self.groups {
            group
                .set_max(limit)
                .map_err(Failure::during("cannot limit a group"))?;
        }
        Ok(())
    }

    /// Plays so many rounds in the innermost group; returns how long they took.
    ///
    /// # Errors
    /// When a task fails or a group was throttled.
    pub fn play(&self, rounds: u64) -> Result<Duration, Failure> {
        let Some(group) = self.groups.last() else {
            return Err(Failure::Run("a stage without groups".into()));
        };
        let (ping, pong) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let elapsed = self.runtime.block_on(async {
            let second = {
                let (ping, pong) = (ping.clone(), pong.clone());
                group.spawn(async move {
                    for _ in 0..rounds {
                        ping.notified().await;
                        pong.notify_one();
                    }
                })
            };
            let first = group.spawn(async move {
                let started = Instant::now();
                for _ in 0..rounds {
                    ping.notify_one();
                    pong.notified().await;
                }
                started.elapsed()
            });
            let elapsed = first.await;
            second.await.and(elapsed)
        });
        let elapsed = elapsed.map_err(Failure::during("a task of the ping-pong failed"))?;
        Ok(elapsed)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.runtime.block_on(self.scheduler.shutdown());
    }
}

/// One case in a process of its own, to be counted.
///
/// # Errors
/// When something cannot be built or fails.
pub fn probe(case: &Case, rounds: u64) -> Result<(), Failure> {
    let stage = Stage::new(case.depth, true)?;
    stage.limit(case.period_us)?;
    stage.play(rounds)?;
    Ok(())
}
