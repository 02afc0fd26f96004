//! What a log of Quotient's own says beside who ran: how many virtual CPUs there were, and the limits of groups, what became of them and how often they were
//! reached. A kernel's trace says these in notes, if at all.

use super::Recording;
use quotient_core::{Limit, Nanos};
use quotient_trace::{
    Amount, Definition, Event, GroupId, Kind, NameId, NotedChange, NotedLimit, NotedThrottles,
    VCPUS_REMARK,
};
use std::collections::BTreeMap;

/// Changes of one group's limit that are kept. Default 4,096, as of a note.
const CHANGES_MAX: usize = 4_096;

/// What was written of one group's limit, and how often it was reached.
#[derive(Debug, Default)]
struct Story {
    written: Vec<(u64, Option<Limit>)>,
    /// CPUs on which it is throttled now.
    throttled_on: u64,
    /// Whether it was throttled since its last refill.
    was_throttled: bool,
    counted: (u64, u64),
}

/// What is heard while the log is read.
#[derive(Debug, Default)]
pub(super) struct Heard {
    groups: BTreeMap<GroupId, Story>,
    remark: Option<NameId>,
    vcpus: Option<u32>,
    /// Whether anything was not billed to who ran: of a machine that really is.
    has_host: bool,
}

/// A limit of one group that the log says, with all that became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnLimit {
    /// A path without slashes around it.
    group: String,
    /// The one that stood for most of the time.
    limit: Option<Limit>,
    changes: Vec<(u64, Option<Limit>)>,
    throttles: NotedThrottles,
}

impl Heard {
    pub(super) fn define(&mut self, definition: &Definition) {
        if let Definition::Name { id, text } = definition
            && text == VCPUS_REMARK
        {
            self.remark = Some(*id);
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        let at = event.time.0;
        match event.kind {
            Kind::SetLimit {
                group,
                quota,
                period_us,
            } => {
                let period = Nanos::from_micros(u64::from(period_us));
                let limit = Limit::new(quota.as_nanos(), period);
                let limit = (quota != Amount::UNLIMITED).then_some(limit);
                let story = self.groups.entry(group).or_default();
                let burst = story.last().map_or(Nanos::ZERO, |last| last.burst);
                story.write(at, limit.map(|limit| limit.with_burst(burst)));
            }
            Kind::SetBurst { group, burst } => {
                let story = self.groups.entry(group).or_default();
                let limit = story.last().map(|last| last.with_burst(burst.as_nanos()));
                story.write(at, limit);
            }
            Kind::Throttle { group } => {
                let story = self.groups.entry(group).or_default();
                story.throttled_on += 1;
                story.was_throttled = true;
            }
            Kind::Unthrottle { group } => {
                let story = self.groups.entry(group).or_default();
                story.throttled_on = story.throttled_on.saturating_sub(1);
            }
            Kind::Refill { group, periods, .. } => {
                let story = self.groups.entry(group).or_default();
                let is_throttled =
                    core::mem::take(&mut story.was_throttled) || story.throttled_on > 0;
                story.counted.0 += u64::from(is_throttled && periods > 0);
                story.counted.1 += u64::from(periods);
            }
            Kind::Mark { name, value } if Some(name) == self.remark => {
                self.vcpus = u32::try_from(value.get()).ok().filter(|vcpus| *vcpus > 0);
            }
            Kind::Uncharged { .. } => self.has_host = true,
            _ => {}
        }
    }

    /// Virtual CPUs by what the log says; else `None`, and whether there may be stand-ins among those that were seen.
    pub(super) fn vcpus(&self) -> (Option<u32>, bool) {
        (self.vcpus, self.has_host)
    }

    /// The limits of all groups, of a log from one moment to another.
    pub(super) fn limits(
        &self,
        path: &dyn Fn(GroupId) -> Option<String>,
        span: (u64, u64),
    ) -> Vec<OwnLimit> {
        let written = self.groups.iter().filter(|(_, story)| {
            let limits = story.written.iter().map(|(_, limit)| limit);
            limits.flatten().next().is_some()
        });
        // Who has no name ran nowhere in the trace.
        let own = written.filter_map(|(group, story)| Some(story.told(path(*group)?, span)));
        own.collect()
    }
}

impl Story {
    fn last(&self) -> Option<Limit> {
        self.written.last().and_then(|(_, limit)| *limit)
    }

    /// The limit is that from now on. Quota and burst are written one after the other, at the same time.
    fn write(&mut self, at: u64, limit: Option<Limit>) {
        self.written.pop_if(|(before, _)| *before == at);
        let is_news = self.written.is_empty() || self.last() != limit;
        if is_news && self.written.len() < CHANGES_MAX {
            self.written.push((at, limit));
        }
    }

