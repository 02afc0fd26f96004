//! The store's function does what the policy does, and says what is wrong with a store.

#[path = "common/request.rs"]
mod request;
#[path = "common/server.rs"]
mod server;

use quotient_fleet::{
    FleetLimit, Holder, MemoryStore, MicroCpus, Micros, ProcessId, RedisStore, Reply, Request,
    Settings, Store, StoreError,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;

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

/// The state of random requests: what each process last said.
struct Asking {
    sequence: u64,
    used: u64,
    left: u64,
}

/// One random request, mostly of a process that behaves.
fn request(random: &mut Pcg32, processes: &mut [Asking], known: Option<FleetLimit>) -> Request {
    let index = random.next_u64() as usize % processes.len();
    let process = &mut processes[index];
    let repeats = random.next_u64().is_multiple_of(12);
    if !repeats {
        process.sequence += 1;
        process.used += random.next_u64() % 500_000;
        process.left = random.next_u64() % 1_000_000;
        if random.next_u64().is_multiple_of(40) {
            // One that errs.
            process.left *= 1_000_000;
        }
    }
    let stale = random.next_u64().is_multiple_of(15);
    let idle = random.next_u64().is_multiple_of(6);
    Request {
        process: ProcessId(index as u64 * 0x1234_5678_9abc + 1),
        sequence: process.sequence.saturating_sub(u64::from(stale)),
        used: Micros(process.used),
        // Who wants nothing keeps nothing, or is refused.
        left: Micros(process.left * u64::from(!idle || index == 0)),
        demand: MicroCpus(if idle {
            0
        } else {
            random.next_u64() % 8_000_000
        }),
        // Who is idle may leave, and come again.
        horizon: Micros(random.next_u64() % 1_000_000 * u64::from(!idle || repeats)),
        known,
    }
}

#[test]
fn the_function_decides_as_the_policy_does() {
    let Some(server) = server::start("conformance", &[]) else {
        return;
    };
    let runtime = runtime();
    let store = self::store(&server.address());
    for seed in 0..6 {
        let tenant = format!("tenants/{{odd}}%{seed}");
        let mut random = Pcg32::seed_from_u64(seed);
        let memory = MemoryStore::new();
        let mut clock = Micros::from_secs(1_700_000_000);
        let mut run = 1;
        let mut processes: Vec<Asking> = (0..1 + seed * 3)
            .map(|_| Asking {
                sequence: 0,
                used: 0,
                left: 0,
            })
            .collect();
        let mut known = None;
        for step in 0..250 {
            clock += Micros(random.next_u64() % 300_000);
            match random.next_u64() % 60 {
                0 => clock = Micros(clock.0 - random.next_u64() % 4_000_000),
                1 => {
                    run += 1;
                    memory.restart(true);
                }
                2 => clock += Micros::from_secs(random.next_u64() % 8_000),
                _ => {}
            }
            memory.set_time(clock);
            if step == 0 || random.next_u64().is_multiple_of(40) {
                let limit = FleetLimit::new(MicroCpus(1_000 + random.next_u64() % 20_000_000))
                    .with_burst(Micros(random.next_u64() % 2_000_000))
                    .with_processes(1 + (random.next_u64() % 12) as u32);
                let there = runtime
                    .block_on(store.set_at(&tenant, limit, clock, run))
                    .expect("set");
                let here = memory.set_limit(&tenant, limit).expect("set");
                assert_eq!(there, here, "seed {seed} step {step}");
                known = random
                    .next_u64()
                    .is_multiple_of(2)
                    .then_some(limit.with_version(here));
            }
            let request = request(&mut random, &mut processes, known);
            let there = runtime.block_on(store.ask_at(&tenant, &request, clock, run));
            let here = memory.ask(&tenant, &request);
            if request.demand == MicroCpus::ZERO && request.left > Micros::ZERO {
                assert!(matches!(there, Err(StoreError::Garbage(_))), "{there:?}");
                assert_eq!(here, Reply::Stale);
                continue;
            }
            let there = there.expect("asked");
            assert_eq!(there, here, "seed {seed} step {step}: {request:?}");
        }
        let (limit, figures) = runtime
            .block_on(store.get(&tenant))
            .expect("got")
            .expect("a tenant");
        assert_eq!(Some(limit), memory.limit(&tenant));
        assert_eq!(Some(figures), memory.figures(&tenant));
    }
    let names = runtime.block_on(store.list()).expect("listed");
    assert_eq!(names.len(), 6);
    assert_eq!(names[0], "tenants/{odd}%0");
}

#[test]
fn the_function_is_as_unsure_as_the_store_in_memory() {
    let Some(server) = server::start("memory", &[]) else {
        return;
    };
    let runtime = runtime();
    let store = self::store(&server.address());
    let memory = MemoryStore::new();
    let clock = Micros::from_secs(1_700_000_000);
    let mut run = 7;
    memory.restart(false);
    // How far the clock goes, whether another life begins there.
    let steps = [
        (0, false),
        (1_000_000, false),
        (29_000_000, false),
        (40_000_000, true),
        (39_000_000, false),
        (69_000_000, false),
        (69_000_001, false),
    ];
    let mut waits = Vec::new();
    for (passed, begins) in steps {
        if begins {
            run += 1;
            memory.restart(true);
        }
        let now = clock + Micros(passed);
        memory.set_time(now);
        let there = runtime
            .block_on(store.ask_at("tenants/nobody", &request_of_nobody(1), now, run))
            .expect("asked");
        let here = memory.ask("tenants/nobody", &request_of_nobody(1));
        assert_eq!(there, here, "{passed}");
        waits.push(match here {
            Reply::Unknown { wait } => wait.0 / 1_000_000,
            _ => 0,
        });
    }
    assert_eq!(waits, [30, 29, 1, 30, 30, 0, 0]);
}

#[test]
fn a_server_that_forgot_is_not_believed() {
    let Some(mut server) = server::start("forgets", &[]) else {
        return;
    };
    let runtime = runtime();
    let store = self::store(&server.address());
    let answer = || {
        let answers = runtime.block_on(store.exchange(&[("tenants/nobody", request_of_nobody(1))]));
        answers
            .into_iter()
            .next()
            .expect("an answer")
            .expect("asked")
    };
    let memory = || runtime.block_on(store.memory()).expect("a memory");
    let unsure = |reply: &Reply| matches!(reply, Reply::Unknown { .. });
    let tell = |server: &server::PrivateServer, words: &[&str]| {
        let client = redis::Client::open(server.address()).expect("an address");
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        runtime.block_on(async {
            let connection = client.get_multiplexed_async_connection().await;
            let mut connection = connection.expect("connected");
            let done = command.query_async::<redis::Value>(&mut connection).await;
            done.expect("done");
        });
    };
    assert!(unsure(&answer()), "a new one");
    let first = memory();
    assert_eq!(memory(), first);
    runtime.block_on(store.confirm()).expect("confirmed");
    assert_eq!(answer(), Reply::Unlimited { limit: None });
    tell(&server, &["FLUSHALL"]);
    assert!(unsure(&answer()), "emptied");
    assert_ne!(memory(), first);
    runtime.block_on(store.confirm()).expect("confirmed");
    let second = memory();
    server.kill();
    server.restart().expect("a server again");
    let begun = std::time::Instant::now();
    while runtime.block_on(store.memory()).is_err() {
        assert!(begun.elapsed().as_secs() < 60, "it does not come back");
    }
    assert!(unsure(&answer()), "begun again");
    assert_ne!(memory(), second);
    // One that may drop a limit at any moment is never believed.
    runtime.block_on(store.confirm()).expect("confirmed");
    assert_eq!(answer(), Reply::Unlimited { limit: None });
    tell(
        &server,
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    );
    // As a function that is loaded anew asks at once, not after a second.
    tell(&server, &["FUNCTION", "DELETE", "quotient_fleet_6"]);
    assert!(unsure(&answer()), "evicts");
}

#[test]
fn what_is_wrong_with_a_store_has_a_name() {
    let Some(mut server) = server::start("refusals", &["--requirepass", "secret"]) else {
        return;
    };
    let runtime = runtime();
    let ask = |store: &RedisStore| {
        let mut answers =
            runtime.block_on(store.exchange(&[("tenants/acme", request_of_nobody(1))]));
        answers.pop().expect("an answer")
    };
    let wrong = store(&format!("redis://:wrong@127.0.0.1:{}", server.port()));
    assert!(
        matches!(ask(&wrong), Err(StoreError::Denied(_))),
        "{:?}",
        ask(&wrong)
    );
    let none = store(&server.address());
    assert!(
        matches!(ask(&none), Err(StoreError::Denied(_))),
        "{:?}",
        ask(&none)
    );
    let right = store(&format!("redis://:secret@127.0.0.1:{}", server.port()));
    assert!(
        matches!(ask(&right), Ok(Reply::Unknown { .. })),
        "{:?}",
        ask(&right)
    );
    runtime.block_on(async {
        let client = redis::Client::open(format!("redis://:secret@127.0.0.1:{}", server.port()))
            .expect("an address");
        let mut connection = client
            .get_multiplexed_async_connection()
            .await
            .expect("connected");
        let mut set = redis::cmd("SET");
        set.arg("quotient:1:store").arg("a text");
        set.query_async::<()>(&mut connection).await.expect("set");
    });
    assert!(
        matches!(ask(&right), Err(StoreError::WrongType(_))),
        "{:?}",
        ask(&right)
    );
    server.kill();
    assert!(
        matches!(ask(&right), Err(StoreError::Unreachable(_))),
        "{:?}",
        ask(&right)
    );
    assert!(matches!(
        RedisStore::new("no address"),
        Err(StoreError::Address(_))
    ));
}

#[test]
fn a_server_that_answers_garbage_is_an_error() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        // Ends with the test's process at the latest; each connection gets the same nonsense.
        for stream in listener.incoming().take(4) {
            let Ok(mut stream) = stream else { return };
            let mut buffer = [0_u8; 4_096];
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                if stream
                    .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    .is_err()
                {
                    break;
                }
            }
        }
    });
    let store = self::store(&format!("redis://127.0.0.1:{port}"));
    let answers = runtime().block_on(store.exchange(&[("tenants/acme", request_of_nobody(1))]));
    assert_eq!(answers.len(), 1);
    assert!(answers[0].is_err(), "{answers:?}");
}

