//! `quotient bench pains`: what hurts users of the kernel's limits, and what becomes of it here.
//!
//! | pain | what is done |
//! |---|---|
//! | `rewrite` | the same limit is written again every 10 ms: does that mint budget? |
//! | `own_cpus` | a quota of all CPUs: is anybody throttled? |
//! | `stranding` | many virtual CPUs, little use: is budget stuck where nobody needs it? |
//! | `lock_holder` | a throttled task holds a lock that others want |
//! | `burst` | jobs of more than one quota now and then |
//! | `storm` | a thousand groups are unthrottled, ten thousand refilled |
//!
//! Modes: `default` is Quotient, `kernel-rules` is Quotient with the kernel's rules, `real-kernel` is the kernel of this
//! machine where we may use its cgroups. Every mode has the same load. Bars are for `default`.

mod burst;
mod lock_holder;
mod own_cpus;
mod refill_cost;
mod rewrite;
mod storm;
mod stranding;

use std::fmt;
use std::time::Duration;

use clap::Args;
use quotient::BandwidthRules;
use quotient_validation::cgroup::Controller;
use quotient_validation::runtime::Settings;
use quotient_validation::{Interrupt, Problem};
use serde::Serialize;
use serde_json::json;

use super::bandwidth::{failure, on_interrupt};
use super::{print_json, selected};
use crate::failure::Failure;

/// What `bench pains` takes.
#[derive(Debug, Clone, Args)]
pub struct PainsArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// A fraction of the time: a look, not a figure
    #[arg(long)]
    quick: bool,
    /// Only pains whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Who keeps the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// Quotient.
    Default,
    /// Quotient with the kernel's rules.
    KernelRules,
    /// Quotient with the kernel's rules and its fault of 2014 to 2019.
    KernelRulesExpiry,
    /// The kernel of this machine.
    RealKernel,
    /// Quotient without a limit: what the others are compared with.
    Unlimited,
    /// Quotient with tokio's lock instead of its own.
    DefaultTokioLock,
    /// The core alone, without threads.
    Core,
}

/// One figure.
#[derive(Debug, Serialize)]
struct Row {
    pain: &'static str,
    mode: Mode,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    /// What `value` may be at most; only what is promised has one.
    bar: Option<f64>,
    ok: Option<bool>,
}

impl Row {
    /// A figure without a promise.
    fn new(
        pain: &'static str,
        mode: Mode,
        metric: &'static str,
        value: f64,
        unit: &'static str,
    ) -> Self {
        Self {
            pain,
            mode,
            metric,
            value,
            unit,
            bar: None,
            ok: None,
        }
    }

    /// The same with a promise: at most `bar`.
    fn at_most(mut self, bar: f64) -> Self {
        self.bar = Some(bar);
        self.ok = Some(self.value <= bar);
        self
    }

    /// The same with a promise if this is the default mode.
    fn at_most_by_default(self, bar: f64) -> Self {
        if self.mode == Mode::Default {
            self.at_most(bar)
        } else {
            self
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = format!("{:?}", self.mode);
        write!(
            formatter,
            "{:<12} {mode:<18} {:<34} {:>11.3} {:<7}",
            self.pain, self.metric, self.value, self.unit
        )?;
        match (self.bar, self.ok) {
            (Some(bar), Some(ok)) => {
                let verdict = if ok { "ok" } else { "MISSED" };
                write!(formatter, " at most {bar:.3}: {verdict}")
            }
            _ => Ok(()),
        }
    }
}

/// What every pain needs to know.
struct Ward {
    interrupt: Interrupt,
    /// The kernel's cgroups, where we may use them.
    controller: Option<Controller>,
    quick: bool,
}

impl Ward {
    /// `full`, or a quarter of it for a quick look.
    fn length(&self, full: Duration) -> Duration {
        if self.quick { full / 4 } else { full }
    }
}

/// The runtime for a mode; `None` for those that do not run in it.
fn settings(mode: Mode) -> Option<Settings> {
    let like_this_machine = Settings::like_this_machine();
    let rules = match mode {
        Mode::Default | Mode::Unlimited | Mode::DefaultTokioLock => BandwidthRules::Default,
        Mode::KernelRules => BandwidthRules::KERNEL,
        Mode::KernelRulesExpiry => BandwidthRules::Kernel {
            ratio: quotient::RatioRule::V2,
            slice_expiry: true,
        },
        Mode::RealKernel | Mode::Core => return None,
    };
    Some(Settings {
        rules,
        ..like_this_machine
    })
}

/// A pain: its name and what measures it.
type Pain = (&'static str, fn(&Ward) -> Result<Vec<Row>, Problem>);

const PAINS: [Pain; 7] = [
    (rewrite::NAME, rewrite::measure),
    (own_cpus::NAME, own_cpus::measure),
    (stranding::NAME, stranding::measure),
    (lock_holder::NAME, lock_holder::measure),
    (burst::NAME, burst::measure),
    (storm::NAME, storm::measure),
    (refill_cost::NAME, refill_cost::measure),
];

/// Measures every pain and prints a table, or one JSON object.
///
/// # Errors
/// When a scheduler or group cannot be built, or on Ctrl-C.
pub fn run(arguments: &PainsArguments) -> Result<(), Failure> {
    let interrupt = on_interrupt()?;
    let (controller, kernel_skipped) = match Controller::find() {
        Ok(controller) => (Some(controller), None),
        Err(problem) => (None, Some(problem.to_string())),
    };
    if let Some(reason) = &kernel_skipped {
        eprintln!("without the real kernel: {reason}");
    }
    let ward = Ward {
        interrupt,
        controller,
        quick: arguments.quick,
    };
    let mut rows = Vec::new();
    for (name, measure) in PAINS {
        let wanted = arguments.only.as_ref();
        if wanted.is_some_and(|text| !name.contains(text.as_str())) {
            continue;
        }
        let found = measure(&ward).map_err(failure)?;
        if !arguments.json {
            found.iter().for_each(|row| println!("{row}"));
        }
        rows.extend(found);
    }
    selected(&rows)?;
    if arguments.json {
        return print_json(&json!({ "kernel_skipped": kernel_skipped, "rows": rows }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_default_mode_is_judged_by_default() {
        let row = |mode| Row::new("a", mode, "b", 2.0, "c").at_most_by_default(1.0);
        assert_eq!(row(Mode::Default).ok, Some(false));
        assert_eq!(row(Mode::KernelRules).ok, None);
        assert_eq!(row(Mode::RealKernel).bar, None);
    }
}
