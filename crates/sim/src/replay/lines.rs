//! Lines of ftrace's text, for tests that write a trace by hand.

use std::fmt::Display;

/// One line, ended.
pub(super) fn line(who: &str, cpu: u32, flags: &str, micros: u64, what: impl Display) -> String {
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    format!("{who} [{cpu:03}] {flags} {seconds}.{rest:06}: {what}\n")
}

/// A switch from who (name, number, state afterwards) to whom.
pub(super) fn switch(from: (&str, u32, &str), to: (&str, u32)) -> String {
    format!(
        "sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state={} ==> next_comm={} next_pid={} next_prio=120",
        from.0, from.1, from.2, to.0, to.1
    )
}

/// Somebody is woken, who ran last on that CPU.
pub(super) fn waking(name: &str, pid: u32, cpu: u32) -> String {
    format!("sched_waking: comm={name} pid={pid} prio=120 target_cpu={cpu:03}")
}
