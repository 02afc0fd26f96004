//! Hazards: a tenant's code runs on the scheduler's tick thread, which every limit waits for, or ends it: what a runtime of the tenant's own does when it
//! is given a function that has waited in line, or what such a function has captured.
//! On real threads: bounds of time are generous.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake};
use std::time::Duration;

use preempted::{HANG, limited};
use quotient::{Group, JoinHandle, Preempt, Scheduler};
use tokio::runtime::{Builder, Handle, Id, Runtime};

const TICK: &str = "quotient-tick";

/// On which threads something was run.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn here(&self) {
        let name = std::thread::current().name().unwrap_or("").to_owned();
        self.0.lock().unwrap().push(name);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn is_elsewhere(&self) {
        let all = self.all();
        assert!(!all.iter().any(|name| name == TICK), "{all:?}");
    }
}

/// Says where it was dropped, and in which group.
struct Captured(Seen, Arc<Mutex<Option<String>>>);

impl Drop for Captured {
    fn drop(&mut self) {
        self.0.here();
        *self.1.lock().unwrap() = Group::current().map(|group| group.path().to_owned());
    }
}

/// A function that the tick thread has begin: it was spawned in `runtime`, and has waited for a thaw, which comes once `before_thaw` is over. It says
/// in which runtime it is.
fn waits_in_line(
    group: &Group,
    runtime: &Handle,
    captured: Captured,
    before_thaw: impl FnOnce(),
) -> JoinHandle<Id> {
    group.freeze().unwrap();
    let function = {
        let _inside = runtime.enter();
        group.spawn_blocking(move || {
            let _captured = captured;
            Handle::current().id()
        })
    };
    before_thaw();
    group.thaw().unwrap();
    function
}

/// A tenant's function begins in its own `runtime`, while the scheduler's tick thread does its work; the runtime may have ended by then.
async fn begins_elsewhere(scheduler: &Scheduler, runtime: Runtime, has_ended: bool) {
    let group = limited(scheduler, "tenant", "max");
    let (seen, payer) = (Seen::default(), Arc::default());
    let captured = Captured(seen.clone(), Arc::clone(&payer));
    let (handle, mut runtime) = (runtime.handle().clone(), Some(runtime));
    let mut end = || runtime.take().map(Runtime::shutdown_background);
    let function = waits_in_line(&group, &handle, captured, || {
        if has_ended {
            end();
        }
    });
    let function = tokio::time::timeout(HANG / 2, function).await;
    let inside = function.expect("the tick thread is gone").unwrap();
    assert_eq!(inside, handle.id());
    seen.is_elsewhere();
    assert_eq!(payer.lock().unwrap().as_deref(), Some("tenant"));
    end();
    // The tick thread still empties lines.
    let again = waits_in_line(&group, &Handle::current(), Captured(seen, payer), || ());
    let again = tokio::time::timeout(HANG / 2, again).await;
    assert_eq!(again.unwrap().unwrap(), Handle::current().id());
}

#[test]
fn a_runtime_of_a_tenant_names_its_threads_on_the_tick_thread() {
    let names = Seen::default();
    preempted::run(2, Duration::from_secs(10), |scheduler| {
        let names = names.clone();
        async move {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).thread_name_fn(move || {
                names.here();
                let is_tick = std::thread::current().name() == Some(TICK);
                assert!(!is_tick, "a tenant's panic");
                "tenant".to_owned()
            });
            begins_elsewhere(&scheduler, builder.build().unwrap(), false).await;
        }
    });
    names.is_elsewhere();
}

#[test]
fn a_runtime_that_gets_no_threads_ends_the_tick_thread() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let mut builder = Builder::new_current_thread();
        // More than there are addresses.
        builder.thread_stack_size(1 << 46);
        begins_elsewhere(&scheduler, builder.build().unwrap(), false).await;
    });
}

#[test]
fn what_a_function_has_captured_is_dropped_on_the_tick_thread() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let runtime = Builder::new_current_thread().build().unwrap();
        begins_elsewhere(&scheduler, runtime, true).await;
    });
}

/// Whoever spawns is not stopped meanwhile: so it is none of its own either.
#[test]
fn what_a_function_has_captured_is_dropped_where_it_is_spawned() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let group = limited(&scheduler, "tenant", "max");
        let runtime = Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        let (seen, payer) = (Seen::default(), Arc::default());
        let captured = Captured(seen.clone(), Arc::clone(&payer));
        let function = {
            let _inside = handle.enter();
            group.spawn_blocking(move || drop(captured))
        };
        function.await.unwrap();
        assert_eq!(payer.lock().unwrap().as_deref(), Some("tenant"));
    });
}

