//! The most CPU time that a group got in any stretch as long as its period, wherever that stretch begins.
//!
//! Spinners note when they ran. Usage over time is then a curve of straight pieces, and the steepest window begins or
//! ends where a piece does; so all of them can be tried. O(n log n) in the number of pieces.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pieces that a log holds. Bound: ten minutes of polls of 50 us on one CPU; later ones are not noted.
const PIECES_MAX: usize = 12_000_000;
/// Two pieces closer than this are one: the loop between them.
const GAP_MAX: u64 = 3_000;
/// Pieces are not merged beyond this length, so that the curve stays true within it.
const MERGED_MAX: u32 = 100_000;

/// One stretch in which a task ran. Times in nanoseconds since the log's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// When it began.
    pub start: u64,
    /// How long it took, wall time.
    pub wall: u32,
    /// How much of that was CPU time.
    pub cpu: u32,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + u64::from(self.wall)
    }
}

/// When one task ran. Written by that task only; the lock is for the reader at the end.
#[derive(Debug)]
pub struct RunLog {
    origin: Instant,
    pieces: Mutex<Vec<Piece>>,
}

impl RunLog {
    /// An empty log whose times count from `origin`; logs that are looked at together share it.
    pub fn new(origin: Instant) -> Self {
        Self {
            origin,
            pieces: Mutex::default(),
        }
    }

    /// Notes that the task ran from `start` for `wall`, `cpu` of it on a CPU.
    pub fn note(&self, start: Instant, wall: Duration, cpu: Duration) {
        let short = |duration: Duration| u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX);
        let since = start.saturating_duration_since(self.origin);
        let piece = Piece {
            start: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            wall: short(wall),
            cpu: short(cpu),
        };
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = pieces.last_mut()
            && piece.start.saturating_sub(last.end()) < GAP_MAX
            && last.wall < MERGED_MAX
            && piece.wall < MERGED_MAX
        {
            let wall = piece.end().saturating_sub(last.start);
            last.wall = u32::try_from(wall).unwrap_or(u32::MAX);
            last.cpu = last.cpu.saturating_add(piece.cpu);
        } else if pieces.len() < PIECES_MAX {
            pieces.push(piece);
        }
    }

    /// A copy of all pieces, in the order of their starts.
    pub fn pieces(&self) -> Vec<Piece> {
        self.pieces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// CPU seconds in the fullest window of length `period` over all `pieces`; zero without any.
pub fn fullest(pieces: &[Piece], period: Duration) -> f64 {
    let curve = Curve::of(pieces);
    let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
    let (mut ahead, mut behind) = (Reader::new(&curve), Reader::new(&curve));
    let mut fullest: f64 = 0.0;
    for (index, at) in curve.times.iter().enumerate() {
        let used = curve.used[index];
        fullest = fullest.max(ahead.at(at.saturating_add(period)) - used);
        fullest = fullest.max(used - at.checked_sub(period).map_or(0.0, |at| behind.at(at)));
    }
    fullest / 1e9
}

/// Usage over time: straight between two times.
struct Curve {
    times: Vec<u64>,
    used: Vec<f64>,
}

impl Curve {
    fn of(pieces: &[Piece]) -> Self {
        let mut changes: Vec<(u64, f64)> = Vec::with_capacity(pieces.len() * 2);
        for piece in pieces {
            let rate = f64::from(piece.cpu) / f64::from(piece.wall.max(1));
            changes.push((piece.start, rate));
            changes.push((piece.start + u64::from(piece.wall.max(1)), -rate));
        }
        changes.sort_by_key(|change| change.0);
        let (mut times, mut used) = (Vec::new(), Vec::new());
        let (mut rate, mut sum, mut last) = (0.0_f64, 0.0_f64, 0_u64);
        for (at, change) in changes {
            sum += rate * (at - last) as f64;
            times.push(at);
            used.push(sum);
            // Rates come and go in pairs; what rounding leaves must not add up.
            rate = (rate + change).max(0.0);
            last = at;
        }
        Self { times, used }
    }
}

/// Reads a curve at times that only grow. O(1) amortised.
struct Reader<'a> {
    curve: &'a Curve,
    next: usize,
}

