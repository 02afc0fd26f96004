//! A guest that computes, for the measuring examples.
#![allow(dead_code)] // each example uses its part

#[path = "../../../common/measure.rs"]
pub mod measure;

use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};
use std::time::{Duration, Instant};

use measure::{Host, MODES, Rig};
use quotient_wasmtime::Ticker;
use wasmtime::{Config, Engine, Instance, Module, Result, Store};

const GUEST: &str = include_str!("xorshift.wat");

/// A module.
#[derive(Clone)]
pub struct Guest {
    pub engine: Engine,
    module: Module,
    per_ms: f64, // rounds
}

impl Guest {
    /// The same on an engine of its own, whose epoch nobody moves on: its calls never give way, and [`Guest::end`] ends them.
    pub fn stuck(&self) -> Result<Self> {
        let engine = Engine::new(Config::new().epoch_interruption(true))?;
        Self::on(engine, self.per_ms)
    }

    fn on(engine: Engine, per_ms: f64) -> Result<Self> {
        let module = Module::new(&engine, GUEST)?;
        Ok(Self {
            engine,
            module,
            per_ms,
        })
    }

    /// Ends all calls that never give way, by a trap: also those that begin once others have left a worker to them.
    pub fn end(&self) {
        for _ in 0..500 {
            self.engine.increment_epoch();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A call that computes for `ms`.
    pub async fn call(&self, ms: f64, gives_way: bool) -> Result<i64> {
        let mut store = Store::new(&self.engine, ());
        match gives_way {
            true => quotient_wasmtime::give_way(&mut store),
            false => store.set_epoch_deadline(1),
        }
        let instance = Instance::new_async(&mut store, &self.module, &[]).await?;
        let run = instance.get_typed_func::<i64, i64>(&mut store, "run")?;
        run.call_async(&mut store, (self.per_ms * ms) as i64).await
    }

    /// Calls of `ms` without end.
    pub fn keep_busy(&self, host: &Host, ms: f64, gives_way: bool, done: &Arc<AtomicU64>) {
        let (guest, done) = (self.clone(), done.clone());
        host.spawn(async move {
            while guest.call(ms, gives_way).await.is_ok() {
                done.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
}

/// A guest, and the ticker of its engine.
pub fn compiled() -> Result<(Guest, Ticker)> {
    let engine = Engine::new(Config::new().epoch_interruption(true))?;
    let ticker = Ticker::start(&engine, Duration::from_millis(1))?;
    let mut guest = Guest::on(engine, 1e5)?;
    let begun = Instant::now();
    tokio::runtime::Runtime::new()?.block_on(guest.stuck()?.call(1e3, false))?;
    guest.per_ms = 1e8 / begun.elapsed().as_secs_f64() / 1e3;
    Ok((guest, ticker))
}

/// Runs `test` with every set-up.
pub fn measure(test: fn(&Guest, &Rig) -> Result<()>) -> Result<()> {
    let (guest, _ticker) = compiled()?;
    for mode in MODES {
        let rig = Rig::new(mode);
        print!("{mode:?}: ");
        test(&guest, &rig)?;
        rig.abandon();
        measure::quiet();
    }
    Ok(())
}

/// Each part of their sum.
pub fn percents(parts: &[f64]) -> String {
    let percent = |part: &f64| format!("{:.1} % ", 100.0 * part / parts.iter().sum::<f64>());
    parts.iter().map(percent).collect()
}
