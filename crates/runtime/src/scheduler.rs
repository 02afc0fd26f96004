//! The entry to the runtime: the builder and the scheduler handle.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use quotient_core::{BandwidthRules, Config as Rules, GroupTree, Nanos, Policy, Slice};
use quotient_keys::FlipError;
use quotient_pause::Pauser;

use crate::alarms::Alarm;
use crate::bandwidth::nanos;
use crate::cgroup::{cgroup_quota, vcpus_of};
use crate::clock::Clock;
use crate::config::{Applied, ApplyError, Config};
use crate::error::{BuildError, Error, MAX_VCPUS};
use crate::gates;
use crate::group::{Group, GroupBuilder};
use crate::host::{Host, TokioHost};
use crate::host_end;
use crate::local_tasks;
use crate::loss::Losses;
use crate::preempt::{self, Preempt, PreemptStats, Preempting};
use crate::shared::{OPEN, Shared, usual_slots};
use crate::tick;
use crate::unfinished::Unfinished;
use crate::vcpu::Vcpu;

/// How long a group or a task runs before another one of equal lag goes first. Unit: nanoseconds. Default 250 us: a switch between
/// tasks costs a tenth of a microsecond here, not the kernel's microseconds, so a quarter of the kernel's 0.7 ms is affordable
/// and halves the wait behind a busy neighbour.
const BASE_SLICE: Nanos = Nanos(250_000);
/// Width of a key bucket, first in first out inside. Unit: nanoseconds. Default 50 us: raw virtual-time order hurt the p99 of
/// HTTP tasks in a prototype.
const QUANTUM: Nanos = Nanos(50_000);
/// Stand-ins for polls that block, where there are not more virtual CPUs. Unit: threads. Default 256, as many as a preempting scheduler's
/// long polls; a slot that nobody uses is some hundred bytes and is not looked at.
const STAND_INS_MAX: usize = 256;

/// A scheduler of task groups on the tokio runtime it was built in. Cheap to clone.
///
/// The scheduler lives while a handle to it (this, or a [`Group`]) or a task of it lives, or until [`Scheduler::shutdown`].
/// It owns one thread, `quotient-tick`, which parks while nothing runs.
#[derive(Clone, Debug)]
pub struct Scheduler {
    shared: Arc<Shared>,
    handles: Arc<Handles>,
}

/// Counts the user's handles: without any, the virtual CPUs end when the last task has ended.
#[derive(Debug)]
pub(crate) struct Handles {
    shared: Arc<Shared>,
}

impl Handles {
    pub(crate) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        shared.handle_count.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self {
            shared: shared.clone(),
        })
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        if self.shared.handle_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.wake_everybody();
        }
    }
}

/// Settings of a [`Scheduler`].
#[derive(Debug, Default)]
#[must_use = "nothing happens before `build`"]
pub struct Builder {
    vcpus: Option<usize>,
    by_quota: bool,
    policy: Option<Policy>,
    slice: Option<Duration>,
    bandwidth: BandwidthRules,
    handle: Option<tokio::runtime::Handle>,
    clock: Option<Clock>,
    preempt: Option<Preempt>,
}

impl Builder {
    /// Number of virtual CPUs, 1 to [`MAX_VCPUS`]: how many tasks of this scheduler may run at the same time. Default: the
    /// number of the tokio runtime's worker threads, but not more than [`MAX_VCPUS`] ([`Scheduler::unused_workers`] is the
    /// rest). Checked by [`Builder::build`].
    pub fn vcpus(mut self, vcpus: usize) -> Self {
        self.vcpus = Some(vcpus);
        self
    }

    /// Takes the number of virtual CPUs from the quota of the process's control group, a container's or a pod's
    /// ([`crate::cgroup_quota`]), rounded up; at most the number of the runtime's workers. Groups then share what the container has, and
    /// [`crate::Share`] is a part of that. Without such a quota the default holds. [`Builder::build`] reads the quota once;
    /// [`Builder::vcpus`] overrules it.
    pub fn vcpus_by_quota(mut self) -> Self {
        self.by_quota = true;
        self
    }

    /// How the next task is chosen: [`Policy::Eevdf`] (default) or [`Policy::Cfs`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Base slice, 0.1 to 100 ms; 0.25 ms by default. Checked by [`Builder::build`].
    pub fn slice(mut self, slice: Duration) -> Self {
        self.slice = Some(slice);
        self
    }

