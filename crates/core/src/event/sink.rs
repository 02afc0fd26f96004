//! Who takes events: writers, statistics, checks, rings.

use super::{Definition, Event};

/// Takes definitions and events in the order of time.
///
/// Static dispatch: a host is generic over its sink, and with [`Discard`] the recording compiles to nothing. Taking an
/// event cannot fail, because the hot paths of a simulator have nowhere to put an error; a sink that writes keeps its
/// first error, takes nothing more, and says so in [`Sink::is_done`] and when it is closed.
pub trait Sink {
    /// Whether anybody could want an event; `false` lets the compiler drop the code that makes them.
    const ENABLED: bool = true;

    /// Whether an event is wanted now. Asked before an event that costs something to make.
    #[inline]
    fn enabled(&self) -> bool {
        Self::ENABLED
    }

    /// Takes the meaning of a number, before the first event that uses it.
    fn define(&mut self, definition: &Definition);

    /// Takes an event.
    fn event(&mut self, event: &Event);

    /// Whether further events would be thrown away: the sink failed, or has seen enough.
    fn is_done(&self) -> bool {
        false
    }
}

/// Wants nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discard;

impl Sink for Discard {
    const ENABLED: bool = false;

    fn define(&mut self, _: &Definition) {}

    #[inline(always)]
    fn event(&mut self, _: &Event) {}
}

/// Keeps the events and drops the names. Grows without bound: for tests and short runs.
impl Sink for Vec<Event> {
    fn define(&mut self, _: &Definition) {}

    fn event(&mut self, event: &Event) {
        self.push(*event);
    }
}

impl<S: Sink> Sink for &mut S {
    const ENABLED: bool = S::ENABLED;

    fn enabled(&self) -> bool {
        S::enabled(self)
    }

    fn define(&mut self, definition: &Definition) {
        S::define(self, definition);
    }

    fn event(&mut self, event: &Event) {
        S::event(self, event);
    }

    fn is_done(&self) -> bool {
        S::is_done(self)
    }
}

/// Both take everything.
impl<A: Sink, B: Sink> Sink for (A, B) {
    const ENABLED: bool = A::ENABLED || B::ENABLED;

    fn enabled(&self) -> bool {
        self.0.enabled() || self.1.enabled()
    }

    fn define(&mut self, definition: &Definition) {
        self.0.define(definition);
        self.1.define(definition);
    }

    fn event(&mut self, event: &Event) {
        self.0.event(event);
        self.1.event(event);
    }

    fn is_done(&self) -> bool {
        self.0.is_done() && self.1.is_done()
    }
}

/// Nothing, if there is none.
impl<S: Sink> Sink for Option<S> {
    const ENABLED: bool = S::ENABLED;

    fn enabled(&self) -> bool {
        self.as_ref().is_some_and(S::enabled)
    }

    fn define(&mut self, definition: &Definition) {
        if let Some(sink) = self {
            sink.define(definition);
        }
    }

    fn event(&mut self, event: &Event) {
        if let Some(sink) = self {
            sink.event(event);
        }
    }

    fn is_done(&self) -> bool {
        self.as_ref().is_none_or(S::is_done)
    }
}
