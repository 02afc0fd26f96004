//! What a thread that bears, or may have to bear, does for others in the middle of its poll: an `in_group`, a meter of another group.
//!
//! # Two accounts
//! *For the bearer's group*: what of the thread's CPU time is not its, as a sum that only grows (`theirs`), and since when it is not, if it
//! is not now (`since`). The outermost such part keeps it.
//!
//! *For the others*: an [`Account`] of the innermost part in progress. An `in_group` accounts for a poll at its end, and a meter when
//! somebody looks; what does not return would be paid by nobody meanwhile, whatever the limits above say. So whoever charges the bearer also
//! charges the innermost part what that has used up to then ([`Others::advance`]), and its end, or a reading of its clock, charges
//! the rest. What was charged in advance is not taken back.
//!
//! # Who may touch what
//! The sum is written by the thread alone; a charge may see too much of it, for once, if a part ends just then, and the next makes
//! it good. The account lies behind a leaf lock, held for some instructions: by the thread, in its poll, under a shield, so that no stopped
//! thread ever holds it; and by who turns the virtual CPU. Each charge is taken note of under the lock, before it is made, so nothing is
//! charged twice. An account around it is kept on the thread's stack meanwhile, and goes on from the end of the inner one.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quotient_core::Nanos;

use super::carrier::Carrier;
use super::lock;
use crate::group::GroupShared;
use crate::local::Charged;
use crate::shared::Shared;
use crate::vcpu::look_at_refill;

thread_local! {
    /// The carrier that this thread is.
    static CURRENT: RefCell<Option<Arc<Carrier>>> = const { RefCell::new(None) };
    /// When [`borne_is_due`] said yes last.
    static ASKED: Cell<Nanos> = const { Cell::new(Nanos::ZERO) };
}

/// The carrier that the calling thread is, if it is one.
pub(crate) fn current() -> Option<Arc<Carrier>> {
    CURRENT.with(|current| current.borrow().clone())
}

/// How often a poll that is borne is asked to end for a moment, if it asks. Unit: time. Default 4 ms, a request: what was asked of its task meanwhile, such
/// as its end, gets to it between polls only.
const BORNE_POLL_MAX: Nanos = Nanos::from_millis(4);

/// Whether the calling thread's poll, if another thread has its virtual CPU by now, is to end for a moment; `None` if it still has that itself. It is no
/// business of such a poll what is asked of the virtual CPU that it had.
pub(crate) fn borne_is_due(now: impl FnOnce() -> Nanos) -> Option<bool> {
    with(true, |carrier| carrier.task().is_some()).filter(|borne| *borne)?;
    let now = now();
    let due = |asked: &Cell<Nanos>| {
        let is_due = now.saturating_sub(asked.get()) >= BORNE_POLL_MAX;
        if is_due {
            asked.set(now);
        }
        is_due
    };
    Some(ASKED.try_with(due).unwrap_or(true))
}

/// Makes the calling thread a carrier, or no longer, if it may be one.
pub(super) fn set_current(carrier: Option<Arc<Carrier>>) {
    let before = CURRENT.try_with(|current| current.replace(carrier));
    drop(before);
}

/// Whether the calling thread can be a carrier: not any more as it ends, where the locals of others are dropped after its own.
pub(super) fn may_be_current() -> bool {
    CURRENT.try_with(|_| ()).is_ok()
}

/// Runs `act` on the carrier that the calling thread is, if it is one and somebody charges by turns what it does.
fn with<R>(polling: bool, act: impl FnOnce(&Arc<Carrier>) -> R) -> Option<R> {
    let act = |current: &RefCell<Option<Arc<Carrier>>>| {
        let current = current.borrow();
        let carrier = current.as_ref()?;
        (polling || carrier.others().foreign).then(|| act(carrier))
    };
    CURRENT.try_with(act).ok().flatten()
}

/// What goes on when a part that others account for is over: what is around it.
#[derive(Debug)]
pub(crate) struct Around {
    /// Who began it, though the thread may be another carrier by its end: a meter can be forgotten.
    carrier: Arc<Carrier>,
    account: Option<Account>,
}

/// What `group`, of the scheduler `shared`, accounts for by itself begins on the calling thread, at the time `cpu` of its CPU clock. `None` if
/// nobody charges the thread by turns: it is no task's `poll`, and none of another pool that takes turns.
pub(crate) fn begins_for_others(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    cpu: impl FnOnce() -> Nanos,
    polling: bool,
) -> Option<Around> {
    with(polling, |carrier| Around {
        carrier: carrier.clone(),
        account: carrier.others().begins((shared, group), cpu()),
    })
}

