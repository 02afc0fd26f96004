//! `quotient bench polls`: an echo server beside tasks whose single polls take long.
//!
//! The victim is TCP echo on four connections of 250 requests a second each, open loop: a latency counts from when the request was
//! to be sent. The hogs compute for a given CPU time a poll, or for ever. Sides, in turn: plain tokio; the hogs on a second runtime
//! (today's practice), and with that runtime's threads at nice 10 (the strongest rival); Quotient without and with preemption,
//! with equal weights; and with the hogs limited to 10 ms in 100. Each row says what the host stole meanwhile.
//!
//! Each round ends with the victim alone. A round counts if the victim is well then and the host steals little in every row; what
//! does not count is shown, and left out of the ratios (medians of the rounds that count, by the row of two runtimes beside them).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use quotient::{Group, Preempt, Scheduler};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::{arena, print_json, selected};
use crate::failure::Failure;

/// Lengths of polls. Unit: milliseconds; infinity for one that never returns.
const POLLS_MS: [f64; 6] = [0.1, 1.0, 3.0, 10.0, 50.0, f64::INFINITY];
/// Connections of the victim, and the time between two requests on each.
const CONNECTIONS: u64 = 4;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(4);
/// How long hogs run before anything is measured.
const WARM_UP: Duration = Duration::from_millis(200);
/// An unanswered request ends its connection after this.
const PATIENCE: Duration = Duration::from_secs(2);
/// A round counts if the victim's p99 alone is at most this. Unit: microseconds. A quiet machine has 0.2 to 0.4 ms.
const ALONE_P99_MAX_US: u64 = 1_000;
/// A round counts if the host steals at most this part of the machine in each of its rows.
const STEAL_MAX: f64 = 0.01;
/// Limit of the capped sides.
const CAP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// What `bench polls` takes.
#[derive(Debug, Clone, Args)]
pub struct PollsArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// One second a row: a look, not a figure
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Seconds a row (1..=600)
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Hogs (1..=1024)
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..=1024))]
    hogs: u64,
    /// Rounds of all rows, in turn (1..=100)
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Only polls of this many milliseconds; `inf` for one that never returns
    #[arg(long, value_name = "MS")]
    poll_ms: Option<f64>,
    /// Only sides whose name contains one of these texts, separated by commas
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Where victim and hogs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// The victim without hogs, at the end of each round.
    Alone,
    Tokio,
    TwoRuntimes,
    TwoRuntimesNice,
    Quotient,
    QuotientPreempt,
    QuotientCapped,
    QuotientPreemptCapped,
}

const MODES: [(Mode, &str); 7] = [
    (Mode::Tokio, "tokio"),
    (Mode::TwoRuntimes, "two-runtimes"),
    (Mode::TwoRuntimesNice, "two-runtimes-nice"),
    (Mode::Quotient, "quotient"),
    (Mode::QuotientPreempt, "quotient-preempt"),
    (Mode::QuotientCapped, "quotient-capped"),
    (Mode::QuotientPreemptCapped, "quotient-preempt-capped"),
];

/// One measurement.
#[derive(Debug, Serialize)]
struct Row {
    round: u64,
    hogs: u64,
    /// `null` for a poll that never returns.
    poll_ms: Option<f64>,
    mode: Mode,
    answered_ratio: f64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    /// CPU time of the hogs by wall time, by their threads' own clocks.
    hog_cpus: f64,
    /// What the host took from this machine, by wall time and processor.
    steal_ratio: f64,
}

/// One round of all rows.
#[derive(Debug, Serialize)]
struct Round {
    round: u64,
    alone_p99_us: u64,
    /// The most of its rows.
    steal_ratio: f64,
    valid: bool,
}

/// A row beside that of two runtimes with the same polls in the same round; medians of the rounds that count.
#[derive(Debug, Serialize)]
struct Ratio {
    poll_ms: Option<f64>,
    mode: Mode,
    rounds: usize,
    p50: f64,
    p99: f64,
    hog_cpus: f64,
}

