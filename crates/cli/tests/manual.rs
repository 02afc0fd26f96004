//! Help on topics, completions, manual pages, forms of JSON results, and exit codes of `sim`.

mod common;

use common::{Folder, quotient, stderr, stdout};

#[test]
fn help_knows_commands_and_topics() {
    let page = stdout(&["help", "scenario"]);
    assert!(
        page.contains("[[workload]]") && page.contains("closed-loop"),
        "{page}"
    );
    assert!(stdout(&["help"]).contains("quotient help TOPIC"));
    assert!(stdout(&["help", "bench", "fair"]).contains("--json"));
    let unknown = quotient(&["help", "weather"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        stderr(&unknown).contains("scenario"),
        "{}",
        stderr(&unknown)
    );
    // The word that is wrong is named, not the one before it.
    for (topic, said) in [
        (
            &["help", "scenario", "foo"][..],
            "nothing below it, such as \"foo\"",
        ),
        (
            &["help", "bench", "foo"],
            "quotient bench has no command \"foo\", only",
        ),
        (
            &["help", "sim", "foo"],
            "quotient sim has no commands, so no \"foo\"",
        ),
    ] {
        let unknown = quotient(topic);
        assert_eq!(unknown.status.code(), Some(2));
        assert!(stderr(&unknown).contains(said), "{}", stderr(&unknown));
    }
}

/// Hazard: who follows the page on operations with the default build is told that there is no such thing.
#[cfg(not(feature = "fleet"))]
#[test]
fn a_command_that_was_not_built_in_says_how_to_get_it() {
    for arguments in [
        &["fleet", "set", "tenants/acme", "12", "--burst", "2s"][..],
        &["demo", "fleet"],
        &[
            "demo",
            "fleet",
            "--seconds",
            "6",
            "--out",
            "/tmp/never.html",
        ],
    ] {
        let absent = quotient(arguments);
        assert_eq!(absent.status.code(), Some(2));
        let said = stderr(&absent);
        assert!(said.contains("--features fleet"), "{said}");
    }
    for page in [&["help"][..], &["help", "demo"], &["demo", "--help"]] {
        assert!(!stdout(page).contains("fleet"), "{page:?}");
    }
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        assert!(
            script.contains("advise") && script.contains("perfetto"),
            "{shell}"
        );
    }
    assert!(stdout(&["man"]).contains(".TH quotient 1"));
    let folder = Folder::new("man");
    let place = folder.file("");
    stdout(&["man", &place]);
    let page = std::fs::read_to_string(folder.file("quotient-sim.1")).expect("a page for sim");
    assert!(page.contains("perfetto"), "{page}");
    assert_eq!(quotient(&["man", "/nowhere/at/all"]).status.code(), Some(2));
}

const SCENARIO: &str = r#"
name = "sweep"
duration = "50ms"
machine = { shape = "2" }
[[workload]]
name = "w"
kind = "spin"
threads = 3
[[sweep]]
key = "machine.hz"
values = [100, 250, 1000]
[[expect]]
what = "all of the machine"
value = "busy / elapsed"
min = 2
max = MAX
"#;

#[test]
fn a_kernel_and_its_ticks_can_be_given() {
    let folder = Folder::new("sim-kernel");
    let path = folder.file("box.toml");
    let text = r#"
name = "box"
duration = "2s"
machine = { shape = "1" }
[[group]]
path = "box"
quota = "13ms"
period = "20ms"
[[workload]]
name = "w"
kind = "spin"
group = "box"
"#;
    std::fs::write(&path, text).expect("a writable folder");
    let throttled = |more: &[&str]| {
        let json = stdout(&[&["sim", &path, "--json"], more].concat());
        let value: serde_json::Value = serde_json::from_str(&json).expect("one object");
        let note = value["kernel"].as_str().map(str::to_owned);
        let groups = &value["runs"][0]["outcome"]["groups"];
        (groups[1]["nr_throttled"].as_u64().expect("a count"), note)
    };
    let (coarse, note) = throttled(&["--kernel", "6.18", "--hz", "100"]);
    assert!(note.is_some_and(|note| note.contains("not validated")));
    let (fine, _) = throttled(&["--kernel", "6.18", "--hz", "1000"]);
    assert!(fine > coarse, "{fine} {coarse}");
    assert_eq!(throttled(&[]).1, None);
    let unknown = quotient(&["sim", &path, "--kernel", "5.4"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("ours, 6.6, 6.12, 6.18"));
}

#[test]
fn results_name_their_form_and_exit_codes_tell_missed_from_unreadable() {
    let folder = Folder::new("sim-codes");
    let write = |name: &str, text: &str| {
        let path = folder.file(name);
        std::fs::write(&path, text).expect("a writable folder");
        path
    };
    let good = write("good.toml", &SCENARIO.replace("MAX", "2"));
    let json = stdout(&["sim", &good, "--json", "--jobs", "1"]);
    assert!(json.starts_with(r#"{"schema":"quotient-sim/1","#), "{json}");
    assert_eq!(json, stdout(&["sim", &good, "--json", "--jobs", "3"]));
    let missed = SCENARIO.replace("min = 2", "min = 1").replace("MAX", "1");
    let missed = write("missed.toml", &missed);
    let codes = [
        (good, Some(0), ""),
        (missed, Some(1), "not every expectation was met"),
        (
            write(
                "typo.toml",
                &SCENARIO.replace("MAX", "2").replace("busy /", "bussy /"),
            ),
            Some(3),
            "typo.toml:14:9: expected a known figure",
        ),
        (folder.file("none.toml"), Some(2), "none.toml"),
    ];
    for (path, code, said) in codes {
        let output = quotient(&["sim", &path]);
        assert_eq!(output.status.code(), code, "{path}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(said),
            "{path}: {}",
            stderr(&output)
        );
    }
    assert_eq!(
        quotient(&["sim", "x", "--jobs", "0"]).status.code(),
        Some(2)
    );
}
