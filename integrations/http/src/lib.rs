//! axum and tonic servers on a [`quotient::Scheduler`]: each request in its tenant's group, each connection in a group as well.
//!
//! An axum program has its first tenants by two lines and an import:
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use quotient_http::Tenants;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let app = Router::new().route("/", get(|| async { "hello" }));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! let tenants = Tenants::by_header("x-tenant")?;
//! tenants.serve(listener, app).await?; // was: axum::serve(listener, app).await?
//! # Ok(())
//! # }
//! ```
//!
//! `curl -H 'x-tenant: acme' http://127.0.0.1:3000/` is computed in the group `tenants/acme`, made for it with weight 100; at most
//! [`TENANTS_MAX`] tenants have one at a time. Requests without the header, and the work on connections (reading, parsing, writing, TLS
//! if the listener does it), are in the group `connections`. What differs from that is said by [`Tenants::group`],
//! [`Tenants::map_layer`] and [`Tenants::scheduler`]. The scheduler that `by_header` makes does not interrupt polls: [`Tenants::on`] one that does, as below, and
//! `serve` in the same way.
//!
//! # Weights and limits
//! Known tenants get theirs by name before the first request, and those that come later what a closure says:
//!
//! ```
//! use quotient::{Preempt, Scheduler};
//! use quotient_http::Tenants;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(target_os = "linux")]
//! # {
//! let scheduler = Scheduler::builder().preempt(Preempt::default()).build()?; // also inside polls that do not return (Linux)
//! let tenants = Tenants::on(&scheduler, "x-tenant")?
//!     .map_layer(|layer| layer.on_tenant(|_name, group| group.weight(100).max("150ms/100ms"))); // whoever comes
//! let gold = tenants.group("acme")?.weight(300).create()?; // three times what another tenant gets while both want more
//! let trial = tenants.group("trial")?.weight(20).max("10ms/100ms").create()?; // never more than a tenth of a processor
//! assert_eq!((gold.weight(), trial.weight()), (300, 20));
//! trial.set_weight(50)?; // at any time
//! assert_eq!(scheduler.find("tenants/trial")?.weight(), 50);
//! # scheduler.shutdown().await;
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! Weights count among siblings that have work: here all of `tenants`. Weight and limit of all of them together are those of the group
//! `tenants`; of a file of settings that is read again while the program runs, see `quotient-config`.
//!
//! # What is charged to whom
//! | | group |
//! |---|---|
//! | accepting, reading, parsing, writing; streams of HTTP/2 | `connections` |
//! | handler, extractors, layers of the router | the tenant's |
//! | frames of the answer's body | the tenant's |
//!
//! # gRPC
//! Where handlers take `ConnectInfo`, `tenants.serve(listener, app).with_connect_info()` stands for `into_make_service_with_connect_info`.
//!
//! A tonic server is an axum router: `tenants.serve(listener, routes.into_axum_router())` serves it, HTTP/2 by prior knowledge. Whoever
//! keeps tonic's own `Server` puts [`Tenants::layer`] into it; then connections are nobody's. A client's connection runs in a group
//! by `Endpoint::executor(GroupExecutor::new(group))`.
#![forbid(unsafe_code)]

mod serve;

use std::fmt;

use axum::http::HeaderName;
use axum::http::header::InvalidHeaderName;
use quotient::tower::{ByHeader, GroupLayer};
use quotient::{BuildError, Error, Group, GroupBuilder, Scheduler};

pub use self::serve::Serve;
pub use quotient::hyper::GroupExecutor;

/// Most tenants with a group of their own at a time. Default 1,000: some 4 KB each; [`Tenants::map_layer`] takes another layer.
pub const TENANTS_MAX: usize = 1_000;
/// The group above the tenants'.
const PARENT: &str = "tenants";
/// The group of connections, and of requests of no tenant.
const CONNECTIONS: &str = "connections";

/// A scheduler, and the rule by which requests find their group. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tenants {
    scheduler: Scheduler,
    connections: Group,
    layer: GroupLayer<ByHeader>,
}

/// Why there are no [`Tenants`].
#[derive(Debug)]
#[non_exhaustive]
pub enum SetupError {
    /// The scheduler could not be built, outside a tokio runtime for one.
    Scheduler(BuildError),
    /// A group could not be made.
    Group(Error),
    /// No header has this name.
    Header {
        /// What was given.
        name: String,
        /// Why not.
        error: InvalidHeaderName,
    },
}

impl fmt::Display for SetupError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(error) => error.fmt(formatter),
            Self::Group(error) => error.fmt(formatter),
            Self::Header { name, error } => write!(formatter, "header {name:?}: {error}"),
        }
    }
}

impl std::error::Error for SetupError {}

impl From<Error> for SetupError {
    fn from(error: Error) -> Self {
        Self::Group(error)
    }
}

impl Tenants {
    /// Tenants by the value of a header, on a scheduler of their own on the current tokio runtime, without preemption: a request that computes
    /// for long in one poll keeps its worker for as long. Where that happens build the scheduler with `Builder::preempt`, and use [`Self::on`].
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn by_header(header: &str) -> Result<Self, SetupError> {
        let scheduler = Scheduler::builder()
            .build()
            .map_err(SetupError::Scheduler)?;
        Self::on(&scheduler, header)
    }

    /// Tenants by the value of a header, on a scheduler that is there, with its groups `tenants` and `connections`.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn on(scheduler: &Scheduler, header: &str) -> Result<Self, SetupError> {
        let header = HeaderName::try_from(header).map_err(|error| SetupError::Header {
            name: header.to_owned(),
            error,
        })?;
        let connections = match scheduler.find(CONNECTIONS) {
            Ok(group) => group,
            Err(_) => scheduler.group(CONNECTIONS)?.create()?,
        };
        let default = connections.clone();
        Ok(Self {
            scheduler: scheduler.clone(),
            layer: GroupLayer::by_header(scheduler, header, PARENT, TENANTS_MAX, default)?,
            connections,
        })
    }

    /// The scheduler of the groups.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The group of connections, and of requests of no tenant.
    pub fn connections(&self) -> &Group {
        &self.connections
    }

    /// The group of a tenant that is to have more than the default: `tenants.group("acme")?.weight(300).max("50ms/100ms").create()?`.
    ///
    /// # Errors
    /// As [`Scheduler::group`] for a name that is none.
    pub fn group(&self, tenant: &str) -> Result<GroupBuilder, Error> {
        self.scheduler.group(&format!("{PARENT}/{tenant}"))
    }

    /// The layer that finds a request's group, for other servers: tonic's `Server::builder().layer(..)`, a part of a router.
    pub fn layer(&self) -> GroupLayer<ByHeader> {
        self.layer.clone()
    }

    /// With settings of new tenants (`on_tenant`), answers to refused requests (`on_refusal`), without a task a request (`charge`).
    #[must_use]
    pub fn map_layer(
        mut self,
        change: impl FnOnce(GroupLayer<ByHeader>) -> GroupLayer<ByHeader>,
    ) -> Self {
        self.layer = change(self.layer);
        self
    }
}