/// Measures all rows and prints a table, or one JSON object.
///
/// # Errors
/// When a runtime, a scheduler or a socket cannot be had.
pub fn run(arguments: &PollsArguments) -> Result<(), Failure> {
    let workers = arena::worker_counts().into_iter().max().unwrap_or(1);
    if !arguments.json {
        println!(
            "{:>5} {:>8} {:<24} {:>8} {:>9} {:>9} {:>9} {:>9} {:>6}",
            "hogs",
            "poll ms",
            "mode",
            "answered",
            "p50 us",
            "p99 us",
            "max us",
            "hog CPUs",
            "steal"
        );
    }
    let (mut rows, mut rounds) = (Vec::new(), Vec::new());
    for round in 1..=arguments.rounds {
        let first = rows.len();
        measure_round(arguments, round, workers, &mut rows)?;
        let rows = &rows[first..];
        selected(rows)?;
        let alone = measure(arguments, round, 0.0, Mode::Alone, workers)?;
        let steal_ratio = rows.iter().fold(alone.steal_ratio, |most, row: &Row| {
            most.max(row.steal_ratio)
        });
        let round = Round {
            round,
            alone_p99_us: alone.p99_us,
            steal_ratio,
            valid: alone.p99_us <= ALONE_P99_MAX_US && steal_ratio <= STEAL_MAX,
        };
        if !arguments.json {
            println!(
                "round {} {}: alone the victim's p99 is {} us (at most {ALONE_P99_MAX_US}), the host stole {:.3} (at most {STEAL_MAX})",
                round.round,
                if round.valid {
                    "counts"
                } else {
                    "is discarded"
                },
                round.alone_p99_us,
                round.steal_ratio
            );
        }
        rounds.push(round);
    }
    let ratios = ratios(&rows, &rounds);
    if arguments.json {
        print_json(&serde_json::json!({
            "workers": workers,
            "rows": rows,
            "rounds": rounds,
            "ratios": ratios,
        }))?;
        return Ok(());
    }
    for ratio in &ratios {
        println!(
            "{:>8} {:<24} by two-runtimes: p50 {:.2}, p99 {:.2}, hog CPUs {:.3}, median of {} rounds",
            ratio.poll_ms.unwrap_or(f64::INFINITY),
            name_of(ratio.mode),
            ratio.p50,
            ratio.p99,
            ratio.hog_cpus,
            ratio.rounds
        );
    }
    Ok(())
}

fn measure_round(
    arguments: &PollsArguments,
    round: u64,
    workers: usize,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    for poll_ms in POLLS_MS {
        if arguments.poll_ms.is_some_and(|only| only != poll_ms) {
            continue;
        }
        for (mode, name) in MODES {
            let wanted = arguments.only.as_ref();
            if wanted.is_some_and(|texts| !texts.split(',').any(|text| name.contains(text))) {
                continue;
            }
            let row = measure(arguments, round, poll_ms, mode, workers)?;
            if !arguments.json {
                println!(
                    "{:>5} {:>8} {:<24} {:>8.3} {:>9} {:>9} {:>9} {:>9.3} {:>6.3}",
                    row.hogs,
                    poll_ms,
                    name,
                    row.answered_ratio,
                    row.p50_us,
                    row.p99_us,
                    row.max_us,
                    row.hog_cpus,
                    row.steal_ratio
                );
            }
            rows.push(row);
        }
    }
    Ok(())
}

fn name_of(mode: Mode) -> &'static str {
    let known = MODES.iter().find(|(known, _)| *known == mode);
    known.map_or("alone", |(_, name)| name)
}

