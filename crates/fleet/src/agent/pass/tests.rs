//! What a look finds and asks, on a store in memory.

use super::*;
use crate::holder::{Allowance, Holder};
use crate::limit::FleetLimit;
use crate::message::ProcessId;
use crate::rhythm::WOKEN_MIN;
use crate::store::MemoryStore;
use crate::units::MicroCpus;

/// A process of one CPU that looks after the groups below `tenants/`, of which there is none.
fn no_tenants() -> (Scheduler, State) {
    let scheduler = Scheduler::builder().vcpus(1).build().expect("a scheduler");
    let settings = Settings {
        process: ProcessId(1),
        capacity: MicroCpus::whole(1),
        floor: MicroCpus(10_000),
        strict: false,
    };
    let state = State::new(settings, "tenants/".to_owned(), scheduler.clone());
    (scheduler, state)
}

/// Asks all of it at once and takes in the answers; returns how many tenants it was.
fn exchange(state: &mut State, store: &MemoryStore, work: &Work) -> usize {
    let answers = work.questions.iter();
    let answers = answers.map(|(path, request)| Ok(store.ask(path, request)));
    let answers = answers.collect();
    state.take(&work.questions, answers);
    work.questions.len()
}

/// The group `tenants/one`, made anew.
fn tenant(scheduler: &Scheduler) -> quotient::Group {
    let group = scheduler.group("tenants/one").expect("a path");
    group.create().expect("a group")
}

/// What wants all that it can have.
fn hog(group: &quotient::Group) -> quotient::JoinHandle<()> {
    group.spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    })
}

/// Looks from `begun` on until all rest; returns when that was.
fn until_all_rest(state: &mut State, store: &MemoryStore, begun: Micros) -> Micros {
    let mut now = begun;
    while !state.busy.is_empty() {
        now += Micros::from_millis(50);
        assert!(now < begun + Micros::from_secs(10), "it does not rest");
        let questions = state.look(now, true);
        let memory = false;
        exchange(state, store, &Work { questions, memory });
    }
    now
}

async fn until_throttled(state: &State) {
    let told = state.throttled();
    let patience = std::time::Duration::from_secs(60);
    let told = tokio::time::timeout(patience, told.notified()).await;
    told.expect("a throttle asks for a tick");
}

/// Who rests costs next to nothing, at once and in the look at all of them once a minute; and who then needs more is not seen a quarter of a
/// second late.
#[tokio::test]
async fn ticks_are_long_while_all_rest_and_a_throttle_asks_for_one() {
    let (scheduler, mut state) = no_tenants();
    let store = MemoryStore::new();
    let limit = FleetLimit::new(MicroCpus::whole(1));
    store.set_limit("tenants/one", limit).expect("a limit");
    let group = tenant(&scheduler);
    let begun = clock::now();
    state.adopt(&group, begun);
    let rested = until_all_rest(&mut state, &store, begun);
    assert_eq!(state.pause(), Micros::from_millis(250));
    let now = rested + ROUND;
    state.look(now, true);
    assert_eq!(state.pulse(), Pulse::Idle, "a round");
    // It works, and uses up its floor of this second.
    let hog = hog(&group);
    until_throttled(&state).await;
    assert_eq!(state.look(now, true).len(), 1, "it needs a lease");
    hog.abort();
    scheduler.shutdown().await;
}

#[tokio::test]
async fn groups_that_rest_tell_a_store_that_forgot_their_limits() {
    let (scheduler, mut state) = no_tenants();
    let store = MemoryStore::new();
    store.set_time(Micros::from_secs(1_000));
    let limit = FleetLimit::new(MicroCpus::whole(1));
    for name in ["one", "two"] {
        let path = format!("tenants/{name}");
        store.set_limit(&path, limit).expect("a limit");
        let group = scheduler.group(&path).expect("a path");
        state.adopt(&group.create().expect("a group"), clock::now());
    }
    let first = state.tick(true);
    assert!(first.memory, "with the first questions");
    state.remember(Ok(1));
    assert_eq!(exchange(&mut state, &store, &first), 2);
    // A floor is reserved and nothing is wanted: they rest.
    let mut ticks = 0;
    while !state.busy.is_empty() {
        let work = state.tick(true);
        exchange(&mut state, &store, &work);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        ticks += 1;
        assert!(ticks < 10_000, "they do not rest");
    }
    state.remember(Ok(1));
    assert_eq!(state.tick(true).questions.len(), 0, "it is the same");
    store.restart(false);
    state.remember(Ok(2));
    let mut told = 0;
    while told < 2 {
        let work = state.tick(true);
        told += exchange(&mut state, &store, &work);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        ticks += 1;
        assert!(ticks < 10_000, "nobody tells");
    }
    for name in ["one", "two"] {
        let there = store.limit(&format!("tenants/{name}"));
        assert_eq!(there.and_then(|limit| limit.quota), limit.quota);
    }
    scheduler.shutdown().await;
}

