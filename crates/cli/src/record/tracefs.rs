//! tracefs: an instance of its own for one recording, set up and taken down again.
//!
//! An *instance* has its own buffers, events and clock, so whoever traces this machine already keeps what he set. It is
//! named after this process; what a killed recorder left behind is removed by the next one.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::failure::Failure;
use crate::output::partial_end;

/// Where tracefs is found: the kernel's own mount point, and the one from before 4.1.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// What begins the name of an instance of ours; the number of its process follows.
const PREFIX: &str = "quotient-";

/// What a recording holds: who runs, who wakes whom, who is made, who ends.
const EVENTS: [&str; 6] = [
    "sched/sched_switch",
    "sched/sched_waking",
    "sched/sched_wakeup_new",
    "sched/sched_migrate_task",
    "sched/sched_process_fork",
    "sched/sched_process_exit",
];

/// Who moves to another cgroup.
const ATTACH: &str = "cgroup/cgroup_attach_task";

/// When a period of a limit begins. Some machines' kernels leave out who runs then ([`Repair`](quotient_trace::Repair)).
const PERIODS: (&str, &str) = (
    "timer/hrtimer_expire_entry",
    "function.function == sched_cfs_period_timer",
);

/// What programs write to the `trace_marker` at the root of tracefs comes here, too: kernels since 6.16 can do that. On older ones a program has
/// to write to `instances/quotient-PID/trace_marker`.
const MARKERS: &str = "options/copy_trace_marker";

/// tracefs, unmounted again when it was mounted for us.
pub(super) struct Tracefs {
    root: PathBuf,
    is_ours: bool,
}

impl Tracefs {
    /// Finds tracefs, or mounts it.
    ///
    /// # Errors
    /// `Usage` with the ways out, where this process may not.
    pub(super) fn find(given: Option<&Path>) -> Result<Tracefs, Failure> {
        let places: Vec<&Path> = match given {
            Some(place) => vec![place],
            None => PLACES.iter().map(Path::new).collect(),
        };
        for place in &places {
            match fs::metadata(place.join("instances")) {
                Ok(_) => {
                    return Ok(Tracefs {
                        root: place.to_path_buf(),
                        is_ours: false,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(refused(place, &error));
                }
                Err(_) => {}
            }
        }
        let place = places[0];
        let mut entries = fs::read_dir(place).map_err(|error| refused(place, &error))?;
        if entries.next().is_some() {
            let hidden =
                io::Error::other("it is no tracefs, and mounting it would hide what is there");
            return Err(refused(place, &hidden));
        }
        mount("tracefs", place, "tracefs", MountFlags::empty(), None)
            .map_err(|error| refused(place, &error.into()))?;
        Ok(Tracefs {
            root: place.to_path_buf(),
            is_ours: true,
        })
    }

    /// Removes instances whose recorder is dead: of no process, or of one that had our number (in a container that is the same each time),
    /// since this one has none yet. Returns what was found, for its owner to be told: it may hold events that he had still wanted.
    fn clean(&self) -> Vec<Stale> {
        let Ok(instances) = fs::read_dir(self.root.join("instances")) else {
            return Vec::new();
        };
        let mut stale = Vec::new();
        let own = std::process::id().to_string();
        for entry in instances.flatten() {
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let is_dead = process
                .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
                .is_some_and(|number| number == own || !Path::new("/proc").join(number).exists());
            if is_dead {
                // Somebody may read from it: then it stays, and costs its buffers.
                let kept = fs::remove_dir(entry.path()).err();
                stale.push(Stale {
                    process: process.and_then(|number| number.parse().ok()),
                    place: entry.path(),
                    kept,
                });
            }
        }
        stale
    }
}

/// What a killed recorder left behind.
pub(super) struct Stale {
    place: PathBuf,
    /// Who was killed.
    process: Option<u32>,
    /// Why it is there still.
    kept: Option<io::Error>,
}

impl Stale {
    /// What the recorder had written so far, in the folder of `out`: removed. In other folders nobody looks for it.
    pub(super) fn remove_partial(&self, out: &Path) -> Vec<PathBuf> {
        let Some(process) = self
            .process
            .filter(|process| *process != std::process::id())
        else {
            return Vec::new();
        };
        let whole = fs::canonicalize(out).unwrap_or_else(|_| out.to_owned());
        let folder = whole.parent().filter(|folder| *folder != Path::new(""));
        let Ok(entries) = fs::read_dir(folder.unwrap_or(Path::new("."))) else {
            return Vec::new();
        };
        let end = partial_end(process);
        let is_its = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.ends_with(&end)) && path.is_file()
        };
        let paths = entries.flatten().map(|entry| entry.path());
        paths
            .filter(is_its)
            .filter(|path| fs::remove_file(path).is_ok())
            .collect()
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.display();
        match &self.kept {
            None => write!(
                f,
                "removed {place}, left behind by a recorder that was killed"
            ),
            Some(error) => write!(
                f,
                "{place}, left behind by a recorder that was killed, stays and costs its buffers: {error}"
            ),
        }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.is_ours {
            // Whoever uses it meanwhile keeps it.
            let _ = unmount(&self.root, UnmountFlags::empty());
        }
    }
}

