//! What cgroups get beside their siblings: with whom a service has to share a CPU, and how, is a part of its load.
//!
//! Noted are the cgroups that have tasks and those above them, at first, once a second, and at the end, when those are looked for that were made
//! meanwhile. A cgroup of version 2 without a `cpu.weight` is no group of the scheduler, and has none.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use quotient_core::{Nanos, Weight};
use quotient_trace::NotedWeight;

use super::limit::{LOOKS, clock};
use super::members::Hierarchy;

/// What weight 100 is in `cpu.shares` of version 1.
const SHARES: u64 = 1_024;

/// Looks after weights.
pub(super) struct Weights {
    /// By path; `None` of what is no group of the scheduler.
    known: BTreeMap<String, Option<Share>>,
    next: Instant,
    changes: Vec<NotedWeight>,
}

/// Changes that are kept. Default 16,384: a limit for somebody who writes weights all the time.
const CHANGES_MAX: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    weight: Weight,
    idle: bool,
}

impl Share {
    /// That of a cgroup's folder, in either version.
    fn of_folder(folder: &Path) -> Option<Share> {
        let number = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let shares = || Some((number("cpu.shares")?.saturating_mul(100) + SHARES / 2) / SHARES);
        let weight = number("cpu.weight").or_else(shares)?;
        // An idle one reads 0, and version 1 goes beyond both ends.
        let bounds = u64::from(Weight::MIN.get())..=u64::from(Weight::MAX.get());
        let weight = weight.clamp(*bounds.start(), *bounds.end());
        Some(Share {
            weight: u32::try_from(weight)
                .ok()
                .and_then(|weight| Weight::new(weight).ok())?,
            idle: number("cpu.idle") == Some(1),
        })
    }

    fn noted(self, cgroup: &str, at: Option<Nanos>) -> NotedWeight {
        NotedWeight {
            at,
            cgroup: cgroup.to_owned(),
            weight: self.weight.get(),
            idle: self.idle,
        }
    }
}

impl Weights {
    /// Those of these cgroups and of all above them, as they are now.
    pub(super) fn now<'a>(
        hierarchy: &Hierarchy,
        paths: impl Iterator<Item = &'a str>,
        now: Instant,
    ) -> Weights {
        let mut weights = Weights {
            known: BTreeMap::new(),
            next: now + LOOKS,
            changes: Vec::new(),
        };
        weights.add(hierarchy, paths);
        weights
    }

    /// Adds those that are not known yet; which.
    fn add<'a>(
        &mut self,
        hierarchy: &Hierarchy,
        paths: impl Iterator<Item = &'a str>,
    ) -> Vec<String> {
        let mut added = Vec::new();
        for path in paths {
            let mut path = path.trim_matches('/');
            while !path.is_empty() && !self.known.contains_key(path) {
                let folder = hierarchy.folder(path);
                let share = folder.and_then(|folder| Share::of_folder(&folder));
                self.known.insert(path.to_owned(), share);
                added.push(path.to_owned());
                path = path.rsplit_once('/').map_or("", |(above, _)| above);
            }
        }
        added
    }

    /// As the trace notes those at first.
    pub(super) fn noted(&self) -> impl Iterator<Item = NotedWeight> {
        let known = self.known.iter();
        known.filter_map(|(path, share)| Some((*share)?.noted(path, None)))
    }

    /// Notes those that are others now, if it is time to look.
    pub(super) fn look(&mut self, hierarchy: &Hierarchy, now: Instant) {
        if now >= self.next {
            self.next = now + LOOKS;
            self.look_now(hierarchy);
        }
    }

    /// The same for the last time, with those of cgroups that are new among these.
    pub(super) fn look_at_last<'a>(
        &mut self,
        hierarchy: &Hierarchy,
        paths: impl Iterator<Item = &'a str>,
    ) {
        self.look_now(hierarchy);
        let at = clock();
        for path in self.add(hierarchy, paths) {
            let share = self.known.get(&path).copied().flatten();
            self.change(&path, share, at);
        }
    }

    fn look_now(&mut self, hierarchy: &Hierarchy) {
        let at = clock();
        let mut changed = Vec::new();
        for (path, known) in &mut self.known {
            let folder = hierarchy.folder(path);
            let share = folder.and_then(|folder| Share::of_folder(&folder));
            // One that is gone was what it was.
            if share.is_some() && share != *known {
                *known = share;
                changed.push((path.clone(), share));
            }
        }
        for (path, share) in changed {
            self.change(&path, share, at);
        }
    }

    fn change(&mut self, path: &str, share: Option<Share>, at: Nanos) {
        if let Some(share) = share
            && self.changes.len() < CHANGES_MAX
        {
            self.changes.push(share.noted(path, Some(at)));
        }
    }

    /// What was seen later.
    pub(super) fn changes(&self) -> &[NotedWeight] {
        &self.changes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn weights_of_both_versions_are_noted_with_those_above_and_when_they_change() {
        let root = std::env::temp_dir().join(format!("quotient-weight-{}", std::process::id()));
        for folder in ["a/web", "b", "c", "d"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let hierarchy = Hierarchy::at(&root);
        let write = |file: &str, text: &str| fs::write(root.join(file), text).unwrap();
        write("a/cpu.weight", "300\n");
        write("a/cpu.idle", "0\n");
        write("a/web/cpu.weight", "0\n");
        write("a/web/cpu.idle", "1\n");
        write("b/cpu.shares", "512\n");
        write("d/cpu.shares", "2\n");
        let begin = Instant::now();
        let mut weights = Weights::now(&hierarchy, ["a/web", "b", "c", ""].into_iter(), begin);
        let noted: Vec<String> = weights.noted().map(|noted| noted.to_string()).collect();
        assert_eq!(
            noted,
            [
                "# weight of /a: 300",
                "# weight of /a/web: 1, idle",
                "# weight of /b: 50"
            ]
        );
        write("b/cpu.shares", "2048\n");
        fs::remove_file(root.join("a/cpu.weight")).unwrap();
        weights.look(&hierarchy, begin + Duration::from_millis(10));
        assert_eq!(weights.changes(), []);
        weights.look(&hierarchy, begin + Duration::from_millis(1_010));
        weights.look_at_last(&hierarchy, ["b", "d"].into_iter());
        let changes = weights.changes().iter();
        let changes: Vec<(&str, u32, bool)> = changes
            .map(|noted| (noted.cgroup.as_str(), noted.weight, noted.at.is_some()))
            .collect();
        assert_eq!(changes, [("b", 200, true), ("d", 1, true)]);
        fs::remove_dir_all(&root).unwrap();
    }
}
