//! What the steps cost on this machine: `cargo run --release -p quotient-pause --example figures`.

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    figures::print()
}

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
fn main() {
    println!("threads can be paused only on Linux, on x86-64 and aarch64");
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod figures {
    use std::hint::black_box;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use quotient_pause::{Demotion, Handle, PauseState, Pauser, Region, Settings};

    const ROUNDS: usize = 2_000;

    /// A thread in one endless region that writes the time it sees, so that others see until when it ran.
    struct Hog {
        handle: Handle,
        region: Region,
        seen: Arc<AtomicU64>,
        stop: Arc<AtomicBool>,
        thread: std::thread::JoinHandle<()>,
    }

    impl Hog {
        fn start(pauser: Pauser, zero: Instant) -> Result<Self, Box<dyn std::error::Error>> {
            let seen = Arc::new(AtomicU64::new(0));
            let stop = Arc::new(AtomicBool::new(false));
            let (sender, receiver) = std::sync::mpsc::channel();
            let (time, end) = (seen.clone(), stop.clone());
            let thread = std::thread::spawn(move || {
                let entered = pauser.enter(|thread| {
                    let region = thread.next_region();
                    drop(sender.send((thread.handle(), region)));
                    let ((), _) = thread.region(|| {
                        while !end.load(Ordering::Relaxed) {
                            time.store(nanos(zero), Ordering::Release);
                        }
                    });
                });
                entered.expect("enters");
            });
            let (handle, region) = receiver.recv()?;
            while handle.region().is_none() {
                std::thread::yield_now();
            }
            Ok(Self {
                handle,
                region,
                seen,
                stop,
                thread,
            })
        }
    }

    fn nanos(zero: Instant) -> u64 {
        u64::try_from(zero.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn row(what: &str, mut samples: Vec<u64>) {
        samples.sort_unstable();
        let at = |percent: usize| samples[(samples.len() - 1) * percent / 100] as f64 / 1_000.0;
        println!("{what:<48} {:>9.2} {:>9.2} us", at(50), at(99));
    }

    pub fn print() -> Result<(), Box<dyn std::error::Error>> {
        let pauser = Pauser::install(Settings::default())?;
        let zero = Instant::now();
        println!("{:<48} {:>9} {:>9}", "", "p50", "p99");
        fast_path(pauser)?;
        let hog = Hog::start(pauser, zero)?;
        let (mut stop, mut standing, mut resume, mut call) = (vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let asked = nanos(zero);
            let pause = hog.handle.pause(hog.region)?;
            call.push(nanos(zero) - asked);
            while pause.state() != PauseState::Standing {
                std::hint::spin_loop();
            }
            standing.push(nanos(zero) - asked);
            let last = hog.seen.load(Ordering::Acquire);
            stop.push(last.saturating_sub(asked));
            let resumed = nanos(zero);
            pause.resume();
            while hog.seen.load(Ordering::Acquire) == last {
                std::hint::spin_loop();
            }
            resume.push(hog.seen.load(Ordering::Acquire).saturating_sub(resumed));
            // A moment of work between two pauses, as in life.
            std::thread::sleep(Duration::from_micros(50));
        }
        row("pause: the call", call);
        row("pause: call to the region's last step", stop);
        row("pause: call to standing, seen from outside", standing);
        row("resume: call to the region's next step", resume);
        let (mut catch, mut demote) = (vec![], vec![]);
        for _ in 0..ROUNDS {
            let started = nanos(zero);
            let caught = hog.handle.detach(hog.region)?;
            catch.push(nanos(zero) - started);
            let started = nanos(zero);
            caught.demote(Demotion::default())?;
            demote.push(nanos(zero) - started);
            // Let go: the same region can be caught again.
        }
        row("detach: membarrier and look, one thread runs", catch);
        row("demote: nice 10 and a slice of 100 us", demote);
        hog.stop.store(true, Ordering::Relaxed);
        hog.thread.join().map_err(|_| "the hog panicked")?;
        Ok(())
    }

    /// What a region costs when nobody asks for anything.
    fn fast_path(pauser: Pauser) -> Result<(), Box<dyn std::error::Error>> {
        const REGIONS: u32 = 1_000_000;
        let samples = pauser.enter(|thread| {
            let mut samples = Vec::new();
            for _ in 0..20 {
                let started = Instant::now();
                for step in 0..REGIONS {
                    let (_, end) = thread.region(|| black_box(step));
                    assert!(!end.is_detached());
                }
                let with = started.elapsed();
                let started = Instant::now();
                for step in 0..REGIONS {
                    black_box(step);
                }
                let without = started.elapsed();
                samples.push(with.saturating_sub(without).as_nanos() as f64 / f64::from(REGIONS));
            }
            samples
        })?;
        let mut samples = samples;
        samples.sort_by(f64::total_cmp);
        println!(
            "{:<48} {:>9.2} {:>9.2} ns",
            "region that nobody asks anything of",
            samples[samples.len() / 2],
            samples[samples.len() - 1]
        );
        Ok(())
    }
}