fn refused(place: &Path, error: &io::Error) -> Failure {
    Failure::Usage(format!(
        "cannot use tracefs at {}: {error}. Recording needs root: `sudo quotient record ...`. Others can record with `perf sched record -- sleep 60` and `perf sched script`, or `trace-cmd record -e sched -e cgroup sleep 60` and `trace-cmd report -t`; advise, check, diff and convert read both",
        place.display()
    ))
}

/// One recording's part of tracefs.
pub(super) struct Instance {
    place: PathBuf,
    /// What was there of dead recorders before.
    stale: Vec<Stale>,
    /// Dropped after the instance was removed.
    _tracefs: Tracefs,
}

impl Instance {
    /// Makes it, stopped, with the events that a replay needs.
    ///
    /// # Errors
    /// What cannot be written; nothing is left then.
    pub(super) fn new(
        tracefs: Tracefs,
        buffer_kb: u32,
        hierarchy: u32,
        only: &[u32],
    ) -> Result<Instance, Failure> {
        let stale = tracefs.clean();
        let name = format!("{PREFIX}{}", std::process::id());
        let place = tracefs.root.join("instances").join(name);
        fs::create_dir(&place).map_err(|error| refused(&place, &error))?;
        let instance = Instance {
            place,
            stale,
            _tracefs: tracefs,
        };
        instance.write("tracing_on", "0")?;
        // The same on all CPUs, so that their lines can be merged.
        instance.write("trace_clock", "mono")?;
        instance.write("buffer_size_kb", &buffer_kb.to_string())?;
        instance.write("options/record-tgid", "1")?;
        if instance.place.join(MARKERS).exists() {
            instance.write(MARKERS, "1")?;
        }
        if !only.is_empty() {
            instance.write("options/event-fork", "1")?;
            let numbers: Vec<String> = only.iter().map(u32::to_string).collect();
            instance.write("set_event_pid", &numbers.join(" "))?;
        }
        for event in EVENTS {
            instance.write(&format!("events/{event}/enable"), "1")?;
        }
        // A kernel without cgroups has no such event, and nobody moves there.
        if instance.place.join("events").join(ATTACH).exists() {
            let filter = format!("dst_root == {hierarchy}");
            instance.write(&format!("events/{ATTACH}/filter"), &filter)?;
            instance.write(&format!("events/{ATTACH}/enable"), "1")?;
        }
        // A kernel without bandwidth limits knows no such function, one before 6.5 no such filter; all timers would be too much.
        let (event, filter) = PERIODS;
        let place = format!("events/{event}");
        if instance.write(&format!("{place}/filter"), filter).is_ok() {
            instance.write(&format!("{place}/enable"), "1")?;
        }
        Ok(instance)
    }

