//! A way to a server that can be cut, where everything is dropped or held back, or be long: all that is sent arrives later.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

const OPEN: u8 = 0;
const CUT: u8 = 1;
const HELD: u8 = 2;

/// Between two looks of a connection that is held back, or idle.
const LOOK: Duration = Duration::from_millis(10);

/// Chunks on their way at a time; who sends more waits.
const ON_THE_WAY: usize = 1_024;

/// One process's way to the server.
pub struct Proxy {
    way: Arc<Way>,
    pub port: u16,
}

#[derive(Default)]
struct Way {
    state: AtomicU8,
    /// How long each direction takes, us.
    delay: AtomicU64,
    /// Connections so far.
    connections: AtomicU32,
    /// The first so many are swallowed: open, and nothing comes through.
    swallowed: AtomicU32,
}

impl Way {
    fn state(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }
}

impl Proxy {
    /// Listens on a free port in the current runtime, for as long as that lives.
    pub async fn start(server: u16) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let way = Arc::new(Way::default());
        let of_all = Arc::clone(&way);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let way = Arc::clone(&of_all);
                let number = way.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    if way.state() == CUT {
                        return;
                    }
                    let far = SocketAddr::from(([127, 0, 0, 1], server));
                    if let Ok(far) = TcpStream::connect(far).await {
                        let (near_reads, near_writes) = near.into_split();
                        let (far_reads, far_writes) = far.into_split();
                        // Whichever way ends first ends both.
                        tokio::select! {
                            _ = pass(near_reads, far_writes, &way, number) => {}
                            _ = pass(far_reads, near_writes, &way, number) => {}
                        }
                    }
                });
            }
        });
        Ok(Proxy { way, port })
    }

    /// Closes all connections, and refuses new ones.
    pub fn cut(&self) {
        self.way.state.store(CUT, Ordering::Relaxed);
    }

    /// Lets nothing through; what is sent arrives later.
    pub fn hold(&self) {
        self.way.state.store(HELD, Ordering::Relaxed);
    }

    /// The connections of now stay open, and nothing comes through them any more; new ones are as good as ever.
    pub fn swallow(&self) {
        let connections = self.way.connections.load(Ordering::Relaxed);
        self.way.swallowed.store(connections, Ordering::Relaxed);
    }

    /// What is sent from now on takes this long in each direction.
    pub fn delay(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.way.delay.store(micros, Ordering::Relaxed);
    }

    /// As if nothing had been.
    pub fn mend(&self) {
        self.way.state.store(OPEN, Ordering::Relaxed);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    way: &Way,
    number: u32,
) -> io::Result<()> {
    let (sent, mut on_the_way) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let reads = async move {
        let mut buffer = vec![0_u8; 1 << 16];
        loop {
            let read = match tokio::time::timeout(LOOK, from.read(&mut buffer)).await {
                Ok(read) => read?,
                Err(_) if way.state() == CUT => return io::Result::Ok(()),
                Err(_) => continue,
            };
            let delay = Duration::from_micros(way.delay.load(Ordering::Relaxed));
            let chunk = (Instant::now() + delay, buffer[..read].to_vec());
            if read == 0 || sent.send(chunk).await.is_err() {
                return Ok(());
            }
        }
    };
    let writes = async {
        while let Some((arrives, chunk)) = on_the_way.recv().await {
            tokio::time::sleep_until(arrives).await;
            loop {
                let swallowed = number < way.swallowed.load(Ordering::Relaxed);
                match way.state() {
                    CUT => return Ok(()),
                    _ if swallowed => tokio::time::sleep(LOOK).await,
                    HELD => tokio::time::sleep(LOOK).await,
                    _ => break,
                }
            }
            to.write_all(&chunk).await?;
        }
        io::Result::Ok(())
    };
    tokio::try_join!(reads, writes).map(|_| ())
}