    /// How limits are kept: [`BandwidthRules::Default`], or as the kernel keeps them, faults included, for comparison.
    pub fn bandwidth_rules(mut self, rules: BandwidthRules) -> Self {
        self.bandwidth = rules;
        self
    }

    /// The tokio runtime to run on, instead of the one that `build` is called in.
    pub fn handle(mut self, handle: tokio::runtime::Handle) -> Self {
        self.handle = Some(handle);
        self
    }

    /// Preempts polls that do not return, so that weights, limits and freezes hold inside polls, too. Off by default: a poll is then
    /// never interrupted. Linux on x86-64 and aarch64.
    ///
    /// Threads of the scheduler (`quotient-carrier`, each inside the tokio runtime's context) then poll the virtual CPUs; tokio's workers
    /// keep I/O, timers and other tasks. A poll that takes longer than [`Preempt::turn`] goes on at lower priority on its thread, and
    /// another thread goes on with the virtual CPU. A long poll may also be stopped at any instruction, as the kernel stops threads, only for
    /// longer. So
    ///
    /// - a lock of the program's own that is held across a long poll keeps others waiting up to some tens of milliseconds longer;
    /// - system calls that do not restart return `EINTR`;
    /// - threads that a long poll starts inherit its priority.
    ///
    /// [`uninterrupted`](crate::uninterrupted) shields a section, [`SteadyAllocator`](crate::SteadyAllocator) all allocations.
    ///
    /// On a current-thread runtime the same holds: tasks get on, within weights and limits, on the scheduler's threads, whether anybody is inside
    /// `block_on` or not; what needs the runtime (I/O, timers, `tokio::spawn`) waits until somebody is.
    pub fn preempt(mut self, preempt: Preempt) -> Self {
        self.preempt = Some(preempt);
        self
    }

    /// Replaces the clock by one that advances by `step` a reading on average (one reading a poll): makes instruction counts under valgrind
    /// comparable, where real time runs fifty times slower than the program. Not for production: CPU times mean nothing then.
    #[doc(hidden)]
    pub fn counting_clock(mut self, step: Duration) -> Self {
        self.clock = Some(Clock::counting(nanos(step)));
        self
    }

    /// Replaces the clock by the processor time of the process, so that a test of one virtual CPU can judge weights on a machine whose
    /// processors others keep busy: no time passes while they have them. Not for production: with more than one thread that
    /// computes it runs ahead of real time, and waits are not seen.
    #[doc(hidden)]
    pub fn computing_clock(mut self) -> Self {
        self.clock = Some(Clock::computing());
        self
    }

    /// Starts the virtual CPUs on the tokio runtime, and the tick thread.
    ///
    /// # Errors
    /// [`BuildError`]: outside a tokio runtime, `vcpus` or the slice out of range, no tick thread. Nothing was started.
    pub fn build(self) -> Result<Scheduler, BuildError> {
        // Its threads do not inherit that the caller waits for another scheduler.
        quotient_pause::Guest::as_usual(|| self.start())
    }

