//! Links from Markdown to files of this repository lead somewhere.

use super::finding::Finding;
use super::sources::SourceFile;
use std::path::{Component, Path, PathBuf};

/// Checks the inline links, images and link definitions of one Markdown file; `exists` answers for a path relative to
/// the root of the workspace. Code fences and code spans are not links. Anchors inside a file are not followed.
pub fn check(file: &SourceFile, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let directory = file.path.parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (line, target) in targets(&file.text) {
        let without_anchor = target.split('#').next().unwrap_or("");
        if without_anchor.is_empty() || is_remote(&target) {
            continue;
        }
        match resolve(directory, without_anchor) {
            Some(path) if exists(&path) => {}
            Some(_) => findings.push(Finding::error(
                file,
                line,
                format!("link to `{target}`, which does not exist"),
            )),
            None => findings.push(Finding::error(
                file,
                line,
                format!("link to `{target}` leaves the repository"),
            )),
        }
    }
    findings
}

fn is_remote(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// `None` when the path climbs out of the root.
fn resolve(directory: &Path, target: &str) -> Option<PathBuf> {
    let mut resolved = PathBuf::new();
    for component in directory.join(target).components() {
        match component {
            Component::Normal(part) => resolved.push(part),
            Component::ParentDir => {
                if !resolved.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(resolved)
}

fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_fence = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            in_fence = !in_fence;
            continue;
        }
        if in_fence {
            continue;
        }
        let prose = without_code_spans(line);
        for rest in prose.split("](").skip(1) {
            if let Some(end) = rest.find(')') {
                found.push((index + 1, first_word(&rest[..end])));
            }
        }
        if let Some(definition) = prose.trim_start().strip_prefix('[')
            && let Some((_, target)) = definition.split_once("]: ")
        {
            found.push((index + 1, first_word(target)));
        }
    }
    found
}

/// A target may be followed by a title and wrapped in angle brackets.
fn first_word(text: &str) -> String {
    let word = text.split_whitespace().next().unwrap_or("");
    word.trim_start_matches('<')
        .trim_end_matches('>')
        .to_owned()
}

/// Drops what stands between pairs of backticks, so that code which looks like a link is not one; link texts in code
/// font keep their brackets.
fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(path: &str, text: &str) -> Vec<usize> {
        let known = [
            "README.md",
            "docs/design.md",
            "crates/core/src/lib.rs",
            "docs",
        ];
        let file = SourceFile::new(path, text);
        let findings = check(&file, |target| {
            known.iter().any(|name| target == Path::new(name))
        });
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn dead_links_are_found_and_live_ones_are_not() {
        let text = "[a](docs/design.md) [b](docs/gone.md)\n![p](picture.svg \"title\")\n[`c`](crates/core/src/lib.rs)\n";
        assert_eq!(broken("README.md", text), [1, 2]);
    }

    #[test]
    fn links_are_relative_to_their_file_and_stay_inside() {
        assert_eq!(
            broken("docs/a.md", "[up](../README.md#top) [same](./design.md)\n"),
            []
        );
        assert_eq!(
            broken(
                "docs/a.md",
                "[wrong](README.md)\n[out](../../secret)\n[absolute](/etc/hosts)\n"
            ),
            [1, 2, 3]
        );
    }

    #[test]
    fn definitions_count_and_remote_links_and_anchors_do_not() {
        assert_eq!(
            broken("README.md", "[gone]: nowhere.md\n[here]: docs/design.md\n"),
            [1]
        );
        assert_eq!(
            broken(
                "README.md",
                "[w](https://example.org/x) [m](mailto:a@example.org) [h](#section)\n"
            ),
            []
        );
    }

    #[test]
    fn code_is_not_a_link() {
        assert_eq!(
            broken(
                "README.md",
                "```\n[x](gone.md)\n```\n`[y](gone.md)`\n[z](gone.md)\n"
            ),
            [5]
        );
    }
}
