//! The kernel's cgroup cpu controller, version 1 or 2: finding it, and groups that clean up behind themselves.
//!
//! All groups of a run live below one base group named after this process. Threads, not processes, are moved: version 1
//! takes them in `tasks`, version 2 in `cgroup.threads` of a threaded group, for which the process itself must first
//! move into the base group (and moves home at the end). A killed run leaves empty groups behind; the next run removes
//! those whose process is gone.

mod files;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub use self::files::{Counters, Version};
use crate::Problem;
use crate::scenario::Cap;

/// Names of base groups: this and the number of the process.
const BASE_PREFIX: &str = "quotient-validation-";
/// How often removing a group is tried: threads that have ended leave their group a little later.
const REMOVE_TRIES: u32 = 100;
/// Pause between two tries.
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

/// A cgroup cpu controller that we may use.
#[derive(Clone, Debug)]
pub struct Controller {
    version: Version,
    /// Where base groups are made.
    root: PathBuf,
    /// Version 2: the group that this process came from.
    home: Option<PathBuf>,
}

impl Controller {
    /// Looks for the controller, removes what killed runs left, and tries to make a group.
    ///
    /// # Errors
    /// [`Problem::Unavailable`] with the reason: not Linux, not root, no cpu controller mounted, or not writable.
    pub fn find() -> Result<Self, Problem> {
        check_root()?;
        let unavailable = |what: &'static str| {
            move |error: io::Error| Problem::Unavailable(format!("{what}: {error}"))
        };
        let mounts = fs::read_to_string("/proc/self/mounts")
            .map_err(unavailable("cannot read the mounts"))?;
        let own = fs::read_to_string("/proc/self/cgroup")
            .map_err(unavailable("cannot read the own control groups"))?;
        let controller = Self::choose(&mounts, &own)?;
        controller.remove_leftovers();
        // The only honest test of permission.
        drop(controller.base()?);
        Ok(controller)
    }

    /// Version 1 or 2, as the files read.
    pub fn version(&self) -> Version {
        self.version
    }

    fn choose(mounts: &str, own: &str) -> Result<Self, Problem> {
        if let Some(mount) = files::v1_mount(mounts) {
            let below = files::own_path(own, "cpu").unwrap_or_default();
            let inside = mount.join(below.trim_start_matches('/'));
            // A container may show a path that it cannot see.
            let root = if inside.is_dir() { inside } else { mount };
            return Ok(Self {
                version: Version::V1,
                root,
                home: None,
            });
        }
        let Some(mount) = files::v2_mount(mounts) else {
            return Err(Problem::Unavailable(
                "no cgroup file system is mounted".into(),
            ));
        };
        let has_cpu = |file: &str| {
            let text = fs::read_to_string(mount.join(file)).unwrap_or_default();
            text.split_whitespace().any(|name| name == "cpu")
        };
        if !has_cpu("cgroup.controllers") {
            return Err(Problem::Unavailable(format!(
                "{} has no cpu controller, and none of version 1 is mounted",
                mount.display()
            )));
        }
        if !has_cpu("cgroup.subtree_control") {
            return Err(Problem::Unavailable(format!(
                "the cpu controller is not passed on: echo +cpu > {}/cgroup.subtree_control",
                mount.display()
            )));
        }
        let below = files::own_path(own, "").unwrap_or_default();
        let home = mount.join(below.trim_start_matches('/'));
        Ok(Self {
            version: Version::V2,
            root: mount,
            home: Some(home),
        })
    }

    /// The base group of this process.
    ///
    /// # Errors
    /// [`Problem::Unavailable`] when the kernel refuses.
    pub fn base(&self) -> Result<Base, Problem> {
        let path = self
            .root
            .join(format!("{BASE_PREFIX}{}", std::process::id()));
        let refused = |error: io::Error| {
            Problem::Unavailable(format!("cannot use {}: {error}", path.display()))
        };
        make(&path).map_err(refused)?;
        let base = Base {
            controller: self.clone(),
            path: path.clone(),
        };
        if self.version == Version::V2 {
            // In this order: with a process inside, a group may pass on only controllers that know threads.
            fs::write(path.join("cgroup.procs"), std::process::id().to_string())
                .map_err(refused)?;
            fs::write(path.join("cgroup.subtree_control"), "+cpu").map_err(refused)?;
        }
        Ok(base)
    }

    /// Removes base groups of processes that are gone. What cannot be removed stays: it is in use, or not ours.
    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(&self.root) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(process) = name
                .to_str()
                .and_then(|name| name.strip_prefix(BASE_PREFIX))
            else {
                continue;
            };
            let alive =
                process.parse::<u32>().is_err() || Path::new("/proc").join(process).exists();
            if !alive {
                remove_tree(&entry.path());
            }
        }
    }
}

/// Creates a group; one that is there already (a recycled process number) will do.
fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Removes a group and those below it, children first. The depth is that of our own scenarios.
fn remove_tree(path: &Path) {
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path());
            }
        }
    }
    // A leftover that the kernel still holds does no harm.
    let _ = fs::remove_dir(path);
}

#[cfg(target_os = "linux")]
fn check_root() -> Result<(), Problem> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(Problem::Unavailable(
            "the kernel's cpu controller needs root".into(),
        ))
    }
}

