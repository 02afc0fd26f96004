//! The list of all keys, for showing them and for flipping one by its name.
//!
//! Each key enters the list once, before `main` where the platform runs constructors, otherwise at its first flip. The
//! list is a push-only stack of statics, so readers need no lock.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::key::Key;

static HEAD: AtomicPtr<Key> = AtomicPtr::new(core::ptr::null_mut());

/// Enters a key into the list unless it is there. Callable before `main`: it allocates nothing and cannot panic.
pub fn register(key: &'static Key) {
    if !key.mark_registered() {
        return;
    }
    let node = core::ptr::from_ref(key).cast_mut();
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        key.next_registered().store(head, Ordering::Relaxed);
        match HEAD.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(seen) => head = seen,
        }
    }
}

/// Every key of this copy of the crate, in no order. On platforms without constructors, every key flipped so far.
///
/// A `cdylib` that was built with this crate has its own list.
pub fn keys() -> Keys {
    Keys {
        node: HEAD.load(Ordering::Acquire),
    }
}

/// The key of that name.
///
/// # Complexity
/// Linear in the number of keys.
pub fn find(name: &str) -> Option<&'static Key> {
    keys().find(|key| key.name() == name)
}

/// Walks over the keys that were listed when it was made; see [`keys`].
#[derive(Clone, Debug)]
pub struct Keys {
    node: *const Key,
}

impl Iterator for Keys {
    type Item = &'static Key;

    fn next(&mut self) -> Option<&'static Key> {
        // SAFETY: `HEAD` and every `next_registered` hold null or a pointer made by `register` from a `&'static Key`. The
        // Acquire load of the head makes the links that were stored before each Release push visible.
        let key = unsafe { self.node.as_ref() }?;
        self.node = key.next_registered().load(Ordering::Relaxed);
        Some(key)
    }
}
