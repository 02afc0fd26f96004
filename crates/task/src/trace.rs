//! Spans and events of tasks for `tracing`, with the names and fields that tokio gives its own: what shows tokio's tasks
//! (tokio-console) shows these. Without the feature `tracing` every type here is empty and every call nothing.
//!
//! | what | target | name or fields |
//! |---|---|---|
//! | span of a task, entered for every poll and for the drop of its future | `tokio::task` | `runtime.spawn`: `kind`, `task.name`, `task.id`, `task.group`, `size.bytes`, `loc.file`, `loc.line`, `loc.col` |
//! | span of a blocking function | `tokio::task::blocking` | the same |
//! | event of a waker | `tokio::task::waker` | `op` (`waker.wake`, `waker.wake_by_ref`, `waker.clone`, `waker.drop`), `task.id`: the span's |

use super::Id;
use std::panic::Location;

/// What a span is made of.
pub struct Labels<'a> {
    /// `task`, `local` or `blocking`, as tokio says.
    pub kind: &'static str,
    /// What the user called it.
    pub name: Option<&'a str>,
    /// The group's path.
    pub group: &'a str,
    /// Size of the future or function. Unit: bytes.
    pub size: usize,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
}

pub(crate) use imp::waker_op;
pub use imp::{SpanId, TaskSpan, Traced};

#[cfg(feature = "tracing")]
mod imp {
    use super::{Id, Labels};
    use tracing::instrument::{Instrument, Instrumented};

    /// A future that is polled and dropped inside its span.
    pub type Traced<F> = Instrumented<F>;

    /// The span of a task. It lives as long as the future: its end is the task's.
    pub struct TaskSpan(tracing::Span);

    /// How events of wakers name the span: its number, 0 if nobody wants it.
    #[derive(Clone, Copy)]
    pub struct SpanId(u64);

    impl SpanId {
        /// No span.
        pub const NONE: Self = Self(0);
    }

    impl TaskSpan {
        /// Opens the span of a task; a look at one static if no subscriber wants it.
        pub fn open(id: Id, labels: &Labels<'_>) -> Self {
            let name = labels.name.unwrap_or_default();
            let location = labels.location;
            Self(if labels.kind == "blocking" {
                tracing::trace_span!(
                    target: "tokio::task::blocking",
                    parent: None,
                    "runtime.spawn",
                    kind = %labels.kind,
                    task.name = %name,
                    task.id = id.number(),
                    task.group = %labels.group,
                    size.bytes = labels.size,
                    loc.file = location.file(),
                    loc.line = location.line(),
                    loc.col = location.column(),
                )
            } else {
                tracing::trace_span!(
                    target: "tokio::task",
                    parent: None,
                    "runtime.spawn",
                    kind = %labels.kind,
                    task.name = %name,
                    task.id = id.number(),
                    task.group = %labels.group,
                    size.bytes = labels.size,
                    loc.file = location.file(),
                    loc.line = location.line(),
                    loc.col = location.column(),
                )
            })
        }

        /// What events of wakers are told.
        pub fn id(&self) -> SpanId {
            SpanId(self.0.id().map_or(0, |id| id.into_u64()))
        }

        /// Puts the future into the span.
        pub fn around<F>(self, future: F) -> Traced<F> {
            future.instrument(self.0)
        }

        /// Runs `function` in the span.
        pub fn run<R>(&self, function: impl FnOnce() -> R) -> R {
            self.0.in_scope(function)
        }
    }

    /// Something was done to a waker of the task with this span.
    #[inline]
    pub(crate) fn waker_op(span: SpanId, op: &'static str) {
        if span.0 != 0 {
            tracing::trace!(target: "tokio::task::waker", op = op, task.id = span.0);
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    use super::{Id, Labels};

    /// A future that is polled and dropped inside its span: there is none.
    pub type Traced<F> = F;

    /// The span of a task: nothing.
    pub struct TaskSpan;

    /// How events of wakers name the span: not at all.
    #[derive(Clone, Copy)]
    pub struct SpanId;

    impl SpanId {
        /// No span.
        pub const NONE: Self = Self;
    }

    impl TaskSpan {
        /// Opens the span of a task.
        #[inline(always)]
        pub fn open(_: Id, _: &Labels<'_>) -> Self {
            Self
        }

        /// What events of wakers are told.
        #[inline(always)]
        pub fn id(&self) -> SpanId {
            SpanId
        }

        /// Puts the future into the span.
        #[inline(always)]
        pub fn around<F>(self, future: F) -> Traced<F> {
            future
        }

        /// Runs `function` in the span.
        #[inline(always)]
        pub fn run<R>(&self, function: impl FnOnce() -> R) -> R {
            function()
        }
    }

    #[inline(always)]
    pub(crate) fn waker_op(_: SpanId, _: &'static str) {}
}
