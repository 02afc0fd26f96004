//! Three tenants on one table in memory: `light` and `heavy` (weights 1:3) aggregate and sort without end, `points` looks up rows, 40 a second.
//! Then `heavy` may use a fifth. On plain tokio, two runtimes and in groups, first without the hook. `cargo run --release [SECONDS]`
#![forbid(unsafe_code)]
mod figures;
#[path = "../../../common/measure.rs"]
mod measure;
mod table;

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::time::Instant;

use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::{datasource::MemTable, error::Result};
use figures::{Counts, Figures};
use measure::{Host, Mode, Rig, every, seconds};
use quotient::{Share, SteadyAllocator};
use quotient_datafusion::Tenant;
use table::{HEAVY, POINT_EVERY};

#[cfg_attr(not(feature = "glibc"), global_allocator)]
static ALLOCATOR: SteadyAllocator = SteadyAllocator::SYSTEM; // nobody is stopped while it allocates

/// A tenant: its session names its group.
#[derive(Clone)]
struct Client {
    session: SessionContext,
    host: Host,
    counts: Arc<Counts>,
}

impl Client {
    fn new(host: Host, table: &Arc<MemTable>) -> Result<Self> {
        let mut config = SessionConfig::new().with_target_partitions(2);
        if let Host::Group(group) = &host {
            config = config.with_extension(Tenant::of(group));
        }
        let session = SessionContext::new_with_config(config);
        session.register_table("events", table.clone())?;
        Ok(Self {
            session,
            host,
            counts: Arc::default(),
        })
    }

    /// Asks, for the session's tenant if it has one; `due` is when somebody wanted it.
    async fn ask(self, query: String, due: Instant) {
        let tenant = self.session.copied_config().get_extension::<Tenant>();
        let answer = async move { self.session.sql(&query).await?.collect().await };
        let answer = match tenant {
            Some(tenant) => tenant.spawn(answer).await.expect("not killed"),
            None => answer.await,
        };
        self.counts.answered(answer.expect("an answer").len(), due);
    }

    async fn keep_asking(self, query: &str, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            self.clone().ask(query.to_owned(), Instant::now()).await;
        }
    }
}

fn row(name: &str, mode: Mode, table: &Arc<MemTable>) -> Result<()> {
    let (rig, stop) = (Rig::new(mode), Arc::new(AtomicBool::new(false)));
    let light = Client::new(rig.tenant("tenants/light", 100, false), table)?;
    let heavy = Client::new(rig.tenant("tenants/heavy", 300, false), table)?;
    let points = Client::new(rig.tenant("tenants/points", 100, true), table)?;
    for query in HEAVY {
        for one in [&light, &heavy] {
            one.host.spawn(one.clone().keep_asking(query, stop.clone()));
        }
    }
    let counted = [&light, &heavy, &points].map(|client| (&client.host, &*client.counts));
    let phase = |name: &str| {
        let figures = Figures::begin(counted);
        let mut lookup = table::lookups();
        every(POINT_EVERY, seconds(), |due| {
            points.host.spawn(points.clone().ask(lookup(), due));
        });
        figures.print(name);
    };
    phase(&format!("{name}, 1:3"));
    if let Host::Group(group) = &heavy.host {
        group.set_max(Share(0.2)).expect("a limit");
        phase(&format!("{name}, heavy at 20 %"));
    }
    table::end(&stop);
    rig.abandon();
    Ok(())
}

fn main() -> Result<()> {
    let table = table::events()?;
    row("plain tokio", Mode::Tokio, &table)?;
    row("two runtimes", Mode::TwoRuntimes, &table)?;
    row("groups without the hook", Mode::Quotient, &table)?;
    quotient_datafusion::install().expect("the first"); // once a process
    row("groups", Mode::Quotient, &table)
}
