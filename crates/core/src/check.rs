//! The checker: recomputes what the run queue keeps incrementally. Tests and simulators call it at every step.

use crate::config::Policy;
use crate::gates::Gates;
use crate::node::{NONE, Place};
use crate::run_queue::{ROOT, RunQueue};
use crate::timeline::Timeline;
use core::fmt;

/// An invariant that does not hold: a bug of this crate, with where and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the group, empty for the root.
    pub group: String,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "group {:?}: {}", self.group, self.what)
    }
}

impl std::error::Error for Violation {}

impl<T, G: Gates> RunQueue<T, G> {
    /// Verifies every invariant of the queue. O(entities); meant for tests, debug builds and simulators.
    ///
    /// # Errors
    /// The first [`Violation`] found, which is always a bug of this crate.
    pub fn check(&self) -> Result<(), Violation> {
        let mut tasks = 0;
        for (index, timeline) in self.timelines.iter().enumerate() {
            if timeline.vacant {
                continue;
            }
            self.check_timeline(index as u32, timeline)
                .map_err(|what| Violation {
                    group: timeline.group.path().into(),
                    what,
                })?;
            tasks += timeline.tasks;
        }
        let whole = |what: String| Violation {
            group: String::new(),
            what,
        };
        let counted = self.nr + self.nr_throttled;
        ensure(tasks == counted, || {
            format!("{tasks} tasks in timelines, {counted} counted")
        })
        .map_err(whole)?;
        self.check_limits().map_err(whole)?;
        self.check_chain().map_err(whole)
    }

    fn check_timeline(&self, index: u32, timeline: &Timeline) -> Result<(), String> {
        let (zero, sum) = timeline.average.parts();
        let mut groups = 0;
        let (mut load, mut weighted, mut nr, mut tasks, mut short) =
            (0u64, 0i128, 0u32, 0u32, 0u32);
        let (mut least, mut misplaced) = (None, None);
        let mut visit = |node_index: u32, expected: fn(Place) -> bool| {
            let node = self.slab.get(node_index);
            if !expected(node.place) || node.timeline != index {
                misplaced = Some(node_index);
            }
            load += u64::from(node.shares);
            weighted += i128::from(node.v.since(zero)) * i128::from(node.shares);
            nr += 1;
            groups += if node.is_task() {
                0
            } else {
                u64::from(node.shares)
            };
            tasks += u32::from(node.is_task());
            short += u32::from(node.slice < self.rules.base_slice);
            least = Some(least.map_or(node.v, |v| node.v.min(v)));
        };
        let nodes = &self.slab.nodes;
        timeline.ready.visit(nodes, |at| {
            visit(at, |p| matches!(p, Place::ReadyRing | Place::ReadyHeap));
            true
        });
        timeline.later.visit(nodes, |at| {
            visit(at, |p| matches!(p, Place::LaterRing | Place::LaterHeap));
            true
        });
        if timeline.current != NONE {
            visit(timeline.current, |place| place == Place::Current);
        }
        ensure(misplaced.is_none(), || {
            format!("node {misplaced:?} is not where it says")
        })?;
        ensure(groups == timeline.group_load, || {
            format!("groups weigh {groups}, {} counted", timeline.group_load)
        })?;
        ensure(nr == timeline.nr, || {
            format!("{nr} entities found, {} counted", timeline.nr)
        })?;
        ensure(tasks == timeline.tasks, || {
            format!("{tasks} tasks found, {} counted", timeline.tasks)
        })?;
        ensure(load == timeline.average.load(), || {
            format!("load {load}, kept {}", timeline.average.load())
        })?;
        ensure(nr == 0 || weighted == sum, || {
            format!("weighted sum {weighted}, kept {sum}")
        })?;
        ensure(short == timeline.slices.total(), || {
            format!("{short} short slices, {} kept", timeline.slices.total())
        })?;
        if let (Some(least), Policy::Eevdf) = (least, self.rules.policy) {
            ensure(timeline.average.is_eligible(least), || {
                "nobody is eligible".into()
            })?;
        }
        self.check_lag_sum(timeline, weighted, load)?;
        let (buddies, queued) = (&timeline.buddies, |at: u32| {
            at == NONE || self.slab.get(at).timeline == index
        });
        ensure(
            queued(buddies.next) && queued(buddies.last) && queued(buddies.skip),
            || "foreign buddy".into(),
        )?;
        self.check_link(index, timeline)
    }

    /// |sum w (V - v)| <= sum w, the rounding of V to one unit.
    fn check_lag_sum(&self, timeline: &Timeline, weighted: i128, load: u64) -> Result<(), String> {
        if load == 0 {
            return Ok(());
        }
        let mean = timeline.average.mean().since(timeline.average.parts().0);
        let lag_sum = i128::from(mean) * i128::from(load) - weighted;
        ensure(lag_sum.unsigned_abs() <= u128::from(load), || {
            format!("lags sum to {lag_sum}, load {load}")
        })
    }