    fn start(self) -> Result<Scheduler, BuildError> {
        let handle = match self.handle {
            Some(handle) => handle,
            None => tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?,
        };
        let workers = handle.metrics().num_workers();
        let quota = self.by_quota.then(cgroup_quota).flatten();
        let usable = quota.map_or(workers, |quota| vcpus_of(quota).min(workers));
        let regular = self.vcpus.unwrap_or(usable.min(MAX_VCPUS));
        #[cfg(feature = "tracing")]
        if self.vcpus.is_none() && workers > MAX_VCPUS {
            tracing::warn!(
                target: "quotient",
                workers,
                vcpus = regular,
                "the runtime has more workers than a scheduler can have virtual CPUs"
            );
        }
        if !(1..=MAX_VCPUS).contains(&regular) {
            return Err(BuildError::Vcpus { value: regular });
        }
        let slots = regular + stand_ins_max(&handle, regular, self.preempt.is_some());
        let mut config = Rules::new(u32::try_from(usual_slots(regular)).unwrap_or(u32::MAX));
        config.base_slice = BASE_SLICE;
        config.policy = self.policy.unwrap_or(Policy::Eevdf);
        if let Some(slice) = self.slice {
            config.base_slice = nanos(slice);
            Slice::new(config.base_slice).map_err(BuildError::Slice)?;
        }
        config.quantum = QUANTUM;
        config.bandwidth = self.bandwidth;
        config.validate()?;
        let tree = GroupTree::new(config);
        let clock = self.clock.unwrap_or_else(Clock::new);
        let (host, preempting) = host_of(&handle, self.preempt, (regular, slots), &clock)?;
        let shared = Arc::new(Shared::new(tree, regular, slots, host, clock, preempting));
        let handles = Handles::new(&shared);
        tick::start(&shared).map_err(|error| BuildError::TickThread(error.to_string()))?;
        if shared.preempt.is_some() {
            preempt::start_watch(&shared)
                .map_err(|error| BuildError::PreemptThread(error.to_string()))?;
        }
        host_end::watch(&shared, &handle);
        for index in 0..regular {
            shared
                .host
                .spawn(Box::pin(Vcpu::new(shared.clone(), index)));
        }
        Ok(Scheduler { shared, handles })
    }
}

/// How many stand-ins there may be. A current-thread runtime stands still while a poll blocks, by itself too; a preempting scheduler has
/// other threads for such polls.
fn stand_ins_max(handle: &tokio::runtime::Handle, regular: usize, preempts: bool) -> usize {
    use tokio::runtime::RuntimeFlavor::CurrentThread;
    if preempts || handle.runtime_flavor() == CurrentThread {
        regular
    } else {
        regular.max(STAND_INS_MAX)
    }
}

/// Who polls the virtual CPUs: the tokio runtime itself, or threads of ours beside it that can lose a poll.
fn host_of(
    handle: &tokio::runtime::Handle,
    settings: Option<Preempt>,
    (regular, slots): (usize, usize),
    clock: &Clock,
) -> Result<(Box<dyn Host>, Option<Preempting>), BuildError> {
    let Some(settings) = settings else {
        return Ok((Box::new(TokioHost::new(handle.clone())), None));
    };
    settings.validate().map_err(BuildError::Preempt)?;
    let wanted = quotient_pause::Settings::default().signal(settings.signal);
    let pauser = Pauser::install(wanted).map_err(BuildError::Pause)?;
    let gate = gates::preempt_hold().map_err(|error| BuildError::Gate(error.to_string()))?;
    let means = (pauser, gate);
    let (preempting, host) = preempt::start(means, handle.clone(), settings, regular, slots, clock)
        .map_err(|error| BuildError::PreemptThread(error.to_string()))?;
    Ok((Box::new(host), Some(preempting)))
}

impl Scheduler {
    /// Settings, to be built inside a tokio runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A group by its path from the root, such as `tenants/acme`: looked up, or made by [`GroupBuilder::create`].
    ///
    /// # Errors
    /// [`Error::Group`] for a malformed path (empty, absolute, empty or dot segments, control characters, too long).
    pub fn group(&self, path: &str) -> Result<GroupBuilder, Error> {
        GroupTree::check_path(path)?;
        Ok(GroupBuilder::new(
            self.shared.clone(),
            self.handles.clone(),
            path,
        ))
    }

    /// The group of that path if it exists. One that was removed does until its last task is gone ([`Group::remove`]).
    ///
    /// # Errors
    /// [`Error::Group`] if the path is malformed or unknown.
    pub fn find(&self, path: &str) -> Result<Group, Error> {
        // Nobody is to be stopped while it looks at the tree.
        let _shield = self.shared.shield();
        let core = self.shared.tree.find(path)?;
        if let Some(known) = crate::group::known(&self.shared, &core) {
            return Ok(self.wrap(known));
        }
        // Nobody removes the group between the two steps: it would be listed anew, for ever, in place of the next of its number.
        let _shape = self.shared.lock_shape();
        let core = self.shared.tree.find(path)?;
        let inner = crate::group::lookup(&self.shared, &core);
        Ok(self.wrap(inner))
    }

    /// The root group: tasks in it compete with the top-level groups.
    pub fn root(&self) -> Group {
        self.wrap(self.shared.root.clone())
    }

