//! Where threads go on that were let go on.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{spawn, until};
use quotient_pause::{PauseState, Processor};

/// The processors that a thread may run on, as the kernel has them.
fn allowed(thread: libc::pid_t) -> Vec<usize> {
    // SAFETY: a set is plain data for which all zeroes is a valid value; the kernel writes at most its size into the local.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        let size = core::mem::size_of::<libc::cpu_set_t>();
        let result = libc::sched_getaffinity(thread, size, &raw mut set);
        assert_eq!(result, 0);
        let all = 0..8 * size;
        all.filter(|place| libc::CPU_ISSET(*place, &set)).collect()
    }
}

/// Lets a thread run on these only.
fn allow(thread: libc::pid_t, places: &[usize]) {
    // SAFETY: a set is plain data for which all zeroes is a valid value; the places are ones that were read from such a set.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        for place in places {
            libc::CPU_SET(*place, &mut set);
        }
        let size = core::mem::size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_setaffinity(thread, size, &raw const set), 0);
    }
}

#[test]
fn a_thread_goes_on_where_it_is_told_and_is_not_bound_to_stay() {
    let stop = Arc::new(AtomicBool::new(false));
    let steps = Arc::new(AtomicU64::new(0));
    let id = Arc::new(AtomicU64::new(0));
    let (end, count, number) = (stop.clone(), steps.clone(), id.clone());
    let (handle, thread) = spawn(move |thread| {
        // SAFETY: asks for a number.
        let own = unsafe { libc::syscall(libc::SYS_gettid) };
        number.store(u64::try_from(own).unwrap(), Ordering::Release);
        let ((), _end) = thread.region(|| {
            while !end.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    until("the region's begin", || handle.region().is_some());
    let id = libc::pid_t::try_from(id.load(Ordering::Acquire)).unwrap();
    let region = handle.region().unwrap();
    let before = allowed(id);
    let stand = || {
        let pause = handle.pause(region).expect("it spins");
        until("a pause", || pause.state() == PauseState::Standing);
        pause
    };
    let processors = Processor::allowed();
    assert_eq!(processors.len(), before.len());
    // To each and back: wherever it was, it has to move.
    for processor in processors.iter().chain(processors.iter().rev()) {
        let pause = stand();
        let told = handle.wake_on(*processor, || {
            assert!(pause.resume());
            let seen = steps.load(Ordering::Relaxed);
            until("a step", || steps.load(Ordering::Relaxed) != seen);
            // It is bound still.
            assert_eq!(handle.processor(), Some(*processor));
        });
        assert!(told);
        assert_eq!(allowed(id), before);
    }
    // Hazard: what the thread's own code asks for meanwhile is overwritten.
    if let [first, second, ..] = before[..] {
        let pause = stand();
        let first = Processor::new(u32::try_from(first).unwrap());
        let told = handle.wake_on(first, || {
            allow(id, &[second]);
            assert!(pause.resume());
        });
        assert!(told);
        assert_eq!(allowed(id), [second]);
        allow(id, &before);
    }
    // No machine has this one.
    let pause = stand();
    assert!(!handle.wake_on(Processor::new(u32::MAX), || assert!(pause.resume())));
    let seen = steps.load(Ordering::Relaxed);
    until("a step", || steps.load(Ordering::Relaxed) != seen);
    stop.store(true, Ordering::Relaxed);
    until("the end", || thread.is_finished());
    thread.join().unwrap();
    // It has left: nothing is done to whoever has its number now.
    let mut woken = false;
    assert!(!handle.wake_on(processors[0], || woken = true));
    assert!(woken);
    assert_eq!(handle.processor(), None);
}
