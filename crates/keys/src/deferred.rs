//! Keys whose sites are brought to their cheap form later.
//!
//! The list holds each key at most once, so it is bounded by the number of keys. A helper thread looks after it: it is
//! started with the first entry and ends when the list has been empty for a while. It holds no key, decides nothing,
//! and its absence costs only speed: a site that is not settled is a jump and right.

use std::sync::Condvar;
use std::time::{Duration, Instant};

use quotient_key::Key;

use crate::engine;

/// How long the helper stays without work before it ends. Ours: longer than any sensible interval between two flips of
/// a flapping key, so that such a key does not start a thread each time.
const HELPER_IDLE: Duration = Duration::from_secs(5);

/// Wakes the helper when an entry was added. Belongs to the engine's lock.
static ADDED: Condvar = Condvar::new();

struct Entry {
    key: &'static Key,
    due: Instant,
}

/// The list, part of the engine and under its lock.
pub(crate) struct Deferred {
    entries: Vec<Entry>,
    helper_runs: bool,
}

impl Deferred {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            helper_runs: false,
        }
    }

    /// Adds a key. `false` if there is nobody to look after it: the caller settles now.
    pub(crate) fn add(&mut self, key: &'static Key, delay: Duration) -> bool {
        let Some(due) = Instant::now().checked_add(delay) else {
            // Beyond what the clock can express: never.
            return true;
        };
        if !self.helper_runs {
            let started = std::thread::Builder::new()
                .name("quotient-keys".to_owned())
                .spawn(helper);
            if started.is_err() {
                return false;
            }
            self.helper_runs = true;
        }
        self.forget(key);
        self.entries.push(Entry { key, due });
        ADDED.notify_one();
        true
    }

    pub(crate) fn forget(&mut self, key: &'static Key) {
        self.entries.retain(|entry| !core::ptr::eq(entry.key, key));
    }

    pub(crate) fn forget_all(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn contains(&self, key: &'static Key) -> bool {
        self.entries
            .iter()
            .any(|entry| core::ptr::eq(entry.key, key))
    }

    /// The child of a fork has no helper, and starts one with its next entry. Entries it inherits are settled with the
    /// key's next flip.
    #[cfg_attr(not(patching), allow(dead_code))]
    pub(crate) fn helper_was_lost(&mut self) {
        self.helper_runs = false;
    }

    pub(crate) fn take_due(&mut self) -> Vec<&'static Key> {
        let now = Instant::now();
        let (due, rest) = self.entries.drain(..).partition(|entry| entry.due <= now);
        self.entries = rest;
        due.into_iter().map(|entry: Entry| entry.key).collect()
    }

    pub(crate) fn next_delay(&self) -> Option<Duration> {
        let earliest = self.entries.iter().map(|entry| entry.due).min()?;
        Some(earliest.saturating_duration_since(Instant::now()))
    }
}

fn helper() {
    let mut engine = engine::lock();
    loop {
        let delay = engine.settle_due();
        let (guard, timeout) = ADDED
            .wait_timeout(engine, delay.unwrap_or(HELPER_IDLE))
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        engine = guard;
        if delay.is_none() && timeout.timed_out() && engine.deferred.next_delay().is_none() {
            engine.deferred.helper_runs = false;
            return;
        }
    }
}
