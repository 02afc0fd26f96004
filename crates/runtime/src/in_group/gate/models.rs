//! Every order of what the sides of a gate do.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Counts wake-ups. They happen outside the model's view, and only totals are looked at.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Count {
    fn woken(&self) -> usize {
        self.0.load(SeqCst)
    }
}

/// A gate with a member.
fn opened() -> Arc<Gate> {
    let gate = Gate::new();
    gate.reopen();
    Arc::new(gate)
}

/// What the outer task of a model has seen.
struct Outer {
    count: Arc<Count>,
    waker: Waker,
    /// Wake-ups before its last poll.
    seen: usize,
    polls: usize,
}

impl Outer {
    fn new() -> Self {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        Self {
            count,
            waker,
            seen: 0,
            polls: 0,
        }
    }

    fn poll(&mut self, gate: &Gate) -> Admission {
        self.seen = self.count.woken();
        let admission = gate.admit(&self.waker);
        if admission == Admission::Ended {
            gate.begin_poll();
        }
        self.polls += usize::from(admission != Admission::Wait);
        admission
    }

    /// The host: polls as often as it is woken.
    fn run(&mut self, gate: &Gate) {
        while self.count.woken() > self.seen {
            self.poll(gate);
        }
    }
}

/// A member that goes on for as long as it is woken.
struct Member {
    count: Arc<Count>,
    waker: Waker,
    seen: usize,
}

impl Member {
    fn new() -> Self {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        Self {
            count,
            waker,
            seen: 0,
        }
    }

    fn poll(&mut self, gate: &Gate) {
        self.seen = self.count.woken();
        let _ = gate.take_turn(&self.waker);
    }

    fn run(&mut self, gate: &Gate) {
        while self.count.woken() > self.seen {
            self.poll(gate);
        }
    }
}

/// A member that takes at most `turns` turns, each if it was woken (or is new), and then ends, paid or not.
fn member(gate: &Gate, turns: usize) {
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut seen = 0;
    for turn in 0..turns {
        if turn > 0 && count.woken() == seen {
            break;
        }
        seen = count.woken();
        if gate.take_turn(&waker) == Turn::Closed {
            break;
        }
    }
    gate.end();
}

/// A future that was never polled against a member that is killed: the first poll comes.
#[test]
fn loom_first_poll_against_the_gates_end() {
    for turns in [0, 1] {
        loom::model(move || {
            let gate = opened();
            let other = gate.clone();
            let thread = loom::thread::spawn(move || member(&other, turns));
            let mut outer = Outer::new();
            outer.poll(&gate);
            thread.join().unwrap();
            outer.run(&gate);
            assert!(outer.polls >= 1, "the first poll was lost");
        });
    }
}

/// The inner future is woken while the member takes its turns and ends, and while the outer task looks: whoever wakes, the
/// inner future is polled after the wake-up.
#[test]
fn loom_wake_up_against_the_gates_end() {
    loom::model(|| {
        let gate = opened();
        // Polled once, and pending.
        gate.begin_poll();
        let (waking, ending) = (gate.clone(), gate.clone());
        let waker = loom::thread::spawn(move || waking.wake_inner());
        let ender = loom::thread::spawn(move || member(&ending, 2));
        let mut outer = Outer::new();
        outer.poll(&gate);
        waker.join().unwrap();
        ender.join().unwrap();
        outer.run(&gate);
        assert!(outer.polls >= 1, "the wake-up was lost");
    });
}

/// The same with a member that lives, and another outer poll in between that nobody asked for: it passes the wake-up on.
#[test]
fn loom_wake_up_against_turn_and_outer_poll() {
    loom::model(|| {
        let gate = opened();
        gate.begin_poll();
        let (waking, passing) = (gate.clone(), gate.clone());
        let waker = loom::thread::spawn(move || waking.wake_inner());
        let member = loom::thread::spawn(move || {
            let mut member = Member::new();
            member.poll(&passing);
            member
        });
        let mut outer = Outer::new();
        outer.poll(&gate);
        waker.join().unwrap();
        let mut member = member.join().unwrap();
        member.run(&gate);
        outer.run(&gate);
        assert_eq!(outer.polls, 1, "one wake-up, one poll");
    });
}

