//! Code that one would not like to stop anywhere, stopped everywhere. `QUOTIENT_PAUSE_MILLIS` makes each run longer.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use common::{HANG, Numbers, pauser, under_pauses};

#[test]
fn allocations_survive_pauses_inside_the_allocator() {
    under_pauses(3, |index, round| {
        let mut numbers = Numbers(round * 31 + index as u64 + 1);
        let mut kept: Vec<Vec<u8>> = Vec::new();
        for step in 0..200 {
            let size = 1 << numbers.below(18);
            kept.push(vec![step as u8; size as usize]);
            if numbers.below(3) == 0 {
                kept.swap_remove(numbers.below(kept.len() as u64) as usize);
            }
        }
        let mut grown = String::new();
        for step in 0..500 {
            grown.push_str(&step.to_string());
        }
        assert_eq!(grown.len(), 1_390);
    });
}

#[test]
fn a_mutex_held_across_pauses_still_excludes() {
    let counter = Arc::new(Mutex::new((0_u64, 0_u64)));
    let shared = counter.clone();
    under_pauses(3, move |_, _| {
        for _ in 0..50 {
            let mut both = shared.lock().unwrap();
            both.0 += 1;
            std::hint::black_box(&mut both);
            both.1 += 1;
            assert_eq!(both.0, both.1);
        }
    });
    let both = counter.lock().unwrap();
    assert_eq!(both.0, both.1);
    assert!(both.0 > 0);
}

#[test]
fn a_reader_writer_lock_held_across_pauses_still_excludes() {
    let map = Arc::new(RwLock::new(HashMap::<u64, u64>::new()));
    under_pauses(3, move |index, round| {
        if index == 0 {
            let mut map = map.write().unwrap();
            for key in 0..16 {
                map.insert(key, round);
            }
        } else {
            let map = map.read().unwrap();
            let first = map.get(&0).copied();
            assert!((0..16).all(|key| map.get(&key).copied() == first));
        }
    });
}

#[test]
fn reads_and_writes_restart() {
    under_pauses(2, |_, round| {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let message = round.to_le_bytes();
        let writing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(300));
            writer.write_all(&message).expect("writes");
        });
        // `read` and not `read_exact`, which would hide an interruption: SA_RESTART must.
        let mut got = [0_u8; 8];
        let length = reader.read(&mut got).expect("a restarted read");
        assert_eq!((length, got), (8, message));
        writing.join().unwrap();
    });
}

#[test]
fn sleeps_that_do_not_restart_say_so_and_last_as_long_as_asked() {
    under_pauses(2, |_, _| {
        let asked = libc::timespec {
            tv_sec: 0,
            tv_nsec: 500_000,
        };
        let started = Instant::now();
        // SAFETY: reads a local.
        let result = unsafe { libc::nanosleep(&raw const asked, core::ptr::null_mut()) };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
        // The standard library goes on with the rest.
        std::thread::sleep(Duration::from_micros(200));
        assert!(started.elapsed() >= Duration::from_micros(200));
    });
}

#[test]
fn errno_is_kept() {
    under_pauses(2, |index, _| {
        let mine = 1_000 + i32::try_from(index).unwrap();
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = mine };
        for _ in 0..20_000 {
            // SAFETY: as above.
            let now = std::hint::black_box(unsafe { *libc::__errno_location() });
            assert_eq!(now, mine, "somebody has written errno");
        }
    });
}

#[test]
fn panics_in_and_through_regions_leave_the_thread_usable() {
    thread_local! {
        static DROPS: Cell<u64> = const { Cell::new(0) };
    }
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPS.set(DROPS.get() + 1);
        }
    }
    // Thousands of expected panics would print as many backtraces.
    std::panic::set_hook(Box::new(|_| {}));
    under_pauses(2, |_, round| {
        let before = DROPS.get();
        let result = std::panic::catch_unwind(|| {
            let _first = Counted;
            let _second = Counted;
            assert!(round == u64::MAX, "expected");
        });
        assert!(result.is_err());
        assert_eq!(DROPS.get(), before + 2);
    });
    // Through the region's own end.
    pauser()
        .enter(|thread| {
            let handle = thread.handle();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                thread.region(|| assert!(handle.region().is_none(), "expected"))
            }));
            assert!(result.is_err());
            assert!(handle.region().is_none(), "the region has no end");
            let (value, end) = thread.region(|| 7);
            assert!(value == 7 && !end.is_detached());
        })
        .unwrap();
    let _ = std::panic::take_hook();
}

