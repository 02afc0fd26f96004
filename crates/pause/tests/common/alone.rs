//! Processes of their own for what changes the whole process, and such changes.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::HANG;

const CASE: &str = "QUOTIENT_PAUSE_CASE";

/// Runs the test of that name in a process of its own, in which `body` is run instead. The body's panic fails the test.
pub fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        body();
        // Not through the harness: the case may have left the process in any state.
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > HANG {
            child.kill().unwrap();
            panic!("{name} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success(), "{name}: {status}");
}

/// A handler of the program under test.
pub extern "C" fn on_users_signal(_signal: i32) {}

pub fn handle_signal(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: a handler of the right type that does nothing, or a constant; every pointer is to a local.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler;
        assert_eq!(
            libc::sigaction(signal, &raw const action, core::ptr::null_mut()),
            0
        );
    }
}

/// From now on these system calls fail with `EPERM` in this process.
pub fn refuse_calls(calls: &[libc::c_long]) {
    let statement = |code: u32, jump_true: u8, jump_false: u8, value: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: jump_true,
        jf: jump_false,
        k: value,
    };
    // The number of the call is the first word of what a filter sees.
    let mut program = vec![statement(
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        0,
        0,
        0,
    )];
    for call in calls {
        let number = u32::try_from(*call).unwrap();
        program.push(statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            number,
        ));
        let answer = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        program.push(statement(libc::BPF_RET | libc::BPF_K, 0, 0, answer));
    }
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        0,
        0,
        libc::SECCOMP_RET_ALLOW,
    ));
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap(),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program lives during the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter
            ),
            0
        );
    }
}
