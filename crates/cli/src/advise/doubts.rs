//! What speaks against a prediction. A figure is never given alone where its ground is thin.

use quotient_core::Nanos;
use quotient_sim::replay::{
    Change, Holes, RecordedLimit, Recording, Requests, Restored, Selection, is_within,
};
use quotient_trace::{NotedChange, NotedLimit};
use serde::Serialize;

use super::parts::Competing;

/// A recording shorter than so many periods says little of how many are throttled: one more or less is 5 %, the part
/// that is accepted by default.
const PERIODS_MIN: u64 = 20;
/// With fewer bursts their 99th percentile is their maximum.
const BURSTS_MIN: usize = 100;
/// Work that a limit cut off is a guess; more than this part of all, per cent, and the advice rests on it.
pub(super) const RESTORED_MAX_PERCENT: u64 = 10;

/// CPUs that were busy for more than this, per cent, hide what else was wanted.
const BUSY_MAX_PERCENT: u64 = 95;
/// On such CPUs, work of threads that were never idle and had to wait, in thousandths of all: with more, the machine held back what was wanted.
const HELD_BACK_MAX_PERMILLE: u64 = 200;
/// Who shares a cgroup with what is asked about and works less than this part of it, per cent, does not count.
const SHARED_MIN_PERCENT: u64 = 5;
/// Others that use less than this part of the machine, per cent, leave everybody what he wants, whatever weighs what.
const COMPETING_MIN_PERCENT: u64 = 5;
/// Work in the real-time class beyond this part of it, per cent, is work that a limit would not hold.
const REAL_TIME_MAX_PERCENT: u64 = 5;
/// Who does half of his work in one of so many parts of the time was there by chance. Default 10: of that, a 99th percentile is a matter.
const SELDOM: u64 = 10;
/// What he may add to a 99th percentile beside a quarter of it, ns: as what is compared with the trace.
const COMPANY_ALLOWED: u64 = 1_000_000;
/// More events lost than this part of all bursts, per cent, and the bursts are not those that there were.
const LOST_MAX_PERCENT: u64 = 5;

/// More switches lost than these, in thousandths of those that are there, and the CPU time of tasks is not what they used. Default 4: good recordings have
/// none at all, those of which 2 % of the lines were taken out at random 6 to 15, as not every loss shows.
const SWITCHES_LOST_PERMILLE: u64 = 4;
/// And at least so many: one or two are of the begin, or of a line that was cut.
const SWITCHES_LOST_MIN: u64 = 5;

/// A closed loop that was throttled in more of the periods, in thousandths, is another one without the limit.
const THROTTLED_MAX_PERMILLE: u64 = 100;

/// The same of an open loop, whose work comes whatever is done: with more, wrong limits were recommended (from 42 % on; right ones up to 25 %).
const HELD_MAX_PERMILLE: u64 = 300;

/// Tasks that are there for a smaller part of the trace, per cent, have figures that are too low by more than others are off.
const ACTIVE_MIN_PERCENT: u64 = 90;

/// Tried less often than this, and nothing is known of how draws differ: of one there is no spread, and that of two is off by factors (their interval is six of
/// it wide). Default 3.
pub(super) const SEEDS_MIN: u32 = 3;

/// One reason for doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Doubt {
    /// In words, with figures.
    pub(super) reason: String,
    /// Whether nothing can be recommended because of it.
    pub(super) decisive: bool,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Doubts(pub(super) Vec<Doubt>);

impl Doubts {
    /// Whether nothing can be recommended.
    pub(super) fn is_decisive(&self) -> bool {
        self.0.iter().any(|doubt| doubt.decisive)
    }

    pub(super) fn add(&mut self, decisive: bool, reason: String) {
        self.0.push(Doubt { reason, decisive });
    }
}

