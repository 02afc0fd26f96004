//! A sweep as a table, and as a page with pictures.

use std::fmt::{self, Write};

use quotient_sim::advise::{Advice, Prediction, Target};
use quotient_trace::chart;

use super::{Report, Verdict};

/// What a person sees.
pub(super) fn table(report: &Report<'_>, target: Target) -> String {
    let mut text = String::new();
    // A string takes everything.
    let _ = write(report, target, &mut text);
    text
}

fn write(report: &Report<'_>, target: Target, text: &mut String) -> fmt::Result {
    let advice = report.advice;
    writeln!(text, "{}", report.input)?;
    for note in report.notes {
        writeln!(text, "  {note}")?;
    }
    for doubt in &report.doubts.0 {
        let decides = if doubt.decisive { "DECISIVE " } else { "" };
        writeln!(text, "  {decides}DOUBT: {}", doubt.reason)?;
    }
    writeln!(
        text,
        "without a limit: {:.2} CPUs, p50 {:.2} ms, p99 {:.2} ms{}\n",
        advice.free_usage_permille as f64 / 1000.0,
        advice.free_p50_ns as f64 / 1e6,
        advice.free_p99_ns as f64 / 1e6,
        match report.latency_of {
            "bursts" => " of bursts, from a thread's wake-up to its sleep: not of requests",
            "requests" => " of requests",
            _ => "",
        }
    )?;
    writeln!(text, "{}", heading())?;
    for (index, row) in advice.predictions.iter().enumerate() {
        let mark = match (advice.recommended == Some(index), row.is_harmless) {
            (true, _) => " <- recommended",
            (false, true) if advice.never_binds(row) => " harmless: never binds",
            (false, true) if advice.gives_the_machine(row) => " harmless: the whole machine",
            (false, true) => " harmless",
            _ => "",
        };
        writeln!(text, "{}{mark}", line(row))?;
    }
    writeln!(
        text,
        "\nharmless: at most {} % throttled periods, {:.1} ms added at p99 on average and at least {} % of the work done, each in 19 of 20 cases",
        target.throttled_permille as f64 / 10.0,
        target.added_p99.0 as f64 / 1e6,
        target.done_permille as f64 / 10.0
    )?;
    writeln!(text, "{}", verdict(report))
}

/// What stands above the lines.
fn heading() -> String {
    format!(
        "{:>7} {:>7} {:>8} {:>8} {:>18} {:>10} {:>20} {:>7}",
        "cpus",
        "threads",
        "period",
        "burst",
        "throttled %",
        "+p50 ms",
        "+p99 ms (low..high)",
        "done %"
    )
}

fn verdict(report: &Report<'_>) -> String {
    let advice = report.advice;
    let row = advice.recommended.map(|index| &advice.predictions[index]);
    if let Some(row) = row {
        let micros = [row.quota_ns, row.period_ns, row.burst_ns].map(|nanos| nanos / 1000);
        return recommended(micros);
    }
    without(report.verdict, advice.cpus)
}

/// Why nothing is recommended, for a machine of so many CPUs.
fn without(verdict: Verdict, cpus: u32) -> String {
    let machine = match cpus {
        1 => "the machine has 1 CPU".to_owned(),
        cpus => format!("the machine has {cpus} CPUs"),
    };
    match verdict {
        Verdict::Doubted => {
            "recommended: nothing; what stands behind DECISIVE DOUBT above says why".to_owned()
        }
        Verdict::NeverBinds => format!(
            "recommended: no limit; none of these would ever bind, since {machine}: try fewer (--cpus)"
        ),
        Verdict::BindsWithinPeriods => format!(
            "recommended: no limit; all of these give at least as much as the machine, since {machine}, and what is throttled waits for the rest of single periods: try fewer CPUs (--cpus), or longer periods (--period)"
        ),
        Verdict::HarmUpToTheMachine => format!(
            "recommended: no limit; those of these that give less than the machine do harm, and {machine}: try more CPUs below that (--cpus)"
        ),
        Verdict::Limit | Verdict::Harm => {
            "recommended: none of these; try more CPUs (--cpus)".to_owned()
        }
    }
}