    /// Brings the groups from the config that was applied last to this one, as one change: all of it or, if any part is refused, nothing.
    ///
    /// Groups that the config names and that do not exist are made; no group is removed. Every setting that the config has for a named group
    /// is written. A default of a parent's children is written where it differs from the config before. A setting that the config before
    /// had and this one has not goes back to that of a new group; one that neither has stays as the program left it.
    ///
    /// Groups that are made later, tenants for instance, get their settings from the config, too. What it says of the group's own path
    /// overrules the [`GroupBuilder`], which overrules what it says of all children of the parent.
    ///
    /// The virtual CPUs follow at their next choice. O(groups that the two configs speak of), under the lock for changes of the tree.
    ///
    /// # Errors
    /// [`ApplyError`] names the group, and field, value and range: what is malformed or out of range, a group that is being removed, a
    /// scheduler that was shut down. Nothing has changed then, and the config before is still the one in force.
    pub fn apply(&self, config: &Config) -> Result<Applied, ApplyError> {
        crate::config::apply(&self.shared, config)
    }

    /// The config that was applied last; an empty one if none was.
    pub fn config(&self) -> Arc<Config> {
        self.shared.config()
    }

    /// Every group there is, the root first. O(groups).
    pub fn groups(&self) -> Vec<Group> {
        let all = self.shared.all_groups();
        all.into_iter().map(|inner| self.wrap(inner)).collect()
    }

    /// A number that changes whenever a group appears or goes, so that a program that keeps a list of [`Scheduler::groups`] knows when to
    /// make it anew. O(1). Read the number before the list: a group that appears in between is then found twice, and not missed.
    pub fn groups_version(&self) -> u64 {
        self.shared.groups_version.load(Ordering::Acquire)
    }

    /// Number of the tokio runtime's workers beyond the virtual CPUs, on which no task of this scheduler runs. 0 unless
    /// [`Builder::vcpus`] asked for fewer virtual CPUs than workers, or the runtime has more than [`MAX_VCPUS`] workers (`build` says so
    /// then at level `WARN`, with the feature `tracing`).
    pub fn unused_workers(&self) -> usize {
        self.shared
            .host
            .workers()
            .saturating_sub(self.shared.regular)
    }

    /// Whether [`Scheduler::shutdown`] was called, or the runtime is gone.
    pub fn is_shut_down(&self) -> bool {
        self.shared.phase() != OPEN
    }

    /// Number of virtual CPUs, stand-ins not counted.
    pub fn vcpus(&self) -> usize {
        self.shared.regular
    }

    /// What preemption has done so far; `None` without [`Builder::preempt`].
    pub fn preempt_stats(&self) -> Option<PreemptStats> {
        self.shared
            .preempt
            .as_ref()
            .map(|preempting| preempting.stats())
    }

    /// CPU time of all groups.
    pub fn cpu_time(&self) -> Duration {
        self.root().cpu_time()
    }

    /// Live tasks of all groups. Of those of [`Group::spawn_local`], as of futures in `in_group` elsewhere, the gate counts that waits for
    /// turns among the groups: futures that got on without any so far are not counted.
    pub fn tasks(&self) -> usize {
        self.shared.live()
    }

    /// What was refused or dropped in all groups since the start, removed ones included.
    pub fn losses(&self) -> Losses {
        self.shared.losses.read()
    }

    /// Tasks of the tokio runtime that are outside the groups: alive there now, this scheduler's virtual CPUs not counted.
    pub fn foreign_tasks(&self) -> usize {
        let vcpus = self.shared.vcpus[..self.shared.regular]
            .iter()
            .filter(|vcpu| vcpu.online.load(Ordering::Relaxed))
            .count();
        self.shared.host.alive_tasks().saturating_sub(vcpus)
    }

    /// Switches the histograms of the statistics ([`crate::GroupStats::run_delay`]) on or off; on by default. While they are
    /// off, recording costs one instruction a poll. A switch of the *process*: it holds for every scheduler in it.
    ///
    /// # Errors
    /// [`FlipError`] if code cannot be rewritten now, such as under a debugger's breakpoint; nothing has changed.
    pub fn set_histograms(&self, on: bool) -> Result<(), FlipError> {
        gates::set_histograms(on)
    }

