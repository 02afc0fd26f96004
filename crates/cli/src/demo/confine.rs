//! Which CPUs the demo's processes may use (Linux; elsewhere the operating system decides).
//!
//! The server gets as many CPUs as it has workers, in every mode, like a container with a fixed number of CPUs. Without
//! that, the second runtime of `two-runtimes` would simply take CPUs that the other modes do not have, the client's among
//! them. The client keeps away from the server's CPUs as long as there are others.

use std::io;

/// Keeps this process, and the threads it starts from now on, on the last `count` of the CPUs it may use. Does nothing
/// where that is not supported or there are no more CPUs than that.
///
/// # Errors
/// When the operating system refuses.
pub fn to_last(count: u32) -> io::Result<()> {
    imp::confine(count as usize, true)
}

/// Keeps this process off the last `count` of the CPUs it may use, if there are others.
///
/// # Errors
/// When the operating system refuses.
pub fn off_last(count: u32) -> io::Result<()> {
    imp::confine(count as usize, false)
}

/// Whether processes can be confined here.
pub const SUPPORTED: bool = cfg!(target_os = "linux");

#[cfg(target_os = "linux")]
mod imp {
    use std::io;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub fn confine(count: usize, to_last: bool) -> io::Result<()> {
        let allowed = sched_getaffinity(None)?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| allowed.is_set(*cpu))
            .collect();
        if count >= cpus.len() {
            return Ok(());
        }
        let (first, last) = cpus.split_at(cpus.len() - count);
        let mut chosen = CpuSet::new();
        for cpu in if to_last { last } else { first } {
            chosen.set(*cpu);
        }
        Ok(sched_setaffinity(None, &chosen)?)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn both_halves_are_disjoint_and_nonempty() {
            let allowed = sched_getaffinity(None).expect("own affinity");
            let set_of = |to_last| {
                std::thread::spawn(move || {
                    confine(1, to_last).expect("a subset of what is allowed");
                    sched_getaffinity(None).expect("own affinity")
                })
                .join()
                .expect("no panic")
            };
            let (server, client) = (set_of(true), set_of(false));
            assert!(server.count() >= 1 && client.count() >= 1);
            if allowed.count() > 1 {
                assert_eq!(server.count(), 1);
                assert!(
                    (0..CpuSet::MAX_CPU).all(|cpu| !(server.is_set(cpu) && client.is_set(cpu)))
                );
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub fn confine(_count: usize, _to_last: bool) -> std::io::Result<()> {
        Ok(())
    }
}
