//! Writing code that other threads execute.
//!
//! Two ways:
//!
//! 1. `pwrite` to the process's memory file (`memory.rs`). The kernel writes through its own mapping, so no page changes
//!    its rights, and it works where pages may not become writable and executable.
//! 2. `mprotect` of one range to read-write-execute for the length of the transaction, and plain byte stores. Only if the
//!    program allows it ([`allow_writable_code`](crate::allow_writable_code)): meanwhile whoever can make this process
//!    write where it should not can make it execute that.
//!
//! # Exact and coalesced
//!
//! Code between two sites may be somebody else's to change: a debugger's breakpoints, uprobes, another patcher. By default
//! no byte outside of our sites is touched: each edit is a write of its own, save that sites which touch each other are
//! written by one call (between their opcodes lie their operands, which nobody else writes). Coalesced, sites that lie close together are written in
//! one call, and the bytes between them rewritten with what they held an instant before: 50 times fewer calls for dense
//! sites, but a breakpoint that is set or removed in that instant is lost or comes back. Both ways copy in pieces of
//! unknown size, so a protocol may rely on single bytes only.

use core::ffi::{c_int, c_void};

use quotient_key::Writer;

use super::arch::site::{SITE_BYTES_MAX, read_code_byte};
use super::arch::{self, code_was_written};
use super::memory::Memory;
use crate::mode::Writes;

/// Largest gap between two edits of one `pwrite`, bytes. Ours: copying that much costs less than another system call
/// (0.5 µs), and half a page keeps sites that have pages of their own apart.
const GAP_BYTES_MAX: usize = 2048;

/// Longest `pwrite`, bytes. Ours: bounds the copy on the heap, which the engine keeps.
const RUN_BYTES_MAX: usize = 64 * 1024;

/// A change of some bytes of one site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edit {
    pub(super) address: usize,
    bytes: [u8; SITE_BYTES_MAX],
    length: u8,
    /// Bytes of the site that lie before `address`.
    before: u8,
    /// Bytes of the site.
    site_length: u8,
}

impl Edit {
    /// `length` bytes from `address` on; `bytes` begins with them.
    pub(super) const fn new(address: usize, bytes: [u8; SITE_BYTES_MAX], length: usize) -> Self {
        Self {
            address,
            bytes,
            length: length as u8,
            before: 0,
            site_length: length as u8,
        }
    }

    /// Says that the edit belongs to a site of `length` bytes that begins `before` bytes ahead of it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) const fn in_site(mut self, before: usize, length: usize) -> Self {
        self.before = before as u8;
        self.site_length = length as u8;
        self
    }

    fn site_start(&self) -> usize {
        self.address - usize::from(self.before)
    }

    fn site_end(&self) -> usize {
        self.site_start() + usize::from(self.site_length)
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn end(&self) -> usize {
        self.address + usize::from(self.length)
    }
}

/// `errno` of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteError(pub(super) c_int);

/// What writers share, kept between transactions.
pub(super) struct Tools {
    pub(super) memory: Memory,
    /// The run in work; a fresh one would be page faults in every flip.
    buffer: Vec<u8>,
    pub(super) writes: Writes,
    /// Whether pages may become writable while they are executable.
    pub(super) may_unlock: bool,
    /// What is written through the memory file is not what is executed (an emulator).
    pub(super) file_is_stale: bool,
    /// `errno` of the last time when pages could not be made read-only again.
    pub(super) left_writable: Option<c_int>,
}

impl Tools {
    pub(super) const fn new() -> Self {
        Self {
            memory: Memory::new(),
            buffer: Vec::new(),
            writes: Writes::Exact,
            may_unlock: false,
            file_is_stale: false,
            left_writable: None,
        }
    }
}

/// Code of this process, opened for writing.
pub(super) struct CodeWriter<'a> {
    tools: &'a mut Tools,
    writable: Option<Pages>,
    /// First byte and end of everything that this transaction writes.
    span: (usize, usize),
    /// The way that worked last.
    pub(super) used: Option<Writer>,
    /// System calls or stores so far.
    pub(super) writes: u64,
}

/// Pages that were made writable.
struct Pages {
    start: usize,
    bytes: usize,
}

impl<'a> CodeWriter<'a> {
    /// For the code from `start` to `end` (exclusive).
    pub(super) fn new(start: usize, end: usize, tools: &'a mut Tools) -> Self {
        Self {
            tools,
            writable: None,
            span: (start, end),
            used: None,
            writes: 0,
        }
    }

