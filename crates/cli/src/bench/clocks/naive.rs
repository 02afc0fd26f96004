//! The clock that the kernel's change removed: a reader brings every thread up to date, one lock after the other.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// One thread's account.
#[derive(Debug)]
struct Account {
    /// Time until `updated`. Unit: nanoseconds.
    used: u64,
    updated: Instant,
}

/// The accounts of all threads, which all run.
#[derive(Debug)]
pub struct Naive {
    accounts: Vec<Mutex<Account>>,
}

impl Naive {
    /// Accounts of `threads` threads that start now.
    pub fn new(threads: usize) -> Self {
        let updated = Instant::now();
        let account = || Mutex::new(Account { used: 0, updated });
        Self {
            accounts: (0..threads).map(|_| account()).collect(),
        }
    }

    /// The sum, with every thread brought up to date. Unit: nanoseconds. O(threads), a lock and a write each.
    pub fn read(&self) -> u64 {
        let now = Instant::now();
        let update = |account: &Mutex<Account>| {
            let mut account = lock(account);
            let more = now.saturating_duration_since(account.updated);
            account.used += u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
            account.updated = account.updated.max(now);
            account.used
        };
        self.accounts.iter().map(update).sum()
    }
}

fn lock(account: &Mutex<Account>) -> MutexGuard<'_, Account> {
    // A panic cannot leave an account half updated.
    account
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_by_the_time_of_every_thread() {
        let naive = Naive::new(3);
        std::thread::sleep(std::time::Duration::from_millis(2));
        let read = naive.read();
        assert!(read >= 6_000_000, "{read}");
        assert!(naive.read() >= read);
    }
}
