//! Whom to pull from: a word for who waits and is owed most ([`super`], *Pulling*).
//!
//! It holds how much (20 bits, in units of 2^[`NOTE_SHIFT`] ns), a CPU (12) and a group's number (32); zero says that nobody is noted. It is a hint: a
//! puller that finds nobody there has cleared it, and who waits is noted again at the next look around.
//!
//! Who waits and owes least (`least`) is noted likewise: with how much in virtual time, roughly, and nobody is zero there, too.
//!
//! Who waits may be bound to its CPU, which only the host knows: then the pull was in vain, and each one after it would be, for as long as that one is
//! owed most. So the host says so, and who was pulled for in vain is noted as of nearly nothing for a while, which hides nobody (`in_vain`: a bit for
//! several places, since there may be many, and how many such notes there were).

use super::GroupTime;
use crate::balance::Pull;
use crate::group::Group;
use crate::units::{CpuId, to_virtual};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// log2 of the unit of a note's lag, ns: a quarter of a millisecond, so that 20 bits hold four minutes.
const NOTE_SHIFT: u32 = 18;

/// Bits of a note below its size: where.
const PLACE_BITS: u32 = 44;

/// log2 of the part of its size that a note keeps at a look of the CPU that it is about: a sixteenth, so that nothing below 4 ms stays. Such a one is
/// mostly about to have its turn there; kept as a half, sleepers beside groups were pulled to and fro, and had three quarters of what they have.
const OWN_FADE: u32 = 4;

/// The largest size of a note: 2^20 less one, so 275 s.
const SIZE_MAX: u64 = (1 << 20) - 1;

/// Bits of `in_vain` that say who; the rest counts.
const VAIN_PLACES: u32 = 56;

/// Notes of those that were pulled for in vain before they count as much as others again: 256, what the rest holds. They come at looks, of which a CPU
/// has one each 250 us.
const VAIN_NOTES: u64 = 1 << (u64::BITS - VAIN_PLACES);

/// log2 of the least debt that is told from none, in virtual time: below what a nanosecond is at the greatest weight.
const DEBT_SHIFT: u32 = 14;

/// A debt in virtual time as a size: a power of two and what of it is behind the point, 14 bits, so that a sixteen-thousandth is told apart.
fn debt_size(distance: u64) -> u64 {
    let distance = distance.max(1 << DEBT_SHIFT);
    let power = distance.ilog2();
    let rest = distance >> (power - DEBT_SHIFT) & ((1 << DEBT_SHIFT) - 1);
    u64::from(power) << DEBT_SHIFT | rest
}

fn vain_bit(cpu: CpuId, group: u32) -> u64 {
    // Of neighbours no two share one.
    let hash = group.wrapping_add(cpu.0.wrapping_mul(31));
    1 << (hash % VAIN_PLACES)
}

fn place_of(cpu: CpuId, group: u32) -> u64 {
    u64::from(cpu.0) << 32 | u64::from(group)
}

fn place(note: u64) -> u64 {
    note & ((1 << PLACE_BITS) - 1)
}

/// Takes a note away, if it is of that group there.
#[inline]
fn forget(word: &AtomicU64, cpu: CpuId, group: u32) {
    let note = word.load(Relaxed);
    if note != 0 && place(note) == place_of(cpu, group) {
        // Whoever notes another one meanwhile is not to be hidden.
        let _ = word.compare_exchange(note, 0, Relaxed, Relaxed);
    }
}

/// Who waits and is owed something: a child group, or tasks of the group itself, under its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) cpu: CpuId,
    pub(crate) group: u32,
}

impl Note {
    /// A sibling of `running` that waits elsewhere and owes less, by more than `slack` ns of that one's service: nobody of them is owed anything.
    pub(crate) fn least(me: CpuId, above: &Group, running: &Group, slack: i64) -> Option<Note> {
        let (time, siblings) = (&running.time, &above.time);
        if !siblings.is_debtor_noted() {
            return None;
        }
        let margin = to_virtual(slack.max(0).unsigned_abs(), time.measured_in());
        let owes = u64::try_from(time.v().since(siblings.now())).ok()?;
        siblings.take_least(me, owes.checked_sub(margin)?)
    }

    /// What to pull for it, found with `group`: a task of the child that is noted, or one of the group itself.
    pub(crate) fn pull(self, group: &Group) -> Pull {
        Pull {
            from: self.cpu,
            max: 1,
            group: self.group,
            own: self.group == group.id(),
            noted: true,
        }
    }

    fn of(note: u64) -> Note {
        Note {
            cpu: CpuId((place(note) >> 32) as u32),
            group: note as u32,
        }
    }
}

impl GroupTime {
    /// Notes a child that waits on `cpu` and is owed `lag` ns, unless one that is owed more is noted.
    pub(crate) fn note_owed(&self, cpu: CpuId, group: u32, lag: i64) {
        let size = match self.was_in_vain(cpu, group) {
            true => 1,
            false => (lag.max(0).unsigned_abs() >> NOTE_SHIFT).clamp(1, SIZE_MAX),
        };
        // Who came first stays: of many that are owed alike, none hides the others for ever.
        let known = self.owed.load(Relaxed) >> PLACE_BITS;
        if size > 2 * known {
            let note = size << PLACE_BITS | place_of(cpu, group);
            self.owed.store(note, Relaxed);
        }
    }

