//! What the groups of a [`quotient::Scheduler`] use and wait for, as Prometheus reads it.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = quotient::Scheduler::builder().build()?;
//! let exporter = quotient_prometheus::Exporter::new(&scheduler);
//! scheduler.group("tenants/acme")?.create()?;
//! let page = exporter.render(); // serve it as quotient_prometheus::CONTENT_TYPE
//! assert!(page.contains("container_spec_cpu_shares{id=\"/tenants/acme\"} 1024\n"));
//! # scheduler.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Names
//! What a control group has too is called as cAdvisor calls it (`container_cpu_*`, `container_spec_cpu_*`), with the group's path as
//! `id`, so that dashboards and alerts for containers serve groups as well; the rest is `quotient_*`. `FAMILIES` is the list.
//! Counters include descendants where cAdvisor's do (`container_*`); the others are of the group's own tasks. The counters of a group end
//! with it.
//!
//! # Why the text is written here
//! A scrape of a thousand groups is some forty thousand lines. A registry keeps a cell for each and formats it by way of traits; all that is
//! needed is one pass over figures that the scheduler has anyway. It holds no state between scrapes, and stops nobody.
#![forbid(unsafe_code)]

mod families;
mod text;

use quotient::{FlipError, Group, Scheduler};

pub use self::families::{FAMILIES, Family, Kind};
use self::text::{Page, escaped};

/// The media type of [`Exporter::render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes the figures of one scheduler. Cheap to clone; keeps the scheduler alive as any handle does.
#[derive(Clone, Debug)]
pub struct Exporter {
    scheduler: Scheduler,
    histograms: bool,
}

impl Exporter {
    /// Of all groups of `scheduler`, with histograms.
    pub fn new(scheduler: &Scheduler) -> Self {
        Self {
            scheduler: scheduler.clone(),
            histograms: true,
        }
    }

    /// Whether run delays and durations of polls are written: two thirds of the lines. On by default; a group without values has none.
    #[must_use]
    pub fn histograms(mut self, on: bool) -> Self {
        self.histograms = on;
        self
    }

    /// Has durations of polls recorded from here on ([`Scheduler::set_poll_histograms`]): in the whole process, two stores a poll.
    ///
    /// # Errors
    /// [`FlipError`] if code cannot be rewritten now; nothing has changed.
    pub fn record_poll_durations(self) -> Result<Self, FlipError> {
        self.scheduler.set_poll_histograms(true)?;
        Ok(self)
    }

    /// Every figure as it is now, in the text format 0.0.4. O(groups x virtual CPUs).
    pub fn render(&self) -> String {
        let groups = self.scheduler.groups();
        let mut page = Page::new(groups.len(), self.histograms);
        for group in &groups {
            families::add_group(&mut page, group, self.histograms);
        }
        families::add_scheduler(&mut page, &self.scheduler);
        page.finish()
    }
}

/// `{id="/path"`, without its closing brace.
fn labels_of(group: &Group) -> String {
    let mut labels = String::with_capacity(group.path().len() + 8);
    labels.push_str("{id=\"/");
    escaped(group.path(), &mut labels);
    labels.push('"');
    labels
}
