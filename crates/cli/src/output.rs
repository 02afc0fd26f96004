//! Files that a command writes: whole or not at all.
//!
//! A file is written under another name in its folder, `NAME.PID.partial`, and gets its own once it is whole: two commands that write the same file
//! leave the one or the other, and a full disk, an error or Ctrl-C leaves what was there before. What is killed leaves its partial file behind
//! (the next `record` removes that of a killed one). What is no plain file (`-`, a pipe, a device) is written as it is.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A file that exists only once it is whole, or standard output.
pub struct Output {
    writer: BufWriter<Box<dyn Write>>,
    /// Where it is written, and what it is called once it is whole.
    path: Option<(PathBuf, PathBuf)>,
}

impl Output {
    /// Opens what will be `path`; `-` is standard output.
    ///
    /// # Errors
    /// `Usage` with the path and the operating system's reason.
    pub fn create(path: &Path) -> Result<Output, Failure> {
        if path == Path::new("-") {
            return Ok(Output::direct(io::stdout()));
        }
        let refused =
            |error| Failure::Usage(format!("{}: cannot be written: {error}", path.display()));
        // A link stays one.
        let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if whole.exists() && !whole.is_file() {
            let file = File::options().write(true).open(&whole).map_err(refused)?;
            return Ok(Output::direct(file));
        }
        // Who may not write the file may not replace it.
        if whole.exists() {
            File::options().append(true).open(&whole).map_err(refused)?;
        }
        let mut name = whole.as_os_str().to_owned();
        name.push(partial_end(std::process::id()));
        let partial = PathBuf::from(name);
        let file = File::create(&partial).map_err(refused)?;
        Ok(Output {
            writer: BufWriter::with_capacity(1 << 18, Box::new(file)),
            path: Some((partial, whole)),
        })
    }

    fn direct(writer: impl Write + 'static) -> Output {
        Output {
            writer: BufWriter::new(Box::new(writer)),
            path: None,
        }
    }

    /// It is whole.
    ///
    /// # Errors
    /// `Unwritable`, or `Closed` where nobody reads standard output any more.
    pub fn keep(mut self) -> Result<(), Failure> {
        let named = self.writer.flush().and_then(|()| match &self.path {
            Some((partial, whole)) => fs::rename(partial, whole),
            None => Ok(()),
        });
        named.map_err(Failure::writing("cannot write the result"))?;
        self.path = None;
        Ok(())
    }
}

/// What ends the name of a file that `process` has not written whole yet.
pub fn partial_end(process: u32) -> String {
    format!(".{process}.partial")
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for Output {
    /// Half a result is none.
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.path {
            // It may be gone already; nothing more can be done here.
            let _ = fs::remove_file(partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is in the folder, by name.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_whole_or_what_it_was() {
        let folder = std::env::temp_dir().join(format!("quotient-output-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("trace.txt");
        fs::write(&path, "before").unwrap();
        let mut output = Output::create(&path).unwrap();
        output.write_all(b"half").unwrap();
        output.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        drop(output);
        assert_eq!(names(&folder), ["trace.txt"]);
        let link = folder.join("zlink");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut output = Output::create(&link).unwrap();
        output.write_all(b"whole").unwrap();
        output.keep().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(names(&folder), ["trace.txt", "zlink"]);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        // A full disk is no breach of a rule.
        if Path::new("/dev/full").exists() {
            let mut output = Output::create(Path::new("/dev/full")).unwrap();
            output.write_all(b"more than nothing").unwrap();
            assert!(matches!(output.keep(), Err(Failure::Unwritable(_))));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
