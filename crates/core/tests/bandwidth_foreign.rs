//! CPU time that was spent beside the run queues (metered threads, blocking functions, foreign tasks) under a limit: it is
//! a debt of the group, to the nanosecond, which the group's refills pay before its tasks run on.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{Config, Limit, Nanos};

const POLL: u64 = 50_000;

fn limit(quota_ms: u64, period_ms: u64) -> Limit {
    Limit::new(Nanos::from_millis(quota_ms), Nanos::from_millis(period_ms))
}

/// What the refills of an idle past would have brought is not there to pay for time that was spent after it.
#[test]
fn an_idle_past_does_not_pay_for_foreign_time_that_came_after_it() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(10, 100)));
    machine.spawn(0, &group, Work::Once { run: MILLI });
    machine.run_until(10 * SECOND);
    // Below what the pool may owe, so that it is the idle time that is asked for.
    group.add_foreign_cpu_time(Nanos(18 * MILLI), Nanos(machine.now));
    machine.spawn(0, &group, Work::Hog { chunk: POLL });
    machine.run_until(10 * SECOND + 100 * MILLI - 1);
    assert_eq!(usage(&group), 19 * MILLI, "8 ms are owed: no task runs");
    machine.run_until(10 * SECOND + 200 * MILLI - 1);
    assert_eq!(
        usage(&group),
        21 * MILLI,
        "the next 10 ms pay for them first"
    );
    assert!(group.bandwidth_account().is_balanced());
}
