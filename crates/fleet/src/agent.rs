//! The background task of a scheduler: it leases for every group under the prefix, and gives each an ordinary limit.
//!
//! # What it does
//! Every [`TICK`] it looks at the groups that have demand (at the others every fourth time), charges what they used to their leases, sets
//! their limits, and collects what is to be asked: one round trip for all of them, of which one is under way at a time, beside the
//! ticks. New groups are found within [`SCAN_TICKS`] ticks, or at once by [`Fleet::adopt`].
//!
//! # Local limits
//! A limit that the group has when it is found, or that somebody writes later, is kept: the smaller of it and the lease is in force.
//! `Group::max` shows what is.
//!
//! # What a local limit lets through
//! A lease of rate r is a limit of `r * PERIOD` in each [`PERIOD`], all at once at its start. What was used beyond a lease that way, by polls
//! under way, or because this task came late is owed and paid out of the next one.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quotient::{Group, Limit, Nanos, Scheduler};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::clock;
use crate::holder::{Allowance, Holder, HolderFigures, Settings};
use crate::limit::FleetLimit;
use crate::message::{ProcessId, Reply, Request};
use crate::redis::RedisStore;
use crate::store::{MemoryStore, Store, StoreError};
use crate::units::{MicroCpus, Micros};

/// How often the task looks. Unit: milliseconds. Default: 25.
const TICK: Duration = Duration::from_millis(25);

/// Groups without demand are looked at every so many ticks.
const IDLE_TICKS: u64 = 4;

/// New groups are looked for every so many ticks: a quarter of a second.
const SCAN_TICKS: u64 = 10;

/// Period of the local limits. Unit: microseconds. Default: 50 ms; longer for rates below 0.02 CPU, since a quota is 1 ms at least.
const PERIOD: Micros = Micros::from_millis(50);

/// A limit is not set again for changes of less than one part in so many.
const CHANGE_PARTS: u64 = 32;

/// How long an answer may take: a quarter of the assumed lease.
const PATIENCE: Duration = Duration::from_millis(250);

/// Why a fleet was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetError {
    /// Not called in a tokio runtime.
    NoRuntime,
    /// The address of the store, or the configured floor.
    Store(StoreError),
}

impl fmt::Display for FleetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FleetError::NoRuntime => write!(formatter, "a fleet is started inside a tokio runtime"),
            FleetError::Store(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for FleetError {}

/// Settings of a [`Fleet`].
#[derive(Debug)]
#[must_use = "nothing happens before `start`"]
pub struct FleetBuilder {
    address: Option<String>,
    prefix: String,
    floor: MicroCpus,
}

impl FleetBuilder {
    /// Groups directly below this path have budgets in the fleet, under their whole path. Default: `tenants/`.
    pub fn group_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// What a group may use, in CPUs, while the store has never been reached, or not for an hour. Default: 0.01. A local limit cannot say
    /// less than 0.001, which is what any group gets.
    pub fn floor(mut self, cpus: f64) -> Self {
        self.floor = MicroCpus::from_cpus(cpus);
        self
    }

    /// Starts the background task in the tokio runtime that this is called in. Whether the store can be reached shows in
    /// [`Fleet::stats`], and once in the log.
    ///
    /// # Errors
    /// [`FleetError`]: outside a runtime, or not an address.
    pub fn start(self, scheduler: &Scheduler) -> Result<Fleet, FleetError> {
        match self.address.clone() {
            Some(address) => {
                let store = RedisStore::new(&address).map_err(FleetError::Store)?;
                self.start_on(scheduler, Arc::new(store))
            }
            None => self.start_on(scheduler, Arc::new(EmbeddedStore::default())),
        }
    }

    /// The same on a store of the caller's.
    ///
    /// # Errors
    /// [`FleetError::NoRuntime`].
    pub fn start_on<S: Store + 'static>(
        self,
        scheduler: &Scheduler,
        store: Arc<S>,
    ) -> Result<Fleet, FleetError> {
        let handle = tokio::runtime::Handle::try_current().map_err(|_| FleetError::NoRuntime)?;
        let settings = Settings {
            process: ProcessId(random()),
            capacity: MicroCpus::whole(scheduler.vcpus() as u64),
            floor: self.floor,
        };
        let state = Arc::new(Mutex::new(State {
            settings,
            prefix: self.prefix,
            scheduler: scheduler.clone(),
            tenants: BTreeMap::new(),
            ticks: 0,
            figures: FleetFigures::default(),
        }));
        let setter: Arc<dyn Setter> = Arc::new(SetOn(store.clone()));
        let task = handle.spawn(run(state.clone(), store));
        Ok(Fleet {
            state,
            setter,
            task,
        })
    }
}

