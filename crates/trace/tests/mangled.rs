//! Traces that were cut, shuffled, doubled or scribbled over: whoever takes them ends with a result or with an error
//! that names a line, and never with a panic.

use std::ops::ControlFlow;

use proptest::prelude::*;
use quotient_core::Nanos;
use quotient_trace::check::{Check, Options};
use quotient_trace::{
    Definition, Event, Ftrace, Html, JsonLines, Perfetto, ReadError, Reader, Sink, Statistics,
    compare,
};

const PERF: &str = include_str!("data/perf_sched.txt");
const TRACEFS: &str = include_str!("data/tracefs.txt");

/// What happens to a trace between the machine that recorded it and us. Places are shares of its lines.
#[derive(Clone, Debug)]
enum Damage {
    /// The rest is missing, in the middle of a line.
    Cut(f64),
    /// Lines are missing: a lossy transport, or somebody's grep.
    Lose(f64, usize),
    /// The same lines twice: two recordings in one file.
    Double(f64, usize),
    /// Lines are elsewhere: buffers of CPUs that were written one after the other.
    Move(f64, f64, usize),
    /// A line in the place of another.
    Overwrite(f64, String),
    /// A number is another number.
    Renumber(f64, u64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || 0.0_f64..1.0;
    prop_oneof![
        place().prop_map(Damage::Cut),
        (place(), 1_usize..40).prop_map(|(at, count)| Damage::Lose(at, count)),
        (place(), 1_usize..40).prop_map(|(at, count)| Damage::Double(at, count)),
        (place(), place(), 1_usize..40).prop_map(|(from, to, count)| Damage::Move(from, to, count)),
        (place(), "[ -~]{0,80}").prop_map(|(at, line)| Damage::Overwrite(at, line)),
        (place(), prop_oneof![Just(u64::MAX), Just(0), any::<u64>()])
            .prop_map(|(at, number)| Damage::Renumber(at, number)),
    ]
}

fn apply(lines: &mut Vec<String>, damage: &Damage) {
    let index = |place: f64, lines: &[String]| (place * lines.len() as f64) as usize;
    let span = |place: f64, count: usize, lines: &[String]| {
        let from = index(place, lines);
        from..(from + count).min(lines.len())
    };
    if lines.is_empty() {
        return;
    }
    match damage {
        Damage::Cut(at) => {
            let at = index(*at, lines);
            lines.truncate(at + 1);
            let half = lines[at].chars().count() / 2;
            lines[at] = lines[at].chars().take(half).collect();
        }
        Damage::Lose(at, count) => {
            lines.drain(span(*at, *count, lines));
        }
        Damage::Double(at, count) => {
            let again = lines[span(*at, *count, lines)].to_vec();
            lines.extend(again);
        }
        Damage::Move(from, to, count) => {
            let moved: Vec<String> = lines.drain(span(*from, *count, lines)).collect();
            let to = index(*to, lines);
            lines.splice(to..to, moved);
        }
        Damage::Overwrite(at, line) => {
            let at = index(*at, lines);
            lines[at].clone_from(line);
        }
        Damage::Renumber(at, number) => {
            let at = index(*at, lines);
            let text = &lines[at];
            let begin = text.find(|character: char| character.is_ascii_digit());
            if let Some(begin) = begin {
                let rest = &text[begin..];
                let length = rest
                    .find(|character: char| !character.is_ascii_digit())
                    .unwrap_or(rest.len());
                lines[at] = format!("{}{number}{}", &text[..begin], &rest[length..]);
            }
        }
    }
}

/// Everybody who takes events, at once.
struct Everybody {
    check: Check,
    strict: Check,
    statistics: Statistics,
    html: Html,
    perfetto: Perfetto<Vec<u8>>,
    ftrace: Ftrace<Vec<u8>>,
    json: JsonLines<Vec<u8>>,
}

impl Everybody {
    fn new() -> Everybody {
        let lenient = Options {
            clock_skew: Nanos::from_millis(1),
            ..Options::default()
        };
        Everybody {
            check: Check::new(lenient),
            strict: Check::new(Options::default()),
            statistics: Statistics::new(),
            html: Html::new(),
            perfetto: Perfetto::new(Vec::new()),
            ftrace: Ftrace::new(Vec::new()),
            json: JsonLines::new(Vec::new()),
        }
    }
}

impl Sink for Everybody {
    fn define(&mut self, definition: &Definition) {
        self.check.define(definition);
        self.strict.define(definition);
        self.statistics.define(definition);
        self.html.define(definition);
        self.perfetto.define(definition);
        self.ftrace.define(definition);
        self.json.define(definition);
    }

    fn event(&mut self, event: &Event) {
        Sink::event(&mut self.check, event);
        Sink::event(&mut self.strict, event);
        self.statistics.event(event);
        self.html.event(event);
        self.perfetto.event(event);
        self.ftrace.event(event);
        self.json.event(event);
    }
}

/// Reads what is there and hands it to everybody; returns what the reader said in the end.
fn digest(text: &str) -> Result<(), ReadError> {
    let mut everybody = Everybody::new();
    let result = Reader::open(text.as_bytes())
        .and_then(|mut reader| reader.pump(&mut everybody, |_| ControlFlow::Continue(())));
    let figures = everybody.statistics.finish();
    assert!(compare(&figures, &figures).only_in_a.is_empty());
    everybody.check.finish();
    everybody.strict.finish();
    let mut page = Vec::new();
    everybody.html.finish("damaged", &mut page).expect("memory");
    everybody.perfetto.finish().expect("memory");
    everybody.ftrace.finish().expect("memory");
    let written = everybody.json.finish().expect("memory");
    // What we write of it is whole again.
    if result.is_ok() {
        let again = Reader::open(&written[..])
            .and_then(|mut reader| reader.pump(&mut Vec::new(), |_| ControlFlow::Continue(())));
        assert!(again.is_ok(), "{again:?}");
    }
    result.map(|_| ())
}

proptest! {
    // No file of failures: a found case becomes a test of its own.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_trace_is_an_error_or_a_result(
        of_perf in any::<bool>(),
        damages in prop::collection::vec(damage(), 1..5),
    ) {
        let text = if of_perf { PERF } else { TRACEFS };
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        damages.iter().for_each(|damage| apply(&mut lines, damage));
        let count = lines.len() as u64;
        if let Err(error) = digest(&lines.join("\n")) {
            prop_assert!(error.line() <= count, "{}", error);
        }
    }
}

#[test]
fn the_whole_traces_are_fine() {
    for text in [PERF, TRACEFS] {
        digest(text).expect("as recorded");
    }
}