/// A limit in microseconds, as each version of cgroups takes it, and in CPUs for those who take these.
fn recommended([quota, period, burst]: [u64; 3]) -> String {
    let permille = u128::from(quota) * 1000;
    let permille = permille.div_ceil(u128::from(period.max(1)));
    let cpus = format!("{}.{:03}", permille / 1000, permille % 1000);
    let [second, first] = match burst {
        0 => [String::new(), String::new()],
        burst => [
            format!(", cpu.max.burst {burst}"),
            format!(", cpu.cfs_burst_us {burst}"),
        ],
    };
    format!(
        "recommended: cpu.max \"{quota} {period}\"{second}; {cpus} CPUs, in cgroup version 1 cpu.cfs_quota_us {quota}, cpu.cfs_period_us {period}{first}"
    )
}

/// The bar as a dashed line, and where the recommendation is.
fn marks(recommended: Option<f64>, bar: f64, [margin, width, height]: [f64; 3]) -> String {
    let mut svg = format!(
        "<line class=\"bar\" x1=\"{margin}\" x2=\"{}\" y1=\"{bar:.1}\" y2=\"{bar:.1}\" stroke=\"#a00\" stroke-dasharray=\"6 4\"/><text x=\"{margin}\" y=\"{:.1}\" font-size=\"11\" fill=\"#a00\">at most</text>\n",
        width - margin,
        bar - 3.0
    );
    if let Some(place) = recommended {
        svg += &format!(
            "<line class=\"recommended\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{margin}\" y2=\"{:.1}\" stroke=\"#080\" stroke-dasharray=\"2 3\"/><text x=\"{place:.1}\" y=\"{:.1}\" font-size=\"11\" fill=\"#080\" text-anchor=\"middle\">recommended</text>\n",
            height - margin,
            margin - 6.0
        );
    }
    svg
}

fn line(row: &Prediction) -> String {
    let threads = match row.threads {
        0 => "-".to_owned(),
        threads => threads.to_string(),
    };
    let percent = |part: f64| 100.0 * part;
    let throttled = &row.throttled_ratio;
    format!(
        "{:>7.2} {threads:>7} {:>5} ms {:>5} ms {:>18} {:>10.2} {:>20} {:>7.1}",
        row.quota_ns as f64 / row.period_ns as f64,
        row.period_ns / 1_000_000,
        row.burst_ns / 1_000_000,
        format!(
            "{:.1} ({:.1}..{:.1})",
            percent(throttled.mid),
            percent(throttled.low),
            percent(throttled.high)
        ),
        row.added_p50_ns.mid / 1e6,
        if row.is_saturated {
            "grows without end".to_owned()
        } else {
            format!(
                "{:.2} ({:.2}..{:.2})",
                row.added_p99_ns.mid / 1e6,
                row.added_p99_ns.low / 1e6,
                row.added_p99_ns.high / 1e6
            )
        },
        percent(row.done_ratio.mid)
    )
}

/// Colours that stay apart for most eyes (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999",
];

/// One page with two pictures: throttled periods and what is added at p99, over CPUs, a line for each combination of
/// period, burst and threads.
pub(super) fn page(report: &Report<'_>, target: Target) -> String {
    let title = format!("What a limit would do: {}", report.input);
    let mut page = chart::page_start(&title, "", &title);
    for note in report.notes {
        page += &format!("<p>{}</p>\n", chart::escape(note));
    }
    for doubt in &report.doubts.0 {
        let word = if doubt.decisive {
            "Decisive doubt"
        } else {
            "Doubt"
        };
        page += &format!("<p><b>{word}:</b> {}</p>\n", chart::escape(&doubt.reason));
    }
    page += &format!("<p><b>{}</b></p>\n", chart::escape(&verdict(report)));
    let throttled = |row: &Prediction| {
        let ratio = row.throttled_ratio;
        [ratio.low * 100.0, ratio.mid * 100.0, ratio.high * 100.0]
    };
    let bar = target.throttled_permille as f64 / 10.0;
    page += &picture(
        report.advice,
        "throttled periods, %",
        bar,
        &throttled,
        false,
    );
    let added = |row: &Prediction| {
        let added = row.added_p99_ns;
        [added.low / 1e6, added.mid / 1e6, added.high / 1e6].map(|value| value.max(0.0))
    };
    let bar = target.added_p99.0 as f64 / 1e6;
    page += &picture(report.advice, "added at p99, ms", bar, &added, true);
    page += "<div class=\"scroll\"><pre>";
    page += &chart::escape(&heading());
    page += "\n";
    for row in &report.advice.predictions {
        page += &chart::escape(&line(row));
        page += "\n";
    }
    page += "</pre></div>\n";
    page + chart::PAGE_END
}

