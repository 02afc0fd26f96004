//! Whose turn it is on each virtual CPU, among the bearers: see "One runnable bearer a virtual CPU" and "Where bearers go on" in the parent module.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_pause::Processor;

use super::seat::NOWHERE;
use super::{Carrier, NOBODY, Preempting, lock};
use crate::group::GroupShared;

impl Preempting {
    /// The proxy of `bearer` was picked on `vcpu`, in the place of `group`: it may run, and whoever was chosen there before may not.
    pub(crate) fn choose(&self, vcpu: usize, bearer: &Arc<Carrier>, group: &Arc<GroupShared>) {
        let seat = &self.seats[vcpu];
        // Declared before the lock, so they go after it.
        let (old, _same);
        let mut chosen = lock(&seat.chosen);
        let freed = seat.take_freed();
        let same = matches!(&*chosen, Some((known, _)) if Arc::ptr_eq(known, bearer));
        if same {
            // It may be in another group's place now.
            _same = chosen.replace((bearer.clone(), group.clone()));
            bearer.allow(&self.log, vcpu, None);
            return;
        }
        old = chosen.replace((bearer.clone(), group.clone()));
        let freed = match &old {
            Some((old, _)) => old.processor(),
            None => freed,
        };
        let place = freed.map(|freed| self.place(vcpu, freed));
        let number = place.map_or(NOWHERE, Processor::number);
        seat.placed.store(number, Ordering::Relaxed);
        seat.has_chosen.store(true, Ordering::Relaxed);
        bearer.allow(&self.log, vcpu, place);
        if let Some((old, _)) = &old {
            self.forbid(old, vcpu);
        }
    }

    /// The proxy of `bearer` waits in the place of `group` from now on: if `vcpu` has chosen it, by that one's limit.
    pub(crate) fn is_in_place_of(
        &self,
        vcpu: usize,
        bearer: &Arc<Carrier>,
        group: &Arc<GroupShared>,
    ) {
        // Declared before the lock, so it goes after it.
        let _former;
        let mut chosen = lock(&self.seats[vcpu].chosen);
        if let Some((known, place)) = &mut *chosen
            && Arc::ptr_eq(known, bearer)
        {
            _former = std::mem::replace(place, group.clone());
        }
    }

    /// Where a bearer that `vcpu` chooses is to go on, if its predecessor has left `freed`.
    fn place(&self, vcpu: usize, freed: Processor) -> Processor {
        let is_taken = |processor: Processor| {
            self.seats.iter().enumerate().any(|(index, seat)| {
                index != vcpu
                    && seat.has_chosen.load(Ordering::Relaxed)
                    && seat.placed.load(Ordering::Relaxed) == processor.number()
            })
        };
        place_for(freed, &self.processors, is_taken)
    }

    /// The chosen one has had no processor in its turn on `vcpu`, although the caller has left one for it: it goes on on that one. The kernel
    /// would move it there in time, but not while the processor is never idle for longer than a move costs, and the caller looks
    /// four thousand times a second if others wait: a task waited for 85 ms so, behind a bearer that waited for a processor behind other
    /// threads while this one idled.
    pub(crate) fn bring_here(&self, vcpu: usize, bearer: &Arc<Carrier>) {
        if let Some(here) = Processor::current()
            && bearer.is_running_its_turn()
            && bearer.handle.wake_on(here, || ())
        {
            let placed = &self.seats[vcpu].placed;
            placed.store(here.number(), Ordering::Relaxed);
        }
    }

    /// A poll of `vcpu` was detached, in the place of `group`, and its bearer runs: it is the chosen one if there is none.
    pub(crate) fn settle_in(&self, vcpu: usize, bearer: &Arc<Carrier>, group: &Arc<GroupShared>) {
        let seat = &self.seats[vcpu];
        let mut chosen = lock(&seat.chosen);
        bearer.allow(&self.log, vcpu, None);
        if chosen.is_some() {
            self.forbid(bearer, vcpu);
        } else {
            *chosen = Some((bearer.clone(), group.clone()));
            seat.placed.store(NOWHERE, Ordering::Relaxed);
            seat.has_chosen.store(true, Ordering::Relaxed);
        }
    }

