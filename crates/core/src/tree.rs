//! The group tree: creating, finding and removing groups, and telling the CPUs what changed.

use crate::bandwidth::Timers;
use crate::config::Config;
use crate::error::GroupError;
use crate::group::{Birth, Group};
use crate::load_average::{LiveRules, SumRules, UpdateMode};
use crate::units::Nanos;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All groups of one scheduler. A clone is another handle to the same tree.
#[derive(Clone)]
pub struct GroupTree {
    shared: Arc<Shared>,
}

struct Shared {
    root: Arc<Group>,
    registry: Mutex<Registry>,
}

/// Every live group by id. Held apart from the groups, so that groups and tree own each other in one direction only.
struct Registry {
    groups: Vec<Option<Arc<Group>>>,
    generations: Vec<u32>,
    free: BinaryHeap<core::cmp::Reverse<u32>>,
}

/// Changes of live groups (weight, idleness, removal), which every CPU follows at its own pace.
pub(crate) struct Changes {
    pub(crate) config: Config,
    count: AtomicU64,
    recent: Mutex<VecDeque<u32>>,
    /// How load averages are summed over CPUs.
    pub(crate) load_rules: LiveRules,
    /// The bandwidth timers of all groups.
    pub(crate) timers: Timers,
    /// Held while a limit is changed: one change at a time.
    limits: Mutex<()>,
}

/// How many changes are kept one by one; a CPU that is further behind looks at all its groups instead.
const CHANGES_KEPT_MAX: usize = 256;

