//! One look at the groups: who is new, who wants what, what is to be asked, and what came of it.
//!
//! # Who is looked at
//! *Busy* groups have demand, a lease, or a question open: each when it is due ([`Tenant::is_due`]). The others *rest*: they are looked at when
//! their clock has moved, which is read of [`RESTING_PER_TICK`] in a tick, and of none while the clock of the group above all of them
//! stands still. So a thousand groups that rest cost one read. Every [`ROUND_TICKS`] ticks all are looked at, for what has no event: floors
//! that end after an hour, limits that users wrote.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use quotient::{Group, Scheduler};

use super::tenant::Tenant;
use super::{FleetFigures, TenantStats};
use crate::clock;
use crate::holder::Settings;
use crate::message::{Reply, Request};
use crate::store::StoreError;
use crate::units::Micros;

/// Of how many groups that rest the clocks are read in one tick: 128 are all seen within 25 ms, 1,000 within a fifth of a second, and the cost
/// does not grow with their number.
const RESTING_PER_TICK: usize = 128;

/// All groups are looked at every so many ticks, ten seconds.
const ROUND_TICKS: u64 = 400;

/// Most of the requests in one round trip; who comes after them is asked for with the next. Default 512: some milliseconds of a server.
const ASKED_MAX: usize = 512;

/// Who would ask within this part of a lease goes along with who must ask now.
const ALONG_PARTS: u64 = 12;

#[derive(Debug)]
pub(super) struct State {
    settings: Settings,
    prefix: String,
    scheduler: Scheduler,
    busy: BTreeMap<Arc<str>, Tenant>,
    resting: BTreeMap<Arc<str>, Tenant>,
    /// Of the list of groups that was last looked through.
    groups_version: Option<u64>,
    /// The group above all of ours.
    parent: Option<Group>,
    /// Its clock when the resting ones were last looked at.
    above: Option<std::time::Duration>,
    /// How many of the resting ones are still to be looked through since it moved, and after which.
    unseen: usize,
    cursor: Option<Arc<str>>,
    ticks: u64,
    pub(super) figures: FleetFigures,
}

pub(super) type Question = (Arc<str>, Request);

impl State {
    pub(super) fn new(settings: Settings, prefix: String, scheduler: Scheduler) -> State {
        State {
            settings,
            prefix,
            scheduler,
            busy: BTreeMap::new(),
            resting: BTreeMap::new(),
            groups_version: None,
            parent: None,
            above: None,
            unseen: 0,
            cursor: None,
            ticks: 0,
            figures: FleetFigures::default(),
        }
    }