/// The innermost part of a `poll`, or of a thread of another pool, has used `own` so far, and was charged `charged` because somebody looked:
/// what is to be charged now is returned, and taken note of. `None` if nobody else charges it.
pub(crate) fn shown_for_others(own: Nanos, charged: Nanos, polling: bool) -> Option<Nanos> {
    let shown = |carrier: &Arc<Carrier>| carrier.others().shown(own, charged);
    with(polling, shown).flatten()
}

/// A poll that others had their part in has ended where it began.
#[cold]
pub(crate) fn nothing_for_others() {
    with(true, |carrier| {
        carrier.others().theirs.store(0, Ordering::Relaxed);
    });
}

impl Around {
    /// As [`shown_for_others`], of the part that began with this.
    pub(crate) fn shown(&self, own: Nanos, charged: Nanos) -> Option<Nanos> {
        self.carrier.others().shown(own, charged)
    }

    /// The part is over, at the time `cpu` of the thread's CPU clock. Returns what it was charged in advance, and, if it was the outermost
    /// one, who is to be told what it has accounted for.
    pub(crate) fn ends(self, cpu: impl FnOnce() -> Nanos) -> (Nanos, Option<Outermost>) {
        let is_outermost = self.account.is_none();
        let charged = self.carrier.others().ends(self.account, cpu);
        (charged, is_outermost.then_some(Outermost(self.carrier)))
    }
}

/// The outermost part is over.
pub(crate) struct Outermost(Arc<Carrier>);

impl Outermost {
    /// It has accounted for `used`.
    pub(crate) fn has_used(self, used: Nanos) {
        let others = self.0.others();
        others.come_to(Nanos(others.theirs.load(Ordering::Relaxed)).saturating_add(used));
    }
}

/// What one part in progress has used.
#[derive(Debug)]
struct Account {
    /// Who pays.
    payer: Charged,
    /// CPU time before an inner one, and the thread's CPU time when it went on last.
    spent: Nanos,
    since: Nanos,
    /// What it was charged.
    charged: Nanos,
}

impl Account {
    fn own(&self, cpu: Nanos) -> Nanos {
        self.spent.saturating_add(cpu.saturating_sub(self.since))
    }

    fn charge(&mut self, own: Nanos) -> Nanos {
        let rest = own.saturating_sub(self.charged);
        self.charged = self.charged.max(own);
        rest
    }
}

/// See the module's header. Times are the thread's CPU time.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// The thread is of another pool, and charged by turns in all that it does.
    foreign: bool,
    theirs: AtomicU64,
    /// Plus 1; 0 while there is none.
    since: AtomicU64,
    /// Saves the lock.
    has_account: AtomicBool,
    account: Mutex<Option<Account>>,
}

impl Others {
    /// Of a thread of another pool.
    pub(super) fn of_foreign() -> Self {
        Self {
            foreign: true,
            ..Self::default()
        }
    }

    fn begins(
        &self,
        (shared, group): (&Arc<Shared>, &Arc<GroupShared>),
        cpu: Nanos,
    ) -> Option<Account> {
        let account = Account {
            payer: (shared.clone(), group.clone()),
            spent: Nanos::ZERO,
            since: cpu,
            charged: Nanos::ZERO,
        };
        let mut around = self.replace(Some(account));
        match &mut around {
            Some(around) => around.spent = around.own(cpu),
            None => {
                let since = cpu.as_nanos().wrapping_add(1);
                self.since.store(since, Ordering::Release);
            }
        }
        around
    }

    fn ends(&self, mut around: Option<Account>, cpu: impl FnOnce() -> Nanos) -> Nanos {
        if let Some(around) = &mut around {
            around.since = cpu();
        }
        let ended = self.replace(around);
        ended.map_or(Nanos::ZERO, |ended| ended.charged)
    }

    fn replace(&self, account: Option<Account>) -> Option<Account> {
        let _shield = quotient_pause::uninterrupted();
        let mut place = lock(&self.account);
        self.has_account.store(account.is_some(), Ordering::Relaxed);
        std::mem::replace(&mut *place, account)
    }

    fn shown(&self, own: Nanos, charged: Nanos) -> Option<Nanos> {
        let _shield = quotient_pause::uninterrupted();
        let mut account = lock(&self.account);
        let account = account.as_mut()?;
        account.charged = account.charged.max(charged);
        Some(account.charge(own))
    }

    /// What is others' in all, as none is at work.
    pub(super) fn come_to(&self, theirs: Nanos) {
        self.theirs.store(theirs.as_nanos(), Ordering::Relaxed);
        self.since.store(0, Ordering::Release);
    }

