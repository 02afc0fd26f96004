//! `quotient advise` against the kernel: record a service, ask, set the limit for real, and compare.
//!
//! The service runs as threads in a cgroup of ours; `quotient record` records it without a limit (or under one), `quotient advise`
//! predicts, then the same kind of load runs under each limit with other arrivals, several times. Both commands are run as a
//! person runs them. The verdicts are in [`judge`]; how far apart the kernel's own runs are stands beside them.

pub mod company;
pub mod judge;
pub mod kept;
pub mod loads;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cgroup::{Cgroup, Controller};
use crate::scenario::Cap;
use crate::{Interrupt, Problem};
use company::{Company, LOOK, Looks};
use judge::{Case, Spread};
use kept::{Kept, Truth};
use loads::Kind;

/// Before anything is measured: threads start, the first limit takes hold.
const WARM_UP: Duration = Duration::from_millis(300);
/// Limits that are tried unless others are asked for, in per cent of what is used without one.
pub const SHARES_PERCENT: [u64; 4] = [110, 150, 200, 300];
/// The limit of the recordings that are made under one.
const RECORDED_PERCENT: u64 = 150;
/// The seed of the arrivals that are recorded.
const RECORDED_SEED: u64 = 1;
/// How often a recording or a run is made while others compute beside it. Default: 4.
const ATTEMPTS_MAX: usize = 4;
/// The longest nap while waiting, so that Ctrl-C is noticed.
const NAP: Duration = Duration::from_millis(50);

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary `quotient`.
    pub quotient: PathBuf,
    /// How long each run and each recording is.
    pub length: Duration,
    /// Runs under each limit.
    pub runs: usize,
    /// The limits, in per cent of what is used without one.
    pub percents: Vec<u64>,
    /// Loads whose names contain this.
    pub only: Option<String>,
    /// The preset that predictions are made with.
    pub preset: String,
    /// Whether recordings under a limit are tried as well.
    pub limited: bool,
    /// Whether the runs under limits have the arrivals of the recording: then what is off is the model's doing, not chance.
    pub same_arrivals: bool,
    /// Where what was measured is kept; what is there of this length and these arrivals is not measured again.
    pub keep: Option<PathBuf>,
    /// Whether to measure only, without asking for predictions of all limits.
    pub measure_only: bool,
}

/// The binary beside this one, as cargo builds them.
///
/// # Errors
/// [`Problem::Unavailable`] with what to do, if it is not there.
pub fn beside() -> Result<PathBuf, Problem> {
    let own = std::env::current_exe().map_err(Problem::during("cannot find the own program"))?;
    let path = own.with_file_name("quotient");
    if path.is_file() {
        Ok(path)
    } else {
        Err(Problem::Unavailable(format!(
            "there is no {}: build it (cargo build --release -p quotient-cli) or give --quotient",
            path.display()
        )))
    }
}

/// Measures what is missing of all loads, then compares. Cases come as they are done; without predictions there are none.
///
/// # Errors
/// [`Problem::Unavailable`] with what is missing (root, a cgroup cpu controller, tracefs), [`Problem::Interrupted`], or what broke.
pub fn compare(
    settings: &Settings,
    interrupt: &Interrupt,
    mut done: impl FnMut(&Case),
) -> Result<Vec<Case>, Problem> {
    let kept = Kept::open(settings.keep.as_deref())?;
    let kinds = || {
        Kind::ALL.into_iter().filter(|kind| {
            let only = settings.only.as_ref();
            only.is_none_or(|text| kind.name().contains(text.as_str()))
        })
    };
    let mut plans = Vec::new();
    for kind in kinds() {
        plans.push((kind, measured(settings, kind, &kept, interrupt)?));
    }
    let mut cases = Vec::new();
    if settings.measure_only {
        return Ok(cases);
    }
    for (kind, planned) in plans {
        for case in judged(settings, kind, &kept, &planned)? {
            done(&case);
            cases.push(case);
        }
    }
    Ok(cases)
}

/// What a load is measured under.
struct Planned {
    /// The limits, in thousandths of a CPU.
    shares: Vec<u64>,
    /// The limit of the second recording.
    under: Option<u64>,
}