/// A figure over CPUs, with the bar that it has to stay below and the recommendation. A time that grows without end has no place on
/// the axis: it is a mark at its top, and does not crush what can be told apart.
fn picture(
    advice: &Advice,
    label: &str,
    bar: f64,
    figures: &dyn Fn(&Prediction) -> [f64; 3],
    is_time: bool,
) -> String {
    let is_off = |row: &Prediction| is_time && row.is_saturated;
    const WIDTH: f64 = 760.0;
    const HEIGHT: f64 = 280.0;
    const MARGIN: f64 = 50.0;
    let share = |row: &Prediction| row.quota_ns as f64 / row.period_ns as f64;
    let right = advice.predictions.iter().map(share).fold(0.1, f64::max);
    let finite = advice.predictions.iter().filter(|row| !is_off(row));
    let top = finite
        .map(|row| figures(row)[2])
        .fold(bar.max(1.0) * 1.2, f64::max);
    let x = |value: f64| MARGIN + value / right * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - (value / top).min(1.0) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<h2>{label}</h2>\n<figure class=\"scroll wide\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" style=\"max-width:{WIDTH}px\" role=\"img\" aria-label=\"{label}\">\n"
    );
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        svg += &format!(
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/><text x=\"4\" y=\"{y:.1}\" class=\"tick\">{value:.1}</text>\n",
            WIDTH - MARGIN,
            y = y(value)
        );
    }
    svg += &marks(
        advice
            .recommended
            .map(|index| x(share(&advice.predictions[index]))),
        y(bar),
        [MARGIN, WIDTH, HEIGHT],
    );
    let key = |row: &Prediction| (row.threads, row.period_ns, row.burst_ns > 0);
    let curves = advice
        .predictions
        .chunk_by(|one, other| key(one) == key(other));
    for (number, curve) in curves.enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> = curve
            .iter()
            .filter(|row| !is_off(row))
            .map(|row| format!("{:.1},{:.1}", x(share(row)), y(figures(row)[1])))
            .collect();
        svg += &format!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n",
            points.join(" ")
        );
        for row in curve {
            let [low, _, high] = figures(row);
            if is_off(row) {
                svg += &format!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" font-size=\"12\" text-anchor=\"middle\"><title>grows without end</title>&#9650;</text>\n",
                    x(share(row)),
                    y(top) - 2.0
                );
                continue;
            }
            svg += &format!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\n",
                y(low),
                y(high),
                x = x(share(row))
            );
        }
        let row = &curve[0];
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" font-size=\"12\">period {} ms{}{}</text>\n",
            WIDTH - 220.0,
            20.0 + 15.0 * number as f64,
            row.period_ns / 1_000_000,
            if row.burst_ns > 0 { ", burst" } else { "" },
            if row.threads > 0 {
                format!(", {} threads", row.threads)
            } else {
                String::new()
            }
        );
    }
    let mut last = f64::NEG_INFINITY;
    let mut labelled: Vec<f64> = advice.predictions.iter().map(share).collect();
    labelled.sort_by(f64::total_cmp);
    for value in labelled {
        // Finer shares lie too close for a label each.
        if x(value) < last + 34.0 {
            continue;
        }
        last = x(value);
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\">{:.2}</text>\n",
            x(value),
            HEIGHT - MARGIN + 16.0,
            value
        );
    }
    svg + &format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\">CPUs</text></svg></figure>\n",
        WIDTH / 2.0,
        HEIGHT - 8.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_said_as_whoever_sets_it_needs_it() {
        assert_eq!(
            recommended([43_210, 100_000, 0]),
            "recommended: cpu.max \"43210 100000\"; 0.433 CPUs, in cgroup version 1 cpu.cfs_quota_us 43210, cpu.cfs_period_us 100000"
        );
        let burst = recommended([40_000, 20_000, 5_000]);
        assert!(
            burst.contains("\"40000 20000\", cpu.max.burst 5000; 2.000 CPUs"),
            "{burst}"
        );
        assert!(
            burst.ends_with("cpu.cfs_period_us 20000, cpu.cfs_burst_us 5000"),
            "{burst}"
        );
    }
}
