//! Blocking functions and jobs: how many of them take turns at once, and who waits to begin.
//!
//! # Why they wait
//! What has begun is scheduled by a thread of its own and a proxy, and there is room for so many of these. Whoever was beyond that ran as if there
//! were no limit: 300 functions at a time had 7 s of CPU time where 0.6 were allowed. Of a group without a limit, too: nobody read the meters of those that
//! were only metered until they ended, so that 300 that computed without end had 1.2 CPUs under a limit of 5 % that was set later, their group's clock
//! said a fiftieth of that, and a group of three times the weight had 0.05 of a CPU. So a function needs a *place* to begin.
//!
//! # Places
//! [`Preempt::max_borne`](crate::Preempt::max_borne) are shared by the rule of `parts`: a group (with what is below it) may have seven times as many as are
//! left for all, and who has none may have one. *Who is blocked in the kernel has none*: its proxy is away, and competes for nothing. So functions
//! that wait for others of their group do not keep those from beginning, up to [`BLOCKED_MAX`] that are blocked at once; if all of these wait for
//! one that has not begun, they wait for ever (tokio's bound is its blocking pool's, 512). One that comes back from a block takes its place again,
//! whether there is one or not. A function that waits for another one in a loop of its own, without sleeping, keeps its place.
//!
//! # The line
//! A blocking function that finds no place waits in its group's line and holds no thread: the pool of blocking threads is everybody's. (A job in
//! [`ThreadMeter::run`](crate::ThreadMeter::run) has its thread already, and waits there.) Who waits: (L1) enters the line, under its lock; (L2) lists the group, if it was
//! not; (L3) makes sure that the tick thread looks. Who gives a place up: (R1) counts it out; (R2) sees whether a group is listed, and makes the tick
//! thread look. If R2 misses L2, R1 is before L2 and the look of L3 knows of it. That look lets as many begin as there are places.
//!
//! # Nobody waits beyond its end
//! An abort wakes the waker that the function has left with its promise, which takes it out of the line, or wakes its thread if it waits for its
//! first turn. A kill and the scheduler's end empty the lines of their groups and wake all threads that wait so; each sees the kill's
//! number, or the phase. (Of frozen groups, whose functions wait in line, too: `frozen`.) What has ended without having begun is dropped elsewhere (`burials`).
//! The locks are leaves; whoever takes one in a poll shields itself.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::Wake;
use std::thread::Thread;
use std::time::Duration;

use tokio::runtime::Handle;

use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::loss::{Loss, note};
use crate::shared::{OPEN, Shared};
use crate::task::Id;

/// How often what is left for all a group may have, as in `parts`.
pub(super) const SHARE: usize = 7;
/// Functions and jobs that are blocked at once, beyond the places. Unit: functions. As many as tokio's pool has threads by
/// default.
pub(super) const BLOCKED_MAX: usize = 512;
/// Functions that wait in one group's line. Unit: functions. Each keeps what it has captured; more are refused, as tasks are.
pub(crate) const LINE_MAX: usize = 65_536;
/// How long a thread that waits for a place sleeps before it looks whether it still has to. Unit: time. A bound: it is woken for a place.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How a function that has waited goes on.
pub(crate) enum Begin {
    /// It begins, with its place if it needs one.
    Run(Option<Place>),
    /// It ends without.
    Never,
}

type Start = Box<dyn FnOnce(Begin) + Send>;

/// A function that has not begun.
pub(crate) struct Waiting {
    start: Start,
    /// Whose blocking pool; `None` for that of the scheduler's runtime.
    runtime: Option<Handle>,
}

impl Waiting {
    pub(crate) fn new(runtime: Option<Handle>, start: impl FnOnce(Begin) + Send + 'static) -> Self {
        let start = Box::new(start);
        Self { start, runtime }
    }

    /// It never begins; dropped here, and a panic with it.
    pub(crate) fn drop_unbegun(self) {
        let dropped = catch_unwind(AssertUnwindSafe(|| (self.start)(Begin::Never)));
        if let Err(panic) = dropped {
            // Its destructor is the program's, and may panic as well.
            std::mem::forget(panic);
        }
    }