/// Makes the recordings and runs of a load that are not there.
fn measured(
    settings: &Settings,
    kind: Kind,
    kept: &Kept,
    interrupt: &Interrupt,
) -> Result<Planned, Problem> {
    // Without anything to measure no group is asked for: judging needs no root.
    let mut service = None;
    let mut cgroup = || {
        if service.is_none() {
            let base = Controller::find()?.base()?;
            let group = Arc::new(base.group("service", false)?);
            service = Some((group, base));
        }
        let group = service.as_ref().map(|(group, _)| Arc::clone(group));
        group.ok_or_else(|| Problem::Broken("there is no group".into()))
    };
    let free = kept.trace(kind, false);
    if !free.is_file() {
        recorded(settings, kind, &cgroup()?, None, kept, interrupt)?;
    }
    let used = kept.used(kind, || {
        Ok(advise(settings, kind, &free, None, &[4_000])?.used)
    })?;
    let share = |percent: u64| (used * percent / 100).max(20);
    let planned = Planned {
        shares: settings.percents.iter().copied().map(share).collect(),
        under: settings.limited.then(|| share(RECORDED_PERCENT)),
    };
    if let Some(under) = planned.under {
        let path = kept.trace(kind, true);
        if !path.is_file() {
            recorded(settings, kind, &cgroup()?, Some(under), kept, interrupt)?;
        }
    }
    let there = kept.runs(kind);
    // Run by run over all limits: a slow change of the machine's mood hits all of them.
    for run in 0..settings.runs {
        for &share in &planned.shares {
            if wanted(settings, &there, share).any(|truth| truth.run == run) {
                continue;
            }
            let made = asked(settings, &there, share).filter(|truth| truth.run == run);
            for _ in made.count()..ATTEMPTS_MAX {
                let truth = tried(settings, kind, &cgroup()?, share, run, interrupt)?;
                kept.add(kind, &truth)?;
                if !truth.is_disturbed() {
                    break;
                }
            }
        }
    }
    Ok(planned)
}

/// The seed of a run's arrivals.
const fn seed_of(settings: &Settings, run: usize) -> u64 {
    if settings.same_arrivals {
        RECORDED_SEED
    } else {
        100 + run as u64
    }
}

/// The runs under that limit that these settings ask for and that nobody disturbed.
fn wanted<'a>(
    settings: &'a Settings,
    runs: &'a [Truth],
    share: u64,
) -> impl Iterator<Item = &'a Truth> {
    asked(settings, runs, share).filter(|truth| !truth.is_disturbed())
}

/// The runs under that limit that these settings ask for.
fn asked<'a>(
    settings: &'a Settings,
    runs: &'a [Truth],
    share: u64,
) -> impl Iterator<Item = &'a Truth> {
    runs.iter().filter(move |truth| {
        truth.permille == share
            && u128::from(truth.length_ms) == settings.length.as_millis()
            && truth.run < settings.runs
            && truth.seed == seed_of(settings, truth.run)
    })
}

/// Predictions from each recording beside what was measured.
fn judged(
    settings: &Settings,
    kind: Kind,
    kept: &Kept,
    planned: &Planned,
) -> Result<Vec<Case>, Problem> {
    let mut answers = Vec::new();
    for under in [Some(None), planned.under.map(Some)].into_iter().flatten() {
        let path = kept.trace(kind, under.is_some());
        let answer = advise(settings, kind, &path, under, &planned.shares)?;
        answers.push((under, answer));
    }
    let runs = kept.runs(kind);
    let mut cases = Vec::new();
    for (index, share) in planned.shares.iter().enumerate() {
        let truth: Vec<&Truth> = wanted(settings, &runs, *share).collect();
        let column = |figure: &dyn Fn(&Truth) -> f64| {
            Spread::of(&truth.iter().map(|run| figure(run)).collect::<Vec<_>>())
        };
        for (under, answer) in &answers {
            let company = kept.company(kind, under.is_some());
            let row = &answer.rows[index];
            cases.push(Case {
                load: kind.name(),
                recorded_under: under.map(|permille| permille as f64 / 1000.0),
                cpus: *share as f64 / 1000.0,
                period_ms: 100,
                predicted_throttled: row.throttled,
                throttled: column(&|truth| truth.throttled).about_mean(&truth, |run| run.throttled),
                predicted_p99: row.p99,
                p99: column(&|truth| truth.at(0.99)),
                runs: truth.len(),
                disturbed: asked(settings, &runs, *share).count() - truth.len(),
                others_recording: company.mean,
                busiest_recording: company.busiest,
                is_saturated: row.is_saturated,
            });
        }
    }
    Ok(cases)
}

