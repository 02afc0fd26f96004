//! The `SIGTRAP` handler of the modes that go through breakpoints.
//!
//! A thread that runs into a site's breakpoint is sent to the site's jump target, where the key is loaded: that is right
//! before, during and after every flip, so the handler needs not know whether a flip is in progress or in which
//! direction. It searches the table of *all* sites, which never changes: the delivery of a signal is not ordered with
//! the barrier, so a trap can arrive after the transaction that caused it has ended, and a list of the sites in transit
//! would no longer hold its address.
//!
//! The handler takes no lock, allocates nothing, and writes no cache line that two processors share: its only store is
//! a counter in a row that belongs to the processor it runs on. (In the kernel a shared reference count in this place
//! once took half of a 480-thread server.)
//!
//! A breakpoint that is not at a site goes to whoever handled `SIGTRAP` before us.
//!
//! # Several engines in a process
//!
//! A `cdylib` has an engine of its own and puts its handler before ours, handing on what is not its own. That is no
//! displacement, and can be told: the handler that is installed is a jump behind a line of data, which names this scheme and
//! leads to who was there before. From the installed handler an engine follows these lines until it finds itself, or a
//! handler of somebody else, of whom nothing is known.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::super::table::Table;
use crate::text::lookup::Lookup;

/// Counters of one processor start on their own cache line: a row is a multiple of this many counters.
const COUNTERS_PER_LINE: usize = 64 / core::mem::size_of::<AtomicU32>();

/// What the handler reads; leaked, never changed except for the counters.
struct TrapTable {
    lookup: Lookup,
    /// One row a processor, one counter a key.
    counters: Vec<AtomicU32>,
    row: usize,
}

static TABLE: AtomicPtr<TrapTable> = AtomicPtr::new(core::ptr::null_mut());

/// Who handled `SIGTRAP` before us.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, under the engine's lock and before the handler that reads it is installed.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::zeroed()));

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Installs the handler, once a process; the caller holds the engine's lock. Later calls do nothing, so a handler that
/// the program puts in our place stays.
///
/// # Errors
/// `errno` of `sigaction`.
pub(in crate::text) fn install(table: &Table) -> Result<(), c_int> {
    if INSTALLED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: asks for a number.
    let processors = usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) })
        .unwrap_or(1)
        .max(1);
    let row = table
        .key_count()
        .next_multiple_of(COUNTERS_PER_LINE)
        .max(COUNTERS_PER_LINE);
    let leaked = Box::leak(Box::new(TrapTable {
        lookup: Lookup::new(
            table
                .sites
                .iter()
                .map(|site| (site.code, site.target, site.key)),
        ),
        counters: (0..processors * row).map(|_| AtomicU32::new(0)).collect(),
        row,
    }));
    TABLE.store(leaked, Ordering::Release);

    // SAFETY: plain data for which all zeroes is a valid value; the pointers given to the kernel are to locals and to
    // `PREVIOUS`, which nobody reads before the second call has succeeded. The handler is a function of the type that
    // SA_SIGINFO announces and is async-signal-safe (see the module's notes).
    unsafe {
        let mut ours: libc::sigaction = core::mem::zeroed();
        ours.sa_sigaction = handler_address();
        // SA_ONSTACK: the thread's own stack may be tiny. The alternate one often is, too (the standard library's has room
        // for one signal frame and little more), so no other signal may interrupt the handler and put its frame there.
        // Nor may one run into a breakpoint while SIGTRAP is blocked: the kernel would kill the process.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigfillset(&raw mut ours.sa_mask);
        let previous = (*PREVIOUS.0.get()).as_mut_ptr();
        if libc::sigaction(libc::SIGTRAP, core::ptr::null(), previous) != 0
            || libc::sigaction(libc::SIGTRAP, &raw const ours, core::ptr::null_mut()) != 0
        {
            return Err(super::super::writer::errno());
        }
    }
    INSTALLED.store(true, Ordering::Release);
    pin_library();
    Ok(())
}

/// Whether `SIGTRAP` comes to us: at first, or handed on by engines of the same kind.
pub(in crate::text) fn is_in_place() -> bool {
    // SAFETY: only asks; the local is plain data for which all zeroes is valid.
    let mut current = unsafe {
        let mut current: libc::sigaction = core::mem::zeroed();
        if libc::sigaction(libc::SIGTRAP, core::ptr::null(), &raw mut current) != 0 {
            return false;
        }
        current.sa_sigaction
    };
    for _ in 0..ENGINES_MAX {
        if current == handler_address() {
            return true;
        }
        match handed_on_by(current) {
            Some(next) => current = next,
            None => return false,
        }
    }
    false
}

/// Longest chain of engines that is followed. Ours: more libraries with keys in one process than anybody has seen.
const ENGINES_MAX: usize = 64;

/// The line of data before an engine's handler.
#[repr(C)]
#[derive(Clone, Copy)]
struct Signpost {
    magic: [u8; 16],
    /// Distance from this field to the engine's [`Previous`].
    previous: i64,
    padding: u64,
}

const MAGIC: [u8; 16] = *b"quotient-keys-t1";

