//! Another recording of the same load: blocks of recorded time, drawn anew.
//!
//! One recording is one draw of what a load may bring; another hour brings other arrivals. How far figures spread for that reason is found by a
//! *block bootstrap*: the recorded time is cut into blocks, and a draw puts as many of them one behind the other, some twice, others not at all.
//! Within a block everything stays as it was, between tasks as well: who was woken by whom, and what came at the same time.
//!
//! **How long a block is.** Long enough that what belongs together stays so, and short enough that there are many. From the work that arrives in
//! every 100 ms it is taken after Politis and White (2004, as corrected in 2009): `(2 G² / D)^(1/3) N^(1/3)` places, `G` and `D` from the
//! autocorrelation up to where that is lost in noise, and taken four times: that length is made for a mean, and what a limit does is a matter of
//! what piled up before, so joints cost more (`tests/coverage.rs`: a bursty load was throttled in 31 % of the periods in truth, in 25 % with once that
//! length and in 28 % with four times). In any case a block holds ten requests, one after the other, and ten bursts of the tasks that do
//! most of the work; and there are at least eight blocks.
//!
//! **What goes where.** A burst belongs to the block in which it begins, and one that another burst woke to that one's block, as long as their chain
//! began less than a block's length before: then a new chain begins. A burst that is longer than a block is cut at the borders, its work by
//! its time.
//!
//! **Draws are balanced:** over all of them each block is taken equally often, so that their middle is that of the recording.

use super::{Burst, Demand, Marked, OUTSIDE, Recording};
use crate::meters::Percentiles;
use crate::random::Random;
use quotient_core::Nanos;
use std::collections::HashSet;

/// What arrives is summed over this time. Unit: ns. Origin: a limit's period, by default.
const PLACE: u64 = 100_000_000;
/// Most places, so that their correlations cost nothing beside one run; and fewest.
const PLACES: [u64; 2] = [64, 1 << 14];
/// Fewest blocks: with fewer, how they differ says nothing.
const BLOCKS_MIN: u64 = 8;
/// Requests, and bursts of who does most, that a block holds.
const HELD: u64 = 10;
/// How many times as long as for a mean.
const TIMES: f64 = 4.0;
/// Tasks with this part of the work, per cent, are who does most.
const MOST_PERCENT: u64 = 80;
/// The stream of random numbers that blocks are drawn from.
const STREAM: u64 = 5;

/// A recording's time cut into blocks, and some draws of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    length: u64,
    count: u64,
    draws: Vec<Vec<u32>>,
}

/// Where a burst of the recording is in its block.
#[derive(Clone, Debug)]
struct Home {
    block: u32,
    /// When its chain began.
    root: u64,
    /// Its pieces by what was computed before each: that, its block, and its number in that block. Nearly always one.
    pieces: Vec<(u64, u32, u32)>,
}

/// A burst in its block: times are those from the block's begin on, numbers those within the block.
#[derive(Clone, Copy, Debug)]
struct Placed {
    task: u32,
    burst: Burst,
}

/// What a block holds.
#[derive(Clone, Debug, Default)]
struct Content {
    bursts: Vec<Placed>,
    marked: Vec<Marked>,
    numbers: u32,
}

impl Blocks {
    /// Cuts the recording of `own` and of those `beside`, whose requests took that long, for so many draws. O(bursts + draws x blocks).
    pub fn of(
        own: &Recording,
        beside: Option<&Recording>,
        times: Option<&Percentiles>,
        draws: u32,
    ) -> Blocks {
        let whole = own.length.0;
        let wanted = [
            correlated(own),
            HELD * usual_gap(own, beside),
            HELD * times.map_or(0, |times| times.p99_ns),
        ];
        let wanted = wanted.into_iter().max().unwrap_or(0).max(1);
        let most = (whole / PLACE.min(whole / PLACES[0]).max(1)).max(BLOCKS_MIN);
        let count = (whole / wanted).clamp(BLOCKS_MIN, most.min(PLACES[1]));
        Blocks {
            length: (whole / count).max(1),
            count,
            draws: balanced(count, draws.max(1)),
        }
    }

    /// How long each is.
    pub fn length(&self) -> Nanos {
        Nanos(self.length)
    }

