//! A store into which others wrote, whose requests lie, or whose data is not its own: errors that name it, and nothing granted twice.

#[path = "common/request.rs"]
mod request;
#[path = "common/server.rs"]
mod server;

use quotient_fleet::{
    FleetLimit, MicroCpus, Micros, RedisStore, Reply, Request, Store, StoreError,
};

use self::request::request_of_nobody;

/// A store that waits for its server however little of the machine that gets: what is bounded is a hang.
fn store(address: &str) -> RedisStore {
    let store = RedisStore::new(address).expect("an address");
    store.within(std::time::Duration::from_secs(30))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn clock(millis: u64) -> Micros {
    Micros::from_secs(1_700_000_000) + Micros::from_millis(millis)
}

fn key(tenant: &str, part: &str) -> String {
    format!("quotient:1:{{{tenant}}}:{part}")
}

const LIMIT: FleetLimit = FleetLimit::new(MicroCpus::whole(2));

/// A store in which somebody writes beside us. Moments are in ms since it began.
struct Spoilt {
    server: server::PrivateServer,
    runtime: tokio::runtime::Runtime,
    store: RedisStore,
}

impl Spoilt {
    /// `None` where no server is installed.
    fn start(name: &str) -> Option<Spoilt> {
        let server = server::start(name, &[])?;
        Some(Spoilt {
            runtime: runtime(),
            store: store(&server.address()),
            server,
        })
    }

    /// A command of somebody else.
    fn tell(&self, words: &[&str]) {
        let client = redis::Client::open(self.server.address()).expect("an address");
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        let mut connection = client.get_connection().expect("connected");
        command
            .query::<redis::Value>(&mut connection)
            .expect("done");
    }

    fn set(&self, tenant: &str, at: u64) {
        let set = self.store.set_at(tenant, LIMIT, clock(at), 1);
        self.runtime.block_on(set).expect("set");
    }

    fn ask(&self, tenant: &str, sequence: u64, at: u64) -> Result<Reply, StoreError> {
        let request = Request {
            sequence,
            ..request_of_nobody(1)
        };
        let asked = self.store.ask_at(tenant, &request, clock(at), 1);
        self.runtime.block_on(asked)
    }

    /// A tenant with a limit, and a lease of it.
    fn begin(&self, tenant: &str) {
        self.set(tenant, 0);
        assert!(self.is_granted(tenant, 1, 1_500));
    }

    fn is_granted(&self, tenant: &str, sequence: u64, at: u64) -> bool {
        let answer = self.ask(tenant, sequence, at).expect("an answer");
        matches!(answer, Reply::Granted(grant) if grant.amount > Micros::ZERO)
    }

    fn is_quiet(&self, tenant: &str, sequence: u64, at: u64) -> bool {
        let answer = self.ask(tenant, sequence, at).expect("an answer");
        matches!(answer, Reply::Quiet { .. })
    }

    /// Whether that key is named as broken. By its name, so that the same of two tenants is no fault of the store.
    fn is_named(&self, tenant: &str, part: &str) -> bool {
        let answer = self.ask(tenant, 2, 1_600);
        let names = |why: &str| why.contains(&key(tenant, part)) && why.contains("FLEETBROKEN");
        matches!(&answer, Err(StoreError::Garbage(why)) if names(why))
    }
}

#[test]
fn fields_that_somebody_wrote_are_named_and_mended_by_a_limit() {
    let Some(spoilt) = Spoilt::start("fields") else {
        return;
    };
    for (tenant, change) in [
        ("quota", &["HSET", "quota", "abc"][..]),
        ("lower", &["HSET", "quota", "-5"]),
        ("burst", &["HDEL", "burst"]),
        ("pool", &["HSET", "pool", "nan"]),
        // In range of numbers, and nobody's lease: grants of nothing for ever.
        ("debt", &["HSET", "pool", "-9000000000000000"]),
        ("held", &["HSET", "held", "9000000000000000"]),
        ("fraction", &["HSET", "fraction", "1000000"]),
        ("floors", &["HSET", "floors", "4000000"]),
        ("lease", &["HSET", "lease", "1"]),
        ("demands", &["HSET", "demands", "abc"]),
        ("nothing", &["HSET", "demands", "\u{1}"]),
        // Of 50 processes with a demand where one asks: nobody has a share.
        ("many", &["HSET", "demands", "\u{93}\u{1}\u{32}\u{1}"]),
        // Moments of a time to come, until when it would have its floor only.
        ("quiet", &["HSET", "quiet", "9007199254740990"]),
        ("version", &["HSET", "version", "9007199254740990"]),
    ] {
        spoilt.begin(tenant);
        let key = key(tenant, "tenant");
        spoilt.tell(&[&[change[0], &key], &change[1..]].concat());
        assert!(spoilt.is_named(tenant, "tenant"), "{tenant}");
        // As the message says. What was granted is forgotten: quiet for the longest lease.
        spoilt.set(tenant, 1_700);
        assert!(spoilt.is_quiet(tenant, 3, 1_800), "{tenant}");
        assert!(spoilt.is_granted(tenant, 4, 76_800), "{tenant}");
    }
}

#[test]
fn keys_that_somebody_wrote_are_named_and_mended_by_a_limit() {
    let Some(spoilt) = Spoilt::start("keys") else {
        return;
    };
    spoilt.begin("type");
    spoilt.tell(&["SET", &key("type", "tenant"), "a text"]);
    assert!(spoilt.is_named("type", "tenant"));
    spoilt.set("type", 1_700);
    // In range, and wrong: nobody holds that. Who sets the limit counts anew.
    spoilt.begin("sums");
    spoilt.tell(&["HSET", &key("sums", "tenant"), "held", "2400000000000"]);
    spoilt.set("sums", 1_700);
    assert!(spoilt.is_granted("sums", 2, 76_800));
    // A debt of months is none of a capacity of two seconds.
    spoilt.begin("months");
    spoilt.tell(&["HSET", &key("months", "tenant"), "pool", "-2400000000000"]);
    spoilt.ask("months", 2, 1_600).expect("an answer");
    assert!(spoilt.is_granted("months", 3, 3_700));
    spoilt.begin("record");
    for record in ["abc", "", "\u{1}"] {
        let processes = key("record", "processes");
        spoilt.tell(&["HSET", &processes, "0000000000000007", record]);
        assert!(spoilt.is_named("record", "processes"), "{record:?}");
    }
    spoilt.set("record", 1_700);
    assert!(spoilt.is_quiet("record", 3, 1_800));
    spoilt.begin("later");
    spoilt.tell(&["HSET", &key("later", "tenant"), "format", "2"]);
    let answer = spoilt.ask("later", 2, 1_600);
    assert!(matches!(answer, Err(StoreError::Format(_))), "{answer:?}");
}

#[test]
fn a_tenant_of_which_a_key_is_lost_begins_anew() {
    let Some(spoilt) = Spoilt::start("lost") else {
        return;
    };
    for (tenant, part) in [("processes-text", "processes"), ("ends-text", "ends")] {
        spoilt.begin(tenant);
        spoilt.tell(&["SET", &key(tenant, part), "a text"]);
        assert!(spoilt.is_quiet(tenant, 2, 1_600), "as if it was deleted");
    }
    for lost in ["processes", "ends"] {
        spoilt.begin(lost);
        spoilt.tell(&["DEL", &key(lost, lost)]);
        assert!(spoilt.is_quiet(lost, 2, 1_600), "what was granted is lost");
        assert!(spoilt.is_granted(lost, 3, 3_700));
        let got = spoilt.runtime.block_on(spoilt.store.get(lost));
        let (_, figures) = got.expect("got").expect("a tenant");
        assert_eq!(figures.leases, 1, "{figures:?}");
    }
    let long = format!("tenants/{}", "é{}% ".repeat(1_700));
    spoilt.begin(&long);
    let names = spoilt
        .runtime
        .block_on(spoilt.store.list())
        .expect("listed");
    assert!(names.contains(&long), "ten thousand bytes of a name");
}

/// An older state that comes from a replica, as after a restore: what was granted since is not granted again.
#[test]
fn a_state_that_comes_from_another_server_is_another_life() {
    let (Some(server), Some(backup)) = (server::start("now", &[]), server::start("then", &[]))
    else {
        return;
    };
    let runtime = runtime();
    let store = store(&server.address());
    let connect = |server: &server::PrivateServer| {
        let client = redis::Client::open(server.address()).expect("an address");
        client.get_connection().expect("connected")
    };
    let (mut here, mut there) = (connect(&server), connect(&backup));
    for server in [&mut here, &mut there] {
        tell(server, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    }
    fn tell(connection: &mut redis::Connection, words: &[&str]) -> String {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        let value = command.query::<redis::Value>(connection).expect("done");
        redis::from_redis_value::<String>(value).unwrap_or_default()
    }
    fn synced(connection: &mut redis::Connection) {
        let begun = std::time::Instant::now();
        while !tell(connection, &["INFO", "replication"]).contains("master_link_status:up") {
            assert!(begun.elapsed().as_secs() < 60, "it never follows");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    let limit = FleetLimit::new(MicroCpus::whole(2)).with_lease(Micros::from_millis(100));
    let granted = |sequence: u64| {
        let request = Request {
            sequence,
            ..request_of_nobody(1)
        };
        let mut answers = runtime.block_on(store.exchange(&[("acme", request)]));
        answers.pop().expect("an answer").expect("asked")
    };
    runtime.block_on(store.set("acme", limit)).expect("set");
    let port = |server: &server::PrivateServer| server.port().to_string();
    tell(&mut there, &["REPLICAOF", "127.0.0.1", &port(&server)]);
    synced(&mut there);
    tell(&mut there, &["REPLICAOF", "NO", "ONE"]);
    std::thread::sleep(std::time::Duration::from_millis(200));
    // A first replica gives its server's history a new name: quiet, if nobody looked meanwhile.
    let mut sequence = 1;
    while !matches!(granted(sequence), Reply::Granted(_)) {
        assert!(sequence < 300, "it is never granted anything");
        std::thread::sleep(std::time::Duration::from_millis(20));
        sequence += 1;
    }
    tell(&mut here, &["REPLICAOF", "127.0.0.1", &port(&backup)]);
    synced(&mut here);
    tell(&mut here, &["REPLICAOF", "NO", "ONE"]);
    sequence += 1;
    let again = granted(sequence);
    assert!(matches!(again, Reply::Quiet { .. }), "{again:?}");
    // A second later the backlog is freed, and with it what the server says of where its data is from. As long as somebody asks, that is no other
    // life; where nobody looked, it may be.
    tell(&mut here, &["CONFIG", "SET", "repl-backlog-ttl", "1"]);
    let begun = std::time::Instant::now();
    let freed = |here: &mut redis::Connection| {
        let zero = format!("master_replid2:{}", "0".repeat(40));
        tell(here, &["INFO", "replication"]).contains(&zero)
    };
    while !freed(&mut here) || begun.elapsed().as_secs() < 4 {
        sequence += 1;
        let answer = granted(sequence);
        let quiet = matches!(answer, Reply::Quiet { .. }) && begun.elapsed().as_millis() > 300;
        assert!(!quiet, "{answer:?} after {:?}", begun.elapsed());
        assert!(begun.elapsed().as_secs() < 60, "it is never freed");
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    tell(&mut here, &["REPLICAOF", "127.0.0.1", &port(&backup)]);
    synced(&mut here);
    tell(&mut here, &["REPLICAOF", "NO", "ONE"]);
    let begun = std::time::Instant::now();
    while !freed(&mut here) {
        assert!(begun.elapsed().as_secs() < 60, "it is never freed");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    let again = granted(sequence + 1);
    assert!(matches!(again, Reply::Quiet { .. }), "{again:?}");
}

/// What a request says that it keeps is believed as far as it can be: neither does it free what is kept, nor does it starve the tenant for days.
#[test]
fn a_request_that_errs_moves_no_more_than_a_capacity() {
    let Some(server) = server::start("errs", &[]) else {
        return;
    };
    let (runtime, store) = (runtime(), store(&server.address()));
    let clock = |millis: u64| Micros::from_secs(1_700_000_000) + Micros::from_millis(millis);
    let limit = FleetLimit::new(MicroCpus::whole(2));
    let set = store.set_at("acme", limit, clock(0), 1);
    runtime.block_on(set).expect("set");
    let ask = |sequence: u64, at: u64, left: u64, demand: u64| {
        let request = Request {
            sequence,
            left: Micros(left),
            demand: MicroCpus(demand),
            ..request_of_nobody(1)
        };
        runtime.block_on(store.ask_at("acme", &request, clock(at), 1))
    };
    let refused = ask(1, 1_500, 1, 0);
    assert!(
        matches!(&refused, Err(StoreError::Garbage(why)) if why.contains("keeps nothing")),
        "{refused:?}"
    );
    ask(2, 1_500, 2_000_000_000_000, 2_000_000).expect("an answer");
    ask(3, 1_600, 2_000_000_000_000, 2_000_000).expect("an answer");
    let (_, figures) = runtime
        .block_on(store.get("acme"))
        .expect("got")
        .expect("a tenant");
    assert!(figures.held <= limit.capacity(), "{figures:?}");
    let after = ask(4, 3_700, 0, 2_000_000).expect("an answer");
    assert!(
        matches!(&after, Reply::Granted(grant) if grant.amount > Micros::ZERO),
        "{after:?}"
    );
}
