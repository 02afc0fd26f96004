//! Stores that are more than one server on loopback: users with few rights, a cluster, sentinels, TLS.
//!
//! What takes seconds is ignored by default: `cargo test -p quotient-fleet --features tls --test modes -- --include-ignored`.

#[path = "common/busy.rs"]
mod busy;
#[path = "common/request.rs"]
mod request;
#[path = "common/server.rs"]
mod server;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use quotient_fleet::private_server::PrivateServer;
use quotient_fleet::{
    FleetLimit, MicroCpus, Micros, RedisStore, Reply, Request, Store, StoreError,
};

use self::request::request_of_nobody;

/// A hang is a failure after this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn store(address: &str) -> RedisStore {
    let store = RedisStore::new(address).expect("an address");
    store.within(Duration::from_secs(5))
}

fn limit() -> FleetLimit {
    FleetLimit::new(MicroCpus::whole(2)).with_lease(Micros::from_millis(200))
}

fn ask(
    runtime: &tokio::runtime::Runtime,
    store: &RedisStore,
    tenant: &str,
    sequence: u64,
) -> Result<Reply, StoreError> {
    let mut answers = runtime.block_on(store.exchange(&[(tenant, request_of_nobody(sequence))]));
    answers.pop().expect("an answer")
}

/// Asks again and again until there is what is wanted.
fn until<T>(what: &str, mut get: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match get() {
            Ok(found) => return found,
            Err(why) => assert!(begun.elapsed() < PATIENCE, "{what} takes too long: {why}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A lease, within some leases.
fn granted(runtime: &tokio::runtime::Runtime, store: &RedisStore, tenant: &str) {
    let mut sequence = 0;
    until("a lease", || {
        sequence += 1;
        match ask(runtime, store, tenant, sequence) {
            Ok(Reply::Granted(_)) => Ok(()),
            other => Err(format!("{tenant}: {other:?}")),
        }
    });
}

/// The rights that the header of `redis` names are enough, and without them it says so.
#[test]
fn a_user_with_few_rights_is_enough() {
    let rights = "+fcall +fcall_ro +function +scan +hget +hmget +hset +hdel +hlen +zadd +zrem +zcard +zrangebyscore +del +time +info";
    let mut arguments = vec![
        "--user",
        "default",
        "off",
        "--user",
        "fleet",
        "on",
        ">secret",
        "~quotient:1:*",
    ];
    arguments.extend(rights.split(' '));
    arguments.extend(["--user", "guest", "on", ">guest", "~quotient:1:*", "+ping"]);
    let Some(server) = server::start("users", &arguments) else {
        return;
    };
    let runtime = runtime();
    let address = |login: &str| format!("redis://{login}@127.0.0.1:{}", server.port());
    let fleet = store(&address("fleet:secret"));
    runtime
        .block_on(fleet.set("tenants/acme", limit()))
        .expect("set");
    granted(&runtime, &fleet, "tenants/acme");
    runtime.block_on(fleet.memory()).expect("remembered");
    runtime.block_on(fleet.confirm()).expect("confirmed");
    let nobody = ask(&runtime, &fleet, "tenants/nobody", 1);
    assert_eq!(nobody, Ok(Reply::Unlimited { limit: None }));
    let names = runtime.block_on(fleet.list()).expect("listed");
    assert_eq!(names, ["tenants/acme"]);
    for login in ["guest:guest", "fleet:wrong", "nobody:secret"] {
        let refused = ask(&runtime, &store(&address(login)), "tenants/acme", 1);
        assert!(
            matches!(refused, Err(StoreError::Denied(_))),
            "{login}: {refused:?}"
        );
    }
}

/// One command by the server's own client, which is installed with it.
fn tell(server: &PrivateServer, words: &[&str]) -> String {
    let output = ["redis-cli", "valkey-cli"].into_iter().find_map(|binary| {
        let mut command = std::process::Command::new(binary);
        command
            .args(["-p", &server.port().to_string()])
            .args(words)
            .output()
            .ok()
    });
    let output = output.expect("redis-cli is installed with redis-server");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Three servers that are one cluster.
fn cluster() -> Option<Vec<PrivateServer>> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        // The bus has the port 10,000 above otherwise, which may be too large.
        let bus = TcpListener::bind("127.0.0.1:0")
            .expect("a free port")
            .local_addr()
            .expect("an address")
            .port();
        servers.push(server::start(
            "cluster",
            &[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus.to_string(),
                "--cluster-node-timeout",
                "2000",
                "--cluster-require-full-coverage",
                "no",
            ],
        )?);
        let ranges = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
        let (first, last) = ranges[servers.len() - 1];
        tell(
            &servers[servers.len() - 1],
            &["CLUSTER", "ADDSLOTSRANGE", first, last],
        );
        let bus = bus.to_string();
        let port = servers[servers.len() - 1].port().to_string();
        tell(&servers[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    }
    for server in &servers {
        until("a cluster", || {
            let info = tell(server, &["CLUSTER", "INFO"]);
            let whole =
                info.contains("cluster_slots_ok:16384") && info.contains("cluster_known_nodes:3");
            if whole { Ok(()) } else { Err(info) }
        });
    }
    Some(servers)
}

/// The slot of a key that is not there becomes another node's.
fn give_slot_away(servers: &[PrivateServer], key: &str) {
    let slot = tell(&servers[0], &["CLUSTER", "KEYSLOT", key]);
    let slot = slot.trim();
    let number: usize = slot.parse().expect("a slot");
    // Three equal parts, near enough; see `cluster`. The last node is not killed later.
    let owner = number / 5_462;
    let taker = if owner == 2 { 0 } else { 2 };
    let id = |server: usize| tell(&servers[server], &["CLUSTER", "MYID"]);
    let set = |server: usize, how: &str, of: usize| {
        let said = tell(
            &servers[server],
            &["CLUSTER", "SETSLOT", slot, how, id(of).trim()],
        );
        assert_eq!(said.trim(), "OK");
    };
    // Who imported it gets it in a new epoch, which no word on its way from the others outdoes.
    set(taker, "IMPORTING", owner);
    set(taker, "NODE", taker);
    set(owner, "NODE", taker);
    set(3 - owner - taker, "NODE", taker);
}

#[test]
#[ignore = "five seconds, three servers"]
fn a_cluster_keeps_each_tenant_on_one_node() {
    let begun = Instant::now();
    let Some(mut servers) = cluster() else { return };
    let runtime = runtime();
    let list: Vec<String> = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port()))
        .collect();
    let store = store(&format!("redis-cluster://{}", list.join(",")));
    let tenants: Vec<String> = (0..24)
        .map(|number| format!("tenants/{{t}}{number}"))
        .collect();
    for tenant in &tenants {
        runtime.block_on(store.set(tenant, limit())).expect("set");
    }
    std::thread::sleep(Duration::from_millis(300));
    // All of them in one exchange, on three nodes.
    let questions: Vec<(&str, Request)> = tenants
        .iter()
        .map(|tenant| (tenant.as_str(), request_of_nobody(1)))
        .collect();
    for (answer, tenant) in runtime
        .block_on(store.exchange(&questions))
        .into_iter()
        .zip(&tenants)
    {
        assert!(
            matches!(answer, Ok(Reply::Granted(_))),
            "{tenant}: {answer:?}"
        );
    }
    let mut names = runtime.block_on(store.list()).expect("listed");
    let mut expected = tenants.clone();
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    // Each node has remembered since it began, which was just now unless the machine is very slow.
    let nobody = ask(&runtime, &store, "tenants/nobody", 1);
    let young = begun.elapsed().as_micros() < u128::from(quotient_fleet::MEMORY_SETTLES.0);
    assert!(
        !young || matches!(nobody, Ok(Reply::Unknown { .. })),
        "{nobody:?}"
    );
    let memory = runtime.block_on(store.memory()).expect("remembered");
    assert_eq!(runtime.block_on(store.memory()), Ok(memory));
    let confirmed = runtime.block_on(store.confirm());
    assert!(confirmed.is_err(), "a cluster has no one memory");
    // A slot moves while its node's calls go in one batch: that one finds its way, and the others are answered.
    let moved = "tenants/moved";
    give_slot_away(&servers, &format!("quotient:1:{{{moved}}}:tenant"));
    let mut with_moved = questions.clone();
    with_moved.push((moved, request_of_nobody(1)));
    for exchange in 0..20 {
        let answers = runtime.block_on(store.exchange(&with_moved));
        let failed = answers.iter().position(Result::is_err);
        assert_eq!(failed, None, "exchange {exchange}: {answers:?}");
        let last = &answers[questions.len()];
        assert!(
            !matches!(last, Ok(Reply::Granted(_))),
            "not its own: {last:?}"
        );
    }
    servers[1].kill();
    let answers = until("what is left", || {
        let answers = runtime.block_on(store.exchange(&questions));
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        if answered > 0 {
            Ok(answers)
        } else {
            Err(format!("{answers:?}"))
        }
    });
    assert!(
        answers.iter().any(Result::is_err),
        "one node's tenants are gone"
    );
    for answer in answers {
        assert!(
            matches!(answer, Ok(_) | Err(StoreError::Unreachable(_))),
            "{answer:?}"
        );
    }
}

/// A master, its replica, and a sentinel that watches both.
fn watched_pair() -> Option<(PrivateServer, PrivateServer, PrivateServer)> {
    let master = server::start("sentinel", &[])?;
    let port = master.port().to_string();
    let replica = server::start(
        "sentinel",
        &[
            "--replicaof",
            "127.0.0.1",
            &port,
            "--repl-diskless-sync-delay",
            "0",
        ],
    )
    .expect("a replica");
    until("a replica", || {
        let info = tell(&replica, &["INFO", "replication"]);
        if info.contains("master_link_status:up") {
            Ok(())
        } else {
            Err(info)
        }
    });
    let sentinel = PrivateServer::sentinel(&format!(
        "sentinel monitor main 127.0.0.1 {port} 1\nsentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n"
    ))
    .expect("a sentinel");
    until("a replica known to the sentinel", || {
        let known = tell(&sentinel, &["SENTINEL", "REPLICAS", "main"]);
        if known.contains(&replica.port().to_string()) {
            Ok(())
        } else {
            Err(known)
        }
    });
    Some((master, replica, sentinel))
}

#[test]
#[ignore = "ten seconds, three servers"]
fn sentinels_lead_to_the_next_master_which_grants_nothing_at_first() {
    let Some((mut master, replica, sentinel)) = watched_pair() else {
        return;
    };
    let runtime = runtime();
    let store = store(&format!(
        "redis-sentinel://127.0.0.1:{}/main",
        sentinel.port()
    ));
    until("the master", || {
        runtime
            .block_on(store.set("tenants/acme", limit()))
            .map_err(|error| error.to_string())
    });
    granted(&runtime, &store, "tenants/acme");
    until("the limit at the replica", || {
        let keys = tell(&replica, &["KEYS", "*"]);
        if keys.contains("tenant") {
            Ok(())
        } else {
            Err(keys)
        }
    });
    // A replica alone is a store that cannot write.
    let read_only = ask(
        &runtime,
        &self::store(&replica.address()),
        "tenants/acme",
        1_000,
    );
    assert!(
        matches!(
            read_only,
            Err(StoreError::Unreachable(_) | StoreError::Unwilling(_))
        ),
        "{read_only:?}"
    );
    master.kill();
    let mut sequence = 2_000;
    let first = until("the next master", || {
        sequence += 1;
        ask(&runtime, &store, "tenants/acme", sequence).map_err(|error| error.to_string())
    });
    let nobody = ask(&runtime, &store, "tenants/nobody", 1);
    assert!(matches!(nobody, Ok(Reply::Unknown { .. })), "{nobody:?}");
    // It knows the limit, and not what was granted since it last heard.
    assert!(
        matches!(first, Reply::Quiet { limit, .. } if limit.quota == self::limit().quota),
        "{first:?}"
    );
    let (limit, _) = runtime
        .block_on(store.get("tenants/acme"))
        .expect("got")
        .expect("a tenant");
    assert_eq!(limit.quota, self::limit().quota);
    let mut sequence = 3_000;
    until("a lease", || {
        sequence += 1;
        match ask(&runtime, &store, "tenants/acme", sequence) {
            Ok(Reply::Granted(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// The master dies while a process holds a lease of it, and the next one has not heard of all that was granted: no more than the bound is used
/// from before to after, and leases come back.
#[test]
#[ignore = "ten seconds, three servers"]
fn a_failover_while_leases_are_out_mints_nothing() {
    const QUOTA: f64 = 0.3;
    let Some((mut master, replica, sentinel)) = watched_pair() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let address = format!("redis-sentinel://127.0.0.1:{}/main", sentinel.port());
    let limit = FleetLimit::new(MicroCpus::from_cpus(QUOTA)).with_processes(1);
    until("the master", || {
        let store = store(&address);
        let set = runtime.block_on(store.set("tenants/acme", limit));
        set.map_err(|error| error.to_string())
    });
    let scheduler = quotient::Scheduler::builder().vcpus(1);
    let scheduler = scheduler.build().expect("a scheduler");
    let group = scheduler.group("tenants/acme").expect("a path");
    let group = group.create().expect("a group");
    let begun = Instant::now();
    let fleet = quotient_fleet::Fleet::builder(&address);
    let fleet = fleet.start(&scheduler).expect("a fleet");
    assert!(fleet.adopt(&group), "below the prefix");
    group.spawn(busy::burn());
    let figures = || fleet.stats()[0].figures;
    let leases = |what: &str, count: u64| {
        let before = figures().granted;
        until(what, || match figures() {
            figures if figures.granted >= before + count => Ok(()),
            figures => Err(format!("{figures:?}, {:?}", fleet.figures())),
        });
    };
    leases("leases of the first master", 4);
    master.kill();
    leases("leases of the next one", 4);
    let known = tell(&replica, &["INFO", "replication"]);
    assert!(known.contains("role:master"), "{known}");
    assert!(figures().quiet > 0, "it granted at once: {:?}", figures());
    let floors = QUOTA / FleetLimit::FLOORS_DIVISOR as f64 + 0.01;
    let lease = QUOTA * limit.lease.0 as f64 / 1e6;
    let most = (QUOTA + floors) * begun.elapsed().as_secs_f64() + lease + floors;
    let charged = figures().used + figures().floor_used;
    assert!(
        charged <= Micros((most * 1e6) as u64),
        "{charged} of at most {most} s"
    );
    drop(fleet);
    runtime.block_on(scheduler.shutdown());
}

#[cfg(feature = "tls")]
#[test]
#[ignore = "needs openssl, and a server that was built with TLS"]
fn tls_with_a_certificate_of_our_own() {
    let folder = std::env::temp_dir().join(format!("quotient-fleet-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = |name: &str| folder.join(name).display().to_string();
    let (key, certificate) = (file("key.pem"), file("certificate.pem"));
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"])
        // A root that is its own server's: no "CA:TRUE", which rustls refuses of a server.
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &key, "-out", &certificate])
        .output();
    assert!(
        made.is_ok_and(|made| made.status.success()),
        "openssl makes a certificate"
    );
    let arguments = [
        "--tls-cert-file",
        certificate.as_str(),
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &certificate,
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "secret",
    ];
    let server = server::start("tls", &arguments).expect("a server with TLS");
    let address = format!("rediss://:secret@127.0.0.1:{}", server.port());
    let pem = std::fs::read(&certificate).expect("our certificate");
    let runtime = runtime();
    let store = RedisStore::with_root_certificates(&address, &pem)
        .expect("an address")
        .within(Duration::from_secs(5));
    runtime
        .block_on(store.set("tenants/acme", limit()))
        .expect("set");
    granted(&runtime, &store, "tenants/acme");
    // Nobody vouches for it by the system's certificates.
    let stranger = ask(&runtime, &self::store(&address), "tenants/acme", 1);
    assert!(
        matches!(stranger, Err(StoreError::Unreachable(_))),
        "{stranger:?}"
    );
    // And who speaks without TLS is not answered.
    let plain = RedisStore::new(&format!("redis://:secret@127.0.0.1:{}", server.port()))
        .expect("an address");
    let plain = ask(&runtime, &plain, "tenants/acme", 1);
    assert!(plain.is_err(), "{plain:?}");
    let without = RedisStore::with_root_certificates("redis://127.0.0.1", &pem);
    assert!(
        matches!(without, Err(StoreError::Address(_))),
        "certificates without TLS"
    );
    let _ = std::fs::remove_dir_all(&folder);
}
