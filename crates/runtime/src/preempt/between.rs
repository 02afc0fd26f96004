//! What a thread of a pool uses between two functions: to fall asleep, to wake, to fetch the next one.
//!
//! That is nobody's part of a turn, and of empty functions it is more than what they use themselves: 14 of 27 us. (A tenant of 0.1 CPUs that handed in as many as
//! it could had the process use 0.28 to 0.30.) So it is charged to whose function comes next on the thread: as long as it is so little that nothing else can have run
//! there meanwhile but a pool's own work, or a function of the program's that is as short.

use std::cell::Cell;

use quotient_core::Nanos;

/// More is somebody else's. Unit: nanoseconds of the thread's CPU clock. 50 us: three times what tokio's pool takes where all its threads sleep.
const BETWEEN_MAX: Nanos = Nanos::from_micros(50);

thread_local! {
    /// The thread's CPU time as its last function had ended; 0 before.
    static ENDED_AT: Cell<Nanos> = const { Cell::new(Nanos::ZERO) };
}

/// A function of this thread has ended, at the time `cpu` of its clock.
pub(super) fn ends(cpu: Nanos) {
    // A thread that ends has no other after it.
    let _ = ENDED_AT.try_with(|ended| ended.set(cpu));
}

/// Another begins, at `cpu`: from when on it is charged.
pub(super) fn begins(cpu: Nanos) -> Nanos {
    let ended = ENDED_AT.try_with(Cell::take).unwrap_or_default();
    let between = cpu.saturating_sub(ended);
    match ended != Nanos::ZERO && between <= BETWEEN_MAX {
        true => ended,
        false => cpu,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_functions_is_the_second_ones() {
        let micros = Nanos::from_micros;
        assert_eq!(begins(micros(20)), micros(20), "nothing before");
        ends(micros(30));
        assert_eq!(begins(micros(45)), micros(30));
        assert_eq!(begins(micros(50)), micros(50), "once");
        ends(micros(60));
        let later = micros(60).saturating_add(BETWEEN_MAX);
        assert_eq!(begins(later), micros(60));
        ends(micros(60));
        let later = later.saturating_add(Nanos(1));
        assert_eq!(begins(later), later, "somebody else's");
    }
}
