//! The sentences that say what happened, from the figures alone: they claim nothing that the rows do not show.

use quotient_trace::chart::duration;

use super::Facts;
use crate::demo::mode::Mode;
use crate::demo::results::Row;

/// The victim alone does the same in each round. If its fastest round is so many times its slowest, then what it met on the
/// machine differed more than what the set-ups are to show. Default 2: two quiet rounds differ by a fifth.
const ROUNDS_DIFFER: f64 = 2.0;

/// What happened, in a few sentences.
pub fn sentence(facts: &Facts, rows: &[Row]) -> String {
    let find = |mode| rows.iter().find(|row| row.mode == mode);
    let (alone, tokio) = (find(Mode::Alone), find(Mode::Tokio));
    let mut sentences = Vec::new();
    sentences.extend(alone.and_then(disturbed));
    if let (Some(alone), Some(tokio)) = (alone, tokio) {
        sentences.push(format!(
            "Beside {} hogs on one tokio runtime the victim's p99 went from {} to {}, with {} answered.",
            facts.hogs,
            duration(alone.p99_us),
            duration(tokio.p99_us),
            answered(tokio)
        ));
    }
    if let Some(split) = find(Mode::TwoRuntimes) {
        sentences.push(format!(
            "With the hogs on a second runtime, today's practice, it was {}, with {} answered.",
            duration(split.p99_us),
            answered(split)
        ));
    }
    if let (Some(quotient), Some(tokio)) = (find(Mode::Quotient), tokio) {
        sentences.push(format!(
            "In two Quotient groups of equal weight it was {}, {}, with {} answered, while the hogs used {:.2} CPU.",
            duration(quotient.p99_us),
            compared(tokio.p99_us, quotient.p99_us),
            answered(quotient),
            quotient.hog_cpu
        ));
    }
    if let (Some(alone), Some(quotient)) = (alone, find(Mode::Quotient)) {
        sentences.push(format!(
            "Sending as fast as it could, the victim kept {} of the {:.0} req/s it has alone.",
            part(quotient.capacity_rps, alone.capacity_rps),
            alone.capacity_rps
        ));
    }
    if let (Some(alone), Some(capped)) = (alone, find(Mode::QuotientCapped)) {
        sentences.push(format!(
            "With the hogs limited to 5 % of the CPUs it kept {}, at a p99 of {}.",
            part(capped.capacity_rps, alone.capacity_rps),
            duration(capped.p99_us)
        ));
    }
    if let (Some(alone), Some(quotient)) = (alone, find(Mode::QuotientAlone)) {
        sentences.push(format!(
            "Alone on Quotient it reached {} of what it reaches alone on tokio.",
            part(quotient.capacity_rps, alone.capacity_rps)
        ));
    }
    sentences.join(" ")
}

/// A warning, if the rounds do not compare.
fn disturbed(alone: &Row) -> Option<String> {
    let (least, most) = alone.capacity_range_rps;
    (most > least * ROUNDS_DIFFER).then(|| {
        format!(
            "Something else used this machine: alone, the victim did {least:.0} req/s in one round and {most:.0} in another, so do not trust what follows, and run it again when the machine is idle."
        )
    })
}

fn answered(row: &Row) -> String {
    format!("{:.0} of {:.0} req/s", row.victim_rps, row.offered_rps)
}

/// How `after` compares with `before`, in latency.
fn compared(before: u64, after: u64) -> String {
    let ratio = before as f64 / after.max(1) as f64;
    match ratio {
        10.0.. => format!("{ratio:.0} times better than tokio"),
        1.05..10.0 => format!("{ratio:.1} times better than tokio"),
        0.95..1.05 => "the same as tokio".to_owned(),
        _ => format!("{:.1} times worse than tokio", 1.0 / ratio),
    }
}

fn part(value: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * value / whole.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_met_another_machine_are_not_compared_in_silence() {
        let alone = |least, most| crate::report::checks::tests::row_with_range((least, most));
        assert_eq!(disturbed(&alone(15_000.0, 18_800.0)), None);
        let warning = disturbed(&alone(3_657.0, 18_801.0)).unwrap_or_default();
        assert!(
            warning.contains("3657 req/s") && warning.contains("18801"),
            "{warning}"
        );
    }

    #[test]
    fn it_says_worse_when_it_is_worse() {
        assert_eq!(compared(900_000, 2_000), "450 times better than tokio");
        assert_eq!(compared(3_000, 2_000), "1.5 times better than tokio");
        assert_eq!(compared(2_000, 2_000), "the same as tokio");
        assert_eq!(compared(2_000, 4_000), "2.0 times worse than tokio");
        assert_eq!(part(45.0, 90.0), "50 %");
    }
}
