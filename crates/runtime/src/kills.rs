//! Which tasks a kill reaches: all that are there, and all that those bring forth.
//!
//! A task that is being polled while its group is killed goes on to the end of its poll, and may spawn. What it spawns must die too,
//! or tasks that spawn their successors outlive every kill. What somebody else spawns into the group afterwards must live: the group
//! stays.
//!
//! # Protocol
//! Kills of one scheduler are numbered from 1. A group keeps the number of the last kill that covered it ([`KilledAt`]). A task has
//! one flag, `killed`; each of its polls notes the last kill that was complete when it began ([`Kills::now`]), its *epoch*.
//! **A poll is of a dead task if the task was flagged before it began, or its group was killed after its epoch.**
//!
//! | kill `n`, one at a time (under `Shared::shape`) | spawn of a child, by a task or from outside |
//! |---|---|
//! | K1 mark every group of the subtree with `n` | S1 read the last complete kill, `c` |
//! | K2 take each list's lock, flag all tasks in it | S2 list the child in its group, under the list's lock |
//! | K3 publish: `n` is complete | S3 the spawner is dead and the group was killed after the *spawner's* epoch, or it was killed after `c`: flag and abort the child |
//! | K4 (without the lock, a part at a time) abort who was flagged | S4 queue the child |
//!
//! Between K2 and K4 the killer may be stopped, for its group's limit or in a freeze. A flagged task that is to be polled meanwhile is aborted by its
//! virtual CPU instead (`local::spawner`), so that a kill that takes long lets nobody go on. Losses are counted at K2, before a flag, since from
//! there on the task may end.
//!
//! *No child of a dead task lives.* Let the spawner be in the subtree and listed at K2, and the child come into the subtree. If the
//! poll's epoch is `n` or later, it began after K3, so it saw the flag: S3 aborts the child. If the epoch is earlier: S2 comes before
//! K2 on the list's lock, then the kill itself flags the child; or after, then S3 sees K1's marks, which are above the epoch. A spawner
//! that was not listed at K2 was itself listed later: its own S3 decided about it, and flagged it before its first poll if it was dead.
//!
//! *No other child dies*, except for a kill that overlaps its spawn: a mark above `c` is of a kill that was not complete at S1.
//!
//! A destructor that is run for the kill belongs to a poll that began after it: flagged, its epoch is taken as just before the last kill
//! of its group. (If a part of the subtree was killed once more in between, what the destructor spawns into the other part lives.)
//!
//! A group that is made inside a killed group takes over the mark (under `Shared::shape`, too), so that there is no way out downwards.
//! A flagged task is not moved; one that is moved is looked at as a new child of its new group, from outside.
//!
//! A poll whose group is removed while its tasks move to the parent spawns as one of the group where they go, which is above: a kill of that covers
//! the task wherever it is listed then.

use crate::primitives::{AtomicU64, Ordering};

/// The kills of one scheduler. 64 bits: they never run out.
#[derive(Debug)]
pub(crate) struct Kills {
    complete: AtomicU64,
}

impl Kills {
    pub(crate) fn new() -> Self {
        Self {
            complete: AtomicU64::new(0),
        }
    }

    /// The last kill that has marked its groups and flagged their tasks. Acquires the flags.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.complete.load(Ordering::Acquire)
    }

    /// K1 to K3: `reach` is told the number, marks the groups and flags the tasks. One caller at a time.
    pub(crate) fn kill<R>(&self, reach: impl FnOnce(u64) -> R) -> R {
        let number = self.complete.load(Ordering::Relaxed) + 1;
        let reached = reach(number);
        self.complete.store(number, Ordering::Release);
        reached
    }
}

/// The last kill that covered a group; 0 for none.
#[derive(Debug)]
pub(crate) struct KilledAt(AtomicU64);

impl KilledAt {
    /// The mark of a new group: its parent's.
    pub(crate) fn inherited(parent: Option<&KilledAt>) -> Self {
        Self(AtomicU64::new(
            parent.map_or(0, |parent| parent.0.load(Ordering::Acquire)),
        ))
    }

    pub(crate) fn mark(&self, kill: u64) {
        self.0.store(kill, Ordering::Release);
    }

