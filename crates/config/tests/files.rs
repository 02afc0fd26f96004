//! Hazards of files that people write: an error that does not say where, half of a file in force, a bad reload that takes
//! down what ran.

use std::path::PathBuf;
use std::time::Duration;

use quotient::{GroupConfig, Scheduler};
use quotient_config::{FIELDS, Reload, ReloadError, Reloader, Status, parse, reference};

/// Hangs are bounded by this and nothing else is: seconds on the slowest machine.
const HANG: Duration = Duration::from_secs(60);

fn problems(text: &str) -> Vec<String> {
    let problems = parse(text, 2).expect_err(text);
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn every_problem_is_named_with_its_line() {
    let text = "\
[groups.web]
weight = 0
max = \"9ms/2s\"
colour = 3

[groups.\"a//b\"]
[groups.late]
burst = \"5ms\"
idle = \"yes\"
queue_wait_max = 3

[children.tenants]
burst = \"5ms\"

[limits]
";
    let found = problems(text);
    let expected = [
        "2:10: groups.web.weight is 0, allowed are 1 to 10000",
        "3:7: groups.web.max: period of 2 s is outside 1 ms to 1 s",
        "4:1: groups.web has no setting \"colour\", known are weight, idle, max,",
        "6:9: ",
        "7:9: group \"late\" has no limit",
        "9:8: groups.late.idle is \"yes\", allowed are true and false",
        "10:18: groups.late.queue_wait_max is 3, allowed are digits with ns",
        "12:11: group \"tenants\" has no limit",
        "15:2: unknown section \"limits\", known are groups and children",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} should be {expected}");
    }
}

/// Hazard: one mistake after the other, each found only when the one before is mended.
#[test]
fn every_problem_of_a_group_is_named_at_once() {
    let text = "\
[groups.\"a//b\"]
weight = 20000
max = \"10us/5s\"
burst = \"1s\"

[groups.web]
max = \"5ms/100ms\"
burst = \"9999999999s\"
idle = 1

[children.tenants]
max = \"1ms/0ms\"
burst = \"1ms\"

[groups.\"tenants/a\"]
soft = true
tasks_max = -1
";
    let found = problems(text);
    let expected = [
        "1:9: ",
        "2:10: groups.\"a//b\".weight is 20000, allowed are 1 to 10000",
        "3:7: groups.\"a//b\".max: period of 5 s is outside 1 ms to 1 s",
        "3:7: groups.\"a//b\".max: quota of 10 us is outside 1 ms to",
        "8:9: group \"web\": burst of 9999999999 s is outside 0 ns to",
        "9:8: groups.web.idle is 1, allowed are true and false",
        "12:7: children.tenants.max: period of 0 ns is outside 1 ms to 1 s",
        "17:13: groups.\"tenants/a\".tasks_max is -1, allowed are integers from 0",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} should be {expected}");
    }
}

#[test]
fn what_is_no_toml_is_told_from_what_is_no_setting() {
    let problems = parse("[groups.web]\nweight 3\n", 2).expect_err("no TOML");
    assert!(
        problems.is_syntax() && problems.to_string().starts_with("2:"),
        "{problems}"
    );
    assert!(!parse("[x]", 2).expect_err("no setting").is_syntax());
    let twice = "[groups.a]\nweight = 1\nweight = 2\n";
    assert!(
        problems_at(twice).starts_with("3:1: "),
        "{}",
        problems_at(twice)
    );
    let long = "#".repeat(quotient_config::TEXT_BYTES_MAX + 1);
    assert!(problems_at(&long).contains("allowed are 4194304"));
}

fn problems_at(text: &str) -> String {
    parse(text, 2).expect_err("bad").to_string()
}

#[test]
fn every_form_is_read() {
    let text = "\
[groups.\"tenants/acme\"]
weight = 300
max = { cpus = 1.5 }
burst = \"5ms\"
soft = true
smooth = false
tasks_max = 1_000
queue_wait_max = \"2s\"
preemptible = false
idle = false
[children.\"\"]
max = { share = 0.25 }
";
    let config = parse(text, 2).expect("it is right");
    let acme = GroupConfig::new()
        .weight(300)
        .max(quotient::Cpus(1.5))
        .burst(Duration::from_millis(5))
        .soft(true)
        .smooth(false)
        .tasks_max(1_000)
        .queue_wait_max(Duration::from_secs(2))
        .preemptible(false)
        .idle(false);
    assert_eq!(
        config.groups().collect::<Vec<_>>(),
        [("tenants/acme", &acme)]
    );
    let share = GroupConfig::new().max(quotient::Share(0.25));
    assert_eq!(config.children().collect::<Vec<_>>(), [("", &share)]);
}

#[test]
fn the_reference_has_every_setting() {
    let text = reference();
    assert!(
        FIELDS
            .iter()
            .all(|field| text.contains(&format!("\n{} = ", field.name)))
    );
}

struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let name = format!("quotient-config-{}-{name}.toml", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// As an editor should: no reader sees half of it.
    fn write(&self, text: &str) {
        let fresh = self.0.with_extension("new");
        std::fs::write(&fresh, text).expect("the folder for temporary files can be written");
        std::fs::rename(&fresh, &self.0).expect("a rename within a folder");
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

async fn until(reloader: &mut Reloader, is_it: impl Fn(&Status) -> bool) -> Status {
    let wait = async {
        while !is_it(&reloader.status()) {
            reloader.changed().await.expect("the task runs on");
        }
    };
    tokio::time::timeout(HANG, wait).await.expect("it hangs");
    reloader.status()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_file_keeps_what_is_in_force() {
    let scheduler = Scheduler::builder().vcpus(2).build().expect("a scheduler");
    let file = File::new("every");
    let start = || {
        Reload::new(&scheduler, &file.0)
            .every(Duration::from_millis(10))
            .start()
    };
    assert!(matches!(start(), Err(ReloadError::File { .. })));
    file.write("[groups.web]\nweight = 0\n");
    let refused = start().expect_err("no weight").to_string();
    assert!(
        refused.contains(".toml:2:10: groups.web.weight is 0"),
        "{refused}"
    );
    file.write("[groups.web]\nweight = 300\nmax = \"50ms/100ms\"\n");
    let mut reloader = start().expect("it is good now");
    let web = scheduler.find("web").expect("it was made");
    assert_eq!((web.weight(), web.max().is_some()), (300, true));
    file.write("[groups.web]\nweight = 7\nmax = \"never\"\n");
    let status = until(&mut reloader, |status| status.refused == 1).await;
    assert!(
        status
            .error
            .is_some_and(|error| error.to_string().contains(":3:7:"))
    );
    assert_eq!((web.weight(), web.max().is_some()), (300, true));
    file.write("[groups.web]\nweight = 7\n");
    let status = until(&mut reloader, |status| status.applied == 2).await;
    assert_eq!((status.error, web.weight(), web.max()), (None, 7, None));
    std::fs::remove_file(&file.0).expect("it is there");
    until(&mut reloader, |status| status.refused == 2).await;
    assert_eq!(web.weight(), 7);
    scheduler.shutdown().await;
    assert!(
        Reload::new(&scheduler, &file.0)
            .every(Duration::ZERO)
            .start()
            .is_err()
    );
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hangup_reloads_and_ends_nothing() {
    use rustix::process::{Signal, getpid, kill_process};
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let file = File::new("hangup");
    file.write("[children.tenants]\nweight = 50\n");
    let mut reloader = Reload::new(&scheduler, &file.0)
        .on_hangup()
        .start()
        .expect("good");
    file.write("[children.tenants]\nweight = 60\n");
    kill_process(getpid(), Signal::HUP).expect("a signal to ourselves");
    until(&mut reloader, |status| status.applied == 2).await;
    let tenant = scheduler.group("tenants/x").unwrap().create().unwrap();
    assert_eq!(tenant.weight(), 60);
    drop(reloader);
    scheduler.shutdown().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fifo_in_the_files_place_stops_reloads_for_ever() {
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let file = File::new("fifo");
    file.write("[groups.web]\nweight = 300\n");
    let every = Duration::from_millis(10);
    let start = || Reload::new(&scheduler, &file.0).every(every).start();
    let mut reloader = start().expect("good");
    std::fs::remove_file(&file.0).unwrap();
    until(&mut reloader, |status| status.refused == 1).await;
    rustix::fs::mkfifoat(rustix::fs::CWD, &file.0, rustix::fs::Mode::RUSR).unwrap();
    let status = until(&mut reloader, |status| status.refused == 2).await;
    let error = status.error.expect("it was refused").to_string();
    assert!(error.ends_with("it is no regular file"), "{error}");
    assert!(matches!(start(), Err(ReloadError::File { .. })));
    std::fs::remove_file(&file.0).unwrap();
    file.write("[groups.web]\nweight = 7\n");
    until(&mut reloader, |status| status.applied == 2).await;
    assert_eq!(scheduler.find("web").unwrap().weight(), 7);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_came_while_a_group_was_removed_is_never_in_force() {
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let file = File::new("removed");
    file.write("");
    let mut reloader = Reload::new(&scheduler, &file.0)
        .every(Duration::from_millis(10))
        .start()
        .expect("good");
    let group = scheduler.group("web").unwrap().create().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (began, has_begun) = std::sync::mpsc::channel();
    let task = group.spawn(async move {
        began.send(()).ok();
        released.recv().ok();
    });
    has_begun.recv().unwrap();
    group.remove(quotient::Leftover::Kill).unwrap();
    file.write("[groups.web]\nweight = 7\n");
    let status = until(&mut reloader, |status| status.refused == 1).await;
    assert!(status.error.unwrap().to_string().contains("was removed"));
    drop(release);
    task.await.ok();
    let status = until(&mut reloader, |status| status.applied == 2).await;
    assert_eq!((status.refused, status.error), (1, None));
    assert_eq!(scheduler.find("web").unwrap().weight(), 7);
    scheduler.shutdown().await;
}
