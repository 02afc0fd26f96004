//! The scene of twenty tenants: table, sentence, and its part of the page.

use std::fmt::Write as _;

use quotient_trace::chart::duration;

use crate::demo::tenants::results::Got;
use crate::demo::tenants::{Scene, Tenant};

/// A line a tenant, at most 80 columns.
pub fn table(scene: &Scene) -> String {
    let mut text = format!(
        "20 tenants, one server: shares of the CPU time, requests answered in {:.1} s\n\
         \x20                         ------ tokio ------    ----- quotient -----\n\
         weight  request    due     share  req      p99     share  req      p99\n",
        scene.seconds
    );
    for tenant in &scene.tenants {
        let _ = writeln!(
            text,
            "{:>6}{:>9}{:>6.1}%{:>9.1}%{:>5}{:>9}{:>9.1}%{:>5}{:>9}",
            tenant.weight,
            request(tenant),
            100.0 * tenant.due,
            100.0 * tenant.tokio.share,
            tenant.tokio.requests,
            p99(&tenant.tokio),
            100.0 * tenant.quotient.share,
            tenant.quotient.requests,
            p99(&tenant.quotient),
        );
    }
    text
}

/// Shares of less time than this say nothing: a weight of the twenty is 2 to 8 %, and half of the requests take 20 ms. Unit: seconds.
const SHORTEST: f64 = 1.0;

/// What the scene shows, in a run that is `judged` or not.
pub fn sentence(scene: &Scene, judged: bool) -> String {
    if !judged {
        return "The twenty tenants: not judged either, in a disturbed run.".to_owned();
    }
    if scene.seconds < SHORTEST {
        return format!(
            "The twenty tenants: not judged, {:.1} s are too short (at least {SHORTEST:.0} s; `--seconds` gives more).",
            scene.seconds
        );
    }
    format!(
        "Of twenty tenants with one server, each of which asks for as much as it gets, the one farthest from its due had {:.2} times \
         it on tokio, and {:.2} times in a group of its weight.",
        scene.farthest.0, scene.farthest.1
    )
}

/// Its part of the page.
pub fn section(scene: &Scene, judged: bool) -> String {
    let widest = scene
        .tenants
        .iter()
        .flat_map(|tenant| [tenant.due, tenant.tokio.share, tenant.quotient.share])
        .fold(1e-9, f64::max);
    let mut text = format!(
        "<h2>Twenty tenants, one server</h2>\n<p>{}</p>\n<p class=\"soft\">Weights from 100 to 480; every second tenant asks for 0.5 ms of \
         work at a time, the others for 20 ms in one poll. Share: of the CPU time of all requests; requests: answered in {:.1} s. Two runtimes cannot do this.</p>\n\
         <div class=\"scroll\"><table><thead><tr><th>weight</th><th>request</th><th>due</th><th>tokio</th><th>requests</th><th>p99</th>\
         <th>Quotient</th><th>requests</th><th>p99</th></tr></thead><tbody>\n",
        sentence(scene, judged),
        scene.seconds
    );
    let bar = |share: f64, color: &str| {
        format!(
            "<i style=\"display:inline-block;height:.6em;width:{:.1}px;background:var(--{color})\"></i> {:.1} %",
            60.0 * share / widest,
            100.0 * share
        )
    };
    for tenant in &scene.tenants {
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{:.1} %</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            tenant.weight,
            request(tenant),
            100.0 * tenant.due,
            bar(tenant.tokio.share, "hogs"),
            tenant.tokio.requests,
            p99(&tenant.tokio),
            bar(tenant.quotient.share, "victim"),
            tenant.quotient.requests,
            p99(&tenant.quotient)
        );
    }
    text + "</tbody></table></div>\n"
}

/// Of nothing there is no percentile.
fn p99(got: &Got) -> String {
    got.p99_us.map_or_else(|| "-".to_owned(), duration)
}

fn request(tenant: &Tenant) -> String {
    duration((tenant.request_ms * 1e3) as u64)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A scene in which every tenant has its due in groups.
    pub(in crate::report) fn sample_scene() -> Scene {
        let tenant = |number: u32| {
            let got = |share: f64| Got {
                share,
                requests: if share > 0.0 { 100 } else { 0 },
                p99_us: (share > 0.0).then_some(12_345),
            };
            Tenant {
                weight: 100 + 20 * number,
                request_ms: 0.5,
                due: 0.05,
                tokio: got(0.0),
                quotient: got(0.05),
            }
        };
        Scene {
            seconds: 2.64,
            tenants: (0..20).map(tenant).collect(),
            farthest: (0.0, 1.0),
        }
    }

    #[test]
    fn the_table_has_a_line_a_tenant_and_fits() {
        let text = table(&sample_scene());
        assert_eq!(text.lines().count(), 23);
        assert!(text.contains("requests answered in 2.6 s"), "{text}");
        assert!(
            text.contains("0.0%    0        - ") && !text.contains(" 0 µs"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    }

    /// Hazard: of a run that compared nothing, or of 0.3 s in which nobody was answered, it was said how far tenants were from their due.
    #[test]
    fn a_scene_is_judged_as_its_run_is() {
        let mut scene = sample_scene();
        assert!(sentence(&scene, true).contains("0.00 times it on tokio, and 1.00 times"));
        assert!(sentence(&scene, false).contains("not judged"));
        assert!(section(&scene, false).contains("not judged"));
        scene.seconds = 0.3;
        assert!(sentence(&scene, true).contains("not judged, 0.3 s"));
    }
}
