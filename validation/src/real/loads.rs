//! Loads that are limited for real: threads of a cgroup that serve requests and note how long each took.
//!
//! Every thread of a load is called [`NAME`], so that a trace can be asked about them. Who only brings work to them from outside
//! is called [`OUTSIDE`] and is not limited.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quotient_sim::Random;

use crate::Problem;
use crate::cgroup::Cgroup;
use crate::load::compute;

/// Threads of the service.
pub const NAME: &str = "svc";
/// Threads beside it.
pub const OUTSIDE: &str = "svc-clients";

/// What loads call their requests in a trace.
pub const REQUEST: &str = "request";

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One thread, arrivals at memoryless times: it is late when it was throttled.
    Open,
    /// Four clients that think between requests.
    Closed,
    /// A dispatcher outside hands requests to four workers.
    Pool,
    /// A thread that is woken from outside hands each request on to a second one.
    Chain,
    /// Two threads, each with 12 ms of work every 50 ms.
    Periodic,
    /// Two clients beside that wait for answers of a server of two threads.
    Answers,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [
        Kind::Open,
        Kind::Closed,
        Kind::Pool,
        Kind::Chain,
        Kind::Periodic,
        Kind::Answers,
    ];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Open => "open",
            Kind::Closed => "closed",
            Kind::Pool => "pool",
            Kind::Chain => "chain",
            Kind::Periodic => "periodic",
            Kind::Answers => "answers",
        }
    }

    /// How a person who knows the load asks about it.
    pub const fn advice(self) -> &'static [&'static str] {
        match self {
            // Here a request may find its server at work: then no wake-up tells of it, and the program has to.
            Kind::Open | Kind::Pool | Kind::Chain => &["--loop", "open", "--marker", REQUEST],
            Kind::Closed => &["--loop", "closed"],
            Kind::Answers | Kind::Periodic => &["--loop", "open"],
        }
    }
}

/// A load's marks in the kernel's trace, while it is recorded: how a program tells of requests that no wake-up shows.
#[derive(Debug, Default)]
struct Marks(Option<File>);

impl Marks {
    /// Nothing is marked where the file cannot be opened: then a recording has no requests, and `advise` says so.
    fn open(tracefs: Option<&Path>) -> Marks {
        let path = tracefs.map(|root| root.join("trace_marker"));
        Marks(path.and_then(|path| File::options().write(true).open(path).ok()))
    }

    fn write(&self, mark: &str) {
        if let Some(mut file) = self.0.as_ref() {
            // A mark that is missing is seen as a missing request.
            let _ = file.write_all(mark.as_bytes());
        }
    }

    /// The calling thread begins, and ends, a request.
    fn begin(&self) {
        self.write(&format!("B|{}|{REQUEST}", std::process::id()));
    }

    fn end(&self) {
        self.write(&format!("E|{}", std::process::id()));
    }

    /// A request that other threads end.
    fn start(&self, number: u64) {
        self.write(&format!("S|{}|{REQUEST}|{number}", std::process::id()));
    }

    fn finish(&self, number: u64) {
        self.write(&format!("F|{}|{REQUEST}|{number}", std::process::id()));
    }
}

/// How long requests took: those of a thread that is its own source from when they were due, those that clients send from when they were
/// sent, which is where their marks stand. A client that gets no processor in time is late by itself, and no limit of the service
/// did that.
#[derive(Debug, Default)]
pub struct Log(Mutex<Vec<(Instant, Duration)>>);

impl Log {
    fn note(&self, begin: Instant) {
        let now = Instant::now();
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.push((begin, now.saturating_duration_since(begin)));
    }

    /// How long those took that began since `from`, ms, in order of length.
    pub fn times_since(&self, from: Instant) -> Vec<f64> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = log.iter().filter(|(begin, _)| *begin >= from);
        let mut times: Vec<f64> = since.map(|(_, time)| time.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        times
    }
}

