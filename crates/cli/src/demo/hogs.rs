//! The noisy neighbour: many tasks that always have work to do, cooperative ones, that yield after every poll.

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{clock, work};

/// The shortest poll among the hogs.
const POLL_SHORTEST: Duration = Duration::from_micros(50);
/// The longest poll among the hogs.
pub const POLL_LONGEST: Duration = Duration::from_millis(1);

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

/// How long hog `number` of `count` works between two yields: from 50 µs to 1 ms, spread evenly on a logarithmic
/// scale.
pub fn poll_length(number: u32, count: u32) -> Duration {
    let position = f64::from(number) / f64::from(count.saturating_sub(1).max(1));
    let ratio = POLL_LONGEST.as_secs_f64() / POLL_SHORTEST.as_secs_f64();
    POLL_SHORTEST.mul_f64(ratio.powf(position.min(1.0)))
}

/// Works for ever in polls of `poll_length`. The same future in every mode: it knows nothing of the scheduler.
pub async fn hog(number: u32, poll_length: Duration, counters: Arc<Counters>) {
    let document = work::document(u64::from(number), work::ORDERS_PER_HOG_DOCUMENT);
    loop {
        let cpu_before = clock::thread_cpu();
        let started = Instant::now();
        let mut documents = 0;
        while started.elapsed() < poll_length {
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
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_spread_from_shortest_to_longest() {
        assert_eq!(poll_length(0, 64), POLL_SHORTEST);
        assert!(poll_length(63, 64).abs_diff(POLL_LONGEST) < Duration::from_micros(1));
        assert!((1..64).all(|number| poll_length(number, 64) > poll_length(number - 1, 64)));
        assert_eq!(poll_length(0, 1), POLL_SHORTEST);
    }
}
