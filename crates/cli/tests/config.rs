//! `quotient config` as a person calls it.

mod common;

use common::{Folder, quotient, stderr};

#[test]
fn exit_codes_tell_wrong_settings_from_no_file_and_no_toml() {
    let folder = Folder::new("config");
    let check = |text: &str| {
        let path = folder.file("settings.toml");
        std::fs::write(&path, text).expect("our own folder");
        let output = quotient(&["config", "check", &path, "--vcpus", "2"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = check("[groups.web]\nweight = 3\n");
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("good: 1 group, defaults for the children of 0 groups"),
        "{text}"
    );
    let (code, text) = check("[groups.web]\nweight = 30000\n");
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("settings.toml:2:10: groups.web.weight is 30000, allowed are 1 to 10000")
    );
    let (code, _) = check("[groups\n");
    assert_eq!(code, Some(3));
    // A folder is no file of settings, no scenario and no trace, whoever is asked.
    let folder_itself = folder.file("");
    for question in [
        &["config", "check", &folder_itself][..],
        &["sim", &folder_itself],
        &["advise", &folder_itself],
        &["check", &folder_itself],
    ] {
        let output = quotient(question);
        assert_eq!(output.status.code(), Some(3), "{question:?}");
        assert!(stderr(&output).contains(": a folder, and "), "{question:?}");
    }
    let (code, text) = check("[groups.web]\nmax = { cpus = 100000 }\n");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("{ cpus = 1.5 } (0.01 to 1024)"), "{text}");
    let (code, text) = check("[groups.web]\nmax = { cpus = 1024 }\n");
    assert_eq!(code, Some(0), "{text}");
    let missing = quotient(&["config", "check", &folder.file("missing.toml")]);
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));
}

#[test]
fn the_reference_and_the_schema_are_printed() {
    let reference = quotient(&["config", "reference"]);
    assert!(String::from_utf8_lossy(&reference.stdout).contains("queue_wait_max = "));
    let schema = quotient(&["config", "schema"]);
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).expect("JSON");
    assert_eq!(schema["type"], "object");
}
