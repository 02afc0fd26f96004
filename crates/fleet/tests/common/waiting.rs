//! Waiting for what must come.

use std::time::{Duration, Instant};

/// Returns when it holds; what takes longer than `patience` is a failure.
pub async fn until(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < patience, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
