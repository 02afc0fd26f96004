//! The clock by itself: a family of groups without run queues.

use super::*;
use crate::config::Config;
use crate::tree::GroupTree;
use crate::units::{CpuId, Nanos};
use proptest::prelude::*;
use std::sync::Arc;

const MILLI: u64 = 1_000_000;
const CREDIT: u64 = 5 * MILLI;

struct Family {
    parent: Arc<Group>,
    children: Vec<Arc<Group>>,
}

impl Family {
    /// Children of these shares, which run on one CPU each.
    fn new(shares: &[u32]) -> Family {
        let tree = GroupTree::new(Config::new(4));
        let children = (0..shares.len()).map(|n| tree.group(&format!("p/{n}")).unwrap());
        let family = Family {
            children: children.collect(),
            parent: tree.find("p").unwrap(),
        };
        for (child, &shares) in family.children.iter().zip(shares) {
            child.time.enter(&family.parent.time, shares, None, CREDIT);
        }
        family
    }

    fn serve(&self, child: usize, time: u64) {
        GroupTime::publish_now(&self.children[child], &self.parent.time, time, CREDIT);
    }

    fn leave(&self, child: usize) {
        self.children[child].time.leave(&self.parent.time);
    }

    fn enter(&self, child: usize, shares: u32) {
        self.children[child]
            .time
            .enter(&self.parent.time, shares, None, CREDIT);
    }

    fn lag(&self, child: usize) -> i64 {
        self.children[child].time.lag(&self.parent.time)
    }

    /// The definition of D.
    fn deficit(&self) -> i128 {
        let clock = self.parent.time.lock();
        let present = self.children.iter().filter(|child| child.time.cpus() > 0);
        present
            .map(|child| {
                let weight = child.time.weight.load(Relaxed);
                child.time.weighted_lag(&clock, weight)
            })
            .sum()
    }
}

#[test]
fn who_is_new_is_owed_nothing() {
    let family = Family::new(&[1024]);
    family.serve(0, 100 * MILLI);
    assert_eq!(family.lag(0), 0, "alone it owes nobody anything");
    let tree = GroupTree::new(Config::new(4));
    let new = tree.group("new").unwrap();
    new.time.enter(&family.parent.time, 512, None, CREDIT);
    assert_eq!(new.time.lag(&family.parent.time), 0);
    assert_eq!(family.lag(0), 0);
    // Neither has more than its part, from the first moment.
    family.serve(0, 20 * MILLI);
    let owed = new.time.lag(&family.parent.time);
    assert!((owed - 20 * MILLI.cast_signed() / 3).abs() <= 2, "{owed}");
}

/// A task beside a light group, each with a CPU for itself. While V's step gave back most of what was forgotten, the group owed as many times a
/// sleeper's credit as the task weighs more.
#[test]
fn what_tasks_cannot_use_is_forgotten_whatever_they_weigh() {
    const SHARES: u32 = 102_400;
    let family = Family::new(&[1024]);
    let parent = &family.parent.time;
    let mut v = parent.now();
    let mut tell = |own: u64, shares: i64| {
        v = v.plus(to_virtual(own, SHARES));
        let kept = to_virtual(CREDIT, SHARES).cast_signed();
        let lone = Lone {
            shares: SHARES,
            owed: parent.now().since(v),
            most: kept,
            least: kept,
            for_long: false,
        };
        let told = Told {
            own,
            shares,
            lone,
            ..Told::default()
        };
        let forgotten = parent.publish_tasks(&told);
        v = v.offset(forgotten.unwrap_or(0));
    };
    tell(0, i64::from(SHARES));
    for _ in 0..500 {
        family.serve(0, 4 * MILLI);
        tell(4 * MILLI, 0);
    }
    let lag = family.lag(0);
    assert!((lag + CREDIT.cast_signed()).abs() <= 1_000, "{lag}");
}

#[test]
fn debt_stays_over_sleep_and_decays_as_others_are_served() {
    let family = Family::new(&[1024, 1024]);
    family.serve(0, 100 * MILLI);
    assert_eq!(family.lag(0), -50 * MILLI.cast_signed());
    family.leave(0);
    family.enter(0, 1024);
    assert_eq!(
        family.lag(0),
        -50 * MILLI.cast_signed(),
        "nobody was served meanwhile"
    );
    family.leave(0);
    family.serve(1, 400 * MILLI);
    family.enter(0, 1024);
    let lag = family.lag(0);
    assert!((0..=CREDIT.cast_signed()).contains(&lag), "{lag}");
}

