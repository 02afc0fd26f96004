//! An axum program with tenants: `cargo run -p quotient-http --example axum`, then
//!
//! ```sh
//! curl -H 'x-tenant: acme' http://127.0.0.1:3000/            # in the group tenants/acme, weight 300
//! curl -H 'x-tenant: evil' http://127.0.0.1:3000/burn/2000   # at most a fifth of a processor: ten seconds
//! curl http://127.0.0.1:3000/groups                          # who used what; in the group connections
//! ```

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use quotient::Scheduler;
use quotient_http::Tenants;

async fn hello() -> String {
    let group = quotient::Group::current();
    format!(
        "hello from {:?}\n",
        group.map(|group| group.path().to_owned())
    )
}

/// Computes for so many milliseconds of a processor.
async fn burn(Path(ms): Path<u64>) -> String {
    let begun = Instant::now();
    for _ in 0..ms * 10 {
        let part = Instant::now();
        while part.elapsed() < Duration::from_micros(100) {
            std::hint::black_box((0..100_u64).sum::<u64>());
        }
        quotient::checkpoint().await;
    }
    format!("{:.1} s\n", begun.elapsed().as_secs_f64())
}

async fn groups(State(scheduler): State<Scheduler>) -> String {
    let line = |group: &quotient::Group| format!("/{:20} {:?}\n", group.path(), group.cpu_time());
    scheduler.groups().iter().map(line).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenants = Tenants::by_header("x-tenant")?;
    tenants.group("acme")?.weight(300).create()?;
    tenants.group("evil")?.max("20ms/100ms").create()?;
    let app = Router::new()
        .route("/", get(hello))
        .route("/burn/{ms}", get(burn));
    let app = app
        .route("/groups", get(groups))
        .with_state(tenants.scheduler().clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/", listener.local_addr()?);
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    tenants
        .serve(listener, app)
        .with_graceful_shutdown(ctrl_c)
        .await?;
    tenants.scheduler().shutdown().await;
    Ok(())
}
