//! Who waits for whom, and that nobody is left waiting.

use std::future::Future;

use super::*;

fn with_guest() -> Courtesy {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let courtesy = Courtesy::default();
    runtime.unwrap().block_on(async {
        assert!(courtesy.is_brought_by_guest());
        assert!(courtesy.is_brought_by_guest(), "once known");
    });
    courtesy
}

fn waits(courtesy: &Courtesy) -> bool {
    courtesy.word.lock().waits
}

#[test]
fn a_guest_waits_while_all_are_at_work() {
    let courtesy = with_guest();
    courtesy.word.goes_to_work(2);
    assert!(!waits(&courtesy), "one virtual CPU has nothing to do");
    courtesy.word.goes_to_work(2);
    assert!(waits(&courtesy));
    assert!(courtesy.word.has_done(2) && !waits(&courtesy));
    assert!(!courtesy.word.has_done(2), "told once");
}

#[test]
fn who_knows_no_runtime_is_no_guest() {
    let courtesy = std::sync::Arc::new(Courtesy::default());
    let known = courtesy.clone();
    let stranger = std::thread::spawn(move || known.is_brought_by_guest());
    assert!(!stranger.join().unwrap());
    assert!(!courtesy.word.goes_to_work(1), "nobody is there");
}

/// Hazard: tokio runs its workers as functions of its blocking pool, so that they look like tasks when they are none.
#[test]
fn a_worker_that_reads_sockets_is_a_guest() {
    let courtesy = std::sync::Arc::new(Courtesy::default());
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let (known, (told, tells)) = (courtesy.clone(), std::sync::mpsc::channel());
    struct Asks(
        std::sync::Arc<Courtesy>,
        std::sync::Mutex<std::sync::mpsc::Sender<bool>>,
    );
    impl std::task::Wake for Asks {
        fn wake(self: std::sync::Arc<Self>) {
            let answer = self.0.is_brought_by_guest();
            self.1.lock().unwrap().send(answer).unwrap();
        }
    }
    // A timer's waker is called by whoever drives the runtime: the worker, since nobody else is inside.
    let waker = std::sync::Arc::new(Asks(known, std::sync::Mutex::new(told))).into();
    let entered = runtime.enter();
    let mut sleep = Box::pin(tokio::time::sleep(std::time::Duration::from_millis(5)));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(sleep.as_mut().poll(&mut context).is_pending());
    assert!(
        tells
            .recv_timeout(std::time::Duration::from_secs(60))
            .unwrap()
    );
    assert_ne!(courtesy.number.load(Ordering::Relaxed), thread_number());
    drop(entered);
}

/// The calling thread's policy: the 41st field of proc_pid_stat(5), the 39th behind the name.
fn policy() -> String {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(38).unwrap().to_owned()
}

fn with_one_blocking_thread() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_all().max_blocking_threads(1);
    builder.build().unwrap()
}

fn preempting_scheduler() -> crate::Scheduler {
    let builder = crate::Scheduler::builder().preempt(crate::Preempt::default());
    builder.vcpus(1).build().unwrap()
}

/// Hazard: threads that are started from a guest that waits just then wait for good, ours, and those of tokio's pool that work for us.
#[test]
fn what_a_guest_starts_for_us_does_not_wait() {
    with_one_blocking_thread().block_on(async {
        let guest = Guest::this_thread().unwrap();
        let waits = || assert_eq!(guest.waits(true), Ok(true));
        waits();
        let scheduler = preempting_scheduler();
        assert_eq!(policy(), "0");
        let group = scheduler.group("g").unwrap().create().unwrap();
        waits();
        // A library's: nobody has told it.
        assert_eq!(tokio::task::spawn_blocking(policy).await.unwrap(), "3");
        // The pool has that one thread.
        assert_eq!(group.spawn_blocking(policy).await.unwrap(), "0");
        assert_eq!(tokio::task::spawn_blocking(policy).await.unwrap(), "0");
        assert_eq!(guest.waits(false), Ok(false), "it has started a function");
        scheduler.shutdown().await;
    });
    with_one_blocking_thread().block_on(async {
        let guest = Guest::this_thread().unwrap();
        assert_eq!(guest.waits(true), Ok(true));
        let scheduler = preempting_scheduler();
        let group = scheduler.group("g").unwrap().create().unwrap();
        assert_eq!(guest.waits(true), Ok(true), "it has started threads");
        let first = group.spawn_blocking(policy);
        assert_eq!(tokio::task::spawn_blocking(policy).await.unwrap(), "0");
        assert_eq!(first.await.unwrap(), "0");
        assert_eq!(group.spawn(async { policy() }).await.unwrap(), "0");
        scheduler.shutdown().await;
    });
}

