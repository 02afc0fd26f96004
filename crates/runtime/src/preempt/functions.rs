//! Blocking functions and jobs: how many of them take turns at once, and who waits to begin.
//!
//! # Why they wait
//! What has begun is scheduled by a thread of its own and a proxy, and there is room for so many of these. Whoever was beyond that ran as if there
//! were no limit: 300 functions at a time had 7 s of CPU time where 0.6 were allowed. Of a group without a limit, too: nobody read the meters of those that
//! were only metered until they ended, so that 300 that computed without end had 1.2 CPUs under a limit of 5 % that was set later, their group's clock
//! said a fiftieth of that, and a group of three times the weight had 0.05 of a CPU. So a function needs a *place* to begin.
//!
//! # Places
//! How many may have begun, of all groups and of one, is `places`; on whose threads they do, `unbegun`. *Who is blocked in the kernel has no place*: its proxy is away, and competes for
//! nothing. So functions that wait for others of their group do not keep those from beginning, up to a bound on what has begun (660 of one group, and 440
//! functions, which have threads of tokio's pool; by default, and less beside other groups): if all of these wait for one that has not begun, they
//! wait for ever. A function that waits for another one in a loop of its own, without sleeping, keeps its place.
//!
//! # The line
//! Who finds no place waits in its group's line: a blocking function without a thread, since the pool of blocking threads is everybody's; a job in
//! [`ThreadMeter::run`](crate::ThreadMeter::run), which has its thread already, asleep (`in_line`). Who waits: (L1) enters the line, under its lock;
//! (L2) lists the group, if it was not; (L3) makes sure that somebody looks: the tick thread, or a thread itself. Who gives a place up: (R1) counts
//! it out; (R2) sees whether a group is listed, and looks, or makes the tick thread look. If R2 misses L2, R1 is before L2 and the look of L3
//! knows of it. That look lets as many begin as there are places. Where both wait, functions and threads begin in turn.
//!
//! # Nobody waits beyond its end
//! An abort wakes the waker that the function has left with its promise, which takes it out of the line, or wakes its thread if it waits for its
//! first turn. A kill and the scheduler's end empty the lines of their groups and wake the threads among them; each sees the kill's
//! number, or the phase, and those that it does not end come again. A group that was removed is found by the list only: L2 is under the line's
//! lock, and the tick thread, which has taken such a group off the list, ends what it has put back there before it stops. (Of frozen groups, whose functions wait in line, too: `frozen`.
//! Of those that wait for a thread: `unbegun`.)
//! What has ended without having begun is dropped elsewhere (`burials`).
//! The locks are leaves; whoever takes one in a poll shields itself. *Under a shield no code of the program's runs*: neither the pool that a function is given to, which
//! may be of a runtime of the program's own and drop it at once, nor destructors (`burials::Undug`), nor who hears of losses.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Wake;
use std::thread::Thread;

use super::burials::Undug;
use super::in_line::Threads;
use super::places::{AllPlaces, GroupPlaces, Place};
use super::unbegun::{Begin, Stays, Waiting};
use super::uncharged::Uncharged;
use super::waiter::Waiter;
use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::loss::{ENDED, Loss, note};
use crate::shared::{CLOSED, OPEN, Shared};
use crate::task::Id;

/// Functions that wait in one group's line. Unit: functions. Each keeps what it has captured; more are refused, as tasks are.
pub(crate) const LINE_MAX: usize = 65_536;

/// Who waits in a group's line.
#[derive(Default)]
pub(crate) struct Queue {
    /// By the numbers of their tasks: those that came first have the least.
    functions: BTreeMap<u64, Waiting>,
    pub(super) threads: Threads,
    /// Where both wait.
    threads_are_next: bool,
}

