//! What is asked of the nodes: closed loops over keep-alive connections, which go where the load is.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::NODES;
use crate::demo::work;
use crate::failure::Failure;

/// Connections to each node that is asked. Enough that two nodes want more than the tenant may use.
const CONNECTIONS: usize = 3;

/// Orders in a request: half a millisecond of work, so that asking costs little beside answering.
const ORDERS: usize = 768;

/// Between two looks of a connection that has nothing to ask, and after one that failed.
const PAUSE: Duration = Duration::from_millis(20);

/// One node as seen from outside.
#[derive(Default)]
pub struct Door {
    /// Where it listens; 0 while there is none.
    pub port: AtomicU16,
    /// Whether it is asked now.
    pub open: AtomicBool,
    /// Answers, and requests that failed.
    pub answered: AtomicU64,
    pub failed: AtomicU64,
}

/// All the load; ends when it is dropped.
pub struct Load {
    pub doors: Arc<[Door; NODES]>,
    runtime: Option<Runtime>,
}

impl Load {
    /// # Errors
    /// When there is no thread to be had.
    pub fn start() -> Result<Load, Failure> {
        let doors: Arc<[Door; NODES]> = Arc::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("load")
            .enable_all()
            .build()
            .map_err(Failure::during("cannot start the load"))?;
        let document = Bytes::from(work::document(1, ORDERS));
        for node in 0..NODES {
            for _ in 0..CONNECTIONS {
                runtime.spawn(ask(Arc::clone(&doors), node, document.clone()));
            }
        }
        Ok(Load {
            doors,
            runtime: Some(runtime),
        })
    }

    /// From now on these nodes are asked, and no others.
    pub fn direct(&self, nodes: &[usize]) {
        for (index, door) in self.doors.iter().enumerate() {
            door.open.store(nodes.contains(&index), Ordering::Relaxed);
        }
    }

    /// Answers, and requests that failed.
    pub fn counts(&self) -> (u64, u64) {
        self.doors.iter().fold((0, 0), |(answered, failed), door| {
            (
                answered + door.answered.load(Ordering::Relaxed),
                failed + door.failed.load(Ordering::Relaxed),
            )
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Asks one node for ever, over a connection that is made again after it broke.
async fn ask(doors: Arc<[Door; NODES]>, node: usize, document: Bytes) {
    let door = &doors[node];
    loop {
        let port = door.port.load(Ordering::Relaxed);
        if port == 0 || !door.open.load(Ordering::Relaxed) {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        if converse(door, port, &document).await.is_none() {
            door.failed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Asks over one connection until the load moves on; `None` if it broke.
async fn converse(door: &Door, port: u16, document: &Bytes) -> Option<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect(address).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    // Its error is that of the request in flight.
    let driver = tokio::spawn(driver);
    while door.open.load(Ordering::Relaxed) && door.port.load(Ordering::Relaxed) == port {
        let request = Request::post("/orders")
            .header("host", "quotient")
            .body(Full::new(document.clone()))
            .ok()?;
        let answer = sender.send_request(request).await.ok()?;
        answer.into_body().collect().await.ok()?;
        door.answered.fetch_add(1, Ordering::Relaxed);
    }
    driver.abort();
    Some(())
}
