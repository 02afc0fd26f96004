//! Steps 1 and 3 of a flip: which sites are to be rewritten, and by which protocol.

use quotient_key::engine::state;
use quotient_key::{FlipError, Key, Mode, Receipt, SoftReason};

#[cfg(target_arch = "x86_64")]
use super::arch::batch::BatchQueue;
use super::arch::site::Form;
use super::arch::trap;
use super::protocol::Conversion;
use super::{Text, barrier, threads};
use crate::mode::traps;
use crate::step::{Flip, Show};

impl Text {
    /// Step 1 of a flip: sites whose cheap form would be wrong after it become jumps that every thread executes.
    pub(crate) fn release(
        &mut self,
        flips: &[Flip],
        show: Show,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        // Breakpoints must not stay: the modes that go through them show each step.
        let show = if self.mode == Mode::Biased {
            show
        } else {
            Show::Now
        };
        let mut work = core::mem::take(&mut self.work);
        work.clear();
        let result = self
            .collect_releases(flips, &mut work)
            .and_then(|()| self.make_jumps(&mut work, show, receipt));
        self.work = work;
        result
    }

    fn collect_releases(&mut self, flips: &[Flip], work: &mut Vec<u32>) -> Result<(), FlipError> {
        for flip in flips {
            let run = self.table.run_of(flip.key);
            work.reserve(run.len());
            for position in run {
                let index = self.table.by_key[position];
                if self.table.sites[index as usize].bias != flip.target
                    && self.must_change(index)?
                {
                    work.push(index);
                }
            }
        }
        Ok(())
    }

    /// Whether a site has to be rewritten to become a jump.
    ///
    /// # Errors
    /// [`FlipError::UnexpectedOpcode`]: it holds a cheap form, as far as we know, under somebody else's instruction.
    #[inline]
    pub(super) fn must_change(&mut self, index: u32) -> Result<bool, FlipError> {
        let site = &self.table.sites[index as usize];
        if site.is_ours() {
            return Ok(site.form != Form::Jump);
        }
        self.learn(index);
        let site = &self.table.sites[index as usize];
        if site.form == Form::Jump {
            return Ok(false);
        }
        self.table.refuse_foreign(site)?;
        Ok(true)
    }

    /// Takes note of what is really there, if it is a form of ours.
    #[cold]
    fn learn(&mut self, index: u32) {
        let site = &mut self.table.sites[index as usize];
        if let Some(form) = site.resting_form() {
            site.set_form(form);
            // Who wrote it may not have shown it to every thread.
            self.barrier_owed |= form == Form::Jump;
        }
    }

    /// `work` holds sites that are ours.
    pub(super) fn make_jumps(
        &mut self,
        work: &mut [u32],
        show: Show,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        if work.is_empty() {
            return match show {
                Show::Now => self.pay_barrier(receipt),
                Show::InTime => Ok(()),
            };
        }
        // The order of addresses; the run of a single key has it already.
        if !work.is_sorted() {
            work.sort_unstable();
        }
        self.convert(work, Form::Jump, show, receipt)
    }

    /// Repeats a barrier that failed.
    fn pay_barrier(&mut self, receipt: &mut Receipt) -> Result<(), FlipError> {
        if self.barrier_owed {
            receipt.barriers += 1;
            barrier::sync_core().map_err(|errno| FlipError::BarrierFailed { errno })?;
            self.barrier_owed = false;
        }
        Ok(())
    }

