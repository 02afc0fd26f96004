//! rt-app's own files: run by rt-app in a cgroup, and by the simulator.
//!
//! rt-app computes by counted loops, whose length it knows in whole nanoseconds: 10 may be 9.5 or 10.5. So one run by itself says how long
//! what it calls a millisecond is, and the file that rt-app gets asks for as much less or more.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use quotient_sim::{Notice, rtapp};
use serde_json::{Value, json};

use super::{Answer, Figure, at, beside_simulated, noticed, plan_for, simulated};
use crate::cgroup::{Cgroup, Controller};
use crate::scenario::Cap;
use crate::{Interrupt, Problem};

/// What rt-app is told of its loop: nanoseconds. What it is in truth is measured.
const LOOP_NS: u64 = 10;
/// What is computed by itself to find that, us.
const PROBE_US: u64 = 10_000;

/// A task with a deadline beside two that compute and sleep: 0.2 CPUs and 0.8.
fn file(seconds: u64, logs: &Path, factor: f64) -> Value {
    let run = |micros: u64| (micros as f64 / factor).round() as u64;
    json!({
        "global": global(seconds, logs),
        "tasks": {
            "web": { "run": run(2_000), "timer": { "ref": "tick", "period": 10_000 } },
            "batch": { "instance": 2, "run": run(8_000), "sleep": 12_000 },
        },
    })
}

fn global(seconds: u64, logs: &Path) -> Value {
    json!({
        "duration": seconds, "calibration": LOOP_NS, "default_policy": "SCHED_OTHER", "logdir": logs.display().to_string(),
        "log_basename": "log", "log_size": 4, "gnuplot": false, "pi_enabled": false, "lock_pages": false,
    })
}

fn caps() -> [(&'static str, Option<Cap>); 3] {
    [
        ("rt-app, no limit", None),
        ("rt-app, 110 ms in 100 ms", Some(Cap::ms(110, 100))),
        ("rt-app, 60 ms in 100 ms", Some(Cap::ms(60, 100))),
    ]
}

const NAMES: [&str; 4] = [
    "web: loops a second",
    "web: slack p50, ms",
    "web: slack p5, ms",
    "batch: loops a second",
];

/// The kernel's loops and slack beside simulated ones.
///
/// # Errors
/// See [`super::compare`]; [`Problem::Unavailable`] too if rt-app is not installed.
pub fn compare(
    length: Duration,
    runs: usize,
    interrupt: &Interrupt,
    done: &mut impl FnMut(&Figure),
    answer: &mut Answer,
) -> Result<(), Problem> {
    let found = Command::new("rt-app")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_err() {
        return Err(Problem::Unavailable(
            "rt-app is not installed (Debian: apt install rt-app)".into(),
        ));
    }
    let base = Controller::find()?.base()?;
    let folder = Folder::new()?;
    // rt-app knows whole seconds.
    let seconds = length.as_secs().max(1);
    let free = Arc::new(base.group("service", false)?);
    let factor = probe(&folder, &free)?;
    let load = || run(&folder, &free, &file(seconds, &folder.0, factor));
    let recorded = Duration::from_secs(seconds);
    let notice = noticed("rt-app", recorded, load, answer)?;
    drop(free);
    for (name, cap) in caps() {
        let cgroup = Arc::new(base.group("service", false)?);
        cgroup.set_cap(cap)?;
        let mut kernel = Vec::new();
        for _ in 0..runs {
            if interrupt.is_raised() {
                return Err(Problem::Interrupted);
            }
            run(&folder, &cgroup, &file(seconds, &folder.0, factor))?;
            kernel.push(read(&folder, seconds)?);
        }
        cgroup.set_cap(None)?;
        let predict = |seed, notice| predicted(cap, seconds, seed, notice);
        let found = beside_simulated(name, NAMES, &kernel, notice, predict, done)?;
        answer.figures.extend(found);
    }
    Ok(())
}

/// Where files and logs are, gone when this is.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Problem> {
        let path = std::env::temp_dir().join(format!("quotient-rt-app-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(Problem::during("cannot make a folder"))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs rt-app in a cgroup: a thread enters it, and what it starts is inside from the first instruction on.
fn run(folder: &Folder, cgroup: &Arc<Cgroup>, file: &Value) -> Result<(), Problem> {
    let path = folder.0.join("file.json");
    std::fs::write(&path, file.to_string()).map_err(Problem::during("cannot write a file"))?;
    let cgroup = cgroup.clone();
    let thread = std::thread::spawn(move || {
        cgroup.enter()?;
        Command::new("rt-app")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(Problem::during("cannot run rt-app"))
    });
    let status = thread
        .join()
        .map_err(|_| Problem::Broken("the thread that runs rt-app panicked".into()))??;
    if status.success() {
        Ok(())
    } else {
        Err(Problem::Broken(format!("rt-app ended with {status}")))
    }
}

/// How long what rt-app calls a second is.
fn probe(folder: &Folder, cgroup: &Arc<Cgroup>) -> Result<f64, Problem> {
    let tasks = json!({ "probe": { "run": PROBE_US, "sleep": 1_000 } });
    run(
        folder,
        cgroup,
        &json!({ "global": global(1, &folder.0), "tasks": tasks }),
    )?;
    let rows = rows(folder, "probe")?;
    let mut lengths: Vec<f64> = rows.iter().map(|row| row.run).collect();
    Ok(at(&mut lengths, 0.25) / PROBE_US as f64)
}

/// A loop of a task, us.
struct Row {
    run: f64,
    slack: f64,
}

/// The loops of all instances of a task, as its logs tell them.
fn rows(folder: &Folder, task: &str) -> Result<Vec<Row>, Problem> {
    let entries = std::fs::read_dir(&folder.0).map_err(Problem::during("cannot read a folder"))?;
    let mut rows = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_of_task = name.to_str().is_some_and(|name| {
            name.starts_with(&format!("log-{task}-")) && name.ends_with(".log")
        });
        if !is_of_task {
            continue;
        }
        let text = std::fs::read_to_string(entry.path())
            .map_err(Problem::during("cannot read a log of rt-app"))?;
        rows.extend(parsed(&text)?);
    }
    Ok(rows)
}

/// Reads a log by the names of its columns.
fn parsed(text: &str) -> Result<Vec<Row>, Problem> {
    let strange = || Problem::Broken("a log of rt-app looks otherwise than expected".into());
    let head = text.lines().find(|line| line.starts_with("#idx"));
    let names: Vec<&str> = head.ok_or_else(strange)?.split_whitespace().collect();
    let place = |name: &str| names.iter().position(|known| *known == name);
    let (run, slack) = (
        place("run").ok_or_else(strange)?,
        place("slack").ok_or_else(strange)?,
    );
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let of = |index: usize| words.get(index)?.parse::<f64>().ok();
        Some(Row {
            run: of(run)?,
            slack: of(slack)?,
        })
    };
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| row(line).ok_or_else(strange))
        .collect()
}

