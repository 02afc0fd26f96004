//! The pictures of the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use quotient_core::event::GroupId;
use quotient_core::{CpuId, Nanos};

use super::bins::Timeline;
use super::{BINS, COLOURS, LANES_MAX, Picture, Who, wait_bin_start};
use crate::chart::{self, Frame, escape};
use crate::replay::Replay;

/// Height of a lane, in SVG units.
const LANE: f64 = 24.0;

/// Up to so many CPUs have a lane of that height, with the number beside each. More are drawn as a picture: thin lanes without gaps, and
/// a number at each eighth, since 64 labelled rows are read by nobody.
const TALL_LANES_MAX: usize = 24;

/// Height of a thin lane.
const THIN_LANE: f64 = 7.0;

/// Lines of limits that are drawn; more would hide what they limit.
const LIMITS_MAX: usize = 6;

/// Hues of the groups, degrees; picked so that neighbours differ for all common kinds of sight.
const HUES: [u32; COLOURS] = [217, 33, 152, 280, 352, 188, 60, 320, 100];

/// What is drawn, and in which colours.
pub(super) struct View<'a> {
    picture: &'a Picture,
    replay: &'a Replay,
    from: Nanos,
    seconds: f64,
    /// By CPU time, most first.
    groups: Vec<Who>,
    cpus: Vec<CpuId>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        picture: &'a Picture,
        replay: &'a Replay,
        from: Nanos,
        to: Nanos,
    ) -> View<'a> {
        let mut usage: BTreeMap<Who, u64> = BTreeMap::new();
        let mut cpus = BTreeSet::new();
        for ((cpu, group), bins) in picture.usage.rows() {
            *usage.entry(*group).or_default() += bins.iter().sum::<u64>();
            cpus.insert(*cpu);
        }
        let mut groups: Vec<_> = usage.keys().copied().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(usage[group]));
        View {
            picture,
            replay,
            from,
            seconds: (to - from).as_nanos() as f64 / 1e9,
            groups,
            cpus: cpus.into_iter().take(LANES_MAX).collect(),
        }
    }

    /// Colours of the groups.
    pub(super) fn style(&self) -> String {
        let mut text = String::from(
            ".none{fill:var(--mild)}.shade{fill:var(--bad)}\
             .limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:6 4}\
             .over{fill:var(--text);font-size:12px;paint-order:stroke;stroke:var(--page);stroke-width:4px;stroke-linejoin:round}\n",
        );
        for (index, hue) in HUES.iter().enumerate() {
            let _ = writeln!(text, ".c{index}{{fill:hsl({hue} 70% 52%)}}");
        }
        text
    }

    fn class(&self, group: Who) -> String {
        let place = self.groups.iter().position(|other| *other == group);
        match place {
            Some(place) if place < COLOURS => format!("c{place}"),
            _ => "none".to_owned(),
        }
    }

    fn name(&self, who: Who) -> String {
        let group = match who {
            Who::Group(group) => group,
            Who::Name(place) => return escape(&self.picture.names[place]),
            Who::Others => return "(others)".to_owned(),
        };
        match self.replay.table().group_path(group) {
            "" if group == GroupId::ROOT => "(root)".to_owned(),
            "" => group.to_string(),
            path => escape(path),
        }
    }

    fn legend(&self) -> String {
        let mut text = String::from("<p class=\"soft\">");
        for (index, group) in self.groups.iter().take(COLOURS).enumerate() {
            let hue = HUES[index];
            let name = self.name(*group);
            let _ = write!(
                text,
                "<i class=\"key\" style=\"background:hsl({hue} 70% 52%)\"></i>{name}"
            );
        }
        if self.groups.len() > COLOURS {
            text += "<i class=\"key\" style=\"background:var(--mild)\"></i>others";
        }
        text + "</p>\n"
    }

    fn frame(&self, height: f64) -> Frame {
        Frame {
            width: 1000.0,
            height,
            left: 62.0,
            right: 10.0,
            top: 6.0,
            bottom: 28.0,
            seconds: self.seconds,
        }
    }

    fn seconds_of(&self, time: Nanos) -> f64 {
        (time - self.from).as_nanos() as f64 / 1e9
    }

    /// From the number of a bin to seconds.
    fn bin_seconds(&self, bin: usize) -> f64 {
        bin as f64 * self.picture.usage.width() as f64 / 1e9
    }

    /// Height of a CPU's lane, and the gap around what is drawn in it.
    fn lane(&self) -> (f64, f64) {
        if self.cpus.len() <= TALL_LANES_MAX {
            (LANE, 2.0)
        } else {
            (THIN_LANE, 0.0)
        }
    }

    /// One lane a CPU: every run while there are few, else the share of each group in each bin.
    pub(super) fn lanes(&self) -> String {
        let (height, _) = self.lane();
        let frame = self.frame(self.cpus.len() as f64 * height + 36.0);
        let mut paths: BTreeMap<String, String> = BTreeMap::new();
        match &self.picture.runs {
            Some(runs) => self.run_paths(runs, &frame, &mut paths),
            None => self.share_paths(&frame, &mut paths),
        }
        let mut text = format!(
            "<h2>Who ran where</h2>\n{}<figure class=\"scroll wide\">{}",
            self.legend(),
            frame.open("Groups on every CPU over time")
        );
        let labelled = if height < LANE { 8 } else { 1 };
        for (lane, cpu) in self.cpus.iter().enumerate().step_by(labelled) {
            let y = frame.top + lane as f64 * height;
            let _ = write!(
                text,
                "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{cpu}</text>",
                frame.left - 6.0,
                y + height * 0.65 + (LANE - height) * 0.15
            );
        }
        for (class, path) in paths {
            let _ = write!(text, "<path class=\"{class}\" d=\"{path}\"/>");
        }
        text + &frame.time_axis() + "</svg></figure>\n"
    }

    fn run_paths(
        &self,
        runs: &[(crate::replay::Run, Who)],
        frame: &Frame,
        paths: &mut BTreeMap<String, String>,
    ) {
        let (height, gap) = self.lane();
        for (run, who) in runs {
            let Some(lane) = self.cpus.iter().position(|cpu| *cpu == run.cpu) else {
                continue;
            };
            let left = frame.x(self.seconds_of(run.from));
            let right = frame.x(self.seconds_of(run.to)).max(left + 0.1);
            let top = frame.top + lane as f64 * height + gap;
            let path = paths.entry(self.class(*who)).or_default();
            let _ = write!(
                path,
                "M{left:.1} {top:.0}H{right:.1}v{:.0}H{left:.1}z",
                height - 2.0 * gap
            );
        }
    }

    fn share_paths(&self, frame: &Frame, paths: &mut BTreeMap<String, String>) {
        let width = self.picture.usage.width() as f64;
        let (whole, gap) = self.lane();
        let height = whole - 2.0 * gap;
        for (lane, cpu) in self.cpus.iter().enumerate() {
            let bottom = frame.top + (lane + 1) as f64 * whole - gap;
            let mut filled = vec![0.0; BINS];
            let rows = self.picture.usage.rows();
            for ((_, group), bins) in rows.filter(|((of, _), _)| of == cpu) {
                let path = paths.entry(self.class(*group)).or_default();
                for (bin, nanos) in bins.iter().enumerate().filter(|(_, nanos)| **nanos > 0) {
                    let part = (*nanos as f64 / width).min(1.0) * height;
                    let low = bottom - filled[bin];
                    filled[bin] += part;
                    let left = frame.x(self.bin_seconds(bin));
                    let right = frame.x(self.bin_seconds(bin + 1));
                    let _ = write!(path, "M{left:.1} {low:.1}H{right:.1}v-{part:.1}H{left:.1}z");
                }
            }
        }
    }

    /// CPU time of the groups over time, one on the other.
    pub(super) fn stacked(&self) -> String {
        let frame = self.frame(240.0);
        let width = self.picture.usage.width() as f64;
        let mut by_class: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for ((_, group), bins) in self.picture.usage.rows() {
            let sums = by_class
                .entry(self.class(*group))
                .or_insert_with(|| vec![0.0; BINS]);
            for (sum, nanos) in sums.iter_mut().zip(bins) {
                *sum += *nanos as f64 / width;
            }
        }
        let cpus = self.cpus.len().max(1) as f64;
        let mut text = format!(
            "<h2>CPU by group</h2>\n<p class=\"soft\">Tasks outside groups by name. In CPUs: 0.5 is half of one, all the time.</p>\n\
             <figure class=\"scroll wide\">{}",
            frame.open("CPU by group over time")
        );
        let mut filled = vec![0.0; BINS];
        for (class, sums) in by_class {
            let mut path = String::new();
            for (bin, part) in sums.iter().enumerate().filter(|(_, part)| **part > 0.0) {
                let (low, high) = (
                    frame.y(filled[bin] / cpus),
                    frame.y((filled[bin] + part) / cpus),
                );
                filled[bin] += part;
                let left = frame.x(self.bin_seconds(bin));
                let right = frame.x(self.bin_seconds(bin + 1));
                let _ = write!(path, "M{left:.1} {low:.1}H{right:.1}V{high:.1}H{left:.1}z");
            }
            let _ = write!(text, "<path class=\"{class}\" d=\"{path}\"/>");
        }
        let step = chart::nice_step(cpus / 3.0);
        let mut level = 0.0;
        while level <= cpus + 1e-6 {
            let unit = if level == 0.0 { "" } else { " CPU" };
            text += &frame.grid(level / cpus, &format!("{}{unit}", chart::trim(level)));
            level += step;
        }
        text += &self.limits(&frame, cpus);
        text + &frame.time_axis() + "</svg></figure>\n"
    }

    /// A line for each limit that lies within the picture, as it was at last: what the group and those below it may use.
    fn limits(&self, frame: &Frame, cpus: f64) -> String {
        let mut text = String::new();
        let within = self.picture.limits.iter();
        let within = within.filter(|(_, limit)| **limit < cpus).take(LIMITS_MAX);
        for (group, limit) in within {
            let y = frame.y(limit / cpus);
            let _ = write!(
                text,
                "<line class=\"limit\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"over\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">limit of {}: {} CPU</text>",
                frame.left,
                frame.width - frame.right,
                frame.width - frame.right - 4.0,
                y - 4.0,
                self.name(Who::Group(*group)),
                chart::trim(*limit)
            );
        }
        text
    }

    /// One strip for each group that was throttled; the darker, the more of its CPUs.
    pub(super) fn throttled(&self) -> String {
        self.strips(
            "Throttled",
            "Throttled groups over time",
            &self.picture.throttled,
        )
    }

    /// One strip for each group with long polls whose threads stood; the darker, the more of them.
    pub(super) fn stood(&self) -> String {
        let what = "Threads of long polls that stood, by group, over time";
        self.strips("Stopped inside polls", what, &self.picture.stood)
    }

    fn strips(&self, title: &str, what: &str, of: &Timeline<GroupId>) -> String {
        let rows: Vec<_> = of.rows().take(LANES_MAX).collect();
        if rows.is_empty() {
            return String::new();
        }
        let frame = self.frame(rows.len() as f64 * LANE + 36.0);
        let width = of.width() as f64;
        let cpus = self.cpus.len().max(1) as f64;
        let mut text = format!(
            "<h2>{title}</h2>\n<figure class=\"scroll wide\">{}",
            frame.open(what)
        );
        for (lane, (group, bins)) in rows.into_iter().enumerate() {
            let top = frame.top + lane as f64 * LANE;
            for (bin, nanos) in bins.iter().enumerate().filter(|(_, nanos)| **nanos > 0) {
                let begin = bin as f64 * width / 1e9;
                let left = frame.x(begin);
                let right = frame.x(begin + width / 1e9);
                let part = (*nanos as f64 / width / cpus).clamp(0.05, 1.0);
                let _ = write!(
                    text,
                    "<rect class=\"shade\" opacity=\"{part:.2}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\"/>",
                    top + 2.0,
                    right - left,
                    LANE - 4.0
                );
            }
            let _ = write!(
                text,
                "<text class=\"over\" x=\"{}\" y=\"{:.1}\">{}</text>",
                frame.left + 4.0,
                top + LANE * 0.65,
                self.name(Who::Group(*group))
            );
        }
        text + &frame.time_axis() + "</svg></figure>\n"
    }

    /// How long tasks waited, as a histogram with a logarithmic axis.
    pub(super) fn waits(&self) -> String {
        let waits = &self.picture.waits;
        let used = || waits.iter().enumerate().filter(|(_, count)| **count > 0);
        let (Some((first, _)), Some((last, _))) = (used().next(), used().next_back()) else {
            return String::new();
        };
        let frame = self.frame(200.0);
        let most = waits.iter().copied().max().unwrap_or(1).max(1) as f64;
        let bars = (last - first + 1) as f64;
        let place = |bin: usize| {
            frame.left + (bin - first) as f64 / bars * (frame.width - frame.left - frame.right)
        };
        let mut text = format!(
            "<h2>Run delay</h2>\n<p class=\"soft\">From runnable to running; all tasks.</p>\n<figure class=\"scroll wide\">{}",
            frame.open("Histogram of run delays")
        );
        text += &frame.grid(0.0, "0");
        text += &frame.grid(1.0, &format!("{most}"));
        for (bin, count) in used() {
            let top = frame.y(*count as f64 / most);
            let _ = write!(
                text,
                "<rect class=\"victim\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
                place(bin) + 0.5,
                (place(first + 1) - place(first) - 1.0).max(0.5),
                frame.y(0.0) - top
            );
        }
        for bin in (first..=last).step_by(((last - first) / 8).max(1)) {
            let _ = write!(
                text,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{}\">{}</text>",
                place(bin),
                frame.height - frame.bottom + 18.0,
                super::micros(wait_bin_start(bin))
            );
        }
        text + "</svg></figure>\n"
    }
}
