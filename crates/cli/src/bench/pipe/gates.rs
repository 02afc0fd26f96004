//! Answers to the question whether bandwidth control is on, so that one binary holds a scheduler for each.

use std::sync::atomic::{AtomicBool, Ordering};

use quotient_core::Gates;
use quotient_keys::{FlipError, Key, static_branch_unlikely, static_key};
use serde::{Deserialize, Serialize};

pub use quotient_core::CompiledOut;

/// How bandwidth control is gated. The other features are compiled out, so that one thing differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Not at all: the code is not there.
    CompiledOut,
    /// By a load and a branch.
    Branch,
    /// By static keys.
    Keys,
    /// By static keys, and so are all other features, which are off.
    AllKeys,
}

impl Variant {
    /// All, the base of the comparison first.
    pub const ALL: [Self; 4] = [Self::CompiledOut, Self::Branch, Self::Keys, Self::AllKeys];

    /// Whether static keys decide.
    pub const fn is_patched(self) -> bool {
        matches!(self, Self::Keys | Self::AllKeys)
    }

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CompiledOut => "compiled-out",
            Self::Branch => "branch",
            Self::Keys => "keys",
            Self::AllKeys => "all-keys",
        }
    }
}

static BANDWIDTH_FLAG: AtomicBool = AtomicBool::new(false);

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

/// A type that answers so.
macro_rules! gates {
    ($(#[doc = $documentation:literal])+ $name:ident, $bandwidth:expr, $load_averages:expr, $events:expr, $checks:expr) => {
        $(#[doc = $documentation])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Gates for $name {
            #[inline(always)]
            fn bandwidth() -> bool {
                $bandwidth
            }

            #[inline(always)]
            fn load_averages() -> bool {
                $load_averages
            }

            #[inline(always)]
            fn events() -> bool {
                $events
            }

            #[inline(always)]
            fn checks() -> bool {
                $checks
            }
        }
    };
}

gates!(
    /// Bandwidth control behind a relaxed atomic, the rest compiled out.
    Branch,
    BANDWIDTH_FLAG.load(Ordering::Relaxed),
    false,
    false,
    false
);

gates!(
    /// Bandwidth control behind a static key, the rest compiled out.
    Keys,
    static_branch_unlikely!(BANDWIDTH),
    false,
    false,
    false
);

gates!(
    /// Everything behind static keys, as in the runtime.
    AllKeys,
    static_branch_unlikely!(BANDWIDTH),
    static_branch_unlikely!(LOAD_AVERAGES),
    static_branch_unlikely!(EVENTS),
    static_branch_unlikely!(CHECKS)
);

/// Switches bandwidth control for a variant.
///
/// # Errors
/// When a key cannot be flipped.
pub fn set_bandwidth(variant: Variant, on: bool) -> Result<(), FlipError> {
    match variant {
        Variant::CompiledOut => {}
        Variant::Branch => BANDWIDTH_FLAG.store(on, Ordering::Relaxed),
        Variant::Keys | Variant::AllKeys => {
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
