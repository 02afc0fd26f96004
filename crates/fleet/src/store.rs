//! Where budgets live: the trait, and a store in memory.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, ready};
use std::sync::{Mutex, MutexGuard};

use quotient_core::{GroupError, GroupTree};

use crate::limit::{FleetLimit, FleetLimitError};
use crate::message::{Reply, Request};
use crate::tenant::{Tenant, TenantFigures};
use crate::units::Micros;

/// Where the budgets of tenants live.
pub trait Store: Send + Sync {
    /// Puts the questions of one process for several tenants, in one round trip, and answers each in its place.
    fn exchange(
        &self,
        questions: &[(&str, Request)],
    ) -> impl Future<Output = Vec<Result<Reply, StoreError>>> + Send;

    /// Sets a tenant's limit and returns its version. A name that no group can have is refused ([`StoreError::Tenant`]).
    fn set(
        &self,
        tenant: &str,
        limit: FleetLimit,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// A number that is another one once the store may have forgotten limits: then each process tells it those that it knows.
    fn memory(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// What a store could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// It cannot be reached, or did not answer in time.
    Unreachable(String),
    /// It refuses this user, or the user may not do this.
    Denied(String),
    /// It answers, but cannot write: a replica, out of memory, its disk full.
    Unwilling(String),
    /// It is older than Redis 7 or Valkey 7.2, which is the first with functions.
    Version(String),
    /// The tenant's key holds something else.
    WrongType(String),
    /// The tenant's key was written by a later version of this crate.
    Format(String),
    /// The answer makes no sense.
    Garbage(String),
    /// The address is none.
    Address(String),
    /// The limit is out of range.
    Limit(FleetLimitError),
    /// The tenant's name is not the path of a group.
    Tenant(GroupError),
}

impl StoreError {
    /// Whether it says something of one tenant, rather than of the store.
    pub(crate) fn is_of_tenant(&self) -> bool {
        match self {
            StoreError::WrongType(_)
            | StoreError::Format(_)
            | StoreError::Garbage(_)
            | StoreError::Limit(_)
            | StoreError::Tenant(_) => true,
            StoreError::Unreachable(_)
            | StoreError::Denied(_)
            | StoreError::Unwilling(_)
            | StoreError::Version(_)
            | StoreError::Address(_) => false,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Unreachable(why) => write!(formatter, "the store cannot be reached: {why}"),
            StoreError::Denied(why) => write!(formatter, "the store refuses this user: {why}"),
            StoreError::Unwilling(why) => write!(formatter, "the store cannot write: {why}"),
            StoreError::Version(why) => {
                write!(
                    formatter,
                    "the store is too old, Redis 7 or Valkey 7.2 is needed: {why}"
                )
            }
            StoreError::WrongType(why) => {
                write!(formatter, "a key of the tenant holds something else: {why}")
            }
            StoreError::Format(why) => {
                write!(
                    formatter,
                    "this program is too old for the tenant's key: {why}"
                )
            }
            StoreError::Garbage(why) => {
                write!(formatter, "the store's answer makes no sense: {why}")
            }
            StoreError::Address(why) => write!(formatter, "not the address of a store: {why}"),
            StoreError::Limit(error) => error.fmt(formatter),
            StoreError::Tenant(error) => {
                write!(
                    formatter,
                    "a tenant's name is the path of its groups: {error}"
                )
            }
        }
    }
}

impl std::error::Error for StoreError {}

impl From<FleetLimitError> for StoreError {
    fn from(error: FleetLimitError) -> Self {
        StoreError::Limit(error)
    }
}

/// Whether groups can have this path, with the scheduler's own rule: a limit of another name holds for nobody.
///
/// # Errors
/// [`StoreError::Tenant`] names the rule, and what breaks it.
pub(crate) fn check_tenant(tenant: &str) -> Result<(), StoreError> {
    GroupTree::check_path(tenant).map_err(StoreError::Tenant)
}

/// For how long a store that may have forgotten limits is not believed that there is none: who knows one looks every ten seconds whether
/// the store is still the same, and tells it.
///
/// Unit: microseconds. Default: 30 s.
pub const MEMORY_SETTLES: Micros = Micros::from_secs(30);

/// Since when a store remembers all that it was told, as the key `quotient:1:store` does for a real one.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    run: u64,
    since: Micros,
}

impl Memory {
    /// For how long what is not in the store may have been forgotten; begins anew in another life of the store, or when its clock went back.
    fn unsure_for(&mut self, now: Micros, run: u64) -> Micros {
        if self.run != run || self.since > now {
            *self = Memory { run, since: now };
        } else if self.since == Micros::ZERO {
            return Micros::ZERO;
        }
        (self.since + MEMORY_SETTLES).saturating_sub(now)
    }
}

/// A store in memory, with a clock that its owner moves: for tests, and for programs that are one process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    now: Micros,
    run: u64,
    tenants: HashMap<String, Tenant>,
    memory: Memory,
}

