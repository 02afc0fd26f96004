//! The table and the page.

use std::fmt::Write as _;
use std::time::Duration;

use quotient_trace::chart::{Frame, PAGE_END, escape, page_start};
use serde::Serialize;

use super::NODES;

/// A part of the run.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What happened.
    pub phase: &'static str,
    /// When it began, and how long it took, in seconds.
    pub from: f64,
    pub seconds: f64,
    /// CPUs of the tenant in each node.
    pub cpu: [f64; NODES],
    /// Answers a second.
    pub answered: f64,
    /// Requests that failed: those under way at a killed node, and connections that it refused.
    pub failed: u64,
    /// Round trips to the store a second, of all nodes.
    pub calls: f64,
    /// Nodes on their floors at the end.
    pub floors: usize,
}

impl Row {
    fn total(&self) -> f64 {
        self.cpu.iter().sum()
    }
}

/// CPUs of each node over a short time.
#[derive(Debug)]
pub struct Point {
    from: f64,
    to: f64,
    cpu: [f64; NODES],
}

impl Point {
    /// From CPU times at two moments.
    pub fn between(
        from: Duration,
        to: Duration,
        before: &[u64; NODES],
        after: &[u64; NODES],
    ) -> Point {
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let length = (to - from).max(1e-9);
        Point {
            from,
            to,
            cpu: std::array::from_fn(|index| {
                after[index].saturating_sub(before[index]) as f64 / 1e6 / length
            }),
        }
    }
}

/// What came out.
#[derive(Debug, Serialize)]
pub struct Run {
    /// What the tenant may use in all nodes, in CPUs.
    quota_cpus: f64,
    seconds: u64,
    pub rows: Vec<Row>,
    #[serde(skip)]
    pub points: Vec<Point>,
}

impl Run {
    pub fn new(quota_cpus: f64, seconds: u64) -> Run {
        Run {
            quota_cpus,
            seconds,
            rows: Vec::new(),
            points: Vec::new(),
        }
    }
}

/// One row for the progress.
pub fn brief(row: &Row) -> String {
    format!(
        "{:>5.1} s  {:<22} {:.2} CPU in the fleet",
        row.from,
        row.phase,
        row.total()
    )
}

/// At most 80 columns.
pub fn table(run: &Run) -> String {
    let mut text = format!(
        "One tenant, {} CPU in the fleet, {NODES} server processes\n\n{:<22}{:>5}{:>7}{:>7}{:>7}{:>7}{:>8}{:>8}{:>7}\n",
        run.quota_cpus,
        "what happens",
        "s",
        "node 1",
        "node 2",
        "node 3",
        "node 4",
        "fleet",
        "req/s",
        "failed"
    );
    for row in &run.rows {
        let _ = write!(text, "{:<22}{:>5.1}", row.phase, row.seconds);
        for cpu in row.cpu {
            let _ = write!(text, "{cpu:>7.2}");
        }
        let _ = writeln!(
            text,
            "{:>8.2}{:>8.0}{:>7}",
            row.total(),
            row.answered,
            row.failed
        );
    }
    text + "\nCPUs of the tenant; without the store a node goes on with its lease, then with its floor\n\
            (5 % of the quota for all), and an empty store grants nothing while a lease lasts (0.625 s).\n"
}

/// One HTML file with inline SVG that asks the network for nothing.
pub fn page(run: &Run) -> String {
    let title = "Quotient: one tenant, one CPU, four processes";
    let style = ":root{--n0:#2563eb;--n1:#f2a33a;--n2:#0f9d58;--n3:#a855f7}\
        .n0{fill:var(--n0)}.n1{fill:var(--n1)}.n2{fill:var(--n2)}.n3{fill:var(--n3)}\
        .quota{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:6 4}.event{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4}";
    let mut text = page_start(title, style, "One tenant, one CPU, four processes");
    let _ = write!(
        text,
        "<p>The tenant may use {} CPU in all processes together. The load moves between them; one process and the store are \
         killed on the way.</p>\n<p class=\"soft\">CPU of the tenant, stacked by process:",
        run.quota_cpus
    );
    for index in 0..NODES {
        let _ = write!(
            text,
            "<i class=\"key\" style=\"background:var(--n{index})\"></i>node {}",
            index + 1
        );
    }
    let _ = write!(
        text,
        ". Red: the quota. Dotted: what happens next.</p>\n<figure class=\"scroll wide\">{}</figure>\n<h2>The figures</h2>\n\
         <div class=\"scroll\"><table><thead><tr><th>what happens</th><th>from</th><th>seconds</th>",
        chart(run)
    );
    for index in 1..=NODES {
        let _ = write!(text, "<th>node {index}</th>");
    }
    text +=
        "<th>fleet</th><th>req/s</th><th>failed</th><th>store calls/s</th></tr></thead><tbody>\n";
    for row in &run.rows {
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{:.1} s</td><td>{:.1}</td>",
            escape(row.phase),
            row.from,
            row.seconds
        );
        for cpu in row.cpu {
            let _ = write!(text, "<td>{cpu:.2}</td>");
        }
        let _ = writeln!(
            text,
            "<td>{:.2}</td><td>{:.0}</td><td>{}</td><td>{:.1}</td></tr>",
            row.total(),
            row.answered,
            row.failed,
            row.calls
        );
    }
    text + "</tbody></table></div>\n<p class=\"soft\">Without the store a process goes on with its lease, then with its floor \
        (5 % of the quota for all of them); an empty store grants nothing for one lease, since it cannot know what was granted.</p>\n"
        + PAGE_END
}