/// What an operator, or an eviction, does to the keys of a tenant: never a panic, never "no limit", never budget that is lost for good.
/// A version is a moment. One that lies far ahead of the server's clock is not taken from a process, which is told so; and what is set then holds
/// for that process, too.
#[test]
fn a_limit_of_a_time_to_come_is_refused_and_one_that_is_set_then_holds() {
    let Some(server) = server::start("time to come", &[]) else {
        return;
    };
    let runtime = runtime();
    let store = store(&server.address());
    let day = Micros::from_secs(86_400);
    let clock = Micros::from_secs(1_700_000_000);
    let limit = FleetLimit::new(MicroCpus::whole(2));
    let settings = Settings {
        process: ProcessId(7),
        capacity: MicroCpus::whole(1),
        floor: MicroCpus(10_000),
        strict: false,
    };
    let mut now = Micros::from_secs(1);
    let mut holder = Holder::new(settings, now, Micros::ZERO, Micros::ZERO);
    let mut ask = |holder: &mut Holder, clock: Micros, used: u64| {
        now += Micros::SECOND;
        holder.observe(now, Micros(used), Micros::ZERO);
        let request = holder.request(now);
        let answer = runtime.block_on(store.ask_at("tenants/acme", &request, clock, 1));
        match &answer {
            Ok(reply) => {
                holder.answer(now, request.sequence, reply);
            }
            Err(_) => holder.failed(now),
        }
        answer.map(|_| holder.limit().map_or(0, |limit| limit.version))
    };
    let set = |clock: Micros| runtime.block_on(store.set_at("tenants/acme", limit, clock, 1));
    let ahead = set(clock + day + day).expect("set");
    assert_eq!(ask(&mut holder, clock + day + day, 900_000), Ok(ahead));
    let client = redis::Client::open(server.address()).expect("an address");
    let mut connection = client.get_connection().expect("connected");
    redis::cmd("FLUSHALL").exec(&mut connection).expect("done");
    let refused = ask(&mut holder, clock, 1_800_000);
    assert!(
        matches!(&refused, Err(StoreError::Garbage(why)) if why.contains("tenants/acme")),
        "{refused:?}"
    );
    let newer = set(clock).expect("set");
    assert!(newer < ahead);
    assert_eq!(
        ask(&mut holder, clock + Micros::SECOND, 2_700_000),
        Ok(newer)
    );
}

