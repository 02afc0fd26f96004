//! Others who write code in this process: debuggers, uprobes, other patchers; and others who have descriptors.

#![cfg(all(patching, target_arch = "x86_64"))]
#![allow(named_asm_labels)] // each such site exists once: its function is never inlined

mod common;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::in_mode;
use quotient_keys::{FlipError, Mode, Writer, static_branch_unlikely, static_key, status};

static_key! {
    /// Has sites around code that somebody else writes.
    static AROUND = false;
    /// Has a site that somebody else writes.
    static PROBED = false;
    /// Flipped while descriptors come and go.
    static PLAIN = false;
}

#[inline(never)]
fn around() -> u32 {
    let mut sum = 0;
    if static_branch_unlikely!(AROUND) {
        sum = std::hint::black_box(sum + 1);
    }
    // SAFETY: jumps over filling that nobody executes.
    unsafe {
        core::arch::asm!(
            "jmp 3f",
            ".globl quotient_keys_test_filling",
            "quotient_keys_test_filling:",
            ".skip 1500, 0x90",
            "3:",
            options(nomem, nostack)
        );
    }
    if static_branch_unlikely!(AROUND) {
        sum = std::hint::black_box(sum + 1);
    }
    sum
}

#[inline(never)]
fn probed() -> bool {
    quotient_keys::__site!(
        PROBED,
        false,
        [
            "2:",
            ".globl quotient_keys_test_site",
            "quotient_keys_test_site:",
            "jmp {slow}"
        ]
    )
}

#[inline(never)]
fn plain() -> bool {
    static_branch_unlikely!(PLAIN)
}

unsafe extern "C" {
    #[link_name = "quotient_keys_test_filling"]
    static FILLING: u8;
    #[link_name = "quotient_keys_test_site"]
    static SITE: u8;
}

fn own_memory() -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open("/proc/self/mem");
    file.expect("a process may write its own memory")
}

fn byte_at(memory: &File, address: usize) -> u8 {
    let mut byte = [0];
    memory
        .read_exact_at(&mut byte, address as u64)
        .expect("is mapped");
    byte[0]
}

#[test]
fn bytes_between_sites_are_left_to_others() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    assert_eq!((AROUND.status().sites, around()), (2, 0));
    let address = (&raw const FILLING).addr() + 700;
    let stop = AtomicBool::new(false);
    let (mut lost, mut came_back) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                AROUND.enable().expect("nothing hinders");
                AROUND.disable().expect("nothing hinders");
            }
        });
        let memory = own_memory();
        let until = Instant::now() + Duration::from_millis(1000);
        while Instant::now() < until {
            for byte in [0xCC, 0x90] {
                memory
                    .write_all_at(&[byte], address as u64)
                    .expect("is mapped");
                let pause_until = Instant::now() + Duration::from_micros(20);
                while Instant::now() < pause_until {
                    std::hint::spin_loop();
                }
                let differs = byte_at(&memory, address) != byte;
                lost += u32::from(differs && byte == 0xCC);
                came_back += u32::from(differs && byte == 0x90);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        (lost, came_back),
        (0, 0),
        "breakpoints lost, and removed ones back"
    );
}

#[test]
fn a_site_that_got_its_jump_back_is_ours_again() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    let memory = own_memory();
    let address = (&raw const SITE).addr();
    for _ in 0..2 {
        assert!(
            matches!(byte_at(&memory, address), 0xA8 | 0xA9),
            "the site is patched"
        );
        // What a uprobe that goes puts back: the byte of the file.
        let jump = match byte_at(&memory, address) {
            0xA8 => 0xEB,
            _ => 0xE9,
        };
        memory
            .write_all_at(&[jump], address as u64)
            .expect("is mapped");
        assert_eq!((probed(), PROBED.status().foreign), (false, 0));
        let on = PROBED.enable().expect("the site holds a form of ours");
        assert_eq!((on.flipped, probed()), (1, true));
        let off = PROBED.disable().expect("nothing hinders");
        assert_eq!((off.flipped, probed()), (1, false));
        assert_eq!(PROBED.status().patched, PROBED.status().sites);
    }
}

/// Writes one line of the kernel's tracing interface; `false` where that is not allowed.
fn trace(path: &str, line: &str) -> bool {
    let path = format!("/sys/kernel/tracing/{path}");
    let file = OpenOptions::new().append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .is_ok()
}