/// A wake-up during the inner poll, while the member still looks: it counts for the next poll.
#[test]
fn loom_wake_up_against_the_poll_before() {
    loom::model(|| {
        let gate = opened();
        let mut member = Member::new();
        member.poll(&gate);
        let waking = gate.clone();
        let waker = loom::thread::spawn(move || waking.wake_inner());
        let mut outer = Outer::new();
        assert_eq!(outer.poll(&gate), Admission::Pass);
        waker.join().unwrap();
        // The wake-up came before the poll, which then saw its cause, or counts for the next.
        let owed = gate.state.load(Ordering::Acquire) & READY != 0;
        member.run(&gate);
        outer.poll(&gate);
        assert_eq!(outer.polls, 1 + usize::from(owed));
    });
}

/// A wake-up while the outer task, whose member is gone, makes a new one.
#[test]
fn loom_wake_up_against_a_new_member() {
    loom::model(|| {
        let gate = opened();
        gate.end();
        let mut outer = Outer::new();
        assert_eq!(gate.admit(&outer.waker), Admission::Ended);
        gate.reopen();
        let (waking, passing) = (gate.clone(), gate.clone());
        let waker = loom::thread::spawn(move || waking.wake_inner());
        let member = loom::thread::spawn(move || member(&passing, 1));
        outer.poll(&gate);
        waker.join().unwrap();
        member.join().unwrap();
        outer.run(&gate);
        assert!(outer.polls >= 1, "the wake-up was lost");
    });
}

/// A wrap that is dropped while its member takes a turn: what it owes is paid exactly once, by a turn or at the end, and once
/// it is gone nothing of the outer task is kept.
#[test]
fn loom_debt_is_paid_once_when_the_wrap_goes() {
    loom::model(|| {
        let gate = opened();
        let mut outer = Outer::new();
        outer.poll(&gate);
        let paying = gate.clone();
        let member = loom::thread::spawn(move || {
            let turn = paying.take_debt();
            let _ = paying.take_turn(Waker::noop());
            let last = paying.take_debt();
            paying.end();
            turn.as_nanos() + last.as_nanos()
        });
        gate.owe(Nanos(7));
        gate.close();
        assert!(lock(&gate.outer).is_none(), "the outer task is kept");
        let paid = member.join().unwrap();
        assert_eq!(paid + gate.take_debt().as_nanos(), 7);
    });
}

/// A wake-up while a poll goes ahead without a member, and while the outer task makes one for the next: it counts for the
/// next poll, which comes.
#[test]
fn loom_wake_up_against_a_poll_that_goes_ahead() {
    loom::model(|| {
        let gate = Arc::new(Gate::new());
        let mut outer = Outer::new();
        assert_eq!(gate.admit(&outer.waker), Admission::Ended);
        let waking = gate.clone();
        let waker = loom::thread::spawn(move || waking.wake_inner());
        // It goes ahead.
        gate.begin_poll();
        // And is polled again, as soon as the host is asked, with a member of its own from now on.
        let mut members = Vec::new();
        for _ in 0..2 {
            if outer.count.woken() > outer.seen && members.is_empty() {
                outer.seen = outer.count.woken();
                if gate.admit(&outer.waker) == Admission::Ended {
                    gate.reopen();
                    let passing = gate.clone();
                    members.push(loom::thread::spawn(move || member(&passing, 1)));
                }
            }
            loom::thread::yield_now();
        }
        waker.join().unwrap();
        for member in members {
            member.join().unwrap();
        }
        let owed = gate.state.load(Ordering::Acquire) & READY != 0;
        outer.run(&gate);
        assert_eq!(outer.polls, usize::from(owed), "one wake-up, one poll");
    });
}
