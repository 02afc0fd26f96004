//! A tonic server whose calls run in their tenants' groups, and a client whose connection is in one, in a process:
//! `cargo run -p quotient-http --example grpc`; from outside
//!
//! ```sh
//! grpcurl -plaintext -H 'x-tenant: acme' -d '{"service": "db"}' 127.0.0.1:3001 grpc.health.v1.Health/Check
//! curl --http2-prior-knowledge -H 'x-tenant: acme' -H 'content-type: application/grpc' \
//!     --data-binary @<(printf '\0\0\0\0\4\n\2db') -o - http://127.0.0.1:3001/grpc.health.v1.Health/Check
//! ```

use std::future::IntoFuture;

use quotient_http::{GroupExecutor, Tenants};
use tonic::transport::Channel;
use tonic_health::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenants = Tenants::by_header("x-tenant")?;
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("db", ServingStatus::Serving)
        .await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
    let address = listener.local_addr()?;
    let routes = tonic::service::Routes::new(health);
    let server = tokio::spawn(
        tenants
            .serve(listener, routes.into_axum_router())
            .into_future(),
    );

    let clients = tenants.scheduler().group("clients")?.create()?;
    let endpoint = Channel::from_shared(format!("http://{address}"))?;
    let channel = endpoint
        .executor(GroupExecutor::new(clients))
        .connect()
        .await?;
    let mut client = HealthClient::new(channel);
    for _ in 0..1_000 {
        let mut request = tonic::Request::new(HealthCheckRequest {
            service: "db".into(),
        });
        request.metadata_mut().insert("x-tenant", "acme".parse()?);
        client.check(request).await?;
    }
    for group in tenants.scheduler().groups() {
        println!("{:20} {:?}", group.path(), group.cpu_time());
    }
    println!("http://{address}, Ctrl-C ends it");
    server.await??;
    Ok(())
}