#[cfg(not(target_os = "linux"))]
fn check_root() -> Result<(), Problem> {
    Err(Problem::Unavailable(
        "only Linux has a cgroup cpu controller".into(),
    ))
}

/// The group of this process below which all others are made. Dropping it moves the process home and removes it.
#[derive(Debug)]
pub struct Base {
    controller: Controller,
    path: PathBuf,
}

impl Base {
    /// Makes the group `path` below the base; parents must exist. `passes_on`: it will have children with limits or
    /// weights of their own.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn group(&self, path: &str, passes_on: bool) -> Result<Cgroup, Problem> {
        let group = Cgroup {
            version: self.controller.version,
            path: self.path.join(path),
        };
        let refused = Problem::during::<io::Error>(format!("cannot make {}", group.path.display()));
        let made = make(&group.path).and_then(|()| match group.version {
            Version::V1 => Ok(()),
            Version::V2 => {
                fs::write(group.path.join("cgroup.type"), "threaded")?;
                if passes_on {
                    fs::write(group.path.join("cgroup.subtree_control"), "+cpu")?;
                }
                Ok(())
            }
        });
        made.map_err(refused)?;
        Ok(group)
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Some(home) = &self.controller.home {
            // If that fails the group cannot be removed either; the next run does it.
            let _ = fs::write(home.join("cgroup.procs"), std::process::id().to_string());
        }
        remove_patiently(&self.path);
    }
}

fn remove_patiently(path: &Path) {
    for _ in 0..REMOVE_TRIES {
        match fs::remove_dir(path) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => thread::sleep(REMOVE_PAUSE),
        }
    }
}

/// One group of the kernel's. Dropping it removes it; its threads must have ended by then.
#[derive(Debug)]
pub struct Cgroup {
    version: Version,
    path: PathBuf,
}

impl Cgroup {
    /// Sets the weight, 1..=10000; version 1 gets the shares it stands for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_weight(&self, weight: u32) -> Result<(), Problem> {
        let (file, text) = files::weight(self.version, weight);
        self.write(file, &text)
    }

    /// Sets the cap, or lifts it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_cap(&self, cap: Option<Cap>) -> Result<(), Problem> {
        for (file, text) in files::cap(self.version, cap) {
            self.write(file, &text)?;
        }
        Ok(())
    }

    /// Sets the burst. Kernels before 5.14 have none.
    ///
    /// # Errors
    /// When the kernel has no such file, or refuses.
    pub fn set_burst(&self, burst: Duration) -> Result<(), Problem> {
        let (file, text) = files::burst(self.version, burst);
        self.write(file, &text)
    }

    /// Whether the kernel knows bursts.
    pub fn has_burst(&self) -> bool {
        let (file, _) = files::burst(self.version, Duration::ZERO);
        self.path.join(file).exists()
    }

    /// Moves the calling thread into the group.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self) -> Result<(), Problem> {
        // 0 is the writer itself.
        self.write(files::threads(self.version), "0")
    }

    /// The counters of its bandwidth control; zero without a limit.
    ///
    /// # Errors
    /// When `cpu.stat` cannot be read.
    pub fn counters(&self) -> Result<Counters, Problem> {
        let path = self.path.join("cpu.stat");
        let text = fs::read_to_string(&path)
            .map_err(Problem::during(format!("cannot read {}", path.display())))?;
        Ok(Counters::parse(self.version, &text))
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Problem> {
        let path = self.path.join(file);
        fs::write(&path, text).map_err(Problem::during(format!(
            "cannot write {text:?} to {}",
            path.display()
        )))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove_patiently(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_controller_the_reason_is_said() {
        let reason = |mounts: &str| {
            Controller::choose(mounts, "0::/\n")
                .expect_err("nothing is mounted there")
                .to_string()
        };
        assert!(reason("proc /proc proc rw 0 0\n").contains("no cgroup file system"));
        let folder = std::env::temp_dir().join(format!("quotient-cgroup-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder in the temporary directory");
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", folder.display());
        assert!(reason(&mounts).contains("no cpu controller"));
        fs::write(folder.join("cgroup.controllers"), "memory cpu io\n").expect("own folder");
        assert!(reason(&mounts).contains("+cpu"));
        fs::write(folder.join("cgroup.subtree_control"), "cpu\n").expect("own folder");
        let found = Controller::choose(&mounts, "0::/\n").expect("now all is there");
        assert_eq!(found.version, Version::V2);
        fs::remove_dir_all(&folder).expect("own folder");
    }

    #[test]
    fn groups_clean_up_behind_themselves_where_there_is_a_controller() {
        let Ok(controller) = Controller::find() else {
            return;
        };
        let (base_path, path);
        {
            let base = controller.base().expect("it could be made a moment ago");
            let group = base.group("capped", false).expect("below the base");
            (base_path, path) = (base.path.clone(), group.path.clone());
            group.set_cap(Some(Cap::ms(50, 100))).expect("in range");
            group.set_weight(300).expect("in range");
            assert!(group.set_cap(Some(Cap::ms(0, 100))).is_err(), "no quota");
            assert_eq!(group.counters().expect("readable").nr_throttled, 0);
            assert!(path.is_dir());
        }
        assert!(!path.exists() && !base_path.exists());
    }
}