    /// After a pick on `vcpu`: the chosen one stops if limits keep its group back.
    #[inline]
    pub(crate) fn stop_throttled(
        &self,
        vcpu: usize,
        is_throttled: impl FnOnce(&GroupShared) -> bool,
    ) {
        let seat = &self.seats[vcpu];
        if seat.has_chosen.load(Ordering::Relaxed) {
            let stopped;
            let mut chosen = lock(&seat.chosen);
            let throttled = chosen
                .as_ref()
                .is_some_and(|(_, group)| is_throttled(group));
            stopped = if throttled { chosen.take() } else { None };
            if let Some((bearer, _)) = &stopped {
                seat.has_chosen.store(false, Ordering::Relaxed);
                seat.freed_by(bearer);
                self.forbid(bearer, vcpu);
            }
        }
    }

    /// The bearer has ended, or is not to run any more: nobody is chosen on `vcpu` if it was.
    pub(crate) fn dismiss(&self, vcpu: usize, bearer: &Arc<Carrier>, stop: bool) {
        let seat = &self.seats[vcpu];
        let _dismissed;
        let mut chosen = lock(&seat.chosen);
        if matches!(&*chosen, Some((known, _)) if Arc::ptr_eq(known, bearer)) {
            _dismissed = chosen.take();
            seat.has_chosen.store(false, Ordering::Relaxed);
            seat.freed_by(bearer);
        }
        if stop {
            self.forbid(bearer, vcpu);
        }
    }

    /// Whether a bearer may run on the processor of `vcpu`. One load.
    #[inline]
    pub(crate) fn has_chosen(&self, vcpu: usize) -> bool {
        self.seats[vcpu].has_chosen.load(Ordering::Relaxed)
    }

    /// The virtual CPU ends, and with it its choice.
    pub(crate) fn choose_nobody(&self, vcpu: usize) {
        let seat = &self.seats[vcpu];
        let stopped;
        let mut chosen = lock(&seat.chosen);
        seat.has_chosen.store(false, Ordering::Relaxed);
        stopped = chosen.take();
        if let Some((bearer, _)) = &stopped {
            self.forbid(bearer, vcpu);
        }
    }

    /// The bearer's group is frozen, or its poll was killed: it stops, whoever has chosen it, if anybody has.
    pub(crate) fn stop_anywhere(&self, bearer: &Arc<Carrier>) {
        match bearer.chosen_by() {
            // A thread of others runs until it is picked once, and that was now.
            NOBODY => self.forbid(bearer, NOBODY),
            by => self.dismiss(by, bearer, true),
        }
    }

    /// The carrier of `vcpu` goes to sleep: what is free by then the kernel knows better.
    pub(crate) fn forget_freed(&self, vcpu: usize) {
        let freed = &self.seats[vcpu].freed;
        if freed.load(Ordering::Relaxed) != NOWHERE {
            freed.store(NOWHERE, Ordering::Relaxed);
        }
    }

    pub(super) fn forbid(&self, bearer: &Carrier, vcpu: usize) {
        if bearer.forbid(&self.log, vcpu) {
            self.counters.pauses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The processor that was freed, unless the chosen bearer of another virtual CPU was put there (both would go on sharing it for as long
/// as the kernel lets them, since each inherits its predecessor's), and there is one without. O(processors x virtual CPUs) then.
fn place_for(
    freed: Processor,
    processors: &[Processor],
    is_taken: impl Fn(Processor) -> bool,
) -> Processor {
    if !is_taken(freed) {
        return freed;
    }
    let mut others = processors.iter().copied();
    others
        .find(|processor| !is_taken(*processor))
        .unwrap_or(freed)
}

#[cfg(test)]
mod tests {
    use super::super::seat::Seat;
    use super::*;

    #[test]
    fn chosen_polls_of_two_virtual_cpus_do_not_stay_on_one_processor() {
        let processors: Vec<_> = [0, 1, 2].map(Processor::new).into();
        let place = |freed: usize, taken: &[usize]| {
            let is_taken = |processor| taken.iter().any(|index| processors[*index] == processor);
            place_for(processors[freed], &processors, is_taken)
        };
        assert_eq!(place(1, &[]), processors[1]);
        assert_eq!(place(1, &[0, 2]), processors[1]);
        assert_eq!(place(0, &[0]), processors[1]);
        assert_eq!(place(0, &[0, 1]), processors[2]);
        // More virtual CPUs than processors: where it was.
        assert_eq!(place(1, &[0, 1, 2]), processors[1]);
    }

    #[test]
    fn a_processor_that_was_freed_is_given_away_once() {
        let seat = Seat::default();
        assert_eq!(seat.take_freed(), None);
        seat.freed.store(3, Ordering::Relaxed);
        assert_eq!(seat.take_freed(), Some(Processor::new(3)));
        assert_eq!(seat.take_freed(), None);
    }
}
