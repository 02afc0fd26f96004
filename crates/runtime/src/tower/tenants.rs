//! Tenants by the value of a header.
//!
//! The table has a bound, and what clients write must not fill it for ever: a new tenant takes the place of one that is idle. A tenant is
//! idle if no request holds a [`Claim`] to it and its group, with all below, has no task. Claims are copies of the table's
//! `Arc<Tenant>`, made under the read lock; eviction takes an entry out under the write lock if there is no copy: from then on nobody
//! can get one. The group is then removed with [`Leftover::Refuse`], which is exact; if it has work, the entry goes back. Only groups that
//! the table has made are removed; of others only the entry goes.
//!
//! # Locks
//! Requests of all tenants take them, in polls that may be stopped (`preempt`). So whoever holds one is shielded, and calls nothing of the program's:
//! a tenant that is out of budget keeps no other waiting here. The settings of a new tenant are asked for in between: (N1) under the ring, a
//! place is found and noted in `Ring::making`; (N2) under no lock, the settings; (N3) under the ring, the group is made and the place filled, if
//! nobody has done so meanwhile. Requests that bring the same new tenant share its place.
//!
//! # Who goes
//! It is decided by the second-chance rule: a ring, and a mark that each request sets. So headers that come once push each other out,
//! not those who come again. One admission looks at [`LOOKS`] entries at most.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use http::{HeaderName, Request};

use super::select::{Claim, Select};
use crate::error::Error;
use crate::group::{Group, GroupBuilder, Leftover};
use crate::loss::{self, Loss};
use crate::preempt::at_usual_priority;
use crate::scheduler::Scheduler;
use crate::shielded::lock_shielded;
use crate::tower::GroupLayer;

/// How many entries a new tenant may push aside or look at. Unit: entries. 128 are some microseconds: what an invented header may cost.
const LOOKS: usize = 128;

/// Settings of a new tenant's group.
type OnTenant = dyn Fn(&str, GroupBuilder) -> GroupBuilder + Send + Sync;

/// Chooses by the value of a header, with a bound on the number of tenants and a default group for the rest.
#[derive(Clone, Debug)]
pub struct ByHeader {
    shared: Arc<Table>,
    on_tenant: Option<Callback>,
}

#[derive(Clone)]
struct Callback(Arc<OnTenant>);

impl fmt::Debug for Callback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("custom")
    }
}

/// A tenant of the table.
#[derive(Debug)]
pub(super) struct Tenant {
    name: Box<[u8]>,
    group: Group,
    /// The table has made the group, and may remove it.
    made: bool,
    /// A request came since the ring looked last.
    used: AtomicBool,
}

/// Tenants by their names.
type Known = HashMap<Box<[u8]>, Arc<Tenant>>;

#[derive(Debug)]
struct Table {
    scheduler: Scheduler,
    header: HeaderName,
    parent: String,
    tenants_max: usize,
    default: Group,
    known: RwLock<Known>,
    /// `known` is taken inside.
    ring: Mutex<Ring>,
}

/// Who has a place, or will.
#[derive(Debug, Default)]
struct Ring {
    /// All entries, the next to be looked at first.
    entries: VecDeque<Arc<Tenant>>,
    /// Names that have places and are not known, and how many requests are at it.
    making: HashMap<Box<[u8]>, usize>,
}

impl Ring {
    /// One request less is at it.
    fn leave(&mut self, name: &[u8]) {
        let Some(requests) = self.making.get_mut(name) else {
            return;
        };
        *requests -= 1;
        if *requests == 0 {
            self.making.remove(name);
        }
    }
}

/// A request that makes a tenant is counted while this lives.
struct Making {
    table: Arc<Table>,
    name: Arc<[u8]>,
}

impl Drop for Making {
    fn drop(&mut self) {
        lock_shielded(&self.table.ring).leave(&self.name);
    }
}

impl Making {
    /// N3, for settings that were asked for.
    fn finish(self, builder: GroupBuilder) -> Result<Arc<Tenant>, Unplaced> {
        let shared = self.table.scheduler.shared().clone();
        at_usual_priority(&shared, move || self.table.fill(&self.name, builder))
    }
}