/// Serves the calling thread, until it has waited, and is as it was before; at once if the polls that it waits for do not end.
///
/// One task keeps the virtual CPU while the others are woken: so they all come during a poll. Where a stand-in has come to its help
/// (it is not preemptible, and this thread may be late) that was for nothing, and is done again.
fn a_guest_waits_and_is_as_it_was(polls_end: bool) {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    let began = std::time::Instant::now();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(began.elapsed().as_secs() < 60, "{what}");
            std::thread::yield_now();
        }
    };
    let serve = |group: &crate::Group, is_let: &Arc<AtomicBool>, polled: &Arc<AtomicU32>| {
        let (wake, mut woken) = tokio::sync::mpsc::unbounded_channel::<()>();
        let (is_let, polled) = (is_let.clone(), polled.clone());
        drop(group.spawn(async move {
            while woken.recv().await.is_some() {
                polled.fetch_add(1, Ordering::Relaxed);
                while !is_let.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        }));
        wake
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let builder = crate::Scheduler::builder().vcpus(1);
        let scheduler = builder.preempt(crate::Preempt::default()).build().unwrap();
        let door = scheduler.group("door").unwrap().preemptible(false);
        let (door, group) = (door.create().unwrap(), scheduler.group("g").unwrap());
        let group = group.create().unwrap();
        let (is_open, entered) = (Arc::default(), Arc::default());
        let (is_let, polled) = (Arc::new(AtomicBool::new(polls_end)), Arc::default());
        let door = serve(&door, &is_open, &entered);
        let wakes = [(); 8].map(|()| serve(&group, &is_let, &polled));
        for round in 1.. {
            is_open.store(false, Ordering::Relaxed);
            door.send(()).unwrap();
            until("the door is not polled", &|| {
                entered.load(Ordering::Relaxed) == round
            });
            wakes.iter().for_each(|wake| wake.send(()).unwrap());
            is_open.store(true, Ordering::Relaxed);
            let all = round * 8;
            let enough = if polls_end { all } else { all - 7 };
            until("nobody is polled", &|| {
                polled.load(Ordering::Relaxed) >= enough
            });
            let has_waited = scheduler.preempt_stats().unwrap().guest_waits > 0;
            if has_waited {
                until("it waits for ever", &|| policy() == "0");
            }
            is_let.store(true, Ordering::Relaxed);
            until("not all are polled", &|| {
                polled.load(Ordering::Relaxed) == all
            });
            if has_waited {
                break;
            }
            is_let.store(polls_end, Ordering::Relaxed);
        }
        drop((door, wakes));
        scheduler.shutdown().await;
        until("it waits for ever", &|| policy() == "0");
    });
}

/// Hazard: a thread of the program's stays as it was told to be.
#[test]
fn a_guest_that_waited_is_as_it_was_before() {
    a_guest_waits_and_is_as_it_was(true);
}

/// Hazard: the virtual CPU is taken from the thread that went to work, which will not say that it has done.
#[test]
fn a_guest_does_not_wait_for_a_poll_that_was_detached() {
    a_guest_waits_and_is_as_it_was(false);
}

/// Hazard: a thread that sits down at a virtual CPU takes all that ever came there for work, and the guest waits time and again.
#[test]
fn what_came_before_a_thread_sat_down_is_not_its_work() {
    let seat = Seat::default();
    seat.brought.store(1_000, Ordering::Relaxed);
    let mut brought = Brought::default();
    brought.forget(&seat);
    brought.look_at(&seat);
    assert_eq!(brought.left, 0);
    seat.brought.fetch_add(3, Ordering::Relaxed);
    brought.look_at(&seat);
    assert_eq!(brought.left, 3);
}