/// A load that runs until it is dropped.
pub struct Running {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Its requests.
    pub log: Arc<Log>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// What threads of a load share.
#[derive(Clone)]
struct Shared {
    stop: Arc<AtomicBool>,
    log: Arc<Log>,
    cgroup: Arc<Cgroup>,
    seed: u64,
    marks: Arc<Marks>,
    /// Requests sent so far.
    sent: Arc<AtomicU64>,
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Computes for `work` of CPU time, like a program that does not look at its own clock.
///
/// Who asks the kernel for the CPU time of a running thread has it charged then, and a request for the CPU that is over by that ends there
/// and not at a tick: threads that asked all the time gave way after 1.4 ms rather than 4, and ones that asked at their end waited for
/// a slice of the others with nothing left to do. So the kernel is not asked at all: steps of about a microsecond are timed by the time of
/// day, and one that took longer than [`STEP_MAX`] was interrupted, so it counts as a usual one.
pub(crate) fn serve(work: Duration) {
    let mut left = work;
    let mut last = Instant::now();
    while !left.is_zero() {
        compute();
        let now = Instant::now();
        let step = now - last;
        left = left.saturating_sub(if step < STEP_MAX { step } else { STEP });
        last = now;
    }
}

/// What a step takes, about; origin: [`compute`]. Counted where something else took the CPU meanwhile.
const STEP: Duration = Duration::from_micros(1);

/// A step that takes longer was not ours alone. Default 50 us: interrupts are charged to who runs and take less, turns of others
/// take more.
const STEP_MAX: Duration = Duration::from_micros(50);

/// A memoryless time.
pub(crate) fn exponential(random: &mut Random, mean: Duration) -> Duration {
    let mean = u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random.exponential(mean))
}

/// Between one and three times `least`.
fn around(random: &mut Random, least: Duration) -> Duration {
    let width = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX) * 2;
    least + Duration::from_nanos(random.below(width.max(1)))
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// Starts a load in a cgroup; another seed gives other arrivals of the same kind. It marks its requests in the trace of that tracefs.
///
/// # Errors
/// A thread that cannot be started or moved.
pub fn start(
    kind: Kind,
    cgroup: &Arc<Cgroup>,
    seed: u64,
    tracefs: Option<&Path>,
) -> Result<Running, Problem> {
    let shared = Shared {
        stop: Arc::default(),
        log: Arc::default(),
        cgroup: cgroup.clone(),
        seed,
        marks: Arc::new(Marks::open(tracefs)),
        sent: Arc::default(),
    };
    let mut running = Running {
        stop: shared.stop.clone(),
        threads: Vec::new(),
        log: shared.log.clone(),
    };
    match kind {
        Kind::Open => inside(&mut running, &shared, 0, open)?,
        Kind::Closed => {
            for number in 0..4 {
                inside(&mut running, &shared, number, closed)?;
            }
        }
        Kind::Periodic => {
            for number in 0..2 {
                inside(&mut running, &shared, number, periodic)?;
            }
        }
        Kind::Pool => pool(&mut running, &shared)?,
        Kind::Chain => chain(&mut running, &shared)?,
        Kind::Answers => answers(&mut running, &shared)?,
    }
    Ok(running)
}

/// Starts a thread that enters the cgroup first.
fn inside(
    running: &mut Running,
    shared: &Shared,
    number: u64,
    body: impl FnOnce(&Shared, Random) + Send + 'static,
) -> Result<(), Problem> {
    let (entered, wait) = mpsc::channel();
    let shared = shared.clone();
    let thread = thread::Builder::new().name(NAME.into()).spawn(move || {
        let result = shared.cgroup.enter();
        let is_inside = result.is_ok();
        // Whoever waits for it is there until it has the answer.
        let _ = entered.send(result);
        if is_inside {
            let random = Random::new(shared.seed, number);
            body(&shared, random);
        }
    });
    let thread = thread.map_err(Problem::during("cannot start a thread"))?;
    running.threads.push(thread);
    wait.recv()
        .map_err(Problem::during("a thread of the load ended early"))?
}

fn outside(running: &mut Running, body: impl FnOnce() + Send + 'static) -> Result<(), Problem> {
    let thread = thread::Builder::new().name(OUTSIDE.into()).spawn(body);
    running
        .threads
        .push(thread.map_err(Problem::during("cannot start a thread"))?);
    Ok(())
}

fn open(shared: &Shared, mut random: Random) {
    let mut due = Instant::now();
    while shared.goes_on() {
        due += exponential(&mut random, millis(12));
        sleep_until(due);
        shared.marks.begin();
        serve(around(&mut random, millis(1)));
        shared.log.note(due);
        shared.marks.end();
    }
}

fn closed(shared: &Shared, mut random: Random) {
    while shared.goes_on() {
        let due = Instant::now() + around(&mut random, millis(5));
        sleep_until(due);
        serve(around(&mut random, millis(1)));
        shared.log.note(due);
    }
}

fn periodic(shared: &Shared, _: Random) {
    let mut due = Instant::now();
    while shared.goes_on() {
        due += millis(50);
        sleep_until(due);
        serve(millis(12));
        shared.log.note(due);
    }
}

/// A request on its way: when it was sent, what it needs, its number.
type Request = (Instant, Duration, u64);

fn pool(running: &mut Running, shared: &Shared) -> Result<(), Problem> {
    let (send, receive) = mpsc::channel::<Request>();
    let receive = Arc::new(Mutex::new(receive));
    for number in 0..4 {
        let receive = receive.clone();
        inside(running, shared, number, move |shared, _| {
            loop {
                let next = receive
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .recv();
                let Ok((sent, work, number)) = next else {
                    return;
                };
                serve(work);
                shared.log.note(sent);
                shared.marks.finish(number);
            }
        })?;
    }
    arrivals(running, shared, send, millis(8))
}

/// Brings requests from outside, each as a message.
fn arrivals(
    running: &mut Running,
    shared: &Shared,
    send: mpsc::Sender<Request>,
    gap: Duration,
) -> Result<(), Problem> {
    let shared = shared.clone();
    outside(running, move || {
        let mut random = Random::new(shared.seed, 99);
        let mut due = Instant::now();
        while shared.goes_on() {
            due += exponential(&mut random, gap);
            sleep_until(due);
            let number = shared.sent.fetch_add(1, Ordering::Relaxed);
            let sent = Instant::now();
            shared.marks.start(number);
            // The service may have ended first.
            let _ = send.send((sent, around(&mut random, millis(1)), number));
        }
    })
}

fn chain(running: &mut Running, shared: &Shared) -> Result<(), Problem> {
    let (to_front, front) = mpsc::channel::<Request>();
    let (to_back, back) = mpsc::channel::<Request>();
    inside(running, shared, 0, move |_, _| {
        while let Ok((sent, work, number)) = front.recv() {
            serve(work / 2);
            // The other one ends when this channel does.
            let _ = to_back.send((sent, work, number));
        }
    })?;
    inside(running, shared, 1, move |shared, _| {
        while let Ok((sent, work, number)) = back.recv() {
            serve(work);
            shared.log.note(sent);
            shared.marks.finish(number);
        }
    })?;
    arrivals(running, shared, to_front, millis(12))
}

fn answers(running: &mut Running, shared: &Shared) -> Result<(), Problem> {
    for number in 0..2 {
        let (ask, asked) = mpsc::channel::<Duration>();
        let (answer, answered) = mpsc::channel::<()>();
        inside(running, shared, number, move |_, _| {
            while let Ok(work) = asked.recv() {
                serve(work);
                // The client ends first.
                let _ = answer.send(());
            }
        })?;
        let shared = shared.clone();
        outside(running, move || {
            let mut random = Random::new(shared.seed, 50 + number);
            while shared.goes_on() {
                thread::sleep(around(&mut random, millis(3)));
                let due = Instant::now();
                let sent = ask.send(around(&mut random, millis(1)));
                if sent.is_err() || answered.recv().is_err() {
                    return;
                }
                shared.log.note(due);
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::load::thread_cpu;

    /// Also where others had the CPU meanwhile: what counts is the thread's own time.
    #[cfg(target_os = "linux")]
    #[test]
    fn work_is_cpu_time_whoever_else_runs() {
        let others = Arc::new(AtomicBool::new(false));
        let spinners: Vec<_> = (0..4)
            .map(|_| {
                let stop = others.clone();
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        compute();
                    }
                })
            })
            .collect();
        let before = thread_cpu();
        for _ in 0..20 {
            serve(millis(5));
        }
        let used = thread_cpu() - before;
        // With four others on few CPUs the wall clock shows several times as much. Turns of others that are shorter than a step are taken
        // for its own: a tenth is far more than there are.
        assert!((millis(90)..millis(140)).contains(&used), "{used:?}");
        others.store(true, Ordering::Relaxed);
        for spinner in spinners {
            spinner.join().expect("it only computes");
        }
    }
}
