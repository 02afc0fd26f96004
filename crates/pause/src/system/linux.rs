//! Linux, on x86-64 and aarch64. Nothing here depends on the architecture but the numbers that `libc` knows.

mod fork;

use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use crate::error::InstallError;
use crate::slot::Slot;
use crate::table;

pub(crate) use self::fork::shield_forks;

pub(crate) const SIGURG: i32 = libc::SIGURG;

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration (Linux 4.14).
const PRIVATE_EXPEDITED: c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;

/// `SCHED_OTHER`, `SCHED_BATCH` and `SCHED_IDLE` of sched(7).
pub(crate) const POLICY_OTHER: u32 = 0;
pub(crate) const POLICY_BATCH: u32 = 3;
const POLICY_IDLE: u32 = 5;

/// The signal in use; 0 before the first installation.
static INSTALLED: AtomicI32 = AtomicI32::new(0);

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn checked(result: c_long) -> Result<c_long, i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

// ---- identities

pub(crate) fn process_id() -> i32 {
    // SAFETY: asks for a number; async-signal-safe.
    unsafe { libc::getpid() }
}

pub(crate) fn thread_id() -> i32 {
    // SAFETY: asks for a number; async-signal-safe.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    i32::try_from(id).unwrap_or(0)
}

// ---- signals

/// Whether a signal is one that pausing may use.
pub(crate) fn may_be_used(number: i32) -> bool {
    let ordinary = [
        libc::SIGURG,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGIO,
        libc::SIGWINCH,
    ];
    ordinary.contains(&number) || (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number)
}

/// Installs the handler for `signal`, once a process. Two threads that come at the same time install the same handler.
pub(crate) fn install(signal: i32) -> Result<(), InstallError> {
    let refused = |call| move |errno| InstallError::Refused { call, errno };
    // Signal 0 is a look at the permission to send.
    send_raw(process_id(), thread_id(), 0).map_err(refused("tgkill"))?;
    let installed = INSTALLED.load(Ordering::Acquire);
    if installed != 0 && installed != signal {
        return Err(InstallError::OtherSignal {
            wanted: signal,
            installed,
        });
    }
    match disposition(signal).map_err(refused("sigaction"))? {
        libc::SIG_DFL => {}
        address if address == handler_address() => return Ok(()),
        _ => return Err(InstallError::SignalTaken { signal }),
    }
    claim(signal)?;
    let before = set_handler(signal).map_err(refused("sigaction"))?;
    if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != handler_address() {
        // Somebody came between the look and the installation.
        put_back(signal, &before);
        return Err(InstallError::SignalTaken { signal });
    }
    pin_library();
    Ok(())
}

/// The first to come decides which signal it is.
fn claim(signal: i32) -> Result<(), InstallError> {
    match INSTALLED.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(()),
        Err(installed) if installed == signal => Ok(()),
        Err(installed) => Err(InstallError::OtherSignal {
            wanted: signal,
            installed,
        }),
    }
}

/// Whether the signal still comes to our handler. One system call.
pub(crate) fn is_in_place(signal: i32) -> bool {
    disposition(signal) == Ok(handler_address())
}

fn disposition(signal: i32) -> Result<libc::sighandler_t, i32> {
    // SAFETY: plain data for which all zeroes is a valid value; the call writes the local.
    unsafe {
        let mut current: libc::sigaction = core::mem::zeroed();
        checked(c_long::from(libc::sigaction(
            signal,
            core::ptr::null(),
            &raw mut current,
        )))?;
        Ok(current.sa_sigaction)
    }
}

/// Returns what was there before.
fn set_handler(signal: i32) -> Result<libc::sigaction, i32> {
    // Raised by the instruction itself: blocked, they would kill the process without a word. SIGTRAP may come in the
    // handler's own path from a debugger.
    let synchronous = [
        libc::SIGTRAP,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGSYS,
        libc::SIGABRT,
    ];
    // SAFETY: plain data for which all zeroes is a valid value; every pointer is to a local. The handler is a function of
    // the type that goes without SA_SIGINFO, and async-signal-safe. The C library keeps its own signals out of the mask,
    // so that `setuid` of another thread reaches one that stands in the handler.
    unsafe {
        let mut ours: libc::sigaction = core::mem::zeroed();
        ours.sa_sigaction = handler_address();
        ours.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigfillset(&raw mut ours.sa_mask);
        for signal in synchronous {
            libc::sigdelset(&raw mut ours.sa_mask, signal);
        }
        let mut before: libc::sigaction = core::mem::zeroed();
        checked(c_long::from(libc::sigaction(
            signal,
            &raw const ours,
            &raw mut before,
        )))?;
        Ok(before)
    }
}

