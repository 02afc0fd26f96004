//! Callsites follow the last filter that was put in force, as a whole, and a filter that fails changes nothing.

#![forbid(unsafe_code)]

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotient_keys::FlipError;
use quotient_traced::{
    FilterError, ReloadError, VARIABLE, callsites, reload, reload_by_environment, traced,
};
use tracing_subscriber::layer::{Context, SubscriberExt};

mod app {
    pub mod net {
        pub fn receive() {
            quotient_traced::debug!(bytes = 1, "received");
        }

        pub mod codec {
            pub fn decode(value: impl Fn() -> u32) {
                quotient_traced::trace!(value = value(), "decoded");
            }
        }
    }

    pub mod store {
        pub fn write() {
            quotient_traced::warn!("full");
            quotient_traced::error!(target: "audit", "lost");
        }
    }
}

/// The callsites are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    quotient_keys::patch();
    reload("").expect("everything can be turned off");
    turn
}

/// Short names of the callsites that are on.
fn on() -> Vec<&'static str> {
    let on = callsites()
        .into_iter()
        .filter(quotient_traced::Callsite::is_on);
    let mut names: Vec<&str> = on
        .map(|callsite| match callsite.target.rsplit("::").next() {
            Some(last) => last,
            None => callsite.target,
        })
        .collect();
    names.sort_unstable();
    names
}