/// What a request finds that names a tenant.
enum Found {
    Tenant(Arc<Tenant>),
    /// There is none, but a place.
    New(Making),
}

impl GroupLayer<ByHeader> {
    /// Runs a request whose `header` says `acme` in the group `parent/acme`, made on its first request, for at most `tenants_max`
    /// tenants at a time. A new tenant takes the place of one without work, whose group is removed; that tenant gets a new group with its
    /// next request. Requests run in `default` if they lack the header, if its value cannot be the name of a group, or if all
    /// `tenants_max` tenants have work; the latter two are counted there, as [`unplaced_requests`](crate::Losses::unplaced_requests). Those of a tenant whose group
    /// was removed are refused ([`RefusalReason::Removed`](super::RefusalReason::Removed)) while that has tasks yet.
    ///
    /// # Errors
    /// As [`Scheduler::group`] for a malformed `parent`.
    pub fn by_header(
        scheduler: &Scheduler,
        header: HeaderName,
        parent: &str,
        tenants_max: usize,
        default: Group,
    ) -> Result<Self, Error> {
        let _ = scheduler.group(parent)?;
        Ok(Self::by(ByHeader {
            shared: Arc::new(Table {
                scheduler: scheduler.clone(),
                header,
                parent: parent.to_owned(),
                tenants_max,
                default,
                known: RwLock::new(HashMap::new()),
                ring: Mutex::default(),
            }),
            on_tenant: None,
        }))
    }

    /// Calls `settings` with the header's value and the builder for each new tenant's group, to set weight, limit and bounds. A group that
    /// exists already keeps its settings. Called in the connection's task before the group is made, and nobody waits for it: if several requests
    /// bring the same new tenant at the same time, each may call it, and what one of them says holds.
    pub fn on_tenant(
        mut self,
        settings: impl Fn(&str, GroupBuilder) -> GroupBuilder + Send + Sync + 'static,
    ) -> Self {
        self.select.on_tenant = Some(Callback(Arc::new(settings)));
        self
    }
}

impl<B> Select<Request<B>> for ByHeader {
    fn select(&self, request: &Request<B>) -> Group {
        self.claim(request).group().clone()
    }

    fn claim(&self, request: &Request<B>) -> Claim {
        let table = &*self.shared;
        let Some(value) = request.headers().get(&table.header) else {
            return table.default.clone().into();
        };
        match self.tenant(value.as_bytes()) {
            Ok(tenant) => Claim::new(tenant.group.clone(), Some(tenant)),
            Err(reason) => {
                if let Some(removed) = reason
                    .is_removed()
                    .then(|| table.removed(value.as_bytes()))
                    .flatten()
                {
                    return removed.into();
                }
                let group = &table.default;
                loss::note(
                    &group.shared,
                    &group.inner,
                    Loss::UnplacedRequest,
                    1,
                    &reason,
                );
                group.clone().into()
            }
        }
    }
}

impl ByHeader {
    fn tenant(&self, value: &[u8]) -> Result<Arc<Tenant>, Unplaced> {
        if let Some(tenant) = self.shared.find(value) {
            return Ok(tenant);
        }
        self.admit(value)
    }

    /// The entry of a new tenant.
    fn admit(&self, value: &[u8]) -> Result<Arc<Tenant>, Unplaced> {
        let table = &self.shared;
        let name = std::str::from_utf8(value).map_err(|_| Unplaced::Name)?;
        // A tenant is one level below the parent, whatever it calls itself.
        if name.contains('/') {
            return Err(Unplaced::Name);
        }
        let builder = table
            .scheduler
            .group(&format!("{}/{name}", table.parent))
            .map_err(Unplaced::Group)?;
        let making = match table.find_or_begin(value)? {
            Found::Tenant(tenant) => return Ok(tenant),
            Found::New(making) => making,
        };
        making.finish(match &self.on_tenant {
            Some(Callback(settings)) => settings(name, builder),
            None => builder,
        })
    }
}