core::arch::global_asm!(
    ".pushsection .text.quotient_keys_trap_v1, \"ax\", @progbits",
    ".p2align 6",
    ".ascii \"quotient-keys-t1\"",
    ".quad {previous} - .",
    ".quad 0",
    ".globl quotient_keys_trap_v1",
    ".hidden quotient_keys_trap_v1",
    ".type quotient_keys_trap_v1, @function",
    "quotient_keys_trap_v1:",
    "jmp {on_trap}",
    ".size quotient_keys_trap_v1, . - quotient_keys_trap_v1",
    ".popsection",
    previous = sym PREVIOUS,
    on_trap = sym on_trap,
);

unsafe extern "C" {
    fn quotient_keys_trap_v1(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void);
}

/// Where an engine's handler hands on to; `None` if this is no engine's handler.
fn handed_on_by(handler: usize) -> Option<usize> {
    let post: Signpost = read(handler.checked_sub(size_of::<Signpost>())?)?;
    if post.magic != MAGIC {
        return None;
    }
    let field = handler - size_of::<Signpost>() + core::mem::offset_of!(Signpost, previous);
    let previous: libc::sigaction = read(field.wrapping_add_signed(post.previous as isize))?;
    Some(previous.sa_sigaction)
}

/// Reads plain data at an address that may lead nowhere: the kernel does it, and says so.
fn read<T: Copy>(address: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let local = libc::iovec {
        iov_base: value.as_mut_ptr().cast(),
        iov_len: size_of::<T>(),
    };
    let remote = libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut(address),
        iov_len: size_of::<T>(),
    };
    // SAFETY: the kernel writes to the local and reads from this process, or fails. Both types that are read here are valid
    // for all bytes.
    unsafe {
        let bytes =
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0);
        (usize::try_from(bytes) == Ok(size_of::<T>())).then(|| value.assume_init())
    }
}

/// Traps taken at sites of the key with that index, by all processors.
pub(in crate::text) fn traps_of(key_index: usize) -> u64 {
    let Some(table) = table() else { return 0 };
    let rows = table.counters.chunks_exact(table.row);
    rows.map(|row| u64::from(row[key_index].load(Ordering::Relaxed)))
        .sum()
}

fn table() -> Option<&'static TrapTable> {
    // SAFETY: null or leaked by `install`; Acquire pairs with its Release.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn handler_address() -> usize {
    (quotient_keys_trap_v1 as *const ()).addr()
}

/// A library whose handler is installed must stay in memory: takes a reference to it that nobody gives back.
fn pin_library() {
    // SAFETY: `dladdr` fills the local if it succeeds, and its file name lives as long as the library. `dlopen` of a
    // library that is loaded only counts it; for the main program it finds nothing to open and fails harmlessly.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(on_trap as *const c_void, &raw mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(
                info.dli_fname,
                libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
            );
        }
    }
}

unsafe extern "C" fn on_trap(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a pointer to the interrupted thread's register file, which lives during the handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let instruction_pointer = &mut registers[libc::REG_RIP as usize];
    // A breakpoint is one byte long, and the register points after it. No other trap can report this address: it would
    // lie inside the site's instruction.
    let site = (*instruction_pointer as usize).wrapping_sub(1);
    if let Some(table) = table()
        && let Some((target, key)) = table.lookup.find(site)
    {
        *instruction_pointer = target as i64;
        // SAFETY: `sched_getcpu` asks for a number, without a system call or errno on success.
        let processor = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0);
        let place = processor * table.row + key as usize;
        if let Some(counter) = table.counters.get(place) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    // SAFETY: the arguments are those of this handler.
    unsafe { chain(signal, info, context) };
}

/// Does with a trap that is not ours what would have been done without us.
///
/// # Safety
/// To be called by the handler with its own arguments.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `install` wrote it before this handler could run, and nobody writes it again.
    let previous = unsafe { (*PREVIOUS.0.get()).assume_init_ref() };
    // SAFETY: the kernel passes a valid siginfo.
    let code = unsafe { (*info).si_code };
    match previous.sa_sigaction {
        // Ignoring is for signals that somebody sent; a real trap kills even so.
        libc::SIG_IGN if code <= 0 => {}
        // SAFETY: plain calls on locals. SIGTRAP is blocked while its handler runs, so the raised one takes its default
        // effect, a core dump, when this handler returns.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            let mut default: libc::sigaction = core::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const default, core::ptr::null_mut());
            libc::raise(signal);
        },
        // SAFETY: what is neither default nor ignore is a function of the type that the flag tells. It runs with the mask
        // that the kernel would have given it: the interrupted thread's and its own. The kernel's sets are one word, the
        // first of the C library's, and it saves no more than that in the context. The mask of the interrupted thread is
        // restored from the context when the outer handler returns.
        handler => unsafe {
            let interrupted = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
            let mut mask = previous.sa_mask;
            if previous.sa_flags & libc::SA_NODEFER == 0 {
                libc::sigaddset(&raw mut mask, signal);
            }
            *(&raw mut mask).cast::<u64>() |= interrupted.cast::<u64>().read();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, core::ptr::null_mut());
            if previous.sa_flags & libc::SA_SIGINFO != 0 {
                let with_info: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    core::mem::transmute(handler);
                with_info(signal, info, context);
            } else {
                let plain: unsafe extern "C" fn(c_int) = core::mem::transmute(handler);
                plain(signal);
            }
        },
    }
}
