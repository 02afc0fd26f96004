//! Threads of others, which have no regions, and are asked not to interrupt those that have.
//!
//! The kernel lets a thread that wakes interrupt one that has run for longer than its due, at once. A thread that only brings work does that for
//! each piece, to the very thread that works it off: two changes of threads a piece, where one for all pieces would do. As
//! `SCHED_BATCH` it has the same part of a processor and the same nice value, and waits until the other sleeps or its slice is over.
//!
//! # What it starts meanwhile
//! A thread passes its policy on to those that it starts, for good, and no flag of an unprivileged thread prevents that. So who knows that it
//! starts one says so ([`Guest::as_usual`]): the caller does not wait then, and is not told to before it has. What is started without that (by
//! a pool that belongs to others) is made good where it first works for us ([`Guest::shed_inherited`]).
//!
//! # Whose id it is
//! The thread introduces itself ([`Guest::this_thread`]); a thread-local of its own takes that back at its end, under a lock that each
//! change of its policy holds: so a system call by its id never meets another thread. In a child of `fork` there are no such threads, and
//! nothing is changed.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::DemoteError;
use crate::slot::Identity;
use crate::system::{self, POLICY_BATCH, POLICY_OTHER};

/// What a thread shares with those that know it.
#[derive(Debug)]
struct Life {
    identity: Identity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    alive: bool,
    /// It is `SCHED_BATCH` through us: whoever got it told so takes that back.
    told: bool,
    /// The system has refused it once: it is not asked again.
    refused: bool,
    /// It starts threads, so many calls deep: it is not told to wait.
    starting: usize,
}

impl Life {
    fn begin() -> Option<Arc<Self>> {
        let identity = Identity {
            process: system::process_id(),
            thread: system::thread_id(),
        };
        let usual = system::policy(identity.thread) == Ok(POLICY_OTHER);
        usual.then(|| {
            let state = State {
                alive: true,
                told: false,
                refused: false,
                starting: 0,
            };
            Arc::new(Self {
                identity,
                state: Mutex::new(state),
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's own part.
struct Mine(Option<Arc<Life>>);

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(life) = &self.0 {
            life.lock().alive = false;
        }
    }
}

thread_local! {
    static MINE: OnceCell<Mine> = const { OnceCell::new() };
    /// It has looked for what it inherited.
    static HAS_SHED: Cell<bool> = const { Cell::new(false) };
}

/// Some thread of the process was told to wait, so that others may have inherited that.
static SOMEBODY_WAITED: AtomicBool = AtomicBool::new(false);

/// A call of [`Guest::as_usual`], to its end by unwinding too.
struct Started<'a>(&'a Life);

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.0.lock().starting -= 1;
    }
}

/// A thread of somebody else's.
#[derive(Clone, Debug)]
pub struct Guest {
    life: Arc<Life>,
}

impl Guest {
    /// The calling thread, if it is scheduled as threads usually are (`SCHED_OTHER`) when it asks first; one with a policy of its own is left
    /// alone. Two system calls and an allocation the first time; a look at a thread-local later.
    #[must_use]
    pub fn this_thread() -> Option<Self> {
        let own = |mine: &OnceCell<Mine>| mine.get_or_init(|| Mine(Life::begin())).0.clone();
        let life = MINE.try_with(own).ok()??;
        Some(Self { life })
    }

    /// Runs `start`, which starts threads or processes, with the calling thread scheduled as usual: if it waits, it does so no more, and it is not
    /// told to while `start` runs. One look at a thread-local on a thread that was never a guest, two system calls on one that waits.
    pub fn as_usual<R>(start: impl FnOnce() -> R) -> R {
        let known = |mine: &OnceCell<Mine>| mine.get().and_then(|mine| mine.0.clone());
        let Some(life) = MINE.try_with(known).ok().flatten() else {
            return start();
        };
        life.lock().starting += 1;
        let started = Started(&life);
        // Refused: it was told so, and is counted, where it was asked to wait.
        let _ = Self { life: life.clone() }.waits(false);
        let result = start();
        drop(started);
        result
    }

    /// The calling thread, which belongs to a pool whose threads are scheduled as usual, is so again if a guest has started it while that waited;
    /// whether it was. Looked for once a thread, two or three system calls; nothing as long as no thread of the process has waited.
    ///
    /// For threads of such a pool only: one that was given `SCHED_BATCH` on purpose looks the same.
    ///
    /// # Errors
    /// [`DemoteError::Refused`] where the system refuses one of the calls.
    pub fn shed_inherited() -> Result<bool, DemoteError> {
        if !SOMEBODY_WAITED.load(Ordering::Relaxed) || HAS_SHED.replace(true) {
            return Ok(false);
        }
        let own = system::thread_id();
        let shed = match system::policy(own) {
            Ok(POLICY_BATCH) => system::set_policy(own, POLICY_OTHER).map(|()| true),
            other => other.map(|_| false),
        };
        shed.map_err(|errno| DemoteError::Refused { errno })
    }

