//! The table, and what is measured.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Float64Array, Int64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::error::Result;

use crate::measure::{Host, percentile, process_cpu};

/// Rows of the table: 24 bytes each. A point query looks at each `id`, some 2 ms.
pub const ROWS: i64 = 3_000_000;
/// Rows of a batch, as DataFusion's default.
const BATCH: i64 = 8_192;

/// What a tenant asks without end, a query a loop: its polls take up to half a second.
pub const HEAVY: [&str; 4] = [
    "SELECT kind, sum(value), count(*) FROM events GROUP BY kind ORDER BY 2 DESC LIMIT 10",
    "SELECT id % 200000, sum(value) FROM events GROUP BY 1 ORDER BY 2 DESC LIMIT 10",
    "SELECT max(step) FROM (SELECT value - lag(value) OVER (ORDER BY value) AS step FROM events WHERE kind < 250)",
    "SELECT count(distinct id % 50000) FROM events",
];
/// How often a row is looked up.
pub const POINT_EVERY: Duration = Duration::from_millis(25);

/// `id` counts, `kind` is one of 1,000, `value` by chance; in two partitions.
pub fn events() -> Result<Arc<MemTable>> {
    let columns = [
        ("id", DataType::Int64),
        ("kind", DataType::Int64),
        ("value", DataType::Float64),
    ];
    let fields = columns.map(|(name, kind)| Field::new(name, kind, false));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let mut random = 88_172_645_463_325_252_u64;
    let mut partitions = vec![Vec::new(), Vec::new()];
    for (index, begin) in (0..ROWS).step_by(BATCH as usize).enumerate() {
        let ids = begin..(begin + BATCH).min(ROWS);
        let values: Vec<u64> = ids
            .clone()
            .map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random >> 11
            })
            .collect();
        let kinds = values.iter().map(|value| (value % 1_000) as i64);
        let batch = RecordBatch::try_new(
            schema.clone(),
            vec![
                Arc::new(Int64Array::from_iter_values(ids)),
                Arc::new(Int64Array::from_iter_values(kinds)),
                Arc::new(Float64Array::from_iter_values(
                    values.iter().map(|&value| value as f64),
                )),
            ],
        )?;
        partitions[index % 2].push(batch);
    }
    Ok(Arc::new(MemTable::try_new(schema, partitions)?))
}

/// Tells who asks without end to stop, and waits for their last answers.
pub fn end(stop: &Arc<AtomicBool>) {
    stop.store(true, Ordering::Relaxed);
    while Arc::strong_count(stop) > 1 {
        std::thread::sleep(Duration::from_millis(10));
    }
}

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
