//! Whether process numbers and cgroups that are read here are those of the kernel's trace: a container has others.

use std::fs;
use std::path::Path;

use quotient_trace::TaskId;

use crate::failure::Failure;

/// The first namespaces of a kernel, whose numbers and paths its trace has: the kernel gives these two fixed numbers.
const FIRST: [(&str, &str); 2] = [
    ("1/ns/pid", "pid:[4026531836]"),
    ("self/ns/cgroup", "cgroup:[4026531835]"),
];

/// Refuses a container, whose numbers mean others in the trace, and whose limits are not where its paths say. What `proc` does not tell is taken to be
/// right.
///
/// # Errors
/// `Usage` with the ways out.
pub(super) fn check(proc: &Path) -> Result<(), Failure> {
    let is_other = |(link, first): (&str, &str)| {
        let link = fs::read_link(proc.join(link));
        link.is_ok_and(|link| link != Path::new(first))
    };
    if FIRST.into_iter().any(is_other) {
        return Err(Failure::Usage(
            "this is a container, and the kernel's trace has the host's process numbers and cgroups: record on the host, or in a container with both (`--pid=host --cgroupns=host`; `nsenter --target 1 --pid --cgroup --mount` from one with the first)".to_owned(),
        ));
    }
    Ok(())
}

/// The number of this process in that `/proc`.
pub(super) fn own(proc: &Path) -> Option<TaskId> {
    let link = fs::read_link(proc.join("self")).ok()?;
    link.to_str()?.parse().ok().map(TaskId)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Hazard: the numbers of a container are those of others on the host, and these would be limited, or left out, in their place.
    #[test]
    fn a_container_with_other_numbers_or_cgroups_is_refused() {
        let proc = std::env::temp_dir().join(format!("quotient-proc-{}", std::process::id()));
        for folder in ["1/ns", "42/ns"] {
            fs::create_dir_all(proc.join(folder)).unwrap();
        }
        symlink("42", proc.join("self")).unwrap();
        assert!(check(&proc).is_ok());
        assert_eq!(own(&proc), Some(TaskId(42)));
        let mut said = Vec::new();
        for (pid, cgroup) in [(6, 5), (7, 5), (6, 9)] {
            let link = |text: String, place: &str| {
                let place = proc.join(place);
                let _ = fs::remove_file(&place);
                symlink(text, place).unwrap();
            };
            link(format!("pid:[402653183{pid}]"), "1/ns/pid");
            link(format!("cgroup:[402653183{cgroup}]"), "self/ns/cgroup");
            said.push(check(&proc).is_err());
        }
        fs::remove_dir_all(&proc).unwrap();
        assert_eq!(said, [false, true, true]);
    }
}