fn cap(permille: u64) -> Cap {
    Cap {
        quota: Duration::from_micros(permille * 100),
        ..Cap::ms(100, 100)
    }
}

fn wait(length: Duration, interrupt: &Interrupt) -> Result<(), Problem> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        if interrupt.is_raised() {
            return Err(Problem::Interrupted);
        }
        thread::sleep(NAP.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

fn tried(
    settings: &Settings,
    kind: Kind,
    cgroup: &Arc<Cgroup>,
    permille: u64,
    run: usize,
    interrupt: &Interrupt,
) -> Result<Truth, Problem> {
    let seed = seed_of(settings, run);
    cgroup.set_cap(Some(cap(permille)))?;
    let load = loads::start(kind, cgroup, seed, None)?;
    wait(WARM_UP, interrupt)?;
    let (before, from, mut looks) = (cgroup.counters()?, Instant::now(), Looks::begin());
    let end = from + settings.length;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        wait(left.min(LOOK), interrupt)?;
        looks.look();
    }
    let counters = cgroup.counters()?.since(before);
    let company = looks.end();
    let times = load.log.times_since(from);
    // Without the limit it ends at once.
    cgroup.set_cap(None)?;
    drop(load);
    Ok(Truth {
        permille,
        seed,
        run,
        length_ms: u64::try_from(settings.length.as_millis()).unwrap_or(u64::MAX),
        others: company.mean,
        busiest: company.busiest,
        throttled: 100.0 * counters.nr_throttled as f64 / counters.nr_periods.max(1) as f64,
        times,
    })
}

/// Where the kernel keeps tracefs.
const TRACEFS: &str = "/sys/kernel/tracing";

/// tracefs, so that a load can mark its requests before a recording begins; unmounted again if it was not there.
struct Tracefs {
    is_there: bool,
    is_ours: bool,
}

impl Tracefs {
    fn there() -> Tracefs {
        let is_mounted = || Path::new(TRACEFS).join("trace_marker").exists();
        let is_ours = !is_mounted()
            && Command::new("mount")
                .args(["-t", "tracefs", "tracefs", TRACEFS])
                .status()
                .is_ok_and(|status| status.success());
        Tracefs {
            is_there: is_mounted(),
            is_ours,
        }
    }

    fn root(&self) -> Option<&'static Path> {
        self.is_there.then_some(Path::new(TRACEFS))
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.is_ours {
            // Whoever uses it meanwhile keeps it.
            let _ = Command::new("umount").arg(TRACEFS).status();
        }
    }
}

/// Records a load until nobody else computed meanwhile, or [`ATTEMPTS_MAX`] times; what it was with the least of others is kept.
fn recorded(
    settings: &Settings,
    kind: Kind,
    cgroup: &Arc<Cgroup>,
    permille: Option<u64>,
    kept: &Kept,
    interrupt: &Interrupt,
) -> Result<(), Problem> {
    let path = kept.trace(kind, permille.is_some());
    let mut least: Option<Company> = None;
    for _ in 0..ATTEMPTS_MAX {
        let part = path.with_extension("part");
        let company = recorded_once(settings, kind, cgroup, permille, &part, interrupt)?;
        if least.is_none_or(|least| company.weight() < least.weight()) {
            // What is there under its own name is whole.
            std::fs::rename(&part, &path)
                .map_err(Problem::during(format!("cannot keep {}", part.display())))?;
            kept.note_company(kind, permille.is_some(), company)?;
            least = Some(company);
        }
        if !least.is_some_and(Company::disturbs) {
            break;
        }
    }
    Ok(())
}

/// One recording into `part`, and who computed beside it.
fn recorded_once(
    settings: &Settings,
    kind: Kind,
    cgroup: &Arc<Cgroup>,
    permille: Option<u64>,
    part: &Path,
    interrupt: &Interrupt,
) -> Result<Company, Problem> {
    cgroup.set_cap(permille.map(cap))?;
    let tracefs = Tracefs::there();
    let load = loads::start(kind, cgroup, RECORDED_SEED, tracefs.root())?;
    wait(WARM_UP, interrupt)?;
    let seconds = format!("{}ms", settings.length.as_millis());
    let out = part.display().to_string();
    let (ended, wait_for_end) = mpsc::channel::<()>();
    let company = thread::scope(|scope| {
        let looking = scope.spawn(move || {
            let mut looks = Looks::begin();
            while wait_for_end.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                looks.look();
            }
            looks.end()
        });
        let recorded = run(&settings.quotient, &["record", &seconds, "--out", &out]);
        drop(ended);
        // One that panicked has said so, and saw nothing.
        let company = looking.join().unwrap_or_default();
        recorded.map(|_| company)
    })?;
    cgroup.set_cap(None)?;
    drop(load);
    Ok(company)
}