    /// What dead recorders had left behind.
    pub(super) fn stale(&self) -> &[Stale] {
        &self.stale
    }

    /// Starts or stops.
    ///
    /// # Errors
    /// Whatever tracefs says.
    pub(super) fn run(&self, on: bool) -> Result<(), Failure> {
        self.write("tracing_on", if on { "1" } else { "0" })
    }

    /// The lines of all CPUs, merged, each once. Reading never waits.
    ///
    /// # Errors
    /// Whatever tracefs says.
    pub(super) fn pipe(&self) -> Result<File, Failure> {
        let path = self.place.join("trace_pipe");
        OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&path)
            .map_err(Failure::during(&path.display().to_string()))
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Failure> {
        let path = self.place.join(file);
        fs::write(&path, text).map_err(Failure::during(&format!(
            "cannot write {text:?} to {}",
            path.display()
        )))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The events of a removed instance are off. What stays, because somebody reads it, the next recorder removes.
        let _ = self.run(false);
        let _ = fs::remove_dir(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_recorder_of_our_number_keeps_us_from_recording() {
        let own = std::process::id();
        let root = std::env::temp_dir().join(format!("quotient-tracefs-{own}"));
        // The first process is always there.
        let names = [own.to_string(), "1".to_owned(), "other".to_owned()];
        let places = names.map(|name| root.join("instances").join(format!("{PREFIX}{name}")));
        for place in &places {
            fs::create_dir_all(place).unwrap();
        }
        let is_ours = false;
        let tracefs = Tracefs {
            root: root.clone(),
            is_ours,
        };
        let said: Vec<String> = tracefs.clean().iter().map(Stale::to_string).collect();
        let left = places.each_ref().map(|place| place.exists());
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(left, [false, true, true]);
        let expected = format!("removed {}, left behind by", places[0].display());
        assert!(
            said.len() == 1 && said[0].starts_with(&expected),
            "{said:?}"
        );
    }

    #[test]
    fn what_a_killed_recorder_wrote_goes_with_it() {
        let folder = std::env::temp_dir().join(format!("quotient-partial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let names = [
            "a.txt.4194999.partial",
            "a.txt.1.partial",
            "a.txt.94194999.partial",
            "a.txt",
        ];
        for name in names {
            fs::write(folder.join(name), "").unwrap();
        }
        let stale = |process| Stale {
            place: PathBuf::new(),
            process: Some(process),
            kept: None,
        };
        let own = std::process::id();
        fs::write(folder.join(format!("b{}", partial_end(own))), "").unwrap();
        let out = folder.join("b.txt");
        let mut removed = stale(4_194_999).remove_partial(&out);
        removed.extend(stale(own).remove_partial(&out));
        let left = names.map(|name| folder.join(name).exists());
        let is_own_left = folder.join(format!("b{}", partial_end(own))).exists();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(removed, [folder.join(names[0])]);
        assert_eq!((left, is_own_left), ([false, true, true, true], true));
    }

    #[test]
    fn what_cannot_be_removed_is_said() {
        let own = std::process::id();
        let root = std::env::temp_dir().join(format!("quotient-tracefs-kept-{own}"));
        let place = root.join("instances").join(format!("{PREFIX}{own}"));
        // Like somebody who still reads from it, what is in it keeps it.
        fs::create_dir_all(place.join("held")).unwrap();
        let tracefs = Tracefs {
            root: root.clone(),
            is_ours: false,
        };
        let said: Vec<String> = tracefs.clean().iter().map(Stale::to_string).collect();
        fs::remove_dir_all(&root).unwrap();
        assert!(
            said.len() == 1 && said[0].contains("stays and costs its buffers: "),
            "{said:?}"
        );
    }
}
