//! Runtimes, groups and pools of one mode: who is spawned where.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use quotient::{Group, Preempt, Scheduler, ThreadMeter};
use quotient_validation::cgroup::{Base, Cgroup, Controller};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::load::Hog;
use super::mode::{Kind, Mode};
use crate::failure::Failure;

/// Limit of the capped sides.
pub const CAP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// Weights of the kernel's groups in which the threads of victim and hogs are: about what nice 10 is.
const CGROUP_WEIGHTS: (u32, u32) = (100, 10);
/// How long the end of a runtime is waited for.
const END: Duration = Duration::from_millis(500);

/// One group of hogs as it is to be.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Its weight.
    pub weight: u32,
    /// Quota and period.
    pub limit: Option<(Duration, Duration)>,
}

/// Who is spawned where.
pub struct Sides {
    victims: Runtime,
    /// The hogs' own, in the modes that have two.
    hogs: Option<Runtime>,
    /// The pool of [`Kind::Rayon`].
    pool: Option<Arc<rayon_core::ThreadPool>>,
    /// Scheduler, victim, hogs.
    groups: Option<(Scheduler, Group, Vec<Group>)>,
    /// Last: a group of the kernel's goes when its threads have gone.
    _cgroups: Option<Cgroups>,
}

/// The kernel's groups of [`Mode::TwoRuntimesCgroup`]; the base last, since the others lie below.
struct Cgroups {
    victims: Arc<Cgroup>,
    hogs: Arc<Cgroup>,
    _base: Base,
}

impl Cgroups {
    fn new() -> Result<Self, String> {
        let made = || {
            let base = Controller::find()?.base()?;
            let (victims, hogs) = (base.group("victims", false)?, base.group("hogs", false)?);
            victims.set_weight(CGROUP_WEIGHTS.0)?;
            hogs.set_weight(CGROUP_WEIGHTS.1)?;
            Ok::<_, quotient_validation::Problem>(Self {
                victims: Arc::new(victims),
                hogs: Arc::new(hogs),
                _base: base,
            })
        };
        made().map_err(|problem| problem.to_string())
    }
}

/// Why there are no sides.
pub enum Missing {
    /// Not on this machine, and why: a row says so.
    Unavailable(String),
    /// Something is broken.
    Failed(Failure),
}

impl From<Failure> for Missing {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Sides {
    /// Builds what `mode` needs, with `workers` workers a runtime, `vcpus` virtual CPUs and the hogs' groups of `plans`.
    ///
    /// # Errors
    /// [`Missing`]
    pub fn new(
        mode: Mode,
        kind: Kind,
        workers: usize,
        vcpus: usize,
        plans: &[Plan],
    ) -> Result<Self, Missing> {
        let cgroups = match mode {
            Mode::TwoRuntimesCgroup => Some(Cgroups::new().map_err(Missing::Unavailable)?),
            _ => None,
        };
        let inside = |cgroup: Option<&Arc<Cgroup>>, nice: bool| {
            let cgroup = cgroup.cloned();
            move || {
                if let Some(cgroup) = &cgroup {
                    // Refused, the row is that of two runtimes; the base could be entered a moment ago.
                    let _ = cgroup.enter();
                }
                if nice {
                    lower_this_thread();
                }
            }
        };
        let victim_cgroup = cgroups.as_ref().map(|cgroups| &cgroups.victims);
        let hog_cgroup = cgroups.as_ref().map(|cgroups| &cgroups.hogs);
        let victims = runtime(workers, inside(victim_cgroup, false))?;
        let nice = mode == Mode::TwoRuntimesNice;
        let hogs = match mode {
            Mode::TwoRuntimes | Mode::TwoRuntimesNice | Mode::TwoRuntimesCgroup => {
                Some(runtime(workers, inside(hog_cgroup, nice))?)
            }
            _ => None,
        };
        let pool = match kind {
            Kind::Rayon => {
                let start = inside(hog_cgroup, nice);
                let builder = rayon_core::ThreadPoolBuilder::new()
                    .num_threads(workers)
                    .start_handler(move |_| start());
                let pool = builder.build();
                Some(Arc::new(
                    pool.map_err(Failure::during("cannot build a rayon pool"))?,
                ))
            }
            Kind::Tasks | Kind::Blocking => None,
        };
        let groups = if mode.has_groups() {
            Some(groups(mode, &victims, vcpus, plans)?)
        } else {
            None
        };
        Ok(Self {
            victims,
            hogs,
            pool,
            groups,
            _cgroups: cgroups,
        })
    }

    /// The hogs' groups, where there are any.
    pub fn hog_groups(&self) -> &[Group] {
        self.groups.as_ref().map_or(&[], |(_, _, hogs)| hogs)
    }

