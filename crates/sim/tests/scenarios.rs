//! Scenario files: what is wrong is named with its place. That everything in `scenarios/` meets its expectations is `every_scenario`.

use quotient_sim::scenario::{Files, Scenario};
use quotient_sim::{Machine, Simulation};
use quotient_trace::Discard;
use std::io::BufRead;

/// Files in memory.
struct Shelf(Vec<(&'static str, &'static str)>);

impl Files for Shelf {
    fn read(&mut self, name: &str) -> Result<String, String> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, text)| (*text).to_owned())
            .ok_or_else(|| format!("{name}: no such file"))
    }

    fn open(&mut self, name: &str) -> Result<Box<dyn BufRead>, String> {
        self.read(name)
            .map(|text| Box::new(std::io::Cursor::new(text)) as Box<dyn BufRead>)
    }
}

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse("test.toml", text, &mut Shelf(Vec::new())).map_err(|error| error.to_string())
}

const HEAD: &str = "name = \"x\"\nduration = \"1s\"\n[machine]\nshape = \"2\"\n";

/// Hazard: who wrote a number for a time is told that a string was expected, and not of what.
#[test]
fn a_value_of_another_kind_is_said_with_its_key_and_what_may_stand_there() {
    for (rest, expected) in [
        (
            "[[group]]\npath = \"a\"\nquota = 10",
            "test.toml:7:9: quota: invalid type: integer `10`, expected a time such as \"5ms\" (ns, us, ms, s or min)",
        ),
        (
            "[[group]]\npath = \"a\"\nweight = 1.5",
            "test.toml:7:10: weight: invalid type: floating point `1.5`, expected an integer in 1..=10000",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"once\"\nwork = 5",
            "test.toml:8:8: work: invalid type: integer `5`, expected a span of time such as",
        ),
    ] {
        let error = parse(&format!("{HEAD}{rest}\n")).expect_err(rest);
        assert!(error.contains(expected), "{rest}: {error}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (rest, expected) in [
        ("hz = 0", "test.toml:5:6: impossible machine: hz = 0"),
        ("colour = 1", "test.toml:5:1: unknown field `colour`"),
        (
            "[[sweep]]\nkey = \"machine.hz\"\nvalues = []",
            "test.toml:6:7: sweep of machine.hz: `values` is empty",
        ),
        (
            "[[group]]\npath = \"a\"\nweight = 0",
            "test.toml:7:10: weight = 0 is outside 1..=10000",
        ),
        ("[[group]]\npath = \"a//b\"", "test.toml:6:8: "),
        (
            "[[group]]\npath = \"a\"\nquota = \"0.5ms\"",
            "test.toml:7:9: quota of 500 us is outside 1 ms to",
        ),
        (
            "[[group]]\npath = \"a\"\nperiod = \"5ms\"",
            "test.toml:7:10: a period or burst without a quota",
        ),
        (
            "[[group]]\npath = \"a\"\nquota = \"5\"",
            "test.toml:7:9: quota: \"5\" is not a time",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"dance\"",
            "test.toml:7:8: kind: unknown variant `dance`",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"once\"",
            "test.toml:6:8: workload w: a workload of kind once needs `work`",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"open-loop\"\nwork = \"1ms\"",
            "workload w: a workload of kind open-loop needs `gap`",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\nrounds = 5",
            "a workload of kind spin has no use for `rounds`",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\nthreads = 0",
            "test.toml:8:11: threads: 0 is outside 1..=1000000",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\nthreads = 99999999999999999999999",
            "test.toml:8:11: threads: the integer 99999999999999999999999 is outside -9223372036854775808..=9223372036854775807",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\nthreads = \"many\"",
            "neither a number",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\ncpu = 2",
            "test.toml:8:7: there is no cpu 2, only 0..=1",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"rt-app\"\nfile = \"no.json\"",
            "no.json: no such file",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\n[[variant]]\nname = \"v\"\nset = { \"workload.7.threads\" = 1 }",
            "variant v: workload.7.threads leads nowhere",
        ),
        (
            "[[sweep]]\nkey = \"machine.hz\"\nvalues = [100, 100]",
            "two runs are called",
        ),
        (
            "[[sweep]]\nkey = \"machine.shape\"\nvalues = [\"2\", \"99999\"]",
            "run 99999: impossible machine",
        ),
        (
            "[[group]]\npath = \"a\"\n[[change]]\nat = \"1s\"\ngroup = \"a\"",
            "a change of nothing",
        ),
        // What would make a new group without a limit, or be told after the run.
        (
            "[[group]]\npath = \"web\"\n[[workload]]\nname = \"w\"\nkind = \"spin\"\ngroup = \"wbe\"",
            "test.toml:10:9: there is no [[group]] \"wbe\", only \"web\"",
        ),
        (
            "[[group]]\npath = \"a\"\nweight = 5\n[[group]]\npath = \"a\"",
            "test.toml:9:8: a second [[group]] \"a\"",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\n[[change]]\nat = \"1s\"\ngroup = \"b\"\nweight = 5",
            "test.toml:10:9: there is no [[group]] \"b\", only none",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\n[[expect]]\nwhat = \"x\"\nvalue = \"p99[q] / 1ms\"",
            "test.toml:10:9: expected another figure than `p99[...]`, which is of a meter, and there is none,",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\n[[expect]]\nwhat = \"x\"\nvalue = \"slow:work[w]\"",
            "test.toml:10:9: expected one of the runs run",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\n[[expect]]\nwhat = \"x\"\nvalue = \"speed[w]\"",
            "test.toml:10:9: expected a known figure",
        ),
        (
            "[[workload]]\nname = \"w\"\nkind = \"spin\"\n[[variant]]\nname = \"v\"\nset = { \"workload.0.cpu\" = 7 }",
            "test.toml:9:8: there is no cpu 7",
        ),
    ] {
        let error = parse(&format!("{HEAD}{rest}\n")).expect_err(rest);
        assert!(error.contains(expected), "{rest}: {error}");
    }
    for text in [
        "",
        "name",
        "[[[",
        "\u{0}",
        "name = \"x\"\nduration = \"0s\"\n[machine]\nshape=\"1\"",
    ] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}

/// Hazard: who writes a scenario is told of a type of this library.
#[test]
fn what_a_table_should_have_been_is_said_as_one_writes_it() {
    for (text, expected) in [
        (
            "name = \"x\"\nduration = \"1s\"\nmachine = 3\n".to_owned(),
            "test.toml:3:11: machine: invalid type: integer `3`, expected a table such as { shape = \"2x8\" }",
        ),
        (
            "name = \"x\"\nduration = \"1s\"\ngroup = [3]\n[machine]\nshape = \"2\"\n".to_owned(),
            "expected a table [[group]]",
        ),
        (
            format!("{HEAD}[workload]\nname = \"w\"\nkind = \"spin\"\n"),
            "expected a list: two brackets begin each table of it, as in [[workload]]",
        ),
        (
            format!("{HEAD}[[workload]]\nname = 3\nkind = \"spin\"\n"),
            "expected a string",
        ),
        (
            format!("{HEAD}[[workload]]\nname = \"w\"\nkind = 3\n"),
            "expected",
        ),
        (format!("{HEAD}[scheduler]\npick = 3\n"), "expected"),
        (
            "name = \"x\"\nduration = \"1s\"\ncosts = 1\n[machine]\nshape = \"2\"\n".to_owned(),
            "expected a table [costs]",
        ),
        (
            "name = \"x\"\nduration = \"1s\"\nexpect = 1\n[machine]\nshape = \"2\"\n".to_owned(),
            "expected",
        ),
    ] {
        let error = parse(&text).expect_err(&text);
        assert!(error.contains(expected), "{text}: {error}");
        for of_the_library in ["struct", "enum", "Table", "Spanned", "Name"] {
            assert!(!error.contains(of_the_library), "{text}: {error}");
        }
    }
}

#[test]
fn what_happens_to_a_machine_is_checked_before_the_run() {
    for (rest, expected) in [
        (
            "[[realtime]]\nname = \"r\"\ncpus = \"0-2\"\nwork = \"1ms\"\nperiod = \"9ms\"",
            "test.toml:7:8: \"0-2\" is no list of CPUs",
        ),
        (
            "[[realtime]]\nname = \"r\"\nwork = \"1ms\"\nperiod = \"0s\"",
            "test.toml:6:8: [[realtime]] \"r\": `period` is 0 ns on average, and has to be",
        ),
        (
            "[[realtime]]\nname = \"r\"\nwork = \"0s\"\nperiod = \"1ns\"",
            "test.toml:6:8: [[realtime]] \"r\": `period` is 1 ns on average, and has to be",
        ),
        (
            "[[realtime]]\nname = \"r\"\nwork = \"1ms\"",
            "missing field `period`",
        ),
        (
            "[[hotplug]]\nat = \"1s\"\ncpu = 2\nonline = false",
            "test.toml:7:7: there is no cpu 2, only 0..=1",
        ),
        (
            "[scheduler]\nrt_period = \"1s\"",
            "test.toml:6:13: rt_period without rt_runtime",
        ),
        (
            "[scheduler]\nrt_runtime = \"2s\"",
            "test.toml:6:14: rt_runtime = 2 s is outside 0 ns..=1 s, the rt_period",
        ),
        (
            "[scheduler]\nrt_runtime = \"0s\"\nrt_period = \"2s\"",
            "test.toml:7:13: rt_period = 2 s is outside 1 ns..=1 s",
        ),
        (
            "[scheduler]\nbandwidth_slice = \"0s\"",
            "test.toml:6:19: bandwidth_slice = 0 ns is outside 1 us..=1 s",
        ),
        (
            "[scheduler]\npolicy = \"weighted-round-robin\"\n[[group]]\npath = \"a\"\nquota = \"5ms\"",
            "policy weighted-round-robin has no limits",
        ),
    ] {
        let error = parse(&format!("{HEAD}{rest}\n")).expect_err(rest);
        assert!(error.contains(expected), "{rest}: {error}");
    }
}

const GROUP: &str = "[[group]]\npath = \"a\"\n";
const LOAD: &str = "[[workload]]\nname = \"w\"\nkind = \"spin\"\n";

/// Hazard: what is out of range is told with another field's name, or at another field's place.
#[test]
fn what_is_out_of_range_is_told_at_its_own_place() {
    for (rest, expected) in [
        (
            format!("{LOAD}slice = \"99us\""),
            "test.toml:8:9: workload w: slice of 99 us is outside 100 us to 100 ms",
        ),
        (
            "[scheduler]\nbase_slice = \"99us\"".to_owned(),
            "test.toml:6:14: base_slice = 99 us is outside 100 us..=100 ms",
        ),
        (
            "[scheduler]\nwakeup_granularity = \"2s\"".to_owned(),
            "test.toml:6:22: wakeup_granularity = 2 s is outside 0 ns..=1 s",
        ),
        (
            "[scheduler]\nbalance_every = \"0s\"".to_owned(),
            "test.toml:6:17: balance_every = 0 ns is too little: 1 ns or more",
        ),
        (
            "caches = 3".to_owned(),
            "test.toml:5:10: impossible machine: caches = 3",
        ),
        (
            "distances = [[11]]".to_owned(),
            "test.toml:5:13: impossible machine: distances = 11",
        ),
        (
            "smt_speed = 0".to_owned(),
            "test.toml:5:13: impossible machine: smt_speed = 0",
        ),
        (
            format!("{GROUP}quota = \"5ms\"\nperiod = \"2s\""),
            "test.toml:8:10: period of 2 s is outside 1 ms to 1 s",
        ),
        (
            format!("{GROUP}burst = \"2s\""),
            "test.toml:7:9: a period or burst without a quota",
        ),
        (
            format!("[scheduler]\nbandwidth = \"kernel\"\n{GROUP}quota = \"5ms\"\nburst = \"6ms\""),
            "test.toml:10:9: burst of 6 ms is outside 0 ns to 5 ms",
        ),
        (
            format!(
                "{GROUP}[[change]]\nat = \"1s\"\ngroup = \"a\"\nquota = \"5ms\"\nperiod = \"2s\""
            ),
            "test.toml:11:10: period of 2 s is outside 1 ms to 1 s",
        ),
        (
            "[costs]\ntick = \"4ms\"".to_owned(),
            "test.toml:6:8: tick = 4 ms is outside 0 ns..=3.999999 ms",
        ),
        (
            "[[realtime]]\nname = \"r\"\nwork = \"2ms\"\nperiod = \"~1999us\"".to_owned(),
            "test.toml:7:8: [[realtime]] \"r\": work = 2 ms on average is outside 0 ns..=1.999 ms",
        ),
        (
            format!("{LOAD}[[expect]]\nwhat = \"y\"\nvalue = \"elapsed\"\nmin = nan"),
            "test.toml:11:7: min = NaN is outside -1.79",
        ),
        (
            format!("{LOAD}[[expect]]\nwhat = \"y\"\nvalue = \"elapsed\"\nmax = inf"),
            "test.toml:11:7: max = inf is outside -1.79",
        ),
    ] {
        let error = parse(&format!("{HEAD}{rest}\n")).expect_err(&rest);
        assert!(error.contains(expected), "{rest}: {error}");
    }
    for name in ["", " "] {
        let text = HEAD.replacen('x', name, 1);
        let error = parse(&text).expect_err(name);
        let expected = format!("test.toml:1:8: name = {name:?} is empty");
        assert!(error.contains(&expected), "{error}");
    }
}

/// Hazard: a part of a scenario that no run ever comes to, or that contradicts another, is left out without a word.
#[test]
fn what_no_run_has_a_use_for_is_refused() {
    let change = |more: &str| format!("{GROUP}[[change]]\ngroup = \"a\"\n{more}");
    let plugged = |events: &[(&str, bool)]| {
        let text = events.iter().map(|(at, online)| {
            format!("[[hotplug]]\nat = \"{at}\"\ncpu = 1\nonline = {online}\n")
        });
        text.collect::<String>()
    };
    for (rest, expected) in [
        (
            change("at = \"1s\"\nquota = \"5ms\"\nunlimited = true"),
            "test.toml:11:13: unlimited = true beside quota = 5 ms",
        ),
        (
            change("at = \"1001ms\"\nweight = 5"),
            "test.toml:9:6: at = 1.001 s is outside 0 ns..=1 s: the run is over by then",
        ),
        (
            plugged(&[("2s", false)]),
            "test.toml:6:6: at = 2 s is outside 0 ns..=1 s",
        ),
        (
            format!("{LOAD}begin = \"2s\""),
            "test.toml:8:9: workload w: begin = 2 s is outside 0 ns..=1 s",
        ),
        (
            "[[realtime]]\nname = \"r\"\nwork = \"1ms\"\nperiod = \"9ms\"\nbegin = \"2s\""
                .to_owned(),
            "test.toml:9:9: [[realtime]] \"r\": begin = 2 s is outside 0 ns..=1 s",
        ),
        (
            plugged(&[("1ms", true)]),
            "test.toml:8:10: online = true of cpu 1 at 1 ms: it is online then",
        ),
        // In the order of time, not of the file.
        (
            plugged(&[("5ms", true), ("9ms", false), ("1ms", false), ("2ms", true)]),
            "test.toml:8:10: online = true of cpu 1 at 5 ms: it is online then",
        ),
        (
            plugged(&[("1ms", false), ("2ms", false)]),
            "test.toml:12:10: online = false of cpu 1 at 2 ms: it is offline then",
        ),
        (
            "[scheduler]\nlast_buddy = true".to_owned(),
            "test.toml:6:14: last_buddy = true is of CFS",
        ),
        (
            "[scheduler]\nslice_expiry = true".to_owned(),
            "test.toml:6:16: slice_expiry = true is of the kernel's limits",
        ),
        // Of several runs none is long enough; the longest is named.
        (
            format!(
                "{LOAD}begin = \"5s\"\n[[sweep]]\nkey = \"duration\"\nvalues = [\"2s\", \"4s\", \"3s\"]"
            ),
            "test.toml:8:9: workload w: begin = 5 s is outside 0 ns..=4 s",
        ),
    ] {
        let error = parse(&format!("{HEAD}{rest}\n")).expect_err(&rest);
        assert!(error.contains(expected), "{rest}: {error}");
    }
    for rest in [
        change("at = \"1s\"\nquota = \"5ms\"\nunlimited = false"),
        change("at = \"1s\"\nunlimited = true"),
        format!("{LOAD}begin = \"1s\""),
        format!("{LOAD}begin = \"3s\"\n[[sweep]]\nkey = \"duration\"\nvalues = [\"2s\", \"4s\"]"),
        plugged(&[("5ms", true), ("1ms", false), ("9ms", false)]),
        "[scheduler]\nlast_buddy = false\nslice_expiry = false".to_owned(),
        "[scheduler]\nlast_buddy = true\n[[sweep]]\nkey = \"scheduler.pick\"\nvalues = [\"cfs\", \"eevdf\"]".to_owned(),
        "[scheduler]\nslice_expiry = true\nkernel = \"6.6\"".to_owned(),
        // A thread that keeps the CPU.
        "[[realtime]]\nname = \"r\"\nwork = \"2s\"\nperiod = \"2s\"".to_owned(),
    ] {
        let read = parse(&format!("{HEAD}{rest}\n"));
        assert!(read.is_ok(), "{rest}: {read:?}");
    }
}

/// Hazard: a kernel's preset brings its rules of limits, and what is said of their slices is not heard.
#[test]
fn slices_expire_under_a_preset_too() {
    let plan = |rest: &str| {
        let scenario = parse(&format!("{HEAD}[scheduler]\nkernel = \"6.6\"\n{rest}")).unwrap();
        scenario
            .plan(0, None, None, &mut Shelf(Vec::new()))
            .unwrap()
    };
    let rules = |rest: &str| plan(rest).settings.config.bandwidth;
    assert_ne!(rules("slice_expiry = true"), rules(""));
    assert_eq!(rules("slice_expiry = false"), rules(""));
}

/// Names reach the terminal, and what some characters do there is the terminal's to decide.
/// Hazard: what happens a thousand million times a second never comes to an end, and nobody says why.
#[test]
fn what_no_run_comes_to_the_end_of_is_refused() {
    for (kind, field, value) in [
        ("open-loop", "gap", "1ns"),
        ("open-loop", "gap", "~1ns"),
        ("open-loop", "gap", "0s..1us"),
        ("periodic", "period", "999ns"),
    ] {
        let text = |value: &str| {
            format!(
                "name = \"x\"\nduration = \"1s\"\n[machine]\nshape = \"1\"\n[[workload]]\nname = \"w\"\nkind = \"{kind}\"\nwork = \"1ms\"\n{field} = \"{value}\"\n"
            )
        };
        let said = parse(&text(value)).unwrap_err();
        let expected = format!("test.toml:6:8: workload w: `{field}` is ");
        assert!(said.starts_with(&expected), "{said}");
        assert!(said.contains("has to be 1"), "{said}");
        assert!(parse(&text("1us")).is_ok());
    }
}

/// Hazard: an expectation that no value meets is found out after the run, or a list of what there is names nothing.
#[test]
fn expectations_that_cannot_be_met_are_refused_before_the_run() {
    let text = |expect: &str| {
        format!(
            "name = \"x\"\nduration = \"1s\"\n[machine]\nshape = \"1\"\n[[workload]]\nname = \"w\"\nkind = \"spin\"\n[[expect]]\nwhat = \"y\"\n{expect}"
        )
    };
    let said = parse(&text("value = \"elapsed\"\nmin = 5\nmax = 1")).unwrap_err();
    assert!(
        said.contains("test.toml:10:9: min = 5 is above max = 1"),
        "{said}"
    );
    assert!(parse(&text("value = \"elapsed\"\nmin = 1\nmax = 1")).is_ok());
    let said = parse(&text("value = \"usage[a]\"")).unwrap_err();
    assert!(said.contains("of a group, and there is none"), "{said}");
    // One that is always met.
    for figure in ["", "seed = 3"] {
        let said = parse(&text(&format!("value = \"elapsed\"\n{figure}"))).unwrap_err();
        let words = "test.toml:10:9: an [[expect]] without `min` and `max`, needs one or both";
        assert!(said.contains(words), "{said}");
    }
    let endless = format!("value = \"{}\"", "(".repeat(100_000));
    let said = parse(&text(&endless)).unwrap_err();
    assert!(
        said.len() < 300 && said.contains("at most 32 levels"),
        "{said}"
    );
}

#[test]
fn a_time_that_is_out_of_range_is_said_with_the_range() {
    let said = parse(&HEAD.replace("1s", "0s")).unwrap_err();
    assert!(
        said.contains("duration = 0 ns is outside 1ns..=86400s"),
        "{said}"
    );
}

#[test]
fn nothing_in_a_scenario_can_steer_a_terminal() {
    let plain =
        "name = \"fine\"\n\n[machine]\ncpus = 1\n\n[[workload]]\nname = \"one\"\nkind = \"hog\"\n";
    assert!(!parse(plain).is_err_and(|error| error.contains("control")));
    for (from, to, named) in [
        (
            "fine",
            "\\u001b[31m",
            "name holds the control character U+001B",
        ),
        ("\"one\"", "\"\\u0007\"", "workload.name holds"),
        ("name = \"one\"", "\"\\u001b\" = 1", "\\u{1b} holds"),
    ] {
        let text = plain.replacen(from, to, 1);
        let error = parse(&text).expect_err(to);
        assert!(error.contains(named), "{error}");
    }
}

/// A request is two pauses and two pieces of work, and each thread asks for its next one only when it is done: nothing else takes time on a
/// machine that is never short, and nobody's requests overlap.
#[test]
fn a_wake_and_work_request_is_two_pauses_and_two_pieces_of_work() {
    let outcome = |threads: u32, work: &str, pause: &str| {
        let text = format!(
            "name = \"x\"\nduration = \"1s\"\n[machine]\nshape = \"8\"\n[[workload]]\nname = \"w\"\nkind = \"wake-and-work\"\nthreads = {threads}\nwork = \"{work}\"\npause = \"{pause}\"\n"
        );
        let plan = parse(&text)
            .unwrap()
            .plan(0, None, None, &mut Shelf(Vec::new()))
            .unwrap();
        let mut simulation = Simulation::new(&plan, Discard).unwrap();
        simulation.run().map(|()| simulation.outcome())
    };
    for (work, pause, request_ns) in [("1ms", "2ms", 6_000_000), ("3ms", "500us", 7_000_000)] {
        for threads in [1, 3] {
            let found = outcome(threads, work, pause).unwrap();
            let meter = &found.meters[0];
            let what = format!("{threads} threads, {work}, {pause}: {meter:?}");
            let most = request_ns + request_ns / 50;
            assert!((request_ns..most).contains(&meter.times.p50_ns), "{what}");
            let rounds = u64::from(threads) * (1_000_000_000 / request_ns);
            assert!(
                (rounds - rounds / 25..=rounds).contains(&meter.done),
                "{what}"
            );
            // The threads, and who wakes them.
            assert_eq!(found.workloads[0].tasks, u64::from(threads) + 1);
        }
    }
    let error = outcome(2, "0s", "0s").unwrap_err().to_string();
    assert!(error.contains("workload w loops without"), "{error}");
}

#[test]
fn scenarios_that_are_based_on_themselves_are_refused() {
    let mut shelf = Shelf(vec![
        ("a.toml", "base = \"b.toml\"\nname = \"a\""),
        (
            "b.toml",
            "base = \"a.toml\"\nduration = \"1s\"\n[machine]\nshape = \"3\"",
        ),
        (
            "c.toml",
            "duration = \"1s\"\n[machine]\nshape = \"3\"\nhz = 100",
        ),
    ]);
    let text = shelf.read("a.toml").unwrap();
    let error = Scenario::parse("a.toml", &text, &mut shelf).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("based on itself: a.toml -> b.toml -> a.toml"),
        "{error}"
    );
    let text = "base = \"c.toml\"\nname = \"d\"\n[machine]\nshape = \"4\"";
    let scenario = Scenario::parse("d.toml", text, &mut shelf).unwrap();
    let plan = scenario.plan(0, None, None, &mut shelf).unwrap();
    assert_eq!((plan.machine.cpus(), plan.machine.hz), (4, 100));
    let error = Scenario::parse("e.toml", "base = \"none.toml\"", &mut shelf).unwrap_err();
    assert!(error.to_string().contains("none.toml"), "{error}");
}

#[test]
fn another_machine_replaces_the_shape_only() {
    let text = format!(
        "{HEAD}hz = 100\n[[workload]]\nname = \"w\"\nkind = \"spin\"\nthreads = \"2*cpus\"\n"
    );
    let scenario = parse(&text).unwrap();
    let machine = Machine::parse("4x2").unwrap();
    let plan = scenario
        .plan(0, Some(&machine), Some(7), &mut Shelf(Vec::new()))
        .unwrap();
    assert_eq!(
        (plan.machine.cpus(), plan.machine.hz, plan.seed),
        (8, 100, 7)
    );
    assert_eq!(plan.workloads[0].tasks.len(), 16);
}