    /// Whether the group was killed after the kill of number `epoch` was complete.
    #[inline]
    pub(crate) fn is_after(&self, epoch: u64) -> bool {
        self.0.load(Ordering::Acquire) > epoch
    }

    /// The epoch of a poll of a flagged task of the group: just before its last kill.
    #[cold]
    pub(crate) fn epoch_of_the_dead(&self) -> u64 {
        self.0.load(Ordering::Acquire).saturating_sub(1)
    }
}

/// S3: whether a child must die that found the kills at `now` and is listed in the group of `target`; `spawner` is the group and the
/// epoch of the poll that spawned it, if one did.
#[inline]
pub(crate) fn is_stillborn(target: &KilledAt, now: u64, spawner: Option<(&KilledAt, u64)>) -> bool {
    target.is_after(now)
        || spawner.is_some_and(|(group, epoch)| group.is_after(epoch) && target.is_after(epoch))
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicBool;
    use loom::sync::{Arc, Mutex};

    /// A task as the protocol sees it.
    struct Member {
        group: usize,
        killed: AtomicBool,
    }

    /// Two groups of one subtree and their lists.
    struct World {
        kills: Kills,
        marks: [KilledAt; 2],
        lists: [Mutex<Vec<Arc<Member>>>; 2],
    }

    impl World {
        fn new() -> Self {
            Self {
                kills: Kills::new(),
                marks: [KilledAt::inherited(None), KilledAt::inherited(None)],
                lists: [Mutex::new(Vec::new()), Mutex::new(Vec::new())],
            }
        }

        fn kill(&self) {
            self.kills.kill(|number| {
                for mark in &self.marks {
                    mark.mark(number);
                }
                for list in &self.lists {
                    for task in list.lock().unwrap().iter() {
                        task.killed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }

        /// What `local` notes when a poll begins.
        fn begin(&self, task: &Member) -> u64 {
            let epoch = self.kills.now();
            if task.killed.load(Ordering::Relaxed) {
                return self.marks[task.group].epoch_of_the_dead();
            }
            epoch
        }

        fn spawn(&self, group: usize, spawner: Option<(&Member, u64)>) -> Arc<Member> {
            let now = self.kills.now();
            let child = Arc::new(Member {
                group,
                killed: AtomicBool::new(false),
            });
            self.lists[group].lock().unwrap().push(child.clone());
            let spawner = spawner.map(|(task, epoch)| (&self.marks[task.group], epoch));
            if is_stillborn(&self.marks[group], now, spawner) {
                child.killed.store(true, Ordering::Relaxed);
            }
            child
        }
    }

    fn is_dead(task: &Member) -> bool {
        task.killed.load(Ordering::SeqCst)
    }

    /// A task that spawns its successor into the group beside its own, which spawns its own: nobody outlives the kill.
    #[test]
    fn loom_no_successor_outlives_a_kill() {
        loom::model(|| {
            let world = Arc::new(World::new());
            let first = world.spawn(0, None);
            let bomb = {
                let (world, first) = (world.clone(), first.clone());
                loom::thread::spawn(move || {
                    // A poll, or a destructor that runs after the kill.
                    let epoch = world.begin(&first);
                    let second = world.spawn(1, Some((&first, epoch)));
                    let epoch = world.begin(&second);
                    let third = world.spawn(0, Some((&second, epoch)));
                    (second, third)
                })
            };
            world.kill();
            let (second, third) = bomb.join().unwrap();
            assert!(is_dead(&first));
            assert!(is_dead(&second));
            assert!(is_dead(&third));
        });
    }

    /// What is spawned after a kill has returned lives, from outside and by a task that was spawned so, whatever overlaps.
    #[test]
    fn loom_a_spawn_after_the_kill_lives() {
        loom::model(|| {
            let world = Arc::new(World::new());
            let early = {
                let world = world.clone();
                loom::thread::spawn(move || {
                    let early = world.spawn(0, None);
                    let epoch = world.begin(&early);
                    world.spawn(1, Some((&early, epoch)))
                })
            };
            world.kill();
            let late = world.spawn(0, None);
            let epoch = world.begin(&late);
            let later = world.spawn(1, Some((&late, epoch)));
            assert!(!is_dead(&late), "spawned after the kill");
            assert!(!is_dead(&later), "the child of one that lives");
            early.join().unwrap();
        });
    }
}
