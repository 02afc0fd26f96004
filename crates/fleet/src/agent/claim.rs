//! Which prefixes of which schedulers have a fleet.
//!
//! Two fleets over the same groups would each take the other's limit for the local one, and the smaller of both ratchets down. So `start`
//! claims (scheduler, prefix) before there is a state, and the state lets go of it when it has ended, under its own lock, after its last write.
//! Groups of different prefixes are different groups: each lies directly below one path.
//!
//! The list's lock is taken for a look and a change of the list only, and nothing else is locked or dropped under it.

use std::sync::{Mutex, MutexGuard};

use quotient::{Group, Scheduler};

/// Claims of this process; as many as it has fleets.
static CLAIMS: Mutex<Vec<(Group, String)>> = Mutex::new(Vec::new());

fn claims() -> MutexGuard<'static, Vec<(Group, String)>> {
    CLAIMS.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// One fleet's; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    /// The root group, which is another one for each scheduler.
    root: Group,
    prefix: String,
}

impl Claim {
    /// `None` if another fleet has it. O(fleets of this process).
    pub(super) fn new(scheduler: &Scheduler, prefix: &str) -> Option<Claim> {
        let root = scheduler.root();
        let mut claims = claims();
        if claims
            .iter()
            .any(|(other, of)| *other == root && of == prefix)
        {
            return None;
        }
        claims.push((root.clone(), prefix.to_owned()));
        drop(claims);
        let prefix = prefix.to_owned();
        Some(Claim { root, prefix })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = claims();
        let mine = claims
            .iter()
            .position(|(root, prefix)| *root == self.root && *prefix == self.prefix);
        let claim = mine.map(|index| claims.swap_remove(index));
        drop(claims);
        drop(claim);
    }
}
