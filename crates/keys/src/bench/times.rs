//! The system call `times`, which no safe crate offers.

/// CPU time of the process by `times(2)`, user and system together. Unit: clock ticks, of which there are 100 a second on
/// every Linux. `None` if the call fails, which it does not with a good address.
#[cfg(unix)]
pub fn process_times() -> Option<u64> {
    let mut times = std::mem::MaybeUninit::<libc::tms>::zeroed();
    // SAFETY: the address is that of a `tms` of ours, which the call fills and does not keep.
    let since = unsafe { libc::times(times.as_mut_ptr()) };
    // Signed on some systems only.
    if since as i64 == -1 {
        return None;
    }
    // SAFETY: all bytes are initialised, by zeroing at the latest, and any bytes make a `tms` of integers.
    let times = unsafe { times.assume_init() };
    u64::try_from(times.tms_utime + times.tms_stime).ok()
}

/// There is no such call here.
#[cfg(not(unix))]
pub fn process_times() -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn does_not_go_back() {
        let first = process_times().unwrap();
        assert!(process_times().unwrap() >= first);
    }
}
