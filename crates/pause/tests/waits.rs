//! Which of a thread's absences were its own wish.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::time::Duration;

#[test]
fn sleep_is_counted_and_other_threads_sleep_is_not() {
    let before = quotient_pause::waits().expect("Linux tells");
    sleep_until(before + 1);
    let after = quotient_pause::waits().expect("Linux tells");
    assert!(after > before, "{before} {after}");
    let other = std::thread::spawn(|| {
        let first = quotient_pause::waits().expect("Linux tells");
        sleep_until(first + 100);
        (first, quotient_pause::waits().expect("Linux tells"))
    });
    let (first, last) = other.join().expect("it sleeps");
    assert!(last >= first + 100, "{first} {last}");
    // Joining waits once or a few times.
    let now = quotient_pause::waits().expect("Linux tells");
    assert!(now < after + 100, "{after} {now}");
}

/// Sleeps until so many waits of this thread are counted, a thousand times at most. A timer that has run out before the thread comes to
/// sleep, since others had its processor, makes it wait for nothing.
fn sleep_until(counted: u64) {
    for _ in 0..1_000 {
        if quotient_pause::waits().expect("Linux tells") >= counted {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