/// Who is taken out of it.
enum Next {
    /// And its number.
    Function(u64, Waiting),
    Thread(Arc<Waiter<Place>>),
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.threads.is_empty()
    }

    pub(super) fn has_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    pub(super) fn functions_are_next(&self) -> bool {
        self.has_functions() && (self.threads.is_empty() || !self.threads_are_next)
    }

    pub(super) fn pop_thread(&mut self) -> Option<Arc<Waiter<Place>>> {
        self.threads_are_next = false;
        self.threads.pop()
    }

    fn pop_function(&mut self) -> Option<(u64, Waiting)> {
        self.threads_are_next = true;
        self.functions.pop_first()
    }

    /// The first one, with what `find_place` gives to a function or a thread: who finds nothing keeps nobody of the other kind.
    fn take_first<P>(&mut self, find_place: impl Fn(bool) -> Option<P>) -> Option<(Next, P)> {
        let functions_first = self.functions_are_next();
        for is_function in [functions_first, !functions_first] {
            let waits = match is_function {
                true => self.has_functions(),
                false => !self.threads.is_empty(),
            };
            let Some(place) = waits.then(|| find_place(is_function)).flatten() else {
                continue;
            };
            let next = match is_function {
                true => self
                    .pop_function()
                    .map(|(number, function)| Next::Function(number, function)),
                false => self.pop_thread().map(Next::Thread),
            };
            return next.map(|next| (next, place));
        }
        None
    }
}

/// What a group has of functions.
#[derive(Default)]
pub(crate) struct Line {
    pub(super) waiting: Mutex<Queue>,
    /// The group is listed. Written under the lock.
    is_listed: AtomicBool,
    /// What has begun of the group and below it.
    pub(super) places: GroupPlaces,
    /// Of a tenant: what began ahead of its first turn there (`uncharged`).
    pub(super) uncharged: Uncharged,
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
            .field("places", &self.places)
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
    /// What has begun.
    pub(super) places: AllPlaces,
    /// Functions in lines, and how often one went there.
    in_line: AtomicUsize,
    lined_up: AtomicU64,
    /// Groups with a line that somebody is to look at, each once, and how many these are.
    pub(super) lines: Mutex<VecDeque<Arc<GroupShared>>>,
    listed: AtomicUsize,
    /// What has ended without having begun, by group, and how many groups these are.
    pub(super) ended: Mutex<Vec<(Arc<GroupShared>, Vec<Waiting>)>>,
    pub(super) unburied: AtomicUsize,
    /// Threads that bring such from the lines there.
    pub(super) ending: AtomicUsize,
    /// Threads that see to these.
    pub(super) digging: AtomicUsize,
    /// Threads that wait for a thaw (`frozen`), and of which group each.
    pub(super) gate: Mutex<Vec<(Arc<GroupShared>, Thread)>>,
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
    ) -> Undug {
        let found = lock(&group.line.waiting)
            .functions
            .remove(&self.id.number());
        let Some(found) = found else {
            return Undug::default();
        };
        preempting.functions.in_line.fetch_sub(1, Ordering::Relaxed);
        preempting.end_unbegun(shared, group, vec![found])
    }
}

impl Wake for Aborted {
    fn wake(self: Arc<Self>) {
        let shield = quotient_pause::uninterrupted();
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
        let undug = self.take_out_of_line(preempting, &shared, &group);
        drop(shield);
        drop(undug);
    }
}

impl Preempting {
    /// R2, by the tick thread.
    pub(super) fn look_at_lines(&self, shared: &Shared) {
        fence(Ordering::SeqCst);
        if self.has_lines() {
            shared.tick.hurry();
        }
    }

    /// Whether functions wait in lines, or to be dropped.
    pub(crate) fn has_lines(&self) -> bool {
        let functions = &self.functions;
        functions.listed.load(Ordering::SeqCst) > 0 || functions.unburied.load(Ordering::SeqCst) > 0
    }

    /// Whether no more than so many groups are listed, and no functions wait to be dropped.
    pub(super) fn is_all_there_is(&self, listed: usize) -> bool {
        let functions = &self.functions;
        functions.listed.load(Ordering::SeqCst) <= listed
            && functions.unburied.load(Ordering::SeqCst) == 0
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
        let shield = quotient_pause::uninterrupted();
        let line = lock(&group.line.waiting);
        let begin = if shared.phase() != OPEN {
            // Whoever empties the lines may have passed this one.
            Some(None)
        } else if line.is_empty() && !group.holds_unbegun() && !self.shortage.is_there() {
            self.find_place(shared, group, true).map(Some)
        } else {
            None
        };
        if let Some(place) = begin {
            drop(line);
            // What is dropped on the way is the program's, and no reason to let its poll go on.
            drop(shield);
            self.begin(shared, group, id.number(), function, place);
            return Ok(());
        }
        if line.functions.len() >= LINE_MAX {
            return Err(function);
        }
        self.functions.lined_up.fetch_add(1, Ordering::Relaxed);
        self.enters_line(shared, group, line, id.number(), function);
        Ok(())
    }

