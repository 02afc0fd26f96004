//! A figure beside what it should be.

use serde::Serialize;

/// Which side of the bound is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Sense {
    AtLeast,
    AtMost,
    Exactly,
}

/// A figure, its bound, and whether it keeps it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// What was measured, with its unit.
    pub what: String,
    /// The figure.
    pub value: f64,
    sense: Sense,
    /// What was asked for.
    pub bound: f64,
    /// Whether the figure keeps it.
    pub is_met: bool,
}

impl Goal {
    /// At least `bound` is good.
    pub fn at_least(what: &str, value: f64, bound: f64) -> Self {
        Self::new(what, value, Sense::AtLeast, bound, value >= bound)
    }

    /// At most `bound` is good.
    pub fn at_most(what: &str, value: f64, bound: f64) -> Self {
        Self::new(what, value, Sense::AtMost, bound, value <= bound)
    }

    /// Nothing but `bound` is good.
    pub fn exactly(what: &str, value: f64, bound: f64) -> Self {
        Self::new(what, value, Sense::Exactly, bound, value == bound)
    }

    fn new(what: &str, value: f64, sense: Sense, bound: f64, is_met: bool) -> Self {
        Self {
            what: what.to_owned(),
            value,
            sense,
            bound,
            is_met,
        }
    }
}

/// Prints goals, one a line, after an empty line; nothing without goals.
pub fn print(goals: &[Goal]) {
    if !goals.is_empty() {
        println!();
    }
    for goal in goals {
        let sense = match goal.sense {
            Sense::AtLeast => ">=",
            Sense::AtMost => "<=",
            Sense::Exactly => "= ",
        };
        println!(
            "{:<58} {:>9.2}  goal {sense} {:<6} {}",
            goal.what,
            goal.value,
            goal.bound,
            if goal.is_met { "met" } else { "MISSED" }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_itself_is_met() {
        for goal in [
            Goal::at_least("a", 2.0, 2.0),
            Goal::at_most("a", 2.0, 2.0),
            Goal::exactly("a", 2.0, 2.0),
        ] {
            assert!(goal.is_met);
        }
        assert!(!Goal::at_least("a", 1.9, 2.0).is_met);
        assert!(!Goal::at_most("a", 2.1, 2.0).is_met);
        assert!(!Goal::exactly("a", 2.1, 2.0).is_met);
        assert!(!Goal::at_least("a", f64::NAN, 2.0).is_met);
    }
}
