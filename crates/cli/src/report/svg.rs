//! Charts as inline SVG. Colours and fonts are CSS variables of the page, so that they follow light and dark.

use std::fmt::Write as _;

use quotient_trace::chart::{Frame, decade_label, duration, nice_step, part_of, trim};

use crate::demo::results::Series;

/// The time charts' frame for `seconds`; lengths in SVG units.
fn frame(seconds: f64) -> Frame {
    Frame {
        width: 480.0,
        height: 170.0,
        left: 58.0,
        right: 10.0,
        top: 8.0,
        bottom: 30.0,
        seconds,
    }
}

/// Time axis, and a thin line where one round ends and the next begins.
fn time_axis(frame: &Frame, series: &Series) -> String {
    let mut text = String::new();
    for round in 1..series.p99.len() {
        let x = frame.x(round as f64 * series.round_seconds);
        let _ = write!(
            text,
            "<line class=\"round\" x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{}\"/>",
            frame.top,
            frame.height - frame.bottom
        );
    }
    text + &frame.time_axis()
}

/// Stacked CPU by group over time; `cpus` is the top of the scale.
pub fn cpu(series: &Series, cpus: f64) -> String {
    let frame = frame(series.round_seconds * series.cpu.len() as f64);
    let mut text = frame.open(&format!("CPU by group over time, {}", series.mode));
    for round in &series.cpu {
        let (mut victim, mut hogs) = (String::new(), String::new());
        for point in round {
            let (left, right) = (frame.x(point.from), frame.x(point.to));
            let (low, high) = (
                frame.y(point.victim / cpus),
                frame.y((point.victim + point.hogs) / cpus),
            );
            let _ = write!(
                victim,
                "M{left:.1} {:.1}V{low:.1}H{right:.1}V{:.1}Z",
                frame.y(0.0),
                frame.y(0.0)
            );
            let _ = write!(hogs, "M{left:.1} {low:.1}V{high:.1}H{right:.1}V{low:.1}Z");
        }
        let _ = write!(
            text,
            "<path class=\"victim\" d=\"{victim}\"/><path class=\"hogs\" d=\"{hogs}\"/>"
        );
    }
    let step = nice_step(cpus / 3.0);
    let mut level = 0.0;
    while level <= cpus + 1e-6 {
        let unit = if level == 0.0 { "" } else { " CPU" };
        text += &frame.grid(level / cpus, &format!("{}{unit}", trim(level)));
        level += step;
    }
    text + &time_axis(&frame, series) + "</svg>"
}

/// p99 over time on a logarithmic scale between two powers of ten of microseconds.
pub fn p99(series: &Series, decades: (u32, u32)) -> String {
    let frame = frame(series.round_seconds * series.p99.len() as f64);
    let mut text = frame.open(&format!("p99 over time, {}", series.mode));
    for decade in decades.0..=decades.1 {
        text += &frame.grid(part_of(10u64.pow(decade), decades), &decade_label(decade));
    }
    text += &time_axis(&frame, series);
    for round in &series.p99 {
        let mut path = String::new();
        for (index, (seconds, micros)) in round.iter().enumerate() {
            let end = round
                .get(index + 1)
                .map_or(series_end(series, *seconds), |next| next.0);
            let letter = if index == 0 { 'M' } else { 'L' };
            let y = frame.y(part_of(*micros, decades));
            let _ = write!(
                path,
                "{letter}{:.1} {y:.1}H{:.1}",
                frame.x(*seconds),
                frame.x(end)
            );
        }
        let _ = write!(text, "<path class=\"latency\" d=\"{path}\"/>");
    }
    text + "</svg>"
}

fn series_end(series: &Series, seconds: f64) -> f64 {
    ((seconds / series.round_seconds.max(1e-9)).floor() + 1.0) * series.round_seconds
}

/// One bar a mode on a logarithmic scale: label, microseconds, CSS class.
pub fn bars(bars: &[(&str, u64, &str)], decades: (u32, u32)) -> String {
    const LABELS: f64 = 150.0;
    const VALUES: f64 = 90.0;
    const LINE: f64 = 34.0;
    const FULL: f64 = 980.0;
    let plot = FULL - LABELS - VALUES;
    let height = bars.len() as f64 * LINE + 26.0;
    let mut text = format!(
        "<svg viewBox=\"0 0 {FULL} {height}\" role=\"img\" aria-label=\"p99 latency of the victim by mode\">"
    );
    for decade in decades.0..=decades.1 {
        let x = LABELS + plot * part_of(10u64.pow(decade), decades);
        let _ = write!(
            text,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{0:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{2}</text>",
            height - 24.0,
            height - 8.0,
            decade_label(decade)
        );
    }
    for (index, (label, micros, class)) in bars.iter().enumerate() {
        let (y, width) = (index as f64 * LINE, plot * part_of(*micros, decades));
        let _ = write!(
            text,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\
             <rect class=\"{class}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"3\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LABELS - 10.0,
            y + 20.0,
            y + 4.0,
            LINE - 10.0,
            LABELS + width + 8.0,
            y + 20.0,
            duration(*micros)
        );
    }
    text + "</svg>"
}
