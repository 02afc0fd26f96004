//! Median and spread of a handful of rounds.

use serde::{Deserialize, Serialize};

/// Five numbers that say where rounds fell. Quartiles are interpolated between the two nearest rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The best round.
    pub min: f64,
    /// A quarter of the rounds were better.
    pub p25: f64,
    /// The figure that is reported.
    pub median: f64,
    /// A quarter of the rounds were worse.
    pub p75: f64,
    /// The worst round.
    pub max: f64,
}

impl Spread {
    /// `None` without rounds.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let quantile = |fraction: f64| {
            let position = fraction * (sorted.len() - 1) as f64;
            let below = position.floor() as usize;
            let above = position.ceil() as usize;
            sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
        };
        (!sorted.is_empty()).then(|| Self {
            min: quantile(0.0),
            p25: quantile(0.25),
            median: quantile(0.5),
            p75: quantile(0.75),
            max: quantile(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_those_of_the_sorted_rounds() {
        let spread = Spread::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).expect("there are rounds");
        let expected = Spread {
            min: 1.0,
            p25: 2.0,
            median: 3.0,
            p75: 4.0,
            max: 5.0,
        };
        assert_eq!(spread, expected);
    }

    #[test]
    fn an_even_number_of_rounds_is_interpolated() {
        assert_eq!(
            Spread::of(&[1.0, 2.0]).map(|spread| spread.median),
            Some(1.5)
        );
        assert_eq!(Spread::of(&[7.0]).map(|spread| spread.p75), Some(7.0));
        assert_eq!(Spread::of(&[]), None);
    }
}
