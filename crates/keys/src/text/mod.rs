//! The platform's side of the engine: where the sites are and how they are rewritten.
//!
//! Two implementations of one type, [`Text`]: `x86_64` patches, `stub` never does. The engine above cannot tell them
//! apart, because patching is an optimisation that may always be left out.

#[cfg(any(patching, feature = "bench"))]
pub(crate) mod lookup;

#[cfg(patching)]
mod x86_64;
#[cfg(patching)]
pub(crate) use x86_64::Text;

#[cfg(not(patching))]
mod stub;
#[cfg(not(patching))]
pub(crate) use stub::Text;

/// Figures of one key or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) sites: usize,
    pub(crate) patched: usize,
    pub(crate) foreign: usize,
    pub(crate) traps: u64,
}
