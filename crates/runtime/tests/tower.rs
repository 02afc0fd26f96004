//! The tower layer under unmodified `axum::serve`, over loopback TCP.
#![cfg(not(loom))]
#![cfg(feature = "tower")]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderName;
use axum::routing::get;
use common::{eventually, guarded, runtime, scheduler};
use quotient::Group;
use quotient::tower::GroupLayer;

async fn whoami() -> String {
    Group::current().map_or_else(|| "nobody".into(), |group| group.path().to_owned())
}

async fn forever() {
    std::future::pending::<()>().await;
}

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// One request on a connection of its own; the body of the answer.
async fn request(address: SocketAddr, path: &str, header: &str) -> String {
    let text = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}\r\n");
    tokio::task::spawn_blocking(move || {
        let mut stream = connect(address);
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split("\r\n\r\n").nth(1).unwrap_or("").to_owned()
    })
    .await
    .unwrap()
}

#[test]
fn requests_run_in_the_group_of_their_header() {
    for charge in [false, true] {
        runtime(2).block_on(guarded(async move {
            let (scheduler, default) = scheduler(2);
            let header = HeaderName::from_static("x-tenant");
            let layer = GroupLayer::by_header(&scheduler, header, "web", 2, default).unwrap();
            let layer = if charge {
                layer.charge()
            } else {
                layer.isolate()
            };
            let address = serve(Router::new().route("/", get(whoami)).layer(layer)).await;
            assert_eq!(request(address, "/", "x-tenant: a\r\n").await, "web/a");
            assert_eq!(request(address, "/", "x-tenant: b\r\n").await, "web/b");
            assert_eq!(request(address, "/", "x-tenant: a\r\n").await, "web/a");
            // With work in both nobody makes room.
            for tenant in ["web/a", "web/b"] {
                let group = scheduler.find(tenant).unwrap();
                group.spawn(forever());
            }
            for stranger in [
                "",
                "x-tenant: one-too-many\r\n",
                "x-tenant: ../x\r\n",
                "x-tenant: a/b\r\n",
            ] {
                assert_eq!(
                    request(address, "/", stranger).await,
                    "tenants/acme",
                    "{stranger:?}"
                );
            }
            let tenants = scheduler
                .groups()
                .iter()
                .filter(|group| group.path().starts_with("web/"))
                .count();
            assert_eq!(tenants, 2, "groups were made beyond the bound");
            scheduler.shutdown().await;
        }));
    }
}

#[test]
fn a_closure_chooses_and_a_dropped_request_aborts_its_handler() {
    runtime(2).block_on(guarded(async {
        let (scheduler, group) = scheduler(2);
        let chosen = group.clone();
        let layer = GroupLayer::by(move |_: &Request| chosen.clone());
        let router = Router::new().route("/", get(forever)).layer(layer);
        let address = serve(router).await;
        let mut stream = connect(address);
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .unwrap();
        eventually("the handler runs", || group.stats().tasks == 1).await;
        drop(stream);
        eventually("the handler is aborted", || group.stats().tasks == 0).await;
        scheduler.shutdown().await;
    }));
}

#[cfg(feature = "hyper")]
#[test]
fn whole_connections_run_in_a_group_by_the_executor() {
    use hyper_util::rt::TokioIo;
    use hyper_util::service::TowerToHyperService;

    runtime(2).block_on(guarded(async {
        let (scheduler, group) = scheduler(2);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(whoami));
        let executor = quotient::hyper::GroupExecutor::new(group.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                hyper::rt::Executor::execute(&executor, async move { connection.await.unwrap() });
            }
        });
        assert_eq!(request(address, "/", "").await, "tenants/acme");
        // The answer goes out before the poll that sent it is counted.
        eventually("the connection's polls are counted", || {
            group.stats().polls > 0
        })
        .await;
        scheduler.shutdown().await;
    }));
}