fn put_back(signal: i32, before: &libc::sigaction) {
    // SAFETY: reads what an earlier call of the same function has written.
    unsafe { libc::sigaction(signal, before, core::ptr::null_mut()) };
}

fn handler_address() -> libc::sighandler_t {
    (on_signal as *const ()).addr()
}

/// Stops the thread inside its region if somebody wants that. See the crate's header for what it may do.
extern "C" fn on_signal(_signal: c_int) {
    // SAFETY: the C library's pointer to this thread's errno is valid while the thread lives, and its storage is part of
    // the thread's static block, never allocated lazily.
    let kept = unsafe { *libc::__errno_location() };
    table::with_own_slot(thread_id(), process_id(), Slot::stand_if_wanted);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = kept };
}

/// A library whose handler is installed must stay in memory: takes a reference to it that nobody gives back.
fn pin_library() {
    // SAFETY: `dladdr` fills the local if it succeeds, and its file name lives as long as the library. `dlopen` of a
    // library that is loaded only counts it; for the main program it finds nothing to open and fails harmlessly.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(on_signal as *const c_void, &raw mut info) != 0 && !info.dli_fname.is_null()
        {
            libc::dlopen(
                info.dli_fname,
                libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
            );
        }
    }
}

/// Sends the signal to one thread of this process. The caller makes sure that the id is the thread's.
pub(crate) fn send(process: i32, thread: i32, signal: i32) -> Result<(), i32> {
    send_raw(process, thread, signal)
}

fn send_raw(process: i32, thread: i32, signal: i32) -> Result<(), i32> {
    // SAFETY: the call takes numbers, and reaches threads of this process only.
    checked(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) }).map(drop)
}

/// Lets the signal through on the calling thread; whether it was blocked.
pub(crate) fn unblock(signal: i32) -> Result<bool, i32> {
    change_mask(libc::SIG_UNBLOCK, signal)
}

/// Blocks the signal on the calling thread again.
pub(crate) fn block(signal: i32) -> Result<bool, i32> {
    change_mask(libc::SIG_BLOCK, signal)
}

fn change_mask(how: c_int, signal: i32) -> Result<bool, i32> {
    // SAFETY: sets are plain data for which all zeroes is a valid value; every pointer is to a local.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        match libc::pthread_sigmask(how, &raw const set, &raw mut before) {
            0 => Ok(libc::sigismember(&raw const before, signal) == 1),
            errno => Err(errno),
        }
    }
}

// ---- waiting

#[cfg_attr(loom, allow(dead_code))] // the model checker sleeps by itself
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let relative = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        // Below 10^9, which fits everywhere.
        tv_nsec: timeout.subsec_nanos() as _,
    });
    let relative = relative
        .as_ref()
        .map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the word lives during the call, the timeout is null or a local. Errors (changed already, a signal, the
    // timeout) all mean "look again".
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            relative,
        );
    }
}

#[cfg_attr(loom, allow(dead_code))] // the model checker sleeps by itself
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the word lives during the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            c_int::MAX,
        );
    }
}

// ---- the barrier

fn membarrier(command: c_int) -> Result<(), i32> {
    // SAFETY: the call takes no pointers.
    checked(unsafe { libc::syscall(libc::SYS_membarrier, command, 0_u32, 0_i32) }).map(drop)
}

/// Announces that [`barrier`] will be used; whether it can be.
pub(crate) fn register_barrier() -> bool {
    membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok()
}

/// Every running thread of the process passes a full barrier before this returns. Only after [`register_barrier`].
pub(crate) fn barrier() {
    let done = membarrier(PRIVATE_EXPEDITED).or_else(|_| {
        membarrier(REGISTER_PRIVATE_EXPEDITED).and_then(|()| membarrier(PRIVATE_EXPEDITED))
    });
    if done.is_err() {
        // A filter that came after the registration. Without the barrier a region could be run twice over, so it ends here.
        std::process::abort();
    }
}

// ---- priorities

/// What `sched_getattr` tells of a thread, as far as it is of use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) policy: u32,
    pub(crate) nice: i32,
    /// Slice of a fair policy. Unit: nanoseconds; 0 for the kernel's default.
    slice: u64,
}

