//! `unsafe` lives in four rooms, and every use of it there has a proof beside it.

use super::finding::Finding;
use super::sources::{SourceFile, Token};

/// The rooms, crates as a whole: keys, code patching, stopping threads, and the task cell with its wakers.
const ROOMS: [&str; 4] = ["crates/key", "crates/keys", "crates/pause", "crates/task"];

/// How many lines of one statement may stand between a proof and the word `unsafe`.
const STATEMENT_LINES_MAX: usize = 6;

/// Checks that the root of a crate switches `unsafe_code` off.
pub fn crate_root(file: &SourceFile, syntax: &syn::File) -> Option<Finding> {
    let is_root =
        matches!(file.name(), "lib.rs" | "main.rs") && file.path.parent()?.ends_with("src");
    if !is_root || ROOMS.iter().any(|room| file.is_below(room)) {
        return None;
    }
    let found = syntax.attrs.iter().any(|attribute| {
        let is_inner = matches!(attribute.style, syn::AttrStyle::Inner(_));
        is_inner
            && attribute.path().is_ident("forbid")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|lint| lint.is_ident("unsafe_code"))
    });
    (!found).then(|| {
        Finding::error(
            file,
            1,
            "the root of this crate needs `#![forbid(unsafe_code)]`",
        )
    })
}

/// Checks every `unsafe` of the file, those inside macros included.
pub fn uses(file: &SourceFile, tokens: &[Token]) -> Vec<Finding> {
    let in_room = ROOMS.iter().any(|room| file.is_below(room));
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        if token.text == "unsafe_code" && !in_room {
            let opens = index >= 2
                && matches!(tokens[index - 2].text.as_str(), "allow" | "expect" | "warn");
            if opens {
                findings.push(Finding::error(
                    file,
                    token.line,
                    "`unsafe_code` may not be allowed here",
                ));
            }
        }
        if token.text != "unsafe" {
            continue;
        }
        if !in_room {
            let message = format!("`unsafe` outside its rooms ({})", ROOMS.join(", "));
            findings.push(Finding::error(file, token.line, message));
        }
        let needs_proof = tokens
            .get(index + 1)
            .is_some_and(|next| next.text == "{" || next.text == "impl");
        if needs_proof && !has_proof(&lines, token.line) {
            findings.push(Finding::error(
                file,
                token.line,
                "`unsafe` without a `// SAFETY:` proof right above",
            ));
        }
    }
    findings
}