#[test]
fn threads_that_enter_and_leave_all_the_time_are_never_met_by_somebody_elses_request() {
    let latest = Arc::new(Mutex::new(None));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let coming: Vec<_> = (0..2)
        .map(|_| {
            let (latest, stop) = (latest.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut count = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let latest = latest.clone();
                    let thread = std::thread::spawn(move || {
                        let mut step = 0_u64;
                        pauser()
                            .enter(|thread| {
                                *latest.lock().unwrap() = Some(thread.handle());
                                let _ = thread.region(|| {
                                    for _ in 0..2_000 {
                                        step = std::hint::black_box(step + 1);
                                    }
                                });
                            })
                            .unwrap();
                        step
                    });
                    assert_eq!(thread.join().unwrap(), 2_000);
                    count += 1;
                }
                count
            })
        })
        .collect();
    let started = Instant::now();
    let mut stood = 0;
    while started.elapsed() < common::duration() * 2 || stood == 0 {
        assert!(started.elapsed() < HANG, "nobody was ever stopped");
        let handle: Option<quotient_pause::Handle> = latest.lock().unwrap().clone();
        let Some(handle) = handle else { continue };
        let _ = handle.demote(quotient_pause::Demotion::Nice(1));
        let Some(region) = handle.region() else {
            continue;
        };
        if let Ok(pause) = handle.pause(region) {
            pause.wait(Duration::from_millis(2));
            stood += u64::from(pause.resume());
        }
    }
    stop.store(true, Ordering::Relaxed);
    for thread in coming {
        assert!(thread.join().expect("no panic") > 0);
    }
}

#[test]
fn fork_and_exec_inside_regions_work() {
    under_pauses(2, |_, _| {
        let status = std::process::Command::new("true").status().expect("runs");
        assert!(status.success());
        // SAFETY: the child does nothing but atomic operations and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: leaves without destructors. A child that is stopped here would never be resumed.
            unsafe { libc::_exit(7) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: writes a local.
        while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
            assert_eq!(
                std::io::Error::last_os_error().kind(),
                std::io::ErrorKind::Interrupted
            );
        }
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
    });
}

static PROFILED: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_profile(_signal: i32) {
    PROFILED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_storm_of_profiling_signals_gets_along() {
    // SAFETY: a handler of the right type that adds to an atomic; every pointer is to a local.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_profile as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        assert_eq!(
            libc::sigaction(libc::SIGPROF, &raw const action, core::ptr::null_mut()),
            0
        );
        let period = libc::timeval {
            tv_sec: 0,
            tv_usec: 1_000,
        };
        let timer = libc::itimerval {
            it_interval: period,
            it_value: period,
        };
        assert_eq!(
            libc::setitimer(libc::ITIMER_PROF, &raw const timer, core::ptr::null_mut()),
            0
        );
    }
    under_pauses(3, |index, round| {
        let mut sum = 0_u64;
        for step in 0..50_000 {
            sum = std::hint::black_box(sum ^ (step * round + index as u64));
        }
        std::hint::black_box(format!("{sum}"));
    });
    // SAFETY: all zeroes stops the timer.
    unsafe {
        let timer: libc::itimerval = core::mem::zeroed();
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, core::ptr::null_mut());
    }
    assert!(PROFILED.load(Ordering::Relaxed) > 0, "no storm");
}

#[test]
fn threads_that_are_born_in_a_region_have_a_clean_mask() {
    under_pauses(2, |_, _| {
        let blocked = std::thread::spawn(|| {
            // SAFETY: asks only; the set is a local.
            unsafe {
                let mut mask: libc::sigset_t = core::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask);
                [libc::SIGURG, libc::SIGTERM, libc::SIGPROF]
                    .iter()
                    .any(|signal| libc::sigismember(&raw const mask, *signal) == 1)
            }
        });
        assert!(!blocked.join().unwrap(), "the handler's mask leaked");
    });
}

/// Alternate stacks are the standard library's: it finds overflows with them.
#[test]
fn the_alternate_stack_stays_the_threads_own() {
    fn alternate() -> (usize, usize) {
        // SAFETY: asks only; the description is a local.
        unsafe {
            let mut stack: libc::stack_t = core::mem::zeroed();
            libc::sigaltstack(core::ptr::null(), &raw mut stack);
            (stack.ss_sp.addr(), stack.ss_size)
        }
    }
    thread_local! {
        static FIRST: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }
    under_pauses(2, |_, _| {
        let now = alternate();
        let first = FIRST.get().unwrap_or(now);
        FIRST.set(Some(first));
        assert_eq!(first, now);
        for _ in 0..5_000 {
            std::hint::black_box(0);
        }
    });
}
