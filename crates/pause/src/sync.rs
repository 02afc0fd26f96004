//! The one door to atomics, locks and fences, so that loom can stand in for them.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// Orders the accesses of one thread against a signal handler on the same thread: binds the compiler, costs nothing.
#[inline(always)]
pub(crate) fn handler_fence() {
    // Under the model checker the handler is an ordinary call, and the program's order is kept.
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The cheap half of the barrier between a region's end and who detaches it.
///
/// `asymmetric`: the other half is a membarrier, so this one need not bind the processor.
#[inline(always)]
pub(crate) fn light_barrier(asymmetric: bool) {
    // The model checker knows no membarrier: it proves the symmetric form, which is what a membarrier amounts to.
    if asymmetric && !cfg!(loom) {
        handler_fence();
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The dear half. Falls back on a fence that pairs with the fence of the other half; `asymmetric` must be what the other
/// half is given.
pub(crate) fn heavy_barrier(asymmetric: bool) {
    fence(Ordering::SeqCst);
    if asymmetric && !cfg!(loom) {
        crate::system::barrier();
        fence(Ordering::SeqCst);
    }
}

/// Sleeps while `word` is `value`, for at most `timeout`; may return for no reason.
pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Option<std::time::Duration>) {
    #[cfg(loom)]
    {
        let _ = (word, value, timeout);
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    crate::system::futex_wait(word, value, timeout);
}

/// Wakes everybody who sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    #[cfg(loom)]
    let _ = word;
    #[cfg(not(loom))]
    crate::system::futex_wake_all(word);
}
