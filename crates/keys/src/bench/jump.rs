//! Loops that differ in one branch: the `jump_test` of the mail that brought jump labels to the scheduler's bandwidth
//! control (July 2011).
//!
//! Each loop has a body that the compiler may neither remove nor unroll, and a branch that counts when it is taken.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quotient_key::FlipError;

use super::Rival;
use crate::{static_branch_unlikely, static_key};

static_key! {
    /// Decides the branch of the measured loop.
    static JUMP = false, as "bench.jump";
    /// Decides whether the measured leaf function calls.
    static LEAF = false, as "bench.leaf";
}

/// What the branch depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// There is none.
    None,
    /// A key of this crate.
    Key,
    /// A relaxed load of an atomic.
    RelaxedAtomic,
    /// A load of a static that is not atomic.
    PlainBool,
    /// A key of the crate `static-keys`.
    Rival,
    /// A call of a leaf function without a branch.
    Leaf,
    /// The same, with a cold call behind a key of this crate.
    LeafKey,
    /// The same, with a cold call behind a relaxed load.
    LeafAtomic,
}

impl Variant {
    /// All, the base of the comparison first.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Key,
        Self::RelaxedAtomic,
        Self::PlainBool,
        Self::Rival,
        Self::Leaf,
        Self::LeafKey,
        Self::LeafAtomic,
    ];

    /// The variant without a branch that it is compared with.
    pub const fn base(self) -> Self {
        match self {
            Self::Leaf | Self::LeafKey | Self::LeafAtomic => Self::Leaf,
            _ => Self::None,
        }
    }

    /// Whether there is a branch.
    pub const fn has_branch(self) -> bool {
        !matches!(self, Self::None | Self::Leaf)
    }

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "no-branch",
            Self::Key => "key",
            Self::RelaxedAtomic => "relaxed-atomic",
            Self::PlainBool => "static-bool",
            Self::Rival => "static-keys-crate",
            Self::Leaf => "leaf",
            Self::LeafKey => "leaf, key",
            Self::LeafAtomic => "leaf, relaxed",
        }
    }
}

static ATOMIC: AtomicBool = AtomicBool::new(false);

struct Plain(UnsafeCell<bool>);

// SAFETY: written through `JumpTest::set` and read through `JumpTest::run` only. There is one `JumpTest`, and writing borrows
// it exclusively.
unsafe impl Sync for Plain {}

static PLAIN: Plain = Plain(UnsafeCell::new(false));

/// The loops and what decides them; one in a process.
#[derive(Debug)]
pub struct JumpTest {
    rival: Option<Rival>,
}

impl JumpTest {
    /// The one of this process; `None` the second time.
    pub fn take() -> Option<Self> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let is_first = !TAKEN.swap(true, Ordering::Relaxed);
        is_first.then(|| Self {
            rival: Rival::take(),
        })
    }

    /// Whether the variant can be measured here.
    pub fn has(&self, variant: Variant) -> bool {
        variant != Variant::Rival || self.rival.is_some()
    }

    /// Decides the variant's branch.
    ///
    /// # Errors
    /// As [`crate::Key::set`].
    pub fn set(&mut self, variant: Variant, on: bool) -> Result<(), FlipError> {
        match variant {
            Variant::None | Variant::Leaf => {}
            Variant::Key => return JUMP.set(on).map(|_| ()),
            Variant::LeafKey => return LEAF.set(on).map(|_| ()),
            Variant::RelaxedAtomic | Variant::LeafAtomic => ATOMIC.store(on, Ordering::Relaxed),
            // SAFETY: see `Plain`.
            Variant::PlainBool => unsafe { *PLAIN.0.get() = on },
            Variant::Rival => {
                if let Some(rival) = &mut self.rival {
                    rival.set_run(on);
                }
            }
        }
        Ok(())
    }

    /// Sites of the key's loop, and how many of them are in the form that falls through.
    pub fn sites(&self) -> (usize, usize) {
        let status = JUMP.status();
        (status.sites, status.patched)
    }

    /// Runs the variant's loop; returns how often the branch was taken.
    pub fn run(&self, variant: Variant, iterations: u64) -> u64 {
        match variant {
            Variant::None => none(iterations),
            Variant::Key => key(iterations),
            Variant::RelaxedAtomic => relaxed_atomic(iterations),
            Variant::PlainBool => plain_bool(iterations),
            Variant::Rival => self.rival.as_ref().map_or(0, |rival| rival.run(iterations)),
            Variant::Leaf => call_leaf(leaf, iterations),
            Variant::LeafKey => call_leaf(leaf_key, iterations),
            Variant::LeafAtomic => call_leaf(leaf_atomic, iterations),
        }
    }
}

#[inline(never)]
fn none(iterations: u64) -> u64 {
    for iteration in 0..iterations {
        black_box(iteration);
    }
    0
}

macro_rules! looped {
    ($name:ident, $condition:expr) => {
        #[inline(never)]
        fn $name(iterations: u64) -> u64 {
            let mut taken = 0;
            for iteration in 0..iterations {
                black_box(iteration);
                if $condition {
                    taken = black_box(taken + 1);
                }
            }
            taken
        }
    };
}

looped!(key, static_branch_unlikely!(JUMP));
looped!(relaxed_atomic, ATOMIC.load(Ordering::Relaxed));
looped!(plain_bool, {
    // SAFETY: see `Plain`.
    unsafe { *PLAIN.0.get() }
});

/// Calls of [`leaf_called`].
static CALLED: AtomicU64 = AtomicU64::new(0);

#[cold]
#[inline(never)]
fn leaf_called(left: u64, right: u64) {
    black_box((left, right));
    CALLED.fetch_add(1, Ordering::Relaxed);
}

#[inline(never)]
fn leaf(left: u64, right: u64) -> u64 {
    left.wrapping_mul(right)
}

#[inline(never)]
fn leaf_key(left: u64, right: u64) -> u64 {
    if static_branch_unlikely!(LEAF) {
        leaf_called(left, right);
    }
    left.wrapping_mul(right)
}

#[inline(never)]
fn leaf_atomic(left: u64, right: u64) -> u64 {
    if ATOMIC.load(Ordering::Relaxed) {
        leaf_called(left, right);
    }
    left.wrapping_mul(right)
}

/// The same loop for every leaf, so that only the leaf differs; returns how often it called.
#[inline(never)]
fn call_leaf(leaf: fn(u64, u64) -> u64, iterations: u64) -> u64 {
    let before = CALLED.load(Ordering::Relaxed);
    let mut product = 1;
    for iteration in 0..iterations {
        product = leaf(black_box(product), iteration | 1);
    }
    black_box(product);
    CALLED.load(Ordering::Relaxed) - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_follows_what_decides_it() {
        // Its flips would be served together with those of a test that counts barriers.
        #[cfg(patching)]
        let _user = crate::engine::for_test();
        let mut test = JumpTest::take().expect("nobody else took it");
        assert!(JumpTest::take().is_none());
        for variant in Variant::ALL {
            for on in [true, false] {
                test.set(variant, on).expect("nothing hinders");
                let expected = if on && variant.has_branch() && test.has(variant) {
                    10
                } else {
                    0
                };
                assert_eq!(test.run(variant, 10), expected, "{variant:?}");
            }
        }
    }
}
