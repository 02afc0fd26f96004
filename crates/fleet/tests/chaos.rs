//! Real processes and a real server, of which one or another is always killed, stopped or cut off: no window sees more than its bound.
//!
//! By hand: `QUOTIENT_CHAOS_SECONDS=300 cargo test --release -p quotient-fleet --test chaos -- --exact chaos_exceeds_no_bound --ignored
//! --nocapture`. `QUOTIENT_CHAOS_SEED` for another walk.
//!
//! # What is measured
//! Each process writes what it used into a file every few milliseconds, so that it counts after its death:
//!
//! - *charged*: what it took out of leases and floors, of which the proof speaks;
//! - *clock*: what its group's clock says, of which all that is not charged is owed, but for what the task has not seen yet;
//! - *owed*: what polls under way, the period of the local limit and a late task let through beyond leases and floors. It is paid out of the
//!   next lease, or lost with the process;
//! - *computed*: processor time by the threads' own clocks, so that a group's clock that runs slow is found, too.
//!
//! # What is asserted, term by term
//! In every window, beyond the quota and the floors that are earned in it,
//!
//! - charged is at most one lease (`QUOTA * LEASE`), the floors of one second that may be saved up, and [`STALE`] for each of two looks: how
//!   old what is read at the window's two ends may be;
//! - computed is at most that, and what is owed by the living or was by the dead. So no more than was seen, and is being paid back,
//!   escapes;
//! - nobody ever owes more than [`OWED_MAX`], a second's quota. It is what the whole quota lets through in the period of a local limit
//!   (50 ms), in the tick of the task (25 ms) and for as long as that is late: up to nine tenths of a second on a loaded machine.
//!
//! # A server that forgets
//! With `QUOTIENT_CHAOS_FORGETS=1` the server keeps nothing when it is killed, and processes are strict: who never knew the limit believes
//! nobody that there is none. So the bound holds even when all die that knew it. Then the operator sets it again, once the server has answered
//! without one for [`FORGOTTEN_STRIKES`].
//!
//! The groups' clocks are printed. A process that is stopped inside a poll is not charged for the time that it stood still: the runtime's
//! `stopped_processes_pay` holds that.
#![cfg(target_os = "linux")]

#[path = "common/proxy.rs"]
mod proxy;
#[path = "common/server.rs"]
mod server;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quotient::Scheduler;
use quotient_fleet::private_server::PrivateServer;
use quotient_fleet::{Fleet, FleetLimit, MicroCpus, Micros, RedisStore, Store};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use rustix::process::{Pid, Signal, kill_process};

use self::proxy::Proxy;

const TENANT: &str = "tenants/acme";
const PROCESSES: usize = 4;
/// What all may use, and what each may before it has heard of the store.
const QUOTA: f64 = 0.4;
const FLOOR: f64 = 0.005;
const LEASE: Micros = Micros::from_millis(400);

/// In the suite.
const SECONDS: u64 = 5;

/// How old what a process wrote may be, CPU time a processor: it writes every 5 ms, but a loaded machine lets it wait.
const STALE: f64 = 0.1;

/// The most that one process may owe, CPU time: a second's quota.
const OWED_MAX: f64 = QUOTA;

/// A limit that the server was without for so many strikes in a row is one that nobody knows any more: about ten seconds.
const FORGOTTEN_STRIKES: u32 = 20;

/// A hang is a failure after this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processor time of the tenant's polls in this process, ns.
static COMPUTED: AtomicU64 = AtomicU64::new(0);