impl<'a> Reader<'a> {
    fn new(curve: &'a Curve) -> Self {
        Self { curve, next: 0 }
    }

    fn at(&mut self, time: u64) -> f64 {
        let (times, used) = (&self.curve.times, &self.curve.used);
        while self.next < times.len() && times[self.next] <= time {
            self.next += 1;
        }
        match self.next {
            0 => 0.0,
            end if end == times.len() => used[end - 1],
            next => {
                let (from, to) = (times[next - 1], times[next]);
                let part = (time - from) as f64 / (to - from) as f64;
                used[next - 1] + (used[next] - used[next - 1]) * part
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn piece(start_ms: u64, length_ms: u32) -> Piece {
        Piece {
            start: start_ms * MS,
            wall: length_ms * MS as u32,
            cpu: length_ms * MS as u32,
        }
    }

    fn fullest_ms(pieces: &[Piece], period_ms: u64) -> f64 {
        fullest(pieces, Duration::from_millis(period_ms)) * 1e3
    }

    #[test]
    fn a_window_across_a_boundary_is_found() {
        // 20 ms at the end of one period of 100 ms and 20 ms at the start of the next.
        let pieces = [piece(80, 20), piece(100, 20)];
        assert!((fullest_ms(&pieces, 100) - 40.0).abs() < 1e-6);
        assert!((fullest_ms(&pieces, 30) - 30.0).abs() < 1e-6);
        // The same at the starts of both periods never meet.
        let pieces = [piece(0, 20), piece(100, 20)];
        assert!((fullest_ms(&pieces, 100) - 20.0).abs() < 1e-6);
    }

    #[test]
    fn tasks_at_the_same_time_add_up_and_waiting_inside_a_poll_does_not() {
        let pieces = [piece(0, 10), piece(5, 10)];
        assert!((fullest_ms(&pieces, 10) - 15.0).abs() < 1e-6);
        let preempted = Piece {
            cpu: 5 * MS as u32,
            ..piece(0, 10)
        };
        assert!((fullest_ms(&[preempted], 100) - 5.0).abs() < 1e-6);
        assert!(fullest_ms(&[], 10).abs() < 1e-12);
    }

    #[test]
    fn every_window_of_a_random_log_is_bounded_by_the_fullest() {
        let mut state = 7_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 40
        };
        let mut at = 0;
        let pieces: Vec<Piece> = (0..200)
            .map(|_| {
                at += next() % 500_000;
                let wall = (next() % 400_000) as u32 + 1;
                Piece {
                    start: at,
                    wall,
                    cpu: wall,
                }
            })
            .collect();
        let period = 2 * MS;
        let fullest = fullest(&pieces, Duration::from_nanos(period)) * 1e9;
        let used = |from: u64| -> f64 {
            let inside = |piece: &Piece| {
                let end = piece.end().min(from + period);
                end.saturating_sub(piece.start.max(from)) as f64
            };
            pieces.iter().map(inside).sum()
        };
        let highest = (0..at).step_by(10_000).map(used).fold(0.0, f64::max);
        assert!(highest <= fullest + 1.0, "{highest} against {fullest}");
        assert!(
            fullest <= highest + 4.0 * 10_000.0,
            "{highest} against {fullest}"
        );
    }

    #[test]
    fn close_pieces_are_merged_and_far_ones_are_not() {
        let origin = Instant::now();
        let log = RunLog::new(origin);
        let micros = Duration::from_micros;
        log.note(origin, micros(50), micros(50));
        log.note(origin + micros(51), micros(50), micros(40));
        log.note(origin + micros(200), micros(50), micros(50));
        let pieces = log.pieces();
        assert_eq!(pieces.len(), 2);
        assert_eq!((pieces[0].wall, pieces[0].cpu), (101_000, 90_000));
    }
}
