//! Hazards: a request or a connection in the wrong group, time of either paid by nobody, a server that does not end or cuts answers
//! off at its end; HTTP/1, HTTP/2 and gRPC.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream::{self, StreamExt};
use quotient::{Group, Scheduler};
use quotient_http::{GroupExecutor, SetupError, Tenants};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;

/// A hang.
const HANG: Duration = Duration::from_secs(120);

fn here() -> String {
    Group::current().map_or("nobody".into(), |group| group.path().to_owned())
}

/// A server until the sender is told.
async fn serve(
    tenants: &Tenants,
    app: Router,
) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = oneshot::channel();
    let server = tenants.serve(listener, app).with_graceful_shutdown(async {
        let _ = ended.await;
    });
    let server = tokio::spawn(async { server.await.unwrap() });
    (address, end, server)
}

/// A request on a connection of its own; the whole answer.
async fn ask(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn app() -> Router {
    let frames = || {
        stream::iter(0..3).map(|_| Ok::<_, std::io::Error>(Bytes::from(format!("<{}>", here()))))
    };
    Router::new()
        .route("/", get(|| async { format!("[{}]", here()) }))
        .route(
            "/stream",
            get(move || async move { Body::from_stream(frames()) }),
        )
        .route(
            "/slow",
            get(|| async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                "[slow]"
            }),
        )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_connections_are_in_the_wrong_group() {
    let tenants = Tenants::by_header("x-tenant").unwrap();
    let (address, end, server) = serve(&tenants, app()).await;
    let polls = |group: &Group| group.stats().polls;
    assert!(
        ask(address, "/", "x-tenant: acme\r\n")
            .await
            .contains("[tenants/acme]")
    );
    assert!(ask(address, "/", "").await.contains("[connections]"));
    assert!(
        ask(address, "/", "x-tenant: a/b\r\n")
            .await
            .contains("[connections]")
    );
    let streamed = ask(address, "/stream", "x-tenant: acme\r\n").await;
    assert_eq!(streamed.matches("<tenants/acme>").count(), 3, "{streamed}");
    assert!(polls(tenants.connections()) > 4);
    let acme = tenants.scheduler().find("tenants/acme").unwrap();
    assert!(polls(&acme) > 0);
    end.send(()).unwrap();
    tokio::time::timeout(HANG, server).await.unwrap().unwrap();
    tenants.scheduler().shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_cannot_tell_who_is_connected() {
    use axum::extract::ConnectInfo;
    let tenants = Tenants::by_header("x-tenant").unwrap();
    let who = |ConnectInfo(from): ConnectInfo<SocketAddr>| async move { format!("[{from}]") };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/", get(who));
    let server = tokio::spawn(
        tenants
            .serve(listener, app)
            .with_connect_info()
            .into_future(),
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    let expected = format!("[{}]", stream.local_addr().unwrap());
    let request = b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(&expected), "{answer}");
    server.abort();
    tenants.scheduler().shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_cuts_answers_off_or_never_comes() {
    let scheduler = Scheduler::builder().build().unwrap();
    let tenants = Tenants::on(&scheduler, "x-tenant").unwrap();
    let (address, end, server) = serve(&tenants, app()).await;
    let slow = tokio::spawn(async move { ask(address, "/slow", "x-tenant: acme\r\n").await });
    while tenants.scheduler().find("tenants/acme").is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A connection without a request must not hold up the end.
    let idle = TcpStream::connect(address).await.unwrap();
    end.send(()).unwrap();
    assert!(slow.await.unwrap().contains("[slow]"));
    tokio::time::timeout(HANG, server).await.unwrap().unwrap();
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nobody listens any more"
    );
    drop(idle);
    scheduler.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_tenants_are_lost() {
    let tenants = Tenants::by_header("x-tenant").unwrap();
    let tenants = tenants.map_layer(|layer| layer.on_tenant(|_, group| group.weight(7)));
    tenants
        .group("known")
        .unwrap()
        .weight(300)
        .create()
        .unwrap();
    let (address, _end, _server) = serve(&tenants, app()).await;
    for tenant in ["known", "new"] {
        ask(address, "/", &format!("x-tenant: {tenant}\r\n")).await;
    }
    let weight = |path| tenants.scheduler().find(path).unwrap().weight();
    assert_eq!((weight("tenants/known"), weight("tenants/new")), (300, 7));
    let error = Tenants::by_header("no header").unwrap_err();
    assert!(matches!(&error, SetupError::Header { .. }), "{error}");
    assert!(error.to_string().starts_with("header \"no header\": "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_is_in_nobodys_group() {
    let tenants = Tenants::by_header("x-tenant").unwrap();
    let (reporter, health) = health_reporter();
    reporter
        .set_service_status("db", ServingStatus::Serving)
        .await;
    let routes = tonic::service::Routes::new(health);
    let (address, end, server) = serve(&tenants, routes.into_axum_router()).await;
    let client_group = tenants
        .scheduler()
        .group("client")
        .unwrap()
        .create()
        .unwrap();
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    let endpoint = endpoint.executor(GroupExecutor::new(client_group.clone()));
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let mut request = tonic::Request::new(HealthCheckRequest {
        service: "db".into(),
    });
    request
        .metadata_mut()
        .insert("x-tenant", "acme".parse().unwrap());
    let answer = tokio::time::timeout(HANG, client.check(request))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer.into_inner().status, 1);
    let polls = |path| tenants.scheduler().find(path).unwrap().stats().polls;
    assert!(polls("tenants/acme") > 0 && polls("connections") > 0 && polls("client") > 0);
    drop(client);
    end.send(()).unwrap();
    tokio::time::timeout(HANG, server).await.unwrap().unwrap();
    tenants.scheduler().shutdown().await;
}
