//! The second module of the kernel's static key test: keys that another crate branches on, some of them inverted by
//! this one before anybody looks, and branches that live here. The build matrix compiles it as a crate of its own.

use quotient_keys::{FlipError, Key, static_branch, static_key};

static_key! {
    /// Starts on; flipped by the test only.
    pub static BASE_OLD_TRUE = true;
    /// Starts on; inverted by [`invert_at_start`].
    pub static BASE_INVERTED_OLD_TRUE = true;
    /// Starts off; flipped by the test only.
    pub static BASE_OLD_FALSE = false;
    /// Starts off; inverted by [`invert_at_start`].
    pub static BASE_INVERTED_OLD_FALSE = false;
    /// Starts on; flipped by the test only.
    pub static BASE_TRUE = true;
    /// Starts on; inverted by [`invert_at_start`].
    pub static BASE_INVERTED_TRUE = true;
    /// Starts off; flipped by the test only.
    pub static BASE_FALSE = false;
    /// Starts off; inverted by [`invert_at_start`].
    pub static BASE_INVERTED_FALSE = false;
    /// Branched on where nobody comes.
    pub static BASE_DEAD = false;
}

/// What the kernel's module does when it is loaded.
///
/// # Errors
/// Those of a flip.
pub fn invert_at_start() -> Result<(), FlipError> {
    for key in [
        &*BASE_INVERTED_OLD_TRUE as &'static Key,
        &*BASE_INVERTED_OLD_FALSE,
        &*BASE_INVERTED_TRUE,
        &*BASE_INVERTED_FALSE,
    ] {
        key.set(!key.is_enabled())?;
    }
    Ok(())
}

/// A branch on [`BASE_FALSE`] that is compiled in this crate.
#[inline(never)]
pub fn base_false_from_here() -> bool {
    static_branch!(BASE_FALSE)
}

/// A branch that is compiled wherever it is instantiated.
pub fn base_true_generic<T: Default>() -> (bool, T) {
    (static_branch!(BASE_TRUE), T::default())
}

/// A branch that may be inlined into the caller's crate.
#[inline]
pub fn base_false_inlined() -> bool {
    static_branch!(BASE_FALSE)
}

/// A function that nobody calls: the linker drops it, and its site with it.
#[allow(dead_code)]
#[inline(never)]
pub fn never_called(value: &str) -> usize {
    if static_branch!(BASE_DEAD) {
        println!("dead code lives: {value}");
    }
    value.len()
}
