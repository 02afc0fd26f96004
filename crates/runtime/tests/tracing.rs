//! What tokio-console reads: one span a task, entered at each poll, closed at its end, and events of its wakers.
#![cfg(all(feature = "tracing", not(loom)))]

mod common;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{guarded, runtime, scheduler};
use quotient::Leftover;
use quotient::task::Builder;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A span or an event, as fields by name.
type Fields = BTreeMap<String, String>;

#[derive(Default)]
struct Seen {
    spans: BTreeMap<u64, (String, Fields)>,
    entered: BTreeMap<u64, u32>,
    closed: Vec<u64>,
    events: Vec<(String, Fields)>,
}

#[derive(Clone, Default)]
struct Recorder {
    seen: Arc<Mutex<Seen>>,
    next: Arc<AtomicU64>,
}

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio::task") || metadata.target() == "quotient"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = 1 + self.next.fetch_add(1, Ordering::Relaxed);
        let mut fields = Fields::new();
        attributes.record(&mut Into(&mut fields));
        let name = format!(
            "{} {}",
            attributes.metadata().target(),
            attributes.metadata().name()
        );
        self.seen.lock().unwrap().spans.insert(id, (name, fields));
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Into(&mut fields));
        let target = event.metadata().target().to_owned();
        self.seen.lock().unwrap().events.push((target, fields));
    }

    fn enter(&self, span: &Id) {
        *self
            .seen
            .lock()
            .unwrap()
            .entered
            .entry(span.into_u64())
            .or_default() += 1;
    }

    fn exit(&self, _: &Id) {}

    fn try_close(&self, span: Id) -> bool {
        self.seen.lock().unwrap().closed.push(span.into_u64());
        true
    }
}

impl Seen {
    /// The span of the task with this name.
    fn span(&self, task: &str) -> (u64, &str, &Fields) {
        let found = self
            .spans
            .iter()
            .find(|(_, (_, fields))| fields.get("task.name").is_some_and(|name| name == task));
        let (id, (name, fields)) = found.expect("the task has a span");
        (*id, name, fields)
    }

    fn ops(&self, span: u64) -> Vec<&str> {
        let of = |(target, fields): &'_ (String, Fields)| {
            target == "tokio::task::waker"
                && fields
                    .get("task.id")
                    .is_some_and(|id| *id == span.to_string())
        };
        self.events
            .iter()
            .filter(|event| of(event))
            .filter_map(|(_, fields)| fields.get("op").map(String::as_str))
            .collect()
    }
}

#[test]
fn consoles_see_virtual_cpus_instead_of_tasks() {
    let recorder = Recorder::default();
    let seen = recorder.seen.clone();
    tracing::subscriber::set_global_default(recorder).expect("this file has one test");
    runtime(2).block_on(guarded(async {
        let (scheduler, group) = scheduler(2);
        let line = line!() + 4;
        let task = Builder::new()
            .name("sleeper")
            .group(&group)
            .spawn(async {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                tokio::task::yield_now().await;
            })
            .expect("the group takes tasks");
        let id = task.id().to_string();
        task.await.expect("it does not panic");
        let blocking = Builder::new().name("digest").group(&group);
        let blocking = blocking
            .spawn_blocking(|| ())
            .expect("the group takes tasks");
        blocking.await.expect("it does not panic");
        group.remove(Leftover::Kill).expect("it is not the root");
        drop(group.spawn(async {}));
        scheduler.shutdown().await;

        let seen = seen.lock().unwrap();
        let (span, name, fields) = seen.span("sleeper");
        assert_eq!(name, "tokio::task runtime.spawn");
        let field = |name: &str| fields.get(name).map(String::as_str);
        assert_eq!(field("kind"), Some("task"));
        assert_eq!(field("task.id"), Some(id.as_str()));
        assert_eq!(field("task.group"), Some("tenants/acme"));
        assert!(
            field("loc.file").is_some_and(|file| file.ends_with("tracing.rs")),
            "{fields:?}"
        );
        assert!(field("loc.col").is_some() && field("size.bytes").is_some());
        assert_eq!(field("loc.line"), Some(line.to_string().as_str()));
        // Polled at the start, after the sleep and after the yield; and entered once more to drop the future.
        assert!(
            seen.entered.get(&span).is_some_and(|polls| *polls >= 3),
            "{:?}",
            seen.entered
        );
        assert!(seen.closed.contains(&span), "the task has ended");
        let ops = seen.ops(span);
        assert!(ops.contains(&"waker.clone"), "{ops:?}");
        assert!(
            ops.contains(&"waker.wake") || ops.contains(&"waker.wake_by_ref"),
            "{ops:?}"
        );

        let (_, name, fields) = seen.span("digest");
        assert_eq!(name, "tokio::task::blocking runtime.spawn");
        assert_eq!(fields.get("kind").map(String::as_str), Some("blocking"));

        let refused = seen
            .events
            .iter()
            .filter(|(target, _)| target == "quotient")
            .count();
        assert_eq!(
            refused, 1,
            "a task that a removed group refused is logged, once"
        );
    }));
}
