//! Patching on Linux, for the processors in `x86_64/` and `aarch64/`: finds the sites, picks a protocol, and keeps track of what each site holds.
//!
//! The order of steps and the argument for it are the engine's; what single threads see while bytes change is
//! `protocol.rs`; what bytes there are is the `site.rs` of the processor.

#[cfg(target_arch = "aarch64")]
#[path = "aarch64/mod.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod arch;
mod barrier;
mod canary;
mod choice;
mod fork;
mod memory;
mod protocol;
mod table;
mod threads;
mod writer;

#[cfg(target_arch = "x86_64")]
use self::arch::batch::BatchQueue;
use self::arch::site::Form;
use self::arch::trap;
use self::protocol::Conversion;
use self::table::Table;
use self::writer::Tools;
use quotient_key::engine::{register, state};
use quotient_key::{FlipError, Key, Mode, Receipt, SoftReason, Writer};

use super::Figures;
use crate::error::ModeError;
use crate::mode::{ModeReason, Writes, traps};
use crate::step::{Flip, Show};

/// The sites of this program or library and the mode in force. Lives in the engine, under its lock.
pub(crate) struct Text {
    is_loaded: bool,
    is_prepared: bool,
    table: Table,
    mode: Mode,
    /// What this process gets when it asks, before it is known whether it can have it.
    default: Result<(Mode, ModeReason), SoftReason>,
    soft_reason: Option<SoftReason>,
    /// Who chose the mode, while it is not soft.
    mode_reason: ModeReason,
    /// Whether the process was tried.
    is_tried: bool,
    /// Why this process can never patch.
    unavailable: Option<SoftReason>,
    writer: Option<Writer>,
    /// Jumps were written that some thread may not have seen: a barrier must succeed before any key changes.
    barrier_owed: bool,
    displaced: u64,
    tools: Tools,
    /// The sites of the conversion in work, kept for the next.
    work: Vec<u32>,
}

impl Text {
    pub(crate) const fn new() -> Self {
        Self {
            is_loaded: false,
            is_prepared: false,
            table: Table::empty(),
            mode: Mode::Soft,
            default: Err(SoftReason::NotAsked),
            soft_reason: Some(SoftReason::NotAsked),
            mode_reason: ModeReason::Processor,
            is_tried: false,
            unavailable: None,
            writer: None,
            barrier_owed: false,
            displaced: 0,
            tools: Tools::new(),
            work: Vec::new(),
        }
    }

    /// Finds the sites, once, and keeps the engine whole across forks. Writes no code and asks the kernel for nothing: that is
    /// [`Text::prepare`]'s, which the application asks for.
    pub(crate) fn look(&mut self) {
        if self.is_loaded {
            return;
        }
        self.is_loaded = true;
        self.table = Table::load();
        self.table.keys().for_each(register);
        fork::install();
    }

    /// The application asks for patching: tries barrier, writer and processor, once.
    pub(crate) fn prepare(&mut self) {
        self.look();
        if self.is_prepared {
            return;
        }
        self.is_prepared = true;
        self.soft_reason = None;
        let chosen = choice::mode();
        self.default = chosen;
        // What the operator forbids, and what nobody vouches for, is not even tried.
        match chosen {
            Ok((mode, reason)) => {
                if self.try_process().is_ok() {
                    self.mode = mode;
                    self.mode_reason = reason;
                }
            }
            Err(SoftReason::Processor) => {}
            Err(reason) => self.unavailable = Some(reason),
        }
        self.soft_reason = self.unavailable.or(chosen.err());
        if traps(self.mode) && trap::install(&self.table).is_err() {
            self.mode = Mode::Soft;
            self.soft_reason = Some(SoftReason::Unpatchable);
        }
    }

    /// Whether this process can patch at all; found out once.
    fn try_process(&mut self) -> Result<(), SoftReason> {
        if !self.is_tried {
            self.is_tried = true;
            self.unavailable = self.probe().err();
        }
        self.unavailable.map_or(Ok(()), Err)
    }

    fn probe(&mut self) -> Result<(), SoftReason> {
        barrier::register().map_err(|_| SoftReason::NoBarrier)?;
        barrier::sync_core().map_err(|_| SoftReason::NoBarrier)?;
        self.writer = Some(canary::probe(&mut self.tools)?);
        Ok(())
    }

