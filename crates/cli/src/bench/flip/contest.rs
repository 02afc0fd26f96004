//! The ratios that are promised: 56 dense sites, flipped one by one, in the batch, in the biased way and by the crate
//! `static-keys`. Each is a ratio within one block of measurements that follow each other at once, so that whatever the
//! machine does besides meets all; the median block counts.

use std::time::Duration;

use quotient_keys::bench::Rival;
use quotient_keys::{Mode, Writes, set_mode, set_writes};

use super::super::goal::Goal;
use super::super::statistics::Spread;
use super::Measuring;
use super::peer::Times;
use crate::failure::Failure;

/// As many sites as the kernel's `schedstats` key had in 2019.
const SITES: usize = 56;
/// Blocks; odd, so that the median is a block.
const BLOCKS: usize = 7;
/// The same with `--quick`.
const BLOCKS_QUICK: usize = 3;
/// Time for one contestant in one block.
const SHARE_TIME: Duration = Duration::from_millis(100);

/// Ratios of one block.
struct Block {
    one_by_one_to_int3: f64,
    one_by_one_to_biased: f64,
    rival_to_biased: Option<(f64, f64)>,
    rival_to_coalesced: Option<(f64, f64)>,
    one_by_one_to_int3_coalesced: f64,
    one_by_one_to_biased_coalesced: f64,
}

/// Measures the ratios and says whether they are what was promised.
///
/// # Errors
/// When a mode is not available or a flip is refused.
pub fn goals(measuring: &Measuring<'_>, rival: &mut Option<Rival>) -> Result<Vec<Goal>, Failure> {
    let blocks = if measuring.quick {
        BLOCKS_QUICK
    } else {
        BLOCKS
    };
    let mut measured = Vec::new();
    for _ in 0..blocks {
        let one_by_one = measuring.times(Mode::OneByOne, SITES, SHARE_TIME)?;
        let int3 = measuring.times(Mode::Int3, SITES, SHARE_TIME)?;
        let biased = measuring.times(Mode::Biased, SITES, SHARE_TIME)?;
        set_writes(Writes::Coalesced);
        let coalesced = measuring.times(Mode::Biased, SITES, SHARE_TIME)?;
        let int3_coalesced = measuring.times(Mode::Int3, SITES, SHARE_TIME)?;
        set_writes(Writes::Exact);
        let rival = rival
            .as_mut()
            .map(|rival| measuring.rival_times(rival, SITES, SHARE_TIME));
        let rival_to = |ours: &Times| {
            rival.as_ref().map(|rival: &Times| {
                (
                    rival.enable_us() / ours.enable_us(),
                    rival.disable_us() / ours.disable_us(),
                )
            })
        };
        measured.push(Block {
            one_by_one_to_int3: one_by_one.enable_us() / int3.enable_us(),
            one_by_one_to_biased: one_by_one.enable_us() / biased.enable_us(),
            rival_to_biased: rival_to(&biased),
            rival_to_coalesced: rival_to(&coalesced),
            one_by_one_to_int3_coalesced: one_by_one.enable_us() / int3_coalesced.enable_us(),
            one_by_one_to_biased_coalesced: one_by_one.enable_us() / coalesced.enable_us(),
        });
    }
    set_mode(Mode::Biased).map_err(Failure::during("cannot change the mode"))?;
    let of = |ratio: &dyn Fn(&Block) -> Option<f64>| {
        let ratios: Vec<f64> = measured.iter().filter_map(ratio).collect();
        Spread::of(&ratios).map(|spread| spread.median)
    };
    let goals = [
        (
            "56 sites, one by one / int3 batch, enable, times",
            of(&|block| Some(block.one_by_one_to_int3)),
            50.0,
        ),
        (
            "56 sites, one by one / biased, enable, times",
            of(&|block| Some(block.one_by_one_to_biased)),
            100.0,
        ),
        (
            "56 sites, static-keys crate / biased, enable, times",
            of(&|block| block.rival_to_biased.map(|(enable, _)| enable)),
            250.0,
        ),
        (
            "56 sites, static-keys crate / biased, disable, times",
            of(&|block| block.rival_to_biased.map(|(_, disable)| disable)),
            1000.0,
        ),
        (
            "56 sites, one by one / int3 batch, coalesced, enable, times",
            of(&|block| Some(block.one_by_one_to_int3_coalesced)),
            50.0,
        ),
        (
            "56 sites, one by one / biased and coalesced, enable, times",
            of(&|block| Some(block.one_by_one_to_biased_coalesced)),
            100.0,
        ),
        (
            "56 sites, static-keys crate / biased and coalesced, enable, times",
            of(&|block| block.rival_to_coalesced.map(|(enable, _)| enable)),
            250.0,
        ),
        (
            "56 sites, static-keys crate / biased and coalesced, disable, times",
            of(&|block| block.rival_to_coalesced.map(|(_, disable)| disable)),
            1000.0,
        ),
    ];
    Ok(goals
        .into_iter()
        .filter_map(|(what, value, bound)| value.map(|value| Goal::at_least(what, value, bound)))
        .collect())
}
