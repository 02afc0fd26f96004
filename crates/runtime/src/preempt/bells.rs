//! Wakers of alarms and timers, and alarms of `ThrottleWatch`, that may be a program's code: who calls them, and where.
//!
//! # Why not where they are due
//! The tick thread finds alarms due, and a virtual CPU's thread a timer. A waker that computes or sleeps there keeps everybody's refills, or that virtual
//! CPU's tasks; one tenant had the tick thread for three seconds so. So what may be a program's code is called on a thread of its own, a
//! *ringer*; by turns, if a group of this scheduler pays for it, as destructors of what never began are (`burials`): at once, 10 ms ahead of a limit.
//! What wakes a task of ours, or of tokio, is nobody's code, and is called where it is due. The blocking pool is not asked for ringers: `shutdown_timeout` is
//! to return beside functions that have all of its threads for good.
//!
//! # How many
//! A tenant has one ringer, which calls its wakers one after the other: who sleeps in one keeps its own. There are [`RINGERS_MAX`] of these, and one that has
//! done with a tenant goes on with one that has none. Those that nobody here pays for, the application's own among them, have [`NOBODYS_MAX`] beside. A ringer
//! is started when there is something to call, and ends with it. If the system gives no thread, the waker is called where it is due after all.
//!
//! # None is lost
//! A waker enters under the lock, and whoever brings it sees there whether a ringer is to be brought, too. A ringer ends under the same lock, with nothing
//! left that it could see to. The scheduler's end calls what is left of alarms and timers where it is, and brings a ringer more for each tenant whose wakers wait
//! behind one that does not come back ([`Preempting::ring_rest`]); who comes later finds the tower closed, under the lock, and calls its waker itself.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::burials::at_once_by_turns;
use super::{Preempting, lock};
use crate::alarms::BilledWaker;
use crate::group::GroupShared;
use crate::shared::{CLOSED, Shared};

/// Ringers of all tenants. Unit: threads. Each works for some microseconds, unless a waker is hostile, and then it is one of a tenant.
const RINGERS_MAX: usize = 16;
/// Ringers for wakers of no group. Unit: threads. Half as many: hostile ones have a thread of the program's own.
const NOBODYS_MAX: usize = 8;

/// Who pays; `None` for nobody here.
type Tenant = Option<Arc<GroupShared>>;

/// The wakers of one tenant.
struct Bells {
    tenant: Tenant,
    waiting: VecDeque<BilledWaker>,
    ringers: usize,
}

impl Bells {
    fn is_of(&self, tenant: &Tenant) -> bool {
        self.tenant.as_ref().map(Arc::as_ptr) == tenant.as_ref().map(Arc::as_ptr)
    }

    /// Whether another ringer may see to them.
    fn wants_one(&self) -> bool {
        let most = if self.tenant.is_some() {
            1
        } else {
            NOBODYS_MAX
        };
        !self.waiting.is_empty() && self.ringers < most
    }
}

/// The wakers of all tenants that have any.
#[derive(Default)]
struct Tower {
    bells: Vec<Bells>,
    /// The scheduler has ended: who comes calls its waker itself.
    is_closed: bool,
}

/// The same behind a lock, a leaf.
#[derive(Default)]
pub(super) struct AllBells(Mutex<Tower>);

/// Calls the waker, here or by a ringer.
pub(crate) fn ring(shared: &Arc<Shared>, waker: BilledWaker) {
    match &shared.preempt {
        Some(preempting) if shared.phase() != CLOSED && !preempting.is_harmless(&waker) => {
            preempting.ring_elsewhere(shared, waker);
        }
        _ => waker.wake_here(),
    }
}

impl Preempting {
    /// Whether the waker is a task's, of ours or of tokio.
    fn is_harmless(&self, waker: &BilledWaker) -> bool {
        let waker = waker.waker();
        crate::task::is_of_a_task(waker) || self.heartbeat.is_waker_alike(waker)
    }

    fn ring_elsewhere(&self, shared: &Arc<Shared>, waker: BilledWaker) {
        let payer = waker.payer_in(shared);
        let tenant = payer.and_then(|group| group.bearing().last().cloned());
        match self.adds_bell(&tenant, waker) {
            Ok(true) => {}
            Ok(false) => return,
            Err(waker) => return waker.wake_here(),
        }
        let ringer = Ringer {
            shared: shared.clone(),
            tenant: Some(tenant),
        };
        ringer.start(true);
    }