/// Counts the events that arrive.
struct Counter(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Counter {
    fn on_event(&self, _event: &tracing::Event<'_>, _context: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many events arrive at a subscriber that takes all while `run` runs.
fn events_of(run: impl FnOnce()) -> usize {
    let arrived = Arc::new(AtomicUsize::new(0));
    let subscriber = tracing_subscriber::registry().with(Counter(Arc::clone(&arrived)));
    tracing::subscriber::with_default(subscriber, run);
    arrived.load(Ordering::Relaxed)
}

#[test]
fn a_pattern_means_what_the_notes_say() {
    let _turn = alone();
    let line_of = |last: &str| {
        let all = callsites();
        let found = all.iter().find(|callsite| callsite.target.ends_with(last));
        found.expect("is listed").key.name()
    };
    let codec = line_of("codec");
    for (filter, expected) in [
        ("dynamic_debug::app::net", vec!["codec", "net"]),
        ("dynamic_debug::app::net=debug", vec!["net"]),
        ("*::net", vec!["codec", "net"]),
        ("*::net, *::codec=off", vec!["net"]),
        ("*::codec=off, *::net", vec!["codec", "net"]),
        ("*::st?re", vec!["store"]),
        ("audit", vec!["audit"]),
        ("warn", vec!["audit", "store"]),
        ("*=ERROR", vec!["audit"]),
        ("info,*::codec", vec!["audit", "codec", "store"]),
        (codec, vec!["codec"]),
        ("*dynamic_debug.rs=debug", vec!["audit", "net", "store"]),
        (
            "*",
            vec!["audit", "codec", "net", "store", "twins", "twins"],
        ),
        ("*,*=off", vec![]),
        ("", vec![]),
    ] {
        let reloaded = reload(filter).expect(filter);
        assert_eq!(on(), expected, "{filter}");
        assert_eq!((reloaded.callsites, reloaded.on), (6, expected.len()));
        assert_eq!(reloaded.changed, reloaded.receipt.flipped, "{filter}");
        assert!(
            reloaded.receipt.barriers <= 1,
            "one transaction: {reloaded:?}"
        );
    }
}

#[test]
fn an_event_that_is_off_is_not_made() {
    let _turn = alone();
    let run = || {
        app::net::receive();
        app::net::codec::decode(|| panic!("the field of an event that is off was evaluated"));
        app::store::write();
    };
    assert_eq!(events_of(run), 0);
    reload("*=debug").expect("nothing hinders");
    assert_eq!(events_of(run), 3);
    reload("*::codec").expect("nothing hinders");
    assert_eq!(events_of(|| app::net::codec::decode(|| 7)), 1);
    assert_eq!(reload("").expect("nothing hinders").changed, 1);
    assert_eq!(events_of(run), 0);
    // Tracing has the last word.
    reload("*").expect("nothing hinders");
    let arrived = Arc::new(AtomicUsize::new(0));
    let wary = tracing_subscriber::registry()
        .with(tracing::level_filters::LevelFilter::WARN)
        .with(Counter(Arc::clone(&arrived)));
    tracing::subscriber::with_default(wary, run);
    assert_eq!(arrived.load(Ordering::Relaxed), 2);
}

#[test]
fn a_filter_that_cannot_be_read_changes_nothing() {
    let _turn = alone();
    reload("*::net").expect("nothing hinders");
    for (filter, expected) in [
        (
            "*::store,*::net=loud",
            ReloadError::Filter(FilterError::Level {
                directive: "*::net=loud".to_owned(),
                value: "loud".to_owned(),
            }),
        ),
        (
            "audit, =on",
            ReloadError::Filter(FilterError::NoPattern {
                directive: "=on".to_owned(),
            }),
        ),
        (
            "audit, dynamic_debug::app::nett",
            ReloadError::NoCallsite {
                pattern: "dynamic_debug::app::nett".to_owned(),
            },
        ),
    ] {
        assert_eq!(reload(filter), Err(expected), "{filter}");
        assert_eq!(on(), ["codec", "net"], "{filter}");
    }
}

#[test]
fn a_callsite_that_cannot_be_switched_keeps_all_others() {
    let _turn = alone();
    reload("*::net").expect("nothing hinders");
    let codec = callsites()
        .into_iter()
        .find(|callsite| callsite.target.ends_with("codec"))
        .expect("is listed");
    let held = codec.key.hold().expect("nothing hinders");
    let refused = reload("audit, *::store");
    let expected = FlipError::StillHeld {
        key: codec.key.name(),
        guards: 1,
    };
    assert_eq!(refused, Err(ReloadError::Flip(expected)));
    assert_eq!(on(), ["codec", "net"], "half a reload");
    assert_eq!(events_of(app::store::write), 0, "half a reload");
    assert_eq!(events_of(app::net::receive), 1, "half a reload");
    drop(held);
    reload("audit, *::store").expect("nobody holds it");
    assert_eq!(on(), ["audit", "store"]);
    assert_eq!(events_of(app::store::write), 2);
}

#[test]
fn reloads_that_meet_leave_one_filter_in_force() {
    let _turn = alone();
    let filters = [
        ("*::net", vec!["codec", "net"]),
        ("warn", vec!["audit", "store"]),
        ("*::codec,audit", vec!["audit", "codec"]),
    ];
    for _ in 0..20 {
        std::thread::scope(|scope| {
            for (filter, _) in &filters {
                scope.spawn(|| {
                    for _ in 0..5 {
                        reload(filter).expect("nothing hinders");
                    }
                });
            }
        });
        let left = on();
        assert!(
            filters.iter().any(|(_, expected)| left == *expected),
            "no filter says {left:?}"
        );
    }
}

#[test]
fn two_events_in_one_line_and_in_a_generic_function_follow_together() {
    #[rustfmt::skip]
    fn generic<T: core::fmt::Debug>(value: T) {
        traced!(TRACE, target: "twins", ?value, "first"); traced!(TRACE, target: "twins", "second");
    }
    let _turn = alone();
    let run = || {
        generic(1);
        generic("one");
    };
    assert_eq!(reload("").expect("nothing hinders").on, 0);
    assert_eq!(events_of(run), 0);
    assert_eq!(reload("twins").expect("nothing hinders").on, 2);
    assert_eq!(events_of(run), 4);
    reload("").expect("nothing hinders");
}

#[test]
fn the_list_is_that_of_the_control_file() {
    let _turn = alone();
    reload("audit").expect("nothing hinders");
    let lines: Vec<String> = callsites().iter().map(ToString::to_string).collect();
    let audit = lines.iter().find(|line| line.ends_with("audit"));
    let audit = audit.expect("is listed");
    assert!(
        audit.contains("dynamic_debug.rs:")
            && audit.contains(" [dynamic_debug::app::store] =on ERROR "),
        "{audit}"
    );
    assert_eq!(lines.iter().filter(|line| line.contains("=on")).count(), 1);
}

/// The child's part.
#[test]
#[ignore = "run by the other test, in a child process"]
fn by_environment() {
    let _turn = alone();
    match reload_by_environment() {
        Ok(None) => println!("not set"),
        Ok(Some(reloaded)) => println!("on {} {:?}", reloaded.on, on()),
        Err(error) => println!("refused {error}"),
    }
}

#[test]
fn the_environment_decides_when_asked() {
    let program = std::env::current_exe().expect("a test has a file");
    for (value, expected) in [
        (None, "not set"),
        (Some("*::net,audit"), "on 3 [\"audit\", \"codec\", \"net\"]"),
        (Some(""), "on 0 []"),
        (Some("nobody"), "refused `nobody` means no callsite"),
    ] {
        let child = Command::new(&program)
            .args(["--exact", "by_environment", "--ignored", "--nocapture"])
            .env_remove(VARIABLE)
            .envs(value.map(|value| (VARIABLE, value)))
            .output()
            .expect("the test can start itself");
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && output.contains(expected),
            "{value:?}: {output}"
        );
    }
}