/// What a fleet leaves on a group when it ends is nobody's local limit: the next one would be held to it whatever is granted.
#[tokio::test]
async fn the_floor_that_a_fleet_leaves_is_not_the_local_limit_of_the_next() {
    let (scheduler, mut first) = no_tenants();
    let store = MemoryStore::new();
    let make = |name: &str| {
        let path = format!("tenants/{name}");
        let limit = FleetLimit::new(MicroCpus::whole(1));
        store.set_limit(&path, limit).expect("a limit");
        scheduler.group(&path).expect("a path")
    };
    let free = make("free").create().expect("a group");
    let own = make("own").max("30ms/100ms").create().expect("a group");
    let written = make("written").create().expect("a group");
    let lifted = make("lifted").max("30ms/100ms").create().expect("one");
    let local = own.max();
    let all = [&free, &own, &written, &lifted];
    for group in all {
        first.adopt(group, clock::now());
    }
    let work = first.tick(true);
    assert_eq!(exchange(&mut first, &store, &work), 4);
    first.end();
    let floor = free.max().expect("a floor");
    assert!(all.iter().all(|group| group.max() == Some(floor)));
    // A user's hand meanwhile counts.
    written.set_max("20ms/100ms").expect("a limit");
    lifted.set_max("max").expect("no limit");
    let theirs = written.max();
    // Three fleets in a row, of which the second never hears from the store: nothing is lost on the way.
    for hears in [false, true] {
        let mut next = State::new(first.settings, "tenants/".to_owned(), scheduler.clone());
        for group in all {
            next.adopt(group, clock::now());
        }
        let work = next.tick(true);
        if hears {
            // Another store, which knows of no limit.
            assert_eq!(exchange(&mut next, &MemoryStore::new(), &work), 4);
            assert_eq!(free.max(), None, "the last fleet's floor");
            assert_eq!(own.max(), local);
            assert_eq!(written.max(), theirs);
            assert_eq!(lifted.max(), None);
        }
        next.end();
    }
    assert_eq!(
        own.max(),
        local,
        "who had no limit in the fleet has its own"
    );
    scheduler.shutdown().await;
}

/// All are looked at once a minute. Who was looked at just before that is not due then, and would count as one that needs more.
#[tokio::test]
async fn a_round_is_no_activity_of_those_who_rest() {
    let (scheduler, mut state) = no_tenants();
    let store = MemoryStore::new();
    let begun = clock::now();
    for name in ["one", "two"] {
        let path = format!("tenants/{name}");
        let limit = FleetLimit::new(MicroCpus::whole(1));
        store.set_limit(&path, limit).expect("a limit");
        let group = scheduler.group(&path).expect("a path");
        state.adopt(&group.create().expect("a group"), begun);
    }
    let look = |state: &mut State, after: Micros| {
        let questions = state.look(begun + after, true);
        let memory = false;
        exchange(state, &store, &Work { questions, memory })
    };
    let millis = Micros::from_millis;
    // Each asks once, and rests when it is looked at next.
    assert_eq!(look(&mut state, millis(25)), 2);
    look(&mut state, millis(100));
    for tick in 5..30 {
        look(&mut state, millis(25 * tick));
        assert_eq!(state.pulse(), Pulse::Idle, "tick {tick}");
    }
    let round = millis(25) + ROUND;
    state.stats(begun + Micros(round.0 - 10_000));
    look(&mut state, round);
    assert_eq!((state.busy.len(), state.pulse()), (0, Pulse::Idle));
    scheduler.shutdown().await;
}

/// A program that has made no group yet, or has none any more, is as idle as one whose groups rest.
#[tokio::test]
async fn without_groups_ticks_are_long() {
    let (scheduler, mut state) = no_tenants();
    state.look(clock::now(), true);
    assert_eq!(state.pause(), Micros::from_millis(250));
    scheduler.shutdown().await;
}

/// A throttle on a floor lasts up to a second and is counted when it ends. Until then who is throttled would seem to need nothing, rest, and ask
/// for no lease.
#[tokio::test]
async fn who_is_throttled_does_not_rest_however_long_that_lasts() {
    let (scheduler, mut state) = no_tenants();
    let store = MemoryStore::new();
    let limit = FleetLimit::new(MicroCpus::whole(1)).with_processes(100);
    store.set_limit("tenants/one", limit).expect("a limit");
    let group = tenant(&scheduler);
    let begun = clock::now();
    state.adopt(&group, begun);
    let mut now = until_all_rest(&mut state, &store, begun);
    let hog = hog(&group);
    until_throttled(&state).await;
    // Its time passes faster than the scheduler's: one throttle for all of it, while nobody answers.
    let mut asked = 0;
    for _ in 0..160 {
        now += Micros::from_millis(25);
        let questions = state.look(now, true);
        let wanted = questions.iter().all(|(_, request)| request.demand.0 > 0);
        assert!(wanted, "{questions:?}");
        asked += questions.len();
        let silent = || Err(StoreError::Unreachable("nobody".to_owned()));
        let answers = questions.iter().map(|_| silent()).collect();
        state.take(&questions, answers);
        assert_eq!(state.busy.len(), 1, "it rests, {asked} requests later");
    }
    assert!(asked > 1, "{asked}");
    hog.abort();
    scheduler.shutdown().await;
}

