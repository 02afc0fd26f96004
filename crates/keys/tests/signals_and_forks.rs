//! A process full of signals that also forks, while 100 threads flip and evaluate: no stray `SIGTRAP`, no child with a
//! breakpoint left in it; and traps that are not ours go where they went before.

#![cfg(all(patching, target_arch = "x86_64"))]

mod common;
#[path = "common/hammer.rs"]
mod hammer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::in_mode;
use hammer::{HAMMERED, evaluate, expected};
use quotient_keys::{FlipError, Mode, ModeError, set_mode, static_key, status};

static_key! {
    /// Flipped by many threads.
    static CROWDED = false;
}

/// Threads beside the test's own.
const THREADS: usize = 100;

/// How long each mode runs.
const DURATION: Duration = Duration::from_millis(700);

/// Traps that reached the handler that was there before the engine's.
static STRAY_TRAPS: AtomicU64 = AtomicU64::new(0);

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_stray_trap(_signal: i32) {
    STRAY_TRAPS.fetch_add(1, Ordering::SeqCst);
}

/// A signal handler that executes sites, half-way through anything.
extern "C" fn on_alarm(_signal: i32) {
    std::hint::black_box(evaluate());
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

static SIGTRAP_USER: Mutex<()> = Mutex::new(());

/// Puts our own `SIGTRAP` handler in place before the engine installs its handler; once.
fn install_handlers() -> MutexGuard<'static, ()> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    let guard = SIGTRAP_USER.lock().unwrap_or_else(PoisonError::into_inner);
    if !INSTALLED.swap(true, Ordering::SeqCst) {
        // SAFETY: handlers of the type that `signal` wants, which do nothing but atomic additions and evaluating sites.
        unsafe {
            libc::signal(
                libc::SIGTRAP,
                on_stray_trap as *const () as libc::sighandler_t,
            );
            libc::signal(libc::SIGALRM, on_alarm as *const () as libc::sighandler_t);
        }
    }
    guard
}

fn set_timer(period_us: libc::suseconds_t) {
    let period = libc::timeval {
        tv_sec: 0,
        tv_usec: period_us,
    };
    let timer = libc::itimerval {
        it_interval: period,
        it_value: period,
    };
    // SAFETY: reads a local.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, core::ptr::null_mut()) };
}

/// Forks; the child checks its sites, flips, checks again and leaves. Returns the child's exit status.
fn fork_and_check() -> i32 {
    // SAFETY: the child calls nothing that needs a lock another thread may hold, except the engine's, which is held
    // across the fork, and the allocator's, which glibc protects likewise.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(check_as_child()) };
    }
    assert!(child > 0, "fork failed");
    let mut child_status = 0;
    // SAFETY: waits for our own child and fills a local. A signal may interrupt it.
    while unsafe { libc::waitpid(child, &raw mut child_status, 0) } < 0 {}
    child_status
}

fn check_as_child() -> i32 {
    set_timer(0);
    if status().foreign != 0 {
        return 1;
    }
    for on in [true, false, true, false] {
        let is_right = HAMMERED.set(on).is_ok() && evaluate() == expected(on);
        if !is_right {
            return 2;
        }
    }
    if status().foreign == 0 { 0 } else { 3 }
}

fn crowd(mode: Mode) {
    let Some(_guard) = in_mode(mode) else { return };
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let mut children = 0;
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if number % 2 == 0 {
                        let held = CROWDED.hold().expect("nothing hinders");
                        assert!(quotient_keys::static_branch!(CROWDED), "held, but off");
                        drop(held);
                        HAMMERED
                            .set(number % 4 == 0)
                            .expect("enabled and disabled, never counted");
                    } else {
                        std::hint::black_box(evaluate());
                    }
                    std::thread::yield_now();
                }
            });
        }
        set_timer(500);
        while started.elapsed() < DURATION {
            assert_eq!(fork_and_check(), 0, "{mode}: a child found something wrong");
            children += 1;
        }
        set_timer(0);
        stop.store(true, Ordering::Relaxed);
    });
    assert!(children > 0 && SIGNALS.load(Ordering::Relaxed) > 0);
    assert_eq!(
        STRAY_TRAPS.load(Ordering::SeqCst),
        0,
        "{mode}: a trap was not recognised"
    );
    assert_eq!(status().foreign, 0, "{mode}: a site was left behind");
    HAMMERED.disable().expect("nothing hinders");
    assert_eq!(evaluate(), expected(false));
    assert!(!quotient_keys::static_branch!(CROWDED));
}

#[test]
fn a_crowd_among_signals_and_forks() {
    let _handlers = install_handlers();
    for mode in [Mode::Biased, Mode::Strict, Mode::Int3, Mode::OneByOne] {
        crowd(mode);
    }
}