    /// How many the recording has.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// A draw, counted from 0 and over again behind the last one: those tasks, and those beside. O(bursts log bursts).
    pub fn draw(
        &self,
        draw: usize,
        own: &Recording,
        beside: Option<&Recording>,
    ) -> (Recording, Option<Recording>) {
        let others = beside.map_or(&[][..], |beside| &beside.tasks);
        let demands: Vec<&Demand> = own.tasks.iter().chain(others).collect();
        let contents = self.contents(&demands, &own.marked);
        let mut bursts: Vec<Vec<Burst>> = vec![Vec::new(); demands.len()];
        let (mut marked, mut first) = (Vec::new(), 0_u32);
        let order = &self.draws[draw % self.draws.len()];
        for (place, block) in (0_u64..).zip(order) {
            let content = &contents[*block as usize];
            let begin = place * self.length;
            for Placed { task, burst } in &content.bursts {
                bursts[*task as usize].push(Burst {
                    at: begin + burst.at,
                    end: begin + burst.end,
                    id: first.wrapping_add(burst.id),
                    by: match burst.by {
                        OUTSIDE => OUTSIDE,
                        by => first.wrapping_add(by),
                    },
                    ..*burst
                });
            }
            for mark in &content.marked {
                let mut mark = mark.clone();
                mark.begin.burst = first.wrapping_add(mark.begin.burst);
                mark.end.burst = first.wrapping_add(mark.end.burst);
                mark.begin.at += begin;
                mark.end.at += begin;
                marked.push(mark);
            }
            first = first.wrapping_add(content.numbers);
        }
        let mut tasks = demands.iter().zip(bursts).map(|(demand, mut bursts)| {
            bursts.sort_by_key(|burst| (burst.at, burst.id));
            Demand {
                id: demand.id,
                name: demand.name.clone(),
                is_silent: demand.is_silent,
                weight: demand.weight,
                is_real_time: demand.is_real_time,
                seat: demand.seat,
                bursts,
                ..Demand::default()
            }
        });
        let chosen: Vec<Demand> = tasks.by_ref().take(own.tasks.len()).collect();
        let rest: Vec<Demand> = tasks.collect();
        let of = |recording: &Recording, tasks: Vec<Demand>| {
            let is_there = |demand: &Demand| demand.bursts.iter().any(|burst| burst.work > 0);
            Recording {
                groups: recording.groups.clone(),
                length: recording.length,
                cpus: recording.cpus,
                marked: marked.clone(),
                ..Recording::default()
            }
            .with(tasks.into_iter().filter(is_there).collect())
        };
        let rest = beside.map(|beside| of(beside, rest));
        (of(own, chosen), rest)
    }

    fn block_of(&self, at: u64) -> u32 {
        u32::try_from((at / self.length).min(self.count - 1)).unwrap_or(u32::MAX)
    }

    /// Every burst in its block.
    fn contents(&self, demands: &[&Demand], marked: &[Marked]) -> Vec<Content> {
        let mut contents = vec![Content::default(); usize::try_from(self.count).unwrap_or(0)];
        let all = || demands.iter().zip(0_u32..);
        let mut order: Vec<(u32, &Burst)> = all()
            .flat_map(|(demand, task)| demand.bursts.iter().map(move |burst| (task, burst)))
            .collect();
        // Who wakes comes before who is woken.
        order.sort_by_key(|(_, burst)| (burst.at, burst.id));
        let numbers = order.iter().map(|(_, burst)| burst.id as usize + 1).max();
        let mut homes: Vec<Option<Home>> = vec![None; numbers.unwrap_or(0)];
        for (task, burst) in order {
            let waker = homes.get(burst.by as usize).and_then(Option::as_ref);
            let waker = waker.filter(|waker| burst.at - waker.root.min(burst.at) < self.length);
            let piece = waker.and_then(|waker| piece_at(&waker.pieces, burst.offset));
            let is_long = burst.end.saturating_sub(burst.at) > self.length;
            let home = match (waker, piece) {
                (Some(waker), Some((done, block, number))) if !is_long => {
                    let (by, offset) = (number, burst.offset - done.min(burst.offset));
                    let placed = Burst {
                        by,
                        offset,
                        ..*burst
                    };
                    let root = waker.root;
                    self.place(&mut contents, task, (placed, block, root), &homes)
                }
                _ if is_long => self.cut(&mut contents, task, burst),
                _ => {
                    let placed = Burst {
                        by: OUTSIDE,
                        ..*burst
                    };
                    let of = (placed, self.block_of(burst.at), burst.at);
                    self.place(&mut contents, task, of, &homes)
                }
            };
            // Pieces of what a limit held together have one number: the first one is it.
            let known = &mut homes[burst.id as usize];
            if known.is_none() {
                *known = Some(home);
            }
        }
        for mark in marked {
            place_mark(&mut contents, mark, &homes, self.length);
        }
        contents
    }

