//! Hazards of a text that others parse: names of groups that break a line, samples of a family that are torn apart, buckets that do not
//! add up, a dashboard that asks for what is not there.

use std::collections::BTreeSet;
use std::time::Duration;

use quotient::{Cpus, Scheduler};
use quotient_prometheus::{Exporter, FAMILIES, Kind};

/// A sample: name, labels as written, value.
fn sample(line: &str) -> (String, String, f64) {
    let (series, value) = line.rsplit_once(' ').expect(line);
    let value = value.parse().expect(line);
    match series.split_once('{') {
        Some((name, labels)) => {
            let labels = labels.strip_suffix('}').expect(line);
            check_labels(labels);
            (name.to_owned(), labels.to_owned(), value)
        }
        None => (series.to_owned(), String::new(), value),
    }
}

/// `a="…",b="…"`, with nothing but escapes, letters and no bare quote inside.
fn check_labels(labels: &str) {
    let mut rest = labels;
    loop {
        let (name, value) = rest.split_once("=\"").expect(labels);
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        assert!(!name.is_empty() && name.bytes().all(is_name), "{labels}");
        let mut letters = value.char_indices();
        let end = loop {
            match letters.next().expect(labels) {
                (_, '\\') => {
                    let (_, escaped) = letters.next().expect(labels);
                    assert!("\\\"n".contains(escaped), "{labels}");
                }
                (at, '"') => break at,
                (_, letter) => assert_ne!(letter, '\n'),
            }
        };
        rest = match value[end + 1..].strip_prefix(',') {
            Some(rest) => rest,
            None => {
                assert_eq!(&value[end + 1..], "", "{labels}");
                return;
            }
        };
    }
}

/// The family of a sample.
fn family(name: &str) -> Option<&'static quotient_prometheus::Family> {
    FAMILIES.iter().find(|family| match family.kind {
        Kind::Histogram => ["_bucket", "_sum", "_count"]
            .iter()
            .any(|suffix| name.strip_suffix(suffix) == Some(family.name)),
        _ => family.name == name,
    })
}

async fn busy_page() -> String {
    let scheduler = Scheduler::builder().vcpus(2).build().expect("a scheduler");
    let exporter = Exporter::new(&scheduler)
        .record_poll_durations()
        .expect("nothing hinders")
        .record_pressure();
    let names = ["a\"b", "back\\slash", "{id=\"x\"} 1", "#", " ", "ü", "\\n"];
    for name in names {
        let group = scheduler
            .group(name)
            .and_then(|builder| builder.max(Cpus(0.5)).create());
        let group = group.expect(name);
        let task = group.spawn(async {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        });
        task.await.expect("no panic");
        group.kill().expect("not the root");
    }
    let refused = scheduler
        .group("full")
        .and_then(|builder| builder.tasks_max(0).create());
    refused
        .expect("a group")
        .spawn(async {})
        .await
        .expect_err("no task is allowed");
    // What was polled last may still be charged.
    let page = exporter.render();
    scheduler.shutdown().await;
    squeezed(page)
}

