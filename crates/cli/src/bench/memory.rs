//! How much memory this process holds.

use crate::failure::Failure;

/// Resident bytes, from `/proc/self/status`; includes everything: tasks, queues, and what the allocator keeps.
///
/// # Errors
/// Where there is no such file: not on Linux.
pub fn resident_bytes() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(Failure::during("resident memory is only known on Linux"))?;
    parse(&status).ok_or_else(|| Failure::Run("no VmRSS in /proc/self/status".into()))
}

fn parse(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_kernel_counts_in_units_of_1024() {
        assert_eq!(
            parse("Name:\tx\nVmHWM:\t   9 kB\nVmRSS:\t   12 kB\n"),
            Some(12_288)
        );
        assert_eq!(parse("Name:\tx\n"), None);
    }
}