    fn place(
        &self,
        contents: &mut [Content],
        task: u32,
        (burst, block, root): (Burst, u32, u64),
        homes: &[Option<Home>],
    ) -> Home {
        let content = &mut contents[block as usize];
        let same = homes[burst.id as usize].as_ref();
        let same = same.filter(|home| home.block == block);
        let number = same.map_or(content.numbers, |home| home.pieces[0].2);
        content.numbers = content.numbers.max(number + 1);
        let begin = u64::from(block) * self.length;
        content.bursts.push(Placed {
            task,
            burst: Burst {
                at: burst.at.saturating_sub(begin),
                end: burst.end.saturating_sub(begin),
                id: number,
                ..burst
            },
        });
        Home {
            block,
            root,
            pieces: vec![(0, block, number)],
        }
    }

    /// Cuts a burst that is longer than a block.
    fn cut(&self, contents: &mut [Content], task: u32, burst: &Burst) -> Home {
        let (mut at, mut done) = (burst.at, 0);
        let mut pieces = Vec::new();
        let time = u128::from((burst.end - burst.at).max(1));
        while at < burst.end {
            let block = self.block_of(at);
            let begin = u64::from(block) * self.length;
            let is_last = u64::from(block) + 1 == self.count;
            let end = if is_last {
                burst.end
            } else {
                burst.end.min(begin + self.length)
            };
            let by_end = u128::from(burst.work) * u128::from(end - burst.at) / time;
            let by_end = u64::try_from(by_end).unwrap_or(burst.work);
            let content = &mut contents[block as usize];
            pieces.push((done, block, content.numbers));
            content.bursts.push(Placed {
                task,
                burst: Burst {
                    at: at - begin,
                    end: end - begin,
                    work: by_end - done,
                    offset: 0,
                    id: content.numbers,
                    by: OUTSIDE,
                    ..*burst
                },
            });
            content.numbers += 1;
            (at, done) = (end, by_end);
        }
        Home {
            block: self.block_of(burst.at),
            root: burst.at,
            pieces,
        }
    }
}

/// The piece of a burst that had computed so much.
fn piece_at(pieces: &[(u64, u32, u32)], offset: u64) -> Option<(u64, u32, u32)> {
    let after = pieces.partition_point(|piece| piece.0 <= offset);
    pieces.get(after.saturating_sub(1)).copied()
}

/// A mark whose ends lie in different blocks is left out, like a request that a recording cuts off.
fn place_mark(contents: &mut [Content], mark: &Marked, homes: &[Option<Home>], length: u64) {
    let place = |burst: u32, offset: u64| {
        let home = homes.get(burst as usize)?.as_ref()?;
        let (done, block, number) = piece_at(&home.pieces, offset)?;
        Some((block, number, offset - done.min(offset)))
    };
    let begin = place(mark.begin.burst, mark.begin.offset);
    let end = place(mark.end.burst, mark.end.offset);
    let (Some(begin), Some(end)) = (begin, end) else {
        return;
    };
    if begin.0 == end.0 {
        let mut mark = mark.clone();
        (mark.begin.burst, mark.begin.offset) = (begin.1, begin.2);
        (mark.end.burst, mark.end.offset) = (end.1, end.2);
        let block = u64::from(begin.0) * length;
        mark.begin.at = mark.begin.at.saturating_sub(block);
        mark.end.at = mark.end.at.saturating_sub(block);
        contents[begin.0 as usize].marked.push(mark);
    }
}

