//! Sorting within a small window: recorders flush CPU by CPU, so neighbours may come in the wrong order.

use std::collections::VecDeque;

use quotient_core::event::Event;

use super::error::ReadError;

/// Holds back a bounded number of events, sorted by time; equal times keep their order.
pub(crate) struct Reorder {
    window: usize,
    held: VecDeque<(u64, Event)>,
    last: Option<Event>,
}

impl Reorder {
    /// `window` events are held back; 0 demands a sorted trace.
    pub(crate) fn new(window: usize) -> Reorder {
        Reorder {
            window,
            held: VecDeque::new(),
            last: None,
        }
    }

    /// Takes the event of `line`.
    ///
    /// # Errors
    /// `OutOfOrder` if a later event was given away already.
    pub(crate) fn push(&mut self, line: u64, event: Event) -> Result<(), ReadError> {
        if let Some(last) = self.last
            && event.time < last.time
        {
            return Err(ReadError::OutOfOrder {
                line,
                time: event.time,
                last: last.time,
                window: self.window,
            });
        }
        // Nearly always the newest: walking back from the end beats a search.
        let later = self
            .held
            .iter()
            .rev()
            .take_while(|(_, held)| held.time > event.time)
            .count();
        let place = self.held.len() - later;
        self.held.insert(place, (line, event));
        Ok(())
    }

    /// The oldest event once the window is full; any event at all once `at_end`.
    pub(crate) fn pop(&mut self, at_end: bool) -> Option<(u64, Event)> {
        if !at_end && self.held.len() <= self.window {
            return None;
        }
        let (line, event) = self.held.pop_front()?;
        self.last = Some(event);
        Some((line, event))
    }
}

#[cfg(test)]
mod tests {
    use quotient_core::event::Kind;
    use quotient_core::{CpuId, Nanos};

    use super::*;

    fn at(time: u64) -> Event {
        Event::new(Nanos(time), CpuId(0), Kind::Tick)
    }

    #[test]
    fn neighbours_are_sorted_and_equals_keep_their_order() {
        let mut reorder = Reorder::new(2);
        let mut times = Vec::new();
        for (line, time) in [30, 10, 20, 40, 40].into_iter().enumerate() {
            reorder
                .push(line as u64, at(time))
                .expect("within the window");
            times.extend(reorder.pop(false));
        }
        while let Some(event) = reorder.pop(true) {
            times.push(event);
        }
        let seen: Vec<_> = times
            .into_iter()
            .map(|(line, event)| (line, event.time.0))
            .collect();
        assert_eq!(seen, [(1, 10), (2, 20), (0, 30), (3, 40), (4, 40)]);
    }

    #[test]
    fn beyond_the_window_both_time_stamps_are_named() {
        let mut reorder = Reorder::new(1);
        for time in [10, 20] {
            reorder.push(1, at(time)).expect("in order");
        }
        assert!(reorder.pop(false).is_some());
        let error = reorder.push(7, at(9)).expect_err("10 is gone");
        let text = error.to_string();
        assert!(
            text.contains("line 7") && text.contains("0.000000009") && text.contains("0.000000010"),
            "{text}"
        );
    }
}
