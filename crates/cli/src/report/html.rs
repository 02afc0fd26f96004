//! The picture: one HTML file with inline SVG and CSS that asks the network for nothing.

use std::fmt::Write as _;

use quotient_trace::chart::{PAGE_END, decades, duration, escape, page_start};

use super::{Report, svg, tenants};
use crate::demo::mode::Mode;
use crate::demo::results::{Row, Series};

/// The whole page.
pub fn page(report: &Report) -> String {
    let rows = &report.rows;
    let p99 = rows.iter().map(|row| row.p99_us);
    let points = report
        .series
        .iter()
        .flat_map(|series| series.p99.iter().flatten().map(|point| point.1));
    let curve_scale = decades(points);
    let bar_scale = decades(p99);
    let cpus = cpu_scale(&report.series);
    let title = "Quotient: a noisy neighbour, tamed";
    let mut text = page_start(title, "", "A noisy neighbour on one HTTP server");
    let _ = writeln!(text, "<p>{}</p>", escape(&report.verdict));
    let bars: Vec<_> = rows
        .iter()
        .map(|row| (row.mode.name(), row.p99_us, bar_class(row.mode)))
        .collect();
    let _ = write!(
        text,
        "<h2>The victim's p99 latency</h2>\n<p class=\"soft\">{} req/s arrive whatever the answers; counted from the \
         intended start; logarithmic scale<br>{}</p>\n<figure class=\"scroll wide\">{}</figure>\n<h2>Over time</h2>\n<p class=\"soft\">Left: CPU of \
         the server process, by group <i class=\"key\" style=\"background:var(--victim)\"></i>victim and its runtime<i \
         class=\"key\" style=\"background:var(--hogs)\"></i>hogs. Right: the victim's p99. Dashed: the next round.</p>\n",
        report.facts.rate_rps,
        bars_key(),
        svg::bars(&bars, bar_scale)
    );
    for series in &report.series {
        let _ = write!(
            text,
            "<h3>{}<span class=\"soft\">{}</span></h3>\n<div class=\"pair\"><figure>{}</figure><figure>{}</figure></div>\n",
            series.mode,
            series.mode.description(),
            svg::cpu(series, cpus),
            svg::p99(series, curve_scale)
        );
    }
    let scene = report.scene.as_ref().map_or_else(String::new, |scene| {
        tenants::section(scene, report.validity.judged)
    });
    text + "<h2>The figures</h2>\n" + &table(rows) + &conditions(report) + &scene + PAGE_END
}

/// The top of the CPU scale: the highest stack, rounded up to half a CPU.
fn cpu_scale(series: &[Series]) -> f64 {
    let stacks = series
        .iter()
        .flat_map(|series| series.cpu.iter().flatten())
        .map(|point| point.victim + point.hogs);
    (stacks.fold(0.0, f64::max) * 2.0 - 0.1).ceil().max(1.0) / 2.0
}

/// What the colours of the bars say.
fn bars_key() -> String {
    let entries = [
        ("mild", "the victim alone"),
        ("bad", "with hogs on one tokio runtime"),
        ("hogs", "hogs on a second runtime"),
        ("good", "with hogs, in Quotient groups"),
    ];
    let entry = |(class, words)| {
        format!("<i class=\"key\" style=\"background:var(--{class})\"></i>{words}")
    };
    entries.map(entry).concat()
}

fn bar_class(mode: Mode) -> &'static str {
    match mode {
        Mode::Tokio => "bad",
        Mode::TwoRuntimes => "hogs",
        Mode::Alone | Mode::QuotientAlone => "mild",
        Mode::Quotient | Mode::QuotientCapped => "good",
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>mode</th><th>req/s</th><th>p50</th><th>p99</th><th>max</th>\
         <th>victim CPU</th><th>hog CPU</th><th>capacity req/s</th></tr></thead><tbody>\n",
    );
    for row in rows {
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{:.0}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{:.0}</td></tr>",
            row.mode,
            row.victim_rps,
            duration(row.p50_us),
            duration(row.p99_us),
            duration(row.max_us),
            row.victim_cpu,
            row.hog_cpu,
            row.capacity_rps
        );
    }
    text + "</tbody></table></div>\n"
}