#[test]
fn a_key_outlives_a_real_uprobe() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    assert!(!probed());
    let memory = own_memory();
    let address = (&raw const SITE).addr();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process may read its own");
    let offset = maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (
            usize::from_str_radix(start, 16).ok()?,
            usize::from_str_radix(end, 16).ok()?,
        );
        let file_offset = usize::from_str_radix(fields.nth(1)?, 16).ok()?;
        (start..end)
            .contains(&address)
            .then(|| file_offset + address - start)
    });
    let offset = offset.expect("the site is mapped");
    let program = std::env::current_exe().expect("a test has a file");
    let name = format!("quotient_keys_{}", std::process::id());
    if !trace(
        "uprobe_events",
        &format!("p:{name}/site {}:{offset:#x}\n", program.display()),
    ) || !trace(&format!("events/{name}/site/enable"), "1")
    {
        eprintln!("skipped: no right to set a uprobe here");
        return;
    }
    let (under_probe, outcome) = (byte_at(&memory, address), probed());
    let enabled_under_probe = PROBED.enable();
    trace(&format!("events/{name}/site/enable"), "0");
    let patient_until = Instant::now() + Duration::from_secs(10);
    while byte_at(&memory, address) == 0xCC && Instant::now() < patient_until {
        std::thread::sleep(Duration::from_millis(5));
    }
    trace("uprobe_events", &format!("-:{name}/site\n"));
    assert_eq!((under_probe, outcome), (0xCC, false));
    assert!(matches!(
        enabled_under_probe,
        Err(FlipError::UnexpectedOpcode { found: 0xCC, .. })
    ));
    assert!(!probed(), "the key has kept its value");
    for on in [true, false, true, false] {
        PROBED.set(on).expect("the uprobe is gone");
        assert_eq!(probed(), on);
    }
    assert_eq!(PROBED.status().foreign, 0);
}

/// The descriptor that the engine keeps.
fn kept_descriptor() -> Option<i32> {
    let listed = std::fs::read_dir("/proc/self/fd").expect("a process may read its own");
    let mut memories = listed.flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let is_memory = target.to_str()?.starts_with("/proc/") && target.ends_with("mem");
        is_memory.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    memories.next()
}

#[test]
fn a_strangers_file_under_the_kept_number_is_not_written() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    PLAIN.enable().expect("nothing hinders");
    let kept = kept_descriptor().expect("the memory file is kept open");
    let path = std::env::temp_dir().join(format!("quotient-keys-{}", std::process::id()));
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .clone();
    let mut stranger = options.open(&path).expect("a writable folder");
    std::fs::remove_file(&path).expect("was just made");
    // SAFETY: closes the engine's descriptor, as `closefrom` does, and gives its number to another file.
    assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), kept) }, kept);
    for on in [false, true, false] {
        let receipt = PLAIN.set(on).expect("nothing hinders");
        assert!(receipt.writes > 0 && plain() == on);
    }
    let mut content = Vec::new();
    stranger.rewind().expect("a plain file");
    stranger.read_to_end(&mut content).expect("a plain file");
    assert!(content.is_empty(), "the stranger's file was written");
    assert_eq!(status().writer, Some(Writer::ProcMem));
    // SAFETY: the number of the copy above.
    unsafe { libc::close(kept) };
    PLAIN.enable().expect("nothing hinders");
    PLAIN.disable().expect("nothing hinders");
    assert!(!plain());
}

#[test]
fn a_raw_child_writes_its_own_memory() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    PLAIN.enable().expect("nothing hinders");
    PLAIN.disable().expect("nothing hinders");
    assert_eq!(PLAIN.status().patched, 1);
    // SAFETY: a fork that runs no handlers. The child flips and leaves; the engine's lock is free, since this test has the
    // engine for itself.
    unsafe {
        let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
        if child == 0 {
            let is_right = PLAIN.enable().is_ok() && plain();
            libc::_exit(i32::from(!is_right));
        }
        let mut child_status = -1;
        assert_eq!(
            libc::waitpid(child as i32, &raw mut child_status, 0),
            child as i32
        );
        assert_eq!(child_status, 0, "the child's branch follows its key");
    }
    assert_eq!(
        (PLAIN.status().patched, plain()),
        (1, false),
        "the parent's code is as it was"
    );
    PLAIN.enable().expect("nothing hinders");
    assert!(plain());
    PLAIN.disable().expect("nothing hinders");
}

#[test]
fn the_end_of_descriptors_changes_nothing() {
    let Some(_guard) = in_mode(Mode::Biased) else {
        return;
    };
    PLAIN.enable().expect("nothing hinders");
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills and reads locals.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let none = libc::rlimit {
            rlim_cur: 0,
            ..limit
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none), 0);
    }
    let results =
        [false, true, false].map(|on| (PLAIN.set(on).map(|receipt| receipt.writes), plain() == on));
    // SAFETY: reads a local.
    unsafe { assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0) };
    for result in results {
        assert!(matches!(result, (Ok(1..), true)), "{result:?}");
    }
    assert_eq!(status().writer, Some(Writer::ProcMem));
}