/// A number that no other process has: from the standard library's random keys of hash maps.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(clock::now().0);
    hasher.write_u32(std::process::id());
    // Exact in the store's numbers, too.
    hasher.finish()
}

/// What a fleet's task did, for all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetFigures {
    /// Round trips to the store.
    pub exchanges: u64,
    /// Requests in them.
    pub requests: u64,
    /// Round trips or requests that failed.
    pub errors: u64,
    /// The last failure.
    pub last_error: Option<StoreError>,
    /// Whether the last round trip failed.
    pub away: bool,
}

/// One tenant in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TenantStats {
    /// The group's path.
    pub path: String,
    /// What it may use now.
    pub allowance: Allowance,
    /// What it would use.
    pub demand: MicroCpus,
    /// The limit in the fleet, as far as it is known.
    pub limit: Option<FleetLimit>,
    /// What happened so far.
    pub figures: HolderFigures,
}

/// One scheduler's part of a fleet. Ends when it is dropped; groups then stay on their floors.
#[derive(Debug)]
pub struct Fleet {
    state: Arc<Mutex<State>>,
    setter: Arc<dyn Setter>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fleet {
    /// A fleet with a store: see [`RedisStore::new`] for addresses.
    pub fn builder(address: &str) -> FleetBuilder {
        FleetBuilder {
            address: Some(address.to_owned()),
            prefix: "tenants/".to_owned(),
            floor: MicroCpus(10_000),
        }
    }

    /// A fleet of one process, which has the whole budget of each tenant: no store.
    pub fn embedded() -> FleetBuilder {
        FleetBuilder {
            address: None,
            ..Self::builder("")
        }
    }

    /// Sets a tenant's limit in the fleet and returns its version. All processes follow within one lease.
    ///
    /// # Errors
    /// [`StoreError`]; the old limit stays.
    pub async fn set(&self, tenant: &str, limit: FleetLimit) -> Result<u64, StoreError> {
        self.setter.set(tenant, limit).await
    }

    /// Takes a new group in at once, rather than within a quarter of a second, in which it runs on its local limit.
    pub fn adopt(&self, group: &Group) {
        let mut state = lock(&self.state);
        state.adopt(group, clock::now());
    }

    /// What was asked and answered.
    pub fn figures(&self) -> FleetFigures {
        lock(&self.state).figures.clone()
    }

    /// Every tenant of this process. O(tenants).
    pub fn stats(&self) -> Vec<TenantStats> {
        let now = clock::now();
        let state = lock(&self.state);
        let tenants = state.tenants.iter();
        tenants
            .map(|(path, tenant)| tenant.stats(path, now))
            .collect()
    }
}

/// Writing limits, whatever the store is.
trait Setter: Send + Sync + fmt::Debug {
    fn set<'a>(
        &'a self,
        tenant: &'a str,
        limit: FleetLimit,
    ) -> Pin<Box<dyn Future<Output = Result<u64, StoreError>> + Send + 'a>>;
}

struct SetOn<S>(Arc<S>);

impl<S> fmt::Debug for SetOn<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SetOn")
    }
}

impl<S: Store + 'static> Setter for SetOn<S> {
    fn set<'a>(
        &'a self,
        tenant: &'a str,
        limit: FleetLimit,
    ) -> Pin<Box<dyn Future<Output = Result<u64, StoreError>> + Send + 'a>> {
        Box::pin(self.0.set(tenant, limit))
    }
}

/// A store in memory that follows this process's clock.
#[derive(Debug, Default)]
struct EmbeddedStore {
    store: MemoryStore,
}

impl Store for EmbeddedStore {
    async fn exchange(&self, questions: &[(&str, Request)]) -> Vec<Result<Reply, StoreError>> {
        self.store.set_time(clock::now());
        self.store.exchange(questions).await
    }

