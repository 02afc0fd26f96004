//! A way to a server that can be cut: everything is dropped, or held back.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const OPEN: u8 = 0;
const CUT: u8 = 1;
const HELD: u8 = 2;

/// Between two looks of a connection that is held back, or idle.
const LOOK: Duration = Duration::from_millis(10);

/// One process's way to the server.
pub struct Proxy {
    state: Arc<AtomicU8>,
    pub port: u16,
}

impl Proxy {
    /// Listens on a free port in the current runtime, for as long as that lives.
    pub async fn start(server: u16) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(AtomicU8::new(OPEN));
        let of_all = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let state = Arc::clone(&of_all);
                tokio::spawn(async move {
                    if state.load(Ordering::Relaxed) == CUT {
                        return;
                    }
                    let far = SocketAddr::from(([127, 0, 0, 1], server));
                    if let Ok(far) = TcpStream::connect(far).await {
                        let (near_reads, near_writes) = near.into_split();
                        let (far_reads, far_writes) = far.into_split();
                        // Whichever way ends first ends both.
                        tokio::select! {
                            _ = pass(near_reads, far_writes, &state) => {}
                            _ = pass(far_reads, near_writes, &state) => {}
                        }
                    }
                });
            }
        });
        Ok(Proxy { state, port })
    }

    /// Closes all connections, and refuses new ones.
    pub fn cut(&self) {
        self.state.store(CUT, Ordering::Relaxed);
    }

    /// Lets nothing through; what is sent arrives later.
    pub fn hold(&self) {
        self.state.store(HELD, Ordering::Relaxed);
    }

    /// As if nothing had been.
    pub fn mend(&self) {
        self.state.store(OPEN, Ordering::Relaxed);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    state: &AtomicU8,
) -> io::Result<()> {
    let mut buffer = vec![0_u8; 1 << 16];
    loop {
        let read = match tokio::time::timeout(LOOK, from.read(&mut buffer)).await {
            Ok(read) => read?,
            Err(_) if state.load(Ordering::Relaxed) == CUT => return Ok(()),
            Err(_) => continue,
        };
        if read == 0 {
            return Ok(());
        }
        loop {
            match state.load(Ordering::Relaxed) {
                CUT => return Ok(()),
                HELD => tokio::time::sleep(LOOK).await,
                _ => break,
            }
        }
        to.write_all(&buffer[..read]).await?;
    }
}