/// Whether a comment with `SAFETY:` stands on the line itself, or directly above the statement the line belongs to.
fn has_proof(lines: &[&str], line: usize) -> bool {
    let is_proof = |text: &str| text.contains("// SAFETY:");
    if lines.get(line - 1).is_some_and(|text| is_proof(text)) {
        return true;
    }
    let mut statement_lines = 0;
    let mut in_comment = false;
    for text in lines[..line - 1].iter().rev().map(|text| text.trim()) {
        if text.starts_with("//") {
            in_comment = true;
            if is_proof(text) {
                return true;
            }
        } else if in_comment || text.is_empty() {
            // Above the comment that ended without the word, or a gap: the proof belongs to something else.
            return false;
        } else if !text.starts_with("#[") {
            statement_lines += 1;
            let ends_statement = text.ends_with([';', '}', '{']);
            if ends_statement || statement_lines > STATEMENT_LINES_MAX {
                return false;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::flat_tokens;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = SourceFile::new(path, text);
        uses(&file, &flat_tokens(&file))
            .into_iter()
            .map(|finding| (finding.line, finding.message))
            .collect()
    }

    fn root_passes(path: &str, text: &str) -> bool {
        let syntax = syn::parse_file(text).expect("the test's source parses");
        crate_root(&SourceFile::new(path, text), &syntax).is_none()
    }

    const PROVEN: &str = "fn f() {\n    // SAFETY: nobody else holds it.\n    unsafe { g() }\n}\n";

    #[test]
    fn unsafe_outside_its_rooms_is_found_even_with_a_proof() {
        for path in [
            "crates/core/src/lib.rs",
            "crates/runtime/src/stats.rs",
            "crates/cli/tests/a.rs",
        ] {
            assert_eq!(found(path, PROVEN).len(), 1, "{path}");
        }
        for path in [
            "crates/keys/src/lib.rs",
            "crates/pause/src/table.rs",
            "crates/task/src/cell.rs",
        ] {
            assert_eq!(found(path, PROVEN), [], "{path}");
        }
    }

    #[test]
    fn unsafe_inside_a_macro_is_found() {
        assert_eq!(
            found(
                "crates/core/src/lib.rs",
                "fn f() {\n    m!(unsafe { g() });\n}\n"
            )[0]
            .0,
            2
        );
    }

    #[test]
    fn a_block_or_impl_without_a_proof_is_found() {
        let path = "crates/task/src/cell.rs";
        assert_eq!(found(path, "fn f() {\n    unsafe { g() }\n}\n")[0].0, 2);
        assert_eq!(found(path, "unsafe impl Send for X {}\n")[0].0, 1);
        assert_eq!(
            found(
                path,
                "// SAFETY: X is a number.\nunsafe impl Send for X {}\n"
            ),
            []
        );
        // A function's contract stands in its documentation, which clippy checks.
        assert_eq!(found(path, "unsafe fn f() {}\n"), []);
    }

    #[test]
    fn a_proof_reaches_over_its_statement_and_attributes_but_not_over_another_statement() {
        let path = "crates/keys/src/lib.rs";
        let over = "fn f() {\n    // SAFETY: a.\n    // More.\n    #[rustfmt::skip]\n    let x =\n        unsafe { g() };\n}\n";
        assert_eq!(found(path, over), []);
        let beyond =
            "fn f() {\n    // SAFETY: a.\n    let x = unsafe { g() };\n    unsafe { h() }\n}\n";
        assert_eq!(found(path, beyond)[0].0, 4);
        let gap = "fn f() {\n    // SAFETY: a.\n\n    unsafe { h() }\n}\n";
        assert_eq!(found(path, gap)[0].0, 4);
    }

    #[test]
    fn the_lint_may_not_be_switched_back_on_elsewhere() {
        let text = "#![allow(unsafe_code)]\n";
        assert_eq!(found("crates/cli/src/bench/mod.rs", text).len(), 1);
        assert_eq!(found("crates/task/src/lib.rs", text), []);
        assert_eq!(
            found("crates/core/src/lib.rs", "#![forbid(unsafe_code)]\n"),
            []
        );
    }

    #[test]
    fn roots_carry_the_right_level() {
        let forbid = "#![forbid(unsafe_code)]\nfn f() {}\n";
        let deny = "#![deny(unsafe_code)]\nfn f() {}\n";
        assert!(root_passes("crates/core/src/lib.rs", forbid));
        assert!(root_passes("xtask/src/main.rs", forbid));
        assert!(root_passes("crates/runtime/src/lib.rs", forbid));
        assert!(!root_passes("crates/runtime/src/lib.rs", deny));
        assert!(root_passes("crates/keys/src/lib.rs", "fn f() {}\n"));
        assert!(root_passes("crates/pause/src/lib.rs", "fn f() {}\n"));
        assert!(root_passes("crates/task/src/lib.rs", "fn f() {}\n"));
        assert!(root_passes("crates/core/src/group.rs", "fn f() {}\n"));
        assert!(!root_passes("crates/core/src/lib.rs", deny));
        assert!(!root_passes("crates/cli/src/main.rs", "fn main() {}\n"));
        assert!(!root_passes(
            "crates/core/src/lib.rs",
            "//! `#![forbid(unsafe_code)]` in prose\n"
        ));
    }
}
