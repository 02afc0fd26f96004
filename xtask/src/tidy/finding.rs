//! What a check has to say: where, how bad, and what.

use super::sources::SourceFile;
use std::fmt;
use std::path::PathBuf;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth a look; does not fail the run.
    Warning,
    /// Breaks a rule; fails the run.
    Error,
}

/// One sentence about one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it fails the run.
    pub severity: Severity,
    /// Relative to the root of the workspace.
    pub path: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Finding {
    /// A broken rule.
    pub fn error(file: &SourceFile, line: usize, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, file, line, message)
    }

    /// Something to look at.
    pub fn warning(file: &SourceFile, line: usize, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, file, line, message)
    }

    fn new(severity: Severity, file: &SourceFile, line: usize, message: impl Into<String>) -> Self {
        Self {
            severity,
            path: file.path.clone(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(
            formatter,
            "{}:{}: {severity}: {}",
            self.path.display(),
            self.line,
            self.message
        )
    }
}

/// All findings of a run, warnings first so that the errors end next to the prompt.
#[derive(Debug)]
pub struct Report {
    /// Sorted by severity, then path, then line.
    pub findings: Vec<Finding>,
    files_read: usize,
}

impl Report {
    /// Sorts `findings`; `files_read` is only for the summary.
    pub fn new(mut findings: Vec<Finding>, files_read: usize) -> Self {
        findings.sort_by(|left, right| {
            (left.severity, &left.path, left.line).cmp(&(right.severity, &right.path, right.line))
        });
        Self {
            findings,
            files_read,
        }
    }

    /// Findings that fail the run.
    pub fn error_count(&self) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error)
            .count()
    }

    /// One line for the end of the output.
    pub fn summary(&self) -> String {
        let errors = self.error_count();
        let warnings = self.findings.len() - errors;
        format!(
            "{} files, {errors} errors, {warnings} warnings",
            self.files_read
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_last_and_are_counted() {
        let file = SourceFile::new("crates/core/src/lib.rs", "");
        let report = Report::new(
            vec![
                Finding::error(&file, 9, "broken"),
                Finding::warning(&file, 3, "long"),
            ],
            1,
        );
        assert_eq!(report.error_count(), 1);
        assert_eq!(
            report.findings[1].to_string(),
            "crates/core/src/lib.rs:9: error: broken"
        );
        assert_eq!(report.summary(), "1 files, 1 errors, 1 warnings");
    }
}
