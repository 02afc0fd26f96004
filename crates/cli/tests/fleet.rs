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

#[test]
fn wrong_arguments_and_addresses_are_named() {
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
        (["set", "", "1", "--burst=1s"], "name"),
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
