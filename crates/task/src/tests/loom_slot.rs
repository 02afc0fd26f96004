//! Models of the slot: whoever puts, takes and seizes, each token comes out once, with what was written into it before.
//!
//! Each model runs what came out to its end, so a token that is lost or doubled shows in the counts; and the owner writes into each
//! token before it puts it, so a token whose contents are not seen is a race that loom reports.

use super::loom::{Main, model, race};
use super::mock::{Mock, MockContext};
use crate::{Put, Slot, Task, Vacancy};
use loom::thread;
use std::sync::Arc;

type Tokens = Vec<Task<MockContext>>;

/// A token that waits for nothing.
fn token(mock: &Mock) -> Task<MockContext> {
    mock.spawn_held(async {}).0
}

/// Owner: writes into the token, puts it, and keeps what comes back.
fn put(slot: &Slot<MockContext>, mut task: Task<MockContext>, tag: u8, out: &mut Tokens) {
    *task.owned_mut() += 1;
    match slot.put(task, tag) {
        Put::Stored => {}
        Put::Displaced(task, _) | Put::Refused(task) => out.push(task),
    }
}

/// Anybody: seizes, writes into what came, and keeps it.
fn seize(slot: &Slot<MockContext>, out: &mut Tokens) {
    if let Some((mut task, _)) = slot.seize() {
        *task.owned_mut() += 1;
        out.push(task);
    }
}

/// A thread that seizes once, and ends with what came.
fn thief(slot: &Arc<Slot<MockContext>>) -> thread::JoinHandle<Tokens> {
    let slot = slot.clone();
    thread::spawn(move || {
        let mut out = Vec::new();
        seize(&slot, &mut out);
        out
    })
}

/// Owner: as `seize`, taking.
fn take(slot: &Slot<MockContext>, out: &mut Tokens) {
    if let Some((mut task, _)) = slot.take() {
        *task.owned_mut() += 1;
        out.push(task);
    }
}

/// Runs what came out, and what is left in the slot: every one of `tokens` ends, once.
fn all_came_out(mock: &Mock, slot: &Slot<MockContext>, out: Tokens, tokens: usize) {
    let left = slot.take().map(|(task, _)| task);
    for task in out.into_iter().chain(left) {
        mock.push(task);
    }
    mock.drain();
    mock.assert_all_gone(tokens);
}

/// One side's steps on the slot.
type Steps = fn(&Mock, &Slot<MockContext>, &mut Tokens);

/// The owner's steps against others' steps, with either side on the main thread.
fn owner_against(owner: Steps, other: Steps, tokens: usize) {
    model(move |main: Main| {
        let mock = Mock::default();
        let slot = Arc::new(Slot::new());
        let side = |steps: Steps| {
            let (mock, slot) = (mock.clone(), slot.clone());
            move || {
                let mut out = Vec::new();
                steps(&mock, &slot, &mut out);
                out
            }
        };
        let (mut out, others) = race(main, side(owner), side(other));
        out.extend(others);
        all_came_out(&mock, &slot, out, tokens);
    });
}

/// The plain store of a put against an exchange that it did not see.
#[test]
fn loom_put_into_an_empty_slot_against_seize() {
    owner_against(
        |mock, slot, out| put(slot, token(mock), 1, out),
        |_, slot, out| seize(slot, out),
        1,
    );
}

/// The first is seized, displaced or left; the second finds the slot empty, taken or closed.
#[test]
fn loom_two_puts_against_seize() {
    owner_against(
        |mock, slot, out| {
            put(slot, token(mock), 1, out);
            put(slot, token(mock), 2, out);
        },
        |_, slot, out| seize(slot, out),
        2,
    );
}

/// The owner empties what it filled, and fills it again.
#[test]
fn loom_put_take_put_against_seize() {
    owner_against(
        |mock, slot, out| {
            put(slot, token(mock), 1, out);
            take(slot, out);
            put(slot, token(mock), 2, out);
        },
        |_, slot, out| seize(slot, out),
        2,
    );
}

