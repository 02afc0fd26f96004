//! Logs that say what cannot be: they are refused, with the line and what is allowed, before anybody walks through them.

use std::ops::ControlFlow;

use quotient_trace::{Discard, ReadError, Reader, SPAN_MAX};

const HEAD: &str = "{\"quotient_trace\":1}";
const GROUP: &str = "{\"group\":{\"id\":1,\"path\":\"a\",\"parent\":0}}";
const TICK: &str = "{\"time\":1000,\"cpu\":0,\"event\":\"tick\"}";

/// What comes of a log of these lines, up to so many of which may be left out.
fn read(lines: &[&str], skipped: u64) -> Result<u64, ReadError> {
    let text = lines.join("\n") + "\n";
    let mut reader = Reader::open(text.as_bytes())?;
    reader.skip_bad(skipped);
    let progress = reader.pump(&mut Discard, |_| ControlFlow::Continue(()))?;
    Ok(progress.events)
}

fn refused(lines: &[&str]) -> String {
    read(lines, 0).expect_err(&lines.join("\n")).to_string()
}

fn at(nanos: u64) -> String {
    format!("{{\"time\":{nanos},\"cpu\":0,\"event\":\"tick\"}}")
}

/// Hazard: one digit too many in a time, and whoever plays the trace plays centuries.
#[test]
fn a_time_beyond_a_day_is_refused_with_its_line_and_the_gap() {
    let day = SPAN_MAX.as_nanos();
    assert_eq!(read(&[HEAD, TICK, &at(1_000 + day)], 0).ok(), Some(2));
    let said = refused(&[HEAD, TICK, &at(1_001 + day)]);
    assert!(
        said.starts_with("line 3: time stamp 86400.000001001 is 86400.000000001 s behind"),
        "{said}"
    );
    assert!(said.contains("allowed are 0..=86400 s"), "{said}");
    let said = refused(&[HEAD, TICK, &at(u64::MAX)]);
    assert!(said.starts_with("line 3: "), "{said}");
    // The one before may be the damaged one: then both are named.
    let said = refused(&[HEAD, &at(u64::MAX), TICK]);
    assert!(
        said.contains("line 3: time stamp 0.000001000") && said.contains("18446744073.709551615"),
        "{said}"
    );
    // It is one bad line.
    assert_eq!(read(&[HEAD, TICK, &at(u64::MAX), TICK], 1).ok(), Some(2));
}

#[test]
fn limits_that_nothing_has_are_refused() {
    let limit = |quota: i64, period: u32| {
        format!(
            "{{\"time\":0,\"cpu\":0,\"event\":{{\"set_limit\":{{\"group\":1,\"quota\":{quota},\"period_us\":{period}}}}}}}"
        )
    };
    for (quota, period, words) in [
        (10_000_000, 0, "a period_us in 1000..=1000000, not 0"),
        (10_000_000, 1_000_001, "not 1000001"),
        (
            0,
            100_000,
            "a quota in 1000000..=9223372036854775807 ns, not 0",
        ),
        (-5, 100_000, "not -5"),
    ] {
        let said = refused(&[HEAD, GROUP, &limit(quota, period)]);
        assert!(
            said.starts_with("line 3, column ") && said.contains(words),
            "{said}"
        );
    }
    assert_eq!(
        read(&[HEAD, GROUP, &limit(1_000_000, 1_000)], 0).ok(),
        Some(1)
    );
    assert_eq!(
        read(&[HEAD, GROUP, &limit(i64::MAX, 100_000)], 0).ok(),
        Some(1)
    );
    // The runtime says of limits before anybody of their groups ran, which is what defines these.
    assert_eq!(read(&[HEAD, &limit(10_000_000, 100_000)], 0).ok(), Some(1));
    let burst = "{\"time\":0,\"cpu\":0,\"event\":{\"set_burst\":{\"group\":1,\"burst\":-1}}}";
    let said = refused(&[HEAD, GROUP, burst]);
    assert!(said.contains("a burst in 0..="), "{said}");
}

#[test]
fn groups_that_are_nobodys_or_their_own_are_refused() {
    let group = |id: u32, parent: u32| {
        format!("{{\"group\":{{\"id\":{id},\"path\":\"g{id}\",\"parent\":{parent}}}}}")
    };
    let said = refused(&[HEAD, &group(1, 1), TICK]);
    assert!(
        said.starts_with("line 2, column ") && said.contains("parent of group 1"),
        "{said}"
    );
    let said = refused(&[HEAD, &group(1, 2), &group(2, 3), &group(3, 1), TICK]);
    assert!(said.starts_with("line 4, "), "{said}");
    // The root is its own parent, a child may come first, and a number may be used again.
    let whole = [
        &group(0, 0),
        &group(2, 1),
        &group(1, 0),
        &group(2, 0),
        &group(1, 2),
    ];
    let whole: Vec<&str> = whole.into_iter().map(String::as_str).collect();
    assert_eq!(
        read(&[&[HEAD], &whole[..], &[TICK]].concat(), 0).ok(),
        Some(1)
    );
    let task = "{\"task\":{\"id\":1,\"name\":\"t\",\"group\":1}}";
    let attach = "{\"time\":0,\"cpu\":0,\"event\":{\"attach\":{\"task\":1,\"group\":1}}}";
    for line in [task, attach] {
        let said = refused(&[HEAD, line, TICK]);
        assert!(
            said.contains("a group that was defined before, not 1"),
            "{said}"
        );
        assert!(read(&[HEAD, GROUP, line, TICK], 0).is_ok(), "{line}");
        // What defined it may have been left out.
        assert!(read(&[HEAD, "nonsense", line, TICK], 1).is_ok(), "{line}");
    }
}

#[test]
fn processors_that_nobody_can_have_are_refused() {
    let on = |cpu: u32| format!("{{\"time\":0,\"cpu\":{cpu},\"event\":\"tick\"}}");
    assert_eq!(read(&[HEAD, &on(8_191)], 0).ok(), Some(1));
    for cpu in [8_192, 4_000_000_000] {
        let said = refused(&[HEAD, &on(cpu)]);
        assert!(
            said.contains("line 2, column 11: expected a cpu in 0..=8191, not "),
            "{said}"
        );
    }
    let text = "a-1 [9000] d..2. 1.000001: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120";
    assert!(refused(&[text]).contains("a cpu in 0..=8191, not 9000"));
}

/// Hazard: the head of a log was cut off, with the definitions that it had, and every task is in the root.
#[test]
fn a_log_without_its_first_line_is_refused() {
    for line in [GROUP, TICK] {
        let said = refused(&[line, TICK]);
        assert!(
            said.contains(
                "line 1, column 1: expected the first line of a log, {\"quotient_trace\":1}"
            ),
            "{said}"
        );
    }
    assert!(read(&["", HEAD, TICK], 0).is_ok());
}
