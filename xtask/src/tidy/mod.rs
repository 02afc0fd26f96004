//! The rules of the house that rustc and clippy do not know.
//!
//! | module | rule |
//! |---|---|
//! | [`arrows`] | dependencies between our crates follow the map; versions live in the root manifest, one reason a line |
//! | [`lengths`] | files and functions stay short |
//! | [`unsafety`] | `unsafe` only in its four rooms, each use with a proof, each root with its lint |
//! | [`banned`] | no printing from libraries, no unfinished work |
//! | [`links`] | links from Markdown to files of the repository lead somewhere |
//!
//! Every check is a pure function from text to findings, so that each has a test in which it fails.

mod arrows;
mod banned;
mod finding;
mod lengths;
mod links;
mod sources;
mod unsafety;

pub use finding::Report;

use finding::Finding;
use sources::SourceFile;
use std::io;
use std::path::Path;

/// Runs every check over the workspace at `root`. Cost: one read of every text file, one parse of every Rust file.
///
/// # Errors
/// When a directory or file below `root` cannot be read.
pub fn run(root: &Path) -> io::Result<Report> {
    let files = sources::read_workspace(root)?;
    let mut findings = Vec::new();
    for file in &files {
        findings.extend(check_file(root, file));
    }
    Ok(Report::new(findings, files.len()))
}

fn check_file(root: &Path, file: &SourceFile) -> Vec<Finding> {
    let mut findings = banned::unfinished_work(file);
    match file.extension() {
        "rs" => findings.extend(check_rust(file)),
        "md" => findings.extend(links::check(file, |target| root.join(target).exists())),
        "toml" if file.name() == "Cargo.toml" => findings.extend(arrows::check(file)),
        _ => {}
    }
    findings
}

fn check_rust(file: &SourceFile) -> Vec<Finding> {
    let syntax = match syn::parse_file(&file.text) {
        Ok(syntax) => syntax,
        Err(error) => {
            let line = error.span().start().line;
            return vec![Finding::error(
                file,
                line,
                format!("does not parse as Rust: {error}"),
            )];
        }
    };
    let mut findings = lengths::functions(file, &syntax);
    findings.extend(lengths::file(file));
    findings.extend(unsafety::crate_root(file, &syntax));
    let tokens = sources::flat_tokens(file);
    findings.extend(unsafety::uses(file, &tokens));
    findings.extend(banned::macros(file, &tokens));
    findings
}
