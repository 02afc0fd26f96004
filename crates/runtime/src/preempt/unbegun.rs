//! Blocking functions that have not begun: on whose threads they do, and how they are handed there.
//!
//! On threads of the runtime that the scheduler was built in, inside the context of the runtime that they were spawned from (`Handle::enter`), which may
//! have ended by then. What another runtime does when it is given a function is its builder's code (a name for a thread that it starts, a stack that no
//! system gives) and the function's (its destructor, if that runtime has ended), and would be done by who empties the line: the tick thread, of which
//! a tenant took three seconds so, or took it for good; or somebody in a poll that nobody can stop. So:
//! - *Who empties a line runs nobody's code*: it hands over to the scheduler's own runtime. What that does not take any more, since it has ended, is
//!   not dropped there: it goes to `burials`, to be dropped at the scheduler's end at the latest.
//! - *A panic of that runtime* (the system gives it no thread) ends there, and the function waits in the runtime's queue until it has a thread.
//! - Functions that never wait in lines, of groups that are not preemptible, go to the runtime that they were spawned from, by who spawns them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use super::lock;
use super::places::Place;
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
}

impl Waiting {
    pub(crate) fn new(runtime: Option<Handle>, start: impl FnOnce(Begin) + Send + 'static) -> Self {
        let start = Box::new(start);
        Self { start, runtime }
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
    /// It comes back if that runtime has ended.
    pub(super) fn go(self, shared: &Shared, begin: Begin) -> Result<(), Self> {
        // In a box of its own, so that the runtime drops what it does not run, and the function is left.
        let kept = Arc::new(Mutex::new(Some((self, begin))));
        let taken = kept.clone();
        let run = move || {
            let taken = lock(&taken).take();
            if let Some((function, begin)) = taken {
                function.begin(begin);
            }
        };
        hand_to_host(shared, Box::new(run));
        // Whoever has the box last has what is left in it: the runtime, until it has run or dropped it.
        let left = Arc::into_inner(kept);
        let left = left.and_then(|left| left.into_inner().unwrap_or_else(PoisonError::into_inner));
        left.map_or(Ok(()), |(function, _)| Err(function))
    }

    /// On a thread of the scheduler's runtime.
    fn begin(self, begin: Begin) {
        let Self { start, runtime } = self;
        let inside = runtime.as_ref().map(Handle::enter);
        start(begin);
        // The function may have left a guard of its own behind, at which tokio panics.
        let left = catch_unwind(AssertUnwindSafe(|| drop(inside)));
        left.unwrap_or_else(discard);
    }
}

/// Has the scheduler's runtime run `function`; a panic of the runtime's ends here.
pub(crate) fn hand_to_host(shared: &Shared, function: Box<dyn FnOnce() + Send>) {
    let hand = AssertUnwindSafe(|| shared.host.spawn_blocking(function));
    // The pool may start a thread for it; if it gets none it keeps the function for its next one.
    let handed = quotient_pause::Guest::as_usual(|| catch_unwind(hand));
    handed.unwrap_or_else(discard);
}