    /// Gives it to the blocking pool.
    pub(crate) fn go(self, shared: &Shared, begin: Begin) {
        let start = self.start;
        let run = move || start(begin);
        // The pool may start a thread for it.
        quotient_pause::Guest::as_usual(|| match self.runtime {
            Some(runtime) => drop(runtime.spawn_blocking(run)),
            None => shared.host.spawn_blocking(Box::new(run)),
        });
    }
}

/// Functions that wait, by number.
type Queue = BTreeMap<u64, Waiting>;

/// What a group has of functions.
#[derive(Default)]
pub(crate) struct Line {
    /// By the numbers of their tasks: those that came first have the least.
    pub(super) waiting: Mutex<Queue>,
    /// The group is listed. Written under the lock.
    is_listed: AtomicBool,
    /// Places of the group and below it.
    places: AtomicU32,
    /// What began ahead of its first turn there (`uncharged`).
    pub(super) ahead: AtomicU32,
    /// Grows with each kill.
    kills: AtomicU64,
    /// A thread drops what has ended here.
    pub(super) is_burying: AtomicBool,
    /// Such threads of the group and below it.
    pub(super) diggers: AtomicU32,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Line")
            .field("places", &self.places.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Line {
    /// Numbers the last kill.
    pub(crate) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Acquire)
    }
}

/// All lines of a scheduler.
#[derive(Default)]
pub(super) struct Functions {
    /// Functions with a place.
    placed: AtomicUsize,
    /// These, and those that are blocked.
    begun: AtomicUsize,
    /// Functions in lines, and how often one went there.
    in_line: AtomicUsize,
    lined_up: AtomicU64,
    /// Groups with a line that somebody is to look at, each once, and how many these are.
    lines: Mutex<Vec<Arc<GroupShared>>>,
    listed: AtomicUsize,
    /// What has ended without having begun, by group, and how many groups these are.
    pub(super) ended: Mutex<Vec<(Arc<GroupShared>, Vec<Waiting>)>>,
    pub(super) unburied: AtomicUsize,
    /// Threads that bring such from the lines there.
    pub(super) ending: AtomicUsize,
    /// Threads that see to these.
    pub(super) digging: AtomicUsize,
    /// For threads that wait for a place themselves.
    pub(super) gate: Mutex<()>,
    room: Condvar,
    /// ... or for a thaw (`frozen`).
    pub(super) thawed: Condvar,
}

/// A thread takes functions out of lines while this lives, by unwinding too: what is told of losses is heard by code of the program's.
struct Ending<'a>(&'a Functions);

impl<'a> Ending<'a> {
    fn of(functions: &'a Functions) -> Self {
        functions.ending.fetch_add(1, Ordering::SeqCst);
        Self(functions)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right of one function to take turns.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    group: Arc<GroupShared>,
    /// It counts; it does not while its function is blocked.
    pub(super) counts: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(preempting) = &self.shared.preempt else {
            return;
        };
        let functions = &preempting.functions;
        functions.begun.fetch_sub(1, Ordering::Relaxed);
        if self.counts {
            preempting.gives_up_place(&self.shared, &self.group);
        } else {
            preempting.look_at_lines(&self.shared);
        }
    }
}

/// Whom an abort wakes.
pub(crate) struct Aborted {
    pub(crate) shared: Weak<Shared>,
    pub(crate) group: Weak<GroupShared>,
    pub(crate) id: Id,
    /// The group's last kill before.
    pub(crate) kills: u64,
    /// The thread that waits for its first turn.
    pub(crate) thread: Mutex<Option<Thread>>,
    /// A1 of `frozen`.
    pub(crate) has_come: AtomicBool,
}

impl Aborted {
    /// The calling thread has the function from here on.
    pub(crate) fn waits_here(&self) {
        *lock(&self.thread) = Some(std::thread::current());
    }

    /// W1 of `frozen`: it has not any more.
    pub(crate) fn leaves_its_thread(&self) {
        *lock(&self.thread) = None;
    }

    /// It ends if it waits in line.
    pub(super) fn take_out_of_line(
        &self,
        preempting: &Preempting,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
    ) {
        let found = lock(&group.line.waiting).remove(&self.id.number());
        if let Some(found) = found {
            preempting.functions.in_line.fetch_sub(1, Ordering::Relaxed);
            preempting.end_unbegun(shared, group, vec![found]);
        }
    }
}