impl MemoryStore {
    /// An empty store at time zero, before which there was nothing that it could have forgotten.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Sets the store's clock; back, too.
    pub fn set_time(&self, now: Micros) {
        self.inner().now = now;
    }

    /// Restarts the store: with what it held, or empty.
    pub fn restart(&self, keeps: bool) {
        let mut inner = self.inner();
        inner.run += 1;
        if !keeps {
            inner.tenants.clear();
        }
    }

    /// Answers one request at once.
    pub fn ask(&self, tenant: &str, request: &Request) -> Reply {
        let mut inner = self.inner();
        let (now, run) = (inner.now, inner.run + 1);
        if let Some(found) = inner.tenants.get_mut(tenant) {
            return found.ask(now, run, request);
        }
        let mut fresh = Tenant::new();
        let reply = fresh.ask(now, run, request);
        if fresh.limit().is_some() {
            inner.tenants.insert(tenant.to_owned(), fresh);
            return reply;
        }
        match inner.memory.unsure_for(now, run - 1) {
            Micros::ZERO => reply,
            wait => Reply::Unknown { wait },
        }
    }

    /// What is not in the store was never set: "no limit" is to be believed at once.
    pub fn confirm(&self) {
        let mut inner = self.inner();
        inner.memory = Memory {
            run: inner.run,
            since: Micros::ZERO,
        };
    }

    /// Sets a limit at once and returns its version.
    ///
    /// # Errors
    /// [`FleetLimitError`] if a field is out of range; the old limit stays.
    pub fn set_limit(&self, tenant: &str, limit: FleetLimit) -> Result<u64, FleetLimitError> {
        limit.validate()?;
        let mut inner = self.inner();
        let (now, run) = (inner.now, inner.run + 1);
        let tenant = inner.tenants.entry(tenant.to_owned()).or_default();
        Ok(tenant.set(now, run, limit))
    }

    /// The limit in force.
    pub fn limit(&self, tenant: &str) -> Option<FleetLimit> {
        self.inner().tenants.get(tenant).and_then(Tenant::limit)
    }

    /// A tenant's figures, if it has a limit.
    pub fn figures(&self, tenant: &str) -> Option<TenantFigures> {
        self.inner().tenants.get(tenant).map(Tenant::figures)
    }
}

impl Store for MemoryStore {
    fn exchange(
        &self,
        questions: &[(&str, Request)],
    ) -> impl Future<Output = Vec<Result<Reply, StoreError>>> + Send {
        let answers = questions
            .iter()
            .map(|(tenant, request)| Ok(self.ask(tenant, request)));
        ready(answers.collect::<Vec<_>>())
    }

    fn set(
        &self,
        tenant: &str,
        limit: FleetLimit,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let checked = check_tenant(tenant);
        ready(checked.and_then(|()| Ok(self.set_limit(tenant, limit)?)))
    }

    fn memory(&self) -> impl Future<Output = Result<u64, StoreError>> + Send {
        ready(Ok(self.inner().run))
    }
}
