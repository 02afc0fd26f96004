//! Answers to requests that do not reach their handler.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::error::SpawnError;
use crate::group::Group;
use crate::loss::{Loss, note};

/// How long a refused client is asked to wait at least. Unit: whole seconds, as the header has it. Default: one, the least there is.
const RETRY_AFTER_LEAST: Duration = Duration::from_secs(1);

/// Why a request has no handler, or has none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The group has as many tasks as it may have: [`crate::GroupBuilder::tasks_max`].
    TooManyTasks,
    /// The request has waited for its first poll as long as it may: [`crate::GroupBuilder::queue_wait_max`].
    QueueTooLong,
    /// The group was killed while the request ran.
    Killed,
    /// The group was removed.
    Removed,
    /// The scheduler was shut down.
    ShutDown,
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::TooManyTasks => "the group has as many tasks as it may have",
            Self::QueueTooLong => "the request has waited for its group's turn as long as it may",
            Self::Killed => "the group was killed",
            Self::Removed => "the group was removed",
            Self::ShutDown => "the scheduler was shut down",
        })
    }
}

/// A request that the layer answers itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Why.
    pub reason: RefusalReason,
    /// The path of the request's group.
    pub group: String,
    /// When to try again, if the refusal comes from overload: in whole seconds.
    pub retry_after: Option<Duration>,
    /// The request came as gRPC: its status belongs into the header `grpc-status`.
    pub grpc: bool,
}

impl Refusal {
    /// The default answer: 503 with `Retry-After` if it comes from overload; for gRPC, status 14 (unavailable).
    pub fn answer(&self) -> Response<()> {
        let mut answer = Response::new(());
        let headers = answer.headers_mut();
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs()));
        }
        if self.grpc {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static("14"));
            if let Ok(message) = HeaderValue::try_from(self.reason.to_string()) {
                headers.insert("grpc-message", message);
            }
        } else {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        answer
    }
}

/// Makes the head of a refusal's answer.
type Hook = dyn Fn(&Refusal) -> Response<()> + Send + Sync;

/// How a layer answers refusals.
#[derive(Clone, Default)]
pub(super) struct OnRefusal(Option<Arc<Hook>>);

impl fmt::Debug for OnRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "custom" } else { "503" })
    }
}

impl OnRefusal {
    pub(super) fn new(hook: impl Fn(&Refusal) -> Response<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// Counts the refusal and makes its answer.
    pub(super) fn refuse(&self, group: &Group, reason: RefusalReason, grpc: bool) -> Response<()> {
        note(
            &group.shared,
            &group.inner,
            Loss::RefusedRequest,
            1,
            &reason,
        );
        let overload = matches!(
            reason,
            RefusalReason::TooManyTasks | RefusalReason::QueueTooLong
        );
        let refusal = Refusal {
            reason,
            group: group.path().to_owned(),
            retry_after: overload.then_some(RETRY_AFTER_LEAST),
            grpc,
        };
        match &self.0 {
            Some(hook) => hook(&refusal),
            None => refusal.answer(),
        }
    }
}

/// Why a spawn for a request was refused.
pub(super) fn reason_of(error: &SpawnError) -> RefusalReason {
    match error {
        SpawnError::TooManyTasks { .. } => RefusalReason::TooManyTasks,
        SpawnError::QueueTooLong { .. } => RefusalReason::QueueTooLong,
        SpawnError::GroupRemoved { .. } => RefusalReason::Removed,
        _ => RefusalReason::ShutDown,
    }
}

/// Why a request's task was aborted by somebody else than its connection.
pub(super) fn reason_of_end(group: &Group) -> RefusalReason {
    if group.shared.phase() != crate::shared::OPEN {
        RefusalReason::ShutDown
    } else if group.inner.is_removed() {
        RefusalReason::Removed
    } else {
        RefusalReason::Killed
    }
}

/// Whether a request is gRPC's.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
