//! What a bearer shares with those who govern it: whether it may run, whether it has finished, where its proxy is.
//!
//! The word of a bearer is two flags and, behind the lock, who chose it last, the request to stand still, and the proxy while that is
//! away. All changes happen under the lock; the flags are read outside it, by the bearer itself (which of low priority should not hold the lock) and
//! as hints. The rules:
//! - *Who chose it last governs it.* [`Turns::forbid`] of a virtual CPU that was not the last to choose does nothing: a proxy that was stolen
//!   and chosen elsewhere is not stopped by who lost it.
//! - *Nobody stays stopped who may run.* [`Turns::allow`] takes the request to stand still out and wakes a bearer that waits between two
//!   polls, if it may have seen that it was forbidden.
//! - *Who is away is let run.* Only the bearer itself can bring its proxy back, by getting on. So [`Turns::put_away`] of one that is blocked allows
//!   it, and [`Turns::forbid`] does nothing while the proxy is away: the watch, which forbids whoever nobody has chosen, may look between the
//!   dismissal and the putting away, or forbid behind it. (One killed in its poll, or whose payer has no budget, is put away forbidden, and
//!   gets on by short turns. One whose proxy is about to be brought back is stopped by [`Turns::forbid_returning`]: whoever forbids it has marked the proxy
//!   before, and who finds the mark queues the proxy, whether the bearer runs or stands; both under the watch's lock, `dozing`.)
//! - *Who has begun is known to who stops it.* A thread that waits before its first region notes that it has begun, and then looks once more whether it
//!   may; who forbids it does so and then looks for the note (`frozen`).
//! - *A proxy is in one place.* [`Turns::finish`] sets `finished` and takes the proxy that is away in one step; [`Turns::put_away`] after that
//!   gives the proxy back. So of the bearer's end, the carrier that puts the proxy away, and the look that brings it back, one has it.

use crate::primitives::{AtomicBool, Mutex, MutexGuard, Ordering, park};

use super::NOBODY;

/// See the module's header. `P` stops a thread until it is dropped, `T` is the proxy's token, `O` what became of the poll, `C` what else lies
/// behind the lock.
pub(super) struct Turns<P, T, O, C> {
    /// The poll has ended.
    finished: AtomicBool,
    /// Policy lets it run.
    allowed: AtomicBool,
    /// It is in its first region, or beyond.
    begun: AtomicBool,
    inner: Mutex<Inner<P, T, O, C>>,
}

/// Behind the lock.
pub(super) struct Inner<P, T, O, C> {
    /// The virtual CPU that has chosen it last.
    pub(super) by: usize,
    /// It was asked to stand still.
    pub(super) pause: Option<P>,
    /// What became of the poll, from its end until the proxy is settled.
    outcome: Option<O>,
    /// The proxy, while the bearer is blocked, or killed.
    away: Option<T>,
    pub(super) charges: C,
}

impl<P, T, O, C> std::fmt::Debug for Turns<P, T, O, C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Turns")
            .field("finished", &self.is_finished())
            .field("allowed", &self.is_allowed())
            .finish_non_exhaustive()
    }
}

/// What [`Turns::allow`] has changed; whoever asked wakes the bearer.
pub(super) struct Allowed<P> {
    /// It may wait between two polls.
    pub(super) was_forbidden: bool,
    /// It may stand in a poll, until this is dropped.
    pub(super) pause: Option<P>,
}

impl<P, T, O, C: Default> Turns<P, T, O, C> {
    pub(super) fn new() -> Self {
        Self {
            finished: AtomicBool::new(false),
            allowed: AtomicBool::new(true),
            begun: AtomicBool::new(true),
            inner: Mutex::new(Inner {
                by: NOBODY,
                pause: None,
                outcome: None,
                away: None,
                charges: C::default(),
            }),
        }
    }
}

