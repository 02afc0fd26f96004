//! What is measured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::measure::{Host, percentile, process_cpu};

/// What a tenant was answered.
#[derive(Default)]
pub struct Counts {
    queries: AtomicU64,
    /// From when the query was due to its answer, in milliseconds.
    took: Mutex<Vec<f64>>,
}

impl Counts {
    pub fn answered(&self, batches: usize, due: Instant) {
        assert!(batches > 0, "an answer without rows");
        self.queries.fetch_add(1, Ordering::Relaxed);
        let mut took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        took.push(due.elapsed().as_secs_f64() * 1e3);
    }

    fn queries(&self) -> f64 {
        self.queries.load(Ordering::Relaxed) as f64
    }
}

/// A look at the tenants `light`, `heavy` and `points`.
pub struct Figures<'a> {
    tenants: [(&'a Host, &'a Counts); 3],
    begun: Instant,
    process: f64,
    clocks: [f64; 3],
    queries: [f64; 3],
}

impl<'a> Figures<'a> {
    /// After a second in which all get under way.
    pub fn begin(tenants: [(&'a Host, &'a Counts); 3]) -> Self {
        std::thread::sleep(Duration::from_secs(1));
        let (_, points) = &tenants[2];
        points
            .took
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        Self {
            begun: Instant::now(),
            process: process_cpu(),
            clocks: tenants.map(|(host, _)| host.clock()),
            queries: tenants.map(|(_, counts)| counts.queries()),
            tenants,
        }
    }

    pub fn print(self, name: &str) {
        let wall = self.begun.elapsed().as_secs_f64();
        let process = (process_cpu() - self.process) / wall;
        let [light, heavy, points] =
            [0, 1, 2].map(|tenant| (self.tenants[tenant].0.clock() - self.clocks[tenant]) / wall);
        let [light_done, heavy_done, points_done] = [0, 1, 2]
            .map(|tenant| (self.tenants[tenant].1.queries() - self.queries[tenant]) / wall);
        let counts = self.tenants[2].1;
        let mut took = counts
            .took
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let [p50, p99] = [0.5, 0.99].map(|part| percentile(&mut took, part));
        println!(
            "{name}: process {process:.2} CPUs; heavy queries/s, light and heavy {light_done:.2} and {heavy_done:.2}"
        );
        println!("  {points_done:.1} point queries/s, p50 {p50:.1} ms, p99 {p99:.1} ms");
        if light.is_finite() {
            let seen = 100.0 * (light + heavy + points) / process;
            println!(
                "  clocks: light {light:.3}, heavy {heavy:.3}, points {points:.3} CPUs; heavy by light {:.2}; seen {seen:.1} %",
                heavy / light
            );
        }
    }
}