    fn told(&self, group: String, (begin, end): (u64, u64)) -> OwnLimit {
        let mut stood: Vec<(Option<Limit>, u64)> = Vec::new();
        let first = self.written.first().map_or(end, |(at, _)| *at);
        let before = (begin, None);
        let all = [before].into_iter().chain(self.written.iter().copied());
        let ends = [first]
            .into_iter()
            .chain(self.written.iter().skip(1).map(|(at, _)| *at));
        for ((from, limit), to) in all.zip(ends.chain([end])) {
            let time = to.saturating_sub(from);
            match stood.iter_mut().find(|(known, _)| *known == limit) {
                Some((_, sum)) => *sum += time,
                None => stood.push((limit, time)),
            }
        }
        let most = stood.into_iter().max_by_key(|(_, time)| *time);
        let is_from_the_start = first <= begin;
        let (throttled, periods) = self.counted;
        OwnLimit {
            group: group.trim_matches('/').to_owned(),
            limit: most.and_then(|(limit, _)| limit),
            changes: self.written[usize::from(is_from_the_start)..].to_vec(),
            throttles: NotedThrottles {
                throttled: throttled.min(periods),
                periods,
            },
        }
    }
}

impl OwnLimit {
    fn noted(&self, limit: Limit) -> NotedLimit {
        NotedLimit {
            quota: limit.quota,
            period: limit.period,
            burst: limit.burst,
            cgroup: self.group.clone(),
        }
    }