/// Nobody was selected: the whole machine would share the limit.
pub(super) fn about_everything(whole: &Recording, doubts: &mut Doubts) {
    let (groups, names) = (whole.groups().len(), whole.names().len());
    if groups > 1 || names > 1 {
        doubts.add(
            false,
            format!(
                "all {} tasks of the trace ({names} names, {groups} groups) are limited together; --comm, --pid or --group says which are meant",
                whole.tasks()
            ),
        );
    }
}

/// A name or a number that was asked about selects nobody: the limit would hold for less than was meant.
pub(super) fn about_idle_selections(whole: &Recording, selection: &Selection, doubts: &mut Doubts) {
    let names = selection.names.iter().map(|name| {
        let mut part = selection.clone();
        part.names = vec![name.clone()];
        (format!("--comm {name:?}"), part)
    });
    let ids = selection.ids.iter().map(|id| {
        let mut part = selection.clone();
        part.ids = vec![*id];
        (format!("--pid {id}"), part)
    });
    let idle = names
        .chain(ids)
        .filter(|(_, part)| whole.split(part).0.tasks() == 0);
    let idle: Vec<String> = idle.map(|(option, _)| option).collect();
    if !idle.is_empty() {
        doubts.add(
            false,
            format!(
                "{} selects nobody who ran in this trace: what is limited is the rest of what was asked for",
                idle.join(", ")
            ),
        );
    }
}

/// Something is missing from the trace.
pub(super) fn about_gaps(whole: &Recording, doubts: &mut Doubts) {
    if whole.gaps.is_any() {
        // Who was woken or left a CPU in a gap is not known: bursts are cut there.
        let bursts = u64::try_from(whole.bursts()).unwrap_or(u64::MAX);
        let is_much = whole.gaps.lost.saturating_mul(100) > bursts.saturating_mul(LOST_MAX_PERCENT);
        doubts.add(is_much, format!("of the trace, {}", whole.gaps));
    }
}

/// Too few draws to say how they spread.
pub(super) fn about_seeds(seeds: u32, doubts: &mut Doubts) {
    if seeds < SEEDS_MIN {
        doubts.add(
            false,
            format!(
                "{}: how others would differ is not known, so no interval is one of 90 %, and what is called harmless is so by chance; a look, to be decided with --seeds {SEEDS_MIN} or more (10 where nothing is said)",
                match seeds {
                    1 => "tried once".to_owned(),
                    seeds => format!("tried {seeds} times"),
                }
            ),
        );
    }
}

/// Nothing that is measured came to an end, also without a limit.
pub(super) fn about_nothing_done(done: u64, doubts: &mut Doubts) {
    if done == 0 {
        doubts.add(
            true,
            "nothing that is measured was done in the time that is simulated, also without a limit: there is no percentile to add to; let it last longer, or judge by another meter (--meter)".to_owned(),
        );
    }
}

/// Nothing at all happened for a while.
pub(super) fn about_holes(holes: &Holes, doubts: &mut Doubts) {
    let Some(first) = holes.first.first() else {
        return;
    };
    let more = match holes.count - 1 {
        0 => String::new(),
        more => format!(" (and {more} times more)"),
    };
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    doubts.add(
        true,
        format!(
            "nothing at all happened on any CPU from {:.1} to {:.1} s of the trace{more}, {:.1} s in all, where silences were {:.3} s at most before: a piece of it is missing, or the machine stood still; that is cut out of all times, and what was wanted meanwhile is not known; record again",
            seconds(first.from_ns),
            seconds(first.to_ns),
            seconds(holes.length.0),
            seconds(holes.usual.0)
        ),
    );
}

/// Nobody is woken in the trace.
pub(super) fn about_wakeups(whole: &Recording, doubts: &mut Doubts) {
    if whole.wakeups == 0 {
        doubts.add(
            false,
            "no wake-up is in the trace: work is taken to come when it begins, so what it waited for a CPU is missing from its times, and who asked for it is not known; record sched_waking as well, as `quotient record` does".to_owned(),
        );
    }
}

