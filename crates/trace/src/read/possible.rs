//! What no recorder can have written: figures that nothing has, groups that are nobody's, and times that no recording lasts. A line that says such
//! a thing was damaged, or made by hand, and whoever walks through its time or up its tree would not come to an end.

use std::collections::HashMap;

use quotient_core::event::{Amount, Definition, Event, GroupId, Kind};
use quotient_core::{CpuId, Limit, Nanos};

use super::error::{Fault, ReadError};

/// From the first event of a trace to its last. Default 24 h: as long as a simulation may last, and longer than anybody records.
pub const SPAN_MAX: Nanos = Nanos(86_400_000_000_000);

/// CPUs have smaller numbers. Default 8,192: the most that a kernel can be built for; the scheduler itself takes 1,024, its simulator 4,096.
pub const CPU_NUMBERS: u32 = 8_192;

/// Levels of groups that are walked through. Default 64, the scheduler's own bound.
const LEVELS_MAX: usize = 64;

/// What cannot be: the key of the line that says it, and what should stand there.
pub(super) struct Wrong {
    key: &'static str,
    expected: String,
}

impl Wrong {
    fn new(key: &'static str, expected: String) -> Result<(), Wrong> {
        Err(Wrong { key, expected })
    }

    /// As a fault of that line.
    pub(super) fn in_text(self, text: &str) -> Fault {
        Fault::new(text.find(self.key).unwrap_or(0), self.expected)
    }
}

/// What was said so far.
#[derive(Default)]
pub(super) struct Possible {
    /// The first and the last time of all events.
    span: Option<(Nanos, Nanos)>,
    /// The time of the event before.
    before: Nanos,
    /// Whose child each group is.
    parents: HashMap<GroupId, GroupId>,
}

impl Possible {
    /// Takes what that line says. `is_whole`: no line before it was left out, so that who is not defined is nobody.
    pub(super) fn take(
        &mut self,
        (definition, event): (Option<&Definition>, Option<&Event>),
        (line, is_whole): (u64, bool),
        wrong: impl Fn(Wrong) -> ReadError,
    ) -> Result<(), ReadError> {
        if let Some(definition) = definition {
            self.define(definition, is_whole).map_err(&wrong)?;
        }
        if let Some(event) = event {
            self.event(event, is_whole).map_err(&wrong)?;
            self.time(event.time, line)?;
        }
        Ok(())
    }

    fn define(&mut self, definition: &Definition, is_whole: bool) -> Result<(), Wrong> {
        match definition {
            Definition::Group { id, info } => self.define_group(*id, info.parent),
            Definition::Task { info, .. } if is_whole => match info.group {
                Some(group) => self.defined(group),
                None => Ok(()),
            },
            Definition::Task { .. } | Definition::Name { .. } => Ok(()),
        }
    }

    fn define_group(&mut self, id: GroupId, parent: GroupId) -> Result<(), Wrong> {
        if id == GroupId::ROOT {
            return Ok(());
        }
        let above = |group: &GroupId| self.parents.get(group).copied();
        let mut line = std::iter::successors(Some(parent), above).take(LEVELS_MAX);
        if line.any(|group| group == id) {
            return Wrong::new(
                "\"parent\"",
                format!(
                    "the parent of group {} outside the groups below it, not {}",
                    id.0, parent.0
                ),
            );
        }
        self.parents.insert(id, parent);
        Ok(())
    }

    fn defined(&self, group: GroupId) -> Result<(), Wrong> {
        if group == GroupId::ROOT || self.parents.contains_key(&group) {
            return Ok(());
        }
        Wrong::new(
            "\"group\"",
            format!("a group that was defined before, not {}", group.0),
        )
    }

    /// Looks at an event. The runtime says of limits before anybody of their groups ran, which is what defines these: so only where tasks are put has to
    /// be defined.
    fn event(&self, event: &Event, is_whole: bool) -> Result<(), Wrong> {
        let CpuId(cpu) = event.cpu;
        if cpu >= CPU_NUMBERS {
            return Wrong::new(
                "\"cpu\"",
                format!("a cpu in 0..={}, not {cpu}", CPU_NUMBERS - 1),
            );
        }
        match event.kind {
            Kind::SetLimit {
                quota, period_us, ..
            } => figures(quota, period_us),
            Kind::SetBurst { burst, .. } if burst < Amount::ZERO => Wrong::new(
                "\"burst\":",
                format!("a burst in 0..={} ns, not {}", i64::MAX, burst.get()),
            ),
            Kind::Attach { group, .. } if is_whole => self.defined(group),
            _ => Ok(()),
        }
    }

    fn time(&mut self, time: Nanos, line: u64) -> Result<(), ReadError> {
        let (first, last) = self.span.unwrap_or((time, time));
        let span = (first.min(time), last.max(time));
        if span.1 - span.0 > SPAN_MAX {
            return Err(ReadError::Beyond {
                line,
                time,
                before: self.before,
                span: SPAN_MAX,
            });
        }
        (self.span, self.before) = (Some(span), time);
        Ok(())
    }
}

/// Whether a limit can have these.
fn figures(quota: Amount, period_us: u32) -> Result<(), Wrong> {
    let micros = |time: Nanos| time.0 / 1_000;
    let (least, most) = (micros(Limit::PERIOD_MIN), micros(Limit::PERIOD_MAX));
    if !(least..=most).contains(&u64::from(period_us)) {
        return Wrong::new(
            "\"period_us\"",
            format!("a period_us in {least}..={most}, not {period_us}"),
        );
    }
    let least = Amount::of_nanos(Limit::QUOTA_MIN);
    if quota < least {
        return Wrong::new(
            "\"quota\"",
            format!(
                "a quota in {}..={} ns, not {}",
                least.get(),
                i64::MAX,
                quota.get()
            ),
        );
    }
    Ok(())
}
