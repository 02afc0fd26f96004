//! One look at the groups: who is new, who wants what, what is to be asked, and what came of it.
//!
//! # Who is looked at
//! *Busy* groups have demand, a lease, or a question open: each when it is due ([`Tenant::is_due`]). The others *rest*, on their floors:
//!
//! - who needs more is throttled, and that is told ([`quotient::ThrottleWatch`]): looked at at once, whoever else rests;
//! - for what no throttle tells (half of a floor is worth asking; time spent outside of polls; tenants without a limit) their clocks are
//!   read, of [`RESTING_PER_TICK`] in a tick, and of none while the clock of the group above all of them stands still. So a thousand
//!   groups without work cost one read;
//! - every [`ROUND`] all are looked at, for what has no event: floors that end after an hour, limits that users wrote.
//!
//! A busy group that keeps within its lease is *calm*: its next throttle is told, too, so it is looked at less often, and who wants little only
//! when it is to ask.
//!
//! # Whether the store is still the same
//! [`Store::memory`](crate::Store::memory) is asked with the first round trip and every [`MEMORY_LOOK`] as long as a limit is known. When it is
//! another one all tenants whose limit is known are asked for, those that rest, too: each request tells the limit. A newcomer believes "no limit" only
//! of a store that has remembered for [`MEMORY_SETTLES`](crate::MEMORY_SETTLES), three times as long.

mod resting;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use quotient::{Group, Scheduler, ThrottleWatch};
use tokio::sync::Notify;

use super::batch::Batch;
use super::claim::Claim;
use super::faults::Faults;
use super::past::Past;
use super::tenant::Tenant;
use super::{FleetFigures, TenantStats};
use crate::clock;
use crate::holder::{Holder, Settings};
use crate::message::{Reply, Request};
use crate::rhythm::Pulse;
use crate::store::StoreError;
use crate::units::Micros;

use self::resting::ROUND;

/// How often the store's memory is looked at.
///
/// Unit: microseconds. Default: 10 s: of 10,000 processes that is 1,000 small calls a second.
const MEMORY_LOOK: Micros = Micros::from_secs(10);

/// And after it could not be, or while leases are still to be told: one second.
const MEMORY_LOOK_AGAIN: Micros = Micros::SECOND;

/// Who would ask within this part of a lease goes along with who must ask now.
const ALONG_PARTS: u64 = 12;

#[derive(Debug)]
pub(super) struct State {
    settings: Settings,
    prefix: String,
    scheduler: Scheduler,
    busy: BTreeMap<Arc<str>, Tenant>,
    resting: BTreeMap<Arc<str>, Tenant>,
    /// What those had that were removed.
    past: Past,
    /// Of the list of groups that was last looked through.
    groups_version: Option<u64>,
    /// The group above all of ours.
    parent: Option<Group>,
    /// Its clock when the resting ones were last looked at.
    above: Option<Duration>,
    /// How many of the resting ones are still to be looked through since it moved, and after which.
    unseen: usize,
    cursor: Option<Arc<str>>,
    /// When all are looked at again; zero before the first look.
    round_at: Micros,
    /// Who was throttled, by the numbers that tenants got; and whether tenants without a limit rest, since the last round.
    watch: Arc<ThrottleWatch>,
    numbers: HashMap<u64, Arc<str>>,
    last_number: u64,
    free_rest: bool,
    /// Whether somebody is to ask, and could not; and what those who do not rest need. As of the last look.
    asks_late: bool,
    needs: Needs,
    /// The store's memory when it was last looked at, and when it is to be again.
    memory: Option<u64>,
    memory_at: Micros,
    /// Whether it was said that tenants without a limit wait, and that the answers about some tenant cannot be read.
    said_unsure: bool,
    said_unreadable: bool,
    batch: Batch,
    adopted: Arc<Notify>,
    /// Notified when somebody was throttled who is watched.
    throttled: Arc<Notify>,
    /// The prefix is this fleet's; until it has ended, after which nothing is written any more.
    claim: Option<Claim>,
    ended: bool,
    pub(super) figures: FleetFigures,
}

