//! Times the cases of a block: all of them in every round, forwards and backwards in turn, so that whatever the machine
//! does besides meets all.

use std::time::Duration;

use quotient_keys::{patch, soften_all};

use super::super::statistics::Spread;
use super::runtime::Stage;
use super::{Case, Player, Row};
use crate::failure::Failure;

/// Rounds, each of which plays every case. Odd, so that the median is a round.
const TIMED: usize = 21;

/// Times `cases`; the first is the base. Instructions are left open.
///
/// # Errors
/// When a case cannot be played.
pub fn measure(cases: &[(Case, u32)], rounds: u64) -> Result<Vec<Row>, Failure> {
    let mut stage = match cases.first() {
        Some((case, _)) if case.player == Player::Runtime => Some(Stage::new(case.depth, false)?),
        _ => None,
    };
    let mut times = vec![Vec::new(); cases.len()];
    // One round more, unmeasured: allocators and caches warm up.
    for timed in 0..=TIMED {
        let mut order: Vec<usize> = (0..cases.len()).collect();
        if timed % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let elapsed = play(&cases[index].0, rounds, stage.as_mut())?;
            if timed > 0 {
                times[index].push(elapsed.as_secs_f64() * 1e3);
            }
        }
    }
    let row = |index: usize| {
        let (case, run) = cases[index];
        let time_spread = Spread::of(&times[index]);
        let ratios: Vec<f64> = times[index]
            .iter()
            .zip(&times[0])
            .map(|(own, base)| own / base)
            .collect();
        Row {
            case,
            run,
            rounds,
            instructions: None,
            branches: None,
            time_ms: time_spread.map_or(0.0, |spread| spread.median),
            time_spread,
            instructions_pct: None,
            branches_pct: None,
            time_pct: Spread::of(&ratios).map_or(0.0, |spread| (spread.median - 1.0) * 100.0),
        }
    };
    Ok((0..cases.len()).map(row).collect())
}

fn play(case: &Case, rounds: u64, stage: Option<&mut Stage>) -> Result<Duration, Failure> {
    if let Some(stage) = stage {
        stage.limit(case.period_us)?;
        if case.variant.is_patched() {
            return stage.play(rounds);
        }
        // As if nobody had asked: every site is the load and the branch that it was compiled to.
        soften_all().map_err(Failure::during("cannot take the sites back"))?;
        let played = stage.play(rounds);
        patch();
        return played;
    }
    case.play(rounds)
}
