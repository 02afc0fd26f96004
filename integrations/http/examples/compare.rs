//! Small requests of one tenant, alone and beside another's of 10 ms in one poll: on plain tokio, on two runtimes (a server each), in groups.
//! `cargo run --release -p quotient-http --example compare [SECONDS]`.

#[path = "../../common/measure.rs"]
mod measure;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::{Router, routing::get};
use measure::{MODES, Rig, every, percentile, seconds};
use quotient_http::Tenants;

/// Connections of a tenant that asks again as soon as it is answered.
const CONNECTIONS: usize = 8;
/// How often the light tenant asks, beside the heavy one.
const LIGHT_EVERY: Duration = Duration::from_millis(5);

type Failure = Box<dyn std::error::Error>;

async fn heavy() -> &'static str {
    let sum = (0..12_000_000_u64).fold(0_u64, |sum, row| std::hint::black_box(sum ^ row));
    std::hint::black_box(sum);
    "done\n"
}

/// The servers of the light and of the heavy tenant: one and the same but with two runtimes.
fn serve(rig: &Rig) -> Result<[SocketAddr; 2], Failure> {
    let app = Router::new().route("/heavy", get(heavy));
    let app = app.route("/light", get(|| async { "done\n" }));
    let mut addresses = Vec::new();
    for is_light in [true, false] {
        let (listener, app) = (TcpListener::bind("127.0.0.1:0")?, app.clone());
        listener.set_nonblocking(true)?;
        addresses.push(listener.local_addr()?);
        let Some(scheduler) = &rig.scheduler else {
            rig.tenant("", 100, is_light).spawn(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
                axum::serve(listener, app).await.expect("a server");
            });
            continue;
        };
        let tenants = Tenants::on(scheduler, "x-tenant")?;
        tenants.group("light")?.weight(300).create()?;
        tenants.group("heavy")?.weight(100).create()?;
        tenants.connections().clone().spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
            tenants.serve(listener, app).await
        });
        return Ok([addresses[0]; 2]);
    }
    Ok([addresses[0], addresses[1]])
}

fn ask(stream: &mut TcpStream, tenant: &str) -> io::Result<()> {
    let request = format!("GET /{tenant} HTTP/1.1\r\nhost: here\r\nx-tenant: {tenant}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut length) = ([0; 1_024], 0);
    while !answer[..length].ends_with(b"done\n") {
        length += stream.read(&mut answer[length..])?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    for mode in MODES {
        let rig = Rig::new(mode);
        let addresses = serve(&rig)?;
        for (tenant, address) in ["light", "heavy"].into_iter().zip(addresses) {
            let counted: Arc<(AtomicBool, AtomicU64)> = Arc::default();
            for _ in 0..CONNECTIONS {
                let counted = counted.clone();
                let mut stream = TcpStream::connect(address)?;
                std::thread::spawn(move || {
                    while !counted.0.load(Ordering::Relaxed) && ask(&mut stream, tenant).is_ok() {
                        counted.1.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let (mut took, mut stream) = (Vec::new(), TcpStream::connect(addresses[0])?);
            every(LIGHT_EVERY, seconds(), |due| {
                ask(&mut stream, "light").expect("an answer");
                took.push(due.elapsed().as_secs_f64() * 1e3);
            });
            let rate = counted.1.load(Ordering::Relaxed) as f64 / seconds();
            let [p50, p99] = [0.5, 0.99].map(|part| percentile(&mut took, part));
            println!(
                "{mode:?}: {rate:.0} {tenant} requests/s; beside them p50 {p50:.2} ms, p99 {p99:.2} ms"
            );
            counted.0.store(true, Ordering::Relaxed);
        }
        rig.abandon();
    }
    Ok(())
}