/// Processor time of this thread, ns.
fn thread_cpu() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// One process; a test only so that the test's binary can be it.
#[test]
#[ignore = "a process of the chaos run"]
fn node() {
    let Ok(address) = std::env::var("QUOTIENT_CHAOS_STORE") else {
        return;
    };
    let file = std::env::var("QUOTIENT_CHAOS_FILE").expect("a file");
    std::thread::spawn(|| {
        // Ends with the test, however that ends.
        let _ = std::io::stdin().read(&mut [0_u8; 1]);
        std::process::exit(0);
    });
    let file = File::create(file).expect("our own file");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let scheduler = Scheduler::builder().build().expect("a scheduler");
    let group = scheduler.group(TENANT).expect("a path");
    let group = group.create().expect("a group");
    // A server that forgets may be asked when nobody is left who knew.
    let mut fleet = Fleet::builder(&address).floor(FLOOR);
    if number("QUOTIENT_CHAOS_FORGETS", 0) != 0 {
        fleet = fleet.strict();
    }
    let fleet = fleet.start(&scheduler);
    let fleet = fleet.expect("a fleet");
    assert!(fleet.adopt(&group), "below the prefix");
    for _ in 0..2 {
        group.spawn(async {
            loop {
                let begun = Instant::now();
                let before = thread_cpu();
                while begun.elapsed() < Duration::from_micros(200) {
                    std::hint::spin_loop();
                }
                COMPUTED.fetch_add(thread_cpu() - before, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let figures = fleet.stats()[0].figures;
        // The clock after the figures: what is owed is never too large.
        let cpu = u64::try_from(group.cpu_time().as_micros()).unwrap_or(u64::MAX);
        let computed = COMPUTED.load(Ordering::Relaxed) / 1_000;
        let charged = figures.used.0 + figures.floor_used.0;
        let debt = figures.debt.0;
        let words = [computed, charged, figures.failed, figures.lapsed, cpu, debt];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&bytes, 0).expect("written");
    }
}

/// A process as the test sees it.
struct Process {
    child: Child,
    file: PathBuf,
    stopped: bool,
}

impl Process {
    fn start(port: u16, file: PathBuf) -> Process {
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "node", "--ignored", "--nocapture"])
            .env("QUOTIENT_CHAOS_STORE", format!("redis://127.0.0.1:{port}"))
            .env("QUOTIENT_CHAOS_FILE", &file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        Process {
            child,
            file,
            stopped: false,
        }
    }

    fn signal(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our own child");
        self.stopped = signal == Signal::STOP;
    }

    /// Computed, charged, failed requests, lapsed leases, the group's clock, and what is owed.
    fn read(&self) -> [u64; 6] {
        let bytes = std::fs::read(&self.file).unwrap_or_default();
        std::array::from_fn(|index| {
            let word = bytes.get(index * 8..index * 8 + 8);
            word.and_then(|word| word.try_into().ok())
                .map_or(0, u64::from_le_bytes)
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The most by which what grows exceeded what was earned, in any window.
#[derive(Default)]
struct Excess {
    lowest: f64,
    most: f64,
}

impl Excess {
    fn add(&mut self, used: f64, earned: f64) {
        let gap = used - earned;
        self.lowest = self.lowest.min(gap);
        self.most = self.most.max(gap - self.lowest);
    }
}

struct World {
    server: PrivateServer,
    server_away: bool,
    proxies: Vec<Proxy>,
    processes: Vec<Process>,
    folder: PathBuf,
    /// What the dead used and were charged, us.
    dead: [u64; 6],
    begun: u64,
    random: Pcg32,
    /// For how many strikes in a row the server has known no limit.
    forgotten: u32,
    counts: std::collections::BTreeMap<&'static str, u32>,
}

impl World {
    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    fn total(&self) -> [u64; 6] {
        let mut sum = self.dead;
        for process in &self.processes {
            for (sum, value) in sum.iter_mut().zip(process.read()) {
                *sum += value;
            }
        }
        sum
    }

    fn file(&mut self) -> PathBuf {
        self.begun += 1;
        self.folder.join(format!("process-{}", self.begun))
    }

    fn replace(&mut self, index: usize) {
        let file = self.file();
        let port = self.proxies[index].port;
        let process = &mut self.processes[index];
        process.child.kill().expect("our own child");
        process.child.wait().expect("our own child");
        for (dead, value) in self.dead.iter_mut().zip(process.read()) {
            *dead += value;
        }
        *process = Process::start(port, file);
    }

    /// Something breaks, or is mended.
    fn strike(&mut self) {
        let index = self.below(PROCESSES as u64) as usize;
        let what = match self.below(11) {
            0 => {
                self.replace(index);
                "kill -9 of a process"
            }
            1 | 2 if self.processes[index].stopped => {
                self.processes[index].signal(Signal::CONT);
                "SIGCONT"
            }
            1 => {
                self.processes[index].signal(Signal::STOP);
                "SIGSTOP of a process"
            }
            3 => {
                self.proxies[index].cut();
                "partition by closed sockets"
            }
            4 => {
                self.proxies[index].hold();
                "partition by silence"
            }
            9 => {
                // There and back up to 400 ms, of which 250 are waited for.
                let millis = self.below(200);
                self.proxies[index].delay(Duration::from_millis(millis));
                "a way that takes up to 200 ms"
            }
            10 => {
                self.proxies[index].swallow();
                "a connection that goes dead in silence"
            }
            5 | 6 => {
                self.proxies.iter().for_each(Proxy::mend);
                self.proxies
                    .iter()
                    .for_each(|proxy| proxy.delay(Duration::ZERO));
                "partitions mended"
            }
            7 if !self.server_away => {
                self.server_away = true;
                if self.below(2) == 0 {
                    self.server.kill();
                    "kill -9 of the server"
                } else {
                    self.server.signal("STOP").expect("a server");
                    "SIGSTOP of the server"
                }
            }
            _ => {
                self.mend_server();
                "server mended"
            }
        };
        *self.counts.entry(what).or_default() += 1;
    }

    /// The operator: sets the limit again that nobody knows any more.
    fn restore(&mut self, runtime: &tokio::runtime::Runtime) {
        if self.server_away {
            self.forgotten = 0;
            return;
        }
        let store = RedisStore::new(&self.server.address()).expect("an address");
        match runtime.block_on(store.get(TENANT)) {
            Ok(None) => self.forgotten += 1,
            Ok(Some(_)) => self.forgotten = 0,
            Err(_) => {}
        }
        if self.forgotten >= FORGOTTEN_STRIKES
            && runtime.block_on(store.set(TENANT, limit())).is_ok()
        {
            self.forgotten = 0;
            let what = "limit set anew: all who knew it had gone";
            *self.counts.entry(what).or_default() += 1;
        }
    }

    fn mend_server(&mut self) {
        self.server_away = false;
        match self.server.process() {
            Some(_) => self.server.signal("CONT").expect("a server"),
            None => self.server.restart().expect("a server again"),
        }
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn limit() -> FleetLimit {
    FleetLimit::new(MicroCpus::from_cpus(QUOTA))
        .with_processes(2 * PROCESSES as u32)
        .with_lease(LEASE)
}

fn begin(
    folder: &Path,
    runtime: &tokio::runtime::Runtime,
    server: PrivateServer,
    seed: u64,
) -> World {
    let store = RedisStore::new(&server.address())
        .expect("an address")
        .within(PATIENCE);
    runtime.block_on(store.set(TENANT, limit())).expect("set");
    let proxies: Vec<Proxy> = (0..PROCESSES)
        .map(|_| {
            runtime
                .block_on(Proxy::start(server.port()))
                .expect("a proxy")
        })
        .collect();
    let mut world = World {
        server,
        server_away: false,
        processes: Vec::new(),
        folder: folder.to_owned(),
        dead: [0; 6],
        begun: 0,
        random: Pcg32::seed_from_u64(seed),
        forgotten: 0,
        counts: std::collections::BTreeMap::new(),
        proxies,
    };
    for index in 0..PROCESSES {
        let file = world.file();
        let port = world.proxies[index].port;
        world.processes.push(Process::start(port, file));
    }
    world
}

#[test]
#[ignore = "by hand: it lasts for seconds, and its looks are as late as the machine is slow"]
fn chaos_exceeds_no_bound() {
    // Later arguments count.
    let keeps: &[&str] = match number("QUOTIENT_CHAOS_FORGETS", 0) {
        0 => &["--appendonly", "yes", "--appendfsync", "always"],
        _ => &[],
    };
    let Some(server) = server::start("chaos", keeps) else {
        return;
    };
    let seconds = number("QUOTIENT_CHAOS_SECONDS", SECONDS);
    let seed = number("QUOTIENT_CHAOS_SEED", 1);
    let folder = std::env::temp_dir().join(format!("quotient-chaos-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut world = begin(&folder, &runtime, server, seed);
    let all_work = |world: &World| {
        world
            .processes
            .iter()
            .all(|process| process.read()[1] > 5_000)
    };
    let begun = Instant::now();
    while !all_work(&world) {
        assert!(begun.elapsed() < PATIENCE, "the processes do not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (mut charged, mut all) = (Excess::default(), Excess::default());
    let mut most_owed = 0_u64;
    let (begun, first, first_processes) = (Instant::now(), world.total(), world.begun);
    let mut next = Duration::from_millis(300);
    while begun.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(10));
        if begun.elapsed() > next {
            world.strike();
            world.restore(&runtime);
            next = begun.elapsed() + Duration::from_millis(100 + world.below(700));
        }
        // Earned up to before the look, used up to after it: never in our favour.
        let passed = begun.elapsed().as_secs_f64();
        let now = world.total();
        // What is owed is paid back: it may be less than at first.
        let second = |index: usize| (now[index] as f64 - first[index] as f64) / 1e6;
        // Reserved floors; those of processes that have not heard of the store, and the second's worth that each begins with.
        let floors = QUOTA / FleetLimit::FLOORS_DIVISOR as f64 + FLOOR * PROCESSES as f64;
        let newcomers = (world.begun - first_processes) as f64 * FLOOR;
        let earned = (QUOTA + floors) * passed + newcomers;
        charged.add(second(1), earned);
        all.add(second(0) - second(5), earned);
        let owed = world.processes.iter().map(|process| process.read()[5]);
        most_owed = owed.fold(most_owed, u64::max);
    }
    let passed = begun.elapsed().as_secs_f64();
    let last = world.total();
    let used = (last[0] - first[0]) as f64 / 1e6;
    // One lease, one second's floors, and what the files lag behind.
    let floors = QUOTA / FleetLimit::FLOORS_DIVISOR as f64 + FLOOR * PROCESSES as f64;
    let bound = QUOTA * LEASE.0 as f64 / 1e6 + floors + STALE * 2.0;
    let most_owed = most_owed as f64 / 1e6;
    let seconds = |index: usize| (last[index] as f64 - first[index] as f64) / 1e6;
    println!(
        "{passed:.1} s, seed {seed}, {PROCESSES} processes, {QUOTA} CPU: charged {:.3} s of {:.3} s, by the groups' clocks {:.3} s, computed \
         {used:.3} s; fullest window beyond quota and floors: charged {:.3} s, computed and not owed {:.3} s, of {bound:.3} s; one owed at \
         most {most_owed:.3} s, the dead {:.3} s in all; {} requests failed, {} leases lapsed",
        seconds(1),
        QUOTA * passed,
        seconds(4),
        charged.most,
        all.most,
        world.dead[5] as f64 / 1e6,
        last[2] - first[2],
        last[3] - first[3],
    );
    for (what, count) in &world.counts {
        println!("  {count:>5}  {what}");
    }
    drop(world);
    let _ = std::fs::remove_dir_all(&folder);
    assert!(used > 0.0, "nobody ran");
    for (what, most) in [("charged", charged.most), ("computed", all.most)] {
        assert!(most <= bound, "{what} {most} s of at most {bound}");
    }
    assert!(most_owed <= OWED_MAX, "one owed {most_owed} s");
}