/// Why a request that names a tenant has no group of its own.
#[derive(Debug)]
enum Unplaced {
    /// The name is not text, or is a path.
    Name,
    /// Its group cannot be made.
    Group(Error),
    /// So many others have work.
    NoRoom(usize),
}

impl Unplaced {
    fn is_removed(&self) -> bool {
        matches!(self, Self::Group(Error::Removed { .. }))
    }
}

impl fmt::Display for Unplaced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => formatter.write_str("the header's value is no name of a group"),
            Self::Group(error) => write!(formatter, "its group cannot be made: {error}"),
            Self::NoRoom(tenants) => write!(
                formatter,
                "all {tenants} tenants of `tenants_max` have work"
            ),
        }
    }
}

impl Table {
    /// What is known now. No code of the program's may run in it.
    fn read<R>(&self, act: impl FnOnce(&Known) -> R) -> R {
        let _shield = quotient_pause::uninterrupted();
        act(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// As [`Table::read`], for a change.
    fn change<R>(&self, act: impl FnOnce(&mut Known) -> R) -> R {
        let _shield = quotient_pause::uninterrupted();
        act(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The tenant, if it is known and its group was not removed.
    fn find(&self, value: &[u8]) -> Option<Arc<Tenant>> {
        let tenant = self.read(|known| known.get(value).cloned())?;
        if tenant.group.inner.is_removed() {
            return None;
        }
        if !tenant.used.load(Ordering::Relaxed) {
            tenant.used.store(true, Ordering::Relaxed);
        }
        Some(tenant)
    }

    /// The group of that name, or the parent of all, if it was removed and has tasks yet, which may take long: its requests are refused. (They ran in the default
    /// group: a tenant whose poll did not return was out of its limit once it was removed, 0.5 to 1.5 CPUs for 0.1.)
    fn removed(&self, value: &[u8]) -> Option<Group> {
        let name = std::str::from_utf8(value).ok()?;
        let own = self.scheduler.find(&format!("{}/{name}", self.parent));
        let groups = [own, self.scheduler.find(&self.parent)];
        let is_removed = |group: &Group| {
            let population = &group.inner.population;
            population.is_removed() && population.count() > 0
        };
        groups.into_iter().flatten().find(is_removed)
    }

    /// N1.
    fn find_or_begin(self: &Arc<Self>, value: &[u8]) -> Result<Found, Unplaced> {
        let (table, name) = (self.clone(), Arc::from(value));
        let begin = move || {
            let mut ring = lock_shielded(&table.ring);
            if let Some(tenant) = table.find(&name) {
                return Ok(Found::Tenant(tenant));
            }
            if !table.has_room(&ring, &name) && !table.evict(&mut ring.entries) {
                return Err(Unplaced::NoRoom(table.tenants_max));
            }
            *ring.making.entry((&*name).into()).or_default() += 1;
            drop(ring);
            Ok(Found::New(Making { table, name }))
        };
        at_usual_priority(self.scheduler.shared(), begin)
    }

    /// N3: the entry of a new tenant, which has a place.
    fn fill(&self, name: &[u8], builder: GroupBuilder) -> Result<Arc<Tenant>, Unplaced> {
        let mut ring = lock_shielded(&self.ring);
        if let Some(tenant) = self.find(name) {
            return Ok(tenant);
        }
        let (group, made) = builder.create_or_keep().map_err(Unplaced::Group)?;
        let tenant = Arc::new(Tenant {
            name: name.into(),
            group,
            made,
            used: AtomicBool::new(false),
        });
        self.insert(tenant.clone());
        ring.entries.push_back(tenant.clone());
        self.sweep(&mut ring.entries);
        Ok(tenant)
    }

    /// Whether a tenant of that name fits in: one whose group was removed leaves its place to the next of its name.
    fn has_room(&self, ring: &Ring, name: &[u8]) -> bool {
        if ring.making.contains_key(name) {
            return true;
        }
        self.read(|known| {
            let new = ring.making.keys().filter(|name| !known.contains_key(*name));
            known.contains_key(name) || known.len() + new.count() < self.tenants_max
        })
    }

    /// Throws out entries of the ring that another of their name has replaced: they are none of the table's. A look at each entry after
    /// as many admissions, so a few steps for each.
    fn sweep(&self, ring: &mut VecDeque<Arc<Tenant>>) {
        self.read(|known| {
            if ring.len() > 2 * known.len() + LOOKS {
                ring.retain(|tenant| is_listed(known, tenant));
            }
        });
    }

    fn insert(&self, tenant: Arc<Tenant>) {
        let former = self.change(|known| known.insert(tenant.name.clone(), tenant));
        drop(former);
    }

    /// Makes room for one; whether it could.
    fn evict(&self, ring: &mut VecDeque<Arc<Tenant>>) -> bool {
        for _ in 0..LOOKS.min(2 * ring.len()) {
            let Some(tenant) = ring.pop_front() else {
                return false;
            };
            if !self.read(|known| is_listed(known, &tenant)) {
                // Another of its name has its place, which is not free by that.
                continue;
            }
            let removed = tenant.group.inner.is_removed();
            let spared = !removed && tenant.used.swap(false, Ordering::Relaxed);
            if spared || !self.forget(&tenant) {
                ring.push_back(tenant);
                continue;
            }
            // Nobody has it any more, and nobody can get it.
            let busy = !removed
                && tenant.made
                && matches!(
                    tenant.group.remove(Leftover::Refuse),
                    Err(Error::Busy { .. })
                );
            if busy {
                self.insert(tenant.clone());
                ring.push_back(tenant);
                continue;
            }
            return true;
        }
        false
    }

    /// Takes a tenant out of the table, unless a request has it. Those whose group was removed go in any case.
    fn forget(&self, tenant: &Arc<Tenant>) -> bool {
        self.change(|known| {
            let listed = is_listed(known, tenant);
            // The table's own copy and the caller's.
            if listed && Arc::strong_count(tenant) > 2 && !tenant.group.inner.is_removed() {
                return false;
            }
            if listed {
                known.remove(&tenant.name);
            }
            true
        })
    }
}

fn is_listed(known: &Known, tenant: &Arc<Tenant>) -> bool {
    let listed = known.get(&tenant.name);
    listed.is_some_and(|listed| Arc::ptr_eq(listed, tenant))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A tenant whose group is removed again and again comes back each time: each time it was a new entry, and the old ones stayed,
    /// each with its group, and each worth a place beyond the bound.
    #[test]
    fn a_tenant_that_is_removed_again_and_again_fills_the_ring() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().unwrap();
        runtime.block_on(async {
            let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
            let default = scheduler.group("default").unwrap().create().unwrap();
            let header = HeaderName::from_static("x-tenant");
            let layer = GroupLayer::by_header(&scheduler, header, "web", 2, default).unwrap();
            let (by_header, table) = (&layer.select, &layer.select.shared);
            let claim = |name: &str| {
                let request = Request::builder().header("x-tenant", name).body(());
                by_header.claim(&request.unwrap())
            };
            for _ in 0..LOOKS + 20 {
                let tenant = loop {
                    // The name is free once the removal is done, within a tick.
                    match by_header.tenant(b"a") {
                        Ok(tenant) => break tenant,
                        Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                };
                tenant.group.remove(Leftover::Kill).unwrap();
            }
            while scheduler.find("web/a").is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(table.ring.lock().unwrap().entries.len() <= LOOKS + 2);
            // All of these are in use at once: two fit in.
            let claims: Vec<_> = ["a", "b", "c", "d"].map(claim).into();
            assert_eq!(table.known.read().unwrap().len(), 2);
            let paths = claims.iter().map(|claim| claim.group().path().to_owned());
            let paths: Vec<_> = paths.collect();
            assert_eq!(paths, ["web/a", "web/b", "default", "default"]);
            scheduler.shutdown().await;
        });
    }
}
