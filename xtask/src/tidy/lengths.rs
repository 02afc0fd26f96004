//! Files and functions stay short. Blank lines and lines of pure comment do not count in a function, so that nobody
//! saves a line by deleting a reason; in a file every line counts, since a reader scrolls past all of them.

use super::finding::Finding;
use super::sources::SourceFile;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of a file above which it should be split.
const FILE_LINES_SOFT: usize = 500;
/// Lines of a file above which it must be split.
const FILE_LINES_HARD: usize = 800;
/// Lines of a file of an example of an integration: what a reader takes in at one go.
const EXAMPLE_LINES_HARD: usize = 100;
/// Lines of code of a function above which it should be split ("about 70", hence the margin of 5).
const FUNCTION_LINES_SOFT: usize = 75;
/// Lines of code of a function above which it must be split.
const FUNCTION_LINES_HARD: usize = 120;

/// Checks the length of the whole file.
pub fn file(file: &SourceFile) -> Option<Finding> {
    let lines = file.text.lines().count();
    if lines > EXAMPLE_LINES_HARD && is_integrations_example(file) {
        Some(Finding::error(
            file,
            lines,
            format!("{lines} lines in an example, {EXAMPLE_LINES_HARD} at most"),
        ))
    } else if lines > FILE_LINES_HARD {
        Some(Finding::error(
            file,
            lines,
            format!("{lines} lines in a file, {FILE_LINES_HARD} at most"),
        ))
    } else if lines > FILE_LINES_SOFT {
        Some(Finding::warning(
            file,
            lines,
            format!("{lines} lines in a file, better {FILE_LINES_SOFT} at most"),
        ))
    } else {
        None
    }
}

fn is_integrations_example(file: &SourceFile) -> bool {
    let mut folders = file.path.iter();
    file.is_below("integrations")
        && folders.any(|folder| folder == "example" || folder == "examples")
}

/// Checks the length of every function, method and default method, nested ones included.
pub fn functions(file: &SourceFile, syntax: &syn::File) -> Vec<Finding> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut visitor = FunctionVisitor {
        file,
        lines,
        findings: Vec::new(),
    };
    visitor.visit_file(syntax);
    visitor.findings
}

struct FunctionVisitor<'a> {
    file: &'a SourceFile,
    lines: Vec<&'a str>,
    findings: Vec<Finding>,
}

impl FunctionVisitor<'_> {
    fn check(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let last = block.span().end().line;
        let body = self.lines.get(first - 1..last).unwrap_or_default();
        let count = body.iter().filter(|line| is_code(line)).count();
        let name = &signature.ident;
        if count > FUNCTION_LINES_HARD {
            let message =
                format!("{count} lines of code in fn {name}, {FUNCTION_LINES_HARD} at most");
            self.findings
                .push(Finding::error(self.file, first, message));
        } else if count > FUNCTION_LINES_SOFT {
            let message = format!("{count} lines of code in fn {name}, better about 70");
            self.findings
                .push(Finding::warning(self.file, first, message));
        }
    }
}

fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

impl<'ast> Visit<'ast> for FunctionVisitor<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.check(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::finding::Severity;

    fn of_lines(count: usize) -> SourceFile {
        SourceFile::new("a.rs", "// a line\n".repeat(count))
    }

    fn severity_of(file: &SourceFile) -> Option<Severity> {
        let syntax = syn::parse_file(&file.text).expect("the test's source parses");
        let findings = functions(file, &syntax);
        assert!(findings.len() <= 1);
        findings.first().map(|finding| finding.severity)
    }

    fn function_of(code_lines: usize, filler: &str) -> SourceFile {
        // The signature and the closing brace are two of the lines.
        let body = "    call();\n".repeat(code_lines - 2);
        SourceFile::new(
            "a.rs",
            format!("struct S;\nimpl S {{\nfn long() {{\n{filler}{body}}}\n}}\n"),
        )
    }

    #[test]
    fn file_lengths_warn_and_fail_at_their_bounds() {
        assert_eq!(file(&of_lines(500)), None);
        assert_eq!(
            file(&of_lines(501)).map(|finding| finding.severity),
            Some(Severity::Warning)
        );
        assert_eq!(
            file(&of_lines(800)).map(|finding| finding.severity),
            Some(Severity::Warning)
        );
        assert_eq!(
            file(&of_lines(801)).map(|finding| finding.severity),
            Some(Severity::Error)
        );
    }

    #[test]
    fn examples_of_integrations_are_short() {
        let of = |path: &str, count: usize| {
            let found = file(&SourceFile::new(path, "// a line\n".repeat(count)));
            found.map(|finding| finding.severity)
        };
        for path in [
            "integrations/a/examples/b.rs",
            "integrations/a/examples/b/mod.rs",
            "integrations/a/example/src/main.rs",
        ] {
            assert_eq!(of(path, 100), None, "{path}");
            assert_eq!(of(path, 101), Some(Severity::Error), "{path}");
        }
        assert_eq!(of("integrations/a/src/lib.rs", 101), None);
        assert_eq!(of("crates/a/examples/b.rs", 101), None);
    }

    #[test]
    fn function_lengths_warn_and_fail_at_their_bounds() {
        assert_eq!(severity_of(&function_of(75, "")), None);
        assert_eq!(severity_of(&function_of(76, "")), Some(Severity::Warning));
        assert_eq!(severity_of(&function_of(120, "")), Some(Severity::Warning));
        assert_eq!(severity_of(&function_of(121, "")), Some(Severity::Error));
    }

    #[test]
    fn reasons_and_blank_lines_are_free() {
        assert_eq!(
            severity_of(&function_of(75, &"    // why\n\n".repeat(50))),
            None
        );
    }

    #[test]
    fn default_methods_and_nested_functions_count() {
        let body = "call();\n".repeat(130);
        for source in [
            format!("trait T {{ fn f() {{\n{body}}} }}"),
            format!("mod m {{ fn f() {{\n{body}}} }}"),
        ] {
            assert_eq!(
                severity_of(&SourceFile::new("a.rs", source)),
                Some(Severity::Error)
            );
        }
    }
}
