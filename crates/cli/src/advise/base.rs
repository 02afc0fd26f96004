//! What is simulated before there is any limit: a scenario, or the part of a trace that is asked about beside the rest.

use quotient_sim::advise::Work;
use quotient_sim::replay::{Evidence, Placement, RecordedLimit, Requests};
use quotient_sim::{Kernel, Plan};
use serde::Serialize;

use super::doubts::Doubts;
use super::fidelity;
use super::load::{Draw, Load};
use super::of_scenario::{from_scenario, with_threads};
use super::of_trace::from_trace;
use super::{AdviseArguments, How};
use crate::failure::Failure;

/// What is simulated, before any limit.
pub(super) struct Base {
    pub(super) plan: Plan,
    pub(super) group: usize,
    pub(super) meter: usize,
    pub(super) work: Work,
    pub(super) notes: Vec<String>,
    pub(super) doubts: Doubts,
    /// What a trace shows of its loop.
    pub(super) played: Option<Played>,
    /// How well the kernel of a trace saw idle CPUs.
    pub(super) placement: Option<Placement>,
    /// The release of the kernel that recorded a trace, if that says it; `None` of scenarios and of what Quotient recorded.
    pub(super) release: Option<Option<String>>,
    /// That of a trace.
    pub(super) load: Option<Load>,
}

/// How a trace is played and why.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Played {
    /// How.
    pub(super) how: &'static str,
    /// Whether that was given.
    pub(super) given: bool,
    /// What the trace says.
    pub(super) evidence: Evidence,
}

impl Base {
    /// Reads what is asked about.
    ///
    /// # Errors
    /// An input that cannot be used, or has no such part.
    pub(super) fn of(arguments: &AdviseArguments) -> Result<Base, Failure> {
        let extension = arguments.input.extension();
        if extension.is_some_and(|extension| extension == "toml") {
            from_scenario(arguments)
        } else {
            from_trace(arguments)
        }
    }

    /// The plan for a number of threads (0: as it is), a seed, and a load of a trace.
    pub(super) fn planned(&self, threads: u32, seed: u64, draw: Draw) -> Plan {
        let mut plan = self.plan.clone();
        plan.seed = seed;
        let group = Some(self.group as u32);
        let Some(load) = &self.load else {
            with_threads(&mut plan, group, threads);
            return plan;
        };
        load.add_to(&mut plan, (threads, group), (seed, draw));
        plan
    }

    /// The requests of a trace.
    pub(super) fn requests(&self) -> Option<&Requests> {
        self.load.as_ref()?.requests.as_ref()
    }

    /// CPU time that a trace says was used, in thousandths of a CPU; 0 of a scenario.
    pub(super) fn used_permille(&self) -> u64 {
        self.load.as_ref().map_or(0, |load| {
            let usage = u128::from(load.limited.recorded.0) * 1_000;
            let length = u128::from(load.limited.length.0.max(1));
            u64::try_from(usage / length).unwrap_or(u64::MAX)
        })
    }

    /// The same of the busiest part of a trace whose load changed: a limit has to let that be done. Else the same.
    pub(super) fn wanted_permille(&self) -> u64 {
        let change = self.load.as_ref().and_then(|load| load.change);
        let busiest = change.map_or(0, |change| change.busiest_permille);
        busiest.max(self.used_permille())
    }

    /// Of how many blocks each seed's load is drawn; 0 of a scenario, which makes it.
    pub(super) fn blocks(&self) -> u64 {
        self.load.as_ref().map_or(0, |load| load.blocks.count())
    }

    /// The limit that a trace was recorded under.
    pub(super) fn recorded_limit(&self) -> Option<RecordedLimit> {
        self.load.as_ref()?.limit
    }

    /// What the trace itself says, if what is played can come to the same: its own threads beside its own company.
    pub(super) fn recorded(&self, arguments: &AdviseArguments) -> Option<fidelity::Recorded> {
        let load = self.load.as_ref()?;
        let is_as_it_was = load.how != How::Pooled
            && arguments.threads.is_empty()
            && arguments.machine.is_none()
            && !arguments.alone;
        let how = load.how.as_loop();
        let times = match &load.requests {
            Some(requests) => requests.recorded_in(how),
            None => load.limited.recorded_times(),
        };
        is_as_it_was.then(|| fidelity::Recorded {
            usage_permille: self.used_permille(),
            times,
            limit: load.limit,
            is_limit_known: arguments.recorded_limit.is_some() || load.is_limit_noted,
        })
    }

    /// What latencies are those of.
    pub(super) fn latency_of(&self, threads: &[u32]) -> &'static str {
        let Some(load) = &self.load else {
            return "laps";
        };
        let is_pooled = load.how == How::Pooled || threads.iter().any(|&count| count > 0);
        if load.requests.is_some() && !is_pooled {
            "requests"
        } else {
            "bursts"
        }
    }
}

impl Base {
    /// Whose rules are played: those that were asked for, else, of a kernel's trace, those of the preset that is nearest; `None`: those of a scenario, or our own
    /// policy under the limits of `--rules`. Says which.
    pub(super) fn kernel(&mut self, arguments: &AdviseArguments) -> Option<Kernel> {
        if let Some(kernel) = arguments.kernel {
            self.notes.push(kernel.note().into());
            return Some(kernel);
        }
        let release = self.release.as_ref()?.as_deref();
        if arguments.rules.is_some() {
            return None;
        }
        let kernel = Kernel::nearest(release);
        let why = match release {
            Some(release) => format!("the trace was recorded by Linux {release}"),
            None => "a kernel recorded the trace, which does not say its release".to_owned(),
        };
        let note = kernel.note();
        self.notes
            .push(format!("{note}: {why}, and no --kernel was given"));
        if release.is_some_and(|release| Kernel::of_release(release).is_none()) {
            self.doubts.add(
                false,
                format!("{why}, which chooses by other rules than any that can be played: the nearest are those after 6.6"),
            );
        }
        Some(kernel)
    }

    /// Lets wake-ups and CPUs that fall idle overlook what the recorded kernel did, under a preset of a kernel; says what was seen.
    /// Not on machines of several caches: there the trace does not say which idle CPU was near.
    pub(super) fn place_as_recorded(&mut self, kernel: Kernel) {
        let machine = &self.plan.machine;
        let is_flat = machine.nodes == 1 && machine.caches == 1;
        let Some(placement) = self.placement.filter(|_| is_flat && kernel != Kernel::Ours) else {
            return;
        };
        let notice = placement.notice();
        self.plan.settings.notice = notice;
        let Placement {
            woken,
            crowded,
            fell_idle: fell,
            drawn,
            drawn_crowded: beside,
        } = placement;
        self.notes.push(format!(
            "of {} wake-ups whose CPU was busy while another one idled {} went there, and {} of {} where somebody waited already; of {} CPUs that fell idle while somebody waited {} took him; of {} wake-ups from another CPU while their own idled {} went to the waker's, and {} of {} where somebody waited beside the waker: played as {:.0}, {:.0}, {:.0}, {:.0} and {:.0} %",
            woken.of,
            woken.did,
            crowded.did,
            crowded.of,
            fell.of,
            fell.did,
            drawn.of,
            drawn.did,
            beside.did,
            beside.of,
            f64::from(notice.woken_permille) / 10.0,
            f64::from(notice.crowded_permille) / 10.0,
            f64::from(notice.fell_idle_permille) / 10.0,
            f64::from(notice.drawn_permille) / 10.0,
            f64::from(notice.drawn_crowded_permille) / 10.0
        ));
    }
}