#[test]
fn service_in_progress_pays_debts_by_weight() {
    let family = Family::new(&[1024, 3072]);
    family.serve(0, 100 * MILLI);
    let [debtor, creditor] = &family.children[..] else {
        unreachable!("two were made")
    };
    assert!(creditor.is_level_after(Nanos::ZERO));
    // It owes 75 ms, and has a quarter of the weight.
    assert!(!debtor.is_level_after(Nanos(299 * MILLI)));
    assert!(debtor.is_level_after(Nanos(301 * MILLI)));
    family.leave(1);
    assert!(
        debtor.is_level_after(Nanos::ZERO),
        "nobody is left to owe to"
    );
}

#[test]
fn credit_is_bounded_however_long_the_sleep() {
    let family = Family::new(&[1024, 1024]);
    family.leave(0);
    family.serve(1, 1_000 * MILLI);
    family.enter(0, 1024);
    assert_eq!(family.lag(0), CREDIT.cast_signed());
}

/// V goes half round in 5 hours of 512 CPUs' service to a weight of 100, or of one CPU's to the least that an idle group may
/// have. Compared modulo that, a group that slept meanwhile would seem to owe days, and so would one that is new.
#[test]
fn who_comes_back_after_virtual_time_has_gone_half_round_owes_nothing() {
    let family = Family::new(&[2, 1024, 1024]);
    family.leave(1);
    family.serve(2, MILLI);
    family.leave(2);
    for _ in 0..5 {
        family.serve(0, 1 << 42);
    }
    for child in [1, 2] {
        family.enter(child, 1024);
        assert_eq!(family.lag(child), CREDIT.cast_signed(), "child {child}");
    }
}

#[test]
fn service_from_outside_while_a_group_is_away_is_owed() {
    let family = Family::new(&[1024, 1024]);
    family.leave(0);
    family.serve(0, 100 * MILLI);
    family.enter(0, 1024);
    // 100 ms ahead of its sibling, with V between them.
    assert_eq!(family.lag(0), -50 * MILLI.cast_signed());
}

/// Two CPUs, a weight of a hundred to one, one task each: the light one may run all the time and owes nothing for it.
#[test]
fn what_a_group_cannot_use_is_not_owed_to_it() {
    let family = Family::new(&[102_400, 1024]);
    for _ in 0..10_000 {
        family.serve(0, MILLI);
        family.serve(1, MILLI);
    }
    // What was served last is not cut yet.
    let bound = (CREDIT + MILLI).cast_signed();
    assert!(family.lag(0) <= bound, "{}", family.lag(0));
    assert!(family.lag(1) >= -bound, "{}", family.lag(1));
}

#[test]
fn who_waits_keeps_what_it_is_owed() {
    let family = Family::new(&[1024, 1024]);
    let cell = family.children[0].cells.of(CpuId(0), Default::default);
    cell.publish_waits(true);
    family.serve(1, 1_000 * MILLI);
    family.serve(0, MILLI);
    assert!(family.lag(0) > 490 * MILLI.cast_signed());
}

#[test]
fn a_note_names_who_waits_and_is_taken_once() {
    let time = GroupTime::default();
    assert!(!time.is_somebody_owed());
    time.note_owed(CpuId(3), 7, 2_000_000);
    time.note_owed(CpuId(2), 9, 2_100_000);
    let note = Note {
        cpu: CpuId(3),
        group: 7,
    };
    assert_eq!(time.take_owed(CpuId(0)), Some(note), "who came first stays");
    assert_eq!(time.take_owed(CpuId(0)), None);
    time.note_owed(CpuId(4095), u32::MAX, i64::MAX);
    assert_eq!(time.take_owed(CpuId(4095)), None, "it is here already");
    assert_eq!(
        time.noted_on(CpuId(4095)),
        Some(u32::MAX),
        "and left to others"
    );
    let note = Note {
        cpu: CpuId(4095),
        group: u32::MAX,
    };
    assert_eq!(time.take_owed(CpuId(4094)), Some(note));
    // One that is not true any more hides nobody for ever.
    time.note_owed(CpuId(1), 5, i64::MAX);
    for _ in 0..5 {
        assert_eq!(time.take_owed(CpuId(1)), None);
    }
    assert!(!time.is_somebody_owed());
}