    /// From now on the thread, when it wakes, interrupts nobody who is of usual priority (`waits`), or does so again; whether that has
    /// changed. Not if somebody else has it wait already (then it is his to take back), if it got a policy of its own meanwhile
    /// (which it keeps), or once it has ended. Three system calls, some 1 us; waits for nobody.
    ///
    /// Threads and processes that it starts while it waits are `SCHED_BATCH` for good, as the kernel has it, but for those of
    /// [`Guest::as_usual`], during which it is not told to. So is the thread itself if the process forbids itself such system calls in the middle
    /// (seccomp).
    ///
    /// # Errors
    /// [`DemoteError::Refused`] where the system refuses one of the calls. It is not asked again to have this thread wait.
    pub fn waits(&self, waits: bool) -> Result<bool, DemoteError> {
        let Identity { process, thread } = self.life.identity;
        let mut state = self.life.lock();
        let is_vain = state.told == waits || (waits && (state.refused || state.starting > 0));
        if is_vain || !state.alive || process != system::process_id() {
            return Ok(false);
        }
        let (old, new) = if waits {
            (POLICY_OTHER, POLICY_BATCH)
        } else {
            (POLICY_BATCH, POLICY_OTHER)
        };
        let done = match system::policy(thread) {
            Ok(policy) if policy == old => system::set_policy(thread, new).map(|()| true),
            other => other.map(|_| false),
        };
        state.refused |= done.is_err();
        state.told = waits && done == Ok(true);
        if state.told {
            SOMEBODY_WAITED.store(true, Ordering::Relaxed);
        }
        done.map_err(|errno| DemoteError::Refused { errno })
    }
}

#[cfg(all(
    test,
    not(loom),
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod tests {
    use super::*;

    /// The bit of a policy that threads do not pass on (sched(7)).
    const RESET_ON_FORK: u32 = 0x4000_0000;
    const POLICY_IDLE: u32 = 5;

    fn policy(guest: &Guest) -> u32 {
        system::policy(guest.life.identity.thread).expect("a live thread")
    }

    fn waits(guest: &Guest, waits: bool) -> bool {
        guest.waits(waits).expect("not refused")
    }

    #[test]
    fn a_guest_waits_and_then_does_not() {
        let guest = Guest::this_thread().expect("a thread of a test has the usual policy");
        let before = system::attributes(system::thread_id()).expect("own attributes");
        assert!(waits(&guest, true));
        assert_eq!(policy(&guest), POLICY_BATCH);
        let other = std::thread::spawn(move || waits(&guest, false).then_some(guest));
        let guest = other.join().expect("no panic").expect("told by another");
        assert_eq!(policy(&guest), POLICY_OTHER);
        let after = system::attributes(system::thread_id());
        assert_eq!(after, Ok(before), "and nothing else has changed");
    }

    /// Hazard: the kernel gives the number of a thread that has ended to another one, perhaps of another program.
    #[test]
    fn who_has_ended_is_told_nothing() {
        let ended = std::thread::spawn(Guest::this_thread).join();
        let guest = ended.expect("no panic").expect("the usual policy");
        assert!(!waits(&guest, true));
    }

    #[test]
    fn who_has_a_policy_of_its_own_is_no_guest() {
        let guest = std::thread::spawn(|| {
            system::set_policy(system::thread_id(), POLICY_BATCH).expect("unprivileged");
            Guest::this_thread().is_some()
        });
        assert!(!guest.join().expect("no panic"));
    }

    /// Hazard: the bit of a thread that is `SCHED_OTHER` otherwise goes with each change of its policy, and only root gets it back.
    #[test]
    fn who_passes_nothing_on_is_no_guest() {
        let guest = std::thread::spawn(|| {
            let own = system::thread_id();
            system::set_policy(own, POLICY_OTHER | RESET_ON_FORK).expect("unprivileged");
            Guest::this_thread().is_some()
        });
        assert!(!guest.join().expect("no panic"));
    }

    /// Hazard: two schedulers know one worker, and the first that has done takes back what the other one asked for, or neither does.
    #[test]
    fn who_had_it_wait_takes_that_back_and_nobody_else() {
        let first = std::thread::spawn(|| {
            let first = Guest::this_thread().expect("the usual policy");
            let second = Guest::this_thread().expect("the usual policy");
            assert!(waits(&first, true));
            assert!(!waits(&second, true), "it waits already");
            assert_eq!(policy(&second), POLICY_BATCH);
            assert!(waits(&first, false));
            assert!(!waits(&second, false), "nothing is to be taken back");
            assert!(
                waits(&second, true) && waits(&second, false),
                "now it is its turn"
            );
            assert_eq!(policy(&first), POLICY_OTHER);
        });
        first.join().expect("no panic");
    }

    /// Hazard: a program gives its thread a policy after the thread was met, before it waits or while it does, and has it no more then.
    #[test]
    fn a_policy_that_came_later_stays() {
        let guest = std::thread::spawn(|| {
            let guest = Guest::this_thread().expect("the usual policy");
            assert!(waits(&guest, true));
            system::set_policy(guest.life.identity.thread, POLICY_IDLE).expect("unprivileged");
            assert!(!waits(&guest, false));
            assert_eq!(policy(&guest), POLICY_IDLE, "given while it waited");
            assert!(!waits(&guest, true));
            assert_eq!(policy(&guest), POLICY_IDLE, "given before");
        });
        guest.join().expect("no panic");
    }

    /// The policy of a thread that the caller starts.
    fn of_a_new_thread() -> u32 {
        let new = std::thread::spawn(|| system::policy(system::thread_id()));
        new.join().expect("no panic").expect("a live thread")
    }

    /// Hazard: what a guest starts while it waits waits for good.
    #[test]
    fn what_a_guest_starts_as_usual_is_as_usual() {
        let guest = std::thread::spawn(|| {
            let guest = Guest::this_thread().expect("the usual policy");
            assert!(waits(&guest, true));
            assert_eq!(of_a_new_thread(), POLICY_BATCH, "as the kernel has it");
            Guest::as_usual(|| {
                assert_eq!(of_a_new_thread(), POLICY_OTHER);
                assert!(!waits(&guest, true), "told while it starts threads");
                Guest::as_usual(|| assert_eq!(of_a_new_thread(), POLICY_OTHER));
                assert!(!waits(&guest, true), "the outer call goes on");
            });
            assert!(!waits(&guest, false), "it does not wait");
            assert!(waits(&guest, true) && waits(&guest, false));
            let caught = std::panic::catch_unwind(|| {
                Guest::as_usual(|| std::panic::resume_unwind(Box::new(())))
            });
            assert!(caught.is_err());
            assert!(waits(&guest, true) && waits(&guest, false), "for ever");
        });
        guest.join().expect("no panic");
    }

    /// Hazard: a pool of others starts its threads from whoever asks, and those have inherited that they wait.
    #[test]
    fn who_has_inherited_that_it_waits_sheds_it_once() {
        let guest = std::thread::spawn(|| {
            let guest = Guest::this_thread().expect("the usual policy");
            assert!(waits(&guest, true));
            let heir = std::thread::spawn(|| {
                let own = system::thread_id();
                assert_eq!(Guest::shed_inherited(), Ok(true));
                assert_eq!(system::policy(own), Ok(POLICY_OTHER));
                // From here on it is its own choice.
                system::set_policy(own, POLICY_BATCH).expect("unprivileged");
                assert_eq!(Guest::shed_inherited(), Ok(false), "looked for twice");
                assert_eq!(system::policy(own), Ok(POLICY_BATCH));
            });
            heir.join().expect("no panic");
            assert!(waits(&guest, false));
        });
        guest.join().expect("no panic");
    }

    /// Makes `sched_setscheduler` fail for the calling thread from now on; whether the system lets it.
    fn forbid_policies() -> bool {
        const NUMBER_AT: u32 = 0;
        let number = u32::try_from(libc::SYS_sched_setscheduler).expect("small");
        let refusal = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).expect("small");
        let step = |code: u32, k: u32, jf: u8| libc::sock_filter {
            code: u16::try_from(code).expect("small"),
            jt: 0,
            jf,
            k,
        };
        let mut filter = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER_AT, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 1),
            step(libc::BPF_RET | libc::BPF_K, refusal, 0),
            step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the kernel copies the program, a local that outlives the call; the rest are numbers.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) == 0
        }
    }

    /// Hazard: each time that there is something to do the system is asked for what it does not give.
    #[test]
    fn who_was_refused_once_is_asked_for_time_and_again() {
        let (refused, other) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let guest = Guest::this_thread().expect("the usual policy");
            if !forbid_policies() {
                println!("not shown: no filters of system calls here");
                return;
            }
            let errno = libc::EPERM;
            assert_eq!(guest.waits(true), Err(DemoteError::Refused { errno }));
            refused.send(guest).expect("the test waits");
            let _ = ends.recv();
        });
        if let Ok(guest) = other.recv() {
            // The filter is the other thread's: were the system asked from here, it would be done.
            assert!(!waits(&guest, true), "asked again");
            assert_eq!(policy(&guest), POLICY_OTHER);
        }
        drop(end);
        thread.join().expect("no panic");
    }
}