    /// Step 3 of a flip: sites whose bias is the key's value take their cheap form, if they can.
    pub(crate) fn settle(&mut self, keys: &[&'static Key], receipt: &mut Receipt) {
        let rest = match self.mode {
            Mode::Soft => return,
            Mode::Biased | Mode::Strict => Form::Test,
            Mode::Int3 | Mode::OneByOne => Form::Nop,
        };
        let mut work = core::mem::take(&mut self.work);
        work.clear();
        for key in keys {
            let value = state(key);
            let run = self.table.run_of(key);
            work.reserve(run.len());
            for position in run {
                let index = self.table.by_key[position];
                let site = &self.table.sites[index as usize];
                if site.bias != value || self.is_foreign(index) {
                    continue;
                }
                if self.table.sites[index as usize].form != rest {
                    work.push(index);
                }
            }
        }
        if !work.is_empty() {
            if keys.len() > 1 {
                work.sort_unstable();
            }
            self.rest(&work, rest, receipt);
        }
        self.work = work;
    }

    /// Whether a site holds somebody else's instruction, after a look at what is really there.
    #[inline]
    fn is_foreign(&mut self, index: u32) -> bool {
        if self.table.sites[index as usize].is_ours() {
            return false;
        }
        self.learn(index);
        !self.table.sites[index as usize].is_ours()
    }

    fn rest(&mut self, work: &[u32], rest: Form, receipt: &mut Receipt) {
        let lost = matches!(
            self.convert(work, rest, Show::Now, receipt),
            Err(FlipError::Unpatchable { .. } | FlipError::BarrierFailed { .. })
        );
        if lost && self.table.is_neutral() {
            // The process lost the right to patch. Every site is a jump, so nothing is lost but speed.
            self.mode = Mode::Soft;
            self.soft_reason = Some(SoftReason::Unpatchable);
        }
    }

    /// Brings sites to a form by the protocol of the mode. `work` ascends and is not empty.
    fn convert(
        &mut self,
        work: &[u32],
        to: Form,
        show: Show,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        if traps(self.mode) {
            self.refuse_traps()?;
        }
        // Before the batch, each site was a transaction of its own: its lock, its mapping, its three steps.
        let together = if self.mode == Mode::OneByOne {
            1
        } else {
            work.len().max(1)
        };
        for part in work.chunks(together) {
            self.convert_part(part, to, show, receipt)?;
        }
        Ok(())
    }

    /// Whether breakpoints would be taken by somebody else, or be the end of a thread.
    fn refuse_traps(&mut self) -> Result<(), FlipError> {
        if !trap::is_in_place() {
            self.displaced += 1;
            return Err(FlipError::HandlerDisplaced);
        }
        // The modes that are kept for their figures ask when they come into force only.
        if self.mode == Mode::Strict {
            refuse_blocked_traps()?;
        }
        Ok(())
    }

    /// [`Text::convert`] for sites that are converted together.
    fn convert_part(
        &mut self,
        work: &[u32],
        to: Form,
        show: Show,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        let mut conversion = Conversion::new(&mut self.table.sites, work, to, &mut self.tools);
        let result = match self.mode {
            Mode::Biased | Mode::Soft => conversion.direct(work, show),
            #[cfg(target_arch = "x86_64")]
            Mode::Strict => conversion.strict(work),
            #[cfg(target_arch = "x86_64")]
            Mode::Int3 => conversion.batch(work, BatchQueue::new()),
            #[cfg(target_arch = "x86_64")]
            Mode::OneByOne => conversion.apply(work),
            #[cfg(not(target_arch = "x86_64"))]
            Mode::Strict | Mode::Int3 | Mode::OneByOne => Err(FlipError::HandlerDisplaced),
        };
        self.writer = conversion.settle_account(receipt).or(self.writer);
        match &result {
            Ok(()) => {
                receipt.sites += work.len();
                match (to, show) {
                    // Whatever was owed, the barrier after these jumps covers it.
                    (Form::Jump, Show::Now) => self.barrier_owed = false,
                    (Form::Jump, Show::InTime) => self.barrier_owed = true,
                    _ => {}
                }
            }
            Err(_) => self.barrier_owed = true,
        }
        result
    }
}

pub(super) fn refuse_blocked_traps() -> Result<(), FlipError> {
    match threads::that_blocks_traps() {
        Some(thread) => Err(FlipError::TrapBlocked { thread }),
        None => Ok(()),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::sync::MutexGuard;

    use super::super::writer::{CodeWriter, Edit, Tools};
    use super::*;
    use crate::engine;
    use crate::{set_mode, static_branch_unlikely, static_key};

    static_key! {
        /// Flipped without a queue.
        static QUEUELESS = false;
        /// Has a breakpoint at one site.
        static DEBUGGED = false;
    }

    fn in_mode(mode: Mode) -> Option<MutexGuard<'static, ()>> {
        let guard = engine::for_test();
        set_mode(mode).ok().map(|_| guard)
    }

    #[inline(never)]
    fn queueless() -> [bool; 3] {
        [
            static_branch_unlikely!(QUEUELESS),
            static_branch_unlikely!(QUEUELESS),
            static_branch_unlikely!(QUEUELESS),
        ]
    }

    #[inline(never)]
    fn debugged() -> bool {
        static_branch_unlikely!(DEBUGGED)
    }

    #[test]
    fn without_a_queue_sites_are_patched_singly() {
        assert_eq!(queueless(), [false; 3]);
        let Some(_guard) = in_mode(Mode::Int3) else {
            return;
        };
        let mut engine = engine::lock();
        let text = &mut engine.text;
        let work = text.table.sites_of(&QUEUELESS).to_vec();
        assert_eq!(work.len(), 3);
        for to in [Form::Jump, Form::Nop] {
            let mut conversion = Conversion::new(&mut text.table.sites, &work, to, &mut text.tools);
            let queue = BatchQueue::with_capacity(0);
            conversion.batch(&work, queue).expect("nothing hinders");
            assert_eq!((conversion.single_steps, conversion.barriers), (3, 9));
            drop(conversion);
            assert!(
                work.iter()
                    .all(|&index| text.table.sites[index as usize].is_ours())
            );
            assert_eq!(queueless(), [false; 3]);
        }
    }

    /// Writes a first byte as a debugger does.
    fn poke(address: usize, byte: u8) {
        let mut tools = Tools::new();
        let mut writer = CodeWriter::new(address, address + 1, &mut tools);
        // SAFETY: this test alone executes the site, and not while the strange byte is there.
        unsafe { writer.write(&[byte], |byte| Edit::new(address, [byte, 0, 0, 0, 0], 1)) }
            .expect("a writer works here");
    }

    #[test]
    fn a_strange_opcode_is_left_alone_and_reported() {
        assert!(!debugged());
        let Some(_guard) = in_mode(Mode::Biased) else {
            return;
        };
        let site = {
            let engine = engine::lock();
            let index = engine.text.table.sites_of(&DEBUGGED)[0];
            engine.text.table.sites[index as usize]
        };
        let original = site.found();
        poke(site.code, 0xCC);
        let error = DEBUGGED.enable().expect_err("the site cannot be changed");
        let expected = FlipError::UnexpectedOpcode {
            key: DEBUGGED.name(),
            address: site.code,
            found: 0xCC,
        };
        assert_eq!(error, expected);
        assert_eq!(
            (site.found(), DEBUGGED.count(), DEBUGGED.status().foreign),
            (0xCC, 0, 1)
        );
        poke(site.code, original);
        DEBUGGED.enable().expect("the site is ours again");
        assert!(debugged());
        // A site that is a jump already needs nothing, whoever sits on it; it is left alone when the key goes off.
        poke(site.code, 0xCC);
        DEBUGGED.disable().expect("a jump is always right");
        assert_eq!((site.found(), DEBUGGED.status().patched), (0xCC, 0));
        poke(site.code, site.first_byte(Form::Jump));
        assert!(!debugged());
    }
}
