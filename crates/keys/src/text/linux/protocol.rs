//! The protocols: how a set of sites goes from one form to another under the eyes of running threads.
//!
//! | protocol | steps | barriers |
//! |---|---|---|
//! | direct | opcode; barrier if it became a jump | 1 or 0 |
//! | strict | breakpoint, barrier, opcode, barrier | 2 |
//! | batch | breakpoints, barrier, tails, barrier, first bytes, barrier | 3 for up to 256 sites |
//! | single | the same for one site | 3 a site |
//!
//! # What a thread can see
//!
//! * *Direct*: the only byte that changes is the opcode, and memory never holds anything but the old or the new one. The
//!   instruction has the same length and operand either way, so old and new instructions are the only ones that can be
//!   decoded, wherever the site lies with respect to cache lines and pages. That a processor which has fetched part of
//!   the line decodes one of the two is what `processor.rs` lists.
//! * *Strict*: as direct, but the opcode only changes from and to a breakpoint, which every x86 handles while other
//!   processors run: the kernel's own assumption.
//! * *Batch, single*: the tails change while the first byte is a breakpoint that the barrier has shown to every thread,
//!   so nobody decodes them.
//!
//! In each case a thread that meets a breakpoint is sent to the load of the key (see `trap.rs`), which decides the old
//! value until the engine stores the new one. So each protocol fulfils step 1 of the engine when it goes to jumps, and
//! step 3 when it comes from them.
//!
//! # Failure
//!
//! A protocol that fails half-way leaves sites as old forms, jumps or breakpoints: with the handler in place each of
//! them decides the old value. The forms are then learned again from memory, and a barrier is owed.

use quotient_key::{FlipError, Receipt, Writer};

#[cfg(target_arch = "x86_64")]
use super::arch::batch::{BatchQueue, Refusal};
use super::arch::site::{Form, Site};
use super::barrier;
use super::writer::{CodeWriter, Edit, Tools, WriteError};
use crate::step::Show;

/// One conversion: sites that go to one form, through one opened writer.
pub(super) struct Conversion<'a> {
    sites: &'a mut [Site],
    to: Form,
    writer: CodeWriter<'a>,
    pub(super) barriers: u64,
    pub(super) overflow_flushes: u64,
    pub(super) single_steps: u64,
}

impl<'a> Conversion<'a> {
    /// `work` holds indices into `sites`, ascending, and is not empty.
    pub(super) fn new(sites: &'a mut [Site], work: &[u32], to: Form, tools: &'a mut Tools) -> Self {
        let span = |index: u32| {
            let site = &sites[index as usize];
            (site.code, site.code + site.len())
        };
        let start = work.first().map_or(0, |&index| span(index).0);
        let end = work.last().map_or(0, |&index| span(index).1);
        let writer = CodeWriter::new(start, end, tools);
        Self {
            sites,
            to,
            writer,
            barriers: 0,
            overflow_flushes: 0,
            single_steps: 0,
        }
    }

    /// Adds what the conversion cost to a receipt and tells which writer worked.
    pub(super) fn settle_account(self, receipt: &mut Receipt) -> Option<Writer> {
        receipt.barriers += self.barriers;
        receipt.writes += self.writer.writes;
        receipt.overflow_flushes += self.overflow_flushes;
        receipt.single_steps += self.single_steps;
        self.writer.used
    }

    pub(super) fn direct(&mut self, work: &[u32], show: Show) -> Result<(), FlipError> {
        debug_assert!(
            work.iter()
                .all(|&index| self.sites[index as usize].form != Form::Nop),
            "a nop and a jump differ in more than one byte"
        );
        self.write_first_bytes(work, self.to)?;
        if self.to == Form::Jump && show == Show::Now {
            self.barrier()
        } else {
            Ok(())
        }
    }

    fn write_first_bytes(&mut self, work: &[u32], form: Form) -> Result<(), FlipError> {
        self.write(work, |site| site.edit_to(form))?;
        for &index in work {
            self.sites[index as usize].set_form(form);
        }
        Ok(())
    }

    fn write(&mut self, work: &[u32], edit: impl Fn(&Site) -> Edit) -> Result<(), FlipError> {
        let sites = &*self.sites;
        let edit_of = |index: u32| edit(&sites[index as usize]);
        // SAFETY: the module's notes show for each protocol that a thread sees, at every instant, an instruction that
        // does what the key says. Tails are written by `apply` only, while a breakpoint covers them.
        let written = unsafe { self.writer.write(work, edit_of) };
        written.map_err(|WriteError(errno)| {
            for &index in work {
                self.sites[index as usize].relearn();
            }
            FlipError::Unpatchable { errno }
        })
    }

    fn barrier(&mut self) -> Result<(), FlipError> {
        self.barriers += 1;
        barrier::sync_core().map_err(|errno| FlipError::BarrierFailed { errno })
    }
}

/// The protocols that go through breakpoints.
#[cfg(target_arch = "x86_64")]
impl Conversion<'_> {
    pub(super) fn strict(&mut self, work: &[u32]) -> Result<(), FlipError> {
        self.write_first_bytes(work, Form::Trap)?;
        self.barrier()?;
        self.write_first_bytes(work, self.to)?;
        self.barrier()
    }

    /// The kernel's batch for any number of sites: queue, apply when the queue is full, and fall back to single sites
    /// if the queue refuses a site even when empty.
    pub(super) fn batch(&mut self, work: &[u32], mut queue: BatchQueue) -> Result<(), FlipError> {
        let mut single_only = false;
        for &site in work {
            if single_only {
                self.single_step(site)?;
                continue;
            }
            let Err(refusal) = queue.queue(site) else {
                continue;
            };
            if refusal == Refusal::Full {
                self.overflow_flushes += 1;
            }
            self.apply(queue.queued())?;
            queue.clear();
            if queue.queue(site).is_err() {
                single_only = true;
                self.single_step(site)?;
            }
        }
        self.apply(queue.queued())
    }

    fn single_step(&mut self, site: u32) -> Result<(), FlipError> {
        self.single_steps += 1;
        self.apply(&[site])
    }

    /// The three steps.
    pub(super) fn apply(&mut self, queued: &[u32]) -> Result<(), FlipError> {
        if queued.is_empty() {
            return Ok(());
        }
        self.write_first_bytes(queued, Form::Trap)?;
        self.barrier()?;
        let to = self.to;
        self.write(queued, |site| site.edit_tail(to))?;
        self.barrier()?;
        self.write_first_bytes(queued, to)?;
        self.barrier()
    }
}
