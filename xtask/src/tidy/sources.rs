//! The text files of the workspace and their tokens.

use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Directories of the root that are nobody's source: build output and version control. Other hidden directories are
/// read.
const SKIPPED_DIRECTORIES: [&str; 2] = ["target", ".git"];

/// What counts as text; everything else is not read.
const TEXT_EXTENSIONS: [&str; 5] = ["rs", "md", "toml", "sh", "yml"];

/// Scripts without an extension.
const TEXT_FILES: [&str; 1] = [".ci/run"];

/// One file of the workspace.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Relative to the root of the workspace, with `/` between the parts.
    pub path: PathBuf,
    /// The whole text.
    pub text: String,
}

impl SourceFile {
    /// A file as it would be read from `path`.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    /// `rs` for `lib.rs`; empty where there is none.
    pub fn extension(&self) -> &str {
        self.path
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or("")
    }

    /// `lib.rs` for `crates/core/src/lib.rs`.
    pub fn name(&self) -> &str {
        self.path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("")
    }

    /// Whether the file lies below `directory`.
    pub fn is_below(&self, directory: &str) -> bool {
        self.path.starts_with(directory)
    }
}

/// Reads every text file below `root`, in the order of their paths.
///
/// # Errors
/// When a directory or file cannot be read, or a text file is not UTF-8.
pub fn read_workspace(root: &Path) -> io::Result<Vec<SourceFile>> {
    let mut pending = vec![root.to_path_buf()];
    let mut files = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            let relative = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            if kind.is_dir() {
                if !SKIPPED_DIRECTORIES
                    .iter()
                    .any(|skipped| relative == Path::new(skipped))
                {
                    pending.push(path);
                }
            } else if kind.is_file() && is_text(&relative) {
                files.push(SourceFile::new(relative, fs::read_to_string(&path)?));
            }
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(files)
}

fn is_text(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| TEXT_EXTENSIONS.contains(&extension))
        || TEXT_FILES.iter().any(|name| path == Path::new(name))
}

/// A token and its line; groups appear as their opening delimiter, followed by their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// An identifier, one punctuation character, one opening delimiter, or a literal as it was written.
    pub text: String,
    /// Counted from 1.
    pub line: usize,
}

/// All tokens of a Rust file in reading order, those inside macros included, which the syntax tree hides.
/// Comments are not tokens, documentation becomes string literals. A file that does not lex gives no tokens: the
/// parser has already complained about it.
pub fn flat_tokens(file: &SourceFile) -> Vec<Token> {
    let mut tokens = Vec::new();
    if let Ok(stream) = TokenStream::from_str(&file.text) {
        flatten(stream, &mut tokens);
    }
    tokens
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let opening = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => "(",
                    proc_macro2::Delimiter::Brace => "{",
                    proc_macro2::Delimiter::Bracket => "[",
                    proc_macro2::Delimiter::None => "",
                };
                tokens.push(Token {
                    text: opening.to_owned(),
                    line,
                });
                flatten(group.stream(), tokens);
            }
            other => tokens.push(Token {
                text: other.to_string(),
                line,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_carry_lines_and_reach_into_macros() {
        let file = SourceFile::new("a.rs", "fn f() {\n    call!(unsafe { g() });\n}\n");
        let found = flat_tokens(&file)
            .into_iter()
            .find(|token| token.text == "unsafe");
        assert_eq!(found.map(|token| token.line), Some(2));
    }

    #[test]
    fn this_workspace_is_read_without_its_build_output() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("xtask lies in the workspace");
        let files = read_workspace(root).expect("the workspace is readable");
        assert!(
            files
                .iter()
                .any(|file| file.path == Path::new("xtask/src/tidy/sources.rs"))
        );
        assert!(files.iter().any(|file| file.path == Path::new(".ci/run")));
        assert!(
            !files
                .iter()
                .any(|file| file.is_below("target") || file.is_below(".git"))
        );
    }
}
