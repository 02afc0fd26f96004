//! How long a request waits for its handler: [`crate::GroupBuilder::queue_wait_max`].
//!
//! Two sides race for one word: the handler's first poll makes it `STARTED`, the connection, once the time is over, `GIVEN_UP`. Who
//! changes `WAITING` has won. A handler that lost never starts: it stays pending until the connection, which is about to drop it, does.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Context;

use crate::alarms::Alarm;
use crate::group::Group;

const WAITING: u8 = 0;
const STARTED: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The connection's side.
#[derive(Debug)]
pub(super) struct Patience {
    word: Arc<AtomicU8>,
    /// `None` once it does not matter any more.
    alarm: Option<Alarm>,
}

impl Patience {
    /// Of a request that comes now; `None` if it may wait for ever.
    pub(super) fn of(group: &Group) -> Option<Self> {
        let wait = group.inner.queue_wait_max()?;
        let due = group.shared.now().saturating_add(wait);
        Some(Self {
            word: Arc::new(AtomicU8::new(WAITING)),
            alarm: Some(Alarm::new(&group.shared, due)),
        })
    }

    /// Whether the time is over and the handler has not started; it will not then.
    pub(super) fn is_over(&mut self, context: &Context<'_>) -> bool {
        let Some(alarm) = &mut self.alarm else {
            return false;
        };
        if self.word.load(Ordering::Relaxed) == WAITING && alarm.poll(context).is_pending() {
            return false;
        }
        self.alarm = None;
        self.word
            .compare_exchange(WAITING, GIVEN_UP, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// The handler's side.
#[derive(Debug)]
pub(super) struct Start(Option<Arc<AtomicU8>>);

impl Start {
    pub(super) fn of(patience: Option<&Patience>) -> Self {
        Self(patience.map(|patience| patience.word.clone()))
    }

    /// Returns if the handler is to start.
    pub(super) async fn wait(self) {
        let lost = self.0.is_some_and(|word| {
            word.compare_exchange(WAITING, STARTED, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        });
        if lost {
            pending::<()>().await;
        }
    }
}
