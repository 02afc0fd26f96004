//! What others remember with a group: one value of each type, for as long as the group lives.
//!
//! For libraries beside the scheduler that look after groups and come and go: what one of them left on a group has to be told from what a user
//! wrote by the next one. A list of such things elsewhere would keep groups alive that nobody uses, or have to be swept.
//!
//! The list's lock is taken for a look and a change of the list only; values are dropped after it.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use super::Group;

type Value = Arc<dyn Any + Send + Sync>;

/// Values by their types: as many as libraries use, which is none or one.
#[derive(Default)]
pub(super) struct Kept(Mutex<Vec<(TypeId, Value)>>);

impl fmt::Debug for Kept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Kept")
    }
}

impl Kept {
    fn list(&self) -> MutexGuard<'_, Vec<(TypeId, Value)>> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn put(&self, kind: TypeId, value: Value) -> Option<Value> {
        let mut list = self.list();
        match list.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, known)) => Some(std::mem::replace(known, value)),
            None => {
                list.push((kind, value));
                None
            }
        }
    }

    fn take(&self, kind: TypeId) -> Option<Value> {
        let mut list = self.list();
        let index = list.iter().position(|(known, _)| *known == kind)?;
        Some(list.swap_remove(index).1)
    }
}

impl Group {
    /// Remembers a value with the group, one of each type, until it is taken or the group is gone; returns the one that was remembered before.
    /// For libraries that look after groups: use a type of your own. A value that holds a [`Group`] of the same scheduler keeps all of it alive.
    /// O(types in use), behind a lock of the group's own.
    pub fn keep<T: Any + Send + Sync>(&self, value: T) -> Option<Arc<T>> {
        let before = self.inner.kept.put(TypeId::of::<T>(), Arc::new(value));
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