fn read(folder: &Folder, seconds: u64) -> Result<[f64; 4], Problem> {
    let (web, batch) = (rows(folder, "web")?, rows(folder, "batch")?);
    let mut slack: Vec<f64> = web.iter().map(|row| row.slack.max(0.0) / 1e3).collect();
    let rate = |rows: &[Row]| rows.len() as f64 / seconds as f64;
    Ok([
        rate(&web),
        at(&mut slack, 0.5),
        at(&mut slack, 0.05),
        rate(&batch),
    ])
}

fn predicted(
    cap: Option<Cap>,
    seconds: u64,
    seed: u64,
    notice: Notice,
) -> Result<[f64; 4], Problem> {
    let mut plan = plan_for(cap, Duration::from_secs(seconds), seed, notice);
    let text = file(seconds, Path::new("."), 1.0).to_string();
    rtapp::add(&mut plan, "rt", Some(0), &text).map_err(Problem::during("the rt-app file"))?;
    // Tasks of a process do not start at one moment; which phase the period has is not known either.
    for (index, load) in plan.workloads.iter_mut().enumerate() {
        for task in &mut load.tasks {
            task.begin = quotient_core::Nanos(seed * 9_700_000 + index as u64 * 100_000);
        }
    }
    let outcome = simulated(&plan)?;
    let meter = |name: &str| outcome.meter(name).cloned().unwrap_or_default();
    let (web, batch, slack) = (meter("rt.web"), meter("rt.batch"), meter("rt.web.slack"));
    let rate = |done: u64| done as f64 / seconds as f64;
    Ok([
        rate(web.done),
        slack.times.p50_ns as f64 / 1e6,
        slack.times.p5_ns as f64 / 1e6,
        rate(batch.done),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_by_the_names_of_their_columns_or_refused() {
        let text = "# Policy : SCHED_OTHER priority : 0\n\
                    #idx     perf      run   period           start             end          rel_st      slack c_duration   c_period     wu_lat\n\
                    \x20  0   125000     2015     9963     60342350245     60342360208            2750       7759       2000      10000         78\n";
        let rows = parsed(text).expect("a log");
        assert_eq!(
            (rows.len(), rows[0].run, rows[0].slack),
            (1, 2015.0, 7759.0)
        );
        for wrong in ["", "#idx run\n", "#idx run slack\n1 2\n"] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_simulator_keeps_the_rates_of_the_file_unless_limited() {
        if crate::outcome::cpus() < 2.0 {
            return; // Three tasks that want a whole CPU do not keep their rates on one.
        }
        let [web, slack, _, batch] =
            predicted(None, 5, 1, Notice::EVERYTHING).expect("a valid file");
        assert!((web - 100.0).abs() < 2.0 && (batch - 100.0).abs() < 4.0);
        assert!((6.0..=8.1).contains(&slack), "{slack}");
        let limited = predicted(caps()[2].1, 5, 1, Notice::EVERYTHING).expect("a valid file");
        assert!(limited[3] < 0.8 * batch, "{limited:?}");
    }
}
