//! A tenant that takes what it gets.

use std::time::{Duration, Instant};

/// Never runs out of work, in polls of 200 us.
pub async fn burn() {
    loop {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
        tokio::task::yield_now().await;
    }
}