impl Attributes {
    pub(crate) fn fair(nice: i32, slice: u64) -> Self {
        Self {
            policy: POLICY_OTHER,
            nice,
            slice,
        }
    }

    pub(crate) fn idle(nice: i32) -> Self {
        Self {
            policy: POLICY_IDLE,
            nice,
            slice: 0,
        }
    }

    /// Whether the thread has a nice value that means anything.
    pub(crate) fn is_fair(self) -> bool {
        matches!(self.policy, POLICY_OTHER | POLICY_BATCH | POLICY_IDLE)
    }
}

/// `struct sched_attr` of the kernel, in its first size.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// `sizeof(struct sched_attr)` of its first version.
const SCHED_ATTR_SIZE: u32 = 48;

pub(crate) fn attributes(thread: i32) -> Result<Attributes, i32> {
    let raw = raw_attributes(thread)?;
    Ok(Attributes {
        policy: raw.policy,
        nice: raw.nice,
        // Kernels with custom slices report the one in effect; 0 is asked for again by those without.
        slice: 0,
    })
}

/// The slice in effect; 0 where there are no custom ones. Unit: nanoseconds.
#[cfg(test)]
pub(crate) fn slice(thread: i32) -> Result<u64, i32> {
    raw_attributes(thread).map(|raw| raw.runtime)
}

fn raw_attributes(thread: i32) -> Result<SchedAttr, i32> {
    let mut raw = SchedAttr::default();
    // SAFETY: the kernel writes at most as many bytes as it is told, into a local of that size.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            thread,
            &raw mut raw,
            SCHED_ATTR_SIZE,
            0_u32,
        )
    })?;
    Ok(raw)
}

pub(crate) fn set_attributes(thread: i32, attributes: Attributes) -> Result<(), i32> {
    let raw = SchedAttr {
        size: SCHED_ATTR_SIZE,
        policy: attributes.policy,
        nice: attributes.nice,
        runtime: attributes.slice,
        ..SchedAttr::default()
    };
    // SAFETY: the kernel reads a local of the size that it says.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const raw, 0_u32) })
        .map(drop)
}

/// A thread's policy, with the bit `SCHED_RESET_ON_FORK` if it is set.
pub(crate) fn policy(thread: i32) -> Result<u32, i32> {
    // SAFETY: asks for a number, and no memory is passed.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
    checked(policy).map(|policy| u32::try_from(policy).unwrap_or(u32::MAX))
}

/// Changes the policy of a fair thread to another fair one: nice value, slice and clamps stay. Takes `SCHED_RESET_ON_FORK` away.
pub(crate) fn set_policy(thread: i32, policy: u32) -> Result<(), i32> {
    // `struct sched_param`: the priority, which these policies do not have.
    let parameter: c_int = 0;
    // The bare call: not every C library passes it on.
    // SAFETY: the kernel reads one integer, a local that outlives the call.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const parameter,
        )
    })
    .map(drop)
}

/// The old way, without a policy and a slice.
pub(crate) fn set_nice(thread: i32, nice: i32) -> Result<(), i32> {
    let who = libc::id_t::try_from(thread).map_err(|_| libc::EINVAL)?;
    // SAFETY: takes numbers.
    checked(c_long::from(unsafe {
        libc::setpriority(libc::PRIO_PROCESS, who, nice)
    }))
    .map(drop)
}

// ---- figures

/// CPU time of a thread of this process. Unit: nanoseconds. One system call.
pub(crate) fn cpu_time(thread: i32) -> Option<u64> {
    // The kernel's encoding of a thread's scheduler clock: the complement of the id above three bits, `CPUCLOCK_SCHED` (2) and
    // the bit for "of a thread" (4). `pthread_getcpuclockid` makes the same number.
    let clock = (!thread) << 3 | 6;
    // SAFETY: a timespec is plain data; the call writes the local.
    let time = unsafe {
        let mut time: libc::timespec = core::mem::zeroed();
        checked(c_long::from(libc::clock_gettime(clock, &raw mut time))).ok()?;
        time
    };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u64::try_from(time.tv_nsec).ok()?;
    Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
}

/// How often the calling thread gave its processor up to wait for something. One system call.
pub(crate) fn waits() -> Option<u64> {
    // SAFETY: an rusage is plain data; the call writes the local.
    let usage = unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        checked(c_long::from(libc::getrusage(
            libc::RUSAGE_THREAD,
            &raw mut usage,
        )))
        .ok()?;
        usage
    };
    u64::try_from(usage.ru_nvcsw).ok()
}

