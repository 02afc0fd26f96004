//! The guard by which users keep a section of a poll from being stopped.

/// While this lives, the poll in which it was made is not stopped; see [`uninterrupted`].
#[derive(Debug)]
#[must_use = "the guard protects while it lives"]
pub struct Uninterrupted {
    _guard: quotient_pause::Undisturbed,
}

/// Keeps the current poll, or blocking function, from being stopped under [`Builder::preempt`](crate::Builder::preempt) while the guard
/// lives: for a section that holds what other groups need, such as a lock. The poll can still be taken off its virtual CPU and get a lower
/// priority. Without preemption the guard does nothing. About 10 ns.
///
/// A guard ends with its poll, even if it is kept or forgotten. All guards of a poll together are good for 50 ms of CPU time in which policy
/// wanted the poll to stop; under a limit, all polls of the limited group and below it have these 50 ms together, ahead of what the limit
/// earns. After that a poll is stopped like any other ([`PreemptStats::insisted`](crate::PreemptStats::insisted) counts this), since
/// otherwise code that keeps a guard would be bound by no limit and no weight. What the poll uses is charged within some milliseconds,
/// and nothing else of its group begins until the limit has earned it: 200 tasks that kept a guard for 45 ms at a time had 208 to 253 ms
/// of CPU time in 4 s under a limit of 5 % (`cargo test -p quotient --test guards_add_up_beyond_a_limit -- --nocapture`).
///
/// ```
/// static TOTALS: std::sync::Mutex<(u64, u64)> = std::sync::Mutex::new((0, 0));
///
/// fn add(bytes: u64) {
///     // Other tasks that want the lock wait for these lines, and not until the group that runs them has budget again.
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
