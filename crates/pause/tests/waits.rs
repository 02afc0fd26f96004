//! Which of a thread's absences were its own wish.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::time::Duration;

#[test]
fn sleep_is_counted_and_other_threads_sleep_is_not() {
    let before = quotient_pause::waits().expect("Linux tells");
    std::thread::sleep(Duration::from_millis(1));
    let after = quotient_pause::waits().expect("Linux tells");
    assert!(after > before, "{before} {after}");
    let other = std::thread::spawn(|| {
        let first = quotient_pause::waits();
        for _ in 0..100 {
            std::thread::sleep(Duration::from_micros(10));
        }
        (first, quotient_pause::waits())
    });
    let (first, last) = other.join().expect("it sleeps");
    assert!(last.unwrap_or(0) >= first.unwrap_or(0) + 100);
    // Joining waits once or a few times.
    let now = quotient_pause::waits().expect("Linux tells");
    assert!(now < after + 100, "{after} {now}");
}
