//! Values of an rt-app file: what is read from JSON, in the units of the plan.

use super::json::{Fault, Kind, Value};
use quotient_core::{Nanos, Nice, Weight};

pub(super) fn fault<T>(value: &Value, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault {
        at: value.at,
        what: what.into(),
    })
}

pub(super) fn object(value: &Value) -> Result<&[(String, Value)], Fault> {
    match &value.kind {
        Kind::Object(fields) => Ok(fields),
        _ => fault(value, "expected an object"),
    }
}

pub(super) fn text(value: &Value) -> Result<&str, Fault> {
    match &value.kind {
        Kind::Text(text) => Ok(text),
        _ => fault(value, "expected a name in quotation marks"),
    }
}

pub(super) fn number(value: &Value, what: &str, least: f64, most: f64) -> Result<f64, Fault> {
    match value.kind {
        Kind::Number(number) if (least..=most).contains(&number) => Ok(number),
        Kind::Number(number) => fault(
            value,
            format!("{what} = {number} is outside {least}..={most}"),
        ),
        _ => fault(value, format!("expected a number for {what}")),
    }
}

/// A time in microseconds, up to a day.
pub(super) fn micros(value: &Value, what: &str) -> Result<Nanos, Fault> {
    let micros = number(value, what, 0.0, 86_400e6)?;
    Ok(Nanos((micros * 1_000.0) as u64))
}

pub(super) fn field<'a>(fields: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    let found = fields.iter().rev().find(|(key, _)| key == name);
    found.map(|(_, value)| value)
}

/// Only tasks of the fair class are modelled.
pub(super) fn check_policy(value: &Value) -> Result<(), Fault> {
    match text(value)? {
        "SCHED_OTHER" | "SCHED_NORMAL" => Ok(()),
        other => fault(
            value,
            format!("policy {other} is not modelled, only SCHED_OTHER"),
        ),
    }
}

/// The weight of a nice value.
pub(super) fn weight_of(nice: &Value) -> Result<Weight, Fault> {
    let value = number(nice, "priority", -20.0, 19.0)?;
    let shares = Nice::new(value as i32)
        .map_err(|error| Fault {
            at: nice.at,
            what: error.to_string(),
        })?
        .shares();
    // The nearest weight: shares are weight * 1024 / 100.
    let weight = (shares * 100).div_ceil(1024).clamp(1, 10_000);
    Weight::new(weight).or_else(|error| fault(nice, error.to_string()))
}