impl<P, T, O, C> Turns<P, T, O, C> {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner<P, T, O, C>> {
        self.inner
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Whether the poll has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Whether policy lets it run. A hint.
    pub(super) fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Relaxed)
    }

    /// Before its first region: it may not begin until it is chosen.
    pub(super) fn begins_forbidden(&self) {
        self.begun.store(false, Ordering::SeqCst);
        self.allowed.store(false, Ordering::SeqCst);
    }

    /// Whether it waits for its first turn. Certain (H2 of `frozen`) for who has forbidden it before, and while nobody lets it run.
    pub(super) fn is_unbegun(&self) -> bool {
        !self.begun.load(Ordering::SeqCst)
    }

    /// Waits for its first turn; whether it begins, or has `ended` without.
    pub(super) fn begins_unless(&self, ended: impl Fn() -> bool) -> bool {
        while self.wait_until_allowed_unless(&ended) {
            // G1 and G2 of `frozen`.
            self.begun.store(true, Ordering::SeqCst);
            if self.allowed.load(Ordering::SeqCst) {
                return true;
            }
            self.begun.store(false, Ordering::SeqCst);
        }
        false
    }

    /// Lets it run, as the choice of `vcpu`. `on_resume` sees each request to stand still that ends so, under the lock, and by whom it was
    /// chosen.
    pub(super) fn allow(
        &self,
        inner: &mut Inner<P, T, O, C>,
        vcpu: usize,
        on_resume: impl FnOnce(usize),
    ) -> Allowed<P> {
        inner.by = vcpu;
        let was_forbidden = !self.allowed.swap(true, Ordering::SeqCst);
        let pause = inner.pause.take();
        if pause.is_some() {
            on_resume(vcpu);
        }
        Allowed {
            was_forbidden,
            pause,
        }
    }

    /// Stops it with what `stop` gives, if `vcpu` was the last to choose it and its proxy is not away; whether it was asked to stop just now.
    pub(super) fn forbid(&self, vcpu: usize, stop: impl FnOnce(usize) -> Option<P>) -> bool {
        let mut inner = self.lock();
        if inner.by != vcpu || inner.away.is_some() || !self.allowed.swap(false, Ordering::SeqCst) {
            return false;
        }
        self.stop(&mut inner, stop);
        true
    }

    /// The watch: stops one whose proxy is away and is to be brought back in any case, by somebody else than the bearer. Whether it was asked to stop just now.
    pub(super) fn forbid_returning(&self, stop: impl FnOnce(usize) -> Option<P>) -> bool {
        let mut inner = self.lock();
        if inner.away.is_none() || !self.allowed.swap(false, Ordering::SeqCst) {
            return false;
        }
        self.stop(&mut inner, stop);
        true
    }

    fn stop(&self, inner: &mut Inner<P, T, O, C>, stop: impl FnOnce(usize) -> Option<P>) {
        if inner.pause.is_none() && !self.is_finished() {
            inner.pause = stop(inner.by);
        }
    }

    /// The watch: what is forbidden stands, and is asked again if a request has `missed`. Whether it was asked.
    pub(super) fn enforce(
        &self,
        missed: impl FnOnce(&P) -> bool,
        on_resume: impl FnOnce(usize),
        stop: impl FnOnce(usize) -> Option<P>,
    ) -> bool {
        let mut inner = self.lock();
        if self.allowed.load(Ordering::SeqCst) || self.is_finished() {
            return false;
        }
        if inner.pause.as_ref().is_none_or(missed) {
            if inner.pause.take().is_some() {
                on_resume(inner.by);
            }
            self.stop(&mut inner, stop);
        }
        inner.pause.is_some()
    }

    /// The watch: a short turn of one that is forbidden begins; [`Turns::enforce`] ends it.
    pub(super) fn burst(&self, on_resume: impl FnOnce(usize)) {
        let mut inner = self.lock();
        if let Some(pause) = inner.pause.take() {
            on_resume(inner.by);
            drop(pause);
        }
    }

    /// The outcome, once.
    pub(super) fn take_outcome(&self) -> Option<O> {
        self.lock().outcome.take()
    }

    /// Whether the proxy is away.
    pub(super) fn is_away(&self) -> bool {
        self.lock().away.is_some()
    }

    /// Puts the proxy away until the bearer gets on, unless it has finished; then the proxy comes back. `note` is called if it is put away.
    /// Unless it `stands` it is let run, as [`Turns::allow`] does; whoever asked wakes it.
    pub(super) fn put_away(
        &self,
        proxy: T,
        stands: bool,
        note: impl FnOnce(&mut C),
        on_resume: impl FnOnce(usize),
    ) -> Result<Option<Allowed<P>>, T> {
        let mut inner = self.lock();
        if self.is_finished() {
            return Err(proxy);
        }
        note(&mut inner.charges);
        inner.away = Some(proxy);
        let by = inner.by;
        Ok((!stands).then(|| self.allow(&mut inner, by, on_resume)))
    }

    /// The proxy, if it is away and `is_back`.
    pub(super) fn bring_back(&self, is_back: impl FnOnce(&C) -> bool) -> Option<T> {
        let mut inner = self.lock();
        if !is_back(&inner.charges) {
            return None;
        }
        inner.away.take()
    }

    /// Between two polls, or before its first region: waits until policy lets it run; false if it has `ended` by then. Whoever ends it wakes
    /// its thread.
    pub(super) fn wait_until_allowed_unless(&self, ended: impl Fn() -> bool) -> bool {
        loop {
            if ended() {
                return false;
            }
            if self.allowed.load(Ordering::SeqCst) {
                return true;
            }
            park();
        }
    }

    /// E1: the poll has ended. Returns the virtual CPU whose nap may be for it, and the proxy if that was away.
    pub(super) fn finish(
        &self,
        outcome: O,
        note: impl FnOnce(&mut C),
        on_resume: impl FnOnce(usize),
    ) -> (usize, Option<T>) {
        let mut inner = self.lock();
        inner.outcome = Some(outcome);
        note(&mut inner.charges);
        if inner.pause.take().is_some() {
            on_resume(inner.by);
        }
        self.finished.store(true, Ordering::Release);
        (inner.by, inner.away.take())
    }
}