/// With one blank before each value: the format allows any number.
fn squeezed(mut page: String) -> String {
    while page.contains("  ") {
        page = page.replace("  ", " ");
    }
    page
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_can_be_read_whatever_groups_are_called() {
    let page = busy_page().await;
    let mut current = None;
    let mut done = BTreeSet::new();
    let mut series = BTreeSet::new();
    for line in page.lines() {
        if let Some(head) = line.strip_prefix("# ") {
            let name = head.split(' ').nth(1).expect(line).to_owned();
            if current.as_ref() != Some(&name) {
                assert!(done.insert(name.clone()), "{name} comes twice");
                current = Some(name);
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        let family = family(&name).unwrap_or_else(|| panic!("{name} is no family"));
        assert_eq!(current.as_deref(), Some(family.name), "torn apart: {line}");
        assert!(value >= 0.0, "{line}");
        assert!(series.insert((name, labels)), "twice: {line}");
    }
    for expected in [
        "container_spec_cpu_quota{id=\"/a\\\"b\"} 50000\n",
        "container_spec_cpu_period{id=\"/back\\\\slash\"} 100000\n",
        "quotient_run_delay_seconds_bucket{id=\"/{id=\\\"x\\\"} 1\",le=\"+Inf\"} ",
        "quotient_polls_total{id=\"/\\\\n\"} ",
        "quotient_losses_total{id=\"/full\",kind=\"refused_tasks\"} 1\n",
        "\nquotient_vcpus 2\n",
        "container_pressure_cpu_waiting_seconds_total{id=\"/ü\"} ",
        "quotient_pressure_cpu_ratio{id=\"/ü\",kind=\"full\",window=\"300\"} ",
        "# TYPE quotient_poll_duration_seconds histogram\n",
    ] {
        assert!(page.contains(expected), "{expected} is missing:\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_grow_up_to_the_count() {
    let page = busy_page().await;
    for name in [
        "quotient_run_delay_seconds",
        "quotient_poll_duration_seconds",
    ] {
        let lines = page
            .lines()
            .filter(|line| line.starts_with(&format!("{name}_")));
        let (mut last, mut total, mut seen) = (0.0, 0.0, 0);
        for line in lines {
            let (sample, labels, value) = sample(line);
            if sample.ends_with("_bucket") {
                assert!(value >= last, "{line}");
                last = value;
                if labels.ends_with("le=\"+Inf\"") {
                    (total, last) = (value, 0.0);
                }
            } else if sample.ends_with("_count") {
                assert_eq!(value, total, "{line}");
                assert!(value >= 51.0, "{line}");
                seen += 1;
            }
        }
        assert_eq!(seen, 7, "{name} of each group that ran");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_are_those_of_the_groups() {
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let group = scheduler
        .group("t/x")
        .and_then(|builder| builder.weight(300).create());
    let group = group.expect("a group");
    let task = group.spawn(async { std::thread::sleep(Duration::from_millis(2)) });
    task.await.expect("no panic");
    let exporter = Exporter::new(&scheduler).histograms(false);
    // What the worker did to end the task may be charged between the looks.
    let before = group.cpu_time().as_secs_f64();
    let page = squeezed(exporter.render());
    let after = group.cpu_time().as_secs_f64();
    let value = |series: &str| {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{series} ")));
        sample(line.unwrap_or_else(|| panic!("{series} is missing:\n{page}"))).2
    };
    let cpu = value("container_cpu_usage_seconds_total{id=\"/t/x\"}");
    assert!(
        (before - 1e-9..=after + 1e-9).contains(&cpu),
        "{before} {cpu} {after}"
    );
    assert_eq!(value("container_spec_cpu_shares{id=\"/t/x\"}"), 3072.0);
    assert_eq!(value("quotient_polls_total{id=\"/t/x\"}"), 1.0);
    assert!(value("quotient_longest_poll_seconds{id=\"/t/x\"}") >= 0.002);
    assert!(!page.contains("container_spec_cpu_quota") && !page.contains("_bucket"));
    scheduler.shutdown().await;
}

/// A page is written into where the last one had its values: after each kind of change it says what one says that is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_keeps_what_has_changed() {
    let scheduler = Scheduler::builder().vcpus(2).build().expect("a scheduler");
    let exporter = Exporter::new(&scheduler)
        .record_poll_durations()
        .expect("nothing hinders");
    let text = |exporter: &Exporter| squeezed(exporter.render());
    let check = |what: &str| {
        // The end of a task may be charged between the two.
        let hang = std::time::Instant::now() + Duration::from_secs(120);
        while text(&exporter) != text(&Exporter::new(&scheduler)) {
            assert!(std::time::Instant::now() < hang, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    check("nothing is there");
    let make = |name: &str| {
        let builder = scheduler.group(name).expect("a path");
        builder.create().expect("a group")
    };
    let (first, second) = (make("first"), make("second"));
    check("groups come");
    for _ in 0..3 {
        for group in [&first, &second] {
            group
                .spawn(tokio::task::yield_now())
                .await
                .expect("no panic");
        }
        check("they run");
    }
    let held = exporter.page();
    let copy = held.as_ref().to_vec();
    second.spawn(async {}).await.expect("no panic");
    check("one runs while a page is kept");
    assert_eq!(held.as_ref(), copy, "a page that is kept changes");
    first.set_max(Cpus(0.5)).expect("a limit");
    check("a limit comes");
    first.set_weight(10_000).expect("a weight");
    check("a weight outgrows its place");
    first.remove(quotient::Leftover::Kill).expect("no tasks");
    check("a group goes");
    make("zeroth");
    make("first");
    check("one comes before the others, and one has the old name");
    let full = scheduler
        .group("full")
        .and_then(|builder| builder.tasks_max(0).create());
    let full = full.expect("a group");
    for _ in 0..2 {
        full.spawn(async {}).await.expect_err("no task is allowed");
        check("a loss");
    }
    full.kill().expect("not the root");
    check("another kind of loss, perhaps");
    scheduler.shutdown().await;
}

/// Limits that do not hold any more were on no page.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn polls_that_cannot_be_stopped_are_left_out() {
    let builder = Scheduler::builder().vcpus(1);
    let scheduler = builder.preempt(quotient::Preempt::default()).build();
    let scheduler = scheduler.unwrap();
    let page = Exporter::new(&scheduler).render();
    for name in ["detached", "refused", "pauses", "unpaused", "rescues"] {
        let name = format!("quotient_preempt_{name}_total");
        let mut names = page.lines().map(|line| line.split_whitespace().next());
        let is_there = names.any(|known| known == Some(&name));
        assert!(is_there, "{name}: {page}");
    }
    scheduler.shutdown().await;
}

#[test]
fn the_dashboard_asks_only_for_what_there_is() {
    let text = include_str!("../dashboards/quotient.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut asked = 0;
    for target in panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array())
        .flatten()
    {
        let expression = target["expr"].as_str().expect("an expression");
        let words =
            expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in
            words.filter(|word| word.starts_with("container_") || word.starts_with("quotient_"))
        {
            assert!(family(word).is_some(), "{word} in {expression}");
            asked += 1;
        }
    }
    assert!(asked >= 8, "only {asked} figures");
}