/// To the store a group and the one that is made under its path are one.
#[tokio::test]
async fn a_group_that_is_made_again_goes_on_with_what_the_first_used_and_asked() {
    let (scheduler, mut state) = no_tenants();
    let store = MemoryStore::new();
    let limit = FleetLimit::new(MicroCpus::whole(1)).with_processes(1);
    store.set_limit("tenants/one", limit).expect("a limit");
    let mut told = Vec::new();
    for _ in 0..3 {
        let group = tenant(&scheduler);
        assert!(state.adopt(&group, clock::now()));
        let hog = hog(&group);
        let before = told.len();
        let mut ticks = 0;
        while told.len() < before + 3 {
            let work = state.tick(true);
            told.extend(work.questions.iter().map(|(_, request)| *request));
            exchange(&mut state, &store, &work);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            ticks += 1;
            assert!(ticks < 10_000, "it does not ask");
        }
        hog.abort();
        let _ = hog.await;
        group.remove(quotient::Leftover::Refuse).expect("removed");
    }
    let pairs = || told.iter().zip(&told[1..]);
    assert!(pairs().all(|(one, next)| one.sequence < next.sequence));
    assert!(pairs().all(|(one, next)| one.used <= next.used), "{told:?}");
    let last = tenant(&scheduler);
    assert!(state.adopt(&last, clock::now()));
    let figures = state.stats(clock::now())[0].figures;
    assert_eq!((figures.late, figures.asked), (0, told.len() as u64));
    scheduler.shutdown().await;
}

/// Groups that live shorter than a round trip: what each asks is answered to nobody, or to the next.
#[tokio::test]
async fn an_answer_that_comes_between_two_groups_of_a_path_is_the_second_ones_lease() {
    let (scheduler, mut state) = no_tenants();
    let store = MemoryStore::new();
    let limit = FleetLimit::new(MicroCpus::whole(1)).with_processes(1);
    store.set_limit("tenants/one", limit).expect("a limit");
    for comes_between in [false, true] {
        let mut under_way = Work::default();
        let mut lives = 0;
        loop {
            store.set_time(clock::now());
            let group = tenant(&scheduler);
            state.adopt(&group, clock::now());
            if !comes_between {
                exchange(&mut state, &store, &std::mem::take(&mut under_way));
            }
            let figures = state.find("tenants/one").expect("adopted").holder.figures();
            let hog = hog(&group);
            tokio::time::sleep(std::time::Duration::from_millis(15)).await;
            if under_way.is_empty() {
                under_way = state.tick(true);
            }
            hog.abort();
            let _ = hog.await;
            group.remove(quotient::Leftover::Refuse).expect("removed");
            state.tick(false);
            assert!(state.find("tenants/one").is_none(), "it is gone");
            if comes_between {
                exchange(&mut state, &store, &std::mem::take(&mut under_way));
            }
            // The first answer tells the limit, what comes after it is a lease.
            if figures.granted >= 2 {
                assert_eq!(figures.late, 0);
                break;
            }
            lives += 1;
            assert!(lives < 500, "no lease: {figures:?}");
        }
        state.past = Past::default();
    }
    scheduler.shutdown().await;
}

/// What is not kept of a group that was removed is no reason either for what comes after it to be stale.
#[test]
fn who_begins_later_asks_with_higher_numbers() {
    let settings = Settings {
        process: ProcessId(1),
        capacity: MicroCpus::whole(1),
        floor: MicroCpus(10_000),
        strict: false,
    };
    let mut now = Micros::from_secs(100);
    let begin = |now| Holder::new(settings, now, Micros::ZERO, Micros::ZERO);
    let mut first = begin(now);
    let mut last = 0;
    for _ in 0..1_000 {
        now += WOKEN_MIN;
        last = first.request(now).sequence;
        first.failed(now);
    }
    assert!(begin(now).request(now).sequence > last);
}

/// Each group begins with a whole period of its local limit, and on a floor that is a second.
#[test]
fn who_is_made_again_has_what_is_left_of_the_floor_and_not_a_second_of_it() {
    let settings = Settings {
        process: ProcessId(1),
        capacity: MicroCpus::whole(1),
        floor: MicroCpus(100_000),
        strict: false,
    };
    let mut now = Micros::from_secs(100);
    let (none, life) = (Micros::ZERO, Micros::from_millis(20));
    let mut holder = Holder::new(settings, now, none, none);
    let mut used = none;
    for _ in 0..200 {
        let Allowance::Floor(floor) = holder.allowance(now) else {
            panic!("it is on its floor");
        };
        // All at once.
        let all = floor.over(Micros::SECOND).min(life);
        used += all;
        now += life;
        holder.observe(now, all, none);
        holder = holder.resume(now, none, none);
    }
    // Four seconds and what was saved up.
    let most = settings.floor.over(Micros::from_secs(5));
    assert!(used <= most && used.0 > most.0 / 2, "{used} of {most}");
    assert_eq!(holder.figures().overrun, none);
    holder.observe(now + Micros::SECOND, none, none);
    let later = holder.allowance(now + Micros::SECOND);
    assert_eq!(later, Allowance::Floor(settings.floor));
}
