//! Hazard: a task blocks in place until another task of its group has answered. Whoever is woken by the blocked poll must be run by
//! somebody else, on every number of workers, whichever `block_in_place` it is.

#[path = "common/repeat.rs"]
mod repeat;

use quotient::Group;
use repeat::on_one_two_and_four_workers;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

type Question = (u32, oneshot::Sender<u32>);

/// An actor of the group that answers with the successor.
fn actor(group: &Group) -> mpsc::Sender<Question> {
    let (sender, mut receiver) = mpsc::channel::<Question>(4);
    drop(group.spawn(async move {
        while let Some((value, reply)) = receiver.recv().await {
            let _ = reply.send(value + 1);
        }
    }));
    sender
}

async fn ask(sender: &mpsc::Sender<Question>, value: u32) -> u32 {
    let (reply, answer) = oneshot::channel();
    sender.send((value, reply)).await.unwrap();
    answer.await.unwrap()
}

fn asks_and_is_answered(block: fn(&mut dyn FnMut())) {
    on_one_two_and_four_workers(|scheduler, _| async move {
        let group = scheduler.group("g").unwrap().create().unwrap();
        let sender = actor(&group);
        // The actor waits for its first question.
        assert_eq!(ask(&sender, 1).await, 2);
        let asking = group.spawn(async move {
            let mut sum = 0;
            block(&mut || {
                sum = Handle::current().block_on(async {
                    let mut sum = 0;
                    for value in 0..3 {
                        sum += ask(&sender, value).await;
                    }
                    sum
                });
            });
            sum
        });
        assert_eq!(asking.await.unwrap(), 6);
    });
}

#[test]
fn block_in_place() {
    asks_and_is_answered(|function| quotient::block_in_place(function));
}

#[test]
fn block_in_place_of_tokio() {
    asks_and_is_answered(|function| tokio::task::block_in_place(function));
}

#[test]
fn block_in_place_within_block_in_place() {
    asks_and_is_answered(|function| {
        quotient::block_in_place(|| {
            quotient::block_in_place(|| ());
            // The end of the inner one has not ended the outer one.
            function();
        });
    });
}

#[test]
fn a_poll_that_just_blocks() {
    on_one_two_and_four_workers(|scheduler, _| async move {
        let group = scheduler.group("g").unwrap().create().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel::<u32>();
        let blocking = group.spawn(async move {
            drop(quotient::spawn(async move { sender.send(7).unwrap() }));
            receiver.recv().unwrap()
        });
        assert_eq!(blocking.await.unwrap(), 7);
    });
}