fn conditions(report: &Report) -> String {
    let facts = &report.facts;
    format!(
        "<p class=\"soft\">{} CPUs; the server has {} tokio worker(s) per runtime{}; {} keep-alive connections, {} hogs: one poll without end, one in \
         eight in polls of 20 ms, the others of 50 µs to 1 ms; {} round(s), {:.0} s, seed {}, Quotient {}. req/s, latencies and CPU: open loop with Poisson arrivals. \
         Capacity: closed loop, median of the rounds. CPU counts CPUs: 0.5 is half of one, all the time. Requests \
         still unanswered at the end of a round count with the time they had waited.</p>\n",
        facts.cpus,
        facts.workers,
        if facts.confined {
            " and as many CPUs in every mode"
        } else {
            ""
        },
        facts.connections,
        facts.hogs,
        facts.rounds,
        facts.seconds,
        facts.seed,
        escape(&facts.version)
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::demo::disturbance::tests::sample_validity;
    use crate::demo::results::CpuPoint;
    use crate::report::{Facts, Figures};

    /// Conditions of a run.
    pub(in crate::report) fn facts() -> Facts {
        Facts {
            version: "0.0.0".into(),
            cpus: 2,
            workers: 1,
            hogs: 64,
            connections: 8,
            rounds: 1,
            rate_rps: 200,
            seed: 1,
            confined: true,
            seconds: 5.0,
        }
    }

    fn sample_report() -> Report {
        let row = |mode, p99_us| Row {
            mode,
            victim_rps: 100.0,
            offered_rps: 200.0,
            p50_us: 80,
            p99_us,
            max_us: p99_us * 2,
            unanswered: 1,
            hog_cpu: 0.5,
            victim_cpu: 0.4,
            hog_documents_per_second: 1e4,
            hog_group_cpu: Some(0.5),
            victim_group_cpu: None,
            capacity_rps: 5_000.0,
            capacity_range_rps: (4_500.0, 5_200.0),
            capacity_hog_cpu: 0.5,
        };
        let series = |mode| Series {
            mode,
            round_seconds: 2.0,
            cpu: vec![vec![CpuPoint {
                from: 0.0,
                to: 0.1,
                victim: 0.4,
                hogs: 0.5,
            }]],
            p99: vec![vec![(0.0, 900), (0.25, 90_000)]],
        };
        let modes = Mode::ALL;
        let figures = Figures {
            rows: modes
                .into_iter()
                .zip([300, 310, 900_000, 6_000, 1_900])
                .map(|(mode, p99)| row(mode, p99))
                .collect(),
            series: modes.into_iter().map(series).collect(),
            scene: Some(crate::report::tenants::tests::sample_scene()),
        };
        Report::new(facts(), figures, sample_validity(None))
    }

    #[test]
    fn the_page_is_self_contained_and_names_every_mode() {
        let page = page(&sample_report());
        for banned in [
            "http:", "https:", "src=", "href=", "url(", "@import", "<script", "NaN", "inf",
        ] {
            assert!(!page.contains(banned), "the page contains {banned}");
        }
        for mode in Mode::ALL {
            assert!(
                page.contains(mode.name()) && page.contains(mode.description()),
                "{mode}"
            );
        }
        for mode in Mode::ALL {
            let key = format!("background:var(--{})\"></i>", bar_class(mode));
            assert!(page.contains(&key), "{mode} has a colour without a word");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page.matches("<svg").count(), 1 + 2 * Mode::ALL.len());
    }

    #[test]
    fn the_json_object_has_facts_and_rows_and_no_curves() {
        let value = serde_json::to_value(sample_report()).expect("plain structs");
        assert_eq!(value["rows"][2]["mode"], "tokio");
        assert_eq!(value["rows"][0]["p50_us"], 80);
        assert_eq!(value["rate_rps"], 200);
        assert!(
            value["verdict"]
                .as_str()
                .is_some_and(|text| text.contains("64 hogs"))
        );
        assert_eq!(value["validity"]["judged"], true);
        assert!(value.get("series").is_none());
    }
}
