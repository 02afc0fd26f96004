//! A scenario as tasks in groups of Quotient's runtime.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use quotient::{BandwidthRules, Group, Scheduler};

use crate::cgroup::Counters;
use crate::load::{JobLog, Meter, Worker};
use crate::observe::{self, Watched};
use crate::outcome::{Host, Outcome};
use crate::scenario::{GroupPlan, Load, Scenario};
use crate::window::RunLog;
use crate::{Interrupt, Problem};

/// How the runtime is set for a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// tokio workers, and as many virtual CPUs.
    pub vcpus: usize,
    /// How long a poll computes.
    pub poll: Duration,
    /// What bandwidth control promises.
    pub rules: BandwidthRules,
}

impl Settings {
    /// As many virtual CPUs as there are CPUs, polls of 50 us, the default rules.
    pub fn like_this_machine() -> Self {
        Self {
            vcpus: std::thread::available_parallelism().map_or(1, usize::from),
            poll: Duration::from_micros(50),
            rules: BandwidthRules::Default,
        }
    }

    /// The same under the kernel's rules.
    pub fn like_the_kernel(self) -> Self {
        Self {
            rules: BandwidthRules::KERNEL,
            ..self
        }
    }

    /// A tokio runtime with a scheduler on it. The scheduler does not shut down by itself.
    ///
    /// # Errors
    /// When one of them cannot be made.
    pub fn build(self) -> Result<(tokio::runtime::Runtime, Scheduler), Problem> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.vcpus)
            .enable_all()
            .build()
            .map_err(Problem::during("cannot build a tokio runtime"))?;
        let scheduler = Scheduler::builder()
            .vcpus(self.vcpus)
            .bandwidth_rules(self.rules)
            .handle(runtime.handle().clone())
            .build()
            .map_err(Problem::during("cannot build a scheduler"))?;
        Ok((runtime, scheduler))
    }
}

/// Runs `scenario` for `length` in Quotient.
///
/// # Errors
/// [`Problem::Interrupted`], or when a runtime, a scheduler or a group cannot be made.
pub fn run(
    settings: Settings,
    scenario: &Scenario,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<Outcome, Problem> {
    Stage::start(settings, scenario)?.outcome(scenario, length, interrupt)
}

/// One group with what its tasks publish.
struct Staged {
    meters: Vec<Arc<Meter>>,
    logs: Vec<Arc<RunLog>>,
    jobs: Arc<JobLog>,
    group: Group,
}

impl Watched for Staged {
    fn meters(&self) -> &[Arc<Meter>] {
        &self.meters
    }

    fn logs(&self) -> &[Arc<RunLog>] {
        &self.logs
    }

    fn jobs(&self) -> &JobLog {
        &self.jobs
    }

    fn charged(&self) -> Option<f64> {
        Some(self.group.cpu_time().as_secs_f64())
    }

    fn counters(&self) -> Result<Counters, Problem> {
        let stats = self.group.stats().bandwidth;
        Ok(Counters {
            nr_periods: stats.nr_periods,
            nr_throttled: stats.nr_throttled,
            throttled: stats.throttled,
            nr_bursts: stats.nr_bursts,
            burst: stats.burst,
        })
    }
}

/// All groups of a scenario on a tokio runtime of their own. Dropping it ends the tasks and the runtime.
pub struct Stage {
    settings: Settings,
    groups: Vec<Staged>,
    stop: Arc<AtomicBool>,
    scheduler: Scheduler,
    runtime: tokio::runtime::Runtime,
}

impl Stage {
    /// Makes the groups and spawns the tasks.
    ///
    /// # Errors
    /// When a runtime, a scheduler or a group cannot be made.
    pub fn start(settings: Settings, scenario: &Scenario) -> Result<Self, Problem> {
        let (runtime, scheduler) = settings.build()?;
        let mut stage = Self {
            settings,
            groups: Vec::new(),
            stop: Arc::default(),
            scheduler,
            runtime,
        };
        let origin = Instant::now();
        for plan in &scenario.groups {
            let staged = stage.make(plan, origin)?;
            stage.groups.push(staged);
        }
        for (plan, staged) in scenario.groups.iter().zip(&stage.groups) {
            for (meter, log) in staged.meters.iter().zip(&staged.logs) {
                let worker = Worker {
                    meter: meter.clone(),
                    log: Some(log.clone()),
                };
                let (stop, jobs) = (stage.stop.clone(), staged.jobs.clone());
                let body = work(plan.load, settings.poll, worker, jobs, stop);
                drop(staged.group.spawn(body));
            }
        }
        Ok(stage)
    }

    /// Watches the groups for `length`.
    ///
    /// # Errors
    /// [`Problem::Interrupted`].
    pub fn outcome(
        &self,
        scenario: &Scenario,
        length: Duration,
        interrupt: &Interrupt,
    ) -> Result<Outcome, Problem> {
        let (focus, period) = (scenario.focus(), scenario.period());
        let seen = observe::watch(&self.groups, focus, period, length, interrupt)?;
        let host = match self.settings.rules {
            BandwidthRules::Default => Host::Quotient,
            BandwidthRules::Kernel { .. } => Host::QuotientKernelMode,
        };
        Ok(Outcome::new(host, scenario, &seen, &self.groups))
    }

    /// Seconds that each job of the scenario's group `index` took so far.
    pub fn jobs(&self, index: usize) -> Vec<f64> {
        self.groups[index].jobs.seconds()
    }

    /// The group of the scenario's group `index`.
    pub fn group(&self, index: usize) -> &Group {
        &self.groups[index].group
    }

    fn make(&self, plan: &GroupPlan, origin: Instant) -> Result<Staged, Problem> {
        let create = || {
            let mut builder = self.scheduler.group(plan.path)?.weight(plan.weight);
            if let Some(cap) = plan.cap {
                builder = builder
                    .max((cap.quota, cap.period))
                    .burst(cap.burst)
                    .smooth(cap.smooth);
            }
            builder.create()
        };
        let group = create().map_err(Problem::during(format!("cannot make {}", plan.path)))?;
        let tasks = plan.load.tasks();
        Ok(Staged {
            meters: (0..tasks).map(|_| Arc::default()).collect(),
            logs: (0..tasks).map(|_| Arc::new(RunLog::new(origin))).collect(),
            jobs: Arc::default(),
            group,
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.runtime.block_on(self.scheduler.shutdown());
    }
}

async fn work(
    load: Load,
    poll: Duration,
    worker: Worker,
    jobs: Arc<JobLog>,
    stop: Arc<AtomicBool>,
) {
    match load {
        Load::None => {}
        Load::Spinners(_) => {
            while !stop.load(Ordering::Relaxed) {
                worker.burn_in_poll(poll);
                yield_once().await;
            }
        }
        Load::Sleepers { run, sleep, .. } => {
            while !stop.load(Ordering::Relaxed) {
                worker.burn_in_poll(run);
                tokio::time::sleep(sleep).await;
            }
        }
        Load::Jobs { work, every } => {
            let mut start = Instant::now() + every;
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep_until(start.into()).await;
                let target = worker.meter.seconds() + work.as_secs_f64();
                while worker.meter.seconds() < target && !stop.load(Ordering::Relaxed) {
                    worker.burn_in_poll(poll);
                    yield_once().await;
                }
                jobs.note(start.elapsed());
                start += every;
            }
        }
    }
}

/// Gives way once: the task wakes itself and is polled again when it is its turn.
pub(crate) async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
