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
//! needed is one pass over figures that the scheduler has anyway, and to write those that have changed into the last page. That, some
//! 6 KB a group, is all that is held between scrapes; nobody is stopped.
#![forbid(unsafe_code)]

mod digits;
mod families;
mod text;

use std::fmt;
use std::sync::{Arc, Mutex};

use quotient::{FlipError, Group, Scheduler};

pub use self::families::{FAMILIES, Family, Kind, Sink};
use self::families::{Lines, ToSink, Wanted};
pub use self::text::Text;
use self::text::{Layout, Page};

/// The media type of [`Exporter::render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes the figures of one scheduler. Cheap to clone; keeps the scheduler alive as any handle does.
#[derive(Clone)]
pub struct Exporter {
    scheduler: Scheduler,
    histograms: bool,
    pressure: bool,
    /// The last page.
    kept: Arc<Mutex<Page>>,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = formatter.debug_struct("Exporter");
        parts.field("histograms", &self.histograms);
        parts.field("pressure", &self.pressure);
        parts.finish_non_exhaustive()
    }
}

impl Exporter {
    /// Of all groups of `scheduler`, with histograms.
    pub fn new(scheduler: &Scheduler) -> Self {
        Self {
            scheduler: scheduler.clone(),
            histograms: true,
            pressure: false,
            kept: Arc::default(),
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

    /// Has pressure recorded from here on ([`Scheduler::set_pressure`]) and written: totals, and averages over 10, 60 and 300 s.
    #[must_use]
    pub fn record_pressure(mut self) -> Self {
        self.scheduler.set_pressure(true);
        self.pressure = true;
        self
    }

    /// Every figure as it is now, as a text of one's own. O(groups x virtual CPUs). [`Exporter::page`] is the same without a copy.
    pub fn render(&self) -> String {
        let page = self.page();
        String::from_utf8(page.as_ref().to_vec()).unwrap_or_else(|error| {
            // Names of groups are UTF-8, and the rest is ASCII.
            unreachable!("{error}")
        })
    }

    /// Every figure as it is now, in the text format 0.0.4, for a body of bytes. O(groups x virtual CPUs); what has not changed since the
    /// last call stays as it is.
    pub fn page(&self) -> Text {
        // Two scrapes at a time: the second has a page of its own.
        let mut kept = self.kept.try_lock();
        let mut own = Page::default();
        let page = match &mut kept {
            Ok(kept) => &mut **kept,
            Err(_) => &mut own,
        };
        let (groups, is_there) = page.list(&self.scheduler);
        let is_whole = is_there && {
            let mut refresh = page.refresh();
            self.visit_groups(&groups, &mut refresh);
            refresh.is_whole()
        };
        if !(is_whole && page.write_changes()) {
            let mut layout = Layout::default();
            self.visit_groups(&groups, &mut layout);
            page.lay_out(layout);
        }
        page.keep(groups);
        page.text()
    }

    /// Hands every figure to `sink`: for other formats and other libraries, which then say the same as the text.
    pub fn visit(&self, sink: &mut impl Sink) {
        self.visit_groups(&self.scheduler.groups(), &mut ToSink(sink));
    }

    fn visit_groups(&self, groups: &[Group], lines: &mut impl Lines) {
        let wanted = Wanted {
            histograms: self.histograms,
            pressure: self.pressure,
        };
        Group::stats_of(groups, wanted.histograms, |group, stats| {
            families::add_group(lines, group, wanted, stats);
        });
        families::add_scheduler(lines, &self.scheduler);
    }
}
