//! Patching on 64-bit x86 Linux: finds the sites, picks a protocol, and keeps track of what each site holds.
//!
//! The order of steps and the argument for it are the engine's; what single threads see while bytes change is
//! `protocol.rs`; what bytes there are is `site.rs`.

mod barrier;
mod batch;
mod canary;
mod choice;
mod fork;
mod processor;
mod protocol;
mod site;
mod table;
mod trap;
mod writer;

use self::batch::BatchQueue;
use self::protocol::Conversion;
use self::site::Form;
use self::table::Table;
use super::Figures;
use crate::engine::{Flip, Receipt};
use crate::error::{FlipError, ModeError};
use crate::key::Key;
use crate::mode::{Mode, SoftReason, Writer};
use crate::registry;

/// The sites of this program or library and the mode in force. Lives in the engine, under its lock.
pub(crate) struct Text {
    is_loaded: bool,
    is_prepared: bool,
    table: Table,
    mode: Mode,
    default_mode: Mode,
    soft_reason: Option<SoftReason>,
    /// Why this process can never patch.
    unavailable: Option<SoftReason>,
    writer: Option<Writer>,
    /// Jumps were written that some thread may not have seen: a barrier must succeed before any key changes.
    barrier_owed: bool,
    displaced: u64,
    /// Where code is prepared before it is written: kept, because a fresh one would be page faults in every flip.
    buffer: Vec<u8>,
}