#[test]
fn foreign_traps_are_chained() {
    let _handlers = install_handlers();
    let Some(_guard) = in_mode(Mode::Strict) else {
        return;
    };
    let before = STRAY_TRAPS.load(Ordering::SeqCst);
    // SAFETY: a breakpoint of our own; the handler installed above counts it and returns behind it.
    unsafe { core::arch::asm!("int3") };
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(libc::SIGTRAP) };
    assert_eq!(STRAY_TRAPS.load(Ordering::SeqCst), before + 2);
    STRAY_TRAPS.store(before, Ordering::SeqCst);
}

#[test]
fn a_replaced_handler_is_noticed() {
    let _handlers = install_handlers();
    let Some(_guard) = in_mode(Mode::Strict) else {
        return;
    };
    // SAFETY: takes SIGTRAP away from the engine, and gives it back below.
    unsafe {
        let mut ours: libc::sigaction = core::mem::zeroed();
        let mut other: libc::sigaction = core::mem::zeroed();
        other.sa_sigaction = on_stray_trap as *const () as usize;
        assert_eq!(
            libc::sigaction(libc::SIGTRAP, &raw const other, &raw mut ours),
            0
        );
        let before = status().displaced;
        assert_eq!(HAMMERED.enable(), Err(FlipError::HandlerDisplaced));
        assert!(status().displaced > before);
        assert_eq!((evaluate(), HAMMERED.count()), (expected(false), 0));
        assert_eq!(
            libc::sigaction(libc::SIGTRAP, &raw const ours, core::ptr::null_mut()),
            0
        );
    }
    set_mode(Mode::Strict).expect("the handler is back");
    assert_eq!(
        HAMMERED.enable().expect("nothing hinders").barriers,
        4,
        "likely and unlikely sites, two each"
    );
    HAMMERED.disable().expect("nothing hinders");
}

/// Blocks every signal in this thread, as many libraries do in theirs.
fn block_all_signals() {
    // SAFETY: fills a local and hands it to the kernel.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, core::ptr::null_mut());
    }
}

/// What the default mode does beside a thread that blocks `SIGTRAP`, and what the modes with breakpoints do.
#[test]
fn a_thread_that_blocks_traps_is_not_killed() {
    let _handlers = install_handlers();
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_all_signals();
            started.store(true, Ordering::SeqCst);
            while !stop.load(Ordering::Relaxed) {
                std::hint::black_box(evaluate());
            }
        });
        while !started.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        set_mode(status().default_mode).expect("is available");
        for _ in 0..500 {
            HAMMERED.enable().expect("nothing hinders");
            HAMMERED.disable().expect("nothing hinders");
        }
        for mode in [Mode::Strict, Mode::Int3, Mode::OneByOne] {
            let refused = set_mode(mode);
            assert!(
                matches!(refused, Err(ModeError::Flip(FlipError::TrapBlocked { .. }))),
                "{mode}: {refused:?}"
            );
        }
        assert_eq!(status().mode, status().default_mode);
        stop.store(true, Ordering::SeqCst);
    });
    set_mode(Mode::Strict).expect("nobody blocks traps any more");
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_all_signals();
            started.store(true, Ordering::SeqCst);
            while !stop.load(Ordering::Relaxed) {
                std::hint::black_box(evaluate());
            }
        });
        while !started.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let refused = HAMMERED.enable();
        assert!(
            matches!(refused, Err(FlipError::TrapBlocked { .. })),
            "{refused:?}"
        );
        assert_eq!(
            evaluate(),
            expected(false),
            "a failed flip has not happened"
        );
        stop.store(true, Ordering::SeqCst);
    });
}

/// The child's part of the next test: does nothing unless asked.
#[test]
#[ignore = "run by another test, in a child process"]
fn runs_into_a_foreign_breakpoint() {
    if std::env::var_os("QUOTIENT_KEYS_FOREIGN_BREAKPOINT").is_some()
        && in_mode(Mode::Strict).is_some()
    {
        // SAFETY: kills the process, which is what is tested.
        unsafe { core::arch::asm!("int3") };
        println!("survived");
    }
}

#[test]
fn without_another_handler_a_foreign_trap_kills() {
    use std::os::unix::process::ExitStatusExt;
    // Starting a program blocks signals for a while, which others would notice.
    let _handlers = install_handlers();
    if quotient_keys::patch() == Mode::Soft {
        return;
    }
    let output =
        std::process::Command::new(std::env::current_exe().expect("a test knows its path"))
            .args([
                "--exact",
                "runs_into_a_foreign_breakpoint",
                "--ignored",
                "--nocapture",
            ])
            .env("QUOTIENT_KEYS_FOREIGN_BREAKPOINT", "1")
            .output()
            .expect("a test can start itself");
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGTRAP),
        "{:?}",
        String::from_utf8_lossy(&output.stdout)
    );
}
