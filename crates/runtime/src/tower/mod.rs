//! A tower layer that runs every request in its tenant's group; works under unmodified `axum::serve`.
//!
//! `isolate` (default) spawns the inner service's call into the tenant's group and awaits it: the handler is scheduled by the group's
//! weight, and is aborted when the connection drops the request. `charge` polls the call in the connection's own task, metered and
//! ordered by [`crate::InGroupExt::in_group`]: no task a request, but the handler shares its poll with the connection.

mod select;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

pub use select::{ByHeader, Select};

use crate::group::Group;
use crate::in_group::{InGroup, InGroupExt};
use crate::task::JoinHandle;

/// How a request runs in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Isolate,
    Charge,
}

/// Runs each request of the wrapped service in the group that its selector names.
#[derive(Clone, Debug)]
pub struct GroupLayer<S> {
    select: S,
    mode: Mode,
}

impl<S> GroupLayer<S> {
    /// Groups chosen by a closure or another [`Select`]; use [`GroupLayer::by_header`] for the common case.
    ///
    /// The selector must map unknown tenants to a group of its own choice and must not make groups without a bound from what a
    /// request says.
    pub fn by(select: S) -> Self {
        Self {
            select,
            mode: Mode::Isolate,
        }
    }

    /// Spawns each call into its group (default).
    pub fn isolate(mut self) -> Self {
        self.mode = Mode::Isolate;
        self
    }

    /// Meters and orders each call inside the connection's task, without a task of its own.
    pub fn charge(mut self) -> Self {
        self.mode = Mode::Charge;
        self
    }
}

impl<S: Clone, V> Layer<V> for GroupLayer<S> {
    type Service = GroupService<S, V>;

    fn layer(&self, inner: V) -> Self::Service {
        GroupService {
            select: self.select.clone(),
            mode: self.mode,
            inner,
        }
    }
}

/// Service of a [`GroupLayer`].
#[derive(Clone, Debug)]
pub struct GroupService<S, V> {
    select: S,
    mode: Mode,
    inner: V,
}

impl<S, V, R> Service<R> for GroupService<S, V>
where
    S: Select<R>,
    V: Service<R> + Clone + Send + 'static,
    V::Future: Send + 'static,
    V::Response: Send + 'static,
    V::Error: Send + 'static,
{
    type Response = V::Response;
    type Error = V::Error;
    type Future = GroupFuture<V::Future, V::Response, V::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), V::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let group = self.select.select(&request);
        // The service that was polled ready serves this call; the clone waits for the next.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        match self.mode {
            Mode::Charge => GroupFuture::Charge {
                call: ready.call(request).in_group(&group),
            },
            Mode::Isolate => {
                let call = ready.call(request);
                GroupFuture::Isolate {
                    task: Isolated {
                        handle: spawn(&group, call),
                    },
                }
            }
        }
    }
}

fn spawn<F>(group: &Group, call: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    group.spawn(call)
}

/// A handler's task; aborted when the request is dropped.
#[derive(Debug)]
pub struct Isolated<T> {
    handle: JoinHandle<T>,
}

impl<T> Drop for Isolated<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

pin_project! {
    /// Future of a [`GroupService`].
    #[project = GroupFutureProjection]
    #[derive(Debug)]
    #[allow(missing_docs)]
    pub enum GroupFuture<F, R, E> {
        /// In a task of the group.
        Isolate { task: Isolated<Result<R, E>> },
        /// In the caller's task.
        Charge { #[pin] call: InGroup<F> },
    }
}

impl<F, R, E> Future for GroupFuture<F, R, E>
where
    F: Future<Output = Result<R, E>>,
{
    type Output = Result<R, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            GroupFutureProjection::Charge { call } => call.poll(context),
            GroupFutureProjection::Isolate { task } => {
                let output = std::task::ready!(Pin::new(&mut task.handle).poll(context));
                match output {
                    Ok(output) => Poll::Ready(output),
                    // As without the layer: a handler's panic unwinds through the connection's task.
                    Err(error) => match error.try_into_panic() {
                        Ok(payload) => std::panic::resume_unwind(payload),
                        // The group was killed or the scheduler shut down: the request has no answer, and the connection learns
                        // of it as of any handler that is gone.
                        Err(error) => std::panic::resume_unwind(Box::new(error.to_string())),
                    },
                }
            }
        }
    }
}
