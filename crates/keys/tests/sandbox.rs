//! Sandboxes: each case is this program again, in a child process that takes rights away from itself and then flips.
//! Keys must stay right, the status must tell what is missing, and nothing may crash.

#![cfg(all(patching, target_arch = "x86_64"))]

use std::process::Command;

use quotient_keys::{
    FlipError, Mode, SoftReason, Writer, allow_writable_code, patch_all, set_mode, soften_all,
    static_branch, static_branch_likely, static_key, status,
};

static_key! {
    /// Flipped in the sandbox.
    static CAGED = false;
}

/// Names the case in the child's environment.
const CASE: &str = "QUOTIENT_KEYS_SANDBOX_CASE";

#[inline(never)]
fn outcomes() -> (bool, bool) {
    (static_branch!(CAGED), static_branch_likely!(CAGED))
}

/// Flips a few times and checks every outcome.
fn flips_work() {
    for _ in 0..3 {
        CAGED.enable().expect("flips work in this sandbox");
        assert_eq!(outcomes(), (true, true));
        CAGED.disable().expect("flips work in this sandbox");
        assert_eq!(outcomes(), (false, false));
    }
}

/// The application asks for patching, here where it may not be possible.
fn asked_flips_work() {
    patch_all();
    flips_work();
}

fn assert_soft(reason: SoftReason) {
    let status = CAGED.status();
    assert_eq!(
        (status.mode, status.soft_reason, status.patched),
        (Mode::Soft, Some(reason), 0)
    );
    assert_eq!(status.writer, None);
    assert!(
        set_mode(Mode::Biased).is_err(),
        "the mode stays out of reach"
    );
}

/// From now on this thread's calls of the given numbers fail with `EPERM`.
fn deny(calls: &[libc::c_long]) {
    filter(calls, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
}

/// From now on a call of one of the given numbers ends the process.
fn kill_on(calls: &[libc::c_long]) {
    filter(calls, libc::SECCOMP_RET_KILL_PROCESS);
}

fn statement(code: u32, jump_true: u8, jump_false: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k: value,
    }
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

fn answer(action: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;

fn filter(calls: &[libc::c_long], action: u32) {
    // The call's number is the first field of what the filter sees.
    let mut program = vec![load(0)];
    for &call in calls {
        program.push(statement(IF_EQUAL, 0, 1, call as u32));
        program.push(answer(action));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    install(&mut program);
}

/// What an `mprotect` asks for.
enum Protection {
    /// Whatever is executable.
    Executable,
    /// Code as it should be.
    ReadExecute,
}

/// From now on such a call of `mprotect` has that result.
fn on_mprotect(protection: Protection, action: u32) {
    /// Offset of the third argument's lower half in what the filter sees.
    const THIRD_ARGUMENT: u32 = 32;
    let (test, value) = match protection {
        Protection::Executable => (IF_ANY_BIT, libc::PROT_EXEC),
        Protection::ReadExecute => (IF_EQUAL, libc::PROT_READ | libc::PROT_EXEC),
    };
    install(&mut [
        load(0),
        statement(IF_EQUAL, 0, 3, libc::SYS_mprotect as u32),
        load(THIRD_ARGUMENT),
        statement(test, 0, 1, value as u32),
        answer(action),
        answer(libc::SECCOMP_RET_ALLOW),
    ]);
}

fn install(program: &mut [libc::sock_filter]) {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which lives until the calls return.
    let results = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ),
        )
    };
    assert_eq!(
        results,
        (0, 0),
        "seccomp filters are part of every kernel this runs on"
    );
}

/// Memory-deny-write-execute for the whole process. `false`: the kernel is older than 6.3.
fn deny_write_execute() -> bool {
    /// `PR_MDWE_REFUSE_EXEC_GAIN`.
    const REFUSE_EXEC_GAIN: libc::c_ulong = 1;
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) == 0 }
}

fn run_case(case: &str) {
    match case {
        "no write-execute" => {
            if deny_write_execute() {
                asked_flips_work();
                assert_eq!(CAGED.status().writer, Some(Writer::ProcMem));
                assert_ne!(CAGED.status().mode, Mode::Soft);
            }
        }
        "no memory file" => {
            deny(&[libc::SYS_open, libc::SYS_openat]);
            asked_flips_work();
            assert_soft(SoftReason::Unpatchable);
            allow_writable_code(true);
            asked_flips_work();
            assert_eq!(CAGED.status().writer, Some(Writer::Mprotect));
            for mode in Mode::ALL {
                set_mode(mode).expect("every mode works with either writer");
                flips_work();
            }
        }
        "memory file not writable" => {
            deny(&[libc::SYS_pwrite64]);
            allow_writable_code(true);
            asked_flips_work();
            assert_eq!(CAGED.status().writer, Some(Writer::Mprotect));
        }
        "no writer" => {
            deny(&[libc::SYS_open, libc::SYS_openat, libc::SYS_mprotect]);
            allow_writable_code(true);
            asked_flips_work();
            assert_soft(SoftReason::Unpatchable);
        }
        "no write-execute and no memory file" => {
            deny(&[libc::SYS_open, libc::SYS_openat]);
            if deny_write_execute() {
                allow_writable_code(true);
                asked_flips_work();
                assert_soft(SoftReason::Unpatchable);
            }
        }
        "executable pages stay as they are" => {
            on_mprotect(Protection::Executable, libc::SECCOMP_RET_KILL_PROCESS);
            patch_all();
            for mode in Mode::ALL {
                set_mode(mode).expect("nothing hinders");
                flips_work();
            }
        }
        "pages cannot be locked again" => {
            deny(&[libc::SYS_open, libc::SYS_openat]);
            let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
            on_mprotect(Protection::ReadExecute, denied);
            allow_writable_code(true);
            asked_flips_work();
            assert_eq!(status().left_writable, Some(libc::EPERM));
        }
        "no barrier" => {
            deny(&[libc::SYS_membarrier]);
            asked_flips_work();
            assert_soft(SoftReason::NoBarrier);
        }
        "a barrier is death, and nobody asked" => {
            kill_on(&[libc::SYS_membarrier, libc::SYS_mprotect]);
            flips_work();
            soften_all().expect("nothing to take back");
            set_mode(Mode::Soft).expect("is in force");
            flips_work();
            assert_eq!((status().mode, status().patched), (Mode::Soft, 0));
        }
        "a barrier is death, and the operator says soft" => {
            kill_on(&[libc::SYS_membarrier, libc::SYS_mprotect]);
            asked_flips_work();
            assert_soft(SoftReason::Environment);
            assert!(CAGED.status().sites >= 2, "sites are known all the same");
        }
        other => run_case_of_later_loss(other),
    }
    println!("held: {case}");
}

