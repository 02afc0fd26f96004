//! What was said through `tracing`.

use std::sync::{Mutex, OnceLock};

use tracing_subscriber::layer::SubscriberExt;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().target() == "quotient" {
            let mut text = Text(String::new());
            event.record(&mut text);
            LINES.lock().unwrap().push(text.0);
        }
    }
}

pub fn listen() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let subscriber = tracing_subscriber::registry().with(Lines);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
}

/// What was said of the group.
pub fn of(group: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    let of_group = format!("group={group:?} ");
    let said = lines.iter().filter(|line| line.contains(&of_group));
    said.cloned().collect()
}