/// Each row by that of two runtimes, where there is one.
fn ratios(rows: &[Row], rounds: &[Round]) -> Vec<Ratio> {
    let counts = |row: &&Row| {
        rounds
            .iter()
            .any(|round| round.round == row.round && round.valid)
    };
    let mut ratios = Vec::new();
    for poll in POLLS_MS {
        let poll_ms = poll.is_finite().then_some(poll);
        for (mode, _) in MODES {
            let mut parts = (Vec::new(), Vec::new(), Vec::new());
            let of_mode = rows
                .iter()
                .filter(|row| row.mode == mode && row.poll_ms == poll_ms);
            for row in of_mode.filter(counts) {
                let rival = rows.iter().find(|rival| {
                    rival.mode == Mode::TwoRuntimes
                        && rival.poll_ms == poll_ms
                        && rival.round == row.round
                });
                if let Some(rival) = rival {
                    parts.0.push(row.p50_us as f64 / rival.p50_us.max(1) as f64);
                    parts.1.push(row.p99_us as f64 / rival.p99_us.max(1) as f64);
                    parts.2.push(row.hog_cpus / rival.hog_cpus);
                }
            }
            if mode == Mode::TwoRuntimes || parts.0.is_empty() {
                continue;
            }
            ratios.push(Ratio {
                poll_ms,
                mode,
                rounds: parts.0.len(),
                p50: median(parts.0),
                p99: median(parts.1),
                hog_cpus: median(parts.2),
            });
        }
    }
    ratios
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Who is spawned where.
struct Sides {
    victims: Runtime,
    /// The hogs' own, in the modes that have two.
    hogs: Option<Runtime>,
    scheduler: Option<(Scheduler, Group, Group)>,
}

impl Sides {
    fn new(mode: Mode, workers: usize) -> Result<Self, Failure> {
        let victims = arena::runtime(workers)?;
        let hogs = match mode {
            Mode::TwoRuntimes => Some(arena::runtime(workers)?),
            Mode::TwoRuntimesNice => Some(
                tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(workers)
                    .on_thread_start(|| {
                        // Refused, the row is that of two runtimes.
                        #[cfg(unix)]
                        let _ = rustix::process::nice(10);
                    })
                    .build()
                    .map_err(Failure::during("cannot build a runtime"))?,
            ),
            _ => None,
        };
        let preempts = matches!(mode, Mode::QuotientPreempt | Mode::QuotientPreemptCapped);
        let capped = matches!(mode, Mode::QuotientCapped | Mode::QuotientPreemptCapped);
        let scheduler = if preempts || capped || mode == Mode::Quotient {
            let builder = Scheduler::builder().handle(victims.handle().clone());
            let builder = if preempts {
                builder.preempt(Preempt::default())
            } else {
                builder
            };
            let scheduler = builder
                .build()
                .map_err(Failure::during("cannot build a scheduler"))?;
            let refused = || Failure::during("cannot create a group");
            let victim = scheduler.group("victim").and_then(|group| group.create());
            let hogs = scheduler.group("hogs").and_then(|group| {
                let group = if capped { group.max(CAP) } else { group };
                group.create()
            });
            Some((
                scheduler,
                victim.map_err(refused())?,
                hogs.map_err(refused())?,
            ))
        } else {
            None
        };
        Ok(Self {
            victims,
            hogs,
            scheduler,
        })
    }

    fn spawn_hog(&self, hog: impl Future<Output = ()> + Send + 'static) {
        match (&self.scheduler, &self.hogs) {
            (Some((_, _, group)), _) => drop(group.spawn(hog)),
            (None, Some(runtime)) => drop(runtime.spawn(hog)),
            (None, None) => drop(self.victims.spawn(hog)),
        }
    }

    /// Accepts and answers; each connection is one task of the victim.
    fn serve(&self, listener: TcpListener) -> Result<(), Failure> {
        let refused = || Failure::during("cannot serve");
        listener.set_nonblocking(true).map_err(refused())?;
        let group = self.scheduler.as_ref().map(|(_, group, _)| group.clone());
        let _entered = self.victims.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(refused())?;
        drop(self.victims.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let echo = async move {
                    let mut message = [0_u8; 64];
                    let _ = stream.set_nodelay(true);
                    while stream.read_exact(&mut message).await.is_ok()
                        && stream.write_all(&message).await.is_ok()
                    {}
                };
                match &group {
                    Some(group) => drop(group.spawn(echo)),
                    None => drop(tokio::spawn(echo)),
                }
            }
        }));
        Ok(())
    }
}

#[cfg(not(unix))]
fn thread_cpu() -> Duration {
    // Wall time, for want of a clock: the hogs' CPUs mean nothing then.
    static ZERO: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    ZERO.get_or_init(Instant::now).elapsed()
}

#[cfg(unix)]
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Computes `poll` of CPU time a poll until `stop`, and says so in `used` as it goes.
async fn hog(poll: Option<Duration>, used: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let started = thread_cpu();
        let mut before = started;
        while poll.is_none_or(|poll| before.saturating_sub(started) < poll)
            && !stop.load(Ordering::Relaxed)
        {
            for _ in 0..5_000 {
                std::hint::black_box(0);
            }
            let now = thread_cpu();
            let step = u64::try_from(now.saturating_sub(before).as_nanos()).unwrap_or(0);
            used.fetch_add(step, Ordering::Relaxed);
            before = now;
        }
        tokio::task::yield_now().await;
    }
}