    async fn set(&self, tenant: &str, limit: FleetLimit) -> Result<u64, StoreError> {
        self.store.set_time(clock::now());
        Store::set(&self.store, tenant, limit).await
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// One group with a budget.
#[derive(Debug)]
struct Tenant {
    group: Group,
    holder: Holder,
    /// The limit that is not ours.
    local: Option<Limit>,
    /// The limit that we wrote, and the allowance that it stands for.
    written: Option<(Option<Limit>, Allowance)>,
    cpu: Micros,
}

impl Tenant {
    fn stats(&self, path: &str, now: Micros) -> TenantStats {
        TenantStats {
            path: path.to_owned(),
            allowance: self.holder.allowance(now),
            demand: self.holder.demand(),
            limit: self.holder.limit(),
            figures: self.holder.figures(),
        }
    }

    /// Whether it has anything to look at besides its clock.
    fn is_idle(&self, now: Micros) -> bool {
        self.holder.demand() == MicroCpus::ZERO && now >= self.holder.ends()
    }

    fn look(&mut self, now: Micros) {
        self.cpu = micros(self.group.cpu_time());
        let throttled = micros(self.group.stats().bandwidth.throttled);
        self.holder.observe(now, self.cpu, throttled);
    }

    /// Puts what may be used in force. Returns whether the group still exists.
    fn apply(&mut self, now: Micros) -> bool {
        let allowance = self.holder.allowance(now);
        let in_force = self.group.max();
        if let Some((written, of)) = self.written {
            if written != in_force {
                // Somebody wrote a limit beside us: it is the local one from now on.
                self.local = in_force;
            } else if !differs(of, allowance) {
                return true;
            }
        }
        let wanted = match allowance {
            Allowance::Unlimited => self.local,
            Allowance::Lease(rate) => Some(smaller(limit_of(rate, PERIOD), self.local)),
            Allowance::Floor(rate) => Some(smaller(limit_of(rate, Micros::SECOND), self.local)),
        };
        if self.group.set_max(wanted).is_err() {
            return false;
        }
        self.written = Some((wanted, allowance));
        true
    }
}

fn micros(time: Duration) -> Micros {
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Whether it is worth writing a limit.
fn differs(old: Allowance, new: Allowance) -> bool {
    match (old, new) {
        (Allowance::Unlimited, Allowance::Unlimited) => false,
        (Allowance::Lease(old), Allowance::Lease(new))
        | (Allowance::Floor(old), Allowance::Floor(new)) => {
            old.0.abs_diff(new.0) > old.0.max(new.0) / CHANGE_PARTS
        }
        _ => true,
    }
}

/// A local limit of this rate: in the given period, or a longer one in which the quota is not too small.
fn limit_of(rate: MicroCpus, period: Micros) -> Limit {
    let least = Limit::QUOTA_MIN.as_nanos() / 1_000;
    let rate = MicroCpus(rate.0.max(1));
    let needed = Micros(least * 1_000_000 / rate.0);
    let period = period.max(needed).min(Micros::SECOND);
    let quota = rate.over(period).0.max(least);
    Limit::new(Nanos::from_micros(quota), Nanos::from_micros(period.0))
}

/// The one of two limits with the lower rate.
fn smaller(ours: Limit, local: Option<Limit>) -> Limit {
    match local {
        Some(local) if local.ratio() < ours.ratio() => local,
        _ => ours,
    }
}

#[derive(Debug)]
struct State {
    settings: Settings,
    prefix: String,
    scheduler: Scheduler,
    tenants: BTreeMap<Arc<str>, Tenant>,
    ticks: u64,
    figures: FleetFigures,
}

type Question = (Arc<str>, Request);

impl State {
    fn adopt(&mut self, group: &Group, now: Micros) {
        if self.tenants.contains_key(group.path()) {
            return;
        }
        let cpu = micros(group.cpu_time());
        let throttled = micros(group.stats().bandwidth.throttled);
        let mut tenant = Tenant {
            holder: Holder::new(self.settings, now, cpu, throttled),
            local: group.max(),
            group: group.clone(),
            written: None,
            cpu,
        };
        if tenant.apply(now) {
            self.tenants.insert(group.path().into(), tenant);
        }
    }

    /// Finds new groups, and forgets those that were removed.
    fn scan(&mut self, now: Micros) {
        let groups = self.scheduler.groups();
        let ours = groups.iter().filter(|group| {
            let rest = group.path().strip_prefix(self.prefix.as_str());
            rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
        });
        let found: Vec<&Group> = ours.collect();
        if found.len() != self.tenants.len() {
            let paths: std::collections::HashSet<&str> =
                found.iter().map(|group| group.path()).collect();
            self.tenants.retain(|path, _| paths.contains(&**path));
        }
        for group in found {
            self.adopt(group, now);
        }
    }

    /// Looks at the groups; returns what is to be asked, if nothing is under way.
    fn tick(&mut self, may_ask: bool) -> Vec<Question> {
        let now = clock::now();
        if self.ticks.is_multiple_of(SCAN_TICKS) {
            self.scan(now);
        }
        self.ticks += 1;
        let all = self.ticks.is_multiple_of(IDLE_TICKS);
        let mut questions = Vec::new();
        let mut gone = Vec::new();
        for (path, tenant) in &mut self.tenants {
            let idle = tenant.is_idle(now);
            if idle && !all {
                continue;
            }
            let unknown = tenant.holder.figures().asked == 0;
            if idle
                && !unknown
                && micros(tenant.group.cpu_time()) == tenant.cpu
                && tenant.written.is_some()
            {
                let quiet = tenant.holder.next_ask(now).is_none_or(|at| at > now);
                if quiet {
                    continue;
                }
            }
            tenant.look(now);
            let due = tenant.holder.next_ask(now).is_some_and(|at| at <= now);
            if may_ask && due {
                questions.push((path.clone(), tenant.holder.request(now)));
            }
            if !tenant.apply(now) {
                gone.push(path.clone());
            }
        }
        for path in gone {
            self.tenants.remove(&path);
        }
        questions
    }

    /// Takes in the answers to one round trip.
    fn take(&mut self, questions: &[Question], answers: Vec<Result<Reply, StoreError>>) {
        let now = clock::now();
        self.figures.exchanges += 1;
        self.figures.requests += questions.len() as u64;
        let mut failure = None;
        for ((path, request), answer) in questions.iter().zip(answers) {
            let Some(tenant) = self.tenants.get_mut(path) else {
                continue;
            };
            tenant.look(now);
            match answer {
                Ok(reply) => {
                    tenant.holder.answer(now, request.sequence, &reply);
                }
                Err(error) => {
                    tenant.holder.failed(now);
                    self.figures.errors += 1;
                    failure = Some(error);
                }
            }
            tenant.apply(now);
        }
        self.say(failure);
    }

    /// Says once that the store is away, and once that it is back.
    fn say(&mut self, failure: Option<StoreError>) {
        match failure {
            Some(error) => {
                if !self.figures.away {
                    tracing::warn!(
                        target: "quotient",
                        %error,
                        "no lease from the fleet's store: groups go on with what they hold, then on their floors"
                    );
                }
                self.figures.away = true;
                self.figures.last_error = Some(error);
            }
            None => {
                if self.figures.away {
                    tracing::info!(target: "quotient", "the fleet's store answers again");
                }
                self.figures.away = false;
            }
        }
    }

    /// Nobody sees to leases any more: floors from now on.
    fn end(&mut self) {
        for tenant in self.tenants.values_mut() {
            let floor = tenant.holder.floor(clock::now());
            let limit = smaller(limit_of(floor, Micros::SECOND), tenant.local);
            if tenant.holder.allowance(clock::now()) != Allowance::Unlimited {
                // A group that was removed meanwhile needs none.
                let _ = tenant.group.set_max(limit);
            }
        }
    }
}

/// Puts groups on their floors when the task ends, however it does.
struct Ending(Arc<Mutex<State>>);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0).end();
    }
}

