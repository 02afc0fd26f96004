//! Three answers to the question whether a feature is on, so that one binary holds all three schedulers.

use std::sync::atomic::{AtomicBool, Ordering};

use quotient_core::Gates;
use quotient_keys::{FlipError, Key, static_branch_unlikely, static_key};
use serde::{Deserialize, Serialize};

pub use quotient_core::CompiledOut;

/// How features are gated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Not at all: the code is not there.
    CompiledOut,
    /// By a load and a branch.
    Branch,
    /// By static keys.
    Keys,
}

impl Variant {
    /// All, the base of the comparison first.
    pub const ALL: [Self; 3] = [Self::CompiledOut, Self::Branch, Self::Keys];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CompiledOut => "compiled-out",
            Self::Branch => "branch",
            Self::Keys => "keys",
        }
    }
}

/// Relaxed atomics.
#[derive(Clone, Copy, Debug)]
pub struct Branches;

static BANDWIDTH_FLAG: AtomicBool = AtomicBool::new(false);
static LOAD_AVERAGES_FLAG: AtomicBool = AtomicBool::new(false);
static EVENTS_FLAG: AtomicBool = AtomicBool::new(false);
static CHECKS_FLAG: AtomicBool = AtomicBool::new(false);

impl Gates for Branches {
    #[inline(always)]
    fn bandwidth() -> bool {
        BANDWIDTH_FLAG.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn load_averages() -> bool {
        LOAD_AVERAGES_FLAG.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn events() -> bool {
        EVENTS_FLAG.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn checks() -> bool {
        CHECKS_FLAG.load(Ordering::Relaxed)
    }
}

/// Static keys.
#[derive(Clone, Copy, Debug)]
pub struct Keys;

static_key! {
    /// Bandwidth control of the benchmark's scheduler.
    static BANDWIDTH = false, as "bench.pipe.bandwidth";
    /// Never on.
    static LOAD_AVERAGES = false, as "bench.pipe.load_averages";
    /// Never on.
    static EVENTS = false, as "bench.pipe.events";
    /// Never on.
    static CHECKS = false, as "bench.pipe.checks";
}

impl Gates for Keys {
    #[inline(always)]
    fn bandwidth() -> bool {
        static_branch_unlikely!(BANDWIDTH)
    }

    #[inline(always)]
    fn load_averages() -> bool {
        static_branch_unlikely!(LOAD_AVERAGES)
    }

    #[inline(always)]
    fn events() -> bool {
        static_branch_unlikely!(EVENTS)
    }

    #[inline(always)]
    fn checks() -> bool {
        static_branch_unlikely!(CHECKS)
    }
}

/// Switches bandwidth control for a variant, and keeps the flag that never changes from being a constant to the compiler.
///
/// # Errors
/// When a key cannot be flipped.
pub fn set_bandwidth(variant: Variant, on: bool) -> Result<(), FlipError> {
    match variant {
        Variant::CompiledOut => {}
        Variant::Branch => {
            BANDWIDTH_FLAG.store(on, Ordering::Relaxed);
            for flag in [&LOAD_AVERAGES_FLAG, &EVENTS_FLAG, &CHECKS_FLAG] {
                flag.store(std::hint::black_box(false), Ordering::Relaxed);
            }
        }
        Variant::Keys => {
            BANDWIDTH.set(on)?;
        }
    }
    Ok(())
}

/// Sites of the bandwidth key, and how many of them are in the form that falls through.
pub fn bandwidth_sites() -> (usize, usize) {
    let key: &'static Key = &BANDWIDTH;
    let status = key.status();
    (status.sites, status.patched)
}