    /// The function begins; enters the line if there is no thread for it; or ends without if the scheduler's runtime has ended, or the scheduler before there
    /// was a thread: dropped later; here if the scheduler has ended, too, so that no shield may be held.
    fn begin(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
        number: u64,
        function: Waiting,
        place: Option<Place>,
    ) {
        let gone = match self.shortage.lasts(shared.now()) {
            // Since a moment ago, or the scheduler is not open any more.
            true => Err(Stays::NoThread(function)),
            false => function.go(shared, Begin::Run(place)),
        };
        let (unbegun, reason) = match gone {
            Ok(()) => return,
            Err(Stays::NoThread(function)) if shared.phase() == OPEN => {
                return self.waits_for_thread(shared, group, number, function);
            }
            Err(Stays::NoThread(function)) => (function, ENDED),
            Err(Stays::Ended(function)) => (function, "the runtime has ended"),
        };
        note(shared, group, Loss::DroppedTask, 1, &reason);
        self.note_unbegun([(group.clone(), vec![unbegun])]);
        drop(self.has_noted(shared));
    }

    /// There is no thread for it: it goes back to its place in the line, beyond the line's bound, if it must be.
    fn waits_for_thread(
        &self,
        shared: &Arc<Shared>,
        group: &Arc<GroupShared>,
        number: u64,
        function: Waiting,
    ) {
        if let Some(aborted) = function.aborted() {
            return self.goes_back(shared, group, &aborted, function);
        }
        let _shield = quotient_pause::uninterrupted();
        let line = lock(&group.line.waiting);
        self.enters_line(shared, group, line, number, function);
    }

    /// L1, and the rest unless the group is frozen (Z1 of `frozen`).
    pub(super) fn enters_line(
        &self,
        shared: &Shared,
        group: &Arc<GroupShared>,
        mut line: MutexGuard<'_, Queue>,
        number: u64,
        function: Waiting,
    ) {
        line.functions.insert(number, function);
        self.functions.in_line.fetch_add(1, Ordering::Relaxed);
        if !group.keeps_its_line(shared) {
            self.list_for_tick(shared, group, line);
        }
    }

    /// Lists the group if functions wait in its line and no freeze keeps them there.
    pub(super) fn list_thawed(&self, shared: &Shared, group: &Arc<GroupShared>) {
        let line = lock(&group.line.waiting);
        if !line.is_empty() && !group.keeps_its_line(shared) {
            self.list_for_tick(shared, group, line);
        }
    }

    /// L2, and L3 by the tick thread.
    fn list_for_tick(
        &self,
        shared: &Shared,
        group: &Arc<GroupShared>,
        line: MutexGuard<'_, Queue>,
    ) {
        self.list(group, line);
        fence(Ordering::SeqCst);
        shared.tick.hurry();
    }

    /// L2. Whether it was not listed.
    pub(super) fn list(&self, group: &Arc<GroupShared>, line: MutexGuard<'_, Queue>) -> bool {
        let is_new = !group.line.is_listed.swap(true, Ordering::Relaxed);
        if is_new {
            self.functions.listed.fetch_add(1, Ordering::SeqCst);
            // Before the line's lock goes: the scheduler's end finds a group that was removed by this list only.
            lock(&self.functions.lines).push_back(group.clone());
        }
        drop(line);
        is_new
    }

    /// The group, whose line the caller has, is to be looked at no more.
    fn delist(&self, group: &GroupShared) {
        group.line.is_listed.store(false, Ordering::Relaxed);
        self.functions.listed.fetch_sub(1, Ordering::SeqCst);
    }

