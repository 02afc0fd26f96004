//! Which group a request runs in.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use http::{HeaderName, Request};

use crate::error::Error;
use crate::group::Group;
use crate::scheduler::Scheduler;
use crate::tower::GroupLayer;

/// Chooses the group of a request. Closures `Fn(&Request) -> Group` do.
pub trait Select<R>: Clone {
    /// The group that the request runs in.
    fn select(&self, request: &R) -> Group;
}

impl<R, F> Select<R> for F
where
    F: Fn(&R) -> Group + Clone,
{
    fn select(&self, request: &R) -> Group {
        self(request)
    }
}

/// Chooses by the value of a header, with a bound on the number of tenants and a default group for the rest.
#[derive(Clone, Debug)]
pub struct ByHeader {
    shared: Arc<HeaderTable>,
}

#[derive(Debug)]
struct HeaderTable {
    scheduler: Scheduler,
    header: HeaderName,
    parent: String,
    tenants_max: usize,
    default: Group,
    known: RwLock<HashMap<Box<[u8]>, Group>>,
}

impl GroupLayer<ByHeader> {
    /// Runs a request whose `header` says `acme` in the group `parent/acme`, made on its first request, for at most `tenants_max`
    /// tenants; requests without the header, with a value that is no group name, or of one tenant too many run in `default`.
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
            shared: Arc::new(HeaderTable {
                scheduler: scheduler.clone(),
                header,
                parent: parent.to_owned(),
                tenants_max,
                default,
                known: RwLock::new(HashMap::new()),
            }),
        }))
    }
}

impl<B> Select<Request<B>> for ByHeader {
    fn select(&self, request: &Request<B>) -> Group {
        let table = &*self.shared;
        let Some(value) = request.headers().get(&table.header) else {
            return table.default.clone();
        };
        let known = table
            .known
            .read()
            .unwrap_or_else(|poison| poison.into_inner());
        if let Some(group) = known.get(value.as_bytes()) {
            return group.clone();
        }
        let full = known.len() >= table.tenants_max;
        drop(known);
        if full {
            return table.default.clone();
        }
        table
            .admit(value.as_bytes())
            .unwrap_or_else(|| table.default.clone())
    }
}

impl HeaderTable {
    /// Makes the group of a new tenant; `None` if its name is no group name or the bound is reached.
    fn admit(&self, value: &[u8]) -> Option<Group> {
        let name = std::str::from_utf8(value).ok()?;
        // A tenant is one level below the parent, whatever it calls itself.
        if name.contains('/') {
            return None;
        }
        let mut known = self
            .known
            .write()
            .unwrap_or_else(|poison| poison.into_inner());
        if let Some(group) = known.get(value) {
            return Some(group.clone());
        }
        if known.len() >= self.tenants_max {
            return None;
        }
        let path = format!("{}/{name}", self.parent);
        let group = self.scheduler.group(&path).ok()?.create().ok()?;
        known.insert(value.into(), group.clone());
        Some(group)
    }
}
