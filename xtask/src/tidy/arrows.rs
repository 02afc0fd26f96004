//! Dependencies: arrows between our crates follow the map, everything else is declared once, in the root manifest,
//! with a reason.

use super::finding::Finding;
use super::sources::SourceFile;
use std::path::Path;
use toml::{Table, Value};

/// Which of our packages a package may depend on. Nothing points back: policy below, hosts and tools above.
const ARROWS: &[(&str, &[&str])] = &[
    ("quotient-key", &[]),
    ("quotient-keys", &["quotient-key"]),
    ("quotient-traced", &["quotient-keys"]),
    ("quotient-pause", &[]),
    ("quotient-task", &[]),
    ("quotient-core", &[]),
    ("quotient-trace", &["quotient-core"]),
    ("quotient-sim", &["quotient-core", "quotient-trace"]),
    (
        "quotient",
        &[
            "quotient-keys",
            "quotient-pause",
            "quotient-task",
            "quotient-core",
        ],
    ),
    ("quotient-fleet", &["quotient", "quotient-core"]),
    ("quotient-config", &["quotient"]),
    ("quotient-attach", &["quotient", "quotient-trace"]),
    ("quotient-allocators", &["quotient"]),
    ("quotient-datafusion", &["quotient"]),
    (
        "quotient-datafusion-example",
        &["quotient", "quotient-datafusion"],
    ),
    ("quotient-wasmtime", &["quotient"]),
    ("quotient-http", &["quotient"]),
    (
        "quotient-opentelemetry",
        &["quotient", "quotient-prometheus"],
    ),
    ("quotient-prometheus", &["quotient"]),
    ("quotient-rayon", &["quotient"]),
    (
        "quotient-cli",
        &[
            "quotient-fleet",
            "quotient-config",
            "quotient-attach",
            "quotient-keys",
            "quotient-pause",
            "quotient-core",
            "quotient-trace",
            "quotient-sim",
            "quotient",
            "quotient-validation",
        ],
    ),
    (
        "quotient-validation",
        &[
            "quotient-core",
            "quotient-trace",
            "quotient-sim",
            "quotient",
        ],
    ),
    ("xtask", &[]),
];

/// Packages that are workspaces of their own and declare their dependencies themselves: what they need is locked for nobody else.
const APART: &[&str] = &[
    "quotient-allocators",
    "quotient-datafusion",
    "quotient-datafusion-example",
    "quotient-wasmtime",
];

/// Tables of a manifest, or of one of its targets, that hold dependencies. Tests must follow the arrows too.
const DEPENDENCY_TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Checks one manifest: the root's reasons, or a member's arrows.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let manifest: Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::error(file, 1, format!("not TOML: {error}"))],
    };
    if file.path == Path::new("Cargo.toml") {
        return reasons(file);
    }
    let package = manifest
        .get("package")
        .and_then(|package| package.get("name"))
        .and_then(Value::as_str);
    let Some(package) = package else {
        return vec![Finding::error(file, 1, "a manifest without a package name")];
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package) else {
        let message =
            format!("package `{package}` is not on the map of arrows in xtask/src/tidy/arrows.rs");
        return vec![Finding::error(file, 1, message)];
    };
    let mut findings = Vec::new();
    for (name, dependency) in dependencies(&manifest) {
        let line = line_of(&file.text, name);
        let renamed = dependency.get("package").and_then(Value::as_str);
        let target = renamed.unwrap_or(name);
        let is_ours = ARROWS.iter().any(|(ours, _)| *ours == target);
        if is_ours && target != package && !allowed.contains(&target) {
            let message = format!(
                "`{package}` may not depend on `{target}`: {}",
                explain(allowed)
            );
            findings.push(Finding::error(file, line, message));
        }
        let declared = dependency.get("workspace").and_then(Value::as_bool) == Some(true);
        if !declared && !APART.contains(&package) {
            let message = format!(
                "`{name}` must be declared in the root manifest and used with `workspace = true`"
            );
            findings.push(Finding::error(file, line, message));
        }
    }
    findings
}

fn explain(allowed: &[&str]) -> String {
    if allowed.is_empty() {
        "it may depend on none of our crates".to_owned()
    } else {
        format!("of our crates only on {}", allowed.join(", "))
    }
}

/// Every dependency of a member with its table entry, those for one target or for tests included.
fn dependencies(manifest: &Table) -> Vec<(&str, &Value)> {
    let targets = manifest
        .get("target")
        .and_then(Value::as_table)
        .into_iter()
        .flatten();
    let tables =
        std::iter::once(manifest).chain(targets.filter_map(|(_, target)| target.as_table()));
    let mut found = Vec::new();
    for table in tables {
        for kind in DEPENDENCY_TABLES {
            for (name, value) in table
                .get(kind)
                .and_then(Value::as_table)
                .into_iter()
                .flatten()
            {
                found.push((name.as_str(), value));
            }
        }
    }
    found
}

