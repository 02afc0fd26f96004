//! Who was in which cgroup when a recording began: a running service is never seen entering its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quotient_sim::replay::{Family, is_within};
use quotient_trace::{Definition, GroupId, GroupInfo, TaskId, TaskInfo};

/// Numbers for cgroups whose folder cannot be seen: above those of the kernel, which counts from 1.
const UNSEEN: u32 = 1 << 31;

/// The first process, to which those go whose maker has ended, and the maker of the kernel's threads: nobody is theirs because of that.
const ADOPTS_MAX: u32 = 2;

/// The cgroup hierarchy whose limits count: the one with the controller `cpu`, or the only one (version 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// The kernel's number of it: 0 for version 2.
    pub(super) number: u32,
    /// Where its folders are, if anywhere.
    mount: Option<PathBuf>,
}

impl Hierarchy {
    /// Of this machine.
    pub(super) fn here() -> Hierarchy {
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Hierarchy::of(&cgroups, &mounts)
    }

    /// With its folders below that one: for tests.
    #[cfg(test)]
    pub(super) fn at(mount: &Path) -> Hierarchy {
        Hierarchy {
            number: 0,
            mount: Some(mount.to_owned()),
        }
    }

    fn of(cgroups: &str, mounts: &str) -> Hierarchy {
        let has_cpu = |line: &&str| {
            let controllers = line.split(':').nth(1).unwrap_or("");
            controllers.split(',').any(|name| name == "cpu")
        };
        let number = cgroups
            .lines()
            .find(has_cpu)
            .and_then(|line| line.split(':').next()?.parse().ok())
            .unwrap_or(0);
        // "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
        let mount = mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let kind = after.split(' ').next()?;
            let options = after.split(' ').next_back()?;
            let is_it = if number == 0 {
                kind == "cgroup2"
            } else {
                kind == "cgroup" && options.split(',').any(|name| name == "cpu")
            };
            is_it.then(|| PathBuf::from(before.split(' ').nth(4).unwrap_or("/")))
        });
        Hierarchy { number, mount }
    }

    /// The path of a task's cgroup in it, by the text of its `cgroup` file; without the slash at its begin.
    fn path<'a>(&self, cgroups: &'a str) -> Option<&'a str> {
        cgroups.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (_, path) = rest.split_once(':')?;
            (number.parse() == Ok(self.number)).then(|| path.trim_start_matches('/'))
        })
    }

    /// A cgroup as the kernel names it, if it was given as its folder.
    pub(super) fn within<'a>(&self, asked: &'a str) -> &'a str {
        let mount = self.mount.as_ref().and_then(|mount| mount.to_str());
        let inside = mount.and_then(|mount| asked.strip_prefix(mount));
        let is_whole = |rest: &&str| rest.is_empty() || rest.starts_with('/');
        inside.filter(is_whole).unwrap_or(asked)
    }

    /// The folder of a cgroup.
    pub(super) fn folder(&self, path: &str) -> Option<PathBuf> {
        Some(self.mount.as_ref()?.join(path.trim_matches('/')))
    }
}

/// The threads of this machine with their processes, names and cgroups.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Groups by path, with the kernel's numbers.
    groups: BTreeMap<String, GroupId>,
    tasks: BTreeMap<TaskId, TaskInfo>,
}

impl Members {
    /// Reads `/proc`. Threads that end meanwhile are left out. O(threads).
    pub(super) fn now(hierarchy: &Hierarchy) -> Members {
        let mut members = Members::default();
        for (process, folder) in numbered(Path::new("/proc")) {
            let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
            let parent = parent_in(&status);
            for (thread, folder) in numbered(&folder.join("task")) {
                let text = |file| fs::read_to_string(folder.join(file)).ok();
                if let (Some(name), Some(cgroups)) = (text("comm"), text("cgroup")) {
                    let path = hierarchy.path(&cgroups).unwrap_or("");
                    let of = (process, parent);
                    members.add(hierarchy, thread, of, name.trim_end(), path);
                }
            }
        }
        members
    }

    /// With its process and who made that.
    fn add(
        &mut self,
        hierarchy: &Hierarchy,
        thread: u32,
        (process, parent): (u32, Option<TaskId>),
        name: &str,
        path: &str,
    ) {
        let group = if path.is_empty() {
            GroupId::ROOT
        } else if let Some(group) = self.groups.get(path) {
            *group
        } else {
            // The kernel's number of a cgroup is that of its folder: events use it.
            let metadata = hierarchy.folder(path).map(fs::metadata);
            let number = metadata.and_then(|metadata| u32::try_from(metadata.ok()?.ino()).ok());
            let unseen = UNSEEN + self.groups.len() as u32;
            let group = GroupId(number.unwrap_or(unseen));
            self.groups.insert(path.to_owned(), group);
            group
        };
        let info = TaskInfo {
            name: name.to_owned(),
            group: Some(group),
            process: Some(TaskId(process)),
            parent,
            nice: None,
            real_time: None,
        };
        self.tasks.insert(TaskId(thread), info);
    }