    /// The tick thread: lets those begin for whom there are places.
    pub(super) fn let_lines_go(&self, shared: &Arc<Shared>) {
        let ending = Ending::of(&self.functions);
        let count = lock(&self.functions.lines).len();
        for _ in 0..count {
            let Some(group) = lock(&self.functions.lines).pop_front() else {
                break;
            };
            if self.let_line_go(shared, &group) {
                lock(&self.functions.lines).push_back(group);
            }
        }
        drop(ending);
        fence(Ordering::SeqCst);
        if !self.has_lines() {
            // Nobody waits, so nobody asks: the next one is the first to be refused.
            self.shortage.is_over();
        }
        if shared.phase() == CLOSED {
            // Who waits for the end may have waited for this.
            shared.function_was_dropped();
            return self.bury(shared).apart();
        }
        drop(self.bury(shared));
    }

    /// The tick thread stops, since the scheduler has closed: what it has put back on the list since the end has looked there ends, too.
    pub(crate) fn look_last(&self, shared: &Arc<Shared>) {
        if self.has_lines() {
            self.end_functions(shared, &[], Loss::DroppedTask, ENDED);
            shared.function_was_dropped();
        }
    }

    /// Whether somebody is to look again.
    fn let_line_go(&self, shared: &Arc<Shared>, group: &Arc<GroupShared>) -> bool {
        self.tell_of_removal(group);
        loop {
            let mut line = lock(&group.line.waiting);
            if line.is_empty() || group.keeps_its_line(shared) {
                self.delist(group);
                return false;
            }
            let is_open = shared.phase() == OPEN;
            if is_open && group.holds_unbegun() {
                return true;
            }
            let needs_place = is_open && group.is_preemptible();
            let is_short = is_open && self.shortage.lasts(shared.now());
            let first = line.take_first(|is_function| match needs_place {
                _ if is_short && is_function => None,
                true => self.find_place(shared, group, is_function).map(Some),
                false => Some(None),
            });
            drop(line);
            match first {
                None => return true,
                Some((Next::Thread(waiter), place)) => waiter.goes_on(place),
                Some((Next::Function(number, function), place)) => {
                    self.functions.in_line.fetch_sub(1, Ordering::Relaxed);
                    self.begin(shared, group, number, function, place);
                }
            }
        }
    }

    /// Threads that wait in a group that was removed meanwhile look again: a job ends with its group.
    fn tell_of_removal(&self, group: &Arc<GroupShared>) {
        if group.is_removed() {
            let unaware = lock(&group.line.waiting).threads.take_unaware();
            for waiter in unaware {
                waiter.goes_on(None);
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
        let shield = quotient_pause::uninterrupted();
        let ending = Ending::of(&self.functions);
        let (mut unbegun, mut lost) = (Vec::new(), Vec::new());
        // Once the scheduler closes, those too that were removed and are in no list of groups.
        let listed = match shared.phase() {
            OPEN => Vec::new(),
            _ => lock(&self.functions.lines).iter().cloned().collect(),
        };
        for group in groups.iter().chain(&listed) {
            group.line.kills.fetch_add(1, Ordering::Release);
            let mut waiting = std::mem::take(&mut *lock(&group.line.waiting));
            while let Some(waiter) = waiting.threads.pop() {
                waiter.goes_on(None);
            }
            let waiting = waiting.functions;
            let functions = &self.functions;
            functions
                .in_line
                .fetch_sub(waiting.len(), Ordering::Relaxed);
            if !waiting.is_empty() {
                lost.push((group, waiting.len()));
                unbegun.push((group.clone(), waiting.into_values().collect()));
            }
        }
        self.note_unbegun(unbegun);
        drop(ending);
        // A kill is about the first group and what is below it; the scheduler's end is about all, those that were removed included.
        let killed = groups.first().map(Arc::as_ref);
        let top = killed.filter(|_| shared.phase() == OPEN);
        self.wake_unbegun(top);
        self.open_gate(top);
        // Also what ended before: the last look of the tick thread may have met a runtime that was gone, and a scheduler that was not.
        let undug = self.bury(shared);
        drop(shield);
        match shared.phase() {
            CLOSED => undug.apart(),
            _ => drop(undug),
        }
        // Told to code of the program's.
        for (group, count) in lost {
            note(shared, group, loss, count, &reason);
        }
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
