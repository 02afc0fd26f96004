//! A scenario file, field by field. Every range is checked while reading, so that an error knows its line and column.

use super::values::{Count, SpanValue, Time};
use crate::kernel::Kernel;
use crate::machine::Ticks;
use core::fmt;
use core::marker::PhantomData;
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a scenario file")]
pub(super) struct Document {
    #[serde(deserialize_with = "some_text")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) about: String,
    /// Read before everything else, by hand; here only so that it is a known field.
    #[serde(default, rename = "base")]
    _base: Option<String>,
    #[serde(default = "one")]
    pub(super) seed: u64,
    #[serde(deserialize_with = "positive_time")]
    pub(super) duration: Time,
    pub(super) machine: MachineTable,
    #[serde(default)]
    pub(super) scheduler: SchedulerTable,
    #[serde(default)]
    pub(super) costs: CostTable,
    #[serde(default, deserialize_with = "tables")]
    pub(super) group: Vec<GroupTable>,
    #[serde(default, deserialize_with = "tables")]
    pub(super) workload: Vec<WorkloadTable>,
    #[serde(default, deserialize_with = "tables")]
    pub(super) change: Vec<ChangeTable>,
    #[serde(default, deserialize_with = "tables")]
    pub(super) realtime: Vec<RealTimeTable>,
    #[serde(default, deserialize_with = "tables")]
    pub(super) hotplug: Vec<HotplugTable>,
    #[serde(default, deserialize_with = "tables")]
    pub(super) variant: Vec<VariantTable>,
    #[serde(default, deserialize_with = "tables")]
    pub(super) sweep: Vec<SweepTable>,
    #[serde(default, deserialize_with = "tables")]
    pub(super) expect: Vec<ExpectTable>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { shape = \"2x8\" }")]