    pub(crate) fn can_patch(&self) -> bool {
        self.mode != Mode::Soft
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn default_mode(&self) -> Mode {
        match (self.default, self.unavailable) {
            (Ok((mode, _)), None) => mode,
            _ => Mode::Soft,
        }
    }

    pub(crate) fn mode_reason(&self) -> Option<ModeReason> {
        (self.mode != Mode::Soft).then_some(self.mode_reason)
    }

    pub(crate) fn soft_reason(&self) -> Option<SoftReason> {
        self.soft_reason
    }

    pub(crate) fn writer(&self) -> Option<Writer> {
        if self.mode == Mode::Soft {
            None
        } else {
            self.writer
        }
    }

    pub(crate) fn left_writable(&self) -> Option<i32> {
        self.tools.left_writable
    }

    pub(crate) fn set_writes(&mut self, writes: Writes) {
        self.tools.writes = writes;
    }

    pub(crate) fn writes(&self) -> Writes {
        self.tools.writes
    }

    pub(crate) fn allow_writable_code(&mut self, allowed: bool) {
        self.tools.may_unlock = allowed;
        // Another way is open: whether it leads anywhere is to be tried again.
        if allowed && self.unavailable == Some(SoftReason::Unpatchable) {
            (self.is_prepared, self.is_tried) = (false, false);
            self.unavailable = None;
        }
    }

    pub(crate) fn displaced(&self) -> u64 {
        self.displaced
    }

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
    fn must_change(&mut self, index: u32) -> Result<bool, FlipError> {
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
    fn make_jumps(
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

    /// Settles every key; from a requested soft mode, the default mode is taken again first.
    pub(crate) fn patch_all(&mut self, receipt: &mut Receipt) {
        if self.mode == Mode::Soft
            && self.unavailable.is_none()
            && let Ok((mode, reason)) = self.default
        {
            self.mode = mode;
            self.mode_reason = reason;
            self.soft_reason = None;
        }
        let keys: Vec<&'static Key> = self.table.keys().collect();
        self.settle(&keys, receipt);
    }

    pub(crate) fn set_mode(&mut self, mode: Mode, receipt: &mut Receipt) -> Result<(), ModeError> {
        let refused = |reason| Err(ModeError::Unavailable { mode, reason });
        if traps(mode) && cfg!(not(target_arch = "x86_64")) {
            return refused(SoftReason::Platform);
        }
        if mode != Mode::Soft
            && let Some(reason) = self.unavailable.or_else(|| self.try_process().err())
        {
            return refused(reason);
        }
        let mut work = Vec::new();
        for index in 0..self.table.sites.len() as u32 {
            if self.must_change(index).map_err(ModeError::Flip)? {
                work.push(index);
            }
        }
        self.make_jumps(&mut work, Show::Now, receipt)
            .map_err(ModeError::Flip)?;
        if traps(mode) {
            refuse_blocked_traps().map_err(ModeError::Flip)?;
            if trap::install(&self.table).is_err() {
                return refused(SoftReason::Unpatchable);
            }
        }
        self.mode = mode;
        self.mode_reason = ModeReason::Program;
        self.soft_reason = match mode {
            Mode::Soft => self.unavailable.or(Some(SoftReason::Requested)),
            _ => None,
        };
        if mode == Mode::Soft {
            self.tools.memory.close();
        }
        let keys: Vec<&'static Key> = self.table.keys().collect();
        self.settle(&keys, receipt);
        Ok(())
    }

    pub(crate) fn figures(&self, key: &Key) -> Figures {
        let mut figures = self.count(self.table.sites_of(key).iter().copied());
        figures.traps = self.table.index_of(key).map_or(0, trap::traps_of);
        figures
    }

    pub(crate) fn totals(&self) -> Figures {
        let mut totals = self.count(0..self.table.sites.len() as u32);
        totals.traps = (0..self.table.key_count()).map(trap::traps_of).sum();
        totals
    }

    fn count(&self, indices: impl Iterator<Item = u32>) -> Figures {
        let mut figures = Figures::default();
        for index in indices {
            let site = &self.table.sites[index as usize];
            figures.sites += 1;
            let form = site.resting_form();
            figures.foreign += usize::from(form.is_none());
            // Under somebody else's instruction there may be a cheap form.
            let form = form.unwrap_or(site.form);
            figures.patched += usize::from(matches!(form, Form::Test | Form::Nop));
        }
        figures
    }
}

fn refuse_blocked_traps() -> Result<(), FlipError> {
    match threads::that_blocks_traps() {
        Some(thread) => Err(FlipError::TrapBlocked { thread }),
        None => Ok(()),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::sync::MutexGuard;

    use super::writer::{CodeWriter, Edit};
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