/// The store has forgotten, the clock of its new life is behind, and an operator sets another limit: a process that knows the old one, of a later
/// version, does not bring it back.
#[test]
fn what_an_operator_sets_holds_against_what_processes_remember() {
    let Some(server) = server::start("remembered", &[]) else {
        return;
    };
    let runtime = runtime();
    let store = store(&server.address());
    let memory = MemoryStore::new();
    let clock = Micros::from_secs(1_700_000_000);
    let old = FleetLimit::new(MicroCpus::whole(2)).with_version(clock.0);
    let told = |sequence: u64| Request {
        sequence,
        known: Some(old),
        ..request_of_nobody(1)
    };
    let both = |set: Option<FleetLimit>, sequence: u64, behind: Micros, run: u64| {
        let now = clock - behind;
        memory.set_time(now);
        if let Some(limit) = set {
            let there = runtime.block_on(store.set_at("acme", limit, now, run));
            let here = memory.set_limit("acme", limit).expect("set");
            assert_eq!(there, Ok(here));
        }
        let there = runtime.block_on(store.ask_at("acme", &told(sequence), now, run));
        let here = memory.ask("acme", &told(sequence));
        assert_eq!(there, Ok(here));
        let limit = memory.limit("acme").expect("a limit");
        assert!(
            limit.version >= old.version,
            "or the process would not follow"
        );
        limit.quota
    };
    let (lower, minutes) = (FleetLimit::new(MicroCpus(100_000)), Micros::from_secs(600));
    assert_eq!(both(Some(lower), 1, minutes, 1), lower.quota);
    assert_eq!(both(None, 2, Micros::SECOND, 1), lower.quota);
    // In another life it may be the older one that was restored.
    memory.restart(true);
    let newer = old.with_version(clock.0 + 10);
    let request = Request {
        known: Some(newer),
        ..told(3)
    };
    let there = runtime.block_on(store.ask_at("acme", &request, clock, 2));
    assert_eq!(there, Ok(memory.ask("acme", &request)));
    assert_eq!(memory.limit("acme"), Some(newer));
}

