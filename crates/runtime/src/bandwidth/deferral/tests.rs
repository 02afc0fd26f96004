use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::Scheduler;

/// Hazard: a holder is being queued, noted in its line already and not yet at its place, as somebody comes to wait who may lend it another one. He found
/// no place to ask about, had taken the note all the same, and waited for a period or two.
#[test]
fn who_comes_while_a_holder_is_being_queued_asks_for_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let scheduler = Scheduler::builder().vcpus(1).build().unwrap();
        let group = |path| scheduler.group(path).unwrap().create().unwrap();
        let (limited, free) = (group("limited"), group("free"));
        limited.set_max("1ms/1000ms").unwrap();
        let (shared, own) = (&limited.shared, &limited.inner);
        let holder = Arc::new(Deferral::new(shared));
        let line = Arc::new(Line::default());
        holder.takes(&line);
        let (has_come, comes) = mpsc::channel();
        let waiter = holder.with(|books| {
            let (seat, is_waited_for) = holder.ask(books, own, &|_| false);
            assert!(seat.is_none() && !is_waited_for, "nobody has come yet");
            let charged = (free.shared.clone(), free.inner.clone());
            let line = line.clone();
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
        scheduler.shutdown().await;
    });
}