proptest! {
    /// V never goes back nor falls behind the mean, and D is what its definition says.
    #[test]
    fn the_clock_is_monotone_and_its_deficit_exact(
        shares in prop::collection::vec(1..=102_400u32, 1..6),
        steps in prop::collection::vec((any::<usize>(), 0..5u8, 1..20_000_000u64), 1..200),
    ) {
        let family = Family::new(&shares);
        for (which, action, amount) in steps {
            let child = which % shares.len();
            let present = family.children[child].time.cpus() > 0;
            let before = family.parent.time.now();
            match action {
                0 if present => family.leave(child),
                0 => family.enter(child, shares[child]),
                1 => {
                    let shares = 1 + (amount % 102_400) as u32;
                    family.children[child].time.reweigh(&family.parent.time, shares);
                }
                _ if present => family.serve(child, amount),
                _ => {}
            }
            prop_assert!(!family.parent.time.now().is_before(before));
            let clock = *family.parent.time.lock();
            if clock.weight > 0 {
                prop_assert_eq!(clock.deficit, family.deficit());
                // A reweight rounds.
                prop_assert!(clock.deficit >= -i128::from(clock.weight));
            }
        }
    }
}

/// Hazard: V jumps to the mean of the others each time that a task which is owed something sleeps for a moment, and cannot go back when it
/// returns.
#[test]
fn who_sleeps_for_a_moment_does_not_move_the_clock() {
    let family = Family::new(&[1_024]);
    let owed = (to_virtual(4 * MILLI, 1_024) * 1_024).cast_signed();
    let tell = |shares: i64, deficit: i64, crowded: i32| {
        let told = Told {
            shares,
            deficit,
            crowded,
            ..Told::default()
        };
        family.parent.time.publish_tasks(&told);
    };
    tell(1_024, owed, 1);
    let before = family.parent.time.now();
    for _ in 0..1_000 {
        tell(-1_024, -owed, -1);
        tell(1_024, owed, 1);
    }
    assert_eq!(family.parent.time.now(), before);
    // It stays away: the other owes what it receives in its absence, but once it has received as much V is its own time.
    tell(-1_024, -owed, -1);
    family.serve(0, MILLI);
    assert!(family.lag(0) < 0, "{}", family.lag(0));
    family.serve(0, 7 * MILLI);
    assert!(family.lag(0).abs() < 10_000, "{}", family.lag(0));
}

/// Hazard: who may not run elsewhere is owed most for ever, and hides all others.
#[test]
fn who_was_pulled_for_in_vain_hides_nobody_for_a_while() {
    let family = Family::new(&[1_024]);
    let time = &family.parent.time;
    let (home, other) = (CpuId(0), CpuId(1));
    let noted = || time.take_owed(other).map(|note| note.group);
    let second = 100 * MILLI.cast_signed();
    time.note_owed(home, 7, second);
    time.note_owed(home, 8, 4 * MILLI.cast_signed());
    assert_eq!(noted(), Some(7));
    time.note_in_vain(home, 7);
    time.note_owed(home, 7, second);
    time.note_owed(home, 8, 4 * MILLI.cast_signed());
    assert_eq!(noted(), Some(8), "it was hidden");
    time.note_owed(home, 7, second);
    assert_eq!(noted(), Some(7), "nobody else is noted");
    // Not for ever: it may have been another's mistake.
    for _ in 0..256 {
        time.note_owed(home, 7, second);
    }
    noted();
    time.note_owed(home, 7, second);
    time.note_owed(home, 8, 4 * MILLI.cast_signed());
    assert_eq!(noted(), Some(7));
}

/// Hazard: while V stands back behind all who wait, nobody is owed anything, and nobody is ever pulled.
#[test]
fn who_waits_and_owes_least_is_noted_where_nobody_is_owed() {
    let time = GroupTime::default();
    let (here, there) = (CpuId(0), CpuId(1));
    time.note_least(here, 1, 1 << 40);
    time.note_least(here, 2, 1 << 41);
    let noted = |distance| time.take_least(there, distance).map(|note| note.group);
    assert_eq!(noted(1 << 40), None, "it owes as much");
    assert_eq!(time.take_least(here, 1 << 42), None, "it waits here");
    assert_eq!(noted(1 << 42), Some(1));
    assert_eq!(noted(1 << 42), None, "it was taken");
    time.note_least(here, 1, 1 << 40);
    time.note_least(here, 2, (1 << 40) - (1 << 28));
    time.forget_least(here, 1);
    assert_eq!(noted(1 << 42), Some(2), "the other one owed less");
    time.note_least(here, 2, 1 << 40);
    time.forget_least(here, 2);
    assert_eq!(noted(u64::MAX), None, "it was chosen");
    time.note_least(here, 2, 1 << 40);
    time.note_owed(here, 3, OWED_MIN + 1);
    assert_eq!(noted(u64::MAX), None, "who is owed something goes first");
}

proptest! {
    /// Who owes more is never taken for who owes less.
    #[test]
    fn sizes_of_debts_are_in_order(one: u64, other: u64) {
        let time = GroupTime::default();
        let (least, most) = (one.min(other), one.max(other));
        time.note_least(CpuId(0), 1, most);
        prop_assert_eq!(time.take_least(CpuId(1), least), None);
    }
}