impl Wake for Aborted {
    fn wake(self: Arc<Self>) {
        let _shield = quotient_pause::uninterrupted();
        self.has_come.store(true, Ordering::SeqCst);
        let thread = lock(&self.thread).clone();
        if let Some(thread) = thread {
            return thread.unpark();
        }
        let (Some(shared), Some(group)) = (self.shared.upgrade(), self.group.upgrade()) else {
            return;
        };
        let Some(preempting) = &shared.preempt else {
            return;
        };
        self.take_out_of_line(preempting, &shared, &group);
    }
}

impl Preempting {
    /// A place for a function of the group, if there is one.
    pub(crate) fn find_place(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
    ) -> Option<Place> {
        let functions = &self.functions;
        // Two that come at once may find the same room: there is more than is counted on (`WatchState::new`), and each waits for that.
        if functions.begun.load(Ordering::Relaxed) >= self.settings.max_borne + BLOCKED_MAX {
            return None;
        }
        let all = functions.placed.load(Ordering::Relaxed);
        let part = SHARE * self.settings.max_borne.saturating_sub(all);
        let has_room = |group: &Arc<GroupShared>| {
            (group.line.places.load(Ordering::Relaxed) as usize) < part.max(1)
        };
        if !group.bearing().all(has_room) {
            return None;
        }
        functions.begun.fetch_add(1, Ordering::Relaxed);
        self.takes_place(group);
        Some(Place {
            shared: shared.clone(),
            group: group.clone(),
            counts: true,
        })
    }