    /// Threads of the processes `pids` and of those that these have made, or of these numbers themselves, and those in the cgroup `path` or below it.
    pub(super) fn subjects(&self, pids: &[u32], path: Option<&str>) -> Vec<u32> {
        let is_asked = |known: &str| path.is_some_and(|path| is_within(known, path));
        let groups: BTreeSet<GroupId> = self
            .groups
            .iter()
            .filter(|(known, _)| is_asked(known))
            .map(|(_, id)| *id)
            .collect();
        let mut family = Family::default();
        for (id, info) in &self.tasks {
            family.note(*id, info.process, info.parent);
        }
        self.tasks
            .iter()
            .filter(|(id, info)| {
                family.is_one(**id, pids)
                    || family.descends(**id, pids)
                    || groups.contains(&info.group.unwrap_or_default())
            })
            .map(|(id, _)| id.0)
            .collect()
    }

    /// The cgroup of a process or thread, if it is there.
    pub(super) fn cgroup_of(&self, pid: u32) -> Option<&str> {
        let group = self.tasks.get(&TaskId(pid))?.group?;
        let known = self.groups.iter().find(|(_, id)| **id == group);
        Some(known.map_or("", |(path, _)| path))
    }

    /// The cgroups that have tasks.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// What the trace must say of them, groups first.
    pub(super) fn definitions(self) -> impl Iterator<Item = Definition> {
        let groups = self.groups.into_iter().map(|(path, id)| Definition::Group {
            id,
            info: GroupInfo {
                path,
                parent: GroupId::ROOT,
            },
        });
        let tasks = self.tasks.into_iter();
        groups.chain(tasks.map(|(id, info)| Definition::Task { id, info }))
    }
}

/// Who made a process, by the text of its `status` file; `None` for the kernel's own, and for those whose maker is gone.
fn parent_in(status: &str) -> Option<TaskId> {
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    let parent = parent.trim().parse().ok()?;
    (parent > ADOPTS_MAX).then_some(TaskId(parent))
}

/// The entries of a folder of `/proc` whose name is a number.
fn numbered(folder: &Path) -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn the_hierarchy_is_the_one_whose_limits_count() {
        let first = "4:memory:/x\n1:cpu,cpuacct:/web/a\n0::/user\n";
        let hierarchy = Hierarchy::of(first, MOUNTS);
        assert_eq!(hierarchy.number, 1);
        assert_eq!(hierarchy.path(first), Some("web/a"));
        let folder = hierarchy.folder("web/a").unwrap();
        assert_eq!(folder, Path::new("/sys/fs/cgroup/cpu,cpuacct/web/a"));
        assert_eq!(hierarchy.within("/sys/fs/cgroup/cpu,cpuacct/web"), "/web");
        for path in ["/web/a", "web", "/sys/fs/cgroup/cpu,cpuacctx/web"] {
            assert_eq!(hierarchy.within(path), path);
        }
        let second = Hierarchy::of("0::/user\n", MOUNTS);
        assert_eq!((second.number, second.path("0::/\n")), (0, Some("")));
        assert_eq!(second.folder("/"), Some("/sys/fs/cgroup/unified/".into()));
        assert_eq!(Hierarchy::of("", "").folder("a"), None);
    }

    #[test]
    fn threads_are_found_by_process_by_number_and_by_cgroup() {
        let hierarchy = Hierarchy::of("", "");
        let mut members = Members::default();
        for (thread, process, path) in [(5, 5, "web"), (6, 5, "web/a"), (7, 7, "webs"), (8, 8, "")]
        {
            let parent = (thread == 7).then_some(TaskId(6));
            members.add(&hierarchy, thread, (process, parent), "x", path);
        }
        // What a thread of 5 has made is its as well.
        assert_eq!(members.subjects(&[5], None), [5, 6, 7]);
        assert_eq!(members.subjects(&[7, 8], None), [7, 8]);
        assert_eq!(members.subjects(&[], Some("/web")), [5, 6]);
        assert_eq!(members.subjects(&[], Some("we")), [0; 0]);
        assert_eq!(members.definitions().count(), 3 + 4);
    }

    #[test]
    fn who_was_adopted_is_nobodys_child() {
        for (text, expected) in [
            ("Name:\tx\nPPid:\t77\n", Some(TaskId(77))),
            ("PPid:\t1\n", None),
            ("PPid:\t0\n", None),
            ("", None),
        ] {
            assert_eq!(parent_in(text), expected, "{text:?}");
        }
    }

    #[test]
    fn this_thread_is_a_member() {
        let members = Members::now(&Hierarchy::here());
        let own = std::process::id();
        assert!(members.subjects(&[own], None).contains(&own));
    }
}
