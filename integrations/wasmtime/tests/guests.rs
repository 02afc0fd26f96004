//! Hazards: a guest keeps its processor from others, gives it up while nobody is due, or is not stopped when it never asks. On real
//! threads: what is asserted of time is a bound on hanging.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quotient::{Preempt, Scheduler};
use quotient_wasmtime::{Ticker, give_way, give_way_by_fuel};
use wasmtime::{Config, Engine, Instance, Module, Result, Store};

/// Longer than anything here takes, on a busy machine too.
const HANG: Duration = Duration::from_secs(120);

/// Counts down.
const GUEST: &str = r#"(module (func (export "run") (param $n i64) (result i64)
    (loop $again
        (local.set $n (i64.sub (local.get $n) (i64.const 1)))
        (br_if $again (i64.ne (local.get $n) (i64.const 0))))
    (local.get $n)))"#;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Epochs,
    Fuel,
    Never,
}

async fn call(engine: Engine, module: Module, way: Way, rounds: i64) -> Result<i64> {
    let mut store = Store::new(&engine, ());
    match way {
        Way::Epochs => give_way(&mut store),
        Way::Fuel => give_way_by_fuel(&mut store, 100_000)?,
        Way::Never => store.set_epoch_deadline(u64::MAX / 2),
    }
    let instance = Instance::new_async(&mut store, &module, &[]).await?;
    let run = instance.get_typed_func::<i64, i64>(&mut store, "run")?;
    run.call_async(&mut store, rounds).await
}

fn compiled(way: Way) -> (Engine, Module) {
    let mut config = Config::new();
    match way {
        Way::Fuel => config.consume_fuel(true),
        _ => config.epoch_interruption(true),
    };
    let engine = Engine::new(&config).unwrap();
    let module = Module::new(&engine, GUEST).unwrap();
    (engine, module)
}

/// On one virtual CPU a task of another group runs while the guest, which has seconds to compute, is under way.
async fn others_run(way: Way, preempt: bool) {
    let (engine, module) = compiled(way);
    let _ticker = Ticker::start(&engine, Duration::from_millis(1)).unwrap();
    let builder = Scheduler::builder().vcpus(1);
    let builder = if preempt {
        builder.preempt(Preempt::default())
    } else {
        builder
    };
    let scheduler = builder.build().unwrap();
    let (guest, other) = (
        scheduler.group("guest").unwrap(),
        scheduler.group("other").unwrap(),
    );
    let (guest, other) = (guest.create().unwrap(), other.create().unwrap());
    let ended = Arc::new(AtomicBool::new(false));
    let witness = ended.clone();
    let running = guest.spawn(async move {
        let result = call(engine, module, way, 8_000_000_000).await;
        witness.store(true, Ordering::SeqCst);
        result
    });
    for _ in 0..5 {
        let task = other.spawn(async { tokio::time::sleep(Duration::from_millis(1)).await });
        tokio::time::timeout(HANG, task).await.unwrap().unwrap();
    }
    assert!(
        !ended.load(Ordering::SeqCst),
        "the guest had too little to do"
    );
    assert!(guest.stats().polls > 0 || preempt);
    // One that gives way can be ended so; one that does not is stopped for good by the scheduler's end.
    if way != Way::Never {
        running.abort();
        assert!(
            tokio::time::timeout(HANG, running)
                .await
                .unwrap()
                .unwrap_err()
                .is_cancelled()
        );
        scheduler.shutdown().await;
    }
}

fn on_one_worker(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(HANG, test).await.expect("hangs") });
    runtime.shutdown_background();
}

#[test]
fn a_guest_with_epochs_keeps_its_processor() {
    on_one_worker(others_run(Way::Epochs, false));
}

#[test]
fn a_guest_with_fuel_keeps_its_processor() {
    on_one_worker(others_run(Way::Fuel, false));
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#[test]
fn a_guest_that_never_gives_way_keeps_its_processor() {
    on_one_worker(others_run(Way::Never, true));
}

#[test]
fn a_guest_that_is_alone_leaves_its_poll() {
    on_one_worker(async {
        let (engine, module) = compiled(Way::Epochs);
        let _ticker = Ticker::start(&engine, Duration::from_millis(1)).unwrap();
        let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
        let group = scheduler.group("guest").unwrap().create().unwrap();
        let task = group.spawn(call(engine, module, Way::Epochs, 300_000_000));
        assert_eq!(task.await.unwrap().unwrap(), 0);
        // It is asked a hundred times, and goes by the driver of the runtime now and then.
        assert!(group.stats().polls < 60, "{:?}", group.stats());
        scheduler.shutdown().await;
    });
}

#[test]
fn a_ticker_without_interval_spins() {
    let (engine, _) = compiled(Way::Epochs);
    assert!(Ticker::start(&engine, Duration::ZERO).is_err());
}
