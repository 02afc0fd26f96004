//! The heartbeat: whether the host and the tick thread get on while polls stand stopped.
//!
//! # What it is for
//! A poll that is stopped may hold a lock that no virtual CPU waits for, but the program does: one of tokio's that a worker wants, the
//! allocator's that the tick thread wants. Rescue looks at virtual CPUs and sees nothing. So while anything stands, the tick thread asks a
//! question every [`PERIOD`]: it notes the time, and then wakes a task of ours on the host. The task's poll takes the question back. The
//! tick thread's own look is a question too, from its beginning to its end. The watch sees a question that is open for [`LATE`], and
//! lets all that stand have a short turn; again after twice, four times, ... as long, [`BACKOFF_MAX`] at most, while the same question
//! stays open. After [`GRAVE`] even those have part in it that a freeze has stopped.
//!
//! # The bound
//! Whoever holds a lock that stops the host or the tick thread runs again within PERIOD + 4 ms (the tick thread's own period) + LATE + 1 ms
//! (the watch's), 20 ms, and what the machine takes; once more after 5, 10, 20, ... ms if its lock is held for longer than such a turn.
//! What all of it costs stays within what rescue may cost, since it counts as such. Not seen is a lock that stops some of several workers
//! only, and one that only polls wait for: these are left to aging, which brings each of n that stand a short turn in n times 20 ms. That
//! holds for locks in user space too, whose waiters look busy: a holder among n that needs c of CPU time is through after
//! n * max(20 ms, 100 c) at the latest, twice that on a machine that is busy otherwise.
//! A host whose workers are all busy with the program's own work does not answer either: at 160 ms a turn of 200 us that is 0.1 % of a processor.
//!
//! # Who may touch what
//! | field | written by | meaning |
//! |---|---|---|
//! | `standing` | watch | somebody stands: questions are to be asked |
//! | `asked` | tick thread: 0 → time + 1, before it wakes; the host's task: → 0 | the open question |
//! | `looking` | tick thread | since when it looks, plus 1; 0 between looks |
//! | `looker` | tick thread | the kernel's number of it |
//! | `waker` | the host's task, at its first poll | |
//! | `gone` | whoever drops the task, or closes the scheduler | nobody answers any more: nothing is asked |
//!
//! Each is a word that is loaded and stored relaxed: a question that is seen late is seen a look later, and one that is answered before
//! the wake-up was answered all the same. The watch waits for nobody here. The tick thread may get stuck in the wake-up: then the
//! question stays open, which is the point.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

use quotient_core::Nanos;

use crate::watch::thread_number;

/// How often the host is asked while somebody stands. Unit: nanoseconds. 10 ms: a question costs some 20 us, 0.2 % of a processor.
pub(super) const PERIOD: Nanos = Nanos::from_micros(10_000);
/// A question that is open for so long is a missed beat. Unit: nanoseconds. 5 ms: on a machine that is not overloaded a worker is woken in
/// less than one.
const LATE: Nanos = Nanos::from_micros(5_000);
/// Longest pause between two short turns because of one question. Unit: nanoseconds.
const BACKOFF_MAX: Nanos = Nanos::from_micros(160_000);
/// When a question is so old that a freeze must give way. Unit: nanoseconds. 250 ms: time in which the watch itself was not looked after by
/// the machine does not count.
pub(super) const GRAVE: Nanos = Nanos::from_micros(250_000);

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    standing: AtomicBool,
    asked: AtomicU64,
    looking: AtomicU64,
    looker: AtomicU32,
    /// When the host was asked last, by the tick thread only.
    last: AtomicU64,
    waker: OnceLock<Waker>,
    gone: AtomicBool,
}

/// A time as a word that is never 0.
fn word(time: Nanos) -> u64 {
    time.as_nanos().wrapping_add(1)
}

/// What such a word says.
fn since(word: u64) -> Option<Nanos> {
    (word != 0).then(|| Nanos(word - 1))
}

