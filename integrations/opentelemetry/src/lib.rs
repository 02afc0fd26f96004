//! What the groups of a `quotient::Scheduler` use and wait for, as observable instruments of OpenTelemetry.
//!
//! ```
//! use opentelemetry::global;
//! use quotient_prometheus::Exporter;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = quotient::Scheduler::builder().build()?;
//! let figures = Exporter::new(&scheduler).record_pressure();
//! quotient_opentelemetry::register(&figures, &global::meter("quotient"));
//! # scheduler.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Names, labels and values are those of [`quotient_prometheus`], out of the same pass over the groups: [`FAMILIES`] is the list, and
//! `id` the path of the group. OpenTelemetry has no observable histograms, so of each histogram there are two counters,
//! with `_sum` and `_count` at the end of the name: means and rates, not percentiles.
//!
//! Nothing is collected between the collections of the SDK's readers. Each instrument is asked by itself, so the figures of one pass serve
//! all that ask within [`FRESH`].
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use quotient::Histogram;
use quotient_prometheus::{Exporter, FAMILIES, Kind, Sink};

/// For how long figures are not collected anew. Unit: time. Default 50 ms: a reader asks all instruments in a row.
pub const FRESH: Duration = Duration::from_millis(50);

/// Values with their attributes.
type Values = Vec<(Vec<KeyValue>, f64)>;

/// Makes the instruments of `exporter`'s scheduler: of histograms if it has them on, of pressure if it records it. They live as long as
/// the meter's provider, and with them a handle of the scheduler.
pub fn register(exporter: &Exporter, meter: &Meter) {
    let source = Arc::new(Source {
        exporter: exporter.clone(),
        last: Mutex::default(),
    });
    for (index, family) in FAMILIES.iter().enumerate() {
        let make = |suffix: &str, counts: bool, part: Part| {
            let name = format!("{}{suffix}", family.name);
            let source = source.clone();
            let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
                for (attributes, value) in part.of(&source.figures())[index].iter() {
                    observer.observe(*value, attributes);
                }
            };
            // The meter keeps what it has built.
            if counts {
                let builder = meter.f64_observable_counter(name);
                let _instrument = builder
                    .with_description(family.help)
                    .with_callback(observe)
                    .build();
            } else {
                let builder = meter.f64_observable_gauge(name);
                let _instrument = builder
                    .with_description(family.help)
                    .with_callback(observe)
                    .build();
            }
        };
        match family.kind {
            Kind::Histogram => {
                make("_sum", true, Part::Sums);
                make("_count", true, Part::Values);
            }
            Kind::Counter => make("", true, Part::Values),
            _ => make("", false, Part::Values),
        }
    }
}

/// Which values of a family.
#[derive(Clone, Copy)]
enum Part {
    Values,
    Sums,
}

impl Part {
    fn of(self, figures: &Figures) -> &[Values] {
        match self {
            Self::Values => &figures.values,
            Self::Sums => &figures.sums,
        }
    }
}

/// Where the figures come from.
struct Source {
    exporter: Exporter,
    last: Mutex<Figures>,
}

impl Source {
    /// At most [`FRESH`] old.
    fn figures(&self) -> MutexGuard<'_, Figures> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last
            .collected
            .is_none_or(|collected| collected.elapsed() > FRESH)
        {
            last.clear();
            self.exporter.visit(&mut *last);
            last.collected = Some(Instant::now());
        }
        last
    }
}

/// One pass over the groups.
#[derive(Default)]
struct Figures {
    collected: Option<Instant>,
    /// The group that they are of now.
    group: Option<KeyValue>,
    /// By family; of histograms, how many there were.
    values: Vec<Values>,
    /// Of histograms, their sums.
    sums: Vec<Values>,
}

impl Figures {
    fn clear(&mut self) {
        self.group = None;
        for values in [&mut self.values, &mut self.sums] {
            values.resize_with(FAMILIES.len(), Vec::new);
            values.iter_mut().for_each(Vec::clear);
        }
    }

    fn attributes(&self, labels: &[(&'static str, &'static str)]) -> Vec<KeyValue> {
        let labels = labels
            .iter()
            .map(|(name, value)| KeyValue::new(*name, *value));
        self.group.iter().cloned().chain(labels).collect()
    }
}

impl Sink for Figures {
    fn group(&mut self, path: &str) {
        self.group = Some(KeyValue::new("id", format!("/{path}")));
    }

    fn scheduler(&mut self) {
        self.group = None;
    }

    fn integer(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: u64) {
        let attributes = self.attributes(labels);
        // Exact up to 2^53.
        self.values[family].push((attributes, value as f64));
    }

    fn seconds(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: Duration) {
        let attributes = self.attributes(labels);
        self.values[family].push((attributes, value.as_secs_f64()));
    }

    fn histogram(&mut self, family: usize, histogram: &Histogram) {
        let attributes = self.attributes(&[]);
        let sum = histogram.sum().as_secs_f64();
        self.sums[family].push((attributes.clone(), sum));
        self.values[family].push((attributes, histogram.count() as f64));
    }
}
