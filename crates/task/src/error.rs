//! Why a task gave no output.

use super::Id;
use std::any::Any;
use std::{fmt, io};

/// Why awaiting a [`JoinHandle`](super::JoinHandle) gave no output: the task was cancelled, it panicked, or it was
/// never spawned.
pub struct JoinError {
    /// `None`: cancelled. Boxed, since every task has room for its error beside its output.
    cause: Option<Box<Cause>>,
    id: Id,
}

enum Cause {
    Panic(Payload),
    NotSpawned(Box<str>),
}

/// A panic's payload, which is `Send` but not `Sync`, kept so that [`JoinError`] can be `Sync`.
struct Payload(Box<dyn Any + Send + 'static>);

// SAFETY: `&Payload` gives access to the payload only through `Payload::message`, which reads it only after finding
// that it is a `String` or a `&'static str`, both of which are `Sync`. Asking for the type calls `Any::type_id`,
// whose only implementation is std's blanket one; it looks at no byte of the value.
unsafe impl Sync for Payload {}

impl Payload {
    /// The message of `panic!("...")`; `None` for payloads of other types.
    fn message(&self) -> Option<&str> {
        if let Some(message) = self.0.downcast_ref::<String>() {
            return Some(message);
        }
        self.0.downcast_ref::<&'static str>().copied()
    }
}

impl JoinError {
    pub(super) fn cancelled(id: Id) -> Self {
        Self { cause: None, id }
    }

    pub(super) fn panic(id: Id, payload: Box<dyn Any + Send + 'static>) -> Self {
        Self {
            cause: Some(Box::new(Cause::Panic(Payload(payload)))),
            id,
        }
    }

    pub(super) fn not_spawned(id: Id, reason: &str) -> Self {
        Self {
            cause: Some(Box::new(Cause::NotSpawned(reason.into()))),
            id,
        }
    }

    /// Whether the task was aborted, or dropped by the shutdown of its scheduler, before it completed, or refused from the
    /// start: whatever is not a panic, as with tokio.
    pub fn is_cancelled(&self) -> bool {
        !self.is_panic()
    }

    /// Whether the task panicked, while it was polled or while its future was dropped.
    pub fn is_panic(&self) -> bool {
        matches!(self.cause.as_deref(), Some(Cause::Panic(_)))
    }

    /// Whether there never was a task: the scheduler refused the future, for instance because it had shut down.
    ///
    /// `Display` gives the reason.
    pub fn is_not_spawned(&self) -> bool {
        matches!(self.cause.as_deref(), Some(Cause::NotSpawned(_)))
    }

    /// The payload with which the task panicked, for [`std::panic::resume_unwind`].
    ///
    /// # Panics
    /// If the cause is not a panic; [`try_into_panic`](Self::try_into_panic) does not.
    #[track_caller]
    pub fn into_panic(self) -> Box<dyn Any + Send + 'static> {
        self.try_into_panic().expect("the task did not panic")
    }

    /// The payload with which the task panicked.
    ///
    /// # Errors
    /// The error itself, unchanged, if its cause is not a panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send + 'static>, Self> {
        if !self.is_panic() {
            return Err(self);
        }
        match self.cause.map(|cause| *cause) {
            Some(Cause::Panic(payload)) => Ok(payload.0),
            cause => Err(Self {
                cause: cause.map(Box::new),
                id: self.id,
            }),
        }
    }

    /// The name of the task.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match self.cause.as_deref() {
            None => write!(formatter, "task {id} was cancelled"),
            Some(Cause::NotSpawned(reason)) => {
                write!(formatter, "task {id} was not spawned: {reason}")
            }
            Some(Cause::Panic(payload)) => match payload.message() {
                Some(message) => write!(formatter, "task {id} panicked with message {message:?}"),
                None => write!(formatter, "task {id} panicked"),
            },
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match self.cause.as_deref() {
            None => write!(formatter, "JoinError::Cancelled({id:?})"),
            Some(Cause::NotSpawned(reason)) => {
                write!(formatter, "JoinError::NotSpawned({id:?}, {reason:?})")
            }
            Some(Cause::Panic(payload)) => match payload.message() {
                Some(message) => write!(formatter, "JoinError::Panic({id:?}, {message:?}, ...)"),
                None => write!(formatter, "JoinError::Panic({id:?}, ...)"),
            },
        }
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> Self {
        Self::other(match error.cause.as_deref() {
            None => "task was cancelled",
            Some(Cause::Panic(_)) => "task panicked",
            Some(Cause::NotSpawned(_)) => "task was not spawned",
        })
    }
}
