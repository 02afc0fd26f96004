//! Setting up where something is in the way, and what is refused. Cases that change the whole process run in a process of
//! their own: this program again, with the case in an environment variable.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

#[path = "common/alone.rs"]
mod alone;
mod common;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use alone::{alone, handle_signal, on_users_signal, refuse_calls};
use common::{pauser, spawn, until};
use quotient_pause::{
    DemoteError, Demoted, Demotion, DetachError, EnterError, Handle, InstallError, PauseError,
    PauseState, Pauser, Region, Settings, Signal, undisturbed, uninterrupted,
};

/// A thread that spins in one region until it is told to stop; it counts its steps. Says at its end whether it was detached.
struct Spinner {
    handle: Handle,
    region: Region,
    steps: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<bool>,
}

impl Spinner {
    fn start() -> Self {
        let steps = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (count, end) = (steps.clone(), stop.clone());
        let (handle, thread) = spawn(move |thread| {
            let ((), end) = thread.region(|| {
                while !end.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            end.is_detached()
        });
        until("the region's begin", || handle.region().is_some());
        Self {
            region: handle.region().unwrap(),
            handle,
            steps,
            stop,
            thread,
        }
    }

    fn moves(&self) -> bool {
        let before = self.steps.load(Ordering::Relaxed);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            if self.steps.load(Ordering::Relaxed) != before {
                return true;
            }
        }
        false
    }

    fn stand(&self) -> quotient_pause::Pause {
        let pause = self.handle.pause(self.region).expect("it spins");
        until("a pause", || pause.state() == PauseState::Standing);
        pause
    }

    fn finish(self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        until("the spinner's end", || self.thread.is_finished());
        self.thread.join().unwrap()
    }
}

#[test]
fn a_signal_that_the_program_handles_is_refused_and_left_alone() {
    alone(
        "a_signal_that_the_program_handles_is_refused_and_left_alone",
        || {
            let users = on_users_signal as *const () as libc::sighandler_t;
            for handler in [users, libc::SIG_IGN] {
                handle_signal(libc::SIGURG, handler);
                let signal = libc::SIGURG;
                assert_eq!(
                    Pauser::install(Settings::default()).err(),
                    Some(InstallError::SignalTaken { signal })
                );
                // SAFETY: asks only; the local is written.
                unsafe {
                    let mut now: libc::sigaction = core::mem::zeroed();
                    libc::sigaction(libc::SIGURG, core::ptr::null(), &raw mut now);
                    assert_eq!(now.sa_sigaction, handler);
                }
            }
            let other = Signal::new(libc::SIGUSR2).unwrap();
            let pauser = Pauser::install(Settings::default().signal(other)).expect("it is free");
            assert_eq!(pauser.signal().number(), libc::SIGUSR2);
            assert_eq!(
                Pauser::install(Settings::default().signal(Signal::new(libc::SIGUSR1).unwrap()))
                    .err(),
                Some(InstallError::OtherSignal {
                    wanted: libc::SIGUSR1,
                    installed: libc::SIGUSR2
                })
            );
        },
    );
}

#[test]
fn signals_that_mean_something_else_are_refused() {
    for value in [
        0,
        -1,
        64_000,
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGSEGV,
        libc::SIGTRAP,
        libc::SIGCHLD,
        32,
        33,
    ] {
        assert_eq!(
            Signal::new(value),
            Err(InstallError::SignalRefused { value })
        );
    }
    for value in [
        libc::SIGURG,
        libc::SIGUSR1,
        libc::SIGRTMIN(),
        libc::SIGRTMAX(),
    ] {
        assert_eq!(Signal::new(value).map(Signal::number), Ok(value));
    }
}

#[test]
fn a_handler_that_is_displaced_later_is_noticed() {
    alone("a_handler_that_is_displaced_later_is_noticed", || {
        let spinner = Spinner::start();
        assert!(pauser().is_in_place());
        handle_signal(
            libc::SIGURG,
            on_users_signal as *const () as libc::sighandler_t,
        );
        let signal = libc::SIGURG;
        assert_eq!(
            spinner.handle.pause(spinner.region).err(),
            Some(PauseError::Displaced { signal })
        );
        assert!(!Pauser::install(Settings::default()).is_ok_and(|pauser| pauser.is_in_place()));
        assert!(spinner.moves());
        // What needs no signal goes on.
        spinner.handle.detach(spinner.region).unwrap().commit();
        assert!(spinner.finish());
    });
}

#[test]
fn a_filter_without_tgkill_is_found_at_set_up() {
    alone("a_filter_without_tgkill_is_found_at_set_up", || {
        refuse_calls(&[libc::SYS_tgkill]);
        assert_eq!(
            Pauser::install(Settings::default()).err(),
            Some(InstallError::Refused {
                call: "tgkill",
                errno: libc::EPERM
            })
        );
    });
}

#[test]
fn detaching_works_without_membarrier() {
    alone("detaching_works_without_membarrier", || {
        refuse_calls(&[libc::SYS_membarrier]);
        let spinner = Spinner::start();
        spinner.handle.detach(spinner.region).unwrap().commit();
        assert_eq!(
            spinner.handle.detach(spinner.region).err(),
            Some(DetachError::AlreadyDetached)
        );
        assert!(spinner.finish());
    });
}

#[test]
fn demotion_falls_back_on_the_old_call() {
    alone("demotion_falls_back_on_the_old_call", || {
        refuse_calls(&[libc::SYS_sched_setattr]);
        let spinner = Spinner::start();
        assert_eq!(
            spinner.handle.demote(Demotion::Nice(3)),
            Ok(Demoted::WithoutSlice)
        );
        spinner.finish();
    });
}

#[test]
fn a_demotion_that_the_system_refuses_says_so() {
    alone("a_demotion_that_the_system_refuses_says_so", || {
        refuse_calls(&[libc::SYS_sched_setattr, libc::SYS_setpriority]);
        let spinner = Spinner::start();
        assert_eq!(
            spinner.handle.demote(Demotion::default()),
            Err(DemoteError::Refused { errno: libc::EPERM })
        );
        // The region can be detached all the same.
        let caught = spinner.handle.detach(spinner.region).unwrap();
        assert!(caught.demote(Demotion::Idle).is_err());
        caught.commit();
        assert!(spinner.finish());
    });
}

#[test]
fn a_demoted_thread_is_lowered_once_and_no_further() {
    let (sender, receiver) = mpsc::channel();
    let (ready, looked) = mpsc::channel();
    let (handle, thread) = spawn(move |thread| {
        let nice = || {
            // SAFETY: takes numbers; 0 is the calling thread.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let before = nice();
        ready.send(()).unwrap();
        receiver.recv().unwrap();
        let lowered = nice();
        let restored = thread.restore_priority();
        (before, lowered, restored, nice())
    });
    looked.recv().unwrap();
    for value in [0, 20, 255] {
        assert_eq!(
            handle.demote(Demotion::Nice(value)),
            Err(DemoteError::Levels { value })
        );
    }
    assert_eq!(handle.demote(Demotion::None), Ok(Demoted::NotAtAll));
    for _ in 0..3 {
        assert!(handle.demote(Demotion::default()).is_ok());
    }
    sender.send(()).unwrap();
    let (before, lowered, restored, after) = thread.join().unwrap();
    assert_eq!(lowered, (before + 10).min(19));
    match restored {
        Ok(()) => assert_eq!(after, before),
        Err(DemoteError::Refused { .. }) => assert_eq!(after, lowered),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(handle.demote(Demotion::default()), Err(DemoteError::Ended));
}

#[test]
fn nested_entries_and_pauses_are_refused() {
    let inner = pauser().enter(|_| pauser().enter(|_| ()).err()).unwrap();
    assert_eq!(inner, Some(EnterError::Nested));
    let spinner = Spinner::start();
    let pause = spinner.stand();
    assert_eq!(
        spinner.handle.pause(spinner.region).err(),
        Some(PauseError::AlreadyPaused)
    );
    // The refused one has not resumed the other.
    assert_eq!(pause.state(), PauseState::Standing);
    assert!(pause.resume());
    assert!(spinner.moves());
    let again = spinner.stand();
    drop(again);
    assert!(spinner.moves(), "a dropped pause leaves it behind");
    spinner.finish();
}

#[test]
fn a_region_in_a_region_is_part_of_it_and_one_outside_is_none() {
    let (value, end) = quotient_pause::region(|| 1);
    assert!(value == 1 && !end.is_detached());
    pauser()
        .enter(|thread| {
            let handle = thread.handle();
            let (inner, outer) = thread.region(|| {
                let whole = handle.region();
                let (inside, end) = quotient_pause::region(|| handle.region());
                assert_eq!((inside, handle.region()), (whole, whole));
                std::thread::scope(|scope| {
                    scope.spawn(|| handle.detach(whole.unwrap()).unwrap().commit());
                });
                end
            });
            assert!(!inner.is_detached(), "the part was detached");
            assert!(outer.is_detached(), "the whole was not");
        })
        .unwrap();
}

#[test]
fn a_paused_thread_uses_no_time_and_a_resumed_one_does() {
    let spinner = Spinner::start();
    let pause = spinner.stand();
    let before = spinner.handle.cpu_time().unwrap();
    assert_eq!(spinner.handle.is_asleep(), Some(true));
    std::thread::sleep(Duration::from_millis(20));
    let used = spinner.handle.cpu_time().unwrap() - before;
    assert!(used < Duration::from_millis(2), "stood and used {used:?}");
    pause.resume();
    until("time to be used", || {
        spinner.handle.cpu_time().unwrap() > before + Duration::from_millis(2)
    });
    spinner.finish();
}

#[test]
fn a_region_that_is_over_cannot_be_asked_for_anything() {
    let (sender, receiver) = mpsc::channel::<()>();
    let (handle, thread) = spawn(move |thread| {
        let region = thread.next_region();
        let ((), _) = thread.region(|| ());
        receiver.recv().unwrap();
        region
    });
    until("the region's end", || handle.region().is_none());
    let thread_number = std::thread::spawn(move || {
        sender.send(()).unwrap();
    });
    let region = thread.join().unwrap();
    thread_number.join().unwrap();
    assert_eq!(handle.detach(region).err(), Some(DetachError::Ended));
    assert_eq!(handle.pause(region).err(), Some(PauseError::Ended));
}

#[test]
fn behind_a_shield_a_region_goes_on_and_stops_when_it_goes() {
    let shielded = Arc::new(AtomicBool::new(true));
    let steps = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (shield, count, end) = (shielded.clone(), steps.clone(), stop.clone());
    let (handle, thread) = spawn(move |thread| {
        let _ = thread.region(|| {
            let outer = uninterrupted();
            let inner = uninterrupted();
            while shield.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            drop(outer);
            drop(inner);
            while !end.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    until("the region's steps", || steps.load(Ordering::Relaxed) > 0);
    let pause = handle.pause(handle.region().unwrap()).unwrap();
    assert_eq!(pause.wait(Duration::from_millis(20)), PauseState::Asked);
    let before = steps.load(Ordering::Relaxed);
    until("steps behind the shield", || {
        steps.load(Ordering::Relaxed) != before
    });
    shielded.store(false, Ordering::Relaxed);
    until("a pause", || pause.state() == PauseState::Standing);
    let before = steps.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(steps.load(Ordering::Relaxed), before);
    assert!(pause.resume());
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    // On a thread without regions a guard is nothing.
    drop(uninterrupted());
}

#[test]
fn a_guard_that_is_kept_for_too_long_or_forgotten_ends() {
    let steps = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (count, end) = (steps.clone(), stop.clone());
    let (handle, thread) = spawn(move |thread| {
        for _ in 0..2 {
            let _ = thread.region(|| {
                while !end.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                    if count.load(Ordering::Relaxed) == 1 {
                        std::mem::forget(undisturbed());
                    }
                }
            });
            end.store(false, Ordering::Relaxed);
        }
    });
    until("the guard", || steps.load(Ordering::Relaxed) > 1);
    let first = handle.region().unwrap();
    let pause = handle.pause(first).unwrap();
    assert_eq!(pause.wait(Duration::from_millis(20)), PauseState::Asked);
    until("that somebody is heard", || {
        // Until it is heard; somebody else may ask something just then.
        let _ = pause.insist();
        pause.state() == PauseState::Standing
    });
    assert_eq!(pause.insist(), Err(PauseError::Ended));
    stop.store(true, Ordering::Relaxed);
    assert!(pause.resume());
    until("the next region", || {
        handle.region().is_some_and(|region| region != first)
    });
    let pause = handle.pause(handle.region().unwrap()).unwrap();
    until("a pause", || pause.state() == PauseState::Standing);
    stop.store(true, Ordering::Relaxed);
    assert!(pause.resume());
    thread.join().unwrap();
    drop(undisturbed());
}

#[test]
fn a_blocked_signal_is_let_through_inside_and_blocked_again_afterwards() {
    fn mask(how: i32) -> bool {
        // SAFETY: every pointer is to a local.
        unsafe {
            let mut set: libc::sigset_t = core::mem::zeroed();
            let mut before: libc::sigset_t = core::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGURG);
            libc::pthread_sigmask(how, &raw const set, &raw mut before);
            libc::sigismember(&raw const before, libc::SIGURG) == 1
        }
    }
    mask(libc::SIG_BLOCK);
    let inside = pauser()
        .enter(|_| {
            let blocked = mask(libc::SIG_BLOCK);
            mask(libc::SIG_UNBLOCK);
            blocked
        })
        .unwrap();
    assert!(!inside, "still blocked inside");
    assert!(mask(libc::SIG_UNBLOCK), "not blocked again");
}

#[test]
fn a_child_of_fork_cannot_ask_and_is_not_stopped() {
    let spinner = Spinner::start();
    let pause = spinner.stand();
    let code = pauser()
        .enter(|thread| {
            let own = thread.handle();
            let mut code = -1;
            let (child, _) = thread.region(|| {
                // SAFETY: the child does what is below: atomic operations and system calls.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let spins = spinner.handle.pause(spinner.region).err();
                    let mine = own.region().map(|region| own.pause(region).err());
                    let refused = spins == Some(PauseError::OtherProcess)
                        && mine == Some(Some(PauseError::OtherProcess))
                        && own.demote(Demotion::None) == Err(DemoteError::OtherProcess);
                    code = i32::from(!refused);
                }
                child
            });
            if child == 0 {
                // The child's region has ended like any other; its own requests reach nobody, itself included.
                // SAFETY: raises the pausing signal at itself, then leaves without destructors.
                unsafe {
                    libc::raise(libc::SIGURG);
                    libc::_exit(code);
                }
            }
            let mut status = 0;
            // SAFETY: writes a local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child died of {status:#x}");
            libc::WEXITSTATUS(status)
        })
        .unwrap();
    assert_eq!(code, 0);
    assert!(pause.resume());
    spinner.finish();
}

#[test]
fn a_process_ends_while_a_thread_is_paused() {
    alone("a_process_ends_while_a_thread_is_paused", || {
        let spinner = Spinner::start();
        std::mem::forget(spinner.stand());
    });
}

#[test]
fn a_process_becomes_another_program_while_a_thread_is_paused() {
    use std::os::unix::process::CommandExt;
    alone(
        "a_process_becomes_another_program_while_a_thread_is_paused",
        || {
            let spinner = Spinner::start();
            std::mem::forget(spinner.stand());
            panic!("{}", Command::new("true").exec());
        },
    );
}

#[test]
fn more_threads_come_and_go_than_there_is_room_for() {
    for _ in 0..5 {
        let threads: Vec<_> = (0..60)
            .map(|_| spawn(|thread| drop(thread.handle())))
            .collect();
        for (_, thread) in threads {
            thread.join().unwrap();
        }
    }
    let spinner = Spinner::start();
    drop(spinner.stand());
    spinner.finish();
}
