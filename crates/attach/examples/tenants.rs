//! A process that can be looked into: `cargo run -p quotient-attach --example tenants`, then, in another shell,
//! `cargo run -p quotient-cli --features screen -- top PID`, and `... -- trace PID 5s`. Where `XDG_RUNTIME_DIR` is not set: `--example tenants --
//! PATH`, and PATH in place of PID.

use std::hint::black_box;

use quotient::Scheduler;
use quotient_attach::Attach;

/// Computes without end, a part of a millisecond a poll.
async fn work() {
    loop {
        black_box((0..100_000_u64).fold(0_u64, |sum, row| black_box(sum ^ row)));
        tokio::task::yield_now().await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().build()?;
    let acme = scheduler.group("tenants/acme")?.weight(300).create()?;
    let evil = scheduler.group("tenants/evil")?;
    let evil = evil.max("20ms/100ms").create()?;
    for group in [&acme, &evil, &acme, &evil] {
        group.spawn(work());
    }
    // Weights and limits may be changed from there; without this line they are only shown.
    let mut attach = Attach::new(&scheduler).allow_changes();
    if let Some(path) = std::env::args_os().nth(1) {
        attach = attach.path(path);
    }
    let attached = attach.open()?;
    println!(
        "process {}: {}",
        std::process::id(),
        attached.path().display()
    );
    std::future::pending::<()>().await;
    Ok(())
}
