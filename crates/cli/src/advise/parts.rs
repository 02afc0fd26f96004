//! The parts of a trace: who is asked about, who ran beside, and who only recorded.

use quotient_core::Nanos;
use quotient_sim::replay::{Recording, Seat, Selection};

use crate::failure::Failure;

/// Names that a message lists. Default 12, those with the most CPU time: a screen, not a process table.
pub(super) const NAMES_SHOWN: usize = 12;

/// Everybody of a trace, in the part that is played of them.
pub(super) struct Parts {
    /// Who is to be limited.
    pub(super) limited: Recording,
    /// Whoever else ran.
    pub(super) beside: Recording,
    /// `quotient record` itself, where the trace says which process that was. It ran beside the load and will not when nobody records, so it is
    /// played only where the replay is compared with the trace.
    pub(super) recorder: Option<Recording>,
}

impl Parts {
    /// Divides a trace, and notes the limit of who is to be limited if it is a log of Quotient's own.
    ///
    /// # Errors
    /// `Usage` if nobody is selected.
    pub(super) fn of(whole: &mut Recording, selection: &Selection) -> Result<Parts, Failure> {
        let (limited, beside) = whole.split(selection);
        let was_found = limited.tasks() > 0;
        let parts = Parts {
            limited,
            beside,
            recorder: None,
        };
        let parts = match whole.recording_process {
            Some(process) => parts.without(process.0),
            None => parts,
        };
        if parts.limited.tasks() == 0 {
            return Err(if was_found {
                Failure::Usage(
                    "only `quotient record` itself is selected, which is left out".to_owned(),
                )
            } else {
                nobody(whole, selection)
            });
        }
        whole.note_limit_of(&parts.limited);
        Ok(parts)
    }

    fn without(self, process: u32) -> Parts {
        let recorder = Selection {
            ids: vec![process],
            ..Selection::default()
        };
        let (of_limited, limited) = self.limited.split(&recorder);
        let (of_beside, beside) = self.beside.split(&recorder);
        let found = [of_limited, of_beside].into_iter();
        Parts {
            limited,
            beside,
            recorder: found
                .max_by_key(|found| found.recorded)
                .filter(|found| found.tasks() > 0),
        }
    }

    /// Who is who, in figures, with those processes asked about, and everybody else left out or not.
    pub(super) fn told(&self, whole: &Recording, pids: &[u32], is_alone: bool) -> Vec<String> {
        let mut notes = vec![format!(
            "{:.1} s on {} CPUs; to be limited: {}",
            whole.length.0 as f64 / 1e9,
            whole.cpus,
            described(&self.limited)
        )];
        if whole.stand_ins > 0 {
            notes.push(format!(
                "stand-ins in the trace, virtual CPUs that came when others were stuck, and no CPUs of the machine: {}",
                whole.stand_ins
            ));
        }
        let children = self.limited.children_of(pids);
        if children > 0 {
            notes.push(format!(
                "{children} of these were forked by --pid or by what that forked: a limit on a service holds for them too"
            ));
        }
        if self.beside.tasks() > 0 {
            let how = if is_alone {
                "left out"
            } else {
                "beside it, not limited"
            };
            notes.push(format!("{how}: {}", described(&self.beside)));
        }
        if let Some(recorder) = &self.recorder {
            notes.push(format!(
                "left out: `quotient record` itself, {:.2} CPUs, which will not be there",
                recorder.recorded.0 as f64 / recorder.length.0.max(1) as f64
            ));
        }
        notes
    }

    /// Everybody who is not limited.
    pub(super) fn others(&self) -> impl Iterator<Item = &Recording> {
        core::iter::once(&self.beside).chain(&self.recorder)
    }
}

/// Who shares CPUs with whom is limited, by groups.
pub(super) struct Competing {
    /// The groups in which everybody is.
    pub(super) groups: Vec<Seat>,
    /// What those in other groups than that of the limited used.
    pub(super) work: Nanos,
}

impl Competing {
    /// With which weights they do that; nothing if nobody is there.
    pub(super) fn told(&self) -> Option<String> {
        if self.work == Nanos::ZERO {
            return None;
        }
        let shown = self.groups.iter().take(NAMES_SHOWN).map(|seat| {
            let idle = if seat.idle { " (idle)" } else { "" };
            let noted = if seat.is_noted { "" } else { " (not noted)" };
            format!("/{} {}{idle}{noted}", seat.path, seat.weight.get())
        });
        let shown: Vec<String> = shown.collect();
        let rest = match self.groups.len().saturating_sub(NAMES_SHOWN) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        (!shown.is_empty()).then(|| format!("weights of cgroups: {}{rest}", shown.join(", ")))
    }
}

/// A part in figures.
fn described(recording: &Recording) -> String {
    let cpus = |time: Nanos| time.0 as f64 / recording.length.0.max(1) as f64;
    format!(
        "{} tasks, {} bursts, {:.2} CPUs used, {:.2} more wanted that a limit cut off",
        recording.tasks(),
        recording.bursts(),
        cpus(recording.recorded),
        cpus(recording.restored)
    )
}

/// Whom there is instead.
fn nobody(whole: &Recording, selection: &Selection) -> Failure {
    let list = |figures: std::collections::BTreeMap<&str, Nanos>| {
        let mut figures: Vec<_> = figures.into_iter().collect();
        figures.sort_by_key(|(_, work)| std::cmp::Reverse(*work));
        let names = figures.iter().take(NAMES_SHOWN);
        let names: Vec<String> = names.map(|(name, _)| format!("{name:?}")).collect();
        names.join(", ")
    };
    let Selection { groups, names, ids } = selection;
    let asked: Vec<String> = [
        (!groups.is_empty()).then(|| format!("group {groups:?}")),
        (!names.is_empty()).then(|| format!("name {names:?}")),
        (!ids.is_empty()).then(|| format!("number {ids:?}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let asked = match &asked[..] {
        [] => String::new(),
        asked => format!(" with {}", asked.join(" and ")),
    };
    Failure::Usage(format!(
        "nobody{asked} ran in this trace; those with the most CPU time are the groups {} and the names {}",
        list(whole.groups()),
        list(whole.names())
    ))
}
