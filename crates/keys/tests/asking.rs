//! A program whose application has not asked for it keeps the code that it was loaded with. One test, since the asking holds
//! for the whole process.

#![cfg(patching)]

use std::time::Duration;

use quotient_keys::{
    Mode, SoftReason, patch, static_branch_likely, static_branch_unlikely, static_key, status,
    transaction,
};

static_key! {
    /// Off by default.
    static OFF = false;
    /// On by default.
    static ON = true;
}

#[inline(never)]
fn outcomes() -> (bool, bool) {
    (static_branch_unlikely!(OFF), static_branch_likely!(ON))
}

/// Kilobytes of this program's executable mappings that are its own copy: pages of code that somebody has written.
fn rewritten_kb() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("a process may read its own");
    let program = std::env::current_exe().expect("a test has a file");
    let program = program.display().to_string();
    let mut is_code = false;
    let mut sum = 0;
    for line in smaps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (first, second) = (fields.next(), fields.next());
        if first.is_some_and(|word| word.contains('-')) {
            is_code = second == Some("r-xp") && line.ends_with(&program);
        } else if is_code && first == Some("Anonymous:") {
            sum += second
                .and_then(|amount| amount.parse::<u64>().ok())
                .expect("an amount in kilobytes");
        }
    }
    sum
}

fn threads_of_the_engine() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a process may read its own");
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.trim() == "quotient-keys")
        .count()
}

/// Everything that flips, with its outcomes.
fn flips_work() {
    for _ in 0..3 {
        OFF.enable().expect("nothing hinders");
        ON.disable().expect("nothing hinders");
        assert_eq!(outcomes(), (true, false));
        transaction(&[
            quotient_keys::Change::Disable(&OFF),
            quotient_keys::Change::Enable(&ON),
        ])
        .expect("nothing hinders");
        assert_eq!(outcomes(), (false, true));
    }
    drop(
        OFF.hold()
            .expect("nothing hinders")
            .deferred(Duration::from_millis(1)),
    );
    assert_eq!(outcomes(), (false, true));
}

#[test]
fn code_is_not_rewritten_before_the_application_asks() {
    assert_eq!(outcomes(), (false, true));
    flips_work();
    let before = status();
    assert!(before.sites >= 2);
    assert_eq!(
        (before.mode, before.soft_reason, before.patched),
        (Mode::Soft, Some(SoftReason::NotAsked), 0)
    );
    assert_eq!((before.barriers, before.writer), (0, None));
    assert_eq!((rewritten_kb(), threads_of_the_engine()), (0, 0));

    if patch() == Mode::Soft {
        assert_ne!(status().soft_reason, Some(SoftReason::NotAsked));
        return;
    }
    let after = status();
    assert_eq!((after.patched, after.soft_reason), (after.sites, None));
    assert!(rewritten_kb() > 0, "the measure sees rewritten code");
    flips_work();
}
