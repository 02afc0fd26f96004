//! From the bursts of requests to the steps of programs.

use super::super::Loop;
use super::super::play::again;
use super::{Act, Chained, Piece};
use crate::program::{Program, Step};
use crate::random::Random;
use core::ops::Range;
use quotient_core::Nanos;

/// When a request came, of which is known that it was in that time: the same with the same seed.
pub(super) fn drawn(seed: u64, request: u32, time: Range<u64>) -> u64 {
    let mut dice = Random::new(seed, u64::from(request));
    time.start + dice.below(time.end.saturating_sub(time.start) + 1)
}

/// From bursts to steps.
pub(super) struct Compiler<'a> {
    pub(super) how: Loop,
    /// How much later everything is; what is drawn follows from it.
    pub(super) shift: u64,
    /// That of the recording.
    pub(super) length: u64,
    pub(super) meter: u32,
    /// The number of the first request in the plan.
    pub(super) first: u32,
    /// When the program had got to each that it marked, as recorded.
    pub(super) begun: &'a [u64],
    pub(super) channels: &'a [u32],
}

impl Compiler<'_> {
    pub(super) fn program(&self, chained: &Chained, channel: u32) -> Program {
        let mut steps = Vec::new();
        let mut last = 0;
        for piece in &chained.bursts {
            self.begin(piece, channel, last, &mut steps);
            let (mut done, mut came) = (0, piece.at);
            for (offset, act) in &piece.acts {
                let offset = (*offset).clamp(done, piece.work);
                if offset > done {
                    steps.push(Step::Run(Nanos(offset - done).into()));
                    done = offset;
                }
                self.act(*act, &mut came, &mut steps);
            }
            if piece.work > done {
                steps.push(Step::Run(Nanos(piece.work - done).into()));
            }
            if let Some(request) = piece.closes {
                steps.push(self.close(request));
            }
            last = piece.end;
        }
        if self.how == Loop::Closed {
            let begins = chained.bursts.iter().any(|piece| !piece.is_woken);
            return again(
                steps,
                if begins {
                    self.length.saturating_sub(last)
                } else {
                    0
                },
            );
        }
        Program::new(steps)
    }

    /// Until the burst begins.
    fn begin(&self, piece: &Piece, channel: u32, last: u64, steps: &mut Vec<Step>) {
        let at = Nanos(piece.at + self.shift);
        let came = match (piece.is_woken, self.how) {
            (true, _) => {
                steps.push(Step::Wait(channel));
                Step::NOW
            }
            (false, Loop::Open) => {
                steps.push(Step::Until(at));
                at
            }
            (false, Loop::Closed) => {
                steps.push(Step::Sleep(Nanos(piece.at.saturating_sub(last)).into()));
                Step::WOKEN
            }
        };
        if let Some(request) = piece.opens {
            let request = self.first + request;
            steps.push(Step::Open { request, at: came });
        }
    }

    /// `came` is when the last request of the burst came, as recorded.
    fn act(&self, act: Act, came: &mut u64, steps: &mut Vec<Step>) {
        let open = |request: u32, at: Nanos| Step::Open {
            request: self.first + request,
            at,
        };
        match act {
            Act::Open(request) => {
                *came = self.begun[request as usize];
                steps.push(open(request, Step::NOW));
            }
            Act::Came(request) => {
                let latest = self.begun[request as usize];
                *came = drawn(self.shift, request, *came..latest);
                if self.how == Loop::Closed {
                    // It comes when somebody else is done, whenever that is.
                    steps.push(open(request, Step::NOW));
                    return;
                }
                // Who is there earlier than it was, without a limit, sleeps until it comes.
                let at = Nanos(*came + self.shift);
                steps.extend([Step::Until(at), open(request, at)]);
            }
            Act::Close(request) => steps.push(self.close(request)),
            Act::Wake(task) => steps.push(Step::Post(self.channels[task as usize])),
        }
    }

    fn close(&self, request: u32) -> Step {
        Step::Close {
            request: self.first + request,
            meter: self.meter,
        }
    }
}
