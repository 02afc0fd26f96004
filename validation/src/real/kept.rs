//! What was measured of a load, in a folder: the recordings and one line for each run. It is kept between commands, so that a long
//! measurement can be made in parts, and so that another model is judged by the same runs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::company::Company;
use super::loads::Kind;
use crate::Problem;

/// What a run under a limit showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The limit, thousandths of a CPU.
    pub permille: u64,
    /// Of its arrivals.
    pub seed: u64,
    /// Which run of those arrivals.
    pub run: usize,
    /// How long it was measured, ms.
    pub length_ms: u64,
    /// CPUs that others used meanwhile; none where the machine does not say.
    #[serde(default)]
    pub others: Option<f64>,
    /// CPUs that they used in their busiest second.
    #[serde(default)]
    pub busiest: Option<f64>,
    /// Per cent of the periods.
    pub throttled: f64,
    /// How long each request took, ms, in order of length.
    pub times: Vec<f64>,
}

impl Truth {
    /// Whether others computed beside it.
    pub fn is_disturbed(&self) -> bool {
        let company = Company {
            mean: self.others,
            busiest: self.busiest,
        };
        company.disturbs()
    }

    /// The value at `part` of all requests; not a number without any.
    pub fn at(&self, part: f64) -> f64 {
        let index = (self.times.len() as f64 * part).ceil().max(1.0) as usize - 1;
        self.times.get(index).copied().unwrap_or(f64::NAN)
    }
}

/// The folder; its own ones are removed with it.
pub struct Kept {
    folder: PathBuf,
    is_ours: bool,
}

impl Kept {
    /// A folder that is there or is made, or one of ours for now.
    ///
    /// # Errors
    /// [`Problem::Broken`] if it cannot be made.
    pub fn open(folder: Option<&Path>) -> Result<Kept, Problem> {
        let own = format!("quotient-validation-{}", std::process::id());
        let kept = Kept {
            folder: folder.map_or_else(|| std::env::temp_dir().join(own), Path::to_path_buf),
            is_ours: folder.is_none(),
        };
        fs::create_dir_all(&kept.folder).map_err(kept.broken("cannot make"))?;
        Ok(kept)
    }

    fn broken<E: std::fmt::Display>(&self, what: &str) -> impl FnOnce(E) -> Problem + use<E> {
        Problem::during(format!("{what} {}", self.folder.display()))
    }

    /// Where a load's trace is, recorded free or under a limit.
    pub fn trace(&self, kind: Kind, is_limited: bool) -> PathBuf {
        let how = if is_limited { "limited" } else { "free" };
        self.folder.join(format!("{}-{how}.txt", kind.name()))
    }

    /// What a load used without a limit, in thousandths of a CPU, as it was when its limits were chosen: another model must not move them.
    ///
    /// # Errors
    /// [`Problem::Broken`] if it cannot be written, or whatever `find` finds wrong.
    pub fn used(
        &self,
        kind: Kind,
        find: impl FnOnce() -> Result<u64, Problem>,
    ) -> Result<u64, Problem> {
        let path = self.folder.join(format!("{}-used.txt", kind.name()));
        let there = fs::read_to_string(&path).ok();
        if let Some(used) = there.and_then(|text| text.trim().parse().ok()) {
            return Ok(used);
        }
        let used = find()?;
        fs::write(&path, format!("{used}\n")).map_err(self.broken("cannot write to"))?;
        Ok(used)
    }

    /// Notes how many CPUs others used as that recording was made.
    ///
    /// # Errors
    /// [`Problem::Broken`] if it cannot be written.
    pub fn note_company(
        &self,
        kind: Kind,
        is_limited: bool,
        company: Company,
    ) -> Result<(), Problem> {
        let path = self.trace(kind, is_limited).with_extension("others");
        let word = |cpus: Option<f64>| cpus.map_or("-".into(), |cpus| format!("{cpus:.3}"));
        let line = format!("{} {}\n", word(company.mean), word(company.busiest));
        fs::write(path, line).map_err(self.broken("cannot write to"))
    }

    /// What was noted beside that recording.
    pub fn company(&self, kind: Kind, is_limited: bool) -> Company {
        let path = self.trace(kind, is_limited).with_extension("others");
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut words = text.split_whitespace().map(|word| word.parse().ok());
        Company {
            mean: words.next().flatten(),
            busiest: words.next().flatten(),
        }
    }

    fn runs_of(&self, kind: Kind) -> PathBuf {
        self.folder.join(format!("{}.jsonl", kind.name()))
    }

    /// The runs of a load so far. A last line that a crash cut off does not count.
    pub fn runs(&self, kind: Kind) -> Vec<Truth> {
        let text = fs::read_to_string(self.runs_of(kind)).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// One more.
    ///
    /// # Errors
    /// [`Problem::Broken`] if it cannot be written.
    pub fn add(&self, kind: Kind, truth: &Truth) -> Result<(), Problem> {
        let line = serde_json::to_string(truth).map_err(self.broken("cannot write to"))?;
        let file = fs::File::options()
            .create(true)
            .append(true)
            .open(self.runs_of(kind));
        // The break before it ends a line that was cut off.
        file.and_then(|mut file| file.write_all(format!("\n{line}\n").as_bytes()))
            .map_err(self.broken("cannot write to"))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.is_ours {
            // A leftover in the temporary folder does no harm.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(run: usize) -> Truth {
        Truth {
            permille: 500,
            seed: 1,
            run,
            length_ms: 1_000,
            others: None,
            busiest: None,
            throttled: 12.5,
            times: (1..=200).map(f64::from).collect(),
        }
    }

    #[test]
    fn runs_are_read_back_but_for_one_that_was_cut_off() {
        let name = format!("quotient-kept-test-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let kept = Kept::open(Some(&folder)).unwrap();
        assert!(kept.runs(Kind::Open).is_empty());
        kept.add(Kind::Open, &truth(0)).unwrap();
        let path = kept.runs_of(Kind::Open);
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{}", &whole[..20])).unwrap();
        kept.add(Kind::Open, &truth(1)).unwrap();
        drop(kept);
        let kept = Kept::open(Some(&folder)).unwrap();
        assert_eq!(kept.runs(Kind::Open), [truth(0), truth(1)]);
        assert!(kept.runs(Kind::Pool).is_empty());
        // Limits stay where they were.
        for found in [500, 501] {
            assert_eq!(kept.used(Kind::Open, || Ok(found)).unwrap(), 500);
        }
        assert_eq!(kept.company(Kind::Open, false), Company::default());
        let company = Company {
            mean: None,
            busiest: Some(0.125),
        };
        kept.note_company(Kind::Open, false, company).unwrap();
        assert_eq!(kept.company(Kind::Open, false), company);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_of_ours_goes_with_its_user() {
        let kept = Kept::open(None).unwrap();
        let folder = kept.folder.clone();
        assert!(folder.is_dir());
        drop(kept);
        assert!(!folder.exists());
    }

    #[test]
    fn a_run_beside_others_is_known() {
        let beside = |others| Truth { others, ..truth(0) }.is_disturbed();
        assert_eq!(
            [None, Some(0.05), Some(0.5)].map(beside),
            [false, false, true]
        );
    }

    #[test]
    fn percentiles_are_those_of_requests() {
        assert_eq!((truth(0).at(0.5), truth(0).at(0.99)), (100.0, 198.0));
        let none = Truth {
            times: Vec::new(),
            ..truth(0)
        };
        assert!(none.at(0.99).is_nan());
    }
}
