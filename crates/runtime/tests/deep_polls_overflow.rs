//! Hazard: a poll recurses deeper than the stacks of the scheduler's own threads are, on a runtime whose threads have larger ones: the process
//! is aborted, and this test with it.

use quotient::{Preempt, Scheduler};

/// What a frame has at least. Unit: bytes.
const FRAME: usize = 4 << 10;

/// Uses `frames` frames.
#[inline(never)]
fn dig(frames: usize) -> usize {
    let frame = std::hint::black_box([1_u8; FRAME]);
    match frames {
        0 => usize::from(frame[0]),
        more => dig(more - 1) + usize::from(frame[more % FRAME]),
    }
}

#[test]
fn a_poll_has_the_stack_that_was_asked_for() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_stack_size(32 << 20)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let scheduler = Scheduler::builder()
            .preempt(Preempt::default().stack_size(32 << 20))
            .build()
            .unwrap();
        let group = scheduler.group("deep").unwrap().create().unwrap();
        // Four times as deep as a thread's stack is by default.
        let frames = (8 << 20) / FRAME;
        let deep = group.spawn(async move { dig(frames) });
        assert_eq!(deep.await.unwrap(), frames + 1);
    });
}
