//! The process's own memory file, which is kept open.
//!
//! A descriptor that is kept has three ways to go wrong, and each is looked for before it is used:
//!
//! | what happened | what the descriptor leads to | how it is found |
//! |---|---|---|
//! | `fork`, raw `clone` | the parent's memory | a page that the kernel empties in children (`MADV_WIPEONFORK`) |
//! | somebody closed it, and another file has its number | a stranger's file | `fstat`: device and inode are not those noted |
//! | somebody closed it | nothing | the same `fstat` fails |
//!
//! Where there is no such page, the file is opened for each transaction. It is `thread-self`, not `self`: the latter
//! cannot be opened once the first thread has ended. Keeping it costs one `fstat` a transaction instead of an `open` and
//! a `close`, and works on when the process runs out of descriptors, loses `/proc`, or is no longer dumpable.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use super::writer::errno;

/// What is kept between transactions.
pub(super) struct Memory {
    file: Option<File>,
    /// Made with the first file.
    birth: Option<BirthMark>,
}

#[derive(Clone, Copy)]
struct File {
    descriptor: c_int,
    /// Device and inode.
    identity: (u64, u64),
}

impl Memory {
    pub(super) const fn new() -> Self {
        Self {
            file: None,
            birth: None,
        }
    }

    /// A descriptor that leads to this process's memory.
    ///
    /// # Errors
    /// `errno` of opening it.
    pub(super) fn descriptor(&mut self) -> Result<c_int, c_int> {
        if let Some(file) = self.file {
            let is_untouched = identity_of(file.descriptor) == Some(file.identity);
            if is_untouched && self.birth.as_ref().is_some_and(BirthMark::is_here) {
                return Ok(file.descriptor);
            }
            self.file = None;
            if is_untouched {
                // The parent's.
                close(file.descriptor);
            }
        }
        // SAFETY: a valid C string, no other pointers.
        let descriptor = unsafe {
            libc::open(
                c"/proc/thread-self/mem".as_ptr(),
                libc::O_RDWR | libc::O_CLOEXEC,
            )
        };
        if descriptor < 0 {
            return Err(errno());
        }
        if !self.birth.as_ref().is_some_and(BirthMark::is_here) {
            self.birth = BirthMark::new();
        }
        self.file = Some(File {
            descriptor,
            identity: identity_of(descriptor).unwrap_or_default(),
        });
        Ok(descriptor)
    }

    /// Forgets a file that did not do what it should.
    pub(super) fn close(&mut self) {
        if let Some(file) = self.file.take()
            && identity_of(file.descriptor) == Some(file.identity)
        {
            close(file.descriptor);
        }
    }

    /// The end of a transaction.
    pub(super) fn rest(&mut self) {
        if self.birth.is_none() {
            self.close();
        }
    }
}

fn close(descriptor: c_int) {
    // SAFETY: a descriptor that `Memory` opened and nobody replaced.
    unsafe { libc::close(descriptor) };
}

fn identity_of(descriptor: c_int) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills the local if it succeeds.
    let status = unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
            return None;
        }
        status.assume_init()
    };
    Some((status.st_dev, status.st_ino))
}

/// A word that is 1 in the process that made it and 0 in its children.
struct BirthMark {
    page: &'static AtomicU32,
}

impl BirthMark {
    /// `None`: no memory, or a kernel that does not empty pages in children.
    fn new() -> Option<Self> {
        const BYTES: usize = 4096;
        // SAFETY: asks for fresh memory, which nobody else knows. It stays mapped for good, so the reference is valid; a
        // page of zeroes is a valid atomic.
        unsafe {
            let page = libc::mmap(
                core::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if page == libc::MAP_FAILED {
                return None;
            }
            if libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) != 0 {
                libc::munmap(page, BYTES);
                return None;
            }
            let page: &'static AtomicU32 = &*page.cast::<c_void>().cast::<AtomicU32>();
            page.store(1, Ordering::Relaxed);
            Some(Self { page })
        }
    }

    fn is_here(&self) -> bool {
        self.page.load(Ordering::Relaxed) == 1
    }
}
