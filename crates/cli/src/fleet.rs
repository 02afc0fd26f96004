//! `quotient fleet`: limits of tenants in a fleet's store, from the shell.
//!
//! One thread, one connection, and no scheduler: the calls are those that any program makes through `quotient_fleet::RedisStore`.

use std::time::Duration;

use clap::{Args, Subcommand, value_parser};
use quotient_fleet::{FleetLimit, MicroCpus, Micros, RedisStore, Store, StoreError, TenantFigures};
use serde_json::{Value, json};

use crate::failure::{Failure, print};
use crate::json::print_versioned;

/// What `quotient fleet` takes.
#[derive(Debug, Clone, Args)]
pub struct FleetArguments {
    /// The store: `redis://[user:password@]host[:port]`, `redis-cluster://host:port,...`, `redis-sentinel://host:port,.../name`; with
    /// `rediss` in place of `redis` over TLS
    #[arg(
        long,
        env = "QUOTIENT_FLEET_STORE",
        hide_env_values = true,
        default_value = "redis://127.0.0.1",
        value_name = "URL",
        global = true
    )]
    store: String,
    /// What the store's certificate is checked against in place of the system's, PEM
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<std::path::PathBuf>,
    /// Print JSON objects on standard output, one a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Clone, Subcommand)]
enum Action {
    /// Sets a tenant's limit; all processes follow within one lease
    Set(SetArguments),
    /// A tenant's limit and what the store knows of its use; exit code 1 if it knows no such tenant
    Get {
        /// The tenant, which is the path of its groups, such as `tenants/acme`
        tenant: String,
    },
    /// Every tenant of the store (walks over all its keys); exit code 4 if some of their keys cannot be read
    List,
    /// Says that the store is new and has forgotten no limits: tenants without one run freely at once, not after 30 seconds
    Confirm,
    /// A tenant's figures again and again, until interrupted
    Watch(WatchArguments),
}

#[derive(Debug, Clone, Args)]
struct SetArguments {
    /// The tenant, which is the path of its groups, such as `tenants/acme`
    tenant: String,
    /// CPUs for the whole fleet (0.001..=10000), or `max`: no limit
    #[arg(value_name = "CPUS", value_parser = quota)]
    quota: Quota,
    /// CPU time that may be saved up, such as 500ms or 2s (0s..=3600s)
    #[arg(long, default_value = "0s", value_parser = time)]
    burst: Micros,
    /// For how many processes floors are reserved (1..=100000)
    #[arg(long, default_value_t = FleetLimit::PROCESSES_DEFAULT,
        value_parser = value_parser!(u32).range(1..=i64::from(FleetLimit::PROCESSES_MAX)))]
    processes: u32,
    /// How much may be held beside the burst, as the time in which the quota earns it; a lease lasts five eighths of it (100ms..=120s)
    /// [default: 1s for each thousand processes]
    #[arg(long, value_parser = time)]
    lease: Option<Micros>,
}

#[derive(Debug, Clone, Args)]
struct WatchArguments {
    /// The tenant, which is the path of its groups, such as `tenants/acme`
    tenant: String,
    /// Time between two lines, in milliseconds (100..=3600000)
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u64).range(100..=3_600_000))]
    interval_ms: u64,
    /// Ends after so many lines (1..=1000000000) [default: never]
    #[arg(long, value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    count: Option<u64>,
}

/// CPUs, or an explicit "no limit".
#[derive(Debug, Clone, Copy, PartialEq)]
struct Quota(Option<MicroCpus>);

fn quota(text: &str) -> Result<Quota, String> {
    if text == "max" {
        return Ok(Quota(None));
    }
    let (least, most) = (FleetLimit::QUOTA_MIN, FleetLimit::QUOTA_MAX);
    let range = least.as_cpus()..=most.as_cpus();
    match text.parse::<f64>() {
        Ok(cpus) if range.contains(&cpus) => Ok(Quota(Some(MicroCpus::from_cpus(cpus)))),
        _ => Err(format!(
            "expected `max` or CPUs from {} to {}",
            range.start(),
            range.end()
        )),
    }
}

/// A whole number and its unit, s, ms or us.
fn time(text: &str) -> Result<Micros, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "us" => Some(1),
        "ms" => Some(1_000),
        "s" => Some(1_000_000),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    let value = number
        .zip(unit)
        .and_then(|(number, unit)| number.checked_mul(unit));
    value
        .map(Micros)
        .ok_or_else(|| "expected a whole number and a unit: 500us, 500ms or 2s".to_owned())
}

/// Speaks to the store.
///
/// # Errors
/// `Usage` for an address that is none, a name that no group can have and a limit out of range, `Unreadable` for a store whose answers cannot
/// be used (`Partly` for a list of which some can), `Run` for one that cannot be reached or refuses, and for a tenant that it does not know.
pub fn run(arguments: &FleetArguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::during("cannot start a runtime"))?;
    let store = match &arguments.ca {
        Some(file) => {
            let unreadable = |error| Failure::Usage(format!("--ca {}: {error}", file.display()));
            let pem = std::fs::read(file).map_err(unreadable)?;
            RedisStore::with_root_certificates(&arguments.store, &pem)
        }
        None => RedisStore::new(&arguments.store),
    };
    let store = store.map_err(failure)?;
    runtime.block_on(async {
        match &arguments.action {
            Action::Set(set) => write(&store, set, arguments.json).await,
            Action::Get { tenant } => {
                let found = store.get(tenant).await.map_err(failure)?;
                let (limit, figures) = found.ok_or_else(|| unknown(tenant))?;
                show(tenant, &limit, &figures, arguments.json)
            }
            Action::Confirm => {
                store.confirm().await.map_err(failure)?;
                print("confirmed: what is not in the store was never set\n")
            }
            Action::List => list(&store, arguments.json).await,
            Action::Watch(watch) => follow(&store, watch, arguments.json).await,
        }
    })
}

