//! Busy threads beside the tests, for who asks.

use std::sync::Once;

/// Starts as many threads that compute for the rest of the process as `QUOTIENT_LOAD` says, once; none by default.
pub fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let wanted = std::env::var("QUOTIENT_LOAD").ok();
        let threads = wanted.and_then(|text| text.parse().ok()).unwrap_or(0_usize);
        for _ in 0..threads.min(64) {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
    });
}