/// One connection's requests; the latencies in microseconds.
fn client(address: SocketAddr, start: Instant, requests: u32) -> Vec<u64> {
    let mut latencies = Vec::new();
    let Ok(mut stream) = TcpStream::connect(address) else {
        return latencies;
    };
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let end = start + BETWEEN_REQUESTS * requests + PATIENCE;
    for request in 0..requests {
        let due = start + BETWEEN_REQUESTS * request;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut message = [1_u8; 64];
        let answered = stream
            .write_all(&message)
            .and_then(|()| stream.read_exact(&mut message));
        if answered.is_err() || Instant::now() > end {
            break;
        }
        latencies.push(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    latencies
}

/// Time stolen from all processors so far, by the kernel's account; zero where it says nothing.
fn stolen() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(8)?.parse::<u64>().ok());
    // The kernel counts for users in hundredths of a second.
    Duration::from_millis(ticks.unwrap_or(0) * 10)
}

fn measure(
    arguments: &PollsArguments,
    round: u64,
    poll_ms: f64,
    mode: Mode,
    workers: usize,
) -> Result<Row, Failure> {
    let sides = Sides::new(mode, workers)?;
    let stop = Arc::new(AtomicBool::new(false));
    let hogs = if mode == Mode::Alone {
        0
    } else {
        arguments.hogs
    };
    let used: Vec<Arc<AtomicU64>> = (0..hogs).map(|_| Arc::default()).collect();
    let poll = poll_ms
        .is_finite()
        .then(|| Duration::from_secs_f64(poll_ms / 1_000.0));
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(Failure::during("cannot open a socket"))?;
    let address = listener
        .local_addr()
        .map_err(Failure::during("cannot open a socket"))?;
    sides.serve(listener)?;
    for used in &used {
        sides.spawn_hog(hog(poll, used.clone(), stop.clone()));
    }
    std::thread::sleep(WARM_UP);
    let total = || used.iter().map(|used| used.load(Ordering::Relaxed)).sum();
    let (started, before, stolen_before): (_, u64, _) = (Instant::now(), total(), stolen());
    let between = BETWEEN_REQUESTS.as_secs_f64();
    let seconds = if arguments.quick {
        1
    } else {
        arguments.seconds
    };
    let requests = (seconds as f64 / between) as u32;
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|index| {
            let start = started + Duration::from_millis(index);
            std::thread::spawn(move || client(address, start, requests))
        })
        .collect();
    let mut latencies = Vec::new();
    for client in clients {
        let of_one = client.join();
        latencies.extend(of_one.map_err(|_| Failure::Run("a client panicked".into()))?);
    }
    let wall = started.elapsed().as_secs_f64();
    let after: u64 = total();
    let stolen = stolen().saturating_sub(stolen_before).as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    drop(sides.scheduler);
    for runtime in sides.hogs.into_iter().chain([sides.victims]) {
        runtime.shutdown_timeout(Duration::from_millis(500));
    }
    latencies.sort_unstable();
    let at = |part: f64| {
        let last = latencies.len().saturating_sub(1) as f64;
        latencies.get((last * part) as usize).copied().unwrap_or(0)
    };
    Ok(Row {
        round,
        hogs,
        poll_ms: poll_ms.is_finite().then_some(poll_ms),
        mode,
        answered_ratio: latencies.len() as f64 / (f64::from(requests) * CONNECTIONS as f64),
        p50_us: at(0.5),
        p99_us: at(0.99),
        max_us: at(1.0),
        hog_cpus: after.saturating_sub(before) as f64 / 1e9 / wall,
        steal_ratio: stolen / wall / workers as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(round: u64, mode: Mode, p50_us: u64) -> Row {
        Row {
            round,
            hogs: 4,
            poll_ms: None,
            mode,
            answered_ratio: 1.0,
            p50_us,
            p99_us: 10 * p50_us,
            max_us: 0,
            hog_cpus: 1.0,
            steal_ratio: 0.0,
        }
    }

    #[test]
    fn discarded_rounds_are_in_no_ratio() {
        let round = |round, valid| Round {
            round,
            alone_p99_us: 1,
            steal_ratio: 0.0,
            valid,
        };
        let rows = [
            row(1, Mode::TwoRuntimes, 100),
            row(1, Mode::QuotientPreempt, 150),
            row(2, Mode::TwoRuntimes, 100),
            row(2, Mode::QuotientPreempt, 900),
        ];
        let ratios = ratios(&rows, &[round(1, true), round(2, false)]);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].mode, Mode::QuotientPreempt);
        assert_eq!((ratios[0].rounds, ratios[0].p50), (1, 1.5));
    }
}