/// Switches were lost, or tasks never leave a CPU. What a kind of kernel always leaves out is filled in and only noted: every recording of such a machine
/// misses it, so that it tells a good one from none.
pub(super) fn about_repairs(
    whole: &Recording,
    limited: &Recording,
    notes: &mut Vec<String>,
    doubts: &mut Doubts,
) {
    if whole.repaired > 0 {
        notes.push(format!(
            "{} switches from idle, or away from tasks that no switch leaves, are not in the trace and were filled in, as some virtual machines' kernels leave them out",
            whole.repaired
        ));
    }
    let (lost, shown) = (whole.switches_lost, whole.switches_shown);
    if lost > 0 {
        let is_much = lost.saturating_mul(1_000) > shown.saturating_mul(SWITCHES_LOST_PERMILLE);
        doubts.add(
            is_much && lost >= SWITCHES_LOST_MIN,
            format!(
                "at least {lost} switches were lost beside {shown} that the trace shows, {:.1} %: who left a CPU was not he who had come last, so what tasks used is wrong, and mostly too little; record again, with larger buffers",
                100.0 * lost as f64 / shown.max(1) as f64
            ),
        );
    }
    let silent = limited.silent_tasks();
    if silent > 0 {
        // A few threads of a large program, or all that is asked about.
        let is_much = silent * 10 > limited.tasks();
        doubts.add(
            is_much,
            format!("{silent} of the tasks to be limited are never seen to leave a CPU: what they do is missing from the trace"),
        );
    }
}

/// Too short, or too little in it.
pub(super) fn about_length(limited: &Recording, periods: &[Nanos], doubts: &mut Doubts) {
    let longest = periods.iter().copied().max().unwrap_or(Nanos::ZERO);
    let count = limited.length.0 / longest.0.max(1);
    if count < PERIODS_MIN {
        doubts.add(
            true,
            format!(
                "the trace has {count} periods of {} ms; at least {PERIODS_MIN} are needed to say how many are throttled",
                longest.0 / 1_000_000
            ),
        );
    }
    let bursts = limited.bursts();
    if bursts < BURSTS_MIN {
        doubts.add(
            true,
            format!("{bursts} bursts; at least {BURSTS_MIN} are needed for a 99th percentile"),
        );
    }
}

/// Who ended early or began late did nothing for a part of the trace.
pub(super) fn about_absence(limited: &Recording, doubts: &mut Doubts) {
    let (active, length) = (limited.active().0, limited.length.0);
    if u128::from(active) * 100 < u128::from(length) * u128::from(ACTIVE_MIN_PERCENT) {
        doubts.add(
            active * 2 < length,
            format!(
                "these tasks did 98 % of their work in {:.1} s of {:.1} s, and all figures are over the whole: record while they work",
                active as f64 / 1e9,
                length as f64 / 1e9
            ),
        );
    }
}

/// The load was another one for a part of the time: a mean is that of neither.
pub(super) fn about_rise(change: Option<&Change>, doubts: &mut Doubts) {
    let Some(change) = change else {
        return;
    };
    let cpus = |permille: u64| permille as f64 / 1000.0;
    doubts.add(
        false,
        format!(
            "the load changed: {:.2} CPUs from {:.1} to {:.1} s, and {:.2} in the rest; all figures are of both together, and nothing up to the {:.2} CPUs of the busiest eighth is recommended: record the load that the limit is for",
            cpus(change.inside_permille),
            change.from_ns as f64 / 1e9,
            change.to_ns as f64 / 1e9,
            cpus(change.outside_permille),
            cpus(change.busiest_permille)
        ),
    );
}

/// The class above is not limited by what limits others.
pub(super) fn about_real_time(limited: &Recording, doubts: &mut Doubts) {
    let (above, all) = (limited.real_time().0, limited.recorded.0);
    if above > 0 {
        let cpus = |time: u64| time as f64 / limited.length.0.max(1) as f64;
        doubts.add(
            above.saturating_mul(100) > all.saturating_mul(REAL_TIME_MAX_PERCENT),
            format!(
                "threads in the real-time class used {:.2} of the {:.2} CPUs: no cpu.max holds for these, and here one would",
                cpus(above),
                cpus(all)
            ),
        );
    }
}