impl Heartbeat {
    /// The host's task: answers until the scheduler closes.
    pub(super) async fn answer(self: Arc<Self>) {
        struct Gone(Arc<Heartbeat>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.0.gone.store(true, Ordering::Relaxed);
                self.0.asked.store(0, Ordering::Relaxed);
            }
        }
        let this = Gone(self);
        std::future::poll_fn(|context| {
            this.0.waker.get_or_init(|| context.waker().clone());
            this.0.asked.store(0, Ordering::Relaxed);
            if this.0.gone.load(Ordering::Relaxed) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Whether the waker is of a kind with that of a task of tokio's.
    pub(super) fn is_waker_alike(&self, waker: &Waker) -> bool {
        let known = self.waker.get();
        known.is_some_and(|known| std::ptr::eq(known.vtable(), waker.vtable()))
    }

    /// Nobody is to be asked any more.
    pub(super) fn close(&self) {
        self.gone.store(true, Ordering::Relaxed);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// The watch: whether somebody stands. True if the tick thread should get up and ask.
    pub(super) fn note_standing(&self, standing: bool, now: Nanos) -> bool {
        self.standing.store(standing, Ordering::Relaxed);
        let due = Nanos(self.last.load(Ordering::Relaxed)).saturating_add(PERIOD);
        standing && self.asked.load(Ordering::Relaxed) == 0 && now >= due
    }

    /// The tick thread: it looks from now on.
    pub(super) fn look_begins(&self, now: Nanos) {
        self.looker.store(thread_number(), Ordering::Relaxed);
        self.looking.store(word(now), Ordering::Relaxed);
    }

    /// The tick thread: its look is over. Asks the host if it is time to.
    pub(super) fn look_ends(&self, now: Nanos) {
        self.looking.store(0, Ordering::Relaxed);
        let due = Nanos(self.last.load(Ordering::Relaxed)).saturating_add(PERIOD);
        let open = self.asked.load(Ordering::Relaxed) != 0;
        if !self.standing.load(Ordering::Relaxed) || open || now < due {
            return;
        }
        if let Some(waker) = self.waker.get()
            && !self.gone.load(Ordering::Relaxed)
        {
            self.last.store(now.as_nanos(), Ordering::Relaxed);
            self.asked.store(word(now), Ordering::Relaxed);
            waker.wake_by_ref();
        }
    }

    /// The watch: whether the tick thread only waits for a processor. Three system calls.
    pub(super) fn looker_is_kept(&self) -> bool {
        let thread = i32::try_from(self.looker.load(Ordering::Relaxed));
        thread.is_ok_and(|thread| quotient_pause::is_thread_asleep(thread) == Some(false))
    }

    /// The watch: since when the host's answer is awaited, and the tick thread looks.
    pub(super) fn open(&self) -> [Option<Nanos>; 2] {
        [&self.asked, &self.looking].map(|word| since(word.load(Ordering::Relaxed)))
    }
}

/// A question that was open for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    /// So long that those who are frozen have part in what follows.
    pub(super) grave: bool,
}

/// What the watch remembers of one questioner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    question: Option<Nanos>,
    due: Nanos,
    interval: Nanos,
}

impl Patience {
    /// Whether something is to be done about the question that is open since `question`, if who is to answer is not `kept` from it by want of a
    /// processor. What was before `starved`, when the machine had no time for the watch either, makes nothing grave.
    pub(super) fn is_over(
        &mut self,
        question: Option<Nanos>,
        kept: impl FnOnce() -> bool,
        starved: Nanos,
        now: Nanos,
    ) -> Option<Missed> {
        if self.question != question {
            self.question = question;
            self.interval = LATE;
            self.due = question.unwrap_or_default().saturating_add(LATE);
        }
        let asked = question?;
        if now < self.due || kept() {
            return None;
        }
        self.due = now.saturating_add(self.interval);
        self.interval = Nanos(self.interval.as_nanos() * 2).min(BACKOFF_MAX);
        let grave = now.saturating_sub(asked.max(starved)) >= GRAVE;
        Some(Missed { grave })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::Future;

    use super::*;

    /// Milliseconds, of the first second, at which something is done about a question from 1 ms on that stays open until `answered`.
    fn turns(answered: u64) -> Vec<(u64, bool)> {
        let mut patience = Patience::default();
        let mut turns = Vec::new();
        for milli in 0..1_000 {
            let open = (1..answered).contains(&milli);
            let question = open.then(|| Nanos::from_millis(1));
            let starved = Nanos::from_millis(50);
            if let Some(missed) =
                patience.is_over(question, || false, starved, Nanos::from_millis(milli))
            {
                turns.push((milli, missed.grave));
            }
        }
        turns
    }

    #[test]
    fn a_host_that_never_answers_buys_time_without_end() {
        let expected = [6, 11, 21, 41, 81, 161, 321, 481, 641, 801, 961];
        let expected: Vec<_> = expected.map(|milli| (milli, milli >= 300)).into();
        assert_eq!(turns(2_000), expected);
    }

    #[test]
    fn a_beat_that_comes_in_time_is_taken_for_missed() {
        assert_eq!(turns(6), []);
        assert_eq!(turns(7), [(6, false)]);
    }

    #[test]
    fn nobody_is_asked_while_nothing_stands_or_before_the_last_question_is_answered() {
        use std::sync::atomic::AtomicUsize;
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let beat = Arc::new(Heartbeat::default());
        let waker = Waker::from(count.clone());
        let mut context = std::task::Context::from_waker(&waker);
        let mut answer = Box::pin(beat.clone().answer());
        let asked = |milli| {
            let now = Nanos::from_millis(milli);
            beat.look_begins(now);
            assert_eq!(beat.open()[1], Some(now), "a look is a question");
            beat.look_ends(now);
            assert_eq!(beat.open()[1], None);
            count.0.load(Ordering::Relaxed)
        };
        assert!(answer.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked(100), 0, "nothing stands");
        assert!(beat.note_standing(true, Nanos::from_millis(100)));
        assert_eq!(asked(101), 1);
        assert_eq!(beat.open()[0], Some(Nanos::from_millis(101)));
        assert_eq!(asked(150), 1, "the last one is open");
        assert!(answer.as_mut().poll(&mut context).is_pending());
        assert_eq!(beat.open()[0], None);
        assert!(beat.note_standing(true, Nanos::from_millis(151)));
        assert_eq!(asked(151), 2);
        assert!(answer.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked(160), 2, "too early");
        // The host's runtime goes, and the task with it.
        drop(answer);
        assert_eq!(asked(500), 2, "asks who cannot answer");
        assert_eq!(beat.open(), [None, None]);
    }
}