impl Text {
    pub(crate) const fn new() -> Self {
        Self {
            is_loaded: false,
            is_prepared: false,
            table: Table::empty(),
            mode: Mode::Soft,
            default_mode: Mode::Soft,
            soft_reason: Some(SoftReason::NotAsked),
            unavailable: None,
            writer: None,
            barrier_owed: false,
            displaced: 0,
            buffer: Vec::new(),
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
        self.table.keys().for_each(registry::register);
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
        let Some(mode) = choice::mode() else {
            // What the operator forbids is not even tried.
            self.unavailable = Some(SoftReason::Environment);
            self.soft_reason = self.unavailable;
            return;
        };
        match self.probe(mode) {
            Ok(()) => {
                self.default_mode = mode;
                self.mode = mode;
            }
            Err(reason) => {
                self.unavailable = Some(reason);
                self.soft_reason = Some(reason);
            }
        }
    }

    fn probe(&mut self, mode: Mode) -> Result<(), SoftReason> {
        barrier::register().map_err(|_| SoftReason::NoBarrier)?;
        barrier::sync_core().map_err(|_| SoftReason::NoBarrier)?;
        self.writer = Some(canary::probe()?);
        if mode.traps() && trap::install(&self.table).is_err() {
            return Err(SoftReason::Unpatchable);
        }
        Ok(())
    }

    pub(crate) fn can_patch(&self) -> bool {
        self.mode != Mode::Soft
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn default_mode(&self) -> Mode {
        self.default_mode
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

    pub(crate) fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Step 1 of a flip: sites whose cheap form would be wrong after it become jumps that every thread executes.
    pub(crate) fn release(
        &mut self,
        flips: &[Flip],
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        let candidates = flips.iter().map(|flip| self.table.sites_of(flip.key).len());
        let mut work = Vec::with_capacity(candidates.sum());
        for flip in flips {
            for &index in self.table.sites_of(flip.key) {
                let site = &self.table.sites[index as usize];
                if site.bias != flip.target && site.form != Form::Jump {
                    self.table.refuse_foreign(site)?;
                    work.push(index);
                }
            }
        }
        self.make_jumps(work, receipt)
    }

    /// `work` holds sites that are ours.
    fn make_jumps(&mut self, mut work: Vec<u32>, receipt: &mut Receipt) -> Result<(), FlipError> {
        if work.is_empty() {
            return self.pay_barrier(receipt);
        }
        // The order of addresses; the run of each key is ascending already.
        work.sort_unstable();
        self.convert(&work, Form::Jump, receipt)
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
        let candidates = keys.iter().map(|key| self.table.sites_of(key).len());
        let mut work = Vec::with_capacity(candidates.sum());
        for key in keys {
            let value = key.state();
            let can_rest = |index: &&u32| {
                let site = &self.table.sites[**index as usize];
                site.bias == value && site.form != rest && site.is_ours()
            };
            work.extend(self.table.sites_of(key).iter().filter(can_rest));
        }
        if work.is_empty() {
            return;
        }
        work.sort_unstable();
        let failed = self.convert(&work, rest, receipt).is_err();
        if failed && self.table.is_neutral() {
            // The process lost the right to patch. Every site is a jump, so nothing is lost but speed.
            self.mode = Mode::Soft;
            self.soft_reason = Some(SoftReason::Unpatchable);
        }
    }

    /// Brings sites to a form by the protocol of the mode. `work` ascends and is not empty.
    fn convert(&mut self, work: &[u32], to: Form, receipt: &mut Receipt) -> Result<(), FlipError> {
        let is_displaced = self.mode.traps() && !trap::is_in_place();
        if is_displaced {
            self.displaced += 1;
            if self.mode != Mode::Strict {
                return Err(FlipError::HandlerDisplaced);
            }
        }
        // Before the batch, each site was a transaction of its own: its lock, its mapping, its three steps.
        let together = if self.mode == Mode::OneByOne {
            1
        } else {
            work.len().max(1)
        };
        for part in work.chunks(together) {
            self.convert_part(part, to, is_displaced, receipt)?;
        }
        Ok(())
    }

    /// [`Text::convert`] for sites that are converted together.
    fn convert_part(
        &mut self,
        work: &[u32],
        to: Form,
        is_displaced: bool,
        receipt: &mut Receipt,
    ) -> Result<(), FlipError> {
        let buffer = core::mem::take(&mut self.buffer);
        let mut conversion = Conversion::new(&mut self.table.sites, work, to, buffer);
        let result = match self.mode {
            // A process that took `SIGTRAP` from us would die of a breakpoint; the direct way has none.
            Mode::Strict if is_displaced => conversion.direct(work),
            Mode::Biased | Mode::Soft => conversion.direct(work),
            Mode::Strict => conversion.strict(work),
            Mode::Int3 => conversion.batch(work, BatchQueue::new()),
            Mode::OneByOne => conversion.apply(work),
        };
        let used;
        (self.buffer, used) = conversion.settle_account(receipt);
        self.writer = used.or(self.writer);
        match &result {
            Ok(()) => {
                receipt.sites += work.len();
                // Whatever was owed, the barrier after these jumps covers it.
                self.barrier_owed &= to != Form::Jump;
            }
            Err(_) => self.barrier_owed = true,
        }
        result
    }

    /// Settles every key; from a requested soft mode, the default mode is taken again first.
    pub(crate) fn patch_all(&mut self, receipt: &mut Receipt) {
        if self.mode == Mode::Soft && self.unavailable.is_none() {
            self.mode = self.default_mode;
            self.soft_reason = None;
        }
        let keys: Vec<&'static Key> = self.table.keys().collect();
        self.settle(&keys, receipt);
    }

    pub(crate) fn set_mode(&mut self, mode: Mode, receipt: &mut Receipt) -> Result<(), ModeError> {
        if mode != Mode::Soft
            && let Some(reason) = self.unavailable
        {
            return Err(ModeError::Unavailable { mode, reason });
        }
        let mut work = Vec::new();
        for (index, site) in (0_u32..).zip(&self.table.sites) {
            if site.form != Form::Jump {
                self.table.refuse_foreign(site).map_err(ModeError::Flip)?;
                work.push(index);
            }
        }
        self.make_jumps(work, receipt).map_err(ModeError::Flip)?;
        if mode.traps() && trap::install(&self.table).is_err() {
            return Err(ModeError::Unavailable {
                mode,
                reason: SoftReason::Unpatchable,
            });
        }
        self.mode = mode;
        self.soft_reason = match mode {
            Mode::Soft => self.unavailable.or(Some(SoftReason::Requested)),
            _ => None,
        };
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
            figures.foreign += usize::from(!site.is_ours());
            figures.patched += usize::from(matches!(site.form, Form::Test | Form::Nop));
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

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

    /// The mode is the engine's, and these tests write code behind its back.
    static ENGINE_USER: Mutex<()> = Mutex::new(());

    fn in_mode(mode: Mode) -> Option<MutexGuard<'static, ()>> {
        let guard = ENGINE_USER.lock().unwrap_or_else(PoisonError::into_inner);
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
            let mut conversion = Conversion::new(&mut text.table.sites, &work, to, Vec::new());
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
        let mut writer = CodeWriter::open(address, address + 1, Vec::new());
        // SAFETY: this test alone executes the site, and not while the strange byte is there.
        unsafe { writer.write(&[byte], |byte| Edit::first_byte(address, byte)) }
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
