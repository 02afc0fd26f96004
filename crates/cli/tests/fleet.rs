//! `quotient fleet` as a person calls it, on a private server.

#[allow(dead_code)] // no files here
mod common;
#[path = "../../fleet/tests/common/server.rs"]
mod server;

use std::process::Output;

use common::{quotient, stderr};

fn fleet(address: &str, arguments: &[&str]) -> Output {
    quotient(&[&["fleet", "--store", address], arguments].concat())
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn limits_are_set_shown_listed_and_watched() {
    let Some(mut server) = server::start("shell", &[]) else {
        return;
    };
    let address = server.address();
    let call = |arguments: &[&str]| fleet(&address, arguments);
    assert_eq!(stdout(&call(&["list"])), "");
    let none = call(&["get", "tenants/acme"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("tenants/acme"), "{}", stderr(&none));
    let set = stdout(&call(&["set", "tenants/acme", "12", "--burst", "2s"]));
    assert!(
        set.starts_with("tenants/acme: 12 CPU, burst 2 s, lease 1 s"),
        "{set}"
    );
    let set = call(&[
        "set",
        "tenants/free",
        "max",
        "--processes",
        "5000",
        "--json",
    ]);
    let set: serde_json::Value = serde_json::from_str(&stdout(&set)).expect("one object");
    assert_eq!(set["schema"], "quotient-fleet-set/1");
    assert_eq!(set["quota_cpus"], serde_json::Value::Null);
    assert_eq!(set["lease_us"], 5_000_000);
    let get = stdout(&call(&["get", "tenants/acme", "--json"]));
    let get: serde_json::Value = serde_json::from_str(&get).expect("one object");
    assert_eq!(get["schema"], "quotient-fleet-tenant/1");
    assert_eq!(get["quota_cpus"], 12.0);
    assert_eq!(get["burst_us"], 2_000_000);
    assert_eq!(get["leases"], 0);
    let list = stdout(&call(&["list"]));
    let names: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(names, ["tenants/acme", "tenants/free"]);
    let watch = [
        "watch",
        "tenants/acme",
        "--interval-ms",
        "100",
        "--count",
        "2",
    ];
    assert_eq!(stdout(&call(&watch)).lines().count(), 2);
    assert!(stdout(&call(&["confirm"])).starts_with("confirmed"));
    server.kill();
    let gone = call(&["list"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(
        stderr(&gone).contains("cannot be reached"),
        "{}",
        stderr(&gone)
    );
}

/// What another program wrote into one tenant's key must not hide the tenants after it.
#[test]
fn a_broken_key_hides_no_other_tenant_from_the_list() {
    let Some(server) = server::start("broken", &[]) else {
        return;
    };
    let address = server.address();
    let call = |arguments: &[&str]| fleet(&address, arguments);
    for tenant in ["tenants/acme", "tenants/middle", "tenants/zoo"] {
        stdout(&call(&["set", tenant, "2"]));
    }
    write_bytes(
        server.port(),
        &[b"SET", b"quotient:1:{tenants/alien}:tenant", b"1"],
    );
    let field = b"quotient:1:{tenants/middle}:tenant";
    write_bytes(server.port(), &[b"HSET", field, b"quota", b"much"]);
    write_bytes(
        server.port(),
        &[b"SET", b"quotient:1:{tenants/\xff}:tenant", b"1"],
    );
    let list = call(&["list"]);
    assert_eq!(list.status.code(), Some(4), "{}", stderr(&list));
    let shown = String::from_utf8_lossy(&list.stdout);
    let names: Vec<&str> = shown
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(names, ["tenants/acme", "tenants/zoo"]);
    for said in [
        "the type of quotient:1:{tenants/alien}:tenant is not what was written",
        "\"tenants/middle\"",
        "\"tenants/\u{fffd}\"",
        "3 of 5 tenants",
    ] {
        assert!(stderr(&list).contains(said), "{said}: {}", stderr(&list));
    }
}

/// One command in the server's own protocol, which takes any bytes, and its answer, which is no error.
fn write_bytes(port: u16, words: &[&[u8]]) {
    use std::io::{Read, Write};
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a server");
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    connection.write_all(&bytes).expect("sent");
    let mut first = [0];
    connection.read_exact(&mut first).expect("an answer");
    assert_ne!(first, *b"-", "{words:?} is refused");
}

#[test]
fn a_database_that_the_server_does_not_have_is_a_wrong_address() {
    let Some(server) = server::start("database", &[]) else {
        return;
    };
    for number in ["99", "-1"] {
        let output = fleet(&format!("{}/{number}", server.address()), &["list"]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("not the address of a store: the number of its database"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn wrong_arguments_and_addresses_are_named() {
    let long = "t".repeat(70_000);
    for (arguments, said) in [
        (["set", "tenants/acme", "0", "--burst=1s"], "0.001"),
        (["set", "tenants/acme", "1", "--burst=1"], "unit"),
        (
            ["set", "tenants/acme", "1", "--burst=3601s"],
            "burst of 3601000000 us",
        ),
        (
            ["set", "tenants/acme", "1", "--lease=1ms"],
            "lease of 1000 us",
        ),
        (["set", "tenants/acme", "1", "--processes=0"], "1..=100000"),
        (["set", "", "1", "--burst=1s"], "empty"),
        (["set", "tenants/", "1", "--burst=1s"], "\"tenants/\""),
        (["set", "/tenants/x", "1", "--burst=1s"], "absolute"),
        (["set", "tenants/a\nb", "1", "--burst=1s"], "control"),
        (["set", &long, "1", "--burst=1s"], "longer than 4096"),
        (["watch", "tenants/acme", "--count", "0"], "1..=1000000000"),
        (["get", "tenants/acme", "--store", "nonsense"], "address"),
        (
            ["get", "tenants/acme", "--ca", "/no/such.pem"],
            "--ca /no/such.pem",
        ),
    ] {
        // Nobody listens there; nobody is asked.
        let output = fleet("redis://127.0.0.1:1", &arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(said),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let away = fleet("redis://127.0.0.1:1", &["get", "tenants/acme"]);
    assert_eq!(away.status.code(), Some(1), "{}", stderr(&away));
}
