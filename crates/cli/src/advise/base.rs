//! What is simulated before there is any limit: a scenario, or the part of a trace that is asked about beside the rest.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use quotient_sim::advise::Work;
use quotient_sim::replay::{
    Blocks, Evidence, Loop, Placement, RecordedLimit, Recording, RecordingError, Requests, Rule,
    Seats, Selection,
};
use quotient_sim::scenario::{Folder, Scenario};
use quotient_sim::{Kernel, Machine, Plan};
use serde::Serialize;

use super::doubts::{self, Doubts};
use super::fidelity;
use super::load::{Draw, Load};
use super::parts::{NAMES_SHOWN, Parts};
use super::{AdviseArguments, Given, How, Unit};
use crate::failure::Failure;
use crate::sim::unusable;

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
    /// That of a trace.
    load: Option<Load>,
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

/// Other numbers of threads for those workloads of a scenario whose threads are all alike.
fn with_threads(plan: &mut Plan, group: Option<u32>, threads: u32) {
    for load in &mut plan.workloads {
        if threads > 0
            && let Some(task) = load.tasks.first().copied()
            && task.group == group
            && load.tasks.iter().all(|other| other.program == task.program)
        {
            load.tasks = vec![task; threads as usize];
        }
    }
}

fn from_scenario(arguments: &AdviseArguments) -> Result<Base, Failure> {
    if arguments.selects_in_a_trace() {
        return Err(Failure::Usage(
            "--comm, --pid, --loop, --alone, --requests, --request-from, --marker and --recorded-limit are about traces; a scenario says it itself".into(),
        ));
    }
    let usage = |error: quotient_sim::scenario::ScenarioError| unusable(&arguments.input, &error);
    let scenario = Scenario::load(&arguments.input).map_err(usage)?;
    let mut files = Folder::of(&arguments.input);
    let plan = scenario
        .plan(0, arguments.machine.as_ref(), None, &mut files)
        .map_err(usage)?;
    let groups: Vec<&str> = plan
        .groups
        .iter()
        .map(|group| group.path.as_str())
        .collect();
    let meters: Vec<&str> = plan.meters.iter().map(String::as_str).collect();
    let group = find("group", &groups, arguments.group.as_deref())?;
    let meter = find("meter", &meters, arguments.meter.as_deref())?;
    let notes = vec![format!(
        "scenario {:?}, group {}, judged by {}",
        scenario.name(),
        groups[group],
        meters[meter]
    )];
    Ok(Base {
        plan,
        group,
        meter,
        work: Work::Laps,
        notes,
        doubts: Doubts::default(),
        played: None,
        placement: None,
        load: None,
    })
}