    /// Performs an edit for each item of `work`; the edits ascend by address and lie within the span. `edit_of` is asked
    /// several times for the same item: at thousands of sites a list of edits would cost more than making them anew.
    ///
    /// # Errors
    /// The last writer's `errno`; any prefix of the edits may have been performed.
    ///
    /// # Safety
    /// Each edit changes bytes of a site of this program so that a thread that executes the site, seeing any mixture of
    /// old and new bytes that the caller's protocol allows, still does what the key says.
    pub(super) unsafe fn write<T: Copy>(
        &mut self,
        work: &[T],
        edit_of: impl Fn(T) -> Edit,
    ) -> Result<(), WriteError> {
        let result = self.write_file(work, &edit_of);
        let Err(error) = result else {
            self.used = Some(Writer::ProcMem);
            return Ok(());
        };
        if !self.tools.may_unlock {
            return Err(error);
        }
        // SAFETY: passed on to the caller.
        unsafe { self.write_mapped(work, edit_of)? };
        self.used = Some(Writer::Mprotect);
        Ok(())
    }

    fn write_file<T: Copy>(
        &mut self,
        work: &[T],
        edit_of: &impl Fn(T) -> Edit,
    ) -> Result<(), WriteError> {
        if self.tools.file_is_stale {
            return Err(WriteError(libc::ENOSYS));
        }
        let descriptor = self.tools.memory.descriptor().map_err(WriteError)?;
        let gap_bytes_max = match self.tools.writes {
            Writes::Coalesced => GAP_BYTES_MAX,
            Writes::Exact => 0,
        };
        let mut result = if arch::CAN_COALESCE {
            self.write_runs(descriptor, work, edit_of, gap_bytes_max)
        } else {
            self.write_edits(descriptor, work, edit_of)
        };
        let ends = [work.first(), work.last()];
        let have_arrived = |item: Option<&T>| item.is_none_or(|&item| arrived(&edit_of(item)));
        if result.is_ok() && !ends.into_iter().all(have_arrived) {
            result = Err(WriteError(libc::EIO));
        }
        if result.is_err() {
            self.tools.memory.close();
        }
        result
    }

    fn write_edits<T: Copy>(
        &mut self,
        descriptor: c_int,
        work: &[T],
        edit_of: &impl Fn(T) -> Edit,
    ) -> Result<(), WriteError> {
        for &item in work {
            let edit = edit_of(item);
            self.write_file_at(descriptor, edit.address, edit.bytes())?;
        }
        Ok(())
    }

    fn write_file_at(
        &mut self,
        descriptor: c_int,
        start: usize,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        // SAFETY: the slice is valid for its length. What the write does to the code is the contract of `write`.
        let written = unsafe {
            libc::pwrite(
                descriptor,
                bytes.as_ptr().cast::<c_void>(),
                bytes.len(),
                start as libc::off_t,
            )
        };
        self.writes += 1;
        code_was_written(start, bytes.len());
        match usize::try_from(written) {
            Ok(length) if length == bytes.len() => Ok(()),
            Ok(_) => Err(WriteError(libc::EIO)),
            Err(_) => Err(WriteError(errno())),
        }
    }

    /// Writes each run of sites that lie at most `gap_bytes_max` apart by one call.
    fn write_runs<T: Copy>(
        &mut self,
        descriptor: c_int,
        work: &[T],
        edit_of: &impl Fn(T) -> Edit,
        gap_bytes_max: usize,
    ) -> Result<(), WriteError> {
        let mut rest = work;
        while let Some(&first) = rest.first() {
            let first = edit_of(first);
            let (start, mut end) = (first.address, first.site_start());
            let mut in_run = |&item: &T| {
                let edit = edit_of(item);
                let fits = edit.site_start().saturating_sub(end) <= gap_bytes_max
                    && edit.end() - start <= RUN_BYTES_MAX;
                end = edit.site_end();
                fits
            };
            let run_length = rest.iter().take_while(|item| in_run(item)).count().max(1);
            let (run, after) = rest.split_at(run_length);
            self.write_run(descriptor, run, edit_of)?;
            rest = after;
        }
        Ok(())
    }