/// `:tenant` alone is deleted or evicted. Who knew no limit is told of a fault, not of freedom, until somebody sets or tells it; and those who know
/// it are reminded.
#[test]
fn a_tenant_whose_limit_alone_is_gone_is_not_free() {
    let Some(server) = server::start("gone", &[]) else {
        return;
    };
    let runtime = runtime();
    let store = store(&server.address());
    let ask = |tenant: &str, request: Request| {
        let mut answers = runtime.block_on(store.exchange(&[(tenant, request)]));
        answers.pop().expect("an answer")
    };
    let client = redis::Client::open(server.address()).expect("an address");
    let mut connection = client.get_connection().expect("connected");
    runtime.block_on(store.confirm()).expect("confirmed");
    let nobody = ask("nobody", request_of_nobody(1));
    assert_eq!(nobody, Ok(Reply::Unlimited { limit: None }), "settled");
    let limit = FleetLimit::new(MicroCpus::whole(2));
    let version = runtime.block_on(store.set("acme", limit)).expect("set");
    let known = Request {
        known: Some(limit.with_version(version)),
        ..request_of_nobody(1)
    };
    assert!(matches!(ask("acme", known), Ok(Reply::Quiet { .. })));
    let memory = runtime.block_on(store.memory()).expect("a memory");
    let mut deleted = redis::cmd("DEL");
    deleted.arg("quotient:1:{acme}:tenant");
    deleted.exec(&mut connection).expect("done");
    let mut reminded = Vec::new();
    for sequence in 1..4 {
        let request = Request {
            sequence,
            ..request_of_nobody(2)
        };
        let answer = ask("acme", request);
        assert!(
            matches!(&answer, Err(StoreError::Garbage(why)) if why.contains("fleet set")),
            "{answer:?}"
        );
        reminded.push(runtime.block_on(store.memory()).expect("a memory"));
    }
    assert!(!reminded.contains(&memory), "who knows it is to tell it");
    assert_eq!(reminded[1], reminded[2], "once");
    // Both ways out.
    let again = Request {
        sequence: 2,
        ..known
    };
    let answer = ask("acme", again);
    assert!(matches!(answer, Ok(Reply::Quiet { .. })), "{answer:?}");
    deleted.exec(&mut connection).expect("done");
    runtime.block_on(store.set("acme", limit)).expect("set");
    let answer = ask("acme", request_of_nobody(3));
    assert!(matches!(answer, Ok(Reply::Quiet { .. })), "{answer:?}");
}

#[test]
fn a_server_without_memory_is_unwilling() {
    let Some(server) = server::start("memory", &["--maxmemory", "1"]) else {
        return;
    };
    let store = store(&server.address());
    let limit = FleetLimit::new(MicroCpus::whole(1));
    let refused = runtime().block_on(store.set("tenants/acme", limit));
    assert!(
        matches!(refused, Err(StoreError::Unwilling(_))),
        "{refused:?}"
    );
}
