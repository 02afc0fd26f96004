//! A task of a limited group holds a lock for a millisecond at a time; somebody without a limit wants it every 5 ms. When the
//! holder is throttled with the lock in its hands, the other waits for the holder's next period.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quotient_validation::cgroup::Controller;
use quotient_validation::load::{JobLog, Mark, Meter, Worker};
use quotient_validation::observe::sleep_until;
use quotient_validation::outcome::quantile;
use quotient_validation::runtime::Settings;
use quotient_validation::scenario::Cap;
use quotient_validation::{Interrupt, Problem};

use super::{Mode, Row, Ward, settings};
use crate::bench::workload::self_wake;

/// The pain's name.
pub const NAME: &str = "lock_holder";
/// The holder's limit.
const CAP: Cap = Cap::ms(10, 100);
/// For how long the lock is held, and then not held, in CPU time.
const HELD: Duration = Duration::from_millis(1);
/// A poll of the holder.
const POLL: Duration = Duration::from_micros(50);
/// Time between two attempts of the waiter.
const EVERY: Duration = Duration::from_millis(5);
/// How long each mode runs.
const LENGTH: Duration = Duration::from_secs(10);
/// Bar: the waiter's p99 with the limit over that without.
const RATIO_MAX: f64 = 3.0;

/// The waiter's p99 without and with the limit, in every mode.
pub fn measure(ward: &Ward) -> Result<Vec<Row>, Problem> {
    let mut rows = Vec::new();
    for mode in [
        Mode::Default,
        Mode::DefaultTokioLock,
        Mode::KernelRules,
        Mode::RealKernel,
    ] {
        let (Some(free), Some(capped)) = (waits(ward, mode, None)?, waits(ward, mode, Some(CAP))?)
        else {
            continue;
        };
        let part = |waits: &[f64], part| quantile(waits, part).unwrap_or(f64::NAN) * 1e3;
        let (free_p99, capped_p99) = (part(&free, 0.99), part(&capped, 0.99));
        rows.push(Row::new(NAME, mode, "waiter_p99_unlimited", free_p99, "ms"));
        rows.push(Row::new(NAME, mode, "waiter_p99", capped_p99, "ms"));
        rows.push(Row::new(NAME, mode, "waiter_max", part(&capped, 1.0), "ms"));
        rows.push(Row::new(NAME, mode, "waits", capped.len() as f64, "count"));
        let ratio = capped_p99 / free_p99.max(1e-9);
        rows.push(
            Row::new(NAME, mode, "limited_to_unlimited", ratio, "x").at_most_by_default(RATIO_MAX),
        );
    }
    Ok(rows)
}

/// Seconds of every wait; `None` where the mode is not to be had.
fn waits(ward: &Ward, mode: Mode, cap: Option<Cap>) -> Result<Option<Vec<f64>>, Problem> {
    let length = ward.length(LENGTH);
    match (settings(mode), &ward.controller) {
        (Some(settings), _) => {
            // The kernel knows only its own locks, and neither does its copy.
            let own_lock = mode == Mode::Default;
            on_quotient(settings, own_lock, cap, length, &ward.interrupt).map(Some)
        }
        (None, Some(controller)) => in_kernel(controller, cap, length, &ward.interrupt).map(Some),
        (None, None) => Ok(None),
    }
}

fn on_quotient(
    settings: Settings,
    own_lock: bool,
    cap: Option<Cap>,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<Vec<f64>, Problem> {
    let (runtime, scheduler) = settings.build()?;
    let groups = || {
        let mut holder = scheduler.group("holder")?;
        if let Some(cap) = cap {
            holder = holder.max((cap.quota, cap.period));
        }
        Ok::<_, quotient::Error>((holder.create()?, scheduler.group("waiter")?.create()?))
    };
    let (holder, waiter) = groups().map_err(Problem::during("cannot create a group"))?;
    let waits = Arc::new(JobLog::default());
    if own_lock {
        let lock = Arc::new(quotient::sync::Mutex::new(()));
        drop(holder.spawn(hold(Own(lock.clone()))));
        drop(waiter.spawn(want(Own(lock), waits.clone())));
    } else {
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        drop(holder.spawn(hold(Tokio(lock.clone()))));
        drop(waiter.spawn(want(Tokio(lock), waits.clone())));
    }
    let watched = sleep_until(Instant::now() + length, interrupt);
    runtime.block_on(scheduler.shutdown());
    watched.map(|()| waits.seconds())
}

/// A lock, whoever made it.
trait Lock: Send + Sync + 'static {
    /// What holds it.
    type Guard<'a>: Send;

    /// Waits for it.
    fn lock(&self) -> impl Future<Output = Self::Guard<'_>> + Send;
}

/// Quotient's.
struct Own(Arc<quotient::sync::Mutex<()>>);

impl Lock for Own {
    type Guard<'a> = quotient::sync::MutexGuard<'a, ()>;

    fn lock(&self) -> impl Future<Output = Self::Guard<'_>> + Send {
        self.0.lock()
    }
}

/// tokio's.
struct Tokio(Arc<tokio::sync::Mutex<()>>);

impl Lock for Tokio {
    type Guard<'a> = tokio::sync::MutexGuard<'a, ()>;

    fn lock(&self) -> impl Future<Output = Self::Guard<'_>> + Send {
        self.0.lock()
    }
}

async fn hold(lock: impl Lock) {
    let worker = Worker {
        meter: Arc::default(),
        log: None,
    };
    loop {
        let guard = lock.lock().await;
        compute(&worker, HELD).await;
        drop(guard);
        compute(&worker, HELD).await;
    }
}

async fn compute(worker: &Worker, length: Duration) {
    let until = worker.meter.seconds() + length.as_secs_f64();
    while worker.meter.seconds() < until {
        worker.burn(POLL, Mark::now());
        self_wake().await;
    }
}

async fn want(lock: impl Lock, waits: Arc<JobLog>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let asked = Instant::now();
        drop(lock.lock().await);
        waits.note(asked.elapsed());
    }
}

/// The same with threads, one of them in a cgroup.
fn in_kernel(
    controller: &Controller,
    cap: Option<Cap>,
    length: Duration,
    interrupt: &Interrupt,
) -> Result<Vec<f64>, Problem> {
    let base = controller.base()?;
    let group = base.group("holder", false)?;
    group.set_cap(cap)?;
    let (stop, waits) = (AtomicBool::new(false), JobLog::default());
    let lock = std::sync::Mutex::new(());
    let worker = Worker {
        meter: Arc::<Meter>::default(),
        log: None,
    };
    thread::scope(|scope| {
        let holder = scope.spawn(|| {
            group.enter()?;
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.lock();
                burn(&worker, HELD);
                drop(guard);
                burn(&worker, HELD);
            }
            Ok(())
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(EVERY);
                let asked = Instant::now();
                drop(lock.lock());
                waits.note(asked.elapsed());
            }
        });
        let watched = sleep_until(Instant::now() + length, interrupt);
        stop.store(true, Ordering::Relaxed);
        // A throttled holder would keep us waiting.
        let lifted = group.set_cap(None);
        let held = holder
            .join()
            .unwrap_or_else(|_| Err(Problem::Broken("the holder panicked".into())));
        watched.and(lifted).and(held)
    })?;
    Ok(waits.seconds())
}

/// So much CPU time of the calling thread.
fn burn(worker: &Worker, length: Duration) {
    let until = worker.meter.seconds() + length.as_secs_f64();
    let mut mark = Mark::now();
    while worker.meter.seconds() < until {
        mark = worker.burn(POLL, mark);
    }
}
