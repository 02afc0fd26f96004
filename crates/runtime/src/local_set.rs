//! `!Send` tasks: a local task of tokio's `LocalSet` whose polls are metered and ordered by a group.

use std::future::Future;

use crate::group::Group;
use crate::in_group::InGroupExt;

impl Group {
    /// Spawns a `!Send` future onto the current [`tokio::task::LocalSet`], as a member of the group: `spawn_local` of
    /// [`InGroupExt::in_group`]. It is polled on the local set's thread when its turn among the groups has come.
    ///
    /// # Panics
    /// As `tokio::task::spawn_local`: outside a local set.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        tokio::task::spawn_local(future.in_group(self))
    }
}