pub(super) struct MachineTable {
    pub(super) shape: Spanned<String>,
    pub(super) caches: Option<Spanned<u32>>,
    pub(super) hz: Option<Spanned<u32>>,
    pub(super) tick_skew: Option<bool>,
    pub(super) ticks: Option<TicksName>,
    pub(super) smt_speed: Option<Spanned<u32>>,
    pub(super) distances: Option<Spanned<Vec<Vec<u32>>>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TicksName {
    Needed,
    Busy,
}

impl From<TicksName> for Ticks {
    fn from(name: TicksName) -> Ticks {
        match name {
            TicksName::Needed => Ticks::Needed,
            TicksName::Busy => Ticks::Busy,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [scheduler]")]
pub(super) struct SchedulerTable {
    pub(super) kernel: Option<Kernel>,
    pub(super) pick: Option<PickName>,
    pub(super) policy: Option<PolicyName>,
    pub(super) throttle: Option<ThrottleName>,
    pub(super) bandwidth: Option<BandwidthName>,
    pub(super) slice_expiry: Option<Spanned<bool>>,
    pub(super) bandwidth_slice: Option<Spanned<Time>>,
    pub(super) rt_runtime: Option<Spanned<Time>>,
    pub(super) rt_period: Option<Spanned<Time>>,
    pub(super) load_average: Option<LoadAverageName>,
    pub(super) group_clock: Option<GroupClockName>,
    pub(super) base_slice: Option<Spanned<Time>>,
    pub(super) wakeup_granularity: Option<Spanned<Time>>,
    pub(super) quantum: Option<Spanned<Time>>,
    pub(super) balance_every: Option<Spanned<Time>>,
    pub(super) run_to_parity: Option<bool>,
    pub(super) debts_fade: Option<bool>,
    pub(super) moves_keep_requests: Option<bool>,
    pub(super) next_buddy: Option<bool>,
    pub(super) last_buddy: Option<Spanned<bool>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PickName {
    Cfs,
    Eevdf,
}

/// Policies that may stand in for the scheduler core.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PolicyName {
    Core,
    WeightedRoundRobin,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ThrottleName {
    Queue,
    ExitToUser,
    Exact,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BandwidthName {
    Default,
    Kernel,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LoadAverageName {
    Off,
    EveryTick,
    Staggered,
    RateLimited,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum GroupClockName {
    Foreign,
    Up,
    Smp,
    Concur,
}

/// Costs with the place that each figure comes from: a cost without a source is a guess in disguise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [costs]")]
pub(super) struct CostTable {
    /// Where the figures come from, printed with the result.
    #[serde(default)]
    pub(super) sources: Vec<String>,
    pub(super) switch: Option<Time>,
    pub(super) tick: Option<Spanned<Time>>,
    pub(super) ipi_send: Option<Time>,
    pub(super) ipi_receive: Option<Time>,
    pub(super) wake: Option<Time>,
    pub(super) syscall: Option<Time>,
    pub(super) lock: Option<Time>,
    pub(super) line_near: Option<Time>,
    pub(super) line_far: Option<Time>,
    pub(super) migrate_near: Option<Time>,
    pub(super) migrate_far: Option<Time>,
    pub(super) load_average: Option<Time>,
    pub(super) average_local: Option<Time>,
    pub(super) bandwidth_switch: Option<Time>,
    pub(super) clock_read: Option<Time>,
    pub(super) clock_read_running: Option<Time>,
    pub(super) answer_delay: Option<Time>,
    pub(super) noise_every: Option<Time>,
    pub(super) noise_length: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[group]]")]
pub(super) struct GroupTable {
    pub(super) path: Spanned<String>,
    pub(super) cpus: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "weight")]
    pub(super) weight: Option<u32>,
    #[serde(default)]
    pub(super) idle: bool,
    pub(super) quota: Option<Spanned<Time>>,
    pub(super) period: Option<Spanned<Time>>,
    pub(super) burst: Option<Spanned<Time>>,
    #[serde(default)]
    pub(super) smooth: bool,
    #[serde(default)]
    pub(super) soft: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[change]]")]
pub(super) struct ChangeTable {
    pub(super) at: Spanned<Time>,
    pub(super) group: Spanned<String>,
    #[serde(default, deserialize_with = "weight")]
    pub(super) weight: Option<u32>,
    pub(super) idle: Option<bool>,
    pub(super) quota: Option<Spanned<Time>>,
    pub(super) period: Option<Spanned<Time>>,
    pub(super) burst: Option<Spanned<Time>>,
    pub(super) unlimited: Option<Spanned<bool>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Spin,
    Once,
    OpenLoop,
    ClosedLoop,
    Periodic,
    Pipe,
    Messaging,
    Pipeline,
    Build,
    WakeAndWork,
    ClockReaders,
    KeyFlips,
    RtApp,
    Replay,
}

impl Kind {
    /// As a scenario says it, for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Once => "once",
            Self::OpenLoop => "open-loop",
            Self::ClosedLoop => "closed-loop",
            Self::Periodic => "periodic",
            Self::Pipe => "pipe",
            Self::Messaging => "messaging",
            Self::Pipeline => "pipeline",
            Self::Build => "build",
            Self::WakeAndWork => "wake-and-work",
            Self::ClockReaders => "clock-readers",
            Self::KeyFlips => "key-flips",
            Self::RtApp => "rt-app",
            Self::Replay => "replay",
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClockName {
    EveryThread,
    OwnThread,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LoopName {
    Open,
    Closed,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[workload]]")]
pub(super) struct WorkloadTable {
    pub(super) name: Spanned<String>,
    pub(super) kind: Kind,
    pub(super) group: Option<Spanned<String>>,
    /// Makes this many groups `group.0`, `group.1` ... with one such workload each.
    pub(super) groups: Option<Count>,
    pub(super) threads: Option<Count>,
    #[serde(default, deserialize_with = "weight")]
    pub(super) weight: Option<u32>,
    pub(super) slice: Option<Spanned<Time>>,
    pub(super) begin: Option<Spanned<Time>>,
    pub(super) cpu: Option<Spanned<u32>>,
    pub(super) cpus: Option<Spanned<String>>,
    pub(super) work: Option<SpanValue>,
    pub(super) gap: Option<SpanValue>,
    pub(super) think: Option<SpanValue>,
    pub(super) kernel: Option<SpanValue>,
    pub(super) wait: Option<SpanValue>,
    pub(super) pause: Option<SpanValue>,
    pub(super) merge: Option<SpanValue>,
    pub(super) period: Option<Time>,
    pub(super) write: Option<Time>,
    pub(super) parts: Option<Count>,
    pub(super) rounds: Option<u32>,
    pub(super) teams: Option<u32>,
    pub(super) fan: Option<u32>,
    pub(super) loops: Option<u32>,
    pub(super) jobs: Option<u32>,
    pub(super) calls: Option<u32>,
    pub(super) sites: Option<u32>,
    pub(super) batched: Option<bool>,
    pub(super) how: Option<ClockName>,
    pub(super) file: Option<String>,
    pub(super) r#loop: Option<LoopName>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[realtime]]")]
pub(super) struct RealTimeTable {
    pub(super) name: Spanned<String>,
    pub(super) cpus: Option<Spanned<String>>,
    pub(super) work: Spanned<SpanValue>,
    pub(super) period: SpanValue,
    pub(super) begin: Option<Spanned<Time>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[hotplug]]")]
pub(super) struct HotplugTable {
    pub(super) at: Spanned<Time>,
    pub(super) cpu: Spanned<u32>,
    pub(super) online: Spanned<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[variant]]")]
pub(super) struct VariantTable {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) set: toml::Table,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[sweep]]")]
pub(super) struct SweepTable {
    pub(super) key: Spanned<String>,
    pub(super) values: Vec<toml::Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[expect]]")]
pub(super) struct ExpectTable {
    pub(super) what: String,
    pub(super) value: Spanned<String>,
    #[serde(default)]
    pub(super) unit: String,
    /// What the source of the scenario says.
    pub(super) seed: Option<Spanned<f64>>,
    pub(super) min: Option<Spanned<f64>>,
    pub(super) max: Option<Spanned<f64>>,
}

/// Reads tables of which there may be several.
fn tables<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Tables<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Tables<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list: two brackets begin each table of it, as in [[workload]]")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut tables = Vec::new();
            while let Some(table) = list.next_element()? {
                tables.push(table);
            }
            Ok(tables)
        }
    }
    deserializer.deserialize_seq(Tables(PhantomData))
}

fn one() -> u64 {
    1
}

fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    struct Weight;
    impl de::Visitor<'_> for Weight {
        type Value = Option<u32>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an integer in 1..=10000")
        }

        fn visit_i64<E: de::Error>(self, weight: i64) -> Result<Option<u32>, E> {
            match u32::try_from(weight) {
                Ok(weight @ 1..=10_000) => Ok(Some(weight)),
                _ => Err(E::custom(format!("weight = {weight} is outside 1..=10000"))),
            }
        }

        fn visit_u64<E: de::Error>(self, weight: u64) -> Result<Option<u32>, E> {
            self.visit_i64(i64::try_from(weight).unwrap_or(i64::MAX))
        }
    }
    deserializer.deserialize_any(Weight)
}

/// A name that somebody can be asked for.
fn some_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.trim().is_empty() {
        return Err(de::Error::custom(format!(
            "name = {text:?} is empty: it needs one letter or more"
        )));
    }
    Ok(text)
}

fn positive_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    let time = Time::deserialize(deserializer)?;
    let day = 86_400_000_000_000;
    if (1..=day).contains(&time.0.0) {
        Ok(time)
    } else {
        Err(de::Error::custom(format!(
            "duration = {} ns is outside 1ns..=86400s",
            time.0.0
        )))
    }
}