    /// CPUs that it gives, in thousandths.
    fn permille(&self) -> u128 {
        self.limit.map_or(u128::MAX, |limit| {
            u128::from(limit.quota.0) * 1_000 / u128::from(limit.period.0.max(1))
        })
    }
}

impl Recording {
    /// Notes the limit of those of its tasks, as the log says it: the narrowest of those that hold for all of them, as it stood for most of the time. Nothing if the trace
    /// notes one already, or its limits are of others.
    pub fn note_limit_of(&mut self, part: &Recording) {
        if self.noted_limit.is_some() {
            return;
        }
        let theirs = self
            .own_limits
            .iter()
            .filter(|own| part.is_under(&own.group));
        let Some(own) = theirs.min_by_key(|own| own.permille()) else {
            return;
        };
        let limit = own.limit.map(|limit| own.noted(limit));
        let changes = own.changes.iter().map(|(at, limit)| NotedChange {
            at: Nanos(*at),
            limit: limit.map(|limit| own.noted(limit)),
        });
        let changes = changes.collect();
        let throttles = (own.throttles.periods > 0).then_some(own.throttles);
        (self.noted_limit, self.noted_changes) = (limit, changes);
        self.noted_throttles = throttles;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotient_core::CpuId;
    use quotient_trace::{GroupInfo, JsonLines, Sink, TaskId, TaskInfo, TaskState};

    const BAD: GroupId = GroupId(4);
    const HOG: TaskId = TaskId(7);

    /// A log of one task of `tenants/bad` that is on a CPU for `on` of each 100 ms, ten seconds long, of which it is billed for `billed`; with more events of that group.
    fn log(on: u64, billed: u64, more: &[(u64, Kind)], vcpus: Option<i64>) -> Recording {
        let mut log = JsonLines::new(Vec::new());
        for (id, path, parent) in [(2, "tenants", 0), (4, "tenants/bad", 2)] {
            let parent = GroupId(parent);
            let info = GroupInfo {
                path: path.into(),
                parent,
            };
            log.define(&Definition::Group {
                id: GroupId(id),
                info,
            });
        }
        let info = TaskInfo {
            name: "hog".into(),
            group: Some(BAD),
            ..TaskInfo::default()
        };
        log.define(&Definition::Task { id: HOG, info });
        let name = NameId(1);
        log.define(&Definition::Name {
            id: name,
            text: VCPUS_REMARK.into(),
        });
        let mut events: Vec<(u64, Kind)> = more.to_vec();
        if let Some(vcpus) = vcpus {
            let value = Amount::new(vcpus);
            events.push((0, Kind::Mark { name, value }));
        }
        let switch = |prev, state, next| Kind::Switch { prev, state, next };
        for at in (0..10_000).step_by(100) {
            let time = Amount::of_nanos(Nanos::from_millis(on - billed));
            events.extend([
                (at, switch(TaskId::IDLE, TaskState::Runnable, HOG)),
                (at + on, Kind::Uncharged { task: HOG, time }),
                (at + on, switch(HOG, TaskState::Runnable, TaskId::IDLE)),
            ]);
        }
        events.sort_by_key(|(at, _)| *at);
        for (at, kind) in events {
            log.event(&Event::new(Nanos::from_millis(at), CpuId(0), kind));
        }
        let text = log.finish().unwrap();
        Recording::read(&mut text.as_slice()).unwrap()
    }

    fn set(millis: Option<i64>) -> Kind {
        let nanos = millis.map_or(i64::MAX, |millis| millis * 1_000_000);
        Kind::SetLimit {
            group: BAD,
            quota: Amount::new(nanos),
            period_us: 100_000,
        }
    }

    /// Hazard: a log says what the limit was, and is played as if there had been none, or one that its shape suggests.
    #[test]
    fn the_limit_that_a_log_says_stood_for_most_of_it_is_its_limit() {
        let noted = |more: &[(u64, Kind)]| {
            let mut whole = log(30, 20, more, None);
            let all = whole.clone();
            whole.note_limit_of(&all);
            let limit = whole.noted_limit.clone();
            let quota = limit.map(|limit| (limit.quota.0 / 1_000_000, limit.cgroup));
            (quota, whole.noted_changes.len())
        };
        let of = |quota| Some((quota, "tenants/bad".to_owned()));
        let burst = |millis: u64| Kind::SetBurst {
            group: BAD,
            burst: Amount::of_nanos(Nanos::from_millis(millis)),
        };
        assert_eq!(noted(&[]), (None, 0));
        assert_eq!(noted(&[(0, set(Some(30))), (0, burst(0))]), (of(30), 0));
        // Written again as it was.
        assert_eq!(
            noted(&[(0, set(Some(30))), (5_000, set(Some(30)))]),
            (of(30), 0)
        );
        assert_eq!(
            noted(&[(0, set(Some(30))), (8_000, set(Some(40)))]),
            (of(30), 1)
        );
        assert_eq!(
            noted(&[(0, set(Some(30))), (2_000, set(Some(40)))]),
            (of(40), 1)
        );
        assert_eq!(noted(&[(1_000, set(Some(30)))]), (of(30), 1));
        assert_eq!(noted(&[(9_000, set(Some(30)))]), (None, 1));
        assert_eq!(noted(&[(0, set(Some(30))), (4_000, set(None))]), (None, 1));
        // Somebody else's limit is not theirs.
        let mut whole = log(30, 20, &[(0, set(Some(30)))], None);
        let mut others = whole.clone();
        others.groups = vec!["tenants/good".into()];
        whole.note_limit_of(&others);
        assert_eq!(whole.noted_limit, None);
    }

    #[test]
    fn periods_and_throttles_are_counted_as_the_log_has_them() {
        let mut more = vec![(0, set(Some(20)))];
        for period in 1..=40 {
            let at = period * 100;
            if period % 4 == 0 {
                more.push((at - 10, Kind::Throttle { group: BAD }));
            }
            let pool = Amount::ZERO;
            more.push((
                at,
                Kind::Refill {
                    group: BAD,
                    periods: 1,
                    pool,
                },
            ));
            if period % 4 == 0 {
                more.push((at, Kind::Unthrottle { group: BAD }));
            }
        }
        let mut whole = log(30, 20, &more, None);
        let all = whole.clone();
        whole.note_limit_of(&all);
        let counted = whole.noted_throttles.expect("counted");
        assert_eq!((counted.throttled, counted.periods), (10, 40));
        let limit = whole.noted_limit_of(&whole).expect("noted");
        assert_eq!(
            (limit.quota_ns, limit.throttled_permille),
            (20_000_000, 250)
        );
    }

    /// Hazard: what the host did on a virtual CPU's processor is held against the limit of who ran there.
    #[test]
    fn what_is_not_billed_is_not_used() {
        let limit = Limit::new(Nanos::from_millis(25), Nanos::from_millis(100));
        let contradiction = |billed: u64| {
            let recording = log(60, billed, &[], None);
            recording.contradiction(&recording.given_limit(limit), 1)
        };
        assert_eq!(contradiction(20), None);
        assert!(contradiction(40).is_some());
    }

    #[test]
    fn virtual_cpus_are_as_many_as_the_log_says() {
        assert_eq!(log(30, 20, &[], None).cpus, 1);
        let said = log(30, 20, &[], Some(2));
        assert_eq!((said.cpus, said.stand_ins), (2, 0));
        assert_eq!(log(30, 20, &[], Some(-1)).cpus, 1);
    }
}