/// Seen to fail with a `forbid` that does not look at `by`, an `enforce` that looks at `allowed` before it has the lock, an `allow` that leaves
/// the request in place, a `put_away` that does not look at `finished`, one that leaves it forbidden, a `forbid` of one that is away, and a
/// `begins_unless` that does not look again.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread::JoinHandle;

    use super::*;

    /// A request to stand still that is in force: one of so many.
    struct Stop(Arc<AtomicUsize>);

    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    type Word = Turns<Stop, u32, (), ()>;

    #[derive(Clone)]
    struct Model {
        word: Arc<Word>,
        stops: Arc<AtomicUsize>,
    }

    impl Model {
        /// The choice of virtual CPU 1.
        fn new() -> Self {
            let model = Self {
                word: Arc::new(Word::new()),
                stops: Arc::new(AtomicUsize::new(0)),
            };
            model.word.lock().by = 1;
            model
        }

        /// Asks the thread to stand still, as a signal does: it stands from some later point of the region on.
        fn stop(&self) -> Option<Stop> {
            self.stops.fetch_add(1, Ordering::SeqCst);
            Some(Stop(self.stops.clone()))
        }

        /// A thread in a poll, which stands wherever it is asked to, and then between two polls. (It takes no lock: the model checker's
        /// threads must not be unparked while they wait for one.)
        fn bear(&self) -> JoinHandle<()> {
            let this = self.clone();
            loom::thread::spawn(move || {
                while this.stops.load(Ordering::SeqCst) != 0 {
                    loom::thread::yield_now();
                }
                this.word.wait_until_allowed_unless(|| false);
            })
        }

        fn end(&self) -> Option<u32> {
            self.word.finish((), |()| {}, |_| {}).1
        }

        fn allow(&self, vcpu: usize, bearer: &JoinHandle<()>) {
            let mut inner = self.word.lock();
            let allowed = self.word.allow(&mut inner, vcpu, |_| {});
            if allowed.was_forbidden {
                bearer.thread().unpark();
            }
            drop(allowed.pause);
        }

        fn ends(&self, bearer: JoinHandle<()>) {
            bearer.join().unwrap();
            assert_eq!(self.end(), None, "nobody has put it away");
            assert!(self.word.is_finished() && self.word.take_outcome().is_some());
            assert_eq!(self.stops.load(Ordering::SeqCst), 0, "a request is left");
        }
    }

    /// Stolen and chosen by 2, while 1, which had it, lets another go first.
    #[test]
    fn loom_who_has_lost_a_bearer_does_not_stop_it() {
        loom::model(|| {
            let model = Model::new();
            let bearer = model.bear();
            let loser = {
                let model = model.clone();
                loom::thread::spawn(move || model.word.forbid(1, |_| model.stop()))
            };
            model.allow(2, &bearer);
            loser.join().unwrap();
            model.ends(bearer);
        });
    }

    /// The watch asks once more those that do not stand yet, while one of them is chosen.
    #[test]
    fn loom_the_watch_does_not_stop_who_is_chosen() {
        loom::model(|| {
            let model = Model::new();
            let bearer = model.bear();
            let watch = {
                let model = model.clone();
                loom::thread::spawn(move || {
                    model.word.enforce(|_| true, |_| {}, |_| model.stop());
                })
            };
            model.word.forbid(1, |_| model.stop());
            model.allow(1, &bearer);
            watch.join().unwrap();
            model.ends(bearer);
        });
    }

    /// The end of a poll, the carrier that found it blocked, and the look that finds it back: `returned` against sleep. One has the proxy.
    #[test]
    fn loom_a_proxy_is_in_one_place() {
        loom::model(|| {
            let model = Model::new();
            let bearer = {
                let model = model.clone();
                loom::thread::spawn(move || model.end())
            };
            let look = {
                let model = model.clone();
                loom::thread::spawn(move || model.word.bring_back(|()| true))
            };
            let kept = model.word.put_away(7, false, |()| {}, |_| {}).err();
            let all = [kept, look.join().unwrap(), bearer.join().unwrap()];
            let found: Vec<_> = all.into_iter().flatten().collect();
            assert_eq!(found, [7], "lost, or twice");
        });
    }

    /// A freeze as a thread is about to begin: either it has begun, or it does not before the thaw.
    #[test]
    fn loom_who_has_not_begun_begins_in_a_frozen_group() {
        loom::model(|| {
            let model = Model::new();
            model.word.begins_forbidden();
            let (thawed, too_early) =
                (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let bearer = {
                let (model, thawed) = (model.clone(), thawed.clone());
                let too_early = too_early.clone();
                loom::thread::spawn(move || {
                    assert!(model.word.begins_unless(|| false));
                    let early = usize::from(thawed.load(Ordering::SeqCst) == 0);
                    too_early.store(early, Ordering::SeqCst);
                })
            };
            model.allow(1, &bearer);
            model.word.forbid(1, |_| None);
            let held = model.word.is_unbegun();
            if held {
                thawed.store(1, Ordering::SeqCst);
            }
            // Of a thread that has begun the proxy goes on, and is chosen.
            model.allow(1, &bearer);
            bearer.join().unwrap();
            let too_early = too_early.load(Ordering::SeqCst) != 0;
            assert!(!(held && too_early), "begun, and held");
        });
    }

    /// The watch, which found nobody to have chosen a bearer, and the carrier that found it blocked and puts its proxy away: whichever comes
    /// first, the bearer goes on after its poll, and takes its proxy along.
    #[test]
    fn loom_who_is_away_is_not_left_forbidden() {
        loom::model(|| {
            let model = Model::new();
            let bearer = model.bear();
            let watch = {
                let model = model.clone();
                loom::thread::spawn(move || model.word.forbid(1, |_| model.stop()))
            };
            let allowed = model.word.put_away(7, false, |()| {}, |_| {});
            let allowed = allowed.ok().flatten().expect("it has not finished");
            if allowed.was_forbidden {
                bearer.thread().unpark();
            }
            drop(allowed.pause);
            watch.join().unwrap();
            bearer.join().unwrap();
            assert_eq!(model.end(), Some(7), "the proxy is lost");
        });
    }
}