/// How soon those who do not rest are to be looked at.
#[derive(Debug)]
struct Needs {
    /// Whether somebody is not calm, and whether somebody holds much.
    hungry: bool,
    holds_much: bool,
    /// When the first is due.
    look_at: Micros,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs {
            hungry: false,
            holds_much: false,
            look_at: Micros(u64::MAX),
        }
    }
}

impl Needs {
    fn add(&mut self, tenant: &Tenant) {
        self.hungry |= !tenant.is_calm();
        self.holds_much |= !tenant.wants_little();
        self.look_at = self.look_at.min(tenant.look_at());
    }
}

pub(super) type Question = (Arc<str>, Request);

/// What is to be asked in one go.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) questions: Vec<Question>,
    /// Whether the store is still the same.
    pub(super) memory: bool,
}

impl Work {
    pub(super) fn is_empty(&self) -> bool {
        self.questions.is_empty() && !self.memory
    }
}

impl State {
    pub(super) fn new(settings: Settings, prefix: String, scheduler: Scheduler) -> State {
        let throttled = Arc::new(Notify::new());
        let told = throttled.clone();
        State {
            settings,
            prefix,
            scheduler,
            busy: BTreeMap::new(),
            resting: BTreeMap::new(),
            past: Past::default(),
            groups_version: None,
            parent: None,
            above: None,
            unseen: 0,
            cursor: None,
            round_at: Micros::ZERO,
            watch: Arc::new(ThrottleWatch::with_alarm(move || told.notify_one())),
            numbers: HashMap::new(),
            last_number: 0,
            free_rest: false,
            asks_late: false,
            needs: Needs::default(),
            memory: None,
            memory_at: Micros::ZERO,
            said_unsure: false,
            said_unreadable: false,
            batch: Batch::default(),
            adopted: Arc::default(),
            throttled,
            claim: None,
            ended: false,
            figures: FleetFigures::default(),
        }
    }

    /// The prefix is held until the fleet ends.
    pub(super) fn with_claim(mut self, claim: Claim) -> State {
        self.claim = Some(claim);
        self
    }