    /// A group competes above iff it has something to run.
    fn check_link(&self, index: u32, timeline: &Timeline) -> Result<(), String> {
        if index == ROOT {
            return Ok(());
        }
        let place = self.slab.get(timeline.node).place;
        let parent = &self.timelines[timeline.parent as usize];
        let competes = timeline.nr > 0 && !self.is_closed(index);
        ensure(competes == (place != Place::Off), || {
            format!("{} entities but {place:?}", timeline.nr)
        })?;
        let chosen = parent.current == timeline.node;
        ensure(chosen == (place == Place::Current), || {
            format!("{place:?} but chosen is {chosen}")
        })
    }

    /// What is kept back is so for a reason, waits somewhere, and everything that goes by it is counted right.
    fn check_limits(&self) -> Result<(), String> {
        let count = self.timelines.len();
        let (mut active, mut deferring) = (vec![0u32; count], vec![0u32; count]);
        let (mut free, mut kept) = (0, 0);
        for (index, timeline) in self
            .timelines
            .iter()
            .enumerate()
            .filter(|(_, timeline)| !timeline.vacant)
        {
            ensure(
                timeline.limited == self.nearest_limited(index as u32),
                || {
                    format!(
                        "{} is below another limit than it knows",
                        timeline.group.path()
                    )
                },
            )?;
            let (mut level, mut blocked) = (index as u32, false);
            while level != NONE {
                let at = &self.timelines[level as usize];
                if let Some(meter) = at.meter.as_deref() {
                    active[level as usize] += if blocked { 0 } else { timeline.tasks };
                    deferring[level as usize] += timeline.deferring;
                    blocked |= meter.throttled;
                }
                level = at.parent;
            }
            *(if blocked { &mut kept } else { &mut free }) += timeline.tasks;
            self.check_meter(timeline)?;
        }
        ensure((free, kept) == (self.nr, self.nr_throttled), || {
            format!(
                "{free} free and {kept} kept back, counted {} and {}",
                self.nr, self.nr_throttled
            )
        })?;
        for (index, timeline) in self.timelines.iter().enumerate() {
            let (active, deferring) = (active[index], deferring[index]);
            let uncounted = self.uncounted(index as u32);
            let counted = timeline.meter.as_deref().map(|meter| {
                let counted = meter.active.wrapping_add_signed(uncounted);
                (counted, meter.deferring)
            });
            ensure(
                counted.is_none_or(|counted| counted == (active, deferring)),
                || {
                    format!(
                        "{}: {active} active, {deferring} deferring, counted {counted:?}",
                        timeline.group.path()
                    )
                },
            )?;
        }
        Ok(())
    }

    /// A throttled group waits, or has been posted, or waits no more because its limit ended: nobody is forgotten.
    fn check_meter(&self, timeline: &Timeline) -> Result<(), String> {
        let Some(meter) = timeline.meter.as_deref() else {
            return Ok(());
        };
        let path = timeline.group.path();
        let expected = meter.local.is_queued() || meter.local.is_posted();
        ensure(!meter.throttled || expected, || {
            format!("{path} is throttled and forgotten")
        })?;
        ensure(meter.throttled == meter.local.is_throttled(), || {
            format!("{path} is throttled, or not, and says otherwise")
        })
    }

    /// The chosen nodes form exactly the path from the root to the leaf, and the current task.
    fn check_chain(&self) -> Result<(), String> {
        let mut level = self.leaf;
        let task = self.timelines[level as usize].current;
        ensure(task == self.current, || {
            format!("current is {}, the leaf's {task}", self.current)
        })?;
        let mut length = u32::from(task != NONE);
        let mut running = 1;
        while level != ROOT {
            let timeline = &self.timelines[level as usize];
            let chosen = self.timelines[timeline.parent as usize].current;
            ensure(chosen == timeline.node, || {
                format!("the chain breaks above {}", timeline.group.path())
            })?;
            length += 1;
            running += u32::from(timeline.cell.exec.is_running());
            level = timeline.parent;
        }
        let watches = self.timelines.iter().filter(|timeline| !timeline.vacant);
        let started = watches
            .filter(|timeline| timeline.cell.exec.is_running())
            .count();
        ensure(started == running as usize, || {
            format!("{started} stopwatches run, {running} on the chain")
        })?;
        let marked = self
            .slab
            .nodes
            .iter()
            .filter(|node| node.place == Place::Current)
            .count();
        ensure(marked == length as usize, || {
            format!("{marked} chosen nodes, chain of {length}")
        })
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
