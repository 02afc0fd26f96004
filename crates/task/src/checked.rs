//! From an untyped reference to one that knows its scheduler: checked, so that callers need no unsafe code.

use super::promise::Promised;
use super::reference::Reference;
use super::{AbortHandle, Context, JoinHandle, TaskRef, waker};
use std::any::TypeId;
use std::marker::PhantomData;

impl<C: Context> TaskRef<C> {
    /// The same task with what its scheduler keeps; `None` if that is of another type.
    fn checked(task: Reference) -> Option<Self> {
        // The table says what the cell's context is, and a `TaskRef` reads nothing but that.
        let same = (task.header().vtable.context)() == TypeId::of::<C>();
        same.then_some(Self {
            task,
            context: PhantomData,
        })
    }

    /// The task that is polled on this thread, or whose future or output is dropped here, if it is of this scheduler's type. One read-modify-write.
    pub fn current() -> Option<Self> {
        waker::current().and_then(Self::checked)
    }

    /// Whether this is the task that is polled on this thread.
    #[inline]
    pub fn is_current(&self) -> bool {
        waker::is_polling(self.task.as_ptr().as_ptr().cast_const().cast())
    }
}

/// Whether the output is made elsewhere: by a blocking function or a local task.
fn is_promised(task: &Reference) -> bool {
    (task.header().vtable.context)() == TypeId::of::<Promised>()
}

impl<T> JoinHandle<T> {
    /// Whether the handle is of a blocking function or a local task.
    #[doc(hidden)]
    pub fn is_promised(&self) -> bool {
        is_promised(self.reference())
    }

    /// The task behind the handle; `None` if it was never spawned, or is a blocking function or a local task.
    #[doc(hidden)]
    pub fn task_ref<C: Context>(&self) -> Option<TaskRef<C>> {
        TaskRef::checked(Reference::clone(self.reference()))
    }
}

impl AbortHandle {
    /// Whether the handle is of a blocking function or a local task.
    #[doc(hidden)]
    pub fn is_promised(&self) -> bool {
        is_promised(self.reference())
    }

    /// The task behind the handle; `None` if it was never spawned, or is a blocking function or a local task.
    #[doc(hidden)]
    pub fn task_ref<C: Context>(&self) -> Option<TaskRef<C>> {
        TaskRef::checked(Reference::clone(self.reference()))
    }
}