fn chart(run: &Run) -> String {
    let end = run.points.last().map_or(1.0, |point| point.to);
    let highest = run
        .points
        .iter()
        .map(|point| point.cpu.iter().sum::<f64>())
        .fold(run.quota_cpus * 1.25, f64::max);
    let frame = Frame {
        width: 980.0,
        height: 300.0,
        left: 58.0,
        right: 10.0,
        top: 18.0,
        bottom: 30.0,
        seconds: end,
    };
    let mut text = frame.open("CPU of the tenant over time, by process");
    let mut paths: [String; NODES] = Default::default();
    for point in &run.points {
        let (left, right) = (frame.x(point.from), frame.x(point.to));
        let mut below = 0.0;
        for (path, cpu) in paths.iter_mut().zip(point.cpu) {
            let (low, high) = (frame.y(below / highest), frame.y((below + cpu) / highest));
            let _ = write!(path, "M{left:.1} {low:.1}V{high:.1}H{right:.1}V{low:.1}Z");
            below += cpu;
        }
    }
    for (index, path) in paths.iter().enumerate() {
        let _ = write!(text, "<path class=\"n{index}\" d=\"{path}\"/>");
    }
    for level in [0.0, run.quota_cpus / 2.0, run.quota_cpus] {
        text += &frame.grid(level / highest, &format!("{level} CPU"));
    }
    let line = |class: &str, x1: f64, y1: f64, x2: f64, y2: f64| {
        format!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        )
    };
    let quota = frame.y(run.quota_cpus / highest);
    text += &line("quota", frame.x(0.0), quota, frame.x(end), quota);
    for row in &run.rows {
        let x = frame.x(row.from);
        text += &line("event", x, frame.y(1.0), x, frame.y(0.0));
        let _ = write!(
            text,
            "<text class=\"tick\" x=\"{:.1}\" y=\"12\">{}</text>",
            x + 3.0,
            escape(row.phase)
        );
    }
    text + &frame.time_axis() + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_page_name_every_phase_and_ask_nobody() {
        let mut run = Run::new(1.0, 6);
        let used = [[0; NODES], [60_000, 20_000, 0, 20_000]];
        let point = Point::between(
            Duration::ZERO,
            Duration::from_millis(100),
            &used[0],
            &used[1],
        );
        for (cpu, expected) in point.cpu.into_iter().zip([0.6_f64, 0.2, 0.0, 0.2]) {
            assert!((cpu - expected).abs() < 1e-9, "{:?}", point.cpu);
        }
        run.points.push(point);
        for phase in ["only node 1", "kill -9 of the store"] {
            run.rows.push(Row {
                phase,
                from: 0.0,
                seconds: 3.0,
                cpu: [0.6, 0.2, 0.0, 0.2],
                answered: 800.0,
                failed: 2,
                calls: 10.0,
                floors: 0,
            });
        }
        let (table, page) = (table(&run), page(&run));
        assert!(
            table.lines().all(|line| line.chars().count() <= 92),
            "{table}"
        );
        for row in &run.rows {
            assert!(table.contains(row.phase) && page.contains(row.phase));
        }
        for banned in ["http:", "https:", "src=", "href=", "<script", "NaN", "inf"] {
            assert!(!page.contains(banned), "the page contains {banned}");
        }
    }
}