/// Recorded under a limit.
pub(super) fn about_limits(limited: &Recording, doubts: &mut Doubts) {
    let (restored, recorded) = (limited.restored.0, limited.recorded.0);
    if restored.saturating_mul(100) > recorded.saturating_mul(RESTORED_MAX_PERCENT) {
        doubts.add(
            false,
            format!(
                "a limit cut off work while this was recorded; {:.0} % more is a guess: record without one",
                100.0 * restored as f64 / recorded.max(1) as f64
            ),
        );
    }
}

/// Clients wait for answers that a limit held back, or may do so, and the trace does not show them.
pub(super) fn about_clients(limit: &RecordedLimit, doubts: &mut Doubts) {
    if limit.throttled_permille > THROTTLED_MAX_PERMILLE {
        doubts.add(
            true,
            format!(
                "a limit of {:.2} CPUs held this back in {:.0} % of the periods, and whoever waits for its answers asks for less meanwhile; the trace does not show who that is: what they would ask for without it is not known; record without a limit, or with the clients",
                limit.permille() as f64 / 1000.0,
                limit.throttled_permille as f64 / 10.0
            ),
        );
    }
}

/// Arrivals from outside that a limit held back: what came meanwhile is done later and seen, but not when it came, and what was given up is not
/// seen at all.
pub(super) fn about_held_arrivals(limit: &RecordedLimit, doubts: &mut Doubts) {
    if limit.throttled_permille > HELD_MAX_PERMILLE {
        doubts.add(
            true,
            format!(
                "a limit of {:.2} CPUs held this back in {:.0} % of the periods: when work came meanwhile, and what was given up, is not in the trace, also of an open loop; record without a limit",
                limit.permille() as f64 / 1000.0,
                limit.throttled_permille as f64 / 10.0
            ),
        );
    }
}

/// The machine was full. Threads that sleep between requests got all that they wanted, if late; of those that never do, only what they got is known.
pub(super) fn about_saturation(whole: &Recording, limited: &Recording, doubts: &mut Doubts) {
    let room = u128::from(whole.length.0) * u128::from(whole.cpus);
    if u128::from(whole.recorded.0) * 100 <= room * u128::from(BUSY_MAX_PERCENT) {
        return;
    }
    let held = limited.held_back_permille();
    let busy = format!(
        "all {} CPUs were busy for {:.0} % of the time",
        whole.cpus,
        100.0 * whole.recorded.0 as f64 / room.max(1) as f64
    );
    if held > HELD_BACK_MAX_PERMILLE {
        doubts.add(
            true,
            format!(
                "{busy}, and threads with {:.0} % of the work waited for one whenever they had none: the machine held them back, and what they would use with more room is not in the trace; record where a CPU is idle now and then",
                held as f64 / 10.0
            ),
        );
    } else {
        doubts.add(
            false,
            format!("{busy}: what was wanted came late, and the next may not have been asked for"),
        );
    }
}

