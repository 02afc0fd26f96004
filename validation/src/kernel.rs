//! A scenario as threads in cgroups of the real kernel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::cgroup::{Base, Cgroup, Controller, Counters};
use crate::load::{JobLog, Mark, Meter, Worker, thread_cpu};
use crate::observe::{self, Watched};
use crate::outcome::{Host, Outcome};
use crate::scenario::{Load, Scenario};
use crate::window::RunLog;
use crate::{Interrupt, Problem};

/// How long a thread computes between two looks at its clock, which is how fine its log is.
const CHUNK: Duration = Duration::from_micros(20);
/// The longest nap of a job's thread, so that it notices the end.
const NAP_MAX: Duration = Duration::from_millis(20);

/// Runs `scenario` for `length` in the kernel.
///
/// # Errors
/// [`Problem::Interrupted`], or when the kernel refuses something. The groups are gone in every case.
pub fn run(
    controller: &Controller,
    scenario: &Scenario,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<Outcome, Problem> {
    Stage::start(controller, scenario)?.outcome(scenario, length, interrupt)
}

/// One group with its threads.
struct Staged {
    meters: Vec<Arc<Meter>>,
    logs: Vec<Arc<RunLog>>,
    jobs: Arc<JobLog>,
    cgroup: Arc<Cgroup>,
}

impl Watched for Staged {
    fn meters(&self) -> &[Arc<Meter>] {
        &self.meters
    }

    fn counters(&self) -> Result<Counters, Problem> {
        self.cgroup.counters()
    }

    fn logs(&self) -> &[Arc<RunLog>] {
        &self.logs
    }

    fn jobs(&self) -> &JobLog {
        &self.jobs
    }
}

/// All groups of a scenario. Dropping it lifts the caps, ends the threads and removes the groups, children first.
pub struct Stage {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    groups: Vec<Staged>,
    // Last: the base can only be removed when it is empty.
    _base: Base,
}

impl Stage {
    /// Makes the groups and starts the threads.
    ///
    /// # Errors
    /// When the kernel refuses something; nothing is left behind then.
    pub fn start(controller: &Controller, scenario: &Scenario) -> Result<Self, Problem> {
        let mut stage = Self {
            stop: Arc::default(),
            threads: Vec::new(),
            groups: Vec::new(),
            _base: controller.base()?,
        };
        let origin = Instant::now();
        for plan in &scenario.groups {
            let cgroup = stage._base.group(plan.path, plan.load == Load::None)?;
            cgroup.set_weight(plan.weight)?;
            cgroup.set_cap(plan.cap)?;
            if let Some(cap) = plan.cap
                && !cap.burst.is_zero()
            {
                cgroup.set_burst(cap.burst)?;
            }
            let tasks = plan.load.tasks();
            stage.groups.push(Staged {
                meters: (0..tasks).map(|_| Arc::default()).collect(),
                logs: (0..tasks).map(|_| Arc::new(RunLog::new(origin))).collect(),
                jobs: Arc::default(),
                cgroup: Arc::new(cgroup),
            });
        }
        for (index, plan) in scenario.groups.iter().enumerate() {
            stage.start_threads(index, plan.load)?;
        }
        Ok(stage)
    }

    /// Watches the groups for `length`.
    ///
    /// # Errors
    /// [`Problem::Interrupted`], or when counters cannot be read.
    pub fn outcome(
        &self,
        scenario: &Scenario,
        length: Duration,
        interrupt: &Interrupt,
    ) -> Result<Outcome, Problem> {
        let (focus, period) = (scenario.focus(), scenario.period());
        let seen = observe::watch(&self.groups, focus, period, length, interrupt)?;
        Ok(Outcome::new(Host::Kernel, scenario, &seen, &self.groups))
    }

    /// Seconds that each job of the scenario's group `index` took so far.
    pub fn jobs(&self, index: usize) -> Vec<f64> {
        self.groups[index].jobs.seconds()
    }

    /// The cgroup of the scenario's group `index`.
    pub fn cgroup(&self, index: usize) -> &Cgroup {
        &self.groups[index].cgroup
    }

    /// Starts the threads of one group, each of which moves itself into its cgroup before it computes.
    fn start_threads(&mut self, index: usize, load: Load) -> Result<(), Problem> {
        let group = &self.groups[index];
        for (meter, log) in group.meters.iter().zip(&group.logs) {
            let worker = Worker {
                meter: meter.clone(),
                log: Some(log.clone()),
            };
            let (entered, wait) = mpsc::channel();
            let (stop, cgroup, jobs) =
                (self.stop.clone(), group.cgroup.clone(), group.jobs.clone());
            let body = move || {
                let result = cgroup.enter();
                let inside = result.is_ok();
                // The group is removed by the stage, not by its threads.
                drop(cgroup);
                // Without a receiver the stage is being torn down.
                let _ = entered.send(result);
                if inside {
                    work(load, &worker, &jobs, &stop);
                }
            };
            let thread = thread::Builder::new()
                .name("spinner".into())
                .spawn(body)
                .map_err(Problem::during("cannot start a thread"))?;
            self.threads.push(thread);
            wait.recv()
                .map_err(Problem::during("a thread ended before it began"))??;
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A throttled thread would end only in its next period.
        for group in &self.groups {
            let _ = group.cgroup.set_cap(None);
        }
        for thread in self.threads.drain(..) {
            // A spinner has nothing to panic about; if it did, the figures are not used.
            let _ = thread.join();
        }
        while let Some(group) = self.groups.pop() {
            drop(group);
        }
    }
}

fn work(load: Load, worker: &Worker, jobs: &JobLog, stop: &AtomicBool) {
    match load {
        Load::None => {}
        Load::Spinners(_) => {
            let mut mark = Mark::now();
            while !stop.load(Ordering::Relaxed) {
                mark = worker.burn(CHUNK, mark);
            }
        }
        Load::Sleepers { run, sleep, .. } => {
            while !stop.load(Ordering::Relaxed) {
                let target = thread_cpu() + run;
                let mut mark = Mark::now();
                while thread_cpu() < target && !stop.load(Ordering::Relaxed) {
                    mark = worker.burn(CHUNK, mark);
                }
                thread::sleep(sleep);
            }
        }
        Load::Jobs { work, every } => {
            let mut start = Instant::now() + every;
            while !stop.load(Ordering::Relaxed) {
                let left = start.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    thread::sleep(left.min(NAP_MAX));
                    continue;
                }
                let target = thread_cpu() + work;
                let mut mark = Mark::now();
                while thread_cpu() < target && !stop.load(Ordering::Relaxed) {
                    mark = worker.burn(CHUNK, mark);
                }
                jobs.note(start.elapsed());
                start += every;
            }
        }
    }
}
