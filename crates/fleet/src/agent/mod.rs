//! The background task of a scheduler: it leases for every group under the prefix, and gives each an ordinary limit.
//!
//! # What it does
//! Every 25 ms (50 while nobody uses all that it may, up to 250 while those who do not rest want little; and when somebody is throttled) it looks at the groups that have demand and are due (`pass`), charges what they used to their leases, sets
//! their limits (`tenant`), and collects what is to be asked: one round trip for all of them, of which one is under way at a time, beside the
//! ticks (`task`), of fewer requests after one that was late (`batch`). New groups are found with the next tick, or at once by [`Fleet::adopt`].
//!
//! # Local limits
//! A limit that the group has when it is found, or that somebody writes later, is kept: the smaller of it and the lease is in force.
//! `Group::max` shows what is.
//!
//! # What a local limit lets through
//! A lease of rate r is a limit of `r * PERIOD` in each [`PERIOD`](crate::rhythm::PERIOD), all at once at its start. What was used beyond a lease that way, by polls
//! under way, or because this task came late is owed and paid out of the next one.

mod batch;
mod claim;
mod faults;
mod pass;
mod past;
mod task;
mod tenant;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quotient::{Group, Scheduler};

use self::claim::Claim;
use self::pass::State;
use crate::clock;
use crate::holder::{Allowance, HolderFigures, Settings};
use crate::limit::{FleetLimit, FleetLimitError};
use crate::message::{ProcessId, Reply, Request};
use crate::redis::RedisStore;
use crate::store::{MemoryStore, Store, StoreError, check_tenant};
use crate::units::MicroCpus;

/// Why a fleet was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetError {
    /// Not called in a tokio runtime.
    NoRuntime,
    /// The address of the store, or the configured floor.
    Store(StoreError),
    /// The prefix is not the path of a group, with or without a slash at its end.
    Prefix(String),
    /// The groups below this prefix have a fleet on this scheduler already: one at a time.
    Taken(String),
}

impl fmt::Display for FleetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FleetError::NoRuntime => write!(formatter, "a fleet is started inside a tokio runtime"),
            FleetError::Store(error) => error.fmt(formatter),
            FleetError::Prefix(prefix) => {
                write!(
                    formatter,
                    "the prefix {prefix:?} is not the path of a group"
                )
            }
            FleetError::Taken(prefix) => write!(
                formatter,
                "the prefix {prefix:?} has a fleet on this scheduler already, and may have one at a time; drop that one first"
            ),
        }
    }
}

impl std::error::Error for FleetError {}

/// How long [`Fleet::leave`] tries to tell the store. Default: 2 s, as long as a connection may take.
pub const LEAVES_WITHIN: Duration = Duration::from_secs(2);

/// Settings of a [`Fleet`].
#[derive(Debug)]
#[must_use = "nothing happens before `start`"]
pub struct FleetBuilder {
    address: Option<String>,
    roots: Option<Vec<u8>>,
    prefix: String,
    floor: MicroCpus,
    strict: bool,
}

impl FleetBuilder {
    /// Groups directly below this path have budgets in the fleet, under their whole path. Default: `tenants/`. The slash may be left
    /// out; an empty prefix is for the groups below the root.
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

    /// Never believes that a tenant has no limit unless somebody said so (`quotient fleet set TENANT max`, or [`FleetLimit::quota`] of
    /// `None`): a tenant that the store does not know stays on its floor. By default that is believed of a store that has remembered for
    /// [`MEMORY_SETTLES`](crate::MEMORY_SETTLES); a limit that everybody has forgotten is none then.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Certificates that the store's is checked against with TLS (PEM), in place of the system's. Needs the feature `tls`.
    pub fn root_certificates(mut self, pem: &[u8]) -> Self {
        self.roots = Some(pem.to_vec());
        self
    }

    /// Starts the background task in the tokio runtime that this is called in. Whether the store can be reached shows in
    /// [`Fleet::stats`], and once in the log.
    ///
    /// # Errors
    /// [`FleetError`]: outside a runtime, not an address, or a prefix that has a fleet on this scheduler.
    pub fn start(self, scheduler: &Scheduler) -> Result<Fleet, FleetError> {
        match self.address.clone() {
            Some(address) => {
                let store = match &self.roots {
                    Some(pem) => RedisStore::with_root_certificates(&address, pem),
                    None => RedisStore::new(&address),
                };
                let store = store.map_err(FleetError::Store)?;
                self.start_on(scheduler, Arc::new(store))
            }
            None => self.start_on(scheduler, Arc::new(EmbeddedStore::default())),
        }
    }

    /// The same on a store of the caller's.
    ///
    /// # Errors
    /// [`FleetError`]: outside a runtime, a prefix that is no path or has a fleet on this scheduler, a floor above
    /// [`FleetLimit::QUOTA_MAX`].
    pub fn start_on<S: Store + 'static>(
        self,
        scheduler: &Scheduler,
        store: Arc<S>,
    ) -> Result<Fleet, FleetError> {
        let handle = tokio::runtime::Handle::try_current().map_err(|_| FleetError::NoRuntime)?;
        let most = FleetLimit::QUOTA_MAX;
        if self.floor > most {
            let error = FleetLimitError {
                field: "floor",
                value: self.floor.0,
                min: 0,
                max: most.0,
            };
            return Err(FleetError::Store(StoreError::Limit(error)));
        }
        let prefix = prefix_of(&self.prefix, scheduler)?;
        let claim = Claim::new(scheduler, &prefix);
        let claim = claim.ok_or_else(|| FleetError::Taken(prefix.clone()))?;
        let settings = Settings {
            process: ProcessId(random()),
            capacity: MicroCpus::whole(scheduler.vcpus() as u64),
            floor: self.floor,
            strict: self.strict,
        };
        let state = State::new(settings, prefix, scheduler.clone()).with_claim(claim);
        let state = Arc::new(Mutex::new(state));
        let counter: Arc<dyn Counter> = Arc::new(CounterOf(store.clone()));
        let task = handle.spawn(task::run(state.clone(), store));
        Ok(Fleet {
            state,
            counter,
            task,
        })
    }
}