/// Others are in the cgroup that is asked about, or share the limit that it was recorded under.
pub(super) fn about_sharing(
    limited: &Recording,
    others: &Recording,
    noted: Option<&NotedLimit>,
    is_limited: bool,
    doubts: &mut Doubts,
) {
    let own = limited.groups();
    let noted = noted.map(|limit| limit.cgroup.as_str());
    let roots: Vec<&str> = own
        .keys()
        .map(|path| path.trim_matches('/'))
        .chain(noted.filter(|_| is_limited))
        .filter(|path| !path.is_empty())
        .collect();
    let is_shared = |path: &str| roots.iter().any(|root| is_within(path, root));
    let all = others.groups();
    let shared = all
        .iter()
        .filter(|(path, _)| is_shared(path.trim_matches('/')));
    let (mut paths, mut work) = (Vec::new(), 0_u64);
    for (path, wanted) in shared {
        paths.push(*path);
        work = work.saturating_add(wanted.0);
    }
    if work.saturating_mul(100) <= limited.recorded.0.saturating_mul(SHARED_MIN_PERCENT) {
        return;
    }
    let cpus = work as f64 / limited.length.0.max(1) as f64;
    paths.truncate(3);
    if is_limited {
        doubts.add(
            true,
            format!(
                "others, in {paths:?}, used {cpus:.2} CPUs of the limit that this was recorded under: what it left to these tasks alone is not known; ask about all of them (--group), or record without it"
            ),
        );
    } else {
        doubts.add(
            false,
            format!(
                "others are in the same cgroup, in {paths:?}, with {cpus:.2} CPUs: a limit on it holds for them too, and this one is for a cgroup of these tasks alone; --group asks about all of them"
            ),
        );
    }
}

/// Groups compete, and their weights are not known, or were others for a part of the time.
pub(super) fn about_weights(competing: &Competing, whole: &Recording, doubts: &mut Doubts) {
    let room = u128::from(whole.length.0) * u128::from(whole.cpus);
    if u128::from(competing.work.0) * 100 <= room * u128::from(COMPETING_MIN_PERCENT) {
        return;
    }
    let cpus = competing.work.0 as f64 / whole.length.0.max(1) as f64;
    if whole.noted_weights.is_empty() {
        let is_in_root = whole
            .groups()
            .keys()
            .all(|path| path.trim_matches('/').is_empty());
        // `record` notes the weight of every cgroup that has one.
        let why = match (whole.recording_process.is_some(), is_in_root) {
            (true, true) => format!(
                "all were in the root cgroup, which has no weight, and others used {cpus:.2} CPUs: the limit is played on a cgroup of its own with 100, as the kernel makes it, beside the tasks of the root"
            ),
            (true, false) => format!(
                "no cgroup had a weight when `quotient record` looked, as without the cpu controller, and those in others than this one used {cpus:.2} CPUs: all are played with 100, as the kernel gives it to who is limited"
            ),
            (false, _) => format!(
                "the trace does not say the weights of its groups, and those in others than this one used {cpus:.2} CPUs: all are played with 100, as if nobody had set any; `quotient record` notes them"
            ),
        };
        doubts.add(false, why);
    }
    if let Some(changed) = competing.groups.iter().find(|seat| seat.was_changed) {
        doubts.add(
            false,
            format!(
                "the weight of /{} was changed while this was recorded: it is played with {}, as it was at first",
                changed.path,
                changed.weight.get()
            ),
        );
    }
}

/// Who ran beside it did most of that in a small part of the time, and the 99th percentile, in ns with him and without, is of that part.
pub(super) fn about_company(company: &Recording, (with, without): (u64, u64), doubts: &mut Doubts) {
    let within = company.half_done_within().0;
    let is_seldom = within.saturating_mul(SELDOM) <= company.length.0;
    if !is_seldom || with <= without.saturating_mul(5) / 4 + COMPANY_ALLOWED {
        return;
    }
    let mut names: Vec<(&str, Nanos)> = company.names().into_iter().collect();
    names.sort_by_key(|(_, work)| core::cmp::Reverse(*work));
    let names: Vec<&str> = names.iter().take(3).map(|(name, _)| *name).collect();
    doubts.add(
        false,
        format!(
            "others ({}) did half of what they did in {:.1} of {:.1} s, and the 99th percentile is of that time: {:.1} ms without a limit, and {:.1} without these; record again if they will not be there, or say --alone",
            names.join(", "),
            within as f64 / 1e9,
            company.length.0 as f64 / 1e9,
            with as f64 / 1e6,
            without as f64 / 1e6
        ),
    );
}

