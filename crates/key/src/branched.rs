//! What a branch may name: a key, or an array of keys.
//!
//! A site takes the *address* of what its path names, and the engine writes there. So the path must name a key itself: what
//! dereferences to one (a `static` reference, a newtype) would pass a check that takes `&Key`, by coercion, while the
//! address is that of another object. A generic parameter is inferred without coercion, and its trait is sealed.

use crate::key::{Key, StaticKey};

/// Implemented for keys and arrays of keys, and for nothing else.
///
/// # Safety
/// The value is a `Key`, or as many of them as `LENGTH` says, one after the other.
pub unsafe trait Branched: sealed::Sealed {
    /// Number of keys; `None`: this is a key, not an array of keys.
    const LENGTH: Option<usize>;

    /// The value that the keys start with.
    const DEFAULT: bool;

    /// One of the keys; `index` is below `LENGTH` for arrays.
    fn key(&self, index: usize) -> &Key;
}

mod sealed {
    pub trait Sealed {}
}

impl<const DEFAULT: bool> sealed::Sealed for StaticKey<DEFAULT> {}

impl<const DEFAULT: bool, const LENGTH: usize> sealed::Sealed for [StaticKey<DEFAULT>; LENGTH] {}

// SAFETY: a `StaticKey` is a transparent wrapper of a `Key`.
unsafe impl<const DEFAULT: bool> Branched for StaticKey<DEFAULT> {
    const LENGTH: Option<usize> = None;
    const DEFAULT: bool = DEFAULT;

    #[inline(always)]
    fn key(&self, _index: usize) -> &Key {
        self
    }
}

// SAFETY: an array is its elements, one after the other, each a transparent wrapper of a `Key`.
unsafe impl<const DEFAULT: bool, const LENGTH: usize> Branched for [StaticKey<DEFAULT>; LENGTH] {
    const LENGTH: Option<usize> = Some(LENGTH);
    const DEFAULT: bool = DEFAULT;

    #[inline(always)]
    fn key(&self, index: usize) -> &Key {
        &self[index]
    }
}

/// The index of what is not an array.
pub const WHOLE: usize = usize::MAX;

/// Where the key of that index begins, bytes from the start of what the path names. Evaluated by the compiler.
///
/// # Panics
/// If there is no such key; at compile time.
pub const fn offset_of<B: Branched>(_: &'static B, index: usize) -> usize {
    match B::LENGTH {
        None => {
            assert!(index == WHOLE, "a key has no elements");
            0
        }
        Some(length) => {
            assert!(index < length, "the array of keys has no such element");
            index * size_of::<Key>()
        }
    }
}

/// What a site loads. [`offset_of`] has checked the index.
#[inline(always)]
pub fn value_of<B: Branched>(keys: &'static B, index: usize) -> bool {
    keys.key(index).state()
}

/// The bias of a branch that follows the definition.
pub const fn default_of<B: Branched>(_: &'static B) -> bool {
    B::DEFAULT
}
