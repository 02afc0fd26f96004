//! What a trace says before there is any limit: the part that is asked about beside the rest, and how it is played.

use std::io::{BufReader, Read};
use std::path::Path;

use quotient_core::Nanos;
use quotient_sim::advise::Work;
use quotient_sim::replay::{
    Blocks, Evidence, Loop, Recording, RecordingError, Requests, Rule, Seats, Selection,
};
use quotient_sim::{Machine, Plan};

use super::base::{Base, Played};
use super::doubts::{self, Doubts};
use super::load::Load;
use super::parts::{Competing, NAMES_SHOWN, Parts};
use super::under::limit_of;
use super::{AdviseArguments, How, Unit};
use crate::convert::input::opened;
use crate::failure::Failure;

/// Reads it.
///
/// # Errors
/// A trace that cannot be read, or has no such part.
pub(super) fn from_trace(arguments: &AdviseArguments) -> Result<Base, Failure> {
    if arguments.meter.is_some() {
        return Err(Failure::Usage(
            "--meter is about scenarios; a trace is judged by its bursts".into(),
        ));
    }
    let mut whole = read(&arguments.input, arguments.skip_bad)?;
    let selection = Selection {
        groups: arguments.group.iter().cloned().collect(),
        names: arguments.comm.clone(),
        ids: arguments.pid.clone(),
    };
    let mut parts = Parts::of(&mut whole, &selection)?;
    let mut notes = parts.told(&whole, &arguments.pid, arguments.alone);
    let mut doubts = Doubts::default();
    let Parts {
        limited, beside, ..
    } = &parts;
    let has_beside = beside.tasks() > 0 && !arguments.alone;
    doubts::about_idle_selections(&whole, &selection, &mut doubts);
    if selection.is_everything() {
        doubts::about_everything(&whole, &mut doubts);
    }
    doubts::about_gaps(&whole, &mut doubts);
    doubts::about_holes(&whole.holes, &mut doubts);
    doubts::about_wakeups(&whole, &mut doubts);
    doubts::about_repairs(&whole, limited, &mut notes, &mut doubts);
    doubts::about_length(limited, &arguments.period, &mut doubts);
    doubts::about_absence(limited, &mut doubts);
    let change = limited.change();
    doubts::about_rise(change.as_ref(), &mut doubts);
    let limit = limit_of(
        &whole,
        limited,
        arguments.recorded_limit,
        &mut doubts,
        &mut notes,
    );
    doubts::about_limits(limited, &mut doubts);
    doubts::about_real_time(limited, &mut doubts);
    doubts::about_changes(limited.limit_changes_of(&whole), &mut doubts);
    doubts::about_saturation(&whole, limited, &mut doubts);
    let noted = whole.noted_limit.as_ref();
    doubts::about_sharing(limited, beside, noted, limit.is_some(), &mut doubts);
    let (plan, own, competing) = plan_of(&whole, &mut parts, arguments, has_beside);
    notes.extend(competing.told());
    doubts::about_weights(&competing, &whole, &mut doubts);
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
    let are_known = arguments.seeds >= doubts::SEEDS_MIN;
    notes.push(format!(
        "intervals are {}, from {} draws of {} blocks of {:.2} s of this recording: another one of its length may have brought these; the middles are those of the recording itself",
        if are_known { "of 90 %" } else { "not known" },
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
        release: whole.is_kernels.then(|| whole.release.clone()),
        load: Some(Load {
            kept: Load::places(&limited, beside.as_ref(), arguments.seeds, limit.is_some()),
            limited,
            beside,
            recorder,
            how,
            rule,
            requests,
            limit,
            is_limit_noted: whole.noted_limit.is_some(),
            change,
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
) -> (Plan, usize, Competing) {
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
    let competing = Competing {
        groups: seats.weigh(whole, &mut plan),
        work: if has_beside {
            seats.competing(&parts.beside)
        } else {
            Nanos::ZERO
        },
    };
    (plan, seats.own.unwrap_or(0) as usize, competing)
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
        Box::new(opened(path)?)
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
