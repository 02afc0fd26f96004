//! The end of the host's runtime under preemption, where all polls are on threads of ours.
//!
//! # What tokio does
//! A runtime waits for the polls of its workers, drops the tasks that are left, and only then stops its driver. The guard of `host_end` is
//! among the first tasks to be dropped; what its drop waits for, the runtime waits for before it stops the driver. A worker drops it on a
//! runtime with workers; so `drop(runtime)` waits for us as for any worker, while `shutdown_timeout` and `shutdown_background`, which wait
//! for workers for so long or not at all, return in their time, and the worker goes on.
//!
//! # Who counts
//! A carrier takes a *pass* (one count of `host_end`'s word) for each turn, before it looks at its queue, and gives it back after the turn.
//! The pass is the thread's: a poll that loses its virtual CPU keeps it until the bearer has done with the task, and who takes the virtual CPU
//! over takes a pass of its own. A poll that blocks in place lends its pass and is counted as lent meanwhile.
//!
//! # Steps
//! | step | on | does |
//! |---|---|---|
//! | E1 | the guard | marks: the flag first, then the word |
//! | E2 | the guard | closes the scheduler: spawns are refused, every task is aborted, limits go, everybody is woken; who stands goes on |
//! | E3 | the guard | waits until all passes are back |
//! | E4 | carriers | drop the futures of the tasks that they choose, each in its group, instead of polling them |
//! | E5 | the guard | waits until no task is left, or only what nobody could drop; returns |
//!
//! *No poll begins after E3:* a pass that was taken before the mark is waited for, and with it all polls of that turn (it looks at the flag
//! before each, and so ends after the one that is under way). A turn that begins later finds the mark in the word, by the same
//! read-modify-write that would have counted it, and with it (release, acquire) the flag: it has no pass and polls nothing. A bearer looks
//! before it polls its task once more, and gives it back.
//! *No wake-up is lost:* who gives the last pass back notifies under the lock under which E3 looks. E5 asks a sum of several counts, so it
//! looks again each millisecond; the end of a runtime may cost that.
//! *Who stands is let go on:* E2 ends limits and freezes, as each end of a scheduler does, the proxies are chosen by turns, and who was
//! stopped for good by a kill may run from here on. Carriers turn on without passes: E3 waits for none of them to choose a proxy.
//! *No deadlock:* the guard holds no lock while it waits, is on no thread of ours, and nothing that E4 does needs the runtime. Rescue, aging and
//! the watch go on, in threads of ours. If a task drops its own current-thread runtime, in its poll, the guard is on the thread of that
//! poll: its pass is lent meanwhile, E3 is bounded, and there is no E5, which would wait for that task.
//!
//! # Bounds
//! - With workers: none, as long as a poll in progress computes, as in tokio. But a poll may also *sleep* until the runtime drops something: in
//!   tokio's `block_in_place`, which cannot tell us, it may wait for a task that the guard's worker is to drop next, or, having dropped the runtime
//!   itself, for that worker. So polls that have used no processor for [`STILL`], all of them together, are waited for no longer.
//! - A current-thread runtime: [`ON_CALLER`] for all of it, since `shutdown_background` is here on the same thread and is to return. In tokio
//!   nobody could have dropped the runtime during a poll, so there is no rule to follow; a second is what stand-ins have.
//! - E5: [`STILL`] without a task less.
//!
//! Beyond a bound things are as after `shutdown_timeout` in tokio: polls go on, and may find timers that panic.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotient_core::Nanos;

use super::PATIENCE;
use crate::local;
use crate::preempt::Preempting;
use crate::shared::{CLOSED, Shared};

/// How long polls that use no processor are waited for. Unit: time. Five seconds: beyond what a slow disk or a busy machine takes.
const STILL: Duration = Duration::from_secs(5);
/// What counts as use of a processor. Unit: nanoseconds. One millisecond in [`STILL`]: a thread that only wakes now and then uses less.
const USED: Nanos = Nanos(1_000_000);
/// How long all of it may take on the thread of whoever drops the runtime. Unit: time.
const ON_CALLER: Duration = PATIENCE;
/// How often E3 looks at processor times. Unit: time.
const LOOK: Duration = Duration::from_millis(50);
/// How often E5 looks. Unit: time.
const SOON: Duration = Duration::from_millis(1);

/// E2, E3 and E5. `is_on_caller`: this is the thread of whoever drops the runtime.
pub(super) fn end(shared: &Arc<Shared>, preempting: &Preempting, is_on_caller: bool) {
    shared.close();
    {
        // A task that ends its own runtime is not stopped under the watch's lock.
        let _shield = shared.shield();
        preempting.set_all_free();
    }
    let due = is_on_caller.then(|| Instant::now() + ON_CALLER);
    let is_inside = local::current_vcpu(shared).is_some();
    let pass = local::lend_pass(shared);
    let all_back = wait_for_polls(shared, preempting, due);
    drop(pass);
    if all_back && !is_inside {
        wait_for_futures(shared, preempting, due);
    }
}

/// E3; whether all passes are back.
fn wait_for_polls(shared: &Shared, preempting: &Preempting, due: Option<Instant>) -> bool {
    let (mut used, mut at) = (Nanos::ZERO, Instant::now());
    loop {
        let now = Instant::now();
        let left = due.map_or(LOOK, |due| due.saturating_duration_since(now).min(LOOK));
        if shared.host_end.wait(left) {
            return true;
        }
        if due.is_some_and(|due| Instant::now() >= due) {
            return false;
        }
        let time = preempting.polls_have_used(shared);
        // Less than before: one has ended.
        if time < used || time.saturating_sub(used) >= USED {
            (used, at) = (time, Instant::now());
        } else if at.elapsed() >= STILL {
            return false;
        }
    }
}

/// E5. Polls that block in place keep their tasks, and the proxies of those that were borne.
fn wait_for_futures(shared: &Shared, preempting: &Preempting, due: Option<Instant>) {
    let (mut live, mut at) = (usize::MAX, Instant::now());
    loop {
        let kept = preempting.borne() + shared.host_end.lent();
        let is_over = match shared.live() {
            0 => shared.phase() == CLOSED && shared.last_rites.are_over(),
            live => live <= kept,
        };
        if is_over || due.is_some_and(|due| Instant::now() >= due) {
            return;
        }
        if shared.live() < live {
            (live, at) = (shared.live(), Instant::now());
        } else if at.elapsed() >= STILL {
            return;
        }
        std::thread::sleep(SOON);
    }
}