/// The line on which a key is written; the parser keeps no positions in its values.
fn line_of(text: &str, key: &str) -> usize {
    let starts = |line: &str| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
            || line.trim_end().ends_with(&format!("dependencies.{key}]"))
    };
    text.lines().position(starts).map_or(1, |index| index + 1)
}

/// Every line of the root's `[workspace.dependencies]` says why it is there, at its end or on the line above. Our own
/// crates need no reason.
fn reasons(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_dependencies = false;
    let mut previous_is_comment = false;
    for (index, line) in file.text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with('[') {
            in_dependencies = trimmed == "[workspace.dependencies]";
        } else if in_dependencies && trimmed.contains('=') && !trimmed.starts_with('#') {
            let has_reason = previous_is_comment
                || reason_at_end(trimmed).is_some_and(|reason| !reason.is_empty());
            let is_ours = trimmed.contains("path =");
            if !has_reason && !is_ours {
                let name = trimmed.split(['=', '.', ' ']).next().unwrap_or("");
                let message =
                    format!("dependency `{name}` without a reason: add `# why` to its line");
                findings.push(Finding::error(file, index + 1, message));
            }
        }
        previous_is_comment = trimmed.starts_with('#');
    }
    findings
}

/// The comment after the last string of the line.
fn reason_at_end(line: &str) -> Option<&str> {
    let after_strings = line.rfind('"').map_or(line, |index| &line[index + 1..]);
    after_strings
        .split_once('#')
        .map(|(_, reason)| reason.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(package: &str, body: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{package}\"\n\n{body}");
        let findings = check(&SourceFile::new("crates/any/Cargo.toml", text));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arrows_that_point_back_are_found() {
        let findings = member(
            "quotient-core",
            "[dependencies]\nquotient.workspace = true\n",
        );
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with(
            "crates/any/Cargo.toml:5: error: `quotient-core` may not depend on `quotient`"
        ));
        assert_eq!(
            member(
                "quotient-trace",
                "[dependencies]\nquotient-sim.workspace = true\n"
            )
            .len(),
            1
        );
        assert_eq!(
            member(
                "quotient",
                "[dependencies.quotient-sim]\nworkspace = true\n"
            )
            .len(),
            1
        );
        assert_eq!(
            member("xtask", "[dependencies]\nquotient-core.workspace = true\n").len(),
            1
        );
    }

    #[test]
    fn arrows_of_tests_targets_and_renamed_crates_count() {
        assert_eq!(
            member(
                "quotient-core",
                "[dev-dependencies]\nquotient.workspace = true\n"
            )
            .len(),
            1
        );
        assert_eq!(
            member(
                "quotient-core",
                "[target.'cfg(loom)'.dependencies]\nquotient.workspace = true\n"
            )
            .len(),
            1
        );
        let renamed = "[dependencies]\nq = { package = \"quotient\", workspace = true }\n";
        assert_eq!(member("quotient-core", renamed).len(), 1);
    }

    #[test]
    fn arrows_on_the_map_pass() {
        let runtime = "[dependencies]\nquotient-core.workspace = true\ntokio = { workspace = true, features = [\"rt\"] }\n";
        assert_eq!(member("quotient", runtime), Vec::<String>::new());
        let cli = "[dependencies]\nquotient.workspace = true\nquotient-sim.workspace = true\n";
        assert_eq!(member("quotient-cli", cli), Vec::<String>::new());
    }

    #[test]
    fn unknown_packages_and_own_versions_are_found() {
        assert_eq!(member("quotient-extra", "").len(), 1);
        assert_eq!(
            member("quotient-core", "[dependencies]\nserde = \"1\"\n").len(),
            1
        );
        assert_eq!(
            member(
                "quotient-core",
                "[dependencies]\nserde = { version = \"1\" }\n"
            )
            .len(),
            1
        );
    }

    #[test]
    fn every_package_of_this_workspace_is_on_the_map_once() {
        for (index, (name, allowed)) in ARROWS.iter().enumerate() {
            assert!(ARROWS[index + 1..].iter().all(|(other, _)| other != name));
            assert!(
                allowed
                    .iter()
                    .all(|target| ARROWS.iter().any(|(known, _)| known == target))
            );
            assert!(!allowed.contains(name));
        }
    }

    #[test]
    fn a_root_dependency_without_a_reason_is_found() {
        let text = "[workspace.dependencies]\nquotient = { path = \"crates/runtime\" }\nserde = \"1\" # rows\n\
                    # a pair\nloom = \"0.7\"\nhttp = \"1\"\nempty = \"1\" #\n\n[workspace.lints.rust]\nx = \"warn\"\n";
        let findings = check(&SourceFile::new("Cargo.toml", text));
        assert_eq!(
            findings
                .iter()
                .map(|finding| finding.line)
                .collect::<Vec<_>>(),
            [6, 7]
        );
        assert!(findings[0].message.contains("`http`"));
    }
}
