//! What measurements need and cannot do safely themselves: counting instructions, plain statics, the crate `static-keys`.
//! Behind the feature `bench`, which no library should switch on; nothing here is part of the crate's interface.

pub mod jump;
#[cfg(all(patching, target_arch = "x86_64"))]
mod steps;
mod times;
#[cfg(all(patching, target_arch = "x86_64"))]
mod traps;

pub use crate::text::lookup::Lookup;
pub use times::process_times;

#[cfg(all(patching, target_arch = "x86_64"))]
mod rival;

/// What one iteration of a loop executes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Executed {
    /// Instructions.
    pub instructions: f64,
    /// Jumps, conditional or not, calls and returns among them.
    pub branches: f64,
}

/// What one iteration of `run` executes, which is told how many to make. Counted by single-stepping, so exact and without
/// performance counters; `None` where that has not been written.
pub fn count_iteration(run: impl FnMut(u64)) -> Option<Executed> {
    #[cfg(all(patching, target_arch = "x86_64"))]
    {
        let (instructions, branches) = steps::per_iteration(run);
        Some(Executed {
            instructions,
            branches,
        })
    }
    #[cfg(not(all(patching, target_arch = "x86_64")))]
    {
        let _ = run;
        None
    }
}

/// Time of one breakpoint that goes through `SIGTRAP` to a handler which does nothing, ns: the least that a trap can cost.
pub fn trap_ns(count: u32) -> Option<f64> {
    #[cfg(all(patching, target_arch = "x86_64"))]
    return Some(traps::ns(count));
    #[cfg(not(all(patching, target_arch = "x86_64")))]
    {
        let _ = count;
        None
    }
}

/// Stands for the key of [`Rival::run`] among the numbers of sites.
const LOOP: usize = 0;

/// 56 sites (and others) of the crate `static-keys`. There is one in a process, so that nobody executes the sites while they
/// are flipped: that crate asks for it.
#[derive(Debug)]
pub struct Rival(());

impl Rival {
    /// Numbers of sites that can be flipped.
    pub const SITES: [usize; 4] = [1, 8, 56, 512];

    /// The one of this process; `None` the second time, and where that crate is not built.
    pub fn take() -> Option<Self> {
        #[cfg(all(patching, target_arch = "x86_64"))]
        return rival::take().then_some(Self(()));
        #[cfg(not(all(patching, target_arch = "x86_64")))]
        None
    }

    /// Flips all sites of that key. Does nothing for a number that is not in [`Rival::SITES`].
    pub fn set(&mut self, sites: usize, on: bool) {
        #[cfg(all(patching, target_arch = "x86_64"))]
        // SAFETY: the borrow is exclusive, and the sites are executed by `execute` and `run` alone, which borrow as well.
        unsafe {
            rival::set(sites, on);
        }
        #[cfg(not(all(patching, target_arch = "x86_64")))]
        let _ = (sites, on);
    }

    /// How many of the sites say that they are on.
    pub fn execute(&self, sites: usize) -> u32 {
        #[cfg(all(patching, target_arch = "x86_64"))]
        return rival::execute(sites);
        #[cfg(not(all(patching, target_arch = "x86_64")))]
        {
            let _ = sites;
            0
        }
    }

    /// A loop with one site in it; returns how often it was on.
    pub fn run(&self, iterations: u64) -> u64 {
        #[cfg(all(patching, target_arch = "x86_64"))]
        return rival::run(iterations);
        #[cfg(not(all(patching, target_arch = "x86_64")))]
        {
            let _ = iterations;
            0
        }
    }

    /// Flips the site of [`Rival::run`].
    pub fn set_run(&mut self, on: bool) {
        self.set(LOOP, on);
    }
}
