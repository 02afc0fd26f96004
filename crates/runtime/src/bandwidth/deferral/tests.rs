use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::Scheduler;
use crate::local::Charged;

/// What is known of a task that has taken a lock, the lock's line, the task's group, which has a limit, and another one without.
fn with_holder(body: impl FnOnce(&Arc<Deferral>, &Arc<Line>, &Arc<GroupShared>, &Charged)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
        let group = |path| scheduler.group(path).unwrap().create().unwrap();
        let (limited, free) = (group("limited"), group("free"));
        limited.set_max("1ms/1000ms").unwrap();
        let holder = Arc::new(Deferral::new(&limited.shared));
        let line = Arc::new(Line::default());
        holder.takes(&line);
        let lender = (free.shared.clone(), free.inner.clone());
        body(&holder, &line, &limited.inner, &lender);
        scheduler.shutdown().await;
    });
}

/// Hazard: a holder is being queued, noted in its line already and not yet at its place, as somebody comes to wait who may lend it another one. He found
/// no place to ask about, had taken the note all the same, and waited for a period or two.
#[test]
fn who_comes_while_a_holder_is_being_queued_asks_for_it() {
    with_holder(|holder, line, own, lender| {
        let shared = &lender.0;
        let (has_come, comes) = mpsc::channel();
        let waiter = holder.with(|books| {
            let (seat, is_waited_for) = holder.ask(books, own, &|_| false);
            assert!(seat.is_none() && !is_waited_for, "nobody has come yet");
            let (charged, line) = (lender.clone(), line.clone());
            let waiter = std::thread::spawn(move || {
                line.join(&charged);
                has_come.send(()).unwrap();
            });
            // He is done if he does not wait for this lock.
            let _ = comes.recv_timeout(Duration::from_millis(200));
            drop(holder.is_at(books, 0, own, own));
            waiter
        });
        waiter.join().unwrap();
        assert!(shared.vcpus[0].releases.any(), "the holder is asked for");
    });
}

/// Hazard: who lends gives up waiting in the midst of a poll, comes back in its last moment, and is handed the lock: then only the end of his last wait was known, and
/// he paid for the whole poll.
#[test]
fn who_comes_back_for_the_end_of_a_poll_pays_for_that() {
    const MS: Nanos = Nanos::from_millis(1);
    with_holder(|holder, line, own, lender| {
        let shared = &lender.0;
        let waits = || {
            let from = shared.now();
            line.join(lender);
            std::thread::sleep(Duration::from_millis(5));
            from
        };
        waits();
        let seat = holder.seat_on(0, own, &|group| std::ptr::eq(group, &**own));
        assert!(seat.is_some_and(|seat| Arc::ptr_eq(&seat, &lender.1)));
        let began = shared.now();
        holder.begins_on_loan(began);
        line.leave(lender);
        std::thread::sleep(Duration::from_millis(50));
        let back = waits();
        // The unlock hands it to him.
        line.leave(lender);
        holder.lets_go(line);
        let now = shared.now();
        let all = now.saturating_sub(began);
        let paid = all.saturating_sub(holder.own_part(began, now));
        let due = now.saturating_sub(back).saturating_add(MS);
        assert!(paid <= due && paid >= MS, "{paid:?} of {all:?}");
    });
}
