//! What all pictures share: scales, axes, the page around them. Inline SVG and CSS that ask the network for nothing;
//! colours are CSS variables, so that they follow light and dark.

use std::fmt::Write as _;

/// The style of a page: `main`, headings, tables, and the classes that [`Frame`] uses.
pub const STYLE: &str = "
:root{color-scheme:light dark;--page:#fff;--text:#1c2330;--soft:#5d6778;--line:#dde2ea;--victim:#2563eb;--hogs:#f2a33a;--bad:#dc2626;--good:#0f9d58;--mild:#8a94a6}
@media(prefers-color-scheme:dark){:root{--page:#12161d;--text:#e7ebf2;--soft:#9aa5b6;--line:#2c3442;--victim:#6b9bff;--hogs:#d88a1f;--bad:#f87171;--good:#34d399;--mild:#7d8798}}
body{margin:0;overflow-wrap:anywhere;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:1020px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0 0 6px}h2{font-size:18px;margin:36px 0 6px}h3{font-size:16px;margin:22px 0 2px}
p{margin:6px 0;max-width:76ch}.soft,figcaption{color:var(--soft);font-size:14px}h3 .soft{font-weight:400;margin-left:8px}
svg{width:100%;height:auto;display:block}figure{margin:0}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:14px}@media(max-width:760px){.pair{grid-template-columns:1fr}}
.grid{stroke:var(--line);stroke-width:1}.round{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4}
.tick{fill:var(--soft);font-size:12px}.name{fill:var(--text);font-size:15px}.value{fill:var(--text);font-size:15px;font-weight:600}
.victim{fill:var(--victim)}.hogs{fill:var(--hogs)}.latency{fill:none;stroke:var(--victim);stroke-width:2.2;stroke-linejoin:round}
.bad{fill:var(--bad)}.good{fill:var(--good)}.mild{fill:var(--mild)}
.key{display:inline-block;width:12px;height:12px;border-radius:3px;margin:0 5px 0 12px;vertical-align:-1px}
.scroll{overflow-x:auto}.wide svg{min-width:640px}table{border-collapse:collapse;width:100%;font-size:15px;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}
";

/// A page up to the end of its heading; `style` is added to [`STYLE`]. End it with [`PAGE_END`].
pub fn page_start(title: &str, style: &str, heading: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{}</title><style>{STYLE}{style}</style></head><body><main>\n<h1>{}</h1>\n",
        escape(title),
        escape(heading)
    )
}

/// The end of a page.
pub const PAGE_END: &str = "</main></body></html>\n";

/// From values to places in a chart with time from left to right.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Width, in SVG units.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// Room for the labels left of the plot.
    pub left: f64,
    /// Room right of the plot.
    pub right: f64,
    /// Room above the plot.
    pub top: f64,
    /// Room for the labels below the plot.
    pub bottom: f64,
    /// What the width of the plot stands for.
    pub seconds: f64,
}

impl Frame {
    /// Where a moment is, within the plot.
    pub fn x(&self, seconds: f64) -> f64 {
        let plot = self.width - self.left - self.right;
        self.left + plot * (seconds / self.seconds.max(1e-9)).clamp(0.0, 1.0)
    }

    /// `part` of the plot's height, 0 at the bottom.
    pub fn y(&self, part: f64) -> f64 {
        let plot = self.height - self.top - self.bottom;
        self.height - self.bottom - plot * part.clamp(0.0, 1.0)
    }

    /// The opening tag; `label` is for those who cannot see the picture.
    pub fn open(&self, label: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
            self.width,
            self.height,
            escape(label)
        )
    }

    /// A horizontal line at `part` of the height, with its label.
    pub fn grid(&self, part: f64, label: &str) -> String {
        let y = self.y(part);
        let (x, right) = (self.left - 6.0, self.width - self.right);
        format!(
            "<line class=\"grid\" x1=\"{}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            self.left,
            y + 4.0
        )
    }

    /// The labels of the time axis.
    pub fn time_axis(&self) -> String {
        let mut text = String::new();
        let step = nice_step(self.seconds / 5.0);
        let mut seconds = 0.0;
        while seconds <= self.seconds + 1e-6 * step {
            let unit = if seconds == 0.0 { " s" } else { "" };
            let _ = write!(
                text,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}{unit}</text>",
                self.x(seconds),
                self.height - self.bottom + 18.0,
                trim(seconds)
            );
            seconds += step;
        }
        text
    }
}

/// The powers of ten of microseconds that hold all `values`, at least 100 µs to 10 ms.
pub fn decades(values: impl Iterator<Item = u64>) -> (u32, u32) {
    let (mut low, mut high) = (100, 10_000);
    for value in values {
        (low, high) = (value.clamp(1, low), value.max(high));
    }
    (low.ilog10(), (high - 1).ilog10() + 1)
}

/// Where `micros` lies between two powers of ten, on a logarithmic scale from 0 to 1.
pub fn part_of(micros: u64, (low, high): (u32, u32)) -> f64 {
    let position = (micros.max(1) as f64).log10() - f64::from(low);
    (position / f64::from(high.saturating_sub(low).max(1))).clamp(0.0, 1.0)
}

/// A power of ten of microseconds, for people.
pub fn decade_label(decade: u32) -> String {
    match decade {
        0..3 => format!("{} µs", 10u64.pow(decade)),
        3..6 => format!("{} ms", 10u64.pow(decade - 3)),
        _ => format!("{} s", 10u64.saturating_pow(decade - 6)),
    }
}

/// Microseconds for people: three digits and a unit.
pub fn duration(micros: u64) -> String {
    let value = micros as f64;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.2} ms", value / 1e3),
        10_000..100_000 => format!("{:.1} ms", value / 1e3),
        100_000..1_000_000 => format!("{:.0} ms", value / 1e3),
        _ => format!("{:.2} s", value / 1e6),
    }
}

/// The next of 1, 2, 5, 10, ... (times a power of ten) at or above `rough`.
pub fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.max(1e-6).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * (1.0 - 1e-9))
        .unwrap_or(power)
}

/// A figure without needless digits.
pub fn trim(value: f64) -> String {
    let text = if value.abs() < 0.01 {
        format!("{value:.6}")
    } else {
        format!("{value:.2}")
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text that is safe inside a page and inside an attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_their_values() {
        assert_eq!(decades([700, 3_000].into_iter()), (2, 4));
        assert_eq!(decades([90, 2_300_000].into_iter()), (1, 7));
        assert_eq!(decades([1_000_000].into_iter()), (2, 6));
        assert!((part_of(1_000, (2, 4)) - 0.5).abs() < 1e-9);
        assert_eq!(
            [0.0003, 0.3, 1.1, 4.0, 7.0].map(nice_step).map(trim),
            ["0.0005", "0.5", "2", "5", "10"]
        );
        assert_eq!(
            decade_label(2) + &decade_label(4) + &decade_label(6),
            "100 µs10 ms1 s"
        );
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(
            [870, 1_234, 56_780, 812_400, 2_345_678].map(duration),
            ["870 µs", "1.23 ms", "56.8 ms", "812 ms", "2.35 s"]
        );
    }

    #[test]
    fn nothing_escapes_from_a_text() {
        assert_eq!(escape("<a b=\"&\">"), "&lt;a b=&quot;&amp;&quot;&gt;");
    }
}
