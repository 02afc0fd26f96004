//! The guard by which users keep a section of a poll from being stopped.

/// While this lives, the poll in which it was made is not stopped; see [`uninterrupted`].
#[derive(Debug)]
#[must_use = "the guard protects while it lives"]
pub struct Uninterrupted {
    _guard: quotient_pause::Undisturbed,
}

/// Keeps the calling thread from being stopped in the middle of the poll, or of the function that takes turns, under
/// [`Builder::preempt`](crate::Builder::preempt): for a section in which it holds what others need. It can be taken off its virtual CPU and
/// lowered all the same. Elsewhere the guard does nothing. About 10 ns.
///
/// A guard is good for its poll only, so one that is forgotten ends with it; and for 50 ms of CPU time in which policy wanted the poll to stop,
/// all guards of the poll together. After that the poll stops as any other, up to its end
/// ([`PreemptStats::insisted`](crate::PreemptStats::insisted) counts it): otherwise code that keeps one would be held by no limit and no
/// weight. What it used is charged in any case.
///
/// ```
/// static TOTALS: std::sync::Mutex<(u64, u64)> = std::sync::Mutex::new((0, 0));
///
/// fn add(bytes: u64) {
///     // Whoever wants the lock waits for these lines, and not for a throttle of the group that runs them.
///     let _guard = quotient::uninterrupted();
///     let mut totals = TOTALS.lock().unwrap();
///     totals.0 += 1;
///     totals.1 += bytes;
/// }
/// # add(7);
/// ```
pub fn uninterrupted() -> Uninterrupted {
    Uninterrupted {
        _guard: quotient_pause::undisturbed(),
    }
}