    /// All that the thread does by turns is over, at `at`: what goes on nevertheless (a meter that was forgotten) is not to be charged for more.
    /// What is left to charge is returned.
    pub(super) fn close(&self, at: Nanos) -> Option<Due> {
        let rest = self.advance(at);
        drop(self.replace(None));
        self.come_to(self.theirs(at));
        rest
    }

    /// What of the thread's CPU time up to `at` others account for. A little too much, for once, if they end just now.
    pub(super) fn theirs(&self, at: Nanos) -> Nanos {
        let since = self.since.load(Ordering::Acquire);
        let before = Nanos(self.theirs.load(Ordering::Relaxed));
        if since == 0 {
            return before;
        }
        before.saturating_add(at.saturating_sub(Nanos(since - 1)))
    }

    /// Whether there may be an account.
    pub(super) fn has_account(&self) -> bool {
        self.has_account.load(Ordering::Relaxed)
    }

    /// By another thread, while this one is at `at`: what the innermost part is to be charged by now.
    pub(super) fn advance(&self, at: Nanos) -> Option<Due> {
        let mut account = lock(&self.account);
        let account = account.as_mut()?;
        let own = account.own(at);
        let time = account.charge(own);
        let payer = || account.payer.clone();
        (time != Nanos::ZERO).then(|| Due {
            payer: payer(),
            time,
        })
    }

    /// Who pays for the innermost part in progress.
    pub(super) fn payer(&self) -> Option<Charged> {
        if !self.has_account() {
            return None;
        }
        let account = lock(&self.account);
        account.as_ref().map(|account| account.payer.clone())
    }

    /// The watch: a look at who pays for the innermost part in progress, at the time on the clock of that one's scheduler. It keeps no reference
    /// that might be the last one.
    pub(super) fn with_payer<R>(
        &self,
        look: impl FnOnce(&Arc<GroupShared>, Nanos) -> R,
    ) -> Option<R> {
        if !self.has_account() {
            return None;
        }
        let account = lock(&self.account);
        let (shared, group) = &account.as_ref()?.payer;
        Some(look(group, shared.now()))
    }
}

/// What the innermost part in progress is to be charged by now.
#[must_use = "it was taken note of"]
pub(crate) struct Due {
    payer: Charged,
    time: Nanos,
}

impl Due {
    /// Charges it. By the clock of the payer's own scheduler: its periods are counted on that, whoever's thread it is. Takes the locks of budgets.
    pub(crate) fn charge(self) {
        let (shared, group) = self.payer;
        group.core.add_foreign_cpu_time(self.time, shared.now());
        look_at_refill(&shared);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_works_for_others_charges_them_once_and_in_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let build = async { crate::Scheduler::builder().vcpus(1).build() };
        let scheduler = runtime.block_on(build).unwrap();
        let group = |path| scheduler.group(path).unwrap().create().unwrap();
        let (outer, inner) = (group("outer"), group("inner"));
        let micros = Nanos::from_micros;
        let others = Others::default();
        let begins = |group: &crate::Group, at| {
            let payer = (&group.shared, &group.inner);
            others.begins(payer, micros(at))
        };
        let due = |at: u64| {
            let due = others.advance(micros(at))?;
            let is_outer = Arc::ptr_eq(&due.payer.1, &outer.inner);
            Some((is_outer, due.time.as_nanos() / 1_000))
        };
        assert_eq!(due(50), None, "nobody's");
        let nobody = begins(&outer, 100);
        assert!(nobody.is_none());
        assert_eq!(due(300), Some((true, 200)));
        assert_eq!(due(300), None, "twice");
        let around = begins(&inner, 350);
        assert_eq!(due(400), Some((false, 50)));
        // Its own clock is read, which knows better than the estimate.
        assert_eq!(others.shown(micros(80), Nanos::ZERO), Some(micros(30)));
        assert_eq!(due(420), None, "shown");
        assert_eq!(others.ends(around, || micros(450)), micros(80));
        assert_eq!(
            due(500),
            Some((true, 100)),
            "before the inner one and after"
        );
        assert_eq!(others.theirs(micros(500)), micros(400));
        assert_eq!(others.ends(nobody, || unreachable!()), micros(300));
        others.come_to(micros(390));
        assert_eq!((due(900), others.theirs(micros(900))), (None, micros(390)));
        // Forgotten.
        begins(&inner, 1_000);
        let rest = others.close(micros(1_020)).map(|due| due.time);
        assert_eq!(rest, Some(micros(20)));
        assert_eq!(
            (due(1_500), others.theirs(micros(1_500))),
            (None, micros(410))
        );
    }
}
