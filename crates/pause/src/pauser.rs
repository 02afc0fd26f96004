//! Setting pausing up, and threads that take part.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::error::{EnterError, InstallError};
use crate::signal::Signal;
use crate::slot::{Identity, Slot};
use crate::step;
use crate::system;
use crate::table;
use crate::thread::Thread;

/// How pausing is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The signal that makes a thread look.
    pub signal: Signal,
}

impl Settings {
    /// The settings with that signal.
    #[must_use]
    pub fn signal(mut self, signal: Signal) -> Self {
        self.signal = signal;
        self
    }
}

/// The proof that pausing is set up in this process. Cheap to copy.
///
/// The handler stays installed for as long as the process lives, and the library that holds it stays in memory.
#[derive(Clone, Copy, Debug)]
pub struct Pauser {
    signal: Signal,
    /// Membarrier is to be had.
    asymmetric: bool,
}

thread_local! {
    /// The slot of this thread while it is inside, for [`uninterrupted`](crate::uninterrupted) and [`region`](crate::region). The
    /// handler never looks here.
    pub(crate) static INSIDE: RefCell<Option<Inside>> = const { RefCell::new(None) };
}

/// The calling thread's slot, if it is inside.
pub(crate) fn slot_here() -> Option<Arc<Slot>> {
    let slot = INSIDE.try_with(|inside| Some(inside.try_borrow().ok()?.as_ref()?.slot.clone()));
    slot.ok().flatten()
}

/// A thread that is inside.
pub(crate) struct Inside {
    pub(crate) slot: Arc<Slot>,
    /// Number of the last region.
    pub(crate) number: Cell<u64>,
}

impl Pauser {
    /// Installs the signal handler. May be called any number of times with the same signal; some system calls each.
    ///
    /// # Errors
    /// [`InstallError`]: another platform, a signal that the program uses itself or that was set up differently before, a
    /// system call that is refused. Nothing was changed.
    pub fn install(settings: Settings) -> Result<Self, InstallError> {
        system::install(settings.signal.number())?;
        system::shield_forks();
        Ok(Self {
            signal: settings.signal,
            asymmetric: system::register_barrier(),
        })
    }

    /// The signal that is used.
    #[must_use]
    pub fn signal(&self) -> Signal {
        self.signal
    }

    /// Whether the signal still comes to this crate's handler, or somebody has put another one in its place. One system call.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        system::is_in_place(self.signal.number())
    }

    /// Runs `body` on the calling thread as one that has regions. The signal is let through meanwhile, and blocked again
    /// afterwards if it was.
    ///
    /// It takes a closure and is no guard so that nobody can keep a thread's id beyond the thread: a value can be
    /// forgotten.
    ///
    /// # Errors
    /// [`EnterError`]: the thread is inside already; too many threads are (4,096 at most; from about half of that on an
    /// unlucky id may be refused); the thread's signal mask cannot be changed. `body` was not run.
    pub fn enter<R>(&self, body: impl FnOnce(&mut Thread) -> R) -> Result<R, EnterError> {
        let inside = INSIDE
            .try_with(|inside| inside.borrow().is_some())
            .map_err(|_| EnterError::ThreadEnds)?;
        if inside {
            return Err(EnterError::Nested);
        }
        let identity = Identity {
            process: system::process_id(),
            thread: system::thread_id(),
        };
        let slot = Arc::new(Slot::new(
            identity,
            system::attributes(identity.thread).ok(),
            self.asymmetric,
        ));
        let place = table::insert(&slot).ok_or(EnterError::TooManyThreads {
            max: table::THREADS_MAX,
        })?;
        let signal = self.signal.number();
        let was_blocked = system::unblock(signal).map_err(|errno| EnterError::Refused {
            call: "pthread_sigmask",
            errno,
        })?;
        INSIDE.with(|inside| {
            *inside.borrow_mut() = Some(Inside {
                slot: slot.clone(),
                number: Cell::new(0),
            });
        });
        step::set(Some(&slot));
        let mut thread = Thread::new(slot.clone(), self.signal);
        let _leave = Leave {
            slot,
            blocked: was_blocked.then_some(signal),
            _place: place,
        };
        Ok(body(&mut thread))
    }
}

/// The end of [`Pauser::enter`], on unwinding too.
struct Leave {
    slot: Arc<Slot>,
    /// The signal, if it was blocked before.
    blocked: Option<i32>,
    /// Given back last.
    _place: table::Place,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.slot.leave();
        step::set(None);
        INSIDE.with(|inside| *inside.borrow_mut() = None);
        if let Some(signal) = self.blocked {
            // It worked in the other direction; and if it fails now, a signal that nobody sends is let through.
            let _ = system::block(signal);
        }
    }
}