/// Runs `quotient` and returns what it printed.
fn run(quotient: &Path, arguments: &[&str]) -> Result<String, Problem> {
    let output = Command::new(quotient).args(arguments).output();
    let output = output.map_err(Problem::during(format!(
        "cannot run {}",
        quotient.display()
    )))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Some(2) if arguments.first() == Some(&"record") => Err(Problem::Unavailable(said)),
        code => Err(Problem::Broken(format!(
            "quotient {arguments:?} ended with {code:?}: {said}"
        ))),
    }
}

/// What was predicted for one limit.
#[derive(Clone, Copy, Debug)]
struct Row {
    throttled: Spread,
    p99: Spread,
    is_saturated: bool,
}

/// What `quotient advise` said.
#[derive(Debug)]
struct Answer {
    /// CPUs used without a limit, in thousandths.
    used: u64,
    rows: Vec<Row>,
}

fn advise(
    settings: &Settings,
    kind: Kind,
    trace: &Path,
    under: Option<u64>,
    shares: &[u64],
) -> Result<Answer, Problem> {
    let path = trace.display().to_string();
    let cpus: Vec<String> = shares
        .iter()
        .map(|permille| (*permille as f64 / 1000.0).to_string())
        .collect();
    let cpus = cpus.join(",");
    let limit = under.map_or("none".to_owned(), |permille| {
        format!("{}/100000", permille * 100)
    });
    let mut arguments = vec![
        "advise",
        &path,
        "--json",
        "--comm",
        loads::NAME,
        "--period",
        "100ms",
        "--burst",
        "0",
        "--cpus",
        &cpus,
        "--kernel",
        &settings.preset,
        "--recorded-limit",
        &limit,
    ];
    arguments.extend(kind.advice());
    answer(&run(&settings.quotient, &arguments)?)
}

fn answer(text: &str) -> Result<Answer, Problem> {
    let json: Value = serde_json::from_str(text).map_err(Problem::during("quotient advise"))?;
    let missing = || Problem::Broken("quotient advise says something else than expected".into());
    let spread = |value: &Value, factor: f64| {
        let part = |name: &str| value[name].as_f64().map(|figure| figure * factor);
        Some(Spread {
            low: part("low")?,
            mid: part("mid")?,
            high: part("high")?,
        })
    };
    let rows = json["predictions"].as_array().ok_or_else(missing)?;
    let rows = rows.iter().map(|row| {
        Some(Row {
            throttled: spread(&row["throttled_ratio"], 100.0)?,
            p99: spread(&row["p99_ns"], 1e-6)?,
            is_saturated: row["is_saturated"].as_bool()?,
        })
    });
    Ok(Answer {
        used: json["free_usage_permille"].as_u64().ok_or_else(missing)?,
        rows: rows.collect::<Option<Vec<_>>>().ok_or_else(missing)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_or_refused() {
        let text = r#"{"free_usage_permille": 250, "predictions": [{
            "throttled_ratio": {"low": 0.1, "mid": 0.2, "high": 0.3},
            "p99_ns": {"low": 1e6, "mid": 2e6, "high": 3e6}, "is_saturated": false}]}"#;
        let found = answer(text).expect("an answer");
        assert_eq!(found.used, 250);
        assert!((found.rows[0].throttled.mid - 20.0).abs() < 1e-9);
        assert!((found.rows[0].p99.high - 3.0).abs() < 1e-9);
        for wrong in [
            "",
            "{}",
            r#"{"free_usage_permille": 1, "predictions": [{}]}"#,
        ] {
            assert!(answer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn without_its_program_it_says_which() {
        let Err(problem) = run(Path::new("/nowhere/quotient"), &["record"]) else {
            panic!("there is no such program");
        };
        assert!(
            problem.to_string().contains("/nowhere/quotient"),
            "{problem}"
        );
    }
}
