//! What the runtime records is a schedule that keeps every rule, and says what the runtime's own figures say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient::{Cpus, Scheduler};
use quotient_trace::check::{Check, Options};
use quotient_trace::{Figures, Ftrace, Item, JsonLines, Reader, Statistics};

fn runtime(workers: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn spin(length: Duration) {
    let began = Instant::now();
    while began.elapsed() < length {
        std::hint::spin_loop();
    }
}

/// Feeds a written log to the statistics and to the check.
fn judge(text: &[u8], options: Options) -> Figures {
    let mut reader = Reader::open(text).expect("our own log");
    let (mut check, mut statistics) = (Check::new(options), Statistics::new());
    while let Some(item) = reader.next_item().expect("our own log") {
        match item {
            Item::Definition(definition) => {
                check.define(&definition);
                quotient_trace::Sink::define(&mut statistics, &definition);
            }
            Item::Event(event) => {
                check.event(&event, reader.line());
                quotient_trace::Sink::event(&mut statistics, &event);
            }
        }
    }
    let findings = check.finish();
    assert!(findings.is_clean(), "{:#?}", findings.breaches);
    statistics.finish()
}

/// The machine may be busy with other tests: how long somebody waits proves nothing here.
fn patient() -> Options {
    Options {
        idle_wait_max: Duration::from_secs(60).into(),
        wait_max: Duration::from_secs(60).into(),
        ..Options::default()
    }
}

#[test]
fn a_recorded_program_keeps_every_rule() {
    for workers in [1, 2] {
        runtime(workers).block_on(async {
            let scheduler = Scheduler::builder().build().expect("inside a runtime");
            let recording = scheduler.record(1 << 18).expect("nobody records yet");
            assert!(scheduler.record(1).is_err(), "one recording at a time");
            let (left, right) = (
                scheduler.group("tenants/left").unwrap().create().unwrap(),
                scheduler.group("tenants/right").unwrap().create().unwrap(),
            );
            let mut tasks = Vec::new();
            for group in [&left, &right] {
                for _ in 0..4 {
                    tasks.push(group.spawn(async {
                        let (sender, mut receiver) = tokio::sync::mpsc::channel::<u32>(1);
                        let echo = quotient::spawn(async move {
                            let mut sum = 0;
                            while let Some(value) = receiver.recv().await {
                                spin(Duration::from_micros(20));
                                sum += value;
                            }
                            sum
                        });
                        for value in 0..50 {
                            sender.send(value).await.expect("the echo listens");
                            tokio::task::yield_now().await;
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        drop(sender);
                        echo.await.expect("it ends")
                    }));
                }
            }
            let mut text = Vec::new();
            let mut log = JsonLines::new(&mut text);
            for task in tasks {
                assert_eq!(task.await.expect("it ends"), 1225);
                recording.drain(&mut log);
            }
            let (stats, polls) = (left.cpu_time(), left.stats().polls);
            assert_eq!(recording.finish(&mut log).lost, 0);
            log.finish().expect("memory");
            let figures = judge(&text, patient());
            let group = figures
                .groups
                .iter()
                .find(|group| group.group == "tenants/left");
            let group = group.expect("it ran");
            let recorded = Duration::from_nanos(group.cpu_ns);
            let apart = recorded.abs_diff(stats);
            assert!(apart <= Duration::from_millis(1), "{recorded:?} {stats:?}");
            assert!(group.runs.abs_diff(polls) <= 2, "{} {polls}", group.runs);
            scheduler.shutdown().await;
        });
    }
}

#[test]
fn throttles_and_refills_are_recorded() {
    runtime(2).block_on(async {
        let scheduler = Scheduler::builder().build().expect("inside a runtime");
        let group = scheduler.group("capped").unwrap();
        // So little that even a busy machine gives more.
        let group = group.max(Cpus(0.02)).create().unwrap();
        let recording = scheduler.record(1 << 18).expect("nobody records yet");
        let enough = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..3)
            .map(|_| {
                let enough = enough.clone();
                group.spawn(async move {
                    while !enough.load(Ordering::Relaxed) {
                        spin(Duration::from_micros(200));
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let began = Instant::now();
        while group.stats().bandwidth.nr_throttled < 4 && began.elapsed() < Duration::from_secs(30)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        enough.store(true, Ordering::Relaxed);
        for hog in hogs {
            hog.await.expect("it ends");
        }
        let before = group.stats().bandwidth;
        let mut log = Ftrace::new(Vec::new());
        assert_eq!(recording.finish(&mut log).lost, 0);
        let after = group.stats().bandwidth;
        let text = log.finish().expect("memory");
        let figures = judge(&text, patient());
        let mut groups = figures.groups.iter();
        let capped = groups.find(|figures| figures.group == "capped");
        let capped = capped.expect("it ran");
        let periods = before.nr_periods..=after.nr_periods;
        assert!(
            periods.contains(&capped.nr_periods),
            "{capped:?} {periods:?}"
        );
        assert!(capped.nr_throttled >= 3, "{capped:?}");
        assert!(capped.throttled_ns > 0, "{capped:?}");
        scheduler.shutdown().await;
    });
}

#[test]
fn a_full_ring_forgets_the_oldest_and_counts() {
    runtime(1).block_on(async {
        let scheduler = Scheduler::builder().build().expect("inside a runtime");
        let recording = scheduler.record(100).expect("nobody records yet");
        let group = scheduler.group("a").unwrap().create().unwrap();
        let yielder = group.spawn(async {
            for _ in 0..500 {
                tokio::task::yield_now().await;
            }
        });
        let other = group.spawn(async {
            for _ in 0..500 {
                tokio::task::yield_now().await;
            }
        });
        yielder.await.expect("it ends");
        other.await.expect("it ends");
        let mut text = Vec::new();
        let mut log = JsonLines::new(&mut text);
        let drained = recording.finish(&mut log);
        log.finish().expect("memory");
        assert!(drained.lost > 500 && drained.events <= 205, "{drained:?}");
        let figures = judge(&text, patient());
        assert_eq!(figures.lost, drained.lost);
        scheduler.shutdown().await;
    });
}

/// Long polls are taken off their virtual CPU, stopped and resumed; a trace in which such a task just runs, or is somebody else, or stands
/// for ever, explains nothing.
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#[test]
fn long_polls_vanish_from_traces() {
    let runtime = runtime(2);
    runtime.block_on(async {
        let scheduler = Scheduler::builder().vcpus(1);
        let scheduler = scheduler.preempt(quotient::Preempt::default());
        let scheduler = scheduler.build().expect("inside a runtime");
        let recording = scheduler.record(1 << 16).expect("nobody records yet");
        let group = scheduler.group("hogs").unwrap().create().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                group.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                })
            })
            .collect();
        let began = Instant::now();
        loop {
            let stats = scheduler.preempt_stats().expect("it preempts");
            if stats.detached >= 3 && stats.pauses >= 20 && stats.aged >= 2 {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{stats:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for hog in hogs {
            hog.await.expect("it ends");
        }
        let used = group.cpu_time();
        let before = scheduler.preempt_stats().expect("it preempts");
        scheduler.shutdown().await;
        let mut text = Vec::new();
        let mut log = JsonLines::new(&mut text);
        assert_eq!(recording.finish(&mut log).lost, 0);
        log.finish().expect("memory");
        let figures = judge(&text, patient());
        let hogs = figures.groups.iter().find(|group| group.group == "hogs");
        let hogs = hogs.expect("it ran");
        assert_eq!(hogs.detached, before.detached, "{hogs:?}");
        let stops = before.pauses + before.aged;
        assert!(hogs.pauses >= 10 && hogs.pauses <= stops + 20, "{hogs:?}");
        assert!(hogs.longest_pause_ns <= hogs.paused_ns, "{hogs:?}");
        let recorded = Duration::from_nanos(hogs.cpu_ns);
        let apart = recorded.abs_diff(used);
        assert!(apart < used / 10, "recorded {recorded:?} of {used:?}");
        // Each hog is one task in the trace, whoever stood for it.
        let tasks = figures.tasks.iter().filter(|task| task.group == "hogs");
        assert_eq!(tasks.count(), 3, "{:?}", figures.tasks);
        assert!(figures.tasks.iter().all(|task| task.detached >= 1));
        let (page, slices) = (page_of(&text), perfetto_of(&text));
        assert!(page.contains("Stopped inside polls") && page.contains("<h2>Long polls</h2>"));
        assert!(contains(&slices, "stands") && contains(&slices, "resumed: aging"));
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

fn feed<S: quotient_trace::Sink>(text: &[u8], sink: &mut S) {
    let mut reader = Reader::open(text).expect("our own log");
    while let Some(item) = reader.next_item().expect("our own log") {
        match item {
            Item::Definition(definition) => sink.define(&definition),
            Item::Event(event) => sink.event(&event),
        }
    }
}

fn page_of(text: &[u8]) -> String {
    let (mut html, mut page) = (quotient_trace::Html::new(), Vec::new());
    feed(text, &mut html);
    html.finish("a page", &mut page).expect("memory");
    String::from_utf8(page).expect("text")
}

fn perfetto_of(text: &[u8]) -> Vec<u8> {
    let mut perfetto = quotient_trace::Perfetto::new(Vec::new());
    feed(text, &mut perfetto);
    perfetto.finish().expect("memory")
}

fn contains(bytes: &[u8], text: &str) -> bool {
    let mut windows = bytes.windows(text.len());
    windows.any(|window| window == text.as_bytes())
}
