//! One self-contained page about a trace: who ran where, which group used how much, who was throttled, who waited.
//!
//! One pass and bounded memory: time is divided into at most [`BINS`] bins, which double in width whenever the trace
//! outgrows them; single runs are drawn only while there are few.

mod bins;
mod draw;

use std::collections::BTreeMap;
use std::io::{self, Write};

use quotient_core::event::{Amount, Definition, Event, GroupId, Kind, Sink, TaskId};
use quotient_core::{CpuId, Nanos};

use crate::chart::{self, escape};
use crate::replay::{Observer, Replay, Run, Stand, Wait};
use crate::statistics::{Delays, Figures, Statistics};
use bins::Timeline;

/// Steps of the time axis. Default 512: two SVG units each.
pub const BINS: usize = 512;

/// Runs that are drawn one by one. Default 20,000: about half a megabyte of page.
const RUNS_MAX: usize = 20_000;

/// Groups with a colour of their own; the others share one.
const COLOURS: usize = 9;

/// Rows of the table of tasks.
const TASK_ROWS: usize = 25;

/// (CPU, group or name) pairs that are followed. Default 8,192: 32 MB at worst. What comes later is counted together.
const PAIRS_MAX: usize = 8_192;

/// Names of tasks outside groups that are told apart; they are searched one by one. Default 128.
const NAMES_MAX: usize = 128;

/// CPU lanes that are drawn; a page with more could not be read.
const LANES_MAX: usize = 128;

/// Sink of the page.
#[derive(Default)]
pub struct Html {
    replay: Replay,
    picture: Picture,
    statistics: Statistics,
}

#[derive(Default)]
struct Picture {
    /// CPU time by CPU and who used it.
    usage: Timeline<(CpuId, Who)>,
    /// Throttled CPU time by group.
    throttled: Timeline<GroupId>,
    /// Time for which threads of long polls stood, by group.
    stood: Timeline<GroupId>,
    /// `None` once there were too many.
    runs: Option<Vec<(Run, Who)>>,
    /// Names of tasks outside groups.
    names: Vec<String>,
    /// What each limited group may use, in CPUs, as last set.
    limits: BTreeMap<GroupId, f64>,
    /// Waits by half powers of two of nanoseconds.
    waits: Vec<u64>,
    begun: bool,
}

/// Who gets a colour: a group (without those below it), or the tasks of one name outside all groups, which is all that a
/// kernel's trace knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Group(GroupId),
    /// Place in the list of names.
    Name(usize),
    Others,
}

impl Picture {
    fn limit(&mut self, group: GroupId, quota: Amount, period_us: u32) {
        let period = f64::from(period_us) * 1e3;
        if quota == Amount::UNLIMITED || period == 0.0 {
            self.limits.remove(&group);
        } else if self.limits.len() < PAIRS_MAX || self.limits.contains_key(&group) {
            self.limits.insert(group, quota.get() as f64 / period);
        }
    }

    fn who(&mut self, replay: &Replay, run: &Run) -> Who {
        if run.group != GroupId::ROOT {
            return Who::Group(run.group);
        }
        let name = replay.table().task_name(run.task);
        if let Some(place) = self.names.iter().position(|known| known == name) {
            return Who::Name(place);
        }
        if self.names.len() == NAMES_MAX {
            return Who::Others;
        }
        self.names.push(name.to_owned());
        Who::Name(self.names.len() - 1)
    }
}

impl Html {
    /// An empty page.
    pub fn new() -> Html {
        Html {
            picture: Picture {
                runs: Some(Vec::new()),
                waits: vec![0; 128],
                ..Picture::default()
            },
            ..Html::default()
        }
    }

    /// Writes the page.
    ///
    /// # Errors
    /// Whatever `output` says.
    pub fn finish<W: Write>(self, title: &str, output: &mut W) -> io::Result<()> {
        self.finish_with(title, "", output)
    }