    /// A function has a place, or has it again.
    pub(super) fn takes_place(&self, group: &Arc<GroupShared>) {
        self.functions.placed.fetch_add(1, Ordering::Relaxed);
        for group in group.bearing() {
            group.line.places.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// R1 and R2: it has ended, or blocks.
    pub(crate) fn gives_up_place(&self, shared: &Shared, group: &Arc<GroupShared>) {
        self.functions.placed.fetch_sub(1, Ordering::Relaxed);
        for group in group.bearing() {
            group.line.places.fetch_sub(1, Ordering::Relaxed);
        }
        self.look_at_lines(shared);
    }

    fn look_at_lines(&self, shared: &Shared) {
        fence(Ordering::SeqCst);
        if self.has_lines() {
            shared.tick.hurry();
        }
        self.functions.room.notify_all();
    }

    /// Whether functions wait in lines, or to be dropped.
    pub(crate) fn has_lines(&self) -> bool {
        let functions = &self.functions;
        functions.listed.load(Ordering::SeqCst) > 0 || functions.unburied.load(Ordering::SeqCst) > 0
    }

    /// For a thread that has no place: waits a little, at most until one was given up.
    pub(super) fn wait_for_place(&self) {
        let gate = lock(&self.functions.gate);
        // A wake-up that comes before this costs the time, and no more.
        drop(self.functions.room.wait_timeout(gate, LOOK_AGAIN));
    }

    /// Begins a function, or puts it in line.
    ///
    /// # Errors
    /// It comes back if the line is full.
    pub(crate) fn bring(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
        id: Id,
        function: Waiting,
    ) -> Result<(), Waiting> {
        let _shield = quotient_pause::uninterrupted();
        let line = lock(&group.line.waiting);
        if shared.phase() != OPEN {
            // Whoever empties the lines may have passed this one.
            drop(line);
            function.go(shared, Begin::Run(None));
            return Ok(());
        }
        if line.is_empty()
            && !group.holds_unbegun()
            && let Some(place) = self.find_place(shared, group)
        {
            drop(line);
            function.go(shared, Begin::Run(Some(place)));
            return Ok(());
        }
        if line.len() >= LINE_MAX {
            return Err(function);
        }
        self.functions.lined_up.fetch_add(1, Ordering::Relaxed);
        self.enters_line(shared, group, line, id, function);
        Ok(())
    }

    /// L1, and the rest unless the group is frozen (Z1 of `frozen`).
    pub(super) fn enters_line(
        &self,
        shared: &Shared,
        group: &Arc<GroupShared>,
        mut line: MutexGuard<'_, Queue>,
        id: Id,
        function: Waiting,
    ) {
        line.insert(id.number(), function);
        self.functions.in_line.fetch_add(1, Ordering::Relaxed);
        if !group.keeps_its_line(shared) {
            self.list(shared, group, line);
        }
    }

    /// Lists the group if functions wait in its line and no freeze keeps them there.
    pub(super) fn list_thawed(&self, shared: &Shared, group: &Arc<GroupShared>) {
        let line = lock(&group.line.waiting);
        if !line.is_empty() && !group.keeps_its_line(shared) {
            self.list(shared, group, line);
        }
    }

    /// L2 and L3.
    fn list(&self, shared: &Shared, group: &Arc<GroupShared>, line: MutexGuard<'_, Queue>) {
        let is_new = !group.line.is_listed.swap(true, Ordering::Relaxed);
        if is_new {
            self.functions.listed.fetch_add(1, Ordering::SeqCst);
        }
        drop(line);
        if is_new {
            lock(&self.functions.lines).push(group.clone());
        }
        fence(Ordering::SeqCst);
        shared.tick.hurry();
    }

    /// The group, whose line the caller has, is to be looked at no more.
    fn delist(&self, group: &GroupShared) {
        group.line.is_listed.store(false, Ordering::Relaxed);
        self.functions.listed.fetch_sub(1, Ordering::SeqCst);
    }

    /// The tick thread: lets those begin for whom there are places.
    pub(super) fn let_lines_go(&self, shared: &Arc<Shared>) {
        let lines = std::mem::take(&mut *lock(&self.functions.lines));
        for group in lines {
            if self.let_line_go(shared, &group) {
                lock(&self.functions.lines).push(group);
            }
        }
        self.bury(shared);
    }

    /// Whether somebody is to look again.
    fn let_line_go(&self, shared: &Arc<Shared>, group: &Arc<GroupShared>) -> bool {
        loop {
            let is_held = || shared.phase() == OPEN && group.holds_unbegun();
            let is_scheduled = group.is_preemptible() && shared.phase() == OPEN;
            let needs_place = is_scheduled && !is_held();
            let place = needs_place
                .then(|| self.find_place(shared, group))
                .flatten();
            let mut line = lock(&group.line.waiting);
            if line.is_empty() || group.keeps_its_line(shared) {
                self.delist(group);
                return false;
            }
            if is_held() || needs_place && place.is_none() {
                return true;
            }
            let first = line.pop_first();
            drop(line);
            if let Some((_, function)) = first {
                self.functions.in_line.fetch_sub(1, Ordering::Relaxed);
                function.go(shared, Begin::Run(place));
            }
        }
    }

    /// The functions of these groups that have not begun never will: they were killed, or the scheduler ends.
    pub(crate) fn end_functions(
        &self,
        shared: &Arc<Shared>,
        groups: &[Arc<GroupShared>],
        loss: Loss,
        reason: &str,
    ) {
        // Not stopped with functions in hand that others wait for.
        let _shield = quotient_pause::uninterrupted();
        let ending = Ending::of(&self.functions);
        let mut unbegun = Vec::new();
        // Once the scheduler closes, those too that were removed and are in no list of groups.
        let listed = match shared.phase() {
            OPEN => Vec::new(),
            _ => lock(&self.functions.lines).clone(),
        };
        for group in groups.iter().chain(&listed) {
            group.line.kills.fetch_add(1, Ordering::Release);
            let waiting = std::mem::take(&mut *lock(&group.line.waiting));
            let functions = &self.functions;
            functions
                .in_line
                .fetch_sub(waiting.len(), Ordering::Relaxed);
            note(shared, group, loss, waiting.len(), &reason);
            if !waiting.is_empty() {
                unbegun.push((group.clone(), waiting.into_values().collect()));
            }
        }
        self.note_unbegun(unbegun);
        drop(ending);
        self.wake_unbegun();
        self.functions.room.notify_all();
        self.open_gate();
        // Also what ended before: the last look of the tick thread may have met a runtime that was gone, and a scheduler that was not.
        self.bury(shared);
    }

    /// Functions with a place, and those that are blocked.
    pub(super) fn begun(&self) -> usize {
        self.functions.begun.load(Ordering::Relaxed)
    }

    /// How many wait in lines now, and how often one had to.
    pub(super) fn lines_stats(&self) -> (usize, u64) {
        let functions = &self.functions;
        (
            functions.in_line.load(Ordering::Relaxed),
            functions.lined_up.load(Ordering::Relaxed),
        )
    }
}