/// The limit was another one for a part of the time.
pub(super) fn about_changes(changes: &[NotedChange], doubts: &mut Doubts) {
    let Some(first) = changes.first() else {
        return;
    };
    let became = match &first.limit {
        None => "none".to_owned(),
        Some(limit) => format!(
            "{:.2} CPUs",
            limit.quota.0 as f64 / limit.period.0.max(1) as f64
        ),
    };
    doubts.add(
        true,
        format!(
            "the limit was changed while this was recorded ({}, first to {became}): what was wanted under one of them is not what was wanted under another; record again",
            if changes.len() == 1 { "once".to_owned() } else { format!("{} times", changes.len()) }
        ),
    );
}

/// Requests that others in the trace sent while a limit held their thread back left no wake-up of their own.
pub(super) fn about_woken(limit: &RecordedLimit, restored: &Restored, doubts: &mut Doubts) {
    if restored.whole_permille > 10 * RESTORED_MAX_PERCENT {
        doubts.add(
            true,
            format!(
                "a limit of {:.2} CPUs held back threads that others in the trace wake, and {:.0} % of the work is in bursts that hold several requests: when each of these was sent is not in the trace; record without a limit",
                limit.permille() as f64 / 1000.0,
                restored.whole_permille as f64 / 10.0
            ),
        );
    }
}

/// Who wakes whom makes too few requests to judge by.
pub(super) fn about_chains(requests: &Requests, doubts: &mut Doubts) {
    doubts.add(
        false,
        format!(
            "wake-ups chain {} bursts to {} requests, too few for a 99th percentile: judged by bursts; --request-from says where requests begin",
            requests.parts, requests.requests
        ),
    );
}

/// Nothing shows whether arrivals wait for answers.
pub(super) fn about_loop(doubts: &mut Doubts) {
    doubts.add(
        false,
        "the trace does not show whether new work waits for answers: played as an open loop, which is the worse case; with clients that wait, say --loop closed".into(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_not_there_for_half_of_the_time_is_no_ground_for_advice() {
        let line = |at: u64, what: &str| {
            let (seconds, rest) = (at / 1_000, at % 1_000);
            format!("x-1 [000] d..2. {seconds}.{rest:03}000: sched_switch: {what}\n")
        };
        let (comes, goes) = (
            "prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=svc next_pid=7 next_prio=120",
            "prev_comm=svc prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120",
        );
        let other = goes.replace("svc", "other").replace("=7", "=8");
        for (lives, expected) in [(95, None), (70, Some(false)), (30, Some(true))] {
            let mut text = String::new();
            for at in (0..lives).map(|at| 1_000 + at * 100) {
                text += &(line(at, comes) + &line(at + 5, goes));
            }
            text += &line(11_000, &other);
            let recording = Recording::read(&mut text.as_bytes()).expect("a trace");
            let selection = quotient_sim::replay::Selection {
                names: vec!["svc".into()],
                ..Default::default()
            };
            let mut doubts = Doubts::default();
            about_absence(&recording.split(&selection).0, &mut doubts);
            assert_eq!(doubts.0.first().map(|doubt| doubt.decisive), expected);
        }
    }

    #[test]
    fn arrivals_that_a_limit_held_back_are_no_ground_for_advice() {
        for (throttled_permille, decides) in [(250, false), (420, true)] {
            let limit = RecordedLimit {
                quota_ns: 35_000_000,
                period_ns: 100_000_000,
                burst_ns: 0,
                given: true,
                throttled_permille,
            };
            let mut doubts = Doubts::default();
            about_held_arrivals(&limit, &mut doubts);
            assert_eq!(doubts.is_decisive(), decides, "{throttled_permille}");
        }
    }

    #[test]
    fn one_doubt_can_decide() {
        let mut doubts = Doubts::default();
        about_loop(&mut doubts);
        assert!(!doubts.is_decisive());
        about_length(
            &Recording::default(),
            &[Nanos::from_millis(100)],
            &mut doubts,
        );
        assert!(doubts.is_decisive());
        assert_eq!(doubts.0.len(), 3);
    }
}