    /// The same with `front`, a piece of HTML that the caller answers for, below the heading.
    ///
    /// # Errors
    /// Whatever `output` says.
    pub fn finish_with<W: Write>(
        mut self,
        title: &str,
        front: &str,
        output: &mut W,
    ) -> io::Result<()> {
        self.replay.finish(&mut self.picture);
        let figures = self.statistics.finish();
        let (from, to) = self.replay.span();
        let view = draw::View::new(&self.picture, &self.replay, from, to);
        let page = [
            chart::page_start(title, &view.style(), title),
            front.to_owned(),
            summary(&figures),
            view.lanes(),
            view.stacked(),
            view.throttled(),
            view.stood(),
            view.waits(),
            group_table(&figures),
            long_poll_table(&figures),
            task_table(&figures),
            chart::PAGE_END.to_owned(),
        ];
        for part in page {
            output.write_all(part.as_bytes())?;
        }
        Ok(())
    }
}

impl Sink for Html {
    fn define(&mut self, definition: &Definition) {
        self.replay.define(definition);
        self.statistics.define(definition);
    }

    fn event(&mut self, event: &Event) {
        if !std::mem::replace(&mut self.picture.begun, true) {
            self.picture.usage = Timeline::new(event.time);
            self.picture.throttled = Timeline::new(event.time);
            self.picture.stood = Timeline::new(event.time);
        }
        if let Kind::SetLimit {
            group,
            quota,
            period_us,
        } = event.kind
        {
            self.picture.limit(group, quota, period_us);
        }
        self.replay.event(event, &mut self.picture);
        self.statistics.event(event);
    }
}

impl Observer for Picture {
    fn ran(&mut self, replay: &Replay, run: &Run) {
        let who = self.who(replay, run);
        let pair = (run.cpu, who);
        let is_full = self.usage.len() >= PAIRS_MAX && !self.usage.contains(&pair);
        let pair = if is_full {
            (run.cpu, Who::Others)
        } else {
            pair
        };
        self.usage.add(pair, run.from, run.to);
        if let Some(runs) = &mut self.runs {
            if runs.len() < RUNS_MAX {
                runs.push((*run, who));
            } else {
                self.runs = None;
            }
        }
    }

    fn waited(&mut self, _: &Replay, wait: &Wait) {
        if !wait.is_open {
            self.waits[wait_bin((wait.to - wait.from).as_nanos())] += 1;
        }
    }

    fn throttled(&mut self, _: &Replay, group: GroupId, _: CpuId, from: Nanos, to: Nanos) {
        self.throttled.add(group, from, to);
    }

    fn stood(&mut self, _: &Replay, stand: &Stand) {
        if self.stood.len() < PAIRS_MAX || self.stood.contains(&stand.group) {
            self.stood.add(stand.group, stand.from, stand.to);
        }
    }
}

/// The half power of two that `nanos` lies in: 0..=127.
fn wait_bin(nanos: u64) -> usize {
    let nanos = nanos.max(1);
    let power = nanos.ilog2();
    let upper_half = power > 0 && nanos >> (power - 1) & 1 == 1;
    (power * 2 + u32::from(upper_half)) as usize
}

/// Where a bin begins, ns.
fn wait_bin_start(bin: usize) -> u64 {
    let power = 1_u64 << (bin / 2);
    if bin % 2 == 1 {
        power + power / 2
    } else {
        power
    }
}

fn summary(figures: &Figures) -> String {
    let busy: u64 = figures.cpus.iter().map(|cpu| cpu.busy_ns).sum();
    let switches: u64 = figures.cpus.iter().map(|cpu| cpu.switches).sum();
    let lost = if figures.lost > 0 {
        format!("; <b>{} events were lost</b>", figures.lost)
    } else {
        String::new()
    };
    format!(
        "<p>{:.3} s, {} events, {} CPUs, {:.3} s of CPU time, {switches} switches, {} migrations{lost}.</p>\n",
        figures.duration_ns as f64 / 1e9,
        figures.events,
        figures.cpus.len(),
        busy as f64 / 1e9,
        figures.migrations
    )
}

