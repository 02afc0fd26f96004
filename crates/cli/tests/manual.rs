//! Help on topics, completions, manual pages, forms of JSON results, and exit codes of `sim`.

mod common;

use common::{Folder, quotient, stderr};

fn stdout(arguments: &[&str]) -> String {
    let output = quotient(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).expect("text")
}

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
    let missed = write("missed.toml", &SCENARIO.replace("MAX", "1"));
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
