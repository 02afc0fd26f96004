//! Blocking functions that have not begun: on whose threads they do, and how they are handed there.
//!
//! On threads of the runtime that the scheduler was built in, inside the context of the runtime that they were spawned from (`Handle::enter`), which may
//! have ended by then. What another runtime does when it is given a function is its builder's code (a name for a thread that it starts, a stack that no
//! system gives) and the function's (its destructor, if that runtime has ended), and would be done by who empties the line: the tick thread, of which
//! a tenant took three seconds so, or took it for good; or somebody in a poll that nobody can stop. So:
//! - *Who empties a line runs nobody's code*: it hands over to the scheduler's own runtime. What that does not take any more, since it has ended, is
//!   not dropped there: it goes to `burials`, to be dropped at the scheduler's end at the latest.
//! - *A panic of that runtime* (the system gives it no thread) ends there. The runtime has taken the function by then, and nobody would ask for a thread again until
//!   somebody has another function; so it is taken back (`go`), and waits in its group's line.
//! - Functions that never wait in lines, of groups that are not preemptible, go to the runtime that they were spawned from, by who spawns them.
//!
//! # No function waits for a thread that nobody asks for
//! One that was taken back enters the line as any other (L1 to L3 of `functions`): the group is listed before the line's lock goes, and as long as it is, the tick
//! thread does not park, and looks at the line once a period. It begins the first one as soon as `shortage` lets it, and all others once that has a thread;
//! those that come meanwhile enter the line behind it. A thread of the pool that has come to it before it is taken back has begun it: the box is emptied once.
//!
//! An abort or a kill finds it in the line, or on its way there (W1 to W3 of `frozen`), and what these end is dropped by a thread of the pool as well,
//! for which the tick thread asks in the same way (`burials`). The scheduler's end needs none: what no thread comes for is dropped on one for that, or by who ends
//! it. If the runtime has ended at the next attempt, the function ends by that. So nobody waits at an end for a thread that is not to be had. In the
//! runtime's queue is an empty closure, to be run or dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use super::functions::Aborted;
use super::places::Place;
use super::{Preempting, lock};
use crate::shared::Shared;
use crate::task::discard;

/// How a function that has waited goes on.
pub(crate) enum Begin {
    /// It begins, with its place if it needs one.
    Run(Option<Place>),
    /// It ends without.
    Never,
}

type Start = Box<dyn FnOnce(Begin) + Send>;

/// A function that has not begun.
pub(crate) struct Waiting {
    start: Start,
    /// Where it was spawned; `None` outside any runtime.
    runtime: Option<Handle>,
    /// How an abort finds it.
    aborted: Option<Arc<Aborted>>,
}

/// Why a function has not gone to the scheduler's runtime.
pub(super) enum Stays {
    /// That has ended.
    Ended(Waiting),
    /// The system gives it no thread.
    NoThread(Waiting),
}

/// The system gave the runtime no thread for what it was handed, which is in its queue.
#[derive(Debug)]
pub(crate) struct NoThread;

impl Waiting {
    pub(crate) fn new(runtime: Option<Handle>, start: impl FnOnce(Begin) + Send + 'static) -> Self {
        Self {
            start: Box::new(start),
            runtime,
            aborted: None,
        }
    }

    /// An abort finds it by `aborted`, wherever it waits.
    pub(crate) fn found_by(self, aborted: Arc<Aborted>) -> Self {
        Self {
            aborted: Some(aborted),
            ..self
        }
    }

    pub(super) fn aborted(&self) -> Option<Arc<Aborted>> {
        self.aborted.clone()
    }

    /// It never begins; dropped here, and a panic with it.
    pub(crate) fn drop_unbegun(self) {
        let dropped = catch_unwind(AssertUnwindSafe(|| (self.start)(Begin::Never)));
        if let Err(panic) = dropped {
            // Its destructor is the program's, and may panic as well.
            std::mem::forget(panic);
        }
    }

    /// Gives it to the blocking pool of the runtime that it was spawned from: for who has spawned it, and takes what that runtime does.
    pub(crate) fn go_from_here(self, shared: &Shared, begin: Begin) {
        let start = self.start;
        let run = move || start(begin);
        // The pool may start a thread for it.
        quotient_pause::Guest::as_usual(|| match self.runtime {
            Some(runtime) => drop(runtime.spawn_blocking(run)),
            None => shared.host.spawn_blocking(Box::new(run)),
        });
    }

    /// Gives it to the blocking pool of the scheduler's runtime, and runs nobody's code here.
    ///
    /// # Errors
    /// It comes back if that runtime has ended, or gets no thread.
    pub(super) fn go(self, shared: &Shared, begin: Begin) -> Result<(), Stays> {
        // In a box of its own, so that the runtime drops what it does not run, and the function is left.
        let kept = Arc::new(Mutex::new(Some((self, begin))));
        let taken = kept.clone();
        let run = move || {
            let taken = lock(&taken).take();
            if let Some((function, begin)) = taken {
                function.begin(begin);
            }
        };
        if hand_to_host(shared, Box::new(run)).is_err() {
            // Unless a thread was had in this moment, by somebody else's function.
            let left = lock(&kept).take();
            return left.map_or(Ok(()), |(function, _)| Err(Stays::NoThread(function)));
        }
        // Whoever has the box last has what is left in it: the runtime, until it has run or dropped it.
        let left = Arc::into_inner(kept);
        let left = left.and_then(|left| left.into_inner().unwrap_or_else(PoisonError::into_inner));
        left.map_or(Ok(()), |(function, _)| Err(Stays::Ended(function)))
    }

    /// On a thread of the scheduler's runtime.
    fn begin(self, begin: Begin) {
        let Self { start, runtime, .. } = self;
        let inside = runtime.as_ref().map(Handle::enter);
        start(begin);
        // The function may have left a guard of its own behind, at which tokio panics.
        let left = catch_unwind(AssertUnwindSafe(|| drop(inside)));
        left.unwrap_or_else(discard);
    }
}

/// Has the scheduler's runtime run `function`; a panic of the runtime's ends here.
///
/// # Errors
/// There was one: the function is in the runtime's queue, and runs once that has a thread for another.
pub(crate) fn hand_to_host(
    shared: &Shared,
    function: Box<dyn FnOnce() + Send>,
) -> Result<(), NoThread> {
    let hand = AssertUnwindSafe(|| shared.host.spawn_blocking(function));
    // The pool may start a thread for it.
    let handed = quotient_pause::Guest::as_usual(|| catch_unwind(hand));
    let handed = handed.map_err(|panic| {
        discard(panic);
        NoThread
    });
    if let Some(preempting) = &shared.preempt {
        preempting.heard_of_thread(shared, &handed);
    }
    handed
}

impl Preempting {
    /// The pool has taken something, or had no thread for it.
    fn heard_of_thread(&self, shared: &Shared, handed: &Result<(), NoThread>) {
        match handed {
            Ok(()) => self.shortage.is_over(),
            Err(NoThread) => {
                self.pool.count_refused();
                self.shortage.was_refused(shared.now());
            }
        }
    }
}
