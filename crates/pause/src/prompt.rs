//! A thread that wakes to look after others, and is not to wait for those.

use crate::demote::DEMOTED_SLICE_NANOS;
use crate::system::{self, Attributes, POLICY_OTHER};

/// Gives the calling thread its usual slice back.
struct Usual(Attributes);

impl Drop for Usual {
    fn drop(&mut self) {
        // It was allowed to ask for a slice just now. If the process forbade itself that in between, the thread keeps the short one.
        let _ = system::set_attributes(system::thread_id(), self.0);
    }
}

/// Runs `body`, in which the calling thread sleeps, with the shortest slice that the kernel has (100 us, since 6.12). Of two threads that are
/// owed as much the kernel runs the one with the nearer deadline, which is a slice away: so who wakes with the usual slice of 3 ms beside a
/// thread that computes may have to wait for the next tick, 4 ms on many machines. (Linux 6.18, one processor, a sleep of 1 ms and 20 us of
/// work in turn beside a busy thread of the same priority: more than 0.5 ms late 7 and 8 times of 2,200 with the usual slice, 0 and 2 times
/// with this; with 200 us of work 66 and 92 times, and 2 and 12.)
///
/// Three system calls, some 1 us; none needs a privilege. A thread that is not scheduled as threads usually are (`SCHED_OTHER`), and one
/// to which the system refuses it, runs `body` as it is. It has the kernel's default slice afterwards, whatever it had before.
pub fn promptly<R>(body: impl FnOnce() -> R) -> R {
    let own = system::thread_id();
    let usual = system::attributes(own).ok().filter(|before| {
        before.policy == POLICY_OTHER
            && system::set_attributes(own, Attributes::fair(before.nice, DEMOTED_SLICE_NANOS))
                .is_ok()
    });
    let _usual = usual.map(Usual);
    body()
}

#[cfg(all(
    test,
    not(loom),
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests {
    use super::*;

    /// The slice that the kernel says is in effect; 0 where it has no custom ones. Unit: nanoseconds.
    fn slice() -> u64 {
        system::slice(system::thread_id()).expect("own attributes")
    }

    #[test]
    fn the_slice_is_short_meanwhile_and_usual_afterwards() {
        let before = (slice(), system::attributes(system::thread_id()));
        let meanwhile = promptly(slice);
        assert!(
            meanwhile == DEMOTED_SLICE_NANOS || before.0 == 0,
            "{meanwhile}"
        );
        let unwound =
            std::panic::catch_unwind(|| promptly(|| std::panic::resume_unwind(Box::new(()))));
        assert!(unwound.is_err());
        assert_eq!((slice(), system::attributes(system::thread_id())), before);
    }

    /// Hazard: a thread with a policy of its own is made a usual one.
    #[test]
    fn who_has_a_policy_of_its_own_keeps_it() {
        let kept = std::thread::spawn(|| {
            let own = system::thread_id();
            system::set_policy(own, system::POLICY_BATCH).expect("unprivileged");
            let meanwhile = promptly(|| system::policy(own));
            (meanwhile, system::policy(own))
        });
        let batch = Ok(system::POLICY_BATCH);
        assert_eq!(kept.join().expect("no panic"), (batch, batch));
    }
}