/// What the kernel says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// What it does: `R` runs or could, `S` and `D` sleep.
    pub(crate) letter: u8,
    /// Where it runs, or ran last.
    pub(crate) processor: Option<u32>,
}

/// The kernel's word for what a thread of this process does. Opens, reads and closes one small file. Allocates nothing: the
/// allocator's lock may be what the thread sleeps for.
pub(crate) fn status(thread: i32) -> Option<Status> {
    let mut path = [0_u8; 48];
    let mut rest = &mut path[..];
    write!(rest, "/proc/self/task/{thread}/stat").ok()?;
    let unused = rest.len();
    let path = std::str::from_utf8(&path[..48 - unused]).ok()?;
    // 52 numbers, of which few are long.
    let mut text = [0_u8; 1_024];
    let mut file = File::open(path).ok()?;
    let length = file.read(&mut text).ok()?;
    parse_status(&text[..length])
}

fn parse_status(text: &[u8]) -> Option<Status> {
    // The name comes in parentheses and may hold some itself.
    let after = text.iter().rposition(|byte| *byte == b')')? + 2;
    let letter = text.get(after).copied()?;
    // The state is field 3 of proc_pid_stat(5), the processor 39.
    let field = text[after..].split(|byte| *byte == b' ').nth(36);
    let processor = field
        .and_then(|field| std::str::from_utf8(field).ok())
        .and_then(|field| field.parse().ok());
    Some(Status { letter, processor })
}

/// Where the calling thread runs.
pub(crate) fn current_processor() -> Option<u32> {
    // SAFETY: asks for a number.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The processors that a thread may run on, of the first 1,024.
#[derive(Clone, Copy)]
pub(crate) struct Affinity(libc::cpu_set_t);

impl Affinity {
    /// How many processors there can be.
    pub(crate) const SIZE: u32 = 8 * core::mem::size_of::<libc::cpu_set_t>() as u32;

    /// Of a thread. `None` where the machine has more processors than that.
    pub(crate) fn of(thread: i32) -> Option<Self> {
        // SAFETY: a set is plain data for which all zeroes is a valid value; the kernel writes at most its size into the local.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            let size = core::mem::size_of::<libc::cpu_set_t>();
            checked(c_long::from(libc::sched_getaffinity(
                thread,
                size,
                &raw mut set,
            )))
            .ok()?;
            Some(Self(set))
        }
    }

    /// One processor; `None` if it is not one of the first 1,024.
    pub(crate) fn only(processor: u32) -> Option<Self> {
        let processor = Self::place(processor)?;
        // SAFETY: a set is plain data for which all zeroes is a valid value, and the place lies inside it.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            Some(Self(set))
        }
    }

    pub(crate) fn contains(&self, processor: u32) -> bool {
        // SAFETY: the place lies inside the set.
        Self::place(processor).is_some_and(|place| unsafe { libc::CPU_ISSET(place, &self.0) })
    }

    /// Whether it is this one and no other.
    pub(crate) fn is_only(&self, processor: u32) -> bool {
        // SAFETY: the set is a whole one that is only read.
        let count = unsafe { libc::CPU_COUNT(&self.0) };
        count == 1 && self.contains(processor)
    }

    /// Makes it that of a thread. The caller makes sure that the id is the thread's.
    pub(crate) fn set(&self, thread: i32) -> Result<(), i32> {
        // SAFETY: the kernel reads a local of the size that it is told.
        let result = unsafe {
            libc::sched_setaffinity(
                thread,
                core::mem::size_of::<libc::cpu_set_t>(),
                &raw const self.0,
            )
        };
        checked(c_long::from(result)).map(drop)
    }

    fn place(processor: u32) -> Option<usize> {
        (processor < Self::SIZE).then_some(usize::try_from(processor).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_named_to_confuse_is_read_right() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 7 0 0";
        let text = format!("12 (a) R 1 (b) {rest}");
        let status = parse_status(text.as_bytes());
        let expected = Status {
            letter: b'S',
            processor: Some(7),
        };
        assert_eq!(status, Some(expected));
        // Cut short, it says less.
        let status = parse_status(b"12 (a) R 1 2").map(|status| status.processor);
        assert_eq!(status, Some(None));
        assert_eq!(parse_status(b"12 (a"), None);
    }
}