/// Somebody who looks twice, as the watch does: what was put over *closed* is found the next time.
#[test]
fn loom_two_puts_against_two_looks() {
    owner_against(
        |mock, slot, out| {
            put(slot, token(mock), 1, out);
            put(slot, token(mock), 2, out);
        },
        |_, slot, out| {
            seize(slot, out);
            seize(slot, out);
        },
        2,
    );
}

/// Two who seize at once, while the owner puts and takes: one of the three has each token.
#[test]
fn loom_two_thieves_against_put_and_take() {
    loom::model(|| {
        let mock = Mock::default();
        let slot = Arc::new(Slot::new());
        let mut out = Vec::new();
        put(&slot, token(&mock), 1, &mut out);
        let thieves: Vec<_> = (0..2).map(|_| thief(&slot)).collect();
        put(&slot, token(&mock), 2, &mut out);
        take(&slot, &mut out);
        for thief in thieves {
            out.extend(thief.join().unwrap());
        }
        all_came_out(&mock, &slot, out, 2);
    });
}

/// Once seized, nothing goes in until the owner takes: what its poll wakes from then on is refused.
#[test]
fn loom_a_seized_slot_refuses_until_the_owner_takes() {
    loom::model(|| {
        let mock = Mock::default();
        let slot = Arc::new(Slot::new());
        let mut out = Vec::new();
        let thief = thief(&slot);
        out.extend(thief.join().unwrap());
        put(&slot, token(&mock), 1, &mut out);
        assert_eq!(out.len(), 1, "a closed slot took a token");
        assert!(!slot.is_filled());
        take(&slot, &mut out);
        put(&slot, token(&mock), 2, &mut out);
        assert!(slot.is_filled(), "open again");
        all_came_out(&mock, &slot, out, 2);
    });
}

/// An owner offers while another one takes its place over, and goes on there. Nothing of the former's is left in the place after that.
fn replaced(
    offer: fn(&Slot<MockContext>, Vacancy, Task<MockContext>) -> Result<(), Task<MockContext>>,
) {
    loom::model(move || {
        let mock = Mock::default();
        let slot = Arc::new(Slot::new());
        let (mine, _) = slot.take_over();
        let former = {
            let (mock, slot) = (mock.clone(), slot.clone());
            thread::spawn(move || {
                let mut task = token(&mock);
                *task.owned_mut() += 1;
                offer(&slot, mine, task).err()
            })
        };
        let (theirs, left) = slot.take_over();
        let mut out: Tokens = left.map(|(task, _)| task).into_iter().collect();
        let back = slot.offer(theirs, token(&mock), 0).err();
        assert!(back.is_none(), "the place is the new owner's, and empty");
        let mut taken = slot.vacate(theirs).map(|(task, _)| task);
        if let Some(task) = &mut taken {
            *task.owned_mut() += 1;
        }
        out.extend(taken);
        out.extend(former.join().unwrap());
        assert!(!slot.is_filled(), "left where nobody looks");
        for task in &mut out {
            *task.owned_mut() += 1;
        }
        all_came_out(&mock, &slot, out, 2);
    });
}

#[test]
fn loom_an_offer_against_a_new_owner() {
    replaced(|slot, vacancy, task| slot.offer(vacancy, task, 0));
}

/// The model can fail: with a store in place of the exchange it does.
#[test]
#[should_panic]
fn loom_an_offer_by_a_store_loses_tokens() {
    replaced(Slot::offer_by_store);
}

/// The owner offers, empties and offers again, while somebody seizes.
#[test]
fn loom_offers_against_seize() {
    loom::model(|| {
        let mock = Mock::default();
        let slot = Arc::new(Slot::new());
        let (mine, _) = slot.take_over();
        let thief = thief(&slot);
        let mut out: Tokens = Vec::new();
        out.extend(slot.offer(mine, token(&mock), 0).err());
        out.extend(slot.vacate(mine).map(|(task, _)| task));
        out.extend(slot.offer(mine, token(&mock), 0).err());
        out.extend(thief.join().unwrap());
        all_came_out(&mock, &slot, out, 2);
    });
}
