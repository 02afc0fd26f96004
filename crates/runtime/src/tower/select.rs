//! Which group a request runs in.

use std::sync::Arc;

use super::tenants::Tenant;
use crate::group::Group;

/// Chooses the group of a request. Closures `Fn(&Request) -> Group` do.
pub trait Select<R>: Clone {
    /// The group that the request runs in.
    fn select(&self, request: &R) -> Group;

    /// The same, kept from being given up until the request's answer is complete. What [`crate::tower::GroupLayer`] calls; the
    /// default keeps nothing.
    fn claim(&self, request: &R) -> Claim {
        self.select(request).into()
    }
}

impl<R, F> Select<R> for F
where
    F: Fn(&R) -> Group + Clone,
{
    fn select(&self, request: &R) -> Group {
        self(request)
    }
}

/// A group, for one request: while it lives, [`super::ByHeader`] does not evict the tenant.
#[derive(Clone, Debug)]
pub struct Claim {
    group: Group,
    _tenant: Option<Arc<Tenant>>,
}

impl Claim {
    pub(super) fn new(group: Group, tenant: Option<Arc<Tenant>>) -> Self {
        Self {
            group,
            _tenant: tenant,
        }
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }
}