    /// The victim's group, where there is one.
    pub fn victim_group(&self) -> Option<&Group> {
        self.groups.as_ref().map(|(_, victim, _)| victim)
    }

    /// Spawns a task of the victim.
    pub fn spawn_victim(&self, victim: impl Future<Output = ()> + Send + 'static) {
        match self.victim_group() {
            Some(group) => drop(group.spawn(victim)),
            None => drop(self.victims.spawn(victim)),
        }
    }

    /// Lets `hog` compute in the hogs' group `group`.
    pub fn spawn_hog(&self, kind: Kind, group: usize, hog: Hog) {
        let groups = self.hog_groups();
        let group = groups.get(group).cloned();
        let runtime = self.hogs.as_ref().unwrap_or(&self.victims);
        match (kind, group, &self.pool) {
            (Kind::Tasks, Some(group), _) => drop(group.spawn(hog.run())),
            (Kind::Tasks, None, _) => drop(runtime.spawn(hog.run())),
            (Kind::Rayon, group, Some(pool)) => by_rayon(pool.clone(), group, hog),
            (_, group, _) => by_closures(runtime.handle().clone(), group, hog),
        }
    }

    /// Accepts and answers; each connection is one task of the victim.
    ///
    /// # Errors
    /// When the listener cannot be registered.
    pub fn serve(&self, listener: TcpListener) -> Result<(), Failure> {
        let refused = || Failure::during("cannot serve");
        listener.set_nonblocking(true).map_err(refused())?;
        let group = self.victim_group().cloned();
        let _entered = self.victims.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(refused())?;
        drop(self.victims.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let echo = async move {
                    let mut message = [0_u8; 64];
                    let _ = stream.set_nodelay(true);
                    while stream.read_exact(&mut message).await.is_ok()
                        && stream.write_all(&message).await.is_ok()
                    {}
                };
                match &group {
                    Some(group) => drop(group.spawn(echo)),
                    None => drop(tokio::spawn(echo)),
                }
            }
        }));
        Ok(())
    }

    /// Ends everything; the hogs were told to.
    pub fn end(self) {
        drop(self.groups);
        drop(self.pool);
        for runtime in self.hogs.into_iter().chain([self.victims]) {
            runtime.shutdown_timeout(END);
        }
    }
}

fn runtime(workers: usize, start: impl Fn() + Send + Sync + 'static) -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .on_thread_start(start)
        .build()
        .map_err(Failure::during("cannot build a tokio runtime"))
}

fn groups(
    mode: Mode,
    runtime: &Runtime,
    vcpus: usize,
    plans: &[Plan],
) -> Result<(Scheduler, Group, Vec<Group>), Failure> {
    let builder = Scheduler::builder()
        .handle(runtime.handle().clone())
        .vcpus(vcpus);
    let builder = if mode.preempts() {
        builder.preempt(Preempt::default())
    } else {
        builder
    };
    let scheduler = builder
        .build()
        .map_err(Failure::during("cannot build a scheduler"))?;
    let victim = scheduler.group("victim").and_then(|group| group.create());
    let create = |(index, plan): (usize, &Plan)| {
        let group = scheduler.group(&format!("hogs-{index}"))?;
        let group = match plan.limit {
            Some(limit) => group.max(limit),
            None => group,
        };
        group.weight(plan.weight).create()
    };
    let hogs = plans.iter().enumerate().map(create).collect();
    let refused = || Failure::during("cannot create a group");
    Ok((
        scheduler.clone(),
        victim.map_err(refused())?,
        Result::<Vec<_>, _>::map_err(hogs, refused())?,
    ))
}

/// Refused, or elsewhere than on Unix, the row is that of two runtimes.
fn lower_this_thread() {
    #[cfg(unix)]
    let _ = rustix::process::nice(10);
}

/// One closure after the other, each as long as a poll.
fn by_closures(runtime: tokio::runtime::Handle, group: Option<Group>, hog: Hog) {
    if hog.is_over() {
        return;
    }
    let (next, next_runtime, next_group) = (hog.clone(), runtime.clone(), group.clone());
    let closure = move || {
        hog.compute();
        by_closures(next_runtime, next_group, next);
    };
    match &group {
        Some(group) => drop(group.spawn_blocking(closure)),
        None => drop(runtime.spawn_blocking(closure)),
    }
}

/// One job after the other, each as long as a poll.
fn by_rayon(pool: Arc<rayon_core::ThreadPool>, group: Option<Group>, hog: Hog) {
    if hog.is_over() {
        return;
    }
    let next = Arc::downgrade(&pool);
    pool.spawn(move || {
        match &group {
            // Removed at the end only.
            Some(group) => drop(ThreadMeter::run(group, || hog.compute())),
            None => hog.compute(),
        }
        if let Some(pool) = next.upgrade() {
            by_rayon(pool, group, hog);
        }
    });
}