fn unknown(tenant: &str) -> Failure {
    Failure::Run(format!("the store knows of no tenant {tenant:?}"))
}

/// What an error of the store is to a shell.
fn failure(error: StoreError) -> Failure {
    let text = error.to_string();
    match error {
        StoreError::Address(_) | StoreError::Limit(_) | StoreError::Tenant(_) => {
            Failure::Usage(text)
        }
        StoreError::Garbage(_) | StoreError::WrongType(_) | StoreError::Format(_) => {
            Failure::Unreadable(text)
        }
        _ => Failure::Run(text),
    }
}

async fn write(store: &RedisStore, set: &SetArguments, json: bool) -> Result<(), Failure> {
    let limit = FleetLimit::new(MicroCpus::ZERO)
        .with_processes(set.processes)
        .with_burst(set.burst);
    let limit = FleetLimit {
        quota: set.quota.0,
        lease: set.lease.unwrap_or(limit.lease),
        ..limit
    };
    let version = store.set(&set.tenant, limit).await.map_err(failure)?;
    let limit = limit.with_version(version);
    if json {
        return print_versioned("quotient-fleet-set/1", &of_limit(&set.tenant, &limit));
    }
    print(&format!("{}: {}\n", set.tenant, words(&limit)))
}

/// Whether it is one tenant's key that cannot be used, and not the store.
fn is_of_one_key(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Garbage(_) | StoreError::WrongType(_) | StoreError::Format(_)
    )
}

/// All that can be read; the others on standard error.
async fn list(store: &RedisStore, json: bool) -> Result<(), Failure> {
    let tenants = store.list().await.map_err(failure)?;
    let mut broken = 0;
    for tenant in &tenants {
        let said = match store.get(tenant).await {
            Ok(Some((limit, figures))) => {
                show(tenant, &limit, &figures, json)?;
                continue;
            }
            // A name that is no text was listed, and is not found by what stands for it.
            Ok(None) if tenant.contains(char::REPLACEMENT_CHARACTER) => {
                "its name is not UTF-8".to_owned()
            }
            // It has gone since.
            Ok(None) => continue,
            Err(error) if is_of_one_key(&error) => error.to_string(),
            Err(error) => return Err(failure(error)),
        };
        eprintln!("quotient: tenant {tenant:?}: {said}");
        broken += 1;
    }
    match broken {
        0 => Ok(()),
        _ => Err(Failure::Partly(format!(
            "{broken} of {} tenants cannot be read",
            tenants.len()
        ))),
    }
}

async fn follow(store: &RedisStore, watch: &WatchArguments, json: bool) -> Result<(), Failure> {
    let mut clock = tokio::time::interval(Duration::from_millis(watch.interval_ms));
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut lines = 0;
    while watch.count.is_none_or(|count| lines < count) {
        clock.tick().await;
        let found = store.get(&watch.tenant).await.map_err(failure)?;
        let (limit, figures) = found.ok_or_else(|| unknown(&watch.tenant))?;
        show(&watch.tenant, &limit, &figures, json)?;
        lines += 1;
    }
    Ok(())
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn of_limit(tenant: &str, limit: &FleetLimit) -> Value {
    json!({
        "tenant": tenant,
        "version": limit.version,
        "quota_cpus": limit.quota.map(MicroCpus::as_cpus),
        "burst_us": limit.burst.0,
        "processes": limit.processes,
        "lease_us": limit.lease.0,
    })
}

fn words(limit: &FleetLimit) -> String {
    let quota = limit
        .quota
        .map_or_else(|| "no limit".to_owned(), |quota| quota.to_string());
    format!(
        "{quota}, burst {} s, lease {} s, floors for {} processes, version {}",
        seconds(limit.burst.0),
        seconds(limit.lease.0),
        limit.processes,
        limit.version
    )
}

fn show(
    tenant: &str,
    limit: &FleetLimit,
    figures: &TenantFigures,
    json: bool,
) -> Result<(), Failure> {
    if json {
        let mut value = of_limit(tenant, limit);
        value["pool_us"] = json!(figures.pool);
        value["held_us"] = json!(figures.held.0);
        value["used_us"] = json!(figures.used.0);
        value["leases"] = json!(figures.leases);
        value["floors"] = json!(figures.floors);
        value["lost_us"] = json!(figures.lost.0);
        return print_versioned("quotient-fleet-tenant/1", &value);
    }
    print(&format!(
        "{tenant}: {}; used {:.3} s, pool {:.3} s, held {:.3} s by {} leases\n",
        words(limit),
        seconds(figures.used.0),
        figures.pool as f64 / 1e6,
        seconds(figures.held.0),
        figures.leases,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_and_times_are_read_or_refused_with_their_range() {
        assert_eq!(quota("max"), Ok(Quota(None)));
        assert_eq!(quota("1.5"), Ok(Quota(Some(MicroCpus(1_500_000)))));
        for wrong in ["0", "-1", "NaN", "inf", "10001", "two", ""] {
            let said = quota(wrong).expect_err(wrong);
            assert!(said.contains("0.001") && said.contains("10000"), "{said}");
        }
        assert_eq!(time("2s"), Ok(Micros::from_secs(2)));
        assert_eq!(time("500ms"), Ok(Micros::from_millis(500)));
        assert_eq!(time("7us"), Ok(Micros(7)));
        for wrong in [
            "2",
            "s",
            "",
            "2 s",
            "1.5s",
            "2é",
            "99999999999999999999s",
            "9999999999999999999s",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
