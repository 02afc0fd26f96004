//! Groups from a file that may change: `cargo run -p quotient-config --example reload -- settings.toml`. Write the file anew, or send the
//! process `SIGHUP`; a file that is wrong changes nothing.

use std::time::Duration;

use quotient::Scheduler;
use quotient_config::Reload;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give the path of a file")?;
    let scheduler = Scheduler::builder().build()?;
    let reload = Reload::new(&scheduler, path).every(Duration::from_secs(1));
    let mut reloader = reload.on_hangup().start().map_err(|error| {
        eprintln!("{error}");
        "the settings are not in force"
    })?;
    println!("process {}", std::process::id());
    loop {
        for group in scheduler.groups() {
            println!(
                "/{:20} weight {:5} {:?}",
                group.path(),
                group.weight(),
                group.max()
            );
        }
        match reloader.changed().await.ok_or("the task has ended")?.error {
            Some(error) => println!("refused, and nothing has changed:\n{error}"),
            None => println!("in force:"),
        }
    }
}
