//! What others remember with a group: one value of each type, for as long as the group lives.
//!
//! For libraries beside the scheduler that look after groups and come and go: what one of them left on a group has to be told from what a user
//! wrote by the next one. A list of such things elsewhere would keep groups alive that nobody uses, or have to be swept.
//!
//! The list's lock is taken for a look and a change of the list only; values are dropped after it. What a group keeps to its end is an estate (`estates`).

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Mutex;
use std::sync::{Arc, Weak};

use super::Group;
use crate::estates::Left;
use crate::shared::Shared;
use crate::shielded::{Shielded, lock_shielded};

/// One value, and whether anybody's destructor runs as it goes.
struct Value {
    kind: TypeId,
    value: Left,
    needs_drop: bool,
}

#[derive(Default)]
struct List {
    /// Of the group; none while nothing was kept.
    scheduler: Weak<Shared>,
    values: Vec<Value>,
}

/// Values by their types: as many as libraries use, which is none or one.
#[derive(Default)]
pub(super) struct Kept(Mutex<List>);

impl fmt::Debug for Kept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Kept")
    }
}

impl Kept {
    fn list(&self) -> Shielded<'_, List> {
        lock_shielded(&self.0)
    }

    fn put(&self, scheduler: &Arc<Shared>, value: Value) -> Option<Left> {
        let mut list = self.list();
        if list.values.is_empty() {
            list.scheduler = Arc::downgrade(scheduler);
        }
        let mut values = list.values.iter_mut();
        match values.find(|known| known.kind == value.kind) {
            Some(known) => Some(std::mem::replace(known, value).value),
            None => {
                list.values.push(value);
                None
            }
        }
    }

    fn take(&self, kind: TypeId) -> Option<Left> {
        let mut list = self.list();
        let index = list.values.iter().position(|known| known.kind == kind)?;
        Some(list.values.swap_remove(index).value)
    }

    /// The group has gone: what of it has destructors, if anything has, and whose it was.
    pub(super) fn take_all(&mut self) -> Option<(Weak<Shared>, Vec<Left>)> {
        let list = self
            .0
            .get_mut()
            .unwrap_or_else(|poison| poison.into_inner());
        let left = list.values.iter().filter(|value| value.needs_drop);
        let left: Vec<_> = left.map(|value| value.value.clone()).collect();
        list.values.clear();
        (!left.is_empty()).then(|| (std::mem::take(&mut list.scheduler), left))
    }
}

impl Group {
    /// Remembers a value with the group, one of each type, until it is taken or the group is gone; returns the one that was remembered before.
    /// For libraries that look after groups: use a type of your own. A value that holds a [`Group`] of the same scheduler keeps all of it alive.
    /// O(types in use), behind a lock of the group's own.
    ///
    /// The group is gone with the last that needs it, after it was removed: a handle, a task, a virtual CPU that has billed nobody else since. Its values are then
    /// dropped on a thread of the runtime's blocking pool, those of one parent one after the other, as blocking functions are that never began: the nearest
    /// group above that was not removed pays, under [`crate::Builder::preempt`] by turns, and a panic of a destructor ends there.
    /// [`crate::Scheduler::shutdown`] waits for them. What groups keep that were never removed is dropped with the scheduler, wherever that is.
    pub fn keep<T: Any + Send + Sync>(&self, value: T) -> Option<Arc<T>> {
        let value = Value {
            kind: TypeId::of::<T>(),
            value: Arc::new(value),
            needs_drop: std::mem::needs_drop::<T>(),
        };
        let before = self.inner.kept.put(&self.shared, value);
        before.and_then(|value| value.downcast().ok())
    }

    /// Takes what was remembered of this type; `None` if nothing was.
    pub fn take_kept<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let value = self.inner.kept.take(TypeId::of::<T>());
        value.and_then(|value| value.downcast().ok())
    }
}

#[cfg(test)]
mod tests {
    use crate::Scheduler;

    #[tokio::test]
    async fn one_value_of_each_type_is_kept_with_one_group() {
        let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
        let make = |path| scheduler.group(path)?.create();
        let (one, other) = (make("one").expect("a group"), make("other").expect("one"));
        assert_eq!(one.keep(1_u32), None);
        assert_eq!(one.keep("text"), None);
        assert_eq!(one.clone().keep(2_u32).as_deref(), Some(&1));
        assert_eq!(other.take_kept::<u32>(), None);
        assert_eq!(one.take_kept::<u32>().as_deref(), Some(&2));
        assert_eq!(one.take_kept::<u32>(), None);
        assert_eq!(one.take_kept::<&str>().as_deref(), Some(&"text"));
        scheduler.shutdown().await;
    }
}