/// Hazard: a request that comes alone costs three system calls more.
#[test]
fn one_task_is_not_worth_the_calls() {
    let mut brought = Brought::default();
    brought.came(1);
    assert!(!brought.is_worth_it());
    brought.came(1);
    assert!(brought.is_worth_it());
}

/// Hazard: connections that go on without a wake-up between two requests are nobody's work, and the guest interrupts each of their polls.
#[test]
fn tasks_that_were_brought_and_go_on_are_worth_the_calls() {
    let mut brought = Brought::default();
    brought.came(1);
    for _ in 0..POLLS_MIN {
        assert!(!brought.note_poll(true));
    }
    assert!(brought.note_poll(true) && brought.is_active());
    let now = Nanos::from_micros(50);
    brought.since = Some(now);
    assert!(!brought.is_done(now), "nobody else was polled");
    assert!(!brought.note_poll(false));
    assert!(brought.is_done(now), "somebody else is polled");
    brought.since = None;
    brought.note_active();
    assert!(!brought.is_active(), "nothing that was brought is left");
}

#[test]
fn a_virtual_cpu_is_at_work_for_a_while_or_until_a_poll_is_long() {
    let now = Nanos::from_micros(50);
    let mut brought = Brought {
        left: 3,
        since: Some(now),
        ..Brought::default()
    };
    assert!(!brought.is_done(now));
    assert!(brought.is_done(now + AT_WORK_MAX + Nanos(1)));
    assert!(!brought.end_poll(LONG_POLL));
    assert!(!brought.is_done(now));
    assert!(brought.end_poll(LONG_POLL + Nanos(1)));
    assert!(brought.is_done(now));
    assert!(!Brought::default().is_done(now), "it was not at work");
}

/// Hazard: a server that is hardly ever idle is interrupted in its first polls each time that it was.
#[test]
fn work_that_has_lasted_begins_again_with_its_first_poll() {
    let (mut brought, now) = (Brought::default(), Nanos::from_micros(50));
    let mut works = |polls: u32| {
        brought.came(1);
        let begins = brought.note_poll(true);
        brought.since = Some(now);
        for _ in 0..polls {
            brought.note_poll(true);
        }
        brought.polls = 0;
        assert!(brought.ends());
        begins
    };
    assert!(!works(LASTING_POLLS - 1), "nothing is known");
    assert!(!works(LASTING_POLLS), "it has not lasted");
    assert!(works(LASTING_POLLS - 1), "it has");
    assert!(!works(0), "and not again");
}

/// Hazard: every half millisecond the guest is as it was for some polls, and interrupts them.
#[test]
fn work_goes_on_when_the_guest_was_let_in() {
    let now = Nanos::from_micros(50);
    let mut brought = Brought {
        left: 3,
        since: Some(now),
        ..Brought::default()
    };
    let later = now + AT_WORK_MAX + Nanos(1);
    assert!(brought.is_done(later) && brought.goes_on(later));
    assert!(!brought.is_done(later), "it was let in just now");
    brought.note_poll(false);
    assert!(
        brought.is_done(later) && !brought.goes_on(later),
        "somebody else is polled"
    );
}

/// Hazard: who yields forfeits its slice, so a process that computes beside a server had nineteen of twenty parts of their processor.
#[test]
fn what_others_take_is_not_offered_again_soon() {
    let now = Nanos::from_millis(50);
    let mut brought = Brought::default();
    brought.offered(OFFER_MAX, now);
    assert!(brought.may_offer(now), "the guest was at it");
    brought.offered(Nanos(2 * OFFER_MAX.0), now);
    let until = now + Nanos(2 * OFFER_MAX.0 * OFFER_PART);
    assert!(!brought.may_offer(until - Nanos(1)));
    assert!(brought.may_offer(until));
    // Nor does the guest wait meanwhile for work that goes on.
    brought.since = Some(now);
    assert!(!brought.goes_on(until - Nanos(1)));
    assert!(brought.goes_on(until));
}