fn micros(nanos: u64) -> String {
    if nanos < 1_000 {
        format!("{nanos} ns")
    } else if nanos < 10_000 {
        format!("{:.1} µs", nanos as f64 / 1e3)
    } else {
        chart::duration(nanos / 1_000)
    }
}

fn delay_cells(delay: &Delays) -> String {
    let cells = [delay.p50_ns, delay.p99_ns, delay.max_ns].map(micros);
    format!("<td>{}</td>", cells.join("</td><td>"))
}

fn group_table(figures: &Figures) -> String {
    let mut text = String::from(
        "<h2>Groups</h2>\n<p class=\"soft\">With all groups below them. Run delay: from runnable to running.</p>\n\
         <div class=\"scroll\"><table><thead><tr><th>group</th><th>CPU</th><th>runs</th><th>delay p50</th><th>p99</th>\
         <th>max</th><th>throttled periods</th><th>throttled</th></tr></thead><tbody>\n",
    );
    for group in &figures.groups {
        let name = if group.group.is_empty() {
            "(root)".to_owned()
        } else {
            escape(&group.group)
        };
        text += &format!(
            "<tr><td>{name}</td><td>{}</td><td>{}</td>{}<td>{} of {}</td><td>{}</td></tr>\n",
            micros(group.cpu_ns),
            group.runs,
            delay_cells(&group.delay),
            group.nr_throttled,
            group.nr_periods,
            micros(group.throttled_ns)
        );
    }
    text + "</tbody></table></div>\n"
}

/// Groups whose polls got threads of their own. Nothing where preemption was never needed.
fn long_poll_table(figures: &Figures) -> String {
    let with = || {
        let groups = figures.groups.iter();
        groups.filter(|group| group.detached + group.pauses > 0)
    };
    if with().next().is_none() {
        return String::new();
    }
    let mut text = format!(
        "<h2>Long polls</h2>\n<p class=\"soft\">Polls that outlived their turns and got threads of their own, with all groups below. \
         Rescues, when something did not get on beside threads that stood: {}.</p>\n\
         <div class=\"scroll\"><table><thead><tr><th>group</th><th>long polls</th><th>times stopped</th><th>stood</th>\
         <th>longest</th></tr></thead><tbody>\n",
        figures.rescues
    );
    for group in with() {
        let name = if group.group.is_empty() {
            "(root)".to_owned()
        } else {
            escape(&group.group)
        };
        text += &format!(
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            group.detached,
            group.pauses,
            micros(group.paused_ns),
            micros(group.longest_pause_ns)
        );
    }
    text + "</tbody></table></div>\n"
}

fn task_table(figures: &Figures) -> String {
    let mut text = format!(
        "<h2>Tasks</h2>\n<p class=\"soft\">{} tasks; those with most CPU time first, {TASK_ROWS} at most.</p>\n\
         <div class=\"scroll\"><table><thead><tr><th>task</th><th>group</th><th>CPU</th><th>runs</th><th>longest run</th>\
         <th>delay p50</th><th>p99</th><th>max</th></tr></thead><tbody>\n",
        figures.tasks.len()
    );
    for task in figures.tasks.iter().take(TASK_ROWS) {
        let who = TaskId(task.task);
        text += &format!(
            "<tr><td>{} {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{}</tr>\n",
            escape(&task.name),
            who.0,
            escape(&task.group),
            micros(task.cpu_ns),
            task.runs,
            micros(task.longest_run_ns),
            delay_cells(&task.delay)
        );
    }
    text + "</tbody></table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_of_waits_hold_their_waits() {
        for nanos in [1_u64, 2, 3, 4, 5, 6, 7, 8, 1_000, 1_500, u64::MAX] {
            let bin = wait_bin(nanos);
            assert!(wait_bin_start(bin) <= nanos, "{nanos}");
            assert!(
                bin == 127 || wait_bin_start(bin + 1) > nanos || nanos < 2,
                "{nanos}"
            );
        }
    }
}
