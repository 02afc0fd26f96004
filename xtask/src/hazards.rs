//! The faults that a review of the runtime reproduced, and the tests that hold each of them down: run many times, beside busy threads.
//!
//! `cargo run -p xtask -- hazards [--repeat N] [--load N] [--minutes N] [--only TEXT] [--list]`
//!
//! In the suite each test runs its interleavings 5 times. Here it is 100 times on 1, 2 and 4 workers each, beside 4 busy threads, with
//! a bound on the time of each row: a row that exceeds it is ended and has failed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// One fault, and what guards against it.
struct Hazard {
    /// The fault's number in the review, and the program that showed it.
    fault: &'static str,
    /// What went wrong.
    what: &'static str,
    /// File of `crates/runtime/tests`, without its ending.
    file: &'static str,
    /// Tests in it; empty for all.
    tests: &'static [&'static str],
}

const fn hazard(
    fault: &'static str,
    what: &'static str,
    file: &'static str,
    tests: &'static [&'static str],
) -> Hazard {
    Hazard {
        fault,
        what,
        file,
        tests,
    }
}

/// Every case of the review's program, in its order.
const HAZARDS: [Hazard; 15] = [
    hazard(
        "R1 bip",
        "a task that asks an actor of its group from block_in_place hangs",
        "ask_actor_from_block_in_place",
        &[],
    ),
    hazard(
        "R2 gate",
        "a future in_group hangs once its group or scheduler ends",
        "gate",
        &[
            "a_wake_up_after_the_end_of_the_group_arrives",
            "a_wake_up_at_the_end_of_the_group_arrives",
            "a_turn_that_is_outstanding_when_the_group_ends_is_not_lost",
            "a_group_that_is_killed_again_and_again_lets_its_futures_end",
            "a_future_of_a_group_that_is_gone_is_billed_and_ends",
            "local_tasks_end_with_their_group",
        ],
    ),
    hazard(
        "R2 selfshutdown",
        "a shutdown that is awaited inside in_group hangs",
        "gate",
        &["a_shutdown_that_is_awaited_inside_does_not_wait_for_itself"],
    ),
    hazard(
        "R4 two",
        "checkpoint in in_group of another scheduler indexes out of bounds",
        "two_schedulers_in_a_process",
        &["checkpoint_in_a_group_of_another"],
    ),
    hazard(
        "R4 twobip",
        "block_in_place in in_group of another scheduler marks the wrong virtual CPU",
        "two_schedulers_in_a_process",
        &["block_in_place_in_a_group_of_another"],
    ),
    hazard(
        "R3 conserve",
        "children of a task that computes or blocks wait beside an idle virtual CPU",
        "work_waits_behind_a_stuck_poll",
        &[
            "children_of_a_computing_poll",
            "children_of_a_sleeping_poll",
            "children_of_a_poll_that_blocks_in_place",
            "children_of_a_poll_in_tokios_block_in_place",
        ],
    ),
    hazard(
        "R8 foreignhog",
        "tasks wait behind a long foreign poll",
        "work_waits_behind_a_stuck_poll",
        &["tasks_beside_foreign_polls_on_every_worker"],
    ),
    hazard(
        "R7 kill",
        "tasks that spawn their successors outlive a kill",
        "successors_outlive_a_kill",
        &["one_kill_ends_tasks_that_spawn_their_successors"],
    ),
    hazard(
        "R7 frozenmove",
        "a task that was moved out of a frozen group never runs",
        "successors_outlive_a_kill",
        &["a_task_moved_out_of_a_frozen_group_runs"],
    ),
    hazard(
        "R5 spawnblocking",
        "a detached task of a blocking function never runs, in silence",
        "blocking",
        &["blocking_functions_inherit_the_group_and_so_does_what_they_spawn"],
    ),
    hazard(
        "R11 ids",
        "all tasks of a virtual CPU have one name",
        "spawning",
        &["tasks_of_one_virtual_cpu_share_a_name"],
    ),
    hazard(
        "R6 header",
        "a tenant whose group was removed is dead for good",
        "a_removed_tenant_stays_dead",
        &["a_removed_tenant_comes_back_with_its_next_request"],
    ),
    hazard(
        "R8 churn",
        "groups that come and go leave memory behind",
        "groups_that_went_leave_memory",
        &["groups_that_come_and_go"],
    ),
    hazard(
        "R10 groupmem",
        "a group takes tens of kilobytes",
        "groups_that_went_leave_memory",
        &["what_a_group_takes_on_each_virtual_cpu"],
    ),
    hazard(
        "large",
        "a future of hundreds of kilobytes overflows a stack",
        "tasks",
        &["a_large_future_overflows_the_stack"],
    ),
];

/// What was asked for.
struct Options {
    repeat: u32,
    load: u32,
    /// For each row.
    limit: Duration,
    only: String,
}