    /// Switches the histograms of the durations of polls ([`crate::GroupStats::poll_duration`]) on or off; off by default, one
    /// instruction a poll then. A switch of the *process*, as [`Scheduler::set_histograms`].
    ///
    /// # Errors
    /// As [`Scheduler::set_histograms`].
    pub fn set_poll_histograms(&self, on: bool) -> Result<(), FlipError> {
        gates::set_poll_histograms(on)
    }

    /// Switches the scheduler's own checks on or off; off by default, one instruction a switch then. While they are on,
    /// every invariant of the run queue is computed anew after each switch, O(tasks), and a violation, which would be a bug
    /// of this crate, aborts the process with its description. A switch of the *process*, as [`Scheduler::set_histograms`].
    ///
    /// # Errors
    /// As [`Scheduler::set_histograms`].
    pub fn set_checks(&self, on: bool) -> Result<(), FlipError> {
        gates::set_checks(on)
    }

    /// Refuses spawns from now on, aborts every task, and waits until each one's destructor has run and the virtual CPUs have
    /// ended. Idempotent. A task that never returns from its poll delays this as it would delay tokio's own shutdown.
    ///
    /// What stood until then gets on: limits and freezes are no more, and polls after [`Group::kill_immediately`] have turns as any other. One
    /// of these that never returns uses a processor again from here on, beside what others there are: [`Scheduler::shutdown_timeout`] says which.
    ///
    /// Tasks of [`Group::spawn_local`] end at the next poll of their `LocalSet`, which only their own thread can make. They are waited for as
    /// long as such polls are in progress or come at least every 100 ms; of a local set that nobody polls, or one that is busy with something
    /// else for longer, they are left, and are dropped unpolled at its next poll or with it.
    ///
    /// Called from a task of this scheduler it would wait for itself: it then returns at once, and the rest goes on without it.
    pub async fn shutdown(&self) {
        let local = local_tasks::begin_wait(&self.shared);
        self.shared.close();
        if crate::local::current_vcpu(&self.shared).is_some() {
            return;
        }
        local_tasks::ended(local, None).await;
        loop {
            let mut ended = std::pin::pin!(self.shared.ended.notified());
            ended.as_mut().enable();
            if self.shared.has_ended() {
                return;
            }
            ended.await;
        }
    }

    /// As [`Scheduler::shutdown`], but gives up once `timeout` has passed, with the tasks that are still being polled then. The shutdown goes
    /// on: these tasks end when their polls return. Called from a task of this scheduler, for which it would wait, it reports at once.
    ///
    /// That time is up is noticed at a tick of the scheduler, one to four ms later. It is no hard bound: the caller and the tick
    /// thread need a processor then, to tell every task takes O(tasks) before, and to look who is polled takes O(tasks) after. Beside hundreds of
    /// functions that compute on two busy processors 3 s were 3.10 to 3.31 s.
    ///
    /// A poll that never returns does not end by this, and tokio waits for it when a runtime is dropped: under `#[tokio::main]` the process would never end. Then
    /// call `std::process::exit`, or end a multi-thread runtime of one's own by tokio's `Runtime::shutdown_timeout` or `shutdown_background`.
    ///
    /// # Errors
    /// [`Unfinished`]: what is left.
    pub async fn shutdown_timeout(&self, timeout: Duration) -> Result<(), Unfinished> {
        // What it takes to tell everybody counts.
        let due = self.shared.now().saturating_add(nanos(timeout));
        let local = local_tasks::begin_wait(&self.shared);
        self.shared.close();
        let inside = crate::local::current_vcpu(&self.shared).is_some();
        let mut alarm = Alarm::new(&self.shared, due);
        if inside {
            drop(local);
        } else {
            local_tasks::ended(local, Some(due)).await;
        }
        loop {
            let mut ended = std::pin::pin!(self.shared.ended.notified());
            ended.as_mut().enable();
            if self.shared.has_ended() {
                return Ok(());
            }
            if inside || self.shared.now() >= due {
                return Err(Unfinished::of_all(&self.shared));
            }
            poll_fn(|context| {
                if ended.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                alarm.poll(context)
            })
            .await;
        }
    }

    /// What all parts share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn wrap(&self, inner: Arc<crate::group::GroupShared>) -> Group {
        Group {
            inner,
            shared: self.shared.clone(),
            _handles: self.handles.clone(),
            within: None,
        }
    }
}
