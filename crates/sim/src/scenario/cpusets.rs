//! Which CPUs groups and workloads are kept to: `cpus = "0-3,8"`.

use super::Fault;
use super::document::Document;
use crate::plan::Plan;
use core::ops::Range;
use std::collections::BTreeSet;
use toml::Spanned;

/// Reads a list such as `0-3,8` on a machine of `cpus`.
fn list(text: &str, cpus: u32) -> Result<BTreeSet<u32>, String> {
    let wrong = || {
        format!(
            "{text:?} is no list of CPUs such as \"0-3,8\", of 0..={}",
            cpus - 1
        )
    };
    let mut set = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&cpu| cpu < cpus);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => set.extend(first..=last),
            _ => return Err(wrong()),
        }
    }
    Ok(set)
}

pub(super) fn read(given: &Spanned<String>, cpus: u32) -> Result<BTreeSet<u32>, Fault> {
    list(given.get_ref(), cpus).map_err(|what| Fault::at(given.span(), what))
}

/// Keeps every task to the CPUs of its workload and of all groups that it is in. `parts` says which workloads of the plan each of the
/// document's has become.
pub(super) fn keep(
    plan: &mut Plan,
    document: &Document,
    parts: &[Range<usize>],
) -> Result<(), Fault> {
    let cpus = plan.machine.cpus();
    let mut groups = Vec::new();
    for group in &document.group {
        if let Some(given) = &group.cpus {
            groups.push((group.path.get_ref(), given, read(given, cpus)?));
        }
    }
    let mut loads = Vec::new();
    for (load, part) in document.workload.iter().zip(parts) {
        if let Some(given) = &load.cpus {
            loads.push((part, given, read(given, cpus)?));
        }
    }
    if groups.is_empty() && loads.is_empty() {
        return Ok(());
    }
    let mut workloads = core::mem::take(&mut plan.workloads);
    for (index, load) in workloads.iter_mut().enumerate() {
        let own = loads.iter().filter(|(part, ..)| part.contains(&index));
        let own = own.map(|(_, given, set)| (*given, set));
        for task in &mut load.tasks {
            let path = task
                .group
                .map_or("", |group| plan.groups[group as usize].path.as_str());
            let above = groups.iter().filter(|(group, ..)| is_in(path, group));
            let above = above.map(|(_, given, set)| (*given, set));
            let known = task.cpuset.map(|set| plan.cpusets[set as usize].clone());
            let mut kept = known.map(BTreeSet::from_iter);
            for (given, set) in own.clone().chain(above) {
                let both = kept.map_or_else(|| set.clone(), |kept: BTreeSet<u32>| &kept & set);
                if both.is_empty() {
                    let what = format!("no cpu is left to workload {}", load.name);
                    return Err(Fault::at(given.span(), what));
                }
                kept = Some(both);
            }
            task.cpuset = kept.map(|kept| plan.cpuset(kept.into_iter().collect()));
        }
    }
    plan.workloads = workloads;
    Ok(())
}

/// Whether a group is `above` or below it.
fn is_in(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        let all = |text: &str| list(text, 16).map(|set| set.into_iter().collect::<Vec<_>>());
        assert_eq!(all("0-3,8"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(all(" 5 , 4-5"), Ok(vec![4, 5]));
        for text in ["", "16", "3-1", "1-", "-1", "a", "1,,2", "0-16"] {
            let error = all(text).expect_err(text);
            assert!(error.contains("0..=15"), "{error}");
        }
    }
}