/// The command. Exit status 1 if a test failed, 2 for wrong arguments.
pub fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    if arguments == ["--list"] {
        for hazard in &HAZARDS {
            let tests = match hazard.tests {
                [] => "all".to_owned(),
                tests => tests.join(", "),
            };
            println!(
                "{}: {}\n    {}: {tests}",
                hazard.fault, hazard.what, hazard.file
            );
        }
        return ExitCode::SUCCESS;
    }
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("hazards: {error}");
            return ExitCode::from(2);
        }
    };
    let rows = HAZARDS
        .iter()
        .filter(|row| row.fault.contains(&options.only));
    // All first, so that what runs is of one state of the sources.
    let programs: Vec<_> = rows.map(|row| (row, build(root, row.file))).collect();
    let ran = programs.len();
    let mut failed = Vec::new();
    for (hazard, program) in programs {
        let began = Instant::now();
        let result = program.and_then(|program| repeat(&program, hazard, &options));
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(summary) => println!("ok      {:<16} {seconds:>6.1} s  {summary}", hazard.fault),
            Err(error) => {
                println!("FAILED  {:<16} {seconds:>6.1} s  {error}", hazard.fault);
                failed.push(hazard.fault);
            }
        }
    }
    if ran == 0 {
        eprintln!(
            "hazards: no row is called {:?}; --list names them",
            options.only
        );
        return ExitCode::from(2);
    }
    println!("hazards: {ran} rows, {} failed {failed:?}", failed.len());
    ExitCode::from(u8::from(!failed.is_empty()))
}

fn parse(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options {
        repeat: 100,
        load: 4,
        limit: Duration::from_secs(10 * 60),
        only: String::new(),
    };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} wants a value", pair[0]));
        };
        let number = || {
            let number = value
                .parse::<u32>()
                .ok()
                .filter(|number| *number <= 1_000_000);
            number.ok_or_else(|| format!("{name}: {value:?} is not a number up to 1000000"))
        };
        match *name {
            "--repeat" => options.repeat = number()?.max(1),
            "--load" => options.load = number()?,
            "--minutes" => options.limit = Duration::from_secs(u64::from(number()?.max(1)) * 60),
            "--only" => (*value).clone_into(&mut options.only),
            _ => return Err(format!("{name} is not known")),
        }
    }
    Ok(options)
}

/// Builds a test file; the path of its program.
fn build(root: &Path, file: &str) -> Result<PathBuf, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--locked", "--quiet", "-p", "quotient", "--no-run"])
        .args(["--message-format=json-render-diagnostics", "--test", file])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo cannot be started: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let program = messages.rsplit("\"executable\":\"").next();
    let program = program.and_then(|rest| rest.split('"').next());
    match program {
        Some(program) if output.status.success() => Ok(program.into()),
        _ => Err(format!("{file} does not build")),
    }
}

/// Runs the row's tests; what they said at the end.
fn repeat(program: &Path, hazard: &Hazard, options: &Options) -> Result<String, String> {
    let child = Command::new(program)
        .arg("--exact")
        .args(hazard.tests)
        .env("QUOTIENT_REPEAT", options.repeat.to_string())
        .env("QUOTIENT_LOAD", options.load.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = ended_within(child, options.limit)?;
    let summary = text.lines().find(|line| line.starts_with("test result"));
    let summary = summary.unwrap_or("the tests ended without a result");
    let passed = format!("ok. {} passed;", hazard.tests.len());
    let all = if hazard.tests.is_empty() {
        "ok. "
    } else {
        &passed
    };
    if summary.contains(all) {
        Ok(summary.to_owned())
    } else {
        Err(format!("{summary}\n{text}"))
    }
}

/// What the program printed, once it has ended; one that does not end in time is ended.
fn ended_within(mut child: Child, limit: Duration) -> Result<String, String> {
    use std::io::Read;

    let mut stdout = child.stdout.take().ok_or("no output")?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not end within {} s", limit.as_secs()));
            }
            Err(error) => return Err(format!("cannot wait for the tests: {error}")),
        }
    }
    reader
        .join()
        .map_err(|_| "the reader of its output panicked".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A renamed test would be filtered out, and its row say nothing.
    #[test]
    fn every_test_of_the_table_is_there_and_runs_on_one_two_and_four_workers() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for hazard in &HAZARDS {
            let path = root.join(format!("crates/runtime/tests/{}.rs", hazard.file));
            let text = std::fs::read_to_string(&path).unwrap();
            for test in hazard.tests {
                let head = format!("#[test]\nfn {test}()");
                assert!(text.contains(&head), "{test} is not in {}", path.display());
            }
            let repeats =
                text.contains("repeatedly(") || text.contains("on_one_two_and_four_workers");
            assert!(repeats, "{} runs once", path.display());
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        assert!(parse(&["--repeat"]).is_err());
        assert!(parse(&["--repeat", "many"]).is_err());
        assert!(parse(&["--often", "3"]).is_err());
        let options = parse(&["--load", "2", "--only", "R1"]).unwrap();
        assert_eq!((options.repeat, options.load), (100, 2));
        assert_eq!(options.only, "R1");
    }

    #[test]
    fn what_does_not_end_is_ended() {
        let child = Command::new("sleep")
            .arg("60")
            .stdout(Stdio::piped())
            .spawn();
        // Where there is no `sleep`, there is nothing to test.
        if let Ok(child) = child {
            assert!(ended_within(child, Duration::from_millis(100)).is_err());
        }
    }
}