/// Cases in which the rights are lost after keys were patched.
fn run_case_of_later_loss(case: &str) {
    match case {
        "softened before" => {
            patch_all();
            flips_work();
            soften_all().expect("nothing hinders yet");
            deny(&[
                libc::SYS_open,
                libc::SYS_openat,
                libc::SYS_mprotect,
                libc::SYS_membarrier,
            ]);
            flips_work();
            assert_eq!(CAGED.status().soft_reason, Some(SoftReason::Requested));
        }
        "barrier lost later" => {
            patch_all();
            flips_work();
            deny(&[libc::SYS_membarrier]);
            for _ in 0..3 {
                assert_eq!(
                    CAGED.enable(),
                    Err(FlipError::BarrierFailed { errno: libc::EPERM })
                );
                assert_eq!(
                    (CAGED.count(), outcomes()),
                    (0, (false, false)),
                    "a failed flip has not happened"
                );
            }
        }
        "memory file lost later" => {
            patch_all();
            flips_work();
            // The descriptor is kept.
            deny(&[libc::SYS_open, libc::SYS_openat, libc::SYS_mprotect]);
            flips_work();
            assert!(CAGED.status().patched > 0);
        }
        "writers lost later" => {
            patch_all();
            flips_work();
            deny(&[
                libc::SYS_pwrite64,
                libc::SYS_open,
                libc::SYS_openat,
                libc::SYS_mprotect,
            ]);
            for _ in 0..3 {
                assert_eq!(
                    CAGED.enable(),
                    Err(FlipError::Unpatchable { errno: libc::EPERM })
                );
                assert_eq!(
                    (CAGED.count(), outcomes()),
                    (0, (false, false)),
                    "a failed flip has not happened"
                );
            }
        }
        "writers lost while nothing is patched" => {
            CAGED.enable().expect("nothing hinders yet");
            set_mode(Mode::Biased).expect("nothing hinders yet");
            // Of the two sites only the likely one is patched now. Take it back, then lose the rights.
            CAGED.disable().expect("nothing hinders yet");
            soften_all().expect("nothing hinders yet");
            deny(&[libc::SYS_open, libc::SYS_openat, libc::SYS_mprotect]);
            patch_all();
            assert_eq!(
                (status().mode, status().soft_reason),
                (Mode::Soft, Some(SoftReason::Unpatchable))
            );
            flips_work();
        }
        other => panic!("no case is named {other}"),
    }
}

/// The child's part: does nothing unless a case is named.
#[test]
#[ignore = "run by the other test, in a child process"]
fn sandboxed() {
    if let Ok(case) = std::env::var(CASE) {
        run_case(&case);
    }
}

#[test]
fn keys_stay_right_in_every_sandbox() {
    if patch_all() == Mode::Soft {
        eprintln!("skipped: nothing to lose here: {:?}", status().soft_reason);
        return;
    }
    let program = std::env::current_exe().expect("the test knows its own path");
    for case in [
        "no write-execute",
        "no memory file",
        "memory file not writable",
        "no writer",
        "no write-execute and no memory file",
        "executable pages stay as they are",
        "pages cannot be locked again",
        "no barrier",
        "a barrier is death, and nobody asked",
        "a barrier is death, and the operator says soft",
        "softened before",
        "barrier lost later",
        "memory file lost later",
        "writers lost later",
        "writers lost while nothing is patched",
    ] {
        let child = Command::new(&program)
            .args(["--exact", "sandboxed", "--ignored", "--nocapture"])
            .env(CASE, case)
            .envs(
                case.ends_with("says soft")
                    .then_some(("QUOTIENT_KEYS", "soft")),
            )
            .output()
            .expect("the test can start itself");
        let output = String::from_utf8_lossy(&child.stdout);
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(
            child.status.success() && output.contains(&format!("held: {case}")),
            "{case}: {}\n{output}\n{errors}",
            child.status
        );
    }
}
