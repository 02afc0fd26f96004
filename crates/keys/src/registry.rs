//! The list of all keys, for showing them and for flipping one by its name.
//!
//! Each key enters the list once, before `main` where the platform runs constructors, otherwise at its first flip. The
//! list is a push-only stack of statics, so readers need no lock.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::error::FlipError;
use crate::key::Key;
use crate::step::Receipt;

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

/// Every key of this program or library, by name. On platforms without constructors, every key flipped so far.
///
/// A `cdylib` that was built with this crate has its own list, as it has its own engine.
pub fn keys() -> Vec<&'static Key> {
    let mut found = Vec::new();
    let mut node = HEAD.load(Ordering::Acquire);
    // SAFETY: `HEAD` and every `next_registered` hold null or a pointer made by `register` from a `&'static Key`. The
    // Acquire load of the head makes the links that were stored before each Release push visible.
    while let Some(key) = unsafe { node.cast_const().as_ref() } {
        found.push(key);
        node = key.next_registered().load(Ordering::Relaxed);
    }
    found.sort_by_key(|key| key.name());
    found
}

/// The key of that name.
///
/// # Complexity
/// Linear in the number of keys.
pub fn find(name: &str) -> Option<&'static Key> {
    keys().into_iter().find(|key| key.name() == name)
}

/// [`Key::set`] on the key of that name.
///
/// # Errors
/// [`FlipError::UnknownKey`], or as [`Key::set`].
pub fn set_by_name(name: &str, on: bool) -> Result<Receipt, FlipError> {
    match find(name) {
        Some(key) => key.set(on),
        None => Err(FlipError::UnknownKey {
            name: name.to_owned(),
        }),
    }
}
