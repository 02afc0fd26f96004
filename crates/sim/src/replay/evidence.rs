//! Does the next piece of work wait for the answer to the last one? What a recording says of it.
//!
//! In an open loop the next arrival does not care how long this burst took: a long burst is followed by a short sleep,
//! so over all bursts sleep falls by one for each nanosecond of response (slope -1). In a closed loop the client thinks
//! first when it has its answer: the slope is 0. But memoryless (Poisson) arrivals forget when the last one was, which
//! makes their slope 0 as well; they are told from thinking clients only by their spread, since sleeps between
//! memoryless arrivals vary as much as their mean (variation 1). Where neither shows, nothing is guessed.
//!
//! A response is counted from where the task began by itself to its last burst before it does so again: what it was woken to by others in
//! between is the answer. Where clients are in the trace, they are known by that, and are judged by the slope alone: one that sleeps until
//! something is due sleeps less after a long answer, however irregular its work is.

use super::{Burst, Demand, Loop, Recording};
use serde::Serialize;

/// A task with fewer pairs of response and sleep says nothing. Origin: a mean and a slope are taken from them.
const PAIRS_MIN: usize = 10;
/// All tasks together. Origin: below, the standard error of the slope is of the order of what is to be told apart.
const PAIRS_MIN_IN_ALL: u64 = 50;
/// Standard errors that the slope must keep from the middle between both. Default 2: wrong once in forty.
const ERRORS: f64 = 2.0;
/// The middle between the slopes of an open (-1) and of a closed loop (0).
const MIDDLE: f64 = -0.5;
/// Sleeps that vary less than this, as a part of their mean, are not those between memoryless arrivals (1.0).
const VARIATION_MAX: f64 = 0.7;

/// How sleeps follow responses, over all tasks with at least ten of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Bursts with a sleep behind them.
    pub pairs: u64,
    /// What a nanosecond more of response adds to the sleep behind it.
    pub slope: f64,
    /// Its standard error; infinite, in JSON `null`, where all responses are the same.
    pub slope_error: f64,
    /// Standard deviation of sleeps as a part of their mean.
    pub variation: f64,
    /// Whether these are clients beside what is asked about, that were woken by it before they slept.
    pub of_clients: bool,
}

impl Evidence {
    /// Which loop it is, if that shows.
    pub fn verdict(&self) -> Option<Loop> {
        if self.pairs < PAIRS_MIN_IN_ALL {
            return None;
        }
        let margin = ERRORS * self.slope_error;
        if self.slope + margin < MIDDLE {
            Some(Loop::Open)
        } else if self.slope - margin > MIDDLE
            && (self.of_clients || self.variation < VARIATION_MAX)
        {
            Some(Loop::Closed)
        } else {
            None
        }
    }
}

impl Recording {
    /// What the recording says of its loop. O(bursts).
    pub fn evidence(&self) -> Evidence {
        let demands: Vec<&Demand> = self.tasks.iter().collect();
        Recording::evidence_of(&demands, &|_| true)
    }

    /// The same of some tasks, by the sleeps before those bursts only that `is_root` has.
    pub(super) fn evidence_of(demands: &[&Demand], is_root: &dyn Fn(&Burst) -> bool) -> Evidence {
        let mut sums = Sums::default();
        for demand in demands {
            let mut pairs = Vec::new();
            let mut root = demand.bursts.first().map_or(0, |burst| burst.at);
            for pair in demand.bursts.windows(2).filter(|pair| is_root(&pair[1])) {
                let end = pair[0].end;
                pairs.push((end.saturating_sub(root), pair[1].at.saturating_sub(end)));
                root = pair[1].at;
            }
            sums.add(&pairs);
        }
        sums.evidence()
    }

    /// The same of clients: from a burst that asks to the end of the last one that was answered, and the sleep from there to the next that
    /// asks, if the client then began by itself. One that is mostly told by others when to ask does not wait for answers.
    pub(super) fn evidence_of_clients(
        clients: &[&Demand],
        is_root: &dyn Fn(&Burst) -> bool,
        asks: &dyn Fn(&Burst) -> bool,
        is_answered: &dyn Fn(&Burst) -> bool,
    ) -> Evidence {
        let mut sums = Sums::default();
        for client in clients {
            let (mut asked, mut answered): (Option<u64>, Option<u64>) = (None, None);
            let mut others = 0;
            let mut pairs = Vec::new();
            for burst in &client.bursts {
                if asks(burst) {
                    match (asked, answered) {
                        (Some(at), Some(end)) if is_root(burst) => {
                            pairs.push((end.saturating_sub(at), burst.at.saturating_sub(end)));
                        }
                        _ => others += 1,
                    }
                    (asked, answered) = (Some(burst.at), None);
                }
                if is_answered(burst) {
                    answered = Some(burst.end);
                }
            }
            if pairs.len() > others {
                sums.add(&pairs);
            }
        }
        Evidence {
            of_clients: true,
            ..sums.evidence()
        }
    }
}