impl Base {
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

fn find(what: &str, names: &[&str], wanted: Option<&str>) -> Result<usize, Failure> {
    if names.is_empty() {
        return Err(Failure::Usage(format!(
            "this scenario has no {what}, and a limit is judged by one"
        )));
    }
    let Some(wanted) = wanted else {
        return Ok(0);
    };
    names
        .iter()
        .position(|name| *name == wanted)
        .ok_or_else(|| Failure::Usage(format!("no {what} {wanted:?}; there are {names:?}")))
}

fn from_trace(arguments: &AdviseArguments) -> Result<Base, Failure> {
    if arguments.meter.is_some() {
        return Err(Failure::Usage(
            "--meter is about scenarios; a trace is judged by its bursts".into(),
        ));
    }
    let whole = read(&arguments.input, arguments.skip_bad)?;
    let selection = Selection {
        groups: arguments.group.iter().cloned().collect(),
        names: arguments.comm.clone(),
        ids: arguments.pid.clone(),
    };
    let mut parts = Parts::of(&whole, &selection)?;
    let mut notes = parts.told(&whole, &arguments.pid, arguments.alone);
    let mut doubts = Doubts::default();
    let Parts {
        limited, beside, ..
    } = &parts;
    let has_beside = beside.tasks() > 0 && !arguments.alone;
    if selection.is_everything() {
        doubts::about_everything(&whole, &mut doubts);
    }
    doubts::about_gaps(&whole, &mut doubts);
    doubts::about_wakeups(&whole, &mut doubts);
    doubts::about_repairs(&whole, limited, &mut doubts);
    doubts::about_length(limited, &arguments.period, &mut doubts);
    doubts::about_absence(limited, &mut doubts);
    let limit = limit_of(
        &whole,
        limited,
        arguments.recorded_limit,
        &mut doubts,
        &mut notes,
    );
    doubts::about_limits(limited, &mut doubts);
    doubts::about_changes(limited.limit_changes_of(&whole), &mut doubts);
    doubts::about_saturation(&whole, limited, &mut doubts);
    let noted = whole.noted_limit.as_ref();
    doubts::about_sharing(limited, beside, noted, limit.is_some(), &mut doubts);
    let (plan, own) = plan_of(&whole, &mut parts, arguments, has_beside);
    let Parts {
        limited,
        beside,
        recorder,
    } = parts;
    let beside = has_beside.then_some(beside);
    let (rule, requests) = requests_of(&limited, beside.as_ref(), arguments, &mut doubts)?;
    let evidence = match &requests {
        Some(requests) => requests.evidence,
        None => limited.evidence(),
    };
    let (how, given, all_woken) = how_of(requests.as_ref(), &evidence, arguments, &mut doubts);
    notes.push(worded(how, given, &evidence));
    if let Some(requests) = &requests {
        notes.push(chains_worded(requests, how));
    }
    let is_seen = requests
        .as_ref()
        .is_some_and(|requests| requests.served_by().is_some());
    let may_wait = match how {
        How::Closed => !is_seen,
        _ => !given && !all_woken && evidence.verdict().is_none(),
    };
    if let Some(limit) = limit.as_ref().filter(|_| how != How::Closed || !is_seen) {
        doubts::about_woken(limit, &limited.restored_by(limit), &mut doubts);
    }
    if let Some(limit) = limit.as_ref().filter(|_| may_wait) {
        doubts::about_clients(limit, &mut doubts);
    } else if let Some(limit) = limit.as_ref().filter(|_| how != How::Closed) {
        doubts::about_held_arrivals(limit, &mut doubts);
    }
    let times = match &requests {
        Some(requests) => requests.recorded_in(how.as_loop()),
        None => limited.recorded_times(),
    };
    let blocks = Blocks::of(&limited, beside.as_ref(), times.as_ref(), arguments.seeds);
    notes.push(format!(
        "intervals are of 90 %, from {} draws of {} blocks of {:.2} s of this recording: another one of its length may have brought these; the middles are those of the recording itself",
        arguments.seeds,
        blocks.count(),
        blocks.length().0 as f64 / 1e9
    ));
    Ok(Base {
        plan,
        group: own,
        meter: 0,
        work: Work::Time,
        notes,
        doubts,
        played: Some(Played {
            how: how.name(),
            given,
            evidence,
        }),
        placement: Some(whole.placement),
        load: Some(Load {
            kept: Load::places(&limited, beside.as_ref(), arguments.seeds, limit.is_some()),
            limited,
            beside,
            recorder,
            how,
            rule,
            requests,
            limit,
            blocks,
        }),
    })
}

/// The machine with everybody's groups: that of what is asked about is named, and those beside have their seats, if they are played.
fn plan_of(
    whole: &Recording,
    parts: &mut Parts,
    arguments: &AdviseArguments,
    has_beside: bool,
) -> (Plan, usize) {
    let cpus = whole.cpus.clamp(1, quotient_core::Config::CPUS_MAX);
    let machine = arguments.machine.clone().unwrap_or(Machine::flat(cpus));
    let mut plan = Plan::new(machine);
    plan.duration = whole.length;
    let mut seats = Seats::of(&parts.limited, parts.others(), &mut plan);
    if has_beside {
        seats.seat(&mut parts.beside, &mut plan);
    }
    if let Some(recorder) = &mut parts.recorder {
        seats.seat(recorder, &mut plan);
    }
    (plan, seats.own.unwrap_or(0) as usize)
}

/// How it is played, whether that was given, and whether everything is woken by something in the trace that does not wait for answers itself: then
/// nothing is left to be guessed.
fn how_of(
    requests: Option<&Requests>,
    evidence: &Evidence,
    arguments: &AdviseArguments,
    doubts: &mut Doubts,
) -> (How, bool, bool) {
    let all_woken = requests.is_some_and(|requests| {
        requests.woken * 100 >= requests.parts * 99 && requests.answered * 100 < requests.requests
    });
    let (how, given) = match (arguments.r#loop, evidence.verdict()) {
        (Some(how), _) => (how, true),
        (None, Some(Loop::Closed)) => (How::Closed, false),
        (None, Some(Loop::Open)) => (How::Open, false),
        (None, None) if all_woken => (How::Open, false),
        (None, None) => {
            doubts::about_loop(doubts);
            (How::Open, false)
        }
    };
    (how, given, all_woken)
}

/// The limit that this was recorded under: given, noted in the trace, or found by its shape.
fn limit_of(
    whole: &Recording,
    limited: &Recording,
    given: Option<Given>,
    doubts: &mut Doubts,
    notes: &mut Vec<String>,
) -> Option<RecordedLimit> {
    let (limit, origin) = match given {
        Some(Given::None) => return None,
        Some(Given::Limit(limit)) => (limited.given_limit(limit), "as given"),
        None => match limited.noted_limit_of(whole) {
            Some(limit) => (limit, "as the trace notes"),
            None => (limited.recognise_limit()?, "by its shape"),
        },
    };
    let restored = limited.restored_by(&limit);
    notes.push(format!(
        "recorded under a limit, {}: {:.1} ms in every {:.0} ms, throttled in {:.0} % of the periods; {} bursts with {:.0} % of the work seem to hold {} arrivals",
        origin,
        limit.quota_ns as f64 / 1e6,
        limit.period_ns as f64 / 1e6,
        limit.throttled_permille as f64 / 10.0,
        restored.merged,
        restored.merged_permille as f64 / 10.0,
        restored.pieces,
    ));
    doubts::about_cut(&limit, &restored, doubts);
    Some(limit)
}

/// What a request is here, and all of them.
fn requests_of(
    limited: &Recording,
    beside: Option<&Recording>,
    arguments: &AdviseArguments,
    doubts: &mut Doubts,
) -> Result<(Option<Rule>, Option<Requests>), Failure> {
    let rule = match arguments.unit() {
        Some(Unit::Bursts) => return Ok((None, None)),
        Some(Unit::Marks) => Rule::Marks(arguments.marker.clone()),
        Some(Unit::Chains) | None => Rule::Chains(arguments.request_from.clone()),
    };
    let requests = Requests::of(limited, beside, &rule);
    if arguments.unit().is_none() {
        // Nobody wakes anybody: a burst is all there is of a request, or the trace does not say it.
        if requests.woken == 0 {
            return Ok((None, None));
        }
        if !requests.is_enough() {
            doubts::about_chains(&requests, doubts);
            return Ok((None, None));
        }
    } else if requests.requests == 0 {
        let names = limited.names();
        let names: Vec<&str> = names.keys().copied().take(NAMES_SHOWN).collect();
        return Err(Failure::Usage(format!(
            "there are no such requests in this trace; who is limited: {names:?}, what is marked: {:?}",
            limited
                .marks()
                .into_iter()
                .take(NAMES_SHOWN)
                .collect::<Vec<_>>()
        )));
    }
    Ok((Some(rule), Some(requests)))
}

fn chains_worded(requests: &Requests, how: How) -> String {
    let begin: Vec<String> = requests
        .begin_with
        .iter()
        .take(3)
        .map(|(name, count)| format!("{name:?} ({count})"))
        .collect();
    let others = match requests.others {
        0 => String::new(),
        count => format!("; {count} tasks beside take part, unlimited"),
    };
    let played = match requests.served_by() {
        Some((clients, threads)) if how == How::Closed => format!(
            "; played as {clients} clients that think as long as they did, and {threads} threads that take what they ask for"
        ),
        _ => String::new(),
    };
    format!(
        "{} requests of {} bursts; they begin with {}{others}{played}",
        requests.requests,
        requests.parts,
        begin.join(", ")
    )
}

fn read(path: &Path, skip_bad: u64) -> Result<Recording, Failure> {
    let name = path.display().to_string();
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        let opened = File::open(path);
        Box::new(opened.map_err(|error| Failure::Usage(format!("{name}: {error}")))?)
    };
    let mut input = BufReader::with_capacity(1 << 18, input);
    let recording = Recording::read_skipping(&mut input, skip_bad);
    recording.map_err(|error| match error {
        RecordingError::TooLong => Failure::Run(format!("{name}: {error}")),
        _ => Failure::Unreadable(format!("{name}: {error}")),
    })
}

fn worded(how: How, given: bool, evidence: &Evidence) -> String {
    let why = if given { "as asked" } else { "guessed" };
    format!(
        "{} loop, {why}: over {} {} a ms more of response changes the sleep behind it by {:+.2} ms (standard error {:.2}; open -1, closed 0), and sleeps vary by {:.0} % of their mean (memoryless arrivals: 100)",
        how.name(),
        evidence.pairs,
        if evidence.of_clients {
            "answers to clients in the trace"
        } else {
            "bursts"
        },
        evidence.slope,
        evidence.slope_error,
        100.0 * evidence.variation
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_listed() {
        assert_eq!(find("group", &["a", "b"], Some("b")).ok(), Some(1));
        assert_eq!(find("group", &["a", "b"], None).ok(), Some(0));
        assert!(find("group", &[], None).is_err());
    }
}
