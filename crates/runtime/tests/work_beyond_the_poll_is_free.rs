//! Code of a tenant that runs when its poll is over: destructors of outputs that nobody wants, wakers of handles and of timers. Who
//! puts its work there is to pay for it as for any other.

mod common;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{burn, eventually, on_every_host, scheduler};
use quotient::{CpuTimer, Group};

/// Rounds that are to be on the clock, and those that may take: on a busy host, time that was stolen from other polls since the last
/// look at the thread's clock is held against a long stretch, here as in polls.
const ROUNDS: usize = 10;
const ROUNDS_MAX: usize = 4 * ROUNDS;
/// What each round does where nobody looked.
const HIDDEN: Duration = Duration::from_millis(3);
/// What it does in a poll: long, so that the turn ends, or short, so that others follow.
const POLLS: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(1)];

/// Works when it is dropped.
struct Hidden(Arc<AtomicUsize>);

impl Drop for Hidden {
    fn drop(&mut self) {
        burn(HIDDEN);
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Works when it wakes.
struct HiddenWake(Arc<AtomicUsize>, Waker);

impl Wake for HiddenWake {
    fn wake(self: Arc<Self>) {
        burn(HIDDEN);
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.wake_by_ref();
    }
}

/// Polls a future with such wakers.
struct Woken<F>(F, Arc<AtomicUsize>);

impl<F: Future + Unpin> Future for Woken<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let waker = HiddenWake(self.1.clone(), context.waker().clone());
        Pin::new(&mut self.0).poll(&mut Context::from_waker(&Arc::new(waker).into()))
    }
}

/// Runs `round` beside a group that yields all the time; the hidden work is to be on the group's clock.
async fn is_billed<F>(vcpus: usize, round: impl Fn(Group, Arc<AtomicUsize>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (scheduler, group) = scheduler(vcpus);
    let other = scheduler.group("tenants/other").unwrap().create().unwrap();
    let yields = other.spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let done = Arc::new(AtomicUsize::new(0));
    let wanted = HIDDEN * ROUNDS as u32;
    for count in 1..=ROUNDS_MAX {
        group.spawn(round(group.clone(), done.clone()));
        eventually("the hidden work", || done.load(Ordering::SeqCst) >= count).await;
        if group.cpu_time() >= wanted {
            break;
        }
    }
    yields.abort();
    let _ = yields.await;
    // The last charge follows the work.
    eventually("the bill", || group.cpu_time() >= wanted).await;
    scheduler.shutdown().await;
}

#[test]
fn an_output_that_nobody_wants() {
    on_every_host(|vcpus| async move {
        for poll in POLLS {
            is_billed(vcpus, |_, done| async move {
                drop(quotient::spawn(async move {
                    burn(poll);
                    Hidden(done)
                }));
            })
            .await;
        }
    });
}

#[test]
fn a_panic_that_nobody_wants() {
    on_every_host(|vcpus| async move {
        for poll in POLLS {
            is_billed(vcpus, |_, done| async move {
                drop(quotient::spawn(async move {
                    burn(poll);
                    std::panic::resume_unwind(Box::new(Hidden(done)))
                }));
            })
            .await;
        }
    });
}

#[test]
fn the_waker_of_a_handle() {
    on_every_host(|vcpus| async move {
        for poll in POLLS {
            is_billed(vcpus, |_, done| async move {
                let task = quotient::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    burn(poll);
                });
                let _ = Woken(task, done).await;
            })
            .await;
        }
    });
}

/// A tenant had 1.2 processors beside its limit by such wakers.
#[test]
fn the_waker_of_a_blocking_function() {
    on_every_host(|vcpus| async move {
        is_billed(vcpus, |_, done| async move {
            // It ends after the handle was polled: one that had ended before would be ready at once, and wake nobody.
            let (open, gate) = std::sync::mpsc::channel::<()>();
            let function = quotient::spawn_blocking(move || gate.recv().is_err());
            let (mut woken, mut open) = (Woken(function, done), Some(open));
            let _ = poll_fn(|context| {
                let polled = Pin::new(&mut woken).poll(context);
                open.take();
                polled
            })
            .await;
        })
        .await;
    });
}

#[test]
fn an_output_of_a_blocking_function_that_nobody_wants() {
    on_every_host(|vcpus| async move {
        is_billed(vcpus, |_, done| async move {
            drop(quotient::spawn_blocking(move || Hidden(done)));
        })
        .await;
    });
}

/// A timer that is due soon and has left its waker. One that was due already when it was polled first is ready at once and wakes
/// nobody: the spinner of the round before, or a host that takes the processor between the two, may have used up the time until
/// then. Such a one is replaced by a later one.
async fn pending_timer(group: &Group, done: &Arc<AtomicUsize>) -> Woken<Pin<Box<CpuTimer>>> {
    let mut ahead = Duration::from_micros(50);
    loop {
        let due = group.cpu_time() + ahead;
        let mut timer = Woken(Box::pin(group.on_cpu_time(due).unwrap()), done.clone());
        let first = poll_fn(|context| Poll::Ready(Pin::new(&mut timer).poll(context))).await;
        if first.is_pending() {
            return timer;
        }
        ahead *= 2;
        assert!(ahead < Duration::from_secs(10), "timers are due too early");
    }
}

#[test]
fn the_waker_of_a_timer_on_a_clock() {
    on_every_host(|vcpus| async move {
        for poll in POLLS {
            is_billed(vcpus, |group, done| async move {
                let timer = pending_timer(&group, &done).await;
                let spins = quotient::spawn(async move {
                    loop {
                        burn(poll);
                        tokio::task::yield_now().await;
                    }
                });
                let _ = timer.await;
                spins.abort();
            })
            .await;
        }
    });
}
