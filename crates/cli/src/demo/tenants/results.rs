//! From the two slots of the scene to what each tenant got.

use serde::Serialize;

use super::{Slot, TENANTS, weight, work};
use crate::demo::clock::SharedMicros;
use crate::demo::mode::Mode;
use crate::demo::protocol::TenantSample;

/// What a tenant got under one mode.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Got {
    /// Its part of the CPU time that all tenants' requests used, by the clocks of the threads that served them.
    pub share: f64,
    /// Requests that were answered.
    pub requests: u64,
    /// 99th percentile of their latency; nothing if none was answered.
    pub p99_us: Option<u64>,
}

/// One tenant.
#[derive(Debug, Clone, Serialize)]
pub struct Tenant {
    /// Its weight.
    pub weight: u32,
    /// CPU time of one of its requests, in one poll. Unit: milliseconds.
    pub request_ms: f64,
    /// The share that its weight stands for.
    pub due: f64,
    /// On plain tokio.
    pub tokio: Got,
    /// In a group of its weight.
    pub quotient: Got,
}

/// The scene.
#[derive(Debug, Clone, Serialize)]
pub struct Scene {
    /// For how long requests were counted. Unit: seconds.
    pub seconds: f64,
    /// All tenants, by weight.
    pub tenants: Vec<Tenant>,
    /// The share that is farthest from its due, by its due; 1 is exact. On plain tokio, and in groups.
    pub farthest: (f64, f64),
}

/// Puts the slots together; nothing if one is missing.
pub fn scene(slots: &[Slot]) -> Option<Scene> {
    let find = |mode| slots.iter().find(|slot| slot.mode == mode);
    let (tokio, quotient) = (find(Mode::Tokio)?, find(Mode::Quotient)?);
    let seconds = quotient.done.ended.since(quotient.done.started);
    let (tokio, quotient) = (got(tokio), got(quotient));
    let whole: u32 = (0..TENANTS).map(weight).sum();
    let tenants: Vec<Tenant> = (0..TENANTS)
        .map(|tenant| Tenant {
            weight: weight(tenant),
            request_ms: work(tenant).as_secs_f64() * 1e3,
            due: f64::from(weight(tenant)) / f64::from(whole),
            tokio: tokio[tenant],
            quotient: quotient[tenant],
        })
        .collect();
    let farthest = |got: fn(&Tenant) -> Got| {
        let by_due = tenants.iter().map(|tenant| got(tenant).share / tenant.due);
        by_due.fold(1.0, |worst: f64, ratio| {
            if off(ratio) > off(worst) {
                ratio
            } else {
                worst
            }
        })
    };
    let farthest = (
        farthest(|tenant| tenant.tokio),
        farthest(|tenant| tenant.quotient),
    );
    Some(Scene {
        seconds: seconds.as_secs_f64(),
        tenants,
        farthest,
    })
}

/// How far a ratio is from 1; a half is as far as two.
fn off(ratio: f64) -> f64 {
    ratio.max(1e-3).ln().abs()
}

fn got(slot: &Slot) -> Vec<Got> {
    let used: Vec<f64> = (0..TENANTS)
        .map(|tenant| {
            let at = |moment| used_at(&slot.samples, moment, tenant);
            (at(slot.done.ended) - at(slot.done.started)).max(0.0)
        })
        .collect();
    let all = used.iter().sum::<f64>().max(1.0);
    let done = slot.done.tenants.iter();
    used.iter()
        .zip(done)
        .map(|(used, done)| Got {
            share: used / all,
            requests: done.completed,
            p99_us: (done.completed > 0).then_some(done.p99_us),
        })
        .collect()
}

/// CPU time of a tenant at a moment: between two samples by linear interpolation, before the first and after the last as then.
fn used_at(samples: &[TenantSample], moment: SharedMicros, tenant: usize) -> f64 {
    let value = |sample: &TenantSample| sample.cpu_ns.get(tenant).copied().unwrap_or(0) as f64;
    let after = samples.partition_point(|sample| sample.at < moment);
    match (samples.get(after.wrapping_sub(1)), samples.get(after)) {
        (Some(before), Some(after)) => {
            let whole = after.at.since(before.at).as_secs_f64().max(1e-9);
            let part = moment.since(before.at).as_secs_f64() / whole;
            value(before) + (value(after) - value(before)) * part
        }
        (Some(only), None) | (None, Some(only)) => value(only),
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::protocol::{TenantDone, TenantsDone};

    #[test]
    fn shares_are_those_between_begin_and_end() {
        let slot = |mode, even: bool| {
            let sample = |second: u64| TenantSample {
                at: SharedMicros(second * 1_000_000),
                cpu_ns: (0..TENANTS)
                    .map(|tenant| {
                        let rate = if even { 100 } else { u64::from(weight(tenant)) };
                        // What was used before the begin is in no share.
                        second * rate * 1_000 + u64::from(tenant == 0) * 1_000_000
                    })
                    .collect(),
            };
            Slot {
                mode,
                samples: (0..5).map(sample).collect(),
                done: TenantsDone {
                    started: SharedMicros(1_500_000),
                    ended: SharedMicros(3_500_000),
                    tenants: vec![
                        TenantDone {
                            completed: if mode == Mode::Tokio { 0 } else { 7 },
                            p99_us: if mode == Mode::Tokio { 0 } else { 9 },
                        };
                        TENANTS
                    ],
                },
            }
        };
        let slots = [slot(Mode::Tokio, true), slot(Mode::Quotient, false)];
        assert!(scene(&slots[..1]).is_none());
        let scene = scene(&slots).expect("both modes are there");
        assert!((scene.farthest.1 - 1.0).abs() < 1e-9, "{scene:?}");
        assert!((scene.farthest.0 - 2.9).abs() < 1e-9, "{scene:?}");
        let last = &scene.tenants[19];
        assert_eq!((last.quotient.requests, last.quotient.p99_us), (7, Some(9)));
        assert_eq!((last.tokio.requests, last.tokio.p99_us), (0, None));
        assert!((scene.seconds - 2.0).abs() < 1e-9, "{scene:?}");
    }
}