/// The prefix with its slash: without one `tenants` would be that of `tenantsacme`, and of nobody's tenants.
fn prefix_of(prefix: &str, scheduler: &Scheduler) -> Result<String, FleetError> {
    let path = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Ok(String::new());
    }
    match scheduler.group(path) {
        Ok(_) => Ok(format!("{path}/")),
        Err(_) => Err(FleetError::Prefix(prefix.to_owned())),
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
    /// Round trips that were given up because no answer came in time: each halves how many requests the next one carries.
    pub late: u64,
    /// The last failure.
    pub last_error: Option<StoreError>,
    /// Whether the store failed in the last round trip that tells: one in which the only failures are of tenants whose keys or answers make no
    /// sense says so in [`FleetFigures::last_error`] and their own figures only.
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

/// One scheduler's part of a fleet. Ends when it is dropped; groups then stay on their floors. A process that ends in order calls
/// [`Fleet::leave`]: who only dies keeps its lease until that ends, and its floor for an hour.
#[derive(Debug)]
pub struct Fleet {
    state: Arc<Mutex<State>>,
    counter: Arc<dyn Counter>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // At once, not when the runtime comes to drop the task: another fleet may be started next.
        lock(&self.state).end();
        self.task.abort();
    }
}

impl Fleet {
    /// A fleet with a store: see [`RedisStore::new`] for addresses.
    pub fn builder(address: &str) -> FleetBuilder {
        FleetBuilder {
            address: Some(address.to_owned()),
            roots: None,
            prefix: "tenants/".to_owned(),
            floor: MicroCpus(10_000),
            strict: false,
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
    /// [`StoreError`]; the old limit stays. [`StoreError::Tenant`] for a name that no group can have.
    pub async fn set(&self, tenant: &str, limit: FleetLimit) -> Result<u64, StoreError> {
        check_tenant(tenant)?;
        self.counter.set(tenant, limit).await
    }

    /// Takes a group in at once, rather than with the next tick (25 ms, a quarter of a second while no tenant needs more than little), before which it runs on its local limit. Returns whether it has a
    /// budget in the fleet: not if its path does not lie directly below the prefix, or it was removed.
    pub fn adopt(&self, group: &Group) -> bool {
        lock(&self.state).adopt(group, clock::now())
    }

    /// Ends in order: gives leases and floors back, and tells the store so, in [`LEAVES_WITHIN`] at most. Groups are on the least that a local limit
    /// can say then, 1 ms a second. If the store is not told, nothing is lost but time: leases end by themselves, and floors after an hour.
    ///
    /// # Errors
    /// [`StoreError`]: the first of what was not told.
    pub async fn leave(mut self) -> Result<(), StoreError> {
        // Before the task, which would end without a word.
        let questions = lock(&self.state).leave();
        self.task.abort();
        // What it was about to send comes first, or not at all.
        let _ = (&mut self.task).await;
        let asked: Vec<(&str, Request)> = questions
            .iter()
            .map(|(path, request)| (&**path, *request))
            .collect();
        let told = async {
            for part in asked.chunks(batch::ASKED_MAX) {
                for answer in self.counter.tell(part).await {
                    answer?;
                }
            }
            Ok(())
        };
        let late = || StoreError::Unreachable(format!("no answer within {LEAVES_WITHIN:?}"));
        let told = tokio::time::timeout(LEAVES_WITHIN, told).await;
        told.unwrap_or_else(|_| Err(late()))
    }

    /// What was asked and answered.
    pub fn figures(&self) -> FleetFigures {
        lock(&self.state).figures.clone()
    }

    /// Every tenant of this process. O(tenants).
    pub fn stats(&self) -> Vec<TenantStats> {
        lock(&self.state).stats(clock::now())
    }
}

type Coming<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The store, whichever it is, for what is not the task's.
trait Counter: Send + Sync + fmt::Debug {
    /// Sends the last requests of a process.
    fn tell<'a>(
        &'a self,
        questions: &'a [(&'a str, Request)],
    ) -> Coming<'a, Vec<Result<Reply, StoreError>>>;

    fn set<'a>(&'a self, tenant: &'a str, limit: FleetLimit)
    -> Coming<'a, Result<u64, StoreError>>;
}

struct CounterOf<S>(Arc<S>);

impl<S> fmt::Debug for CounterOf<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CounterOf")
    }
}

impl<S: Store + 'static> Counter for CounterOf<S> {
    fn tell<'a>(
        &'a self,
        questions: &'a [(&'a str, Request)],
    ) -> Coming<'a, Vec<Result<Reply, StoreError>>> {
        Box::pin(self.0.exchange(questions))
    }

    fn set<'a>(
        &'a self,
        tenant: &'a str,
        limit: FleetLimit,
    ) -> Coming<'a, Result<u64, StoreError>> {
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

    async fn memory(&self) -> Result<u64, StoreError> {
        self.store.memory().await
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poison| poison.into_inner())
}
