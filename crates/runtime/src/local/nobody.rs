//! Code that is no group's although one pays for it: destructors of what a group has left, which the heir pays for, and wakers that a thread of ours calls.
//!
//! A program's code finds its own group by `Group::current()`. What a tenant leaves behind for others to drop finds none there: it would have theirs, and could
//! lift its limit or spawn into it. (It did: 0.65 CPUs under a limit of 0.1.)

use std::cell::Cell;

thread_local! {
    static IS_NOBODYS: Cell<bool> = const { Cell::new(false) };
}

struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = IS_NOBODYS.try_with(|nobodys| nobodys.set(self.0));
    }
}

/// Runs `act`, which finds no group here, whoever pays.
pub(crate) fn as_nobody<R>(act: impl FnOnce() -> R) -> R {
    let before = IS_NOBODYS.try_with(|nobodys| nobodys.replace(true));
    let _restore = Restore(before.unwrap_or(false));
    act()
}

/// Whether the caller is such code.
pub(super) fn is_nobodys() -> bool {
    IS_NOBODYS.try_with(Cell::get).unwrap_or(false)
}