/// No tenant's doing: the system gives the application's runtime no thread just then.
#[test]
fn the_tick_thread_ends_with_a_runtime_that_gets_no_thread() {
    let _alone = preempted::alone();
    let has_panicked = Arc::new(AtomicBool::new(false));
    let panics = has_panicked.clone();
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(2).enable_all();
    let builder = builder.thread_name_fn(move || {
        let is_tick = std::thread::current().name() == Some(TICK);
        let panics = is_tick && !panics.swap(true, Ordering::SeqCst);
        assert!(!panics, "no thread");
        "application".to_owned()
    });
    let runtime = builder.build().unwrap();
    runtime.block_on(async {
        let builder = Scheduler::builder().vcpus(2).preempt(Preempt::default());
        let scheduler = builder.build().unwrap();
        let function = |name: &str| {
            let captured = Captured(Seen::default(), Arc::default());
            let group = limited(&scheduler, name, "max");
            waits_in_line(&group, &Handle::current(), captured, || ())
        };
        let first = function("first");
        common::eventually("a panic", || has_panicked.load(Ordering::SeqCst)).await;
        // Its runtime has kept the first one for the next thread.
        for function in [function("second"), first] {
            let function = tokio::time::timeout(HANG / 2, function).await;
            function.expect("the tick thread is gone").unwrap();
        }
        scheduler.shutdown().await;
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
}

/// Says where it is called, and sleeps there until it is told to go on.
struct Waits {
    seen: Seen,
    until: Mutex<Option<mpsc::Receiver<()>>>,
}

impl Wake for Waits {
    fn wake(self: Arc<Self>) {
        self.seen.here();
        let until = self.until.lock().unwrap().take();
        until.map(|until| until.recv().ok());
    }
}

/// A task of `group` that has polled `future` once, with a waker of its own. Dropping the sender ends that one's sleep.
fn polled_once<F>(group: &Group, future: F) -> (Seen, mpsc::Sender<()>, JoinHandle<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (go_on, until) = mpsc::channel();
    let seen = Seen::default();
    let waker = Arc::new(Waits {
        seen: seen.clone(),
        until: Mutex::new(Some(until)),
    });
    let mut future = Box::pin(future);
    let mut is_first = true;
    let task = group.spawn(poll_fn(move |_| {
        if std::mem::take(&mut is_first) {
            let polled = future
                .as_mut()
                .poll(&mut Context::from_waker(&waker.clone().into()));
            assert!(polled.is_pending());
        }
        // Aborted in the end; the alarm lives until then.
        std::task::Poll::Pending
    }));
    (seen, go_on, task)
}

/// A poll of `group` that is in progress until the sender is dropped.
async fn stuck(group: &Group) -> mpsc::Sender<()> {
    let (release, kept) = mpsc::channel();
    let begun = Arc::new(AtomicBool::new(false));
    let begins = begun.clone();
    drop(group.spawn(async move {
        begins.store(true, Ordering::SeqCst);
        let _ = kept.recv();
    }));
    common::eventually("a poll", || begun.load(Ordering::SeqCst)).await;
    release
}

#[test]
fn a_waker_that_sleeps_keeps_the_tick_thread() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let group = |name: &str| limited(&scheduler, name, "max");
        let mut held = Vec::new();
        let mut seen = Vec::new();
        // Two wakers for each of two tenants, each of an alarm and of a timer.
        for name in ["first", "second"] {
            let (own, child) = (group(name), group(&format!("{name}/child")));
            let release = stuck(&child).await;
            let kills = async move {
                let _ = child.kill_within(Duration::from_secs(3_600)).await;
            };
            let (alarm, go_on, task) = polled_once(&own, kills);
            held.push((release, go_on, task));
            let timer = own.on_cpu_time(Duration::from_millis(20)).unwrap();
            let waits = async move {
                let _ = timer.await;
            };
            let (timer, go_on, task) = polled_once(&own, waits);
            held.push((mpsc::channel().0, go_on, task));
            own.spawn(async { common::burn(Duration::from_millis(40)) })
                .await
                .unwrap();
            seen.push([alarm, timer]);
        }
        // Of each tenant one is called, and sleeps, and the other one waits for it.
        let is_called = |seen: &Seen| !seen.all().is_empty();
        for tenant in &seen {
            common::eventually("a call", || tenant.iter().any(is_called)).await;
        }
        // Nobody else waits: neither who calls from outside, nor a limit.
        let other = limited(&scheduler, "other", "5ms/20ms");
        let busy = other.spawn(async { common::burn(Duration::from_millis(200)) });
        tokio::time::timeout(HANG / 2, busy).await.unwrap().unwrap();
        let release = stuck(&other).await;
        let left = other.kill_within(Duration::from_millis(50));
        let left = tokio::time::timeout(HANG / 2, left).await;
        assert!(left.expect("the tick thread is kept").unwrap().is_some());
        drop(release);
        for (release, go_on, task) in held {
            drop((release, go_on));
            task.abort();
        }
        for seen in seen.iter().flatten() {
            common::eventually("the rest", || is_called(seen)).await;
            seen.is_elsewhere();
        }
    });
}

/// A waker that waits behind one that never comes back is called at the scheduler's end at the latest.
#[test]
fn a_waker_that_sleeps_for_good_keeps_another_one_beyond_the_end() {
    preempted::run(2, Duration::from_secs(10), |scheduler| async move {
        let group = limited(&scheduler, "tenant", "max");
        let mut held = Vec::new();
        for _ in 0..2 {
            let timer = group.on_cpu_time(Duration::from_millis(20)).unwrap();
            held.push(polled_once(&group, async move {
                let _ = timer.await;
            }));
        }
        group
            .spawn(async { common::burn(Duration::from_millis(40)) })
            .await
            .unwrap();
        let called = || held.iter().filter(|(seen, ..)| !seen.all().is_empty());
        common::eventually("a call", || called().count() > 0).await;
        let ended = scheduler.shutdown_timeout(Duration::from_secs(5)).await;
        assert!(ended.is_ok(), "{ended:?}");
        common::eventually("the other one", || called().count() == 2).await;
    });
}