    fn is_ours(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.prefix.as_str());
        rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
    }

    /// Notified when a group was taken in beside the ticks.
    pub(super) fn adopted(&self) -> Arc<Notify> {
        self.adopted.clone()
    }

    /// Notified when somebody who is watched was throttled.
    pub(super) fn throttled(&self) -> Arc<Notify> {
        self.throttled.clone()
    }

    fn find(&self, path: &str) -> Option<&Tenant> {
        self.busy.get(path).or_else(|| self.resting.get(path))
    }

    /// Takes a group in; returns whether it has a budget in the fleet now.
    pub(super) fn adopt(&mut self, group: &Group, now: Micros) -> bool {
        if self.ended || !self.is_ours(group.path()) {
            return false;
        }
        if let Some(known) = self.find(group.path()) {
            if known.group == *group {
                return true;
            }
            // One of the same name was removed, and this one made.
            self.forget(group.path(), now);
        }
        self.last_number += 1;
        let past = self.past.take(group.path());
        let is_new = past.is_none();
        let mut tenant = Tenant::new(group, self.last_number, self.settings, past, now);
        if is_new {
            tenant.holder.wait_until(self.past.lost_until());
        }
        let lives = tenant.apply(now);
        let path: Arc<str> = group.path().into();
        if lives {
            self.numbers.insert(tenant.number, path.clone());
            self.busy.insert(path, tenant);
            self.adopted.notify_one();
        } else {
            self.past.keep(path, tenant.retire(now), now);
        }
        lives
    }

    fn forget(&mut self, path: &str, now: Micros) {
        let found = self.busy.remove_entry(path);
        if let Some((path, tenant)) = found.or_else(|| self.resting.remove_entry(path)) {
            self.numbers.remove(&tenant.number);
            self.past.keep(path, tenant.retire(now), now);
        }
    }

    /// Finds new groups, and forgets those that were removed.
    fn scan(&mut self, now: Micros) {
        let version = self.scheduler.groups_version();
        if self.groups_version == Some(version) {
            return;
        }
        self.groups_version = Some(version);
        let parent = self.prefix.rsplit_once('/').map_or("", |(path, _)| path);
        self.parent = match parent {
            "" => Some(self.scheduler.root()),
            path => self.scheduler.find(path).ok(),
        };
        let groups = self.scheduler.groups();
        let ours: Vec<&Group> = groups
            .iter()
            .filter(|group| self.is_ours(group.path()))
            .collect();
        if ours.len() != self.busy.len() + self.resting.len() {
            let paths: std::collections::HashSet<&str> =
                ours.iter().map(|group| group.path()).collect();
            let all = self.numbers.values();
            let gone: Vec<Arc<str>> = all
                .filter(|path| !paths.contains(&***path))
                .cloned()
                .collect();
            gone.iter().for_each(|path| self.forget(path, now));
        }
        for group in ours {
            self.adopt(group, now);
        }
    }

    fn pulse(&self) -> Pulse {
        if self.asks_late || self.batch.has_left_over() || self.needs.hungry {
            Pulse::Quick
        } else if self.needs.holds_much {
            Pulse::Calm
        } else {
            Pulse::Idle
        }
    }

    /// How long until the next tick.
    pub(super) fn pause(&self) -> Micros {
        self.pulse().pause(clock::now(), self.needs.look_at)
    }

    /// Looks at the groups; returns what is to be asked, if nothing is under way.
    pub(super) fn tick(&mut self, may_ask: bool) -> Work {
        if self.ended {
            return Work::default();
        }
        let now = clock::now();
        let questions = self.look(now, may_ask);
        let known = self.memory.is_some() || !questions.is_empty();
        let memory = may_ask && known && now >= self.memory_at;
        if memory {
            self.memory_at = now + MEMORY_LOOK;
        }
        Work { questions, memory }
    }

    /// Takes in what the store's memory is; if it is another one, everything that is known is to be told.
    pub(super) fn remember(&mut self, memory: Result<u64, StoreError>) {
        match memory {
            Ok(memory) if self.memory == Some(memory) => {}
            Ok(memory) => {
                self.memory = Some(memory);
                self.busy.append(&mut self.resting);
                for tenant in self.busy.values_mut() {
                    tenant.remind();
                }
            }
            // Requests that fail with it are counted and said.
            Err(_) => self.memory_at = clock::now() + MEMORY_LOOK_AGAIN,
        }
    }

    fn look(&mut self, now: Micros, may_ask: bool) -> Vec<Question> {
        if self.round_at == Micros::ZERO {
            self.round_at = now + ROUND;
        }
        self.scan(now);
        self.wake(now);
        let mut somebody_asks = self.batch.has_left_over() || self.asks_late;
        let mut leave = Vec::new();
        self.needs = Needs::default();
        for (path, tenant) in &mut self.busy {
            if !tenant.is_due(now) {
                self.needs.add(tenant);
                continue;
            }
            tenant.look(now);
            somebody_asks |= tenant.asks_by(now, Micros::ZERO);
            let lives = tenant.apply(now);
            let rests = tenant.rests(now);
            tenant.watch(&self.watch);
            if !lives || rests {
                leave.push((path.clone(), lives));
                continue;
            }
            self.needs.add(tenant);
        }
        for (path, lives) in leave {
            if !lives {
                self.forget(&path, now);
            } else if let Some(tenant) = self.busy.remove(&path) {
                self.free_rest |= tenant.is_free(now);
                self.resting.insert(path, tenant);
            }
        }
        self.asks_late = somebody_asks && !may_ask;
        if may_ask && somebody_asks {
            self.ask(now)
        } else {
            Vec::new()
        }
    }

    /// The next round trip. Who is soon to ask goes along: a round trip costs as much as twenty requests.
    fn ask(&mut self, now: Micros) -> Vec<Question> {
        let (mut must, mut along) = (Vec::new(), Vec::new());
        for (path, tenant) in &self.busy {
            if tenant.asks_by(now, Micros::ZERO) {
                must.push(path.clone());
            } else if tenant.asks_by(now, tenant.lease_part(ALONG_PARTS)) {
                along.push(path.clone());
            }
        }
        let mut questions = Vec::new();
        for path in self.batch.choose(must, along) {
            let Some(tenant) = self.busy.get_mut(&path) else {
                continue;
            };
            tenant.look_once(now);
            questions.push((path, tenant.holder.request(now)));
            // What is given up with the request is given up before it is sent. Whether the group still exists, the next look finds out.
            tenant.apply(now);
        }
        questions
    }

    /// A round trip of so many requests was given up: the next one is shorter.
    pub(super) fn late(&mut self, asked: usize) {
        self.figures.late += 1;
        self.batch.late(asked);
    }

    /// A round trip of so many requests was answered: the next one may be longer.
    pub(super) fn in_time(&mut self, asked: usize, took: Duration, patience: Duration) {
        self.batch.answered(asked, took, patience);
    }

    /// Takes in the answers to one round trip.
    pub(super) fn take(&mut self, questions: &[Question], answers: Vec<Result<Reply, StoreError>>) {
        if self.ended {
            return;
        }
        let now = clock::now();
        self.figures.exchanges += 1;
        self.figures.requests += questions.len() as u64;
        let faults = Faults::of(&answers);
        for ((path, request), answer) in questions.iter().zip(answers) {
            self.figures.errors += u64::from(answer.is_err());
            if let Ok(Reply::Unknown { wait }) = &answer
                && !std::mem::replace(&mut self.said_unsure, true)
            {
                tracing::warn!(
                    target: "quotient",
                    wait_s = wait.0 as f64 / 1e6,
                    "the fleet's store is new, or forgot limits: tenants whose limit nobody tells stay on their floors for so long"
                );
            }
            // Who waits for an answer does not rest.
            if let Some(tenant) = self.busy.get_mut(path) {
                tenant.look(now);
                take_in(&mut tenant.holder, now, request.sequence, answer);
                tenant.apply(now);
                self.needs.add(tenant);
            } else if let Some(holder) = self.past.get_mut(path) {
                holder.pass(now);
                take_in(holder, now, request.sequence, answer);
            }
        }
        faults.say(&mut self.figures, &mut self.said_unreadable);
    }

    /// Nobody sees to leases any more: floors from now on, and nothing is written after them. Then the prefix is free for another fleet, which so
    /// never meets a write of this one. Once.
    /// Ends, and gives all back: no group has more than the least that a local limit can say, and what is returned tells the store.
    pub(super) fn leave(&mut self) -> Vec<Question> {
        if self.ended {
            return Vec::new();
        }
        let now = clock::now();
        let mut questions = Vec::new();
        for (path, tenant) in self.busy.iter_mut().chain(&mut self.resting) {
            tenant.look_once(now);
            let request = tenant.holder.leave(now);
            questions.extend(request.map(|request| (path.clone(), request)));
        }
        for (path, mut holder) in self.past.drain() {
            let request = holder.leave(now);
            questions.extend(request.map(|request| (path, request)));
        }
        // Before anybody is told.
        self.end();
        questions
    }

    pub(super) fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let now = clock::now();
        for tenant in self.busy.values_mut().chain(self.resting.values_mut()) {
            tenant.end(now);
        }
        self.claim = None;
    }

    /// Every tenant, by path.
    pub(super) fn stats(&mut self, now: Micros) -> Vec<TenantStats> {
        let mut stirring = Vec::new();
        for (path, tenant) in &mut self.resting {
            tenant.look(now);
            if !tenant.rests(now) {
                stirring.push(path.clone());
            }
        }
        self.wake_these(stirring);
        let all = self.busy.iter().chain(&self.resting);
        let mut stats: Vec<TenantStats> =
            all.map(|(path, tenant)| tenant.stats(path, now)).collect();
        stats.sort_by(|one, other| one.path.cmp(&other.path));
        stats
    }
}

fn take_in(holder: &mut Holder, now: Micros, sequence: u64, answer: Result<Reply, StoreError>) {
    match answer {
        Ok(reply) => {
            holder.answer(now, sequence, &reply);
        }
        Err(_) => holder.failed(now),
    }
}

#[cfg(test)]
mod tests;
