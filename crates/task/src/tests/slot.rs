//! The slot: every token that goes in comes out once, whoever takes it.
//!
//! On real threads and under Miri; `loom_slot` has the models.

use super::mock::{Mock, MockContext};
use crate::{Put, Slot, Task};

/// A slot's token, and what came of putting another.
fn put(slot: &Slot<MockContext>, task: Task<MockContext>, tag: u8) -> Option<Task<MockContext>> {
    match slot.put(task, tag) {
        Put::Stored => None,
        Put::Displaced(task, _) | Put::Refused(task) => Some(task),
    }
}

#[test]
fn what_goes_in_comes_out_with_its_tag() {
    let mock = Mock::default();
    let slot = Slot::new();
    assert!(slot.take().is_none() && !slot.is_filled());
    let (first, first_ref, _first) = mock.spawn_held(async {});
    let (second, second_ref, _second) = mock.spawn_held(async {});
    assert!(put(&slot, first, 6).is_none());
    assert!(slot.is_filled());
    let displaced = put(&slot, second, 3).expect("the first");
    assert_eq!(displaced.id(), first_ref.id());
    let (taken, tag) = slot.take().expect("the second");
    assert_eq!((taken.id(), tag), (second_ref.id(), 3));
    assert!(slot.take().is_none());

    // Closed, it refuses until the owner takes.
    assert!(slot.seize().is_none());
    let refused = put(&slot, taken, 1).expect("refused");
    assert!(!slot.is_filled() && slot.take().is_none());
    assert!(put(&slot, refused, 1).is_none(), "open again");
    // A token in a slot that goes is cancelled with it.
    drop(slot);
    assert!(second_ref.is_finished() && !first_ref.is_finished());
    drop(displaced);
}

/// The owner puts, takes and is refused while another thread seizes as fast as it can.
#[test]
fn no_token_is_lost_or_doubled_between_owner_and_thief() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let puts = if cfg!(miri) { 200 } else { 50_000 };
    let mock = Mock::default();
    let slot = Slot::new();
    let ended = AtomicBool::new(false);
    let mut out = Vec::with_capacity(puts);
    let seized = std::thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let mut seized = Vec::with_capacity(puts);
            while !ended.load(Ordering::Acquire) {
                seized.extend(slot.seize().map(|(task, _)| task));
                std::hint::spin_loop();
            }
            seized
        });
        for number in 0..puts {
            let (task, _, _) = mock.spawn_held(async {});
            out.extend(put(&slot, task, (number % 7) as u8));
            if number % 3 == 0 {
                out.extend(slot.take().map(|(task, _)| task));
            }
        }
        ended.store(true, Ordering::Release);
        thief.join().unwrap()
    });
    out.extend(seized);
    out.extend(slot.take().map(|(task, _)| task));
    let mut names: Vec<_> = out.iter().map(Task::id).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), out.len()), (puts, puts));
}

/// Hazard: a thread that has lost its place, and does not know it, leaves a token there that nobody looks for.
#[test]
fn who_was_replaced_fills_nothing() {
    let mock = Mock::default();
    let slot = Slot::new();
    let (mine, nothing) = slot.take_over();
    assert!(nothing.is_none() && slot.is_vacant(mine) && !slot.is_filled());
    let (first, first_ref, _first) = mock.spawn_held(async {});
    let (second, second_ref, _second) = mock.spawn_held(async {});
    assert!(slot.offer(mine, first, 2).is_ok());
    assert!(slot.is_filled() && !slot.is_vacant(mine));
    // The older one stays: it might be another owner's.
    let second = slot.offer(mine, second, 1).expect_err("it is filled");
    let (first, tag) = slot.vacate(mine).expect("the first");
    assert_eq!((first.id(), tag), (first_ref.id(), 2));
    assert!(slot.vacate(mine).is_none());
    assert!(slot.offer(mine, first, 0).is_ok());

    let (theirs, left) = slot.take_over();
    assert_eq!(left.map(|(task, _)| task.id()), Some(first_ref.id()));
    let second = slot.offer(mine, second, 0).expect_err("replaced");
    assert!(slot.offer(theirs, second, 0).is_ok());
    assert!(
        slot.seize()
            .is_some_and(|(task, _)| task.id() == second_ref.id())
    );
    // Closed, until the owner looks.
    let (third, _, _third) = mock.spawn_held(async {});
    let third = slot.offer(theirs, third, 0).expect_err("closed");
    assert!(slot.vacate(theirs).is_none());
    assert!(slot.offer(theirs, third, 0).is_ok());
}