/// Sums of one task about its own means, so that tasks of different habits may be put together.
#[derive(Default)]
struct Sums {
    pairs: f64,
    tasks: f64,
    responses: f64,
    sleeps: f64,
    both: f64,
    sleep: f64,
}

impl Sums {
    fn add(&mut self, pairs: &[(u64, u64)]) {
        if pairs.len() < PAIRS_MIN {
            return;
        }
        let pairs: Vec<(f64, f64)> = pairs
            .iter()
            .map(|pair| (pair.0 as f64, pair.1 as f64))
            .collect();
        let count = pairs.len() as f64;
        let response = pairs.iter().map(|pair| pair.0).sum::<f64>() / count;
        let sleep = pairs.iter().map(|pair| pair.1).sum::<f64>() / count;
        for pair in &pairs {
            self.responses += (pair.0 - response).powi(2);
            self.sleeps += (pair.1 - sleep).powi(2);
            self.both += (pair.0 - response) * (pair.1 - sleep);
        }
        self.sleep += sleep * count;
        self.pairs += count;
        self.tasks += 1.0;
    }

    fn evidence(&self) -> Evidence {
        let free = self.pairs - self.tasks - 1.0;
        if free <= 0.0 || self.sleep <= 0.0 {
            return Evidence::default();
        }
        let (slope, slope_error) = if self.responses > 0.0 {
            let slope = self.both / self.responses;
            let unexplained = (self.sleeps - slope * self.both).max(0.0);
            (slope, (unexplained / free / self.responses).sqrt())
        } else {
            (0.0, f64::INFINITY)
        };
        Evidence {
            pairs: self.pairs as u64,
            slope,
            slope_error,
            variation: (self.sleeps / self.pairs).sqrt() / (self.sleep / self.pairs),
            of_clients: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Plan, Simulation, Span, synthetic};
    use quotient_core::Nanos;
    use quotient_trace::JsonLines;

    fn recorded(add: impl Fn(&mut Plan, Span)) -> Evidence {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(4);
        let work = Span::Uniform {
            low: Nanos::from_millis(1),
            high: Nanos::from_millis(5),
        };
        add(&mut plan, work);
        let mut simulation = Simulation::new(&plan, JsonLines::new(Vec::new())).unwrap();
        simulation.run().unwrap();
        let text = simulation.into_sink().finish().unwrap();
        Recording::read(&mut text.as_slice()).unwrap().evidence()
    }

    fn arrivals(gap: Span) -> Evidence {
        recorded(|plan, work| {
            let shape = synthetic::OpenLoop {
                threads: 1,
                work,
                gap,
                parts: 1,
                begin: Nanos::ZERO,
            };
            synthetic::open_loop(plan, "app", None, shape);
        })
    }

    #[test]
    fn regular_arrivals_show() {
        let evidence = arrivals(Nanos::from_millis(10).into());
        assert_eq!(evidence.verdict(), Some(Loop::Open), "{evidence:?}");
    }

    #[test]
    fn thinking_clients_show() {
        let evidence = recorded(|plan, work| {
            synthetic::closed_loop(plan, "app", None, 3, work, Nanos::from_millis(7).into());
        });
        assert_eq!(evidence.verdict(), Some(Loop::Closed), "{evidence:?}");
    }

    #[test]
    fn memoryless_arrivals_look_like_either_and_are_not_guessed() {
        let evidence = arrivals(Span::Exponential {
            mean: Nanos::from_millis(12),
        });
        assert_eq!(evidence.verdict(), None, "{evidence:?}");
    }

    #[test]
    fn few_bursts_or_equal_ones_say_nothing() {
        assert_eq!(Evidence::default().verdict(), None);
        let equal = Evidence {
            pairs: 1_000,
            slope_error: f64::INFINITY,
            ..Evidence::default()
        };
        assert_eq!(equal.verdict(), None);
    }
}