type Exchange =
    Pin<Box<dyn Future<Output = (Vec<Question>, Vec<Result<Reply, StoreError>>)> + Send>>;

/// One round trip, given up after a while.
fn exchange<S: Store + 'static>(store: Arc<S>, questions: Vec<Question>) -> Exchange {
    Box::pin(async move {
        let asked: Vec<(&str, Request)> = questions
            .iter()
            .map(|(path, request)| (&**path, *request))
            .collect();
        let answers = timeout(PATIENCE, store.exchange(&asked)).await;
        let answers = answers.unwrap_or_else(|_| {
            let late = StoreError::Unreachable(format!("no answer within {PATIENCE:?}"));
            asked.iter().map(|_| Err(late.clone())).collect()
        });
        drop(asked);
        (questions, answers)
    })
}

async fn run<S: Store + 'static>(state: Arc<Mutex<State>>, store: Arc<S>) {
    let _ending = Ending(state.clone());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut under_way: Option<Exchange> = None;
    loop {
        let answered = async {
            match under_way.as_mut() {
                Some(exchange) => exchange.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (questions, answers) = answered => {
                under_way = None;
                lock(&state).take(&questions, answers);
            }
            _ = ticks.tick() => {
                let questions = lock(&state).tick(under_way.is_none());
                if !questions.is_empty() {
                    under_way = Some(exchange(store.clone(), questions));
                }
            }
        }
    }
}
