//! Lower priority in the kernel, so that the thread gives way by itself.

use crate::error::DemoteError;
use crate::slot::Identity;
use crate::system;

/// The lowest of the kernel's nice values, and the most levels that a thread can be lowered by.
pub(crate) const NICE_LEVELS_MAX: u8 = 19;

/// Slice of a demoted thread. Unit: nanoseconds. 100 us is the least that the kernel accepts (6.12): a thread that has just
/// been switched to is protected until its slice is used up, so with the usual 3 ms a waking thread of normal priority
/// waits (measured: p99 of 1.4 ms, against 0.25 ms).
pub(crate) const DEMOTED_SLICE_NANOS: u64 = 100_000;

/// How far a thread is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Demotion {
    /// By that many nice levels below what the thread has, 1 to 19, and never below the lowest; its slice becomes 100 us where
    /// the kernel has custom slices. Ten levels are a weight of 110 of 1,024: beside busy threads of other programs in the same
    /// cgroup it still gets a tenth.
    Nice(u8),
    /// `SCHED_IDLE`: a weight of 3. A holder of a lock gets next to nothing beside busy threads.
    Idle,
    /// Not at all.
    None,
}

impl Default for Demotion {
    /// Ten nice levels.
    fn default() -> Self {
        Self::Nice(10)
    }
}

impl Demotion {
    /// Whether it can be asked for.
    ///
    /// # Errors
    /// [`DemoteError::Levels`] if not.
    pub fn validate(self) -> Result<(), DemoteError> {
        match self {
            Self::Nice(value) if !(1..=NICE_LEVELS_MAX).contains(&value) => {
                Err(DemoteError::Levels { value })
            }
            _ => Ok(()),
        }
    }
}

/// What became of a demotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Demoted {
    /// Everything that was asked for.
    Fully,
    /// The priority was lowered, without the short slice: the system has no `sched_setattr`.
    WithoutSlice,
    /// Nothing was asked for.
    NotAtAll,
}

/// Lowers the thread, which had the nice value `base` when it entered: lowering it twice lowers it no further. The caller makes
/// sure that the id is the thread's.
pub(crate) fn lower(
    identity: Identity,
    base: i32,
    demotion: Demotion,
) -> Result<Demoted, DemoteError> {
    demotion.validate()?;
    if demotion == Demotion::None {
        return Ok(Demoted::NotAtAll);
    }
    let known = system::attributes(identity.thread);
    if let Ok(known) = known
        && !known.is_fair()
    {
        return Err(DemoteError::Policy {
            policy: known.policy,
        });
    }
    let levels = match demotion {
        Demotion::Nice(levels) => levels,
        _ => 0,
    };
    let nice = known.map_or(base, |known| known.nice);
    // Its own code may have gone further down meanwhile.
    let lowered = (base + i32::from(levels))
        .max(nice)
        .min(i32::from(NICE_LEVELS_MAX));
    let wanted = match demotion {
        Demotion::Idle => system::Attributes::idle(nice),
        _ => system::Attributes::fair(lowered, DEMOTED_SLICE_NANOS),
    };
    if system::set_attributes(identity.thread, wanted).is_ok() {
        return Ok(Demoted::Fully);
    }
    let lowest = match demotion {
        Demotion::Idle => i32::from(NICE_LEVELS_MAX),
        _ => lowered,
    };
    match system::set_nice(identity.thread, lowest) {
        Ok(()) => Ok(Demoted::WithoutSlice),
        Err(errno) => Err(DemoteError::Refused { errno }),
    }
}

/// Gives the calling thread back what it had when it entered.
pub(crate) fn raise(identity: Identity, before: system::Attributes) -> Result<(), DemoteError> {
    match system::set_attributes(identity.thread, before) {
        Ok(()) => Ok(()),
        Err(errno) => match system::set_nice(identity.thread, before.nice) {
            Ok(()) => Ok(()),
            Err(_) => Err(DemoteError::Refused { errno }),
        },
    }
}
