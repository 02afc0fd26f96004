//! The platform's side of the engine: where the sites are and how they are rewritten.
//!
//! Two implementations of one type, [`Text`]: `linux` patches, `stub` never does. The engine above cannot tell them
//! apart, because patching is an optimisation that may always be left out.

#[cfg(any(all(patching, target_arch = "x86_64"), feature = "bench"))]
pub(crate) mod lookup;

#[cfg(patching)]
mod linux;
#[cfg(patching)]
pub(crate) use linux::Text;

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
