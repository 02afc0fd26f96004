//! Calls of the functions as commands, and their answers.

use ::redis::{Cmd, Value};

use crate::limit::FleetLimit;
use crate::message::{Grant, ProcessId, Reply, Request};
use crate::store::StoreError;
use crate::units::{MicroCpus, Micros};

/// Since when the store remembers all that it was told.
pub(super) const MEMORY_KEY: &str = "quotient:1:store";

/// The keys of a tenant; beside the store's memory, but in a cluster, whose nodes have each its own.
pub(super) fn keys(command: &mut Cmd, tenant: &str, cluster: bool) {
    let name = tenant
        .replace('%', "%25")
        .replace('{', "%7B")
        .replace('}', "%7D");
    command.arg(if cluster { 3 } else { 4 });
    for part in ["tenant", "processes", "ends"] {
        command.arg(format!("quotient:1:{{{name}}}:{part}"));
    }
    if !cluster {
        command.arg(MEMORY_KEY);
    }
}

/// The tenant whose limit is in this key.
pub(super) fn tenant_of(key: &str) -> Option<String> {
    let name = key.strip_prefix("quotient:1:{")?.strip_suffix("}:tenant")?;
    let name = name.replace("%7B", "{").replace("%7D", "}");
    Some(name.replace("%25", "%"))
}

/// Asks for some of the keys that hold limits.
pub(super) fn scan_command(cursor: u64) -> Cmd {
    let mut command = ::redis::cmd("SCAN");
    command
        .arg(cursor)
        .arg("MATCH")
        .arg("quotient:1:{*}:tenant");
    command.arg("COUNT").arg(1_000);
    command
}

fn process_name(process: ProcessId) -> String {
    format!("{:016x}", process.0)
}

pub(super) fn ask_command(tenant: &str, request: &Request, cluster: bool) -> Cmd {
    let mut command = ::redis::cmd("FCALL");
    command.arg("quotient_fleet_6_ask");
    keys(&mut command, tenant, cluster);
    command.arg(process_name(request.process));
    let (version, limit) = match request.known {
        Some(limit) => (limit.version, limit),
        None => (0, FleetLimit::new(MicroCpus::ZERO)),
    };
    let quota = limit.quota.unwrap_or_default();
    for value in [
        request.sequence,
        request.used.0,
        request.left.0,
        request.demand.0,
        version,
        quota.0,
        limit.burst.0,
    ] {
        command.arg(value);
    }
    command.arg(limit.processes).arg(limit.lease.0);
    command.arg(request.horizon.0);
    command
}

pub(super) fn set_command(tenant: &str, limit: FleetLimit, cluster: bool) -> Cmd {
    let mut command = ::redis::cmd("FCALL");
    command.arg("quotient_fleet_6_set");
    keys(&mut command, tenant, cluster);
    let quota = limit.quota.unwrap_or_default();
    command
        .arg(quota.0)
        .arg(limit.burst.0)
        .arg(limit.processes)
        .arg(limit.lease.0);
    command
}

/// A number that came as one, or as text.
fn signed(value: &Value) -> Result<i64, StoreError> {
    let text = match value {
        Value::Int(number) => return Ok(*number),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text.as_str()),
        _ => None,
    };
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| StoreError::Garbage(format!("expected a number: {value:?}")))
}

pub(super) fn number(value: &Value) -> Result<u64, StoreError> {
    let number = signed(value)?;
    u64::try_from(number).map_err(|_| StoreError::Garbage(format!("{number} below zero")))
}

pub(super) fn numbers(value: &Value, count: usize) -> Result<Vec<i64>, StoreError> {
    match value {
        Value::Array(values) if values.len() == count => values.iter().map(signed).collect(),
        other => Err(StoreError::Garbage(format!(
            "expected {count} numbers: {other:?}"
        ))),
    }
}

pub(super) fn read_limit(values: &[i64]) -> Result<FleetLimit, StoreError> {
    let garbage = || StoreError::Garbage(format!("expected a limit: {values:?}"));
    let [version, quota, burst, processes, lease] = values else {
        return Err(garbage());
    };
    let unsigned = |value: &i64| u64::try_from(*value).map_err(|_| garbage());
    let quota = unsigned(quota)?;
    let limit = FleetLimit {
        version: unsigned(version)?,
        quota: (quota > 0).then_some(MicroCpus(quota)),
        burst: Micros(unsigned(burst)?),
        processes: u32::try_from(*processes).map_err(|_| garbage())?,
        lease: Micros(unsigned(lease)?),
    };
    limit
        .validate()
        .map_err(|error| StoreError::Garbage(error.to_string()))?;
    Ok(limit)
}

pub(super) fn read_reply(value: &Value, request: &Request) -> Result<Reply, StoreError> {
    let values = numbers(value, 11)?;
    let garbage = || StoreError::Garbage(format!("expected an answer: {values:?}"));
    let amount = |index: usize| u64::try_from(values[index]).map_err(|_| garbage());
    if values[0] == 3 {
        return Ok(Reply::Stale);
    }
    if values[0] == 4 {
        return Ok(Reply::Unknown {
            wait: Micros(amount(2)?),
        });
    }
    if values[0] == 2 && values[5] == 0 {
        return Ok(Reply::Unlimited { limit: None });
    }
    let limit = read_limit(&values[5..10])?;
    match values[0] {
        0 => Ok(Reply::Granted(Grant {
            amount: Micros(amount(1)?),
            duration: Micros(amount(2)?),
            sequence: request.sequence,
            share: MicroCpus(amount(3)?),
            renew: Micros(amount(10)?),
            floor: values[4] == 1,
            limit,
        })),
        1 => Ok(Reply::Quiet {
            limit,
            floor: values[4] == 1,
            wait: Micros(amount(2)?),
        }),
        2 if limit.quota.is_none() => Ok(Reply::Unlimited { limit: Some(limit) }),
        _ => Err(garbage()),
    }
}