impl Changes {
    fn new(config: Config) -> Changes {
        Changes {
            config,
            count: AtomicU64::new(0),
            recent: Mutex::default(),
            load_rules: LiveRules::new(SumRules::new(
                UpdateMode::default(),
                1,
                Nanos::from_millis(1),
            )),
            timers: Timers::default(),
            limits: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nobody else change a limit. Never taken with a pool locked.
    pub(crate) fn lock_limits(&self) -> MutexGuard<'_, ()> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the group `id` changed; the change itself must have been stored before.
    pub(crate) fn record(&self, id: u32) {
        let mut recent = self.lock();
        if recent.len() == CHANGES_KEPT_MAX {
            recent.pop_front();
        }
        recent.push_back(id);
        // Under the lock, so that the count always matches the list. Release publishes the change itself.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Changes so far: one load, for the caller to compare with what it has seen.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The count now and the ids changed since `seen`, or `None` for them if they are no longer all known.
    pub(crate) fn since(&self, seen: u64) -> (u64, Option<Vec<u32>>) {
        let recent = self.lock();
        let count = self.count.load(Ordering::Acquire);
        let missed = usize::try_from(count.wrapping_sub(seen)).unwrap_or(usize::MAX);
        let known = recent.len().checked_sub(missed);
        (
            count,
            known.map(|skip| recent.iter().skip(skip).copied().collect()),
        )
    }
}

impl GroupTree {
    /// Longest name of a group, bytes (as file names).
    pub const NAME_LENGTH_MAX: usize = 255;
    /// Longest path, bytes (as file paths).
    pub const PATH_LENGTH_MAX: usize = 4096;
    /// Deepest level below the root. Every charge visits each level once a slice, so depth is not free.
    pub const DEPTH_MAX: usize = 64;

    /// A tree with only the root group.
    ///
    /// Takes the configuration as it is: call [`Config::validate`] on what a user wrote first. Out-of-range values
    /// make for bad scheduling, not for panics.
    pub fn new(config: Config) -> GroupTree {
        let changes = Arc::new(Changes::new(config));
        let birth = Birth {
            id: 0,
            generation: 0,
            parent: None,
            name: "".into(),
            changes,
        };
        let root = Arc::new(Group::new(birth));
        let registry = Registry {
            groups: vec![Some(Arc::clone(&root))],
            generations: vec![0],
            free: BinaryHeap::new(),
        };
        GroupTree {
            shared: Arc::new(Shared {
                root,
                registry: Mutex::new(registry),
            }),
        }
    }

    /// The configuration shared by all CPUs.
    pub fn config(&self) -> &Config {
        self.shared.root.config()
    }

    /// How load averages are summed over CPUs; can be changed at any time.
    pub fn load_rules(&self) -> &LiveRules {
        &self.shared.root.changes().load_rules
    }

    /// The group that everything descends from. It cannot be removed.
    pub fn root(&self) -> Arc<Group> {
        Arc::clone(&self.shared.root)
    }

    pub(crate) fn root_ref(&self) -> &Arc<Group> {
        &self.shared.root
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Nothing under this lock panics on any input; were it to, the registry is still a valid set of groups.
        self.shared
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of live groups, the root included.
    pub fn len(&self) -> usize {
        let registry = self.registry();
        registry.groups.len() - registry.free.len()
    }

    /// Never true: there is always the root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Creates a child of `parent`. O(log children).
    ///
    /// # Errors
    /// A bad name, a name taken, a removed parent, or too deep a level.
    pub fn create(&self, parent: &Arc<Group>, name: &str) -> Result<Arc<Group>, GroupError> {
        check_segment(name, name)?;
        self.create_checked(&mut self.registry(), parent, name)
    }

    fn create_checked(
        &self,
        registry: &mut Registry,
        parent: &Arc<Group>,
        name: &str,
    ) -> Result<Arc<Group>, GroupError> {
        let path_length = parent.path().len() + 1 + name.len();
        if path_length > Self::PATH_LENGTH_MAX {
            return Err(GroupError::PathTooLong {
                length: path_length,
                max: Self::PATH_LENGTH_MAX,
            });
        }
        let depth = parent.depth() + 1;
        if depth > Self::DEPTH_MAX {
            return Err(GroupError::TooDeep {
                depth,
                max: Self::DEPTH_MAX,
            });
        }
        // Removal happens under the registry's lock too, so the answer holds until the child is in.
        if parent.is_removed() {
            return Err(GroupError::Removed {
                path: parent.path().into(),
            });
        }
        let mut children = parent.lock_children();
        if let Some(group) = children.get(name).and_then(std::sync::Weak::upgrade) {
            return Err(GroupError::Exists {
                path: group.path().into(),
            });
        }
        let (id, generation) = registry.reserve();
        let birth = Birth {
            id,
            generation,
            parent: Some(Arc::clone(parent)),
            name: name.into(),
            changes: Arc::clone(parent.changes()),
        };
        let group = Arc::new(Group::new(birth));
        children.insert(name.into(), Arc::downgrade(&group));
        registry.groups[id as usize] = Some(Arc::clone(&group));
        Ok(group)
    }

    /// The group of that path, created together with its missing ancestors if need be. O(depth x log children).
    ///
    /// # Errors
    /// As [`GroupTree::create`], and for an empty or absolute path. Either all missing groups are created or none.
    pub fn group(&self, path: &str) -> Result<Arc<Group>, GroupError> {
        check_path(path)?;
        let mut registry = self.registry();
        let mut group = self.root();
        for name in path.split('/') {
            let child = group
                .lock_children()
                .get(name)
                .and_then(std::sync::Weak::upgrade);
            group = match child {
                Some(child) => child,
                // The path was checked as a whole, so no later segment can fail.
                None => self.create_checked(&mut registry, &group, name)?,
            };
        }
        Ok(group)
    }

    /// Whether `path` could name a group, without looking for it. O(length).
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn check_path(path: &str) -> Result<(), GroupError> {
        check_path(path)
    }

    /// The group of that path, if it exists.
    ///
    /// # Errors
    /// A bad path, or [`GroupError::Unknown`].
    pub fn find(&self, path: &str) -> Result<Arc<Group>, GroupError> {
        check_path(path)?;
        let mut group = self.root();
        for name in path.split('/') {
            let child = group
                .lock_children()
                .get(name)
                .and_then(std::sync::Weak::upgrade);
            group = child.ok_or_else(|| GroupError::Unknown { path: path.into() })?;
        }
        Ok(group)
    }

    /// Every live group, by id. O(groups).
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.registry().groups.iter().flatten().cloned().collect()
    }

    /// Removes a group. Its sleeping tasks, if any, wake up in the nearest live ancestor.
    ///
    /// # Errors
    /// For the root, a group with children or runnable tasks, or one that was removed before; nothing is changed.
    pub fn remove(&self, group: &Arc<Group>) -> Result<(), GroupError> {
        let path = || group.path().to_string();
        let Some(parent) = group.parent() else {
            return Err(GroupError::Root);
        };
        let mut registry = self.registry();
        let known = registry
            .groups
            .get(group.id() as usize)
            .and_then(Option::as_ref);
        if group.is_removed() || !known.is_some_and(|known| Arc::ptr_eq(known, group)) {
            return Err(GroupError::Removed { path: path() });
        }
        let children = group.lock_children().len();
        if children > 0 {
            return Err(GroupError::HasChildren {
                path: path(),
                children,
            });
        }
        let runnable = group.runnable();
        if runnable > 0 {
            return Err(GroupError::HasRunnable {
                path: path(),
                runnable,
            });
        }
        take_out(&mut registry, parent, group);
        Ok(())
    }

    /// As [`GroupTree::remove`] that has looked just before a task came.
    #[cfg(test)]
    pub(crate) fn remove_with_tasks(&self, group: &Arc<Group>) {
        let parent = group.parent().expect("the root stays");
        take_out(&mut self.registry(), parent, group);
    }
}

fn take_out(registry: &mut Registry, parent: &Group, group: &Group) {
    group.mark_removed();
    parent.lock_children().remove(group.name());
    registry.release(group.id());
}

impl Registry {
    fn reserve(&mut self) -> (u32, u32) {
        if let Some(core::cmp::Reverse(id)) = self.free.pop() {
            self.generations[id as usize] = self.generations[id as usize].wrapping_add(1);
            return (id, self.generations[id as usize]);
        }
        let id = u32::try_from(self.groups.len()).expect("memory ends long before 2^32 groups");
        self.groups.push(None);
        self.generations.push(0);
        (id, 0)
    }

    fn release(&mut self, id: u32) {
        self.groups[id as usize] = None;
        self.free.push(core::cmp::Reverse(id));
    }
}

fn check_segment(path: &str, segment: &str) -> Result<(), GroupError> {
    if path.is_empty() {
        return Err(GroupError::Empty);
    }
    let bad = segment.is_empty()
        || segment == "."
        || segment == ".."
        || segment.contains(|letter| letter == '/' || breaks_lines(letter));
    if bad {
        return Err(GroupError::BadSegment {
            path: path.into(),
            segment: segment.into(),
        });
    }
    let (length, max) = (segment.len(), GroupTree::NAME_LENGTH_MAX);
    if length > max {
        return Err(GroupError::NameTooLong { length, max });
    }
    Ok(())
}

/// Whether a name with this letter could forge lines of a log, a table or a trace, or steer a terminal. The kernel refuses names of
/// cgroups for the first of them, the newline.
fn breaks_lines(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

fn check_path(path: &str) -> Result<(), GroupError> {
    if path.is_empty() {
        return Err(GroupError::Empty);
    }
    let (length, max) = (path.len(), GroupTree::PATH_LENGTH_MAX);
    if length > max {
        return Err(GroupError::PathTooLong { length, max });
    }
    if path.starts_with('/') {
        return Err(GroupError::Absolute { path: path.into() });
    }
    let depth = path.split('/').count();
    if depth > GroupTree::DEPTH_MAX {
        return Err(GroupError::TooDeep {
            depth,
            max: GroupTree::DEPTH_MAX,
        });
    }
    path.split('/')
        .try_for_each(|segment| check_segment(path, segment))
}

impl fmt::Debug for GroupTree {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GroupTree")
            .field("groups", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_created_once_and_found_again() {
        let tree = GroupTree::new(Config::new(1));
        let leaf = tree.group("a/b/c").unwrap();
        assert_eq!(
            (leaf.path(), leaf.name(), leaf.depth(), tree.len()),
            ("a/b/c", "c", 3, 4)
        );
        assert!(Arc::ptr_eq(&leaf, &tree.group("a/b/c").unwrap()));
        assert!(Arc::ptr_eq(&leaf, &tree.find("a/b/c").unwrap()));
        assert_eq!(
            tree.find("a/x").unwrap_err(),
            GroupError::Unknown { path: "a/x".into() }
        );
        assert_eq!(
            tree.create(&tree.root(), "a").unwrap_err(),
            GroupError::Exists { path: "a".into() }
        );
    }

    #[test]
    fn bad_paths_change_nothing() {
        let tree = GroupTree::new(Config::new(1));
        let long = "x".repeat(256);
        let deep = vec!["d"; 65].join("/");
        let huge = "y/".repeat(3000);
        for path in [
            "", "/a", "a//b", "a/", "a/../b", "./a", "a\0", &long, &deep, &huge,
        ] {
            assert!(tree.group(path).is_err(), "{path:?}");
        }
        assert_eq!(tree.len(), 1);
    }

    /// Names go to logs, tables, traces and terminals as they are: what they may hold is decided here, once.
    #[test]
    fn a_name_forges_lines() {
        let tree = GroupTree::new(Config::new(1));
        for letter in [
            '\n', '\r', '\t', '\u{b}', '\u{1b}', '\u{7f}', '\u{85}', '\u{2028}', '\u{2029}',
        ] {
            let name = format!("a{letter}b");
            let path = format!("t/{name}");
            let bad = |path: &str| GroupError::BadSegment {
                path: path.into(),
                segment: name.clone(),
            };
            let error = tree.group(&path).unwrap_err();
            assert_eq!(error, bad(&path));
            assert_eq!(tree.create(&tree.root(), &name).unwrap_err(), bad(&name));
            let said = error.to_string();
            assert!(!said.contains(letter), "{said:?} says it as it is");
        }
        assert_eq!(tree.len(), 1);
        tree.group("Köln/東京/a b/naïve-🙂").unwrap();
    }

    #[test]
    fn removal_frees_the_id_for_another_generation() {
        let tree = GroupTree::new(Config::new(1));
        let parent = tree.group("a").unwrap();
        let child = tree.group("a/b").unwrap();
        assert_eq!(tree.remove(&tree.root()), Err(GroupError::Root));
        assert!(matches!(
            tree.remove(&parent),
            Err(GroupError::HasChildren { children: 1, .. })
        ));
        assert_eq!(tree.remove(&child), Ok(()));
        assert!(child.is_removed());
        assert!(matches!(
            tree.remove(&child),
            Err(GroupError::Removed { .. })
        ));
        assert!(matches!(
            tree.create(&child, "x"),
            Err(GroupError::Removed { .. })
        ));
        let next = tree.group("a/c").unwrap();
        assert_eq!((next.id(), next.generation()), (child.id(), 1));
        assert!(!next.is_removed());
    }
}