    /// Notes a child that waits on `cpu` and owes `distance` in virtual time, unless one that owes less is noted, or one that is owed something.
    pub(crate) fn note_least(&self, cpu: CpuId, group: u32, distance: u64) {
        if self.is_somebody_owed() || self.was_in_vain(cpu, group) {
            return;
        }
        let size = debt_size(distance);
        let known = self.least.load(Relaxed);
        let is_same = place(known) == place_of(cpu, group);
        if known == 0 || is_same || size < known >> PLACE_BITS {
            let note = size << PLACE_BITS | place_of(cpu, group);
            self.least.store(note, Relaxed);
        }
    }

    /// Takes the note of who owes least away, if that waits elsewhere and owes less than `distance`, in virtual time.
    pub(crate) fn take_least(&self, me: CpuId, distance: u64) -> Option<Note> {
        let note = self.least.load(Relaxed);
        let found = Note::of(note);
        let owes_less = debt_size(distance) > note >> PLACE_BITS;
        if note == 0 || found.cpu == me || !owes_less || self.is_somebody_owed() {
            return None;
        }
        let is_taken = self.least.compare_exchange(note, 0, Relaxed, Relaxed);
        is_taken.is_ok().then_some(found)
    }

    /// That group is chosen on `cpu`, and nothing of it waits there any more. One load, mostly.
    #[inline]
    pub(crate) fn forget_least(&self, cpu: CpuId, group: u32) {
        forget(&self.least, cpu, group);
    }

    /// Whether anybody is noted who owes.
    #[inline]
    fn is_debtor_noted(&self) -> bool {
        self.least.load(Relaxed) != 0
    }

    /// Somebody pulled for that group from `cpu`, and had to give back what came, since it may not run elsewhere.
    pub(crate) fn note_in_vain(&self, cpu: CpuId, group: u32) {
        self.in_vain.fetch_or(vain_bit(cpu, group), Relaxed);
    }

    /// Whether that was so lately. One load where nobody ever did.
    fn was_in_vain(&self, cpu: CpuId, group: u32) -> bool {
        let word = self.in_vain.load(Relaxed);
        if word & vain_bit(cpu, group) == 0 {
            return false;
        }
        if word >> VAIN_PLACES >= VAIN_NOTES - 1 {
            self.in_vain.store(0, Relaxed);
        } else {
            self.in_vain.store(word + (1 << VAIN_PLACES), Relaxed);
        }
        true
    }

    /// Nothing of that group, or of its own tasks, waits on `cpu` any more: forgets the note of it.
    pub(crate) fn forget_owed(&self, cpu: CpuId, group: u32) {
        forget(&self.owed, cpu, group);
    }

    /// Whether a child is noted. One load.
    #[inline]
    pub(crate) fn is_somebody_owed(&self) -> bool {
        self.owed.load(Relaxed) != 0
    }

    /// What who is noted is owed, ns, roughly.
    pub(crate) fn noted_lag(&self) -> u64 {
        (self.owed.load(Relaxed) >> PLACE_BITS) << NOTE_SHIFT
    }

    /// Whether who is noted is a task beside the child groups; `me` is the group's own id.
    pub(crate) fn is_own_task_owed(&self, me: u32) -> bool {
        let note = self.owed.load(Relaxed);
        note != 0 && note as u32 == me
    }

    /// Who is noted as waiting on `me` itself.
    #[inline]
    pub(crate) fn noted_on(&self, me: CpuId) -> Option<u32> {
        let note = self.owed.load(Relaxed);
        let found = Note::of(note);
        (note != 0 && found.cpu == me).then_some(found.group)
    }

    /// Takes the note away: `me` is going to pull. None if what is noted waits on `me` itself: then the note stays for the others, as of less, so that
    /// one that is not true any more hides nobody for long. (Taken away, it was lost at each choice of a CPU that ticks before the others do: a task
    /// of 26 ms of lag was never pulled by a CPU that ran a sibling of a tenth of its weight.)
    pub(crate) fn take_owed(&self, me: CpuId) -> Option<Note> {
        let note = self.owed.load(Relaxed);
        if note == 0 {
            return None;
        }
        let found = Note::of(note);
        if found.cpu == me {
            let size = (note >> PLACE_BITS) >> OWN_FADE;
            let kept = if size > 0 {
                size << PLACE_BITS | place(note)
            } else {
                0
            };
            // Who changed it meanwhile knows better.
            let _ = self.owed.compare_exchange(note, kept, Relaxed, Relaxed);
            return None;
        }
        let is_taken = self.owed.compare_exchange(note, 0, Relaxed, Relaxed);
        is_taken.is_ok().then_some(found)
    }
}