    fn write_run<T: Copy>(
        &mut self,
        descriptor: c_int,
        run: &[T],
        edit_of: &impl Fn(T) -> Edit,
    ) -> Result<(), WriteError> {
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        let (first, last) = (edit_of(first), edit_of(last));
        if run.len() == 1 {
            return self.write_file_at(descriptor, first.address, first.bytes());
        }
        let (start, end) = (first.address, last.end());
        let mut buffer = core::mem::take(&mut self.tools.buffer);
        buffer.clear();
        // SAFETY: both ends lie in sites of one program's code segment, which is mapped readable without holes. Whoever
        // else writes there races with the kernel's copy, not with a Rust reference: the bytes are read once, here.
        let code = unsafe {
            core::slice::from_raw_parts(
                core::ptr::with_exposed_provenance::<u8>(start),
                end - start,
            )
        };
        buffer.extend_from_slice(code);
        for &item in run {
            let edit = edit_of(item);
            let offset = edit.address - start;
            match edit.bytes() {
                // Nearly always; a call to copy one byte would be most of the cost.
                [byte] => buffer[offset] = *byte,
                bytes => buffer[offset..offset + bytes.len()].copy_from_slice(bytes),
            }
        }
        let result = self.write_file_at(descriptor, start, &buffer);
        self.tools.buffer = buffer;
        result
    }

    /// # Safety
    /// As [`CodeWriter::write`].
    unsafe fn write_mapped<T: Copy>(
        &mut self,
        work: &[T],
        edit_of: impl Fn(T) -> Edit,
    ) -> Result<(), WriteError> {
        if self.writable.is_none() {
            self.writable = Some(Pages::unlock(self.span.0, self.span.1)?);
        }
        for &item in work {
            let edit = edit_of(item);
            // SAFETY: the page was made writable above and holds code only.
            unsafe { arch::store(edit.address, edit.bytes()) };
            self.writes += 1;
            code_was_written(edit.address, edit.bytes().len());
        }
        Ok(())
    }
}

/// Whether an edit is there, by its first byte: some kernels pretend. Asked of both ends of a transaction only: looking at all of it would fetch every line back from the processors that execute it.
fn arrived(edit: &Edit) -> bool {
    // SAFETY: edits are of sites, which are mapped and readable.
    unsafe { read_code_byte(edit.address) == edit.bytes[0] }
}

impl Drop for CodeWriter<'_> {
    fn drop(&mut self) {
        self.tools.memory.rest();
        if let Some(pages) = &self.writable {
            self.tools.left_writable = pages.lock();
        }
    }
}

impl Pages {
    fn unlock(start: usize, end: usize) -> Result<Self, WriteError> {
        // SAFETY: asks for a number.
        let page_bytes =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let first = start & !(page_bytes - 1);
        let pages = Self {
            start: first,
            bytes: end.next_multiple_of(page_bytes) - first,
        };
        match pages.protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
            0 => Ok(pages),
            error => Err(WriteError(error)),
        }
    }

    /// Back to what code pages are. `errno` if the kernel refuses: they stay writable, which the status reports.
    fn lock(&self) -> Option<c_int> {
        match self.protect(libc::PROT_READ | libc::PROT_EXEC) {
            0 => None,
            errno => Some(errno),
        }
    }

    fn protect(&self, rights: c_int) -> c_int {
        let start = core::ptr::with_exposed_provenance_mut::<c_void>(self.start);
        // SAFETY: the range is code of this program, which stays readable and executable throughout.
        match unsafe { libc::mprotect(start, self.bytes, rights) } {
            0 => 0,
            _ => errno(),
        }
    }
}

pub(super) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Writes one byte into each of three 5-byte sites, of which the last two touch; what the calls were.
    fn write_three(writes: Writes, code: &[u8; 24]) -> u64 {
        const SITES: [usize; 3] = [1, 9, 14];
        let mut tools = Tools::new();
        tools.writes = writes;
        let start = code.as_ptr().expose_provenance();
        let mut writer = CodeWriter::new(start, start + code.len(), &mut tools);
        let edit = |offset| Edit::new(start + offset, [0xA9, 0, 0, 0, 0], 1).in_site(0, 5);
        // SAFETY: these bytes are never executed.
        unsafe { writer.write(&SITES, edit) }.expect("a process may write its memory");
        writer.writes
    }

    #[test]
    fn only_sites_that_touch_are_written_together() {
        for (writes, calls) in [(Writes::Exact, 2), (Writes::Coalesced, 1)] {
            let code = Box::new([0xE9_u8; 24]);
            assert_eq!(write_three(writes, &code), calls, "{writes:?}");
            let code = core::hint::black_box(code);
            let changed: Vec<usize> = (0..code.len()).filter(|&at| code[at] == 0xA9).collect();
            assert_eq!(changed, [1, 9, 14]);
        }
    }
}