/// For each draw the blocks that it takes; over all draws each equally often.
fn balanced(count: u64, draws: u32) -> Vec<Vec<u32>> {
    let once = 0..u32::try_from(count).unwrap_or(u32::MAX);
    let mut all: Vec<u32> = (0..draws).flat_map(|_| once.clone()).collect();
    let mut random = Random::new(count, STREAM);
    for last in (1..all.len()).rev() {
        let other = random.below(last as u64 + 1);
        all.swap(last, usize::try_from(other).unwrap_or(last));
    }
    let size = once.len().max(1);
    all.chunks(size).map(<[u32]>::to_vec).collect()
}

/// The time between bursts of the tasks that do most of the work, and of those beside that wake these most often: of each the longest, on average.
fn usual_gap(own: &Recording, beside: Option<&Recording>) -> u64 {
    let gap = |demand: &Demand| own.length.0 / demand.bursts.len().max(1) as u64;
    let doing = own.tasks.iter().map(|demand| (demand.work(), gap(demand)));
    let bursts = own.tasks.iter().flat_map(|demand| &demand.bursts);
    let wakers: HashSet<u32> = bursts.map(|burst| burst.by).collect();
    let others = beside.map_or(&[][..], |beside| &beside.tasks);
    let asking = others.iter().map(|demand| {
        let asks = demand
            .bursts
            .iter()
            .filter(|burst| wakers.contains(&burst.id));
        (asks.count() as u64, gap(demand))
    });
    longest_of_most(doing.collect()).max(longest_of_most(asking.collect()))
}

/// Of pairs of a weight and a gap the longest gap of the heaviest, which together have most of the weight.
fn longest_of_most(mut tasks: Vec<(u64, u64)>) -> u64 {
    tasks.sort_unstable_by(|one, other| other.cmp(one));
    let all: u64 = tasks.iter().map(|task| task.0).sum();
    let (mut sum, mut longest) = (0_u64, 0);
    for (weight, gap) in tasks {
        if u128::from(sum) * 100 >= u128::from(all) * u128::from(MOST_PERCENT) {
            break;
        }
        sum += weight;
        longest = longest.max(gap);
    }
    longest
}

/// The length of a block by how what arrives is correlated, ns.
fn correlated(own: &Recording) -> u64 {
    let whole = own.length.0;
    let place = (whole / PLACES[1]).max(PLACE.min(whole / PLACES[0])).max(1);
    let count = usize::try_from(whole / place).unwrap_or(0).max(1);
    let mut series = vec![0.0; count];
    for burst in own.tasks.iter().flat_map(|demand| &demand.bursts) {
        let at = usize::try_from(burst.at / place).unwrap_or(0);
        series[at.min(count - 1)] += burst.work as f64;
    }
    (TIMES * places(&series) * place as f64) as u64
}

/// The length of a block for the mean of a series, in its places.
fn places(series: &[f64]) -> f64 {
    let count = series.len() as f64;
    let mean = series.iter().sum::<f64>() / count;
    let most = series.len() / 4;
    let covariance: Vec<f64> = (0..=most)
        .map(|lag| {
            let pairs = series.iter().zip(&series[lag..]);
            let products = pairs.map(|(one, other)| (one - mean) * (other - mean));
            products.sum::<f64>() / count
        })
        .collect();
    if covariance[0] <= 0.0 {
        return 1.0;
    }
    // From where on some in a row are noise.
    let noise = 2.0 * (count.log10() / count).sqrt() * covariance[0];
    let row = (count.log10().sqrt().ceil() as usize).max(5);
    let is_noise = |lag: usize| {
        covariance[lag + 1..]
            .iter()
            .take(row)
            .all(|at| at.abs() < noise)
    };
    let lost = (0..most).find(|lag| is_noise(*lag)).unwrap_or(most);
    let window = (2 * lost.max(1)).min(most);
    // Flat up to half of the window, then down to zero.
    let share = |lag: usize| (2.0 * (1.0 - lag as f64 / window.max(1) as f64)).clamp(0.0, 1.0);
    let (mut slope, mut level) = (0.0, covariance[0]);
    for (lag, at) in covariance.iter().enumerate().take(window + 1).skip(1) {
        slope += 2.0 * share(lag) * lag as f64 * at;
        level += 2.0 * share(lag) * at;
    }
    let spread = 4.0 / 3.0 * level * level;
    if spread <= 0.0 {
        return 1.0;
    }
    (2.0 * slope * slope / spread).cbrt() * count.cbrt()
}

#[cfg(test)]
mod tests;
