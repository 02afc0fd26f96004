//! Regions of a thread's execution that another thread can *detach*, *demote*, *pause* and *resume*, at any instruction.
//!
//! Nothing of scheduling is in here: who is paused, when and for how long is the caller's business. To the code inside a
//! region a pause is what the kernel's own preemption is, only longer.
//!
//! ```no_run
//! use quotient_pause::{Demotion, Pauser, Settings};
//! use std::time::Duration;
//!
//! let pauser = Pauser::install(Settings::default())?;
//! let (sender, receiver) = std::sync::mpsc::channel();
//! let worker = std::thread::spawn(move || {
//!     pauser.enter(|thread| {
//!         sender.send(thread.handle()).unwrap();
//!         let (sum, end) = thread.region(|| (0..u64::MAX).sum::<u64>());
//!         println!("{sum}, {}", if end.is_detached() { "detached" } else { "as if nothing had been" });
//!     })
//! });
//! let handle = receiver.recv()?;
//! while handle.region().is_none() {}
//! let region = handle.region().ok_or("it has ended")?;
//! let detaching = handle.detach(region)?; // the region cannot end unseen from here on
//! detaching.demote(Demotion::Nice(10))?;
//! detaching.commit();
//! let pause = handle.pause(region)?;
//! pause.wait(Duration::from_millis(1)); // until it stands still
//! pause.resume();
//! # drop(worker);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Words
//! - A *region* is one run of a closure on a thread that is inside [`Pauser::enter`]. It has a number that no other region
//!   of the thread ever has; whoever asks for something names that number, so a request that comes late hits nothing.
//! - To *detach* is to decide, together with the thread and exactly once, who does what comes after the region: the thread
//!   itself, as always, or whoever detached it. The region goes on; only its end says [`End::Detached`].
//! - To *demote* is to lower the priority of the region's thread in the kernel. Without privileges that cannot be undone.
//! - To *pause* is to stop the thread inside the region until the [`Pause`] is resumed or dropped.
//!
//! # Protocol
//!
//! Each thread that entered has a slot (`slot.rs`):
//!
//! | field | meaning | written by |
//! |---|---|---|
//! | `current` | number of the region in progress, 0 between regions | its thread only |
//! | `attention` | largest number of a region for which anything was ever asked | askers, under the lock |
//! | `target` | number of the region to be paused | askers, under the lock |
//! | `word` | futex: a sequence number and one of `RUN`, `WANTED`, `PAUSED` | see below |
//! | `shield` | depth of [`uninterrupted`] guards | its thread only |
//! | `plea`, `plea_of` | depth of [`undisturbed`] guards, and number of the region that they are of | its thread only |
//! | `insisted` | number of the last region whose `plea` counts no more | askers, under the lock |
//! | the lock, with `detached`, `alive` | number of the last region that was detached; the thread has not left | holder of the lock |
//!
//! ## A region without requests
//! *Begin* (B1) stores the number in `current`. *End* (E1) stores 0, (E2) loads `attention`; if that is not the number, the
//! region is over. Two stores, a load and a compare; no read-modify-write, no fence.
//!
//! ## Detach
//! Under the lock, which is only ever tried: (D1) raise `attention` to the number; (D2) one expedited membarrier; (D3) load
//! `current`. If it is the number, the region is *caught*: the caller demotes, hands over, and then commits, which stores the
//! number in `detached`; or lets go, which stores nothing. Then the lock is released.
//!
//! *Both sides agree.* The membarrier makes every running thread of the process pass a full barrier between D1 and D3. If
//! E1 came before it, D3 sees E1's zero: not caught. If E1 came after it, so did E2, which sees D1 (or a later number, which
//! cannot be while this region runs): the end takes the lock, which waits for the verdict, and reads it. An end that sees D1
//! although it was not caught finds `detached` unchanged. *Whatever the caller does between D3 and the verdict, the
//! thread is still inside the region or waits at its end*; so the priority is lowered before anybody acts on the verdict.
//! Where membarrier is not to be had, E1 and E2 have a sequentially consistent fence between them, as D1 and D3 have.
//!
//! ## Pause
//! | step of `word` | by | condition |
//! |---|---|---|
//! | `RUN` → `WANTED`, sequence + 1 | asker, under the lock (tried); then it sends the signal, still under the lock | `current` is the number |
//! | `WANTED` → `PAUSED` | the thread in its signal handler, or leaving its last guard | `current == target`, `shield` is 0, and `plea` is 0, of another region, or overridden |
//! | `PAUSED` → `RUN` | [`Pause`] resumed or dropped, if the sequence is its own | |
//! | `WANTED` → `RUN` | the same; the region's end; the next asker, if `target` is not in progress | |
//!
//! *The right region, without races*: the handler runs on the thread itself, so `current`, `shield` and everything the
//! region has done are its own past; only compiler fences are needed between begin, end, shield and handler.
//! *A paused thread is resumed once and for certain*: `PAUSED` is left only by the holder of the sequence number, who
//! changes the word first and wakes the futex then; the thread sleeps only while the word is the value that it wrote. No
//! wake-up is lost, since the kernel compares under its own lock. *Never left behind*: a [`Pause`] that is dropped resumes.
//! *Nothing is paused twice*: a second request meets `WANTED` or `PAUSED` of a region in progress and is refused.
//! *A request that missed* (the region ended between the look and the signal) leaves `WANTED` with a target that is never
//! in progress again; the handler ignores it, `Pause::state` says [`PauseState::Missed`], and the next asker writes over it.
//! *Who insists is heard*: `insisted` is stored before the signal is sent, and the handler reads it after it was called; a handler that ran
//! between the two is called again. A `plea` of another region than the one in progress is none, so the end of a region ends its guards,
//! forgotten ones too, without a store.
//! *The sequence number* has 30 bits. A `Pause` that is kept for 2^30 further pauses of one thread could resume a later one
//! early; it cannot stop anything.
//! *Visibility*: `WANTED` → `PAUSED` releases, [`Pause::state`] acquires: what the region did before it stopped is visible
//! to who sees it standing. `PAUSED` → `RUN` releases, the thread acquires.
//!
//! ## The handler
//! It looks up the slot by the kernel's thread id in a static table (`table.rs`): no thread-local storage at all, hence none that
//! could be allocated lazily, and an unregistered thread or another process (after `fork`) finds nothing. It makes system
//! calls and atomic accesses, takes no lock, allocates nothing, evaluates no static key, and keeps `errno`. It runs with `SA_ONSTACK`
//! and `SA_RESTART`; `sigaltstack` is never called. Asynchronous signals are blocked while a thread stands, so that no second
//! frame comes to lie on a small alternate stack; `SIGTRAP`, `SIGSEGV`, `SIGBUS` and the other synchronous ones are not, nor
//! are the C library's own.
//!
//! ## Leaving, fork, exec
//! A slot's lock and `alive` make sure that system calls by thread id never meet another thread: who leaves takes the lock and
//! clears `alive` before the id can be anybody else's. A child of `fork` has the forking thread only: its slots belong to
//! another process id, so the handler ignores them, requests are refused ([`PauseError::OtherProcess`]), and the end
//! of a region that a fork carried over asks nobody. The forking thread is not stopped in the midst of `fork`, which holds the
//! allocator's locks (`system::linux::fork`). `exec` resets handlers, and ends paused threads like any others.
//!
//! # What it does not do
//! - *Locks*: a paused thread keeps what it holds. Whoever waits for that waits for the resumption; a caller that pauses must
//!   be able to resume (see [`Handle::is_asleep`] for how to find out that somebody waits). The allocator's are spared by
//!   [`SteadyAllocator`], where the program has it.
//! - *System calls* that `SA_RESTART` does not restart (`epoll_wait`, `poll`, `nanosleep`, see signal(7)) return `EINTR` in a
//!   region that is paused in them. The standard library retries them.
//! - *The process's end*: destructors of static and thread-local objects may want locks that a paused thread holds. Resume
//!   before `exit`.
//! - *Threads that are born in a demoted region* inherit its priority, as the kernel has it.

mod allocator;
mod demote;
mod error;
mod guest;
mod handle;
mod pauser;
mod prompt;
mod signal;
mod slot;
mod stay;
mod step;
mod sync;
mod system;
mod table;
mod thread;

pub use allocator::SteadyAllocator;
pub use demote::{Demoted, Demotion};
pub use error::{DemoteError, DetachError, EnterError, InstallError, PauseError};
pub use guest::Guest;
pub use handle::{
    Detaching, Handle, Pause, PauseState, Processor, is_thread_asleep, thread_cpu_time, waits,
};
pub use pauser::{Pauser, Settings};
pub use prompt::promptly;
pub use signal::Signal;
pub use stay::{begin_stay, has_stayed};
pub use step::{in_one_plea, in_one_step};
pub use thread::{
    End, Open, Region, Regions, Thread, Undisturbed, Uninterrupted, region, undisturbed,
    uninterrupted, with_regions,
};
