//! The table, and what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datafusion::arrow::array::{Float64Array, Int64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::error::Result;

/// Rows of the table: 24 bytes each. A point query looks at each `id`, some 2 ms.
const ROWS: i64 = 3_000_000;
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

/// A point query at each call, for another row.
pub fn lookups() -> impl FnMut() -> String {
    let mut id = 0;
    move || {
        id = (id + 7_654_321) % ROWS;
        format!("SELECT value FROM events WHERE id = {id}")
    }
}

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
