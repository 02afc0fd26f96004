//! The sentences that say what happened, from the figures alone: they claim nothing that the rows do not show.

use quotient_trace::chart::duration;

use super::Facts;
use crate::demo::disturbance::Validity;
use crate::demo::mode::Mode;
use crate::demo::results::Row;

/// What happened, in a few sentences; of a run that was disturbed, that and why.
pub fn sentence(facts: &Facts, rows: &[Row], validity: &Validity) -> String {
    if let Some(why) = &validity.disturbed {
        return format!(
            "Disturbed: not judged. {}. The table shows what was seen, and compares nothing: run it again when the machine is idle.",
            capitalised(why)
        );
    }
    let find = |mode| rows.iter().find(|row| row.mode == mode);
    let (alone, tokio) = (find(Mode::Alone), find(Mode::Tokio));
    let mut sentences = Vec::new();
    let (taken, counted) = validity.counted();
    if let Some(why) = validity.first_reason() {
        sentences.push(format!("{counted} of {taken} rounds count ({why})."));
    }
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

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
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
    use crate::demo::disturbance::tests::sample_validity;
    use crate::report::checks::tests::row;
    use crate::report::html::tests::facts;

    #[test]
    fn nothing_is_compared_where_the_yardstick_was_disturbed() {
        let rows = [
            row(Mode::Alone, 8_997.0, 500),
            row(Mode::QuotientAlone, 12_213.0, 500),
            row(Mode::Quotient, 5_038.0, 900),
        ];
        let facts = facts();
        let why = "alone: 8997 req/s, where the victim alone did 12213 in another slot";
        let text = sentence(&facts, &rows, &sample_validity(Some(why)));
        assert!(
            text.starts_with("Disturbed: not judged. Alone: 8997 req/s"),
            "{text}"
        );
        assert!(!text.contains('%') && !text.contains("kept"), "{text}");
        let text = sentence(&facts, &rows, &sample_validity(None));
        assert!(text.contains("kept 56 % of the 8997 req/s"), "{text}");
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
