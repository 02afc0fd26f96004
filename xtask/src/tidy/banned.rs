//! Libraries do not print, and nothing unfinished is committed.

use super::finding::Finding;
use super::sources::{SourceFile, Token};

/// Crates whose users own the terminal.
const LIBRARIES: [&str; 6] = [
    "crates/key/src",
    "crates/keys/src",
    "crates/core/src",
    "crates/runtime/src",
    "crates/trace/src",
    "crates/sim/src",
];

/// Macros that write to the user's terminal.
const PRINTING: [&str; 4] = ["println", "eprintln", "print", "eprint"];

/// Macros that say that work is left over.
const UNFINISHED: [&str; 3] = ["dbg", "todo", "unimplemented"];

/// Words that say the same in prose; in pieces, so that this file passes its own check.
const MARKERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];

/// Looks for printing macros in libraries, and for macros of unfinished work everywhere.
pub fn macros(file: &SourceFile, tokens: &[Token]) -> Vec<Finding> {
    // Tests may print: the harness keeps it from the terminal.
    let is_test = file
        .path
        .components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
    let is_library = !is_test && LIBRARIES.iter().any(|directory| file.is_below(directory));
    let mut findings = Vec::new();
    for pair in tokens.windows(2) {
        let [name, bang] = pair else { continue };
        if bang.text != "!" {
            continue;
        }
        if UNFINISHED.contains(&name.text.as_str()) {
            findings.push(Finding::error(
                file,
                name.line,
                format!("`{}!` is not for committed code", name.text),
            ));
        } else if is_library && PRINTING.contains(&name.text.as_str()) {
            let message = format!(
                "`{}!` in a library: the terminal belongs to its user",
                name.text
            );
            findings.push(Finding::error(file, name.line, message));
        }
    }
    findings
}

/// Looks for the marker words in any text file.
pub fn unfinished_work(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let mut words =
            line.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        if let Some(marker) = words.find(|word| MARKERS.contains(word)) {
            findings.push(Finding::error(
                file,
                index + 1,
                format!("`{marker}`: finish it, or say it in an issue"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::flat_tokens;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile::new(path, text);
        macros(&file, &flat_tokens(&file))
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_library_may_not_print_but_the_binary_may() {
        let text = "fn f() {\n    println!(\"x\");\n    if a != b {}\n    eprintln!();\n}\n";
        assert_eq!(lines("crates/runtime/src/lib.rs", text), [2, 4]);
        assert_eq!(lines("crates/cli/src/main.rs", text), []);
        assert_eq!(lines("crates/runtime/tests/demo.rs", text), []);
        assert_eq!(lines("crates/runtime/src/task/tests/costs.rs", text), []);
    }

    #[test]
    fn unfinished_macros_are_found_everywhere_but_not_in_comments() {
        let text = "/// println!() and todo!()\nfn f() {\n    todo!();\n    m!(dbg!(1));\n    unimplemented!()\n}\n";
        assert_eq!(lines("crates/cli/src/main.rs", text), [3, 4, 5]);
        assert_eq!(lines("crates/core/tests/a.rs", text), [3, 4, 5]);
    }

    #[test]
    fn marker_words_are_found_as_whole_words() {
        for marker in MARKERS {
            let text = format!("fine\n// {marker}: later\n\"tmp.{marker}{marker}\"\n");
            let found = unfinished_work(&SourceFile::new("notes.md", text));
            assert_eq!(
                found.iter().map(|finding| finding.line).collect::<Vec<_>>(),
                [2]
            );
        }
    }
}
