//! The noisy neighbour: many tasks that always have work to do, of three kinds. Most yield often, some compute for [`POLL_LONG`] between two
//! yields, and one never returns from its first poll.

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{clock, work};

/// The shortest poll among the hogs that yield often.
const POLL_SHORTEST: Duration = Duration::from_micros(50);
/// The longest poll among those.
const POLL_LONGEST: Duration = Duration::from_millis(1);
/// What one in [`LONG_ONE_IN`] hogs computes in a poll.
const POLL_LONG: Duration = Duration::from_millis(20);
/// How many hogs there are for one with long polls.
const LONG_ONE_IN: u32 = 8;
/// A poll that does not return books what it has used after so many documents: some ten thousand a second.
const DOCUMENTS_A_BOOKING: u64 = 16;

/// What the tenants of the server process have done so far. Relaxed counters, read by the sampler only.
#[derive(Debug, Default)]
pub struct Counters {
    /// CPU time inside hog polls.
    pub hog_cpu_ns: AtomicU64,
    /// Documents worked off by hogs.
    pub hog_documents: AtomicU64,
    /// Requests answered by the victim.
    pub requests: AtomicU64,
}

/// A hog, ready to be spawned anywhere.
pub type Hog = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How long hog `number` of `count` works between two yields: the last one for ever, one in [`LONG_ONE_IN`] for [`POLL_LONG`], the
/// others from 50 µs to 1 ms, spread evenly on a logarithmic scale.
pub fn poll_length(number: u32, count: u32) -> Duration {
    if number + 1 == count {
        return Duration::MAX;
    }
    if number % LONG_ONE_IN == LONG_ONE_IN - 1 {
        return POLL_LONG;
    }
    let position = f64::from(number) / f64::from(count.saturating_sub(2).max(1));
    let ratio = POLL_LONGEST.as_secs_f64() / POLL_SHORTEST.as_secs_f64();
    POLL_SHORTEST.mul_f64(ratio.powf(position.min(1.0)))
}

/// Works for ever in polls of `poll_length`. The same future in every mode: it knows nothing of the scheduler.
pub async fn hog(number: u32, poll_length: Duration, counters: Arc<Counters>) {
    let document = work::document(u64::from(number), work::ORDERS_PER_HOG_DOCUMENT);
    loop {
        let started = Instant::now();
        while started.elapsed() < poll_length {
            let cpu_before = clock::thread_cpu();
            let mut documents = 0;
            while documents < DOCUMENTS_A_BOOKING && started.elapsed() < poll_length {
                // The document is our own, so it parses; black_box keeps the optimiser from noticing.
                let _ = black_box(work::summarise(black_box(&document)));
                documents += 1;
            }
            let cpu = clock::thread_cpu().saturating_sub(cpu_before);
            let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
            counters.hog_cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
            counters
                .hog_documents
                .fetch_add(documents, Ordering::Relaxed);
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_three_kinds() {
        assert_eq!(poll_length(0, 64), POLL_SHORTEST);
        assert_eq!(poll_length(63, 64), Duration::MAX);
        let lengths = || (0..63).map(|number| poll_length(number, 64));
        let long = lengths().filter(|length| *length == POLL_LONG).count();
        assert_eq!(long, 7);
        let short: Vec<_> = lengths().filter(|length| *length != POLL_LONG).collect();
        assert!(short.is_sorted() && short.iter().all(|length| *length <= POLL_LONGEST));
        assert!(short[55].abs_diff(POLL_LONGEST) < Duration::from_micros(1));
        assert_eq!(poll_length(0, 1), Duration::MAX);
    }
}
