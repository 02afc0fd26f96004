//! A server whose groups Prometheus scrapes: `cargo run -p quotient-prometheus --example serve`, then
//! `curl http://127.0.0.1:9090/metrics`.

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use quotient::Scheduler;
use quotient_prometheus::Exporter;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().build()?;
    let exporter = Exporter::new(&scheduler).record_poll_durations()?;
    let tenant = scheduler
        .group("tenants/acme")?
        .max("20ms/100ms")
        .create()?;
    tenant.spawn(async {
        loop {
            std::hint::black_box((0..100_000_u64).sum::<u64>());
            quotient::checkpoint().await;
            tokio::task::yield_now().await;
        }
    });
    let content = [(CONTENT_TYPE, quotient_prometheus::CONTENT_TYPE)];
    let metrics = get(move || async move { (content, Bytes::from_owner(exporter.page())) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:9090").await?;
    println!("http://{}/metrics", listener.local_addr()?);
    axum::serve(listener, Router::new().route("/metrics", metrics)).await?;
    Ok(())
}
