//! The limit that a trace was recorded under: where that is known from, and what of the trace contradicts it. What is played is the load without it,
//! so that a wrong one makes a wrong load.

use quotient_sim::replay::{Contradiction, RecordedLimit, Recording, Restored};

use super::Given;
use super::doubts::{Doubts, RESTORED_MAX_PERCENT};

/// Removing a limit makes nothing use less than this part of what it used under it, per cent.
const USED_MIN_PERCENT: u64 = 97;

/// The limit that this was recorded under: given, noted in the trace, or found by its shape. `None` also of one that never bound.
pub(super) fn limit_of(
    whole: &Recording,
    limited: &Recording,
    given: Option<Given>,
    doubts: &mut Doubts,
    notes: &mut Vec<String>,
) -> Option<RecordedLimit> {
    let said = match given {
        Some(Given::None) => {
            about_none(limited, "none was given", doubts);
            return None;
        }
        Some(Given::Limit(limit)) => Some((limited.given_limit(limit), "as given")),
        None => {
            let noted = limited.noted_limit_of(whole);
            noted.map(|limit| (limit, "as the trace notes"))
        }
    };
    let (limit, origin) = match said {
        Some((limit, origin)) if limit.permille() >= u64::from(whole.cpus) * 1_000 => {
            let never = format!(
                "a limit of {:.2} CPUs, {origin}, never bound: the trace shows {} CPUs",
                limit.permille() as f64 / 1000.0,
                whole.cpus
            );
            about_none(limited, &never, doubts);
            notes.push(never);
            return None;
        }
        Some((limit, origin)) => {
            if let Some(found) = limited.contradiction(&limit, whole.cpus) {
                about_contradiction(&limit, origin, &found, doubts);
            }
            (limit, origin)
        }
        None => (limited.recognise_limit()?, "by its shape"),
    };
    let restored = limited.restored_by(&limit);
    notes.push(format!(
        "recorded under a limit, {}: {:.1} ms in every {:.0} ms, throttled in {:.0} % of the periods; {} bursts with {:.0} % of the work seem to hold {} arrivals",
        origin,
        limit.quota_ns as f64 / 1e6,
        limit.period_ns as f64 / 1e6,
        limit.throttled_permille as f64 / 10.0,
        restored.merged,
        restored.merged_permille as f64 / 10.0,
        restored.pieces,
    ));
    about_cut(&limit, &restored, doubts);
    Some(limit)
}

/// The trace shows throttles where there was no limit that could make them, by what was said. Who says so may know better than a shape.
fn about_none(limited: &Recording, said: &str, doubts: &mut Doubts) {
    if let Some(found) = limited.recognise_limit() {
        doubts.add(
            false,
            format!(
                "by its shape this was throttled, by a limit of {}, and {said}: played as if there had been none",
                worded(&found)
            ),
        );
    }
}

/// What was used, or how it was throttled, is not that limit's doing. Nothing can be played then: without a limit that there was not, the load is
/// none that there was.
fn about_contradiction(
    limit: &RecordedLimit,
    origin: &str,
    found: &Contradiction,
    doubts: &mut Doubts,
) {
    let why = match found {
        Contradiction::Used(beyond) => format!(
            "from {:.1} to {:.1} s it used {:.0} ms where that gives {:.0}",
            beyond.from_ns as f64 / 1e9,
            beyond.to_ns as f64 / 1e9,
            beyond.used_ns as f64 / 1e6,
            beyond.quota_ns as f64 / 1e6
        ),
        Contradiction::Throttled(other) => {
            format!("it was throttled as by one of {}", worded(other))
        }
    };
    doubts.add(
        true,
        format!(
            "this was not recorded under a limit of {}, {origin}: {why}; give the one that there was (--recorded-limit QUOTA/PERIOD, or none), or record again",
            worded(limit)
        ),
    );
}

/// The limit that it was recorded under hides arrivals.
fn about_cut(limit: &RecordedLimit, restored: &Restored, doubts: &mut Doubts) {
    if restored.merged_permille > 10 * RESTORED_MAX_PERCENT {
        doubts.add(
            false,
            format!(
                "when {:.0} % of the work arrived is a guess, since a limit of {:.2} CPUs held it back: intervals hold both extremes, and below that limit the middle says little",
                restored.merged_permille as f64 / 10.0,
                limit.permille() as f64 / 1000.0
            ),
        );
    }
}

/// Played without the limit that it was recorded under, it uses less than it used under that.
pub(super) fn about_use(limit: &RecordedLimit, used: u64, free: u64, doubts: &mut Doubts) {
    if u128::from(free) * 100 < u128::from(used) * u128::from(USED_MIN_PERCENT) {
        doubts.add(
            true,
            format!(
                "played without the limit of {:.2} CPUs that it was recorded under, it uses {:.2} CPUs, and used {:.2} under it: what is played is not what was recorded; record without a limit",
                limit.permille() as f64 / 1000.0,
                free as f64 / 1000.0,
                used as f64 / 1000.0
            ),
        );
    }
}

/// A limit as a person sets it.
fn worded(limit: &RecordedLimit) -> String {
    format!(
        "{:.1} ms in every {:.0} ms",
        limit.quota_ns as f64 / 1e6,
        limit.period_ns as f64 / 1e6
    )
}
