//! Whether a thread has lost its processor. Where the system does not tell there is nothing to test.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient_pause::{begin_stay, has_stayed};

/// Long enough to be interrupted now and then, short enough to be spared mostly. Unit: time.
const STRETCH: Duration = Duration::from_micros(20);

fn compute(stretch: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < stretch {
        std::hint::spin_loop();
    }
}

#[test]
fn who_computes_stays_mostly_and_who_sleeps_never() {
    begin_stay();
    if has_stayed().is_none() {
        return; // See the module's header.
    }
    let stayed = (0..1_000)
        .filter(|_| {
            begin_stay();
            compute(STRETCH);
            has_stayed() == Some(true)
        })
        .count();
    // A machine on which every second stretch of 20 us is interrupted computes nothing else either.
    assert!(stayed > 500, "{stayed} of 1000");
    for _ in 0..20 {
        begin_stay();
        std::thread::sleep(Duration::from_micros(50));
        assert_eq!(has_stayed(), Some(false));
    }
}

#[test]
fn a_loss_stays_known_until_it_is_asked_anew() {
    begin_stay();
    if has_stayed().is_none() {
        return;
    }
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(has_stayed(), Some(false));
    compute(STRETCH);
    assert_eq!(has_stayed(), Some(false));
    let stays = (0..100).any(|_| {
        begin_stay();
        has_stayed() == Some(true)
    });
    assert!(stays);
}

/// Hazard: the kernel kills a thread whose descriptor it finds wrong. Threads come and go, hand the processors to each other all the time,
/// and each keeps a name that it never looks at again.
#[test]
fn threads_that_interrupt_each_other_live_on() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::thread::scope(|inner| {
                        inner.spawn(|| {
                            begin_stay();
                            compute(STRETCH);
                            std::thread::yield_now();
                            compute(STRETCH);
                        });
                    });
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        over.store(true, Ordering::Relaxed);
    });
}

/// A thread that never began a stay has none, whatever the C library or the allocator has put there.
#[test]
fn who_never_began_has_not_stayed() {
    let told = std::thread::spawn(has_stayed).join().expect("it only asks");
    assert_ne!(told, Some(true));
}
