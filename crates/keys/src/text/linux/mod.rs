//! Patching on Linux, for the processors in `x86_64/` and `aarch64/`: what the engine asks of the text, the mode in force and the
//! figures. `rewrite.rs` picks the sites and the protocol.
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
mod rewrite;
mod table;
mod threads;
mod writer;

use quotient_key::engine::register;
use quotient_key::{Key, Mode, Receipt, SoftReason, Writer};

use self::arch::site::Form;
use self::arch::trap;
use self::rewrite::refuse_blocked_traps;
use self::table::Table;
use self::writer::Tools;
use super::Figures;
use crate::error::ModeError;
use crate::mode::{ModeReason, Writes, traps};
use crate::step::Show;

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
