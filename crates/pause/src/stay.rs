//! Whether a thread has lost its processor since it asked last, for the price of a load.
//!
//! # How it is known
//! The kernel keeps a structure of *restartable sequences* (rseq(2)) for each thread, which the C library registers. A thread names a stretch
//! of code in it, and a switch, a migration or a signal in the middle of that code sends it to an address of its choice. Of a thread
//! that is elsewhere the kernel only takes the name away: "the rseq_cs field is set to NULL by the kernel .. when it detects that it is
//! preempting or delivering a signal outside of the range targeted by the rseq_cs" (`uapi/linux/rseq.h`). So [`begin_stay`] names a stretch of
//! no length, in which no thread can be, and [`has_stayed`] looks whether the name still stands.
//!
//! # What is relied on
//! - *The descriptor is always readable*: the kernel reads it whenever it looks at a name, at any time after [`begin_stay`], and kills a thread
//!   whose name is unreadable. It is leaked, once, so that it outlives a library that is unloaded, too.
//! - *It is always valid*: version 0, no flags, addresses of this process, the end not behind the start, and in front of the abort address
//!   the signature with which the C library has registered the thread. Kernels before 6.19 look at all of that, later ones only at what they
//!   need.
//! - *Others name stretches as well* (allocators with a cache for each processor). They do so at the begin of each and expect nothing to
//!   remain, as the kernel takes names away at will; and [`begin_stay`] is no part of theirs. A name of theirs in place of ours counts as a loss.
//!
//! # Where it is not known
//! [`has_stayed`] says `None`: on other processors than x86-64, off Linux, with a C library that registers nothing (musl, glibc before 2.35,
//! `glibc.pthread.rseq=0`), under valgrind and Miri.
//!
//! What a hypervisor takes is not seen: the guest's kernel has switched nothing.

use crate::system;

/// From here on the kernel notes that the calling thread has lost its processor, whether it waited for something or was interrupted.
/// Overwrites what was noted before. Some instructions, no system call.
#[inline]
pub fn begin_stay() {
    system::name_nothing();
}

/// Whether the calling thread has had its processor, and no signal, ever since its last [`begin_stay`]; false if it never began one. `None`
/// where that is not to be known (see the module's header in the source). Some instructions, no system call.
#[inline]
#[must_use]
pub fn has_stayed() -> Option<bool> {
    system::still_names_nothing()
}
