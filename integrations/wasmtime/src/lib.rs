//! WebAssembly guests of [`wasmtime`] in the groups of a [`quotient::Scheduler`]: they give way when somebody else is due.
//!
//! ```
//! use std::time::Duration;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let module_text = r#"(module (func (export "run") (param i64) (result i64) (local.get 0)))"#;
//! let scheduler = quotient::Scheduler::builder().build()?;
//! let acme = scheduler.group("tenants/acme")?.create()?;
//! let engine = wasmtime::Engine::new(wasmtime::Config::new().epoch_interruption(true))?;
//! let ticker = quotient_wasmtime::Ticker::start(&engine, Duration::from_millis(1))?;
//! let module = wasmtime::Module::new(&engine, module_text)?;
//! let answer = acme.spawn(async move {
//!     let mut store = wasmtime::Store::new(&engine, ());
//!     quotient_wasmtime::give_way(&mut store); // the one line
//!     let instance = wasmtime::Instance::new_async(&mut store, &module, &[]).await?;
//!     instance.get_typed_func::<i64, i64>(&mut store, "run")?.call_async(&mut store, 42).await
//! });
//! assert_eq!(answer.await??, 42);
//! # drop(ticker);
//! # scheduler.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # How a guest gives way
//! wasmtime looks at the engine's epoch at the head of each function and loop. When it has moved on, the guest's callback asks
//! [`quotient::should_yield`], one load: nobody is due, and the guest goes on where it is; somebody is, and the call's future returns
//! `Pending`, woken for its next turn. So a guest that is alone never leaves its poll, and one beside others leaves it within two ticks.
//!
//! # Fuel
//! [`give_way_by_fuel`] needs no ticker. wasmtime has no callback there: the guest leaves its poll after each so much fuel, whether
//! somebody is due or not.
//!
//! # Guests that never give way
//! An engine without epochs, a store without a callback, a host function that computes: such a poll does not return. With
//! [`quotient::Builder::preempt`] it is stopped at whatever instruction it is at, and its group's weight and limit hold for it; without,
//! it holds its virtual CPU until it returns.
#![forbid(unsafe_code)]

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use wasmtime::{Engine, EngineWeak, Result, Store, StoreContextMut, UpdateDeadline};

/// The guest gives way whenever somebody else is due, as of the engine's next epoch; its calls must be the `_async` ones. Needs
/// [`wasmtime::Config::epoch_interruption`] and something that moves the epoch on, such as a [`Ticker`].
///
/// The same by hand: `store.set_epoch_deadline(1); store.epoch_deadline_callback(quotient_wasmtime::on_epoch);`, where a callback of one's
/// own may do more.
pub fn give_way<T: 'static>(store: &mut Store<T>) {
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(on_epoch);
}

/// What [`give_way`] answers at each epoch: on if nobody is due, else off the processor; asked again at the next epoch.
///
/// # Errors
/// None; the type is wasmtime's.
pub fn on_epoch<T>(_store: StoreContextMut<'_, T>) -> Result<UpdateDeadline> {
    Ok(if quotient::should_yield() {
        UpdateDeadline::Yield(1)
    } else {
        UpdateDeadline::Continue(1)
    })
}

/// The guest gives way each time it has used `interval` of fuel, of which it gets as much as there is. Needs
/// [`wasmtime::Config::consume_fuel`].
///
/// An instruction is about a unit: 500,000 are some 0.2 ms. wasmtime has no callback for fuel, so the guest leaves its poll also when
/// nobody is due.
///
/// # Errors
/// As [`Store::set_fuel`]: the engine does not count fuel.
pub fn give_way_by_fuel<T>(store: &mut Store<T>, interval: u64) -> Result<()> {
    store.set_fuel(u64::MAX)?;
    store.fuel_async_yield_interval(Some(interval))
}

/// A thread that moves an engine's epoch on, named `quotient-epoch`; ends when this is dropped, or with the engine.
#[derive(Debug)]
pub struct Ticker {
    /// Its end is the thread's.
    _stop: Sender<()>,
}

impl Ticker {
    /// Moves the epoch of `engine` on every `interval`. 1 ms is what the scheduler asks for: it looks who is due as often.
    ///
    /// # Errors
    /// When no thread can be started, or `interval` is zero.
    pub fn start(engine: &Engine, interval: Duration) -> io::Result<Self> {
        if interval.is_zero() {
            let message = "interval is 0 s, allowed is anything longer";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let (stop, stopped) = channel();
        let engine = engine.weak();
        std::thread::Builder::new()
            .name("quotient-epoch".into())
            .spawn(move || tick(&engine, &stopped, interval))?;
        Ok(Self { _stop: stop })
    }
}

fn tick(engine: &EngineWeak, stopped: &Receiver<()>, interval: Duration) {
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        match engine.upgrade() {
            Some(engine) => engine.increment_epoch(),
            None => return,
        }
    }
}

/// The guide's block of code, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/wasm-host.md")]
mod guide {}