    /// Whether a ringer is to be brought: it counts already. The waker comes back if the scheduler has ended.
    fn adds_bell(&self, tenant: &Tenant, waker: BilledWaker) -> Result<bool, BilledWaker> {
        let _shield = quotient_pause::uninterrupted();
        let mut tower = lock(&self.bells.0);
        if tower.is_closed {
            return Err(waker);
        }
        let all = &mut tower.bells;
        let of_tenants = all.iter().filter(|bells| bells.tenant.is_some());
        let ringers: usize = of_tenants.map(|bells| bells.ringers).sum();
        let known = all.iter().position(|bells| bells.is_of(tenant));
        let place = known.unwrap_or_else(|| {
            all.push(Bells {
                tenant: tenant.clone(),
                waiting: VecDeque::new(),
                ringers: 0,
            });
            all.len() - 1
        });
        let bells = &mut all[place];
        bells.waiting.push_back(waker);
        let has_room = tenant.is_none() || ringers < RINGERS_MAX;
        let is_to_come = has_room && bells.wants_one();
        bells.ringers += usize::from(is_to_come);
        Ok(is_to_come)
    }

    /// The scheduler has ended: what waits behind a ringer that may never come back is called by another one, by no turns any more.
    pub(crate) fn ring_rest(&self, shared: &Arc<Shared>) {
        let mut ringers = Vec::new();
        {
            let _shield = quotient_pause::uninterrupted();
            let mut tower = lock(&self.bells.0);
            tower.is_closed = true;
            for bells in &mut tower.bells {
                if !bells.waiting.is_empty() {
                    bells.ringers += 1;
                    ringers.push(Ringer {
                        shared: shared.clone(),
                        tenant: Some(bells.tenant.clone()),
                    });
                }
            }
        }
        for (number, ringer) in ringers.into_iter().enumerate() {
            // Beyond that it rings here, as it is dropped.
            if number < RINGERS_MAX {
                ringer.start(false);
            }
        }
    }

    /// The next one for a ringer that saw to `tenant`'s, or to another's from here on; `None` if it has ended.
    fn next_bell(&self, tenant: &mut Option<Tenant>) -> Option<BilledWaker> {
        let _shield = quotient_pause::uninterrupted();
        let current = tenant.as_ref()?;
        let mut tower = lock(&self.bells.0);
        let all = &mut tower.bells;
        let place = all.iter().position(|bells| bells.is_of(current))?;
        if let Some(waker) = all[place].waiting.pop_front() {
            return Some(waker);
        }
        all[place].ringers -= 1;
        let gone = (all[place].ringers == 0).then(|| all.swap_remove(place));
        // Nobody's have always had as many as they may.
        let left_over = |bells: &&mut Bells| bells.tenant.is_some() && bells.wants_one();
        let next = all.iter_mut().filter(|_| current.is_some()).find(left_over);
        let found = next.map(|bells| {
            bells.ringers += 1;
            (bells.tenant.clone(), bells.waiting.pop_front())
        });
        drop(tower);
        drop(gone);
        let (next, waker) = found.unzip();
        *tenant = next;
        waker.flatten()
    }
}

/// Calls wakers, where it is dropped at the latest.
struct Ringer {
    shared: Arc<Shared>,
    /// Whose; `None` once it has ended.
    tenant: Option<Tenant>,
}

impl Ringer {
    /// On a thread of its own; without one it is dropped here, and rings all the same.
    fn start(mut self, by_turns: bool) {
        let thread = std::thread::Builder::new().name("quotient-ringer".into());
        drop(thread.spawn(move || self.ring(by_turns)));
    }

    /// Until there is none to call; by turns on a thread of its own, which may be stopped.
    fn ring(&mut self, by_turns: bool) {
        let Some(preempting) = &self.shared.preempt else {
            return;
        };
        while let Some(waker) = preempting.next_bell(&mut self.tenant) {
            let payer = waker.payer_in(&self.shared).cloned();
            let waker = Cell::new(Some(waker));
            if let Some(payer) = payer.filter(|_| by_turns) {
                at_once_by_turns(&self.shared, &payer, || {
                    if let Some(waker) = waker.take() {
                        waker.wake_unbilled();
                    }
                });
            }
            // Of who takes no turns.
            if let Some(waker) = waker.take() {
                waker.wake_here();
            }
        }
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.ring(false);
    }
}