    fn is_ours(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.prefix.as_str());
        rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
    }

    fn find(&self, path: &str) -> Option<&Tenant> {
        self.busy.get(path).or_else(|| self.resting.get(path))
    }

    /// Takes a group in; returns whether it has a budget in the fleet now.
    pub(super) fn adopt(&mut self, group: &Group, now: Micros) -> bool {
        if !self.is_ours(group.path()) {
            return false;
        }
        if let Some(known) = self.find(group.path()) {
            if known.group == *group {
                return true;
            }
            // One of the same name was removed, and this one made.
            self.busy.remove(group.path());
            self.resting.remove(group.path());
        }
        let mut tenant = Tenant::new(group, self.settings, now);
        let lives = tenant.apply(now);
        if lives {
            self.busy.insert(group.path().into(), tenant);
        }
        lives
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
            self.busy.retain(|path, _| paths.contains(&**path));
            self.resting.retain(|path, _| paths.contains(&**path));
        }
        for group in ours {
            self.adopt(group, now);
        }
    }

    /// Wakes those whose clock moved, of the next [`RESTING_PER_TICK`]; all of them now and then.
    fn wake(&mut self) {
        let round = self.ticks.is_multiple_of(ROUND_TICKS);
        if self.resting.is_empty() {
            return;
        }
        if round {
            self.busy.append(&mut self.resting);
            return;
        }
        let above = self.parent.as_ref().map(Group::cpu_time);
        // Once the clock has moved, all of them are looked through before it counts as seen.
        if above.is_none() || above != self.above {
            self.above = above;
            self.unseen = self.resting.len();
        }
        if self.unseen == 0 {
            return;
        }
        let some = self.unseen.min(RESTING_PER_TICK);
        self.unseen -= some;
        let from = match self.cursor.take() {
            Some(last) => Bound::Excluded(last),
            None => Bound::Unbounded,
        };
        let rest = self.resting.range::<Arc<str>, _>((from, Bound::Unbounded));
        let some: Vec<(Arc<str>, bool)> = rest
            .chain(self.resting.iter())
            .take(some)
            .map(|(path, tenant)| (path.clone(), tenant.stirs()))
            .collect();
        self.cursor = some.last().map(|(path, _)| path.clone());
        for (path, _) in some.into_iter().filter(|(_, stirs)| *stirs) {
            if let Some(tenant) = self.resting.remove(&path) {
                self.busy.insert(path, tenant);
            }
        }
    }

    /// Looks at the groups; returns what is to be asked, if nothing is under way.
    pub(super) fn tick(&mut self, may_ask: bool) -> Vec<Question> {
        let now = clock::now();
        self.scan(now);
        self.wake();
        self.ticks += 1;
        let mut questions = Vec::new();
        let mut leave = Vec::new();
        for (path, tenant) in &mut self.busy {
            if !tenant.is_due(now) {
                continue;
            }
            tenant.look(now);
            if may_ask && tenant.asks_by(now, Micros::ZERO) && questions.len() < ASKED_MAX {
                questions.push((path.clone(), tenant.holder.request(now)));
            }
            let lives = tenant.apply(now);
            if !lives || tenant.rests(now) {
                leave.push((path.clone(), lives));
            }
        }
        if !questions.is_empty() {
            self.take_along(now, &mut questions);
        }
        for (path, lives) in leave {
            let tenant = self.busy.remove(&path);
            if let Some(tenant) = tenant.filter(|_| lives) {
                self.resting.insert(path, tenant);
            }
        }
        questions
    }

    /// Who is soon to ask goes along: a round trip costs as much as twenty requests.
    fn take_along(&mut self, now: Micros, questions: &mut Vec<Question>) {
        for (path, tenant) in &mut self.busy {
            if questions.len() >= ASKED_MAX {
                return;
            }
            if tenant.asks_by(now, tenant.lease_part(ALONG_PARTS)) {
                tenant.look(now);
                questions.push((path.clone(), tenant.holder.request(now)));
            }
        }
    }

    /// Takes in the answers to one round trip.
    pub(super) fn take(&mut self, questions: &[Question], answers: Vec<Result<Reply, StoreError>>) {
        let now = clock::now();
        self.figures.exchanges += 1;
        self.figures.requests += questions.len() as u64;
        let mut failure = None;
        for ((path, request), answer) in questions.iter().zip(answers) {
            // Who waits for an answer does not rest.
            let Some(tenant) = self.busy.get_mut(path) else {
                continue;
            };
            tenant.look(now);
            match answer {
                Ok(reply) => {
                    tenant.holder.answer(now, request.sequence, &reply);
                }
                Err(error) => {
                    tenant.holder.failed(now);
                    self.figures.errors += 1;
                    failure = Some(error);
                }
            }
            tenant.apply(now);
        }
        self.say(failure);
    }

    /// Says once that the store is away, and once that it is back.
    fn say(&mut self, failure: Option<StoreError>) {
        match failure {
            Some(error) => {
                if !self.figures.away {
                    tracing::warn!(
                        target: "quotient",
                        %error,
                        "no lease from the fleet's store: groups go on with what they hold, then on their floors"
                    );
                }
                self.figures.away = true;
                self.figures.last_error = Some(error);
            }
            None => {
                if self.figures.away {
                    tracing::info!(target: "quotient", "the fleet's store answers again");
                }
                self.figures.away = false;
            }
        }
    }

    /// Nobody sees to leases any more: floors from now on.
    pub(super) fn end(&mut self) {
        let now = clock::now();
        for tenant in self.busy.values_mut().chain(self.resting.values_mut()) {
            tenant.end(now);
        }
    }

    /// Every tenant, by path.
    pub(super) fn stats(&self, now: Micros) -> Vec<TenantStats> {
        let all = self.busy.iter().chain(&self.resting);
        let mut stats: Vec<TenantStats> =
            all.map(|(path, tenant)| tenant.stats(path, now)).collect();
        stats.sort_by(|one, other| one.path.cmp(&other.path));
        stats
    }
}
