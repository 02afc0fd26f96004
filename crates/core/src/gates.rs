//! Which features are on: asked at every place where a feature would cost something.
//!
//! The answers come from the host, as a type: a runtime answers from static keys (a patched jump), a simulator with
//! constants. Answers may change while a queue is in use; each feature says what it does then.

/// Answers whether a feature is on. Asked on hot paths: implement with `#[inline(always)]` and at most one load.
pub trait Gates: 'static {
    /// CPU bandwidth control: some group has, or lately had, a limit ([`crate::Group::set_limit`]).
    fn bandwidth() -> bool;
    /// Load averages.
    fn load_averages() -> bool;
    /// Recording of events.
    fn events() -> bool;
    /// Checks of every invariant after every call ([`crate::RunQueue::check`]), beyond what debug builds assert.
    fn checks() -> bool;
}

/// Everything off, as constants: what the features would cost if they were not there at all.
#[derive(Clone, Copy, Debug)]
pub struct CompiledOut;

/// Everything on but the checks, as constants.
#[derive(Clone, Copy, Debug)]
pub struct AlwaysOn;

impl Gates for CompiledOut {
    #[inline(always)]
    fn bandwidth() -> bool {
        false
    }

    #[inline(always)]
    fn load_averages() -> bool {
        false
    }

    #[inline(always)]
    fn events() -> bool {
        false
    }

    #[inline(always)]
    fn checks() -> bool {
        false
    }
}

impl Gates for AlwaysOn {
    #[inline(always)]
    fn bandwidth() -> bool {
        true
    }

    #[inline(always)]
    fn load_averages() -> bool {
        true
    }

    #[inline(always)]
    fn events() -> bool {
        true
    }

    #[inline(always)]
    fn checks() -> bool {
        false
    }
}
