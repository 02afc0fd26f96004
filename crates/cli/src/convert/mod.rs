//! `quotient convert`: a trace in, the same trace in another format out, in one pass.

pub mod input;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use quotient_trace::{Ftrace, Html, JsonLines, Perfetto};

use crate::failure::Failure;
use input::{From, Input};

/// What `quotient convert` takes.
#[derive(Debug, Clone, Args)]
pub struct ConvertArguments {
    /// The trace; `-` for standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Where the result goes; `-` for standard output
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// What IN is [default: whatever its first bytes look like]
    #[arg(long)]
    from: Option<From>,
    /// What OUT becomes [default: by its extension: .txt or .ftrace, .pftrace or .perfetto-trace, .jsonl, .html]
    #[arg(long)]
    to: Option<To>,
    /// Lines that make no sense and are left out before the trace is called unreadable
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    skip_bad: u64,
}

/// What can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum To {
    /// ftrace text
    Ftrace,
    /// Perfetto's protobuf, for ui.perfetto.dev
    Perfetto,
    /// One JSON object a line, Quotient's own log
    Jsonl,
    /// One self-contained page with pictures
    Html,
}

impl To {
    fn by_extension(path: &Path) -> Result<To, Failure> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension.unwrap_or_default() {
            "txt" | "ftrace" => Ok(To::Ftrace),
            "pftrace" | "perfetto-trace" => Ok(To::Perfetto),
            "jsonl" => Ok(To::Jsonl),
            "html" => Ok(To::Html),
            _ => Err(Failure::Usage(format!(
                "{}: the extension says nothing about the format; give --to",
                path.display()
            ))),
        }
    }
}

/// Converts.
///
/// # Errors
/// `Usage` for files that cannot be opened and unclear formats, `Run` for a trace that cannot be read, `Interrupted`.
pub fn run(arguments: &ConvertArguments) -> Result<(), Failure> {
    let to = match arguments.to {
        Some(to) => to,
        None => To::by_extension(&arguments.output)?,
    };
    let mut input = Input::open(&arguments.input, arguments.from, arguments.skip_bad)?;
    let mut output = Output::create(&arguments.output)?;
    let written = match to {
        To::Ftrace => {
            let mut writer = Ftrace::new(&mut output);
            input.pump(&mut writer)?;
            writer.finish().map(drop)
        }
        To::Perfetto => {
            let mut writer = Perfetto::new(&mut output);
            input.pump(&mut writer)?;
            writer.finish().map(drop)
        }
        To::Jsonl => {
            let mut writer = JsonLines::new(&mut output);
            input.pump(&mut writer)?;
            writer.finish().map(drop)
        }
        To::Html => {
            let title = arguments.input.display().to_string();
            let mut page = Html::new();
            input.pump_repaired(&mut page)?;
            page.finish(&title, &mut output)
        }
    };
    written.map_err(Failure::writing("cannot write the result"))?;
    input.tell_gaps();
    output.keep()
}

/// A file that exists only once it is whole, or standard output.
struct Output {
    writer: BufWriter<Box<dyn Write>>,
    /// Where it is written, and what it is called once it is whole.
    path: Option<(PathBuf, PathBuf)>,
}

impl Output {
    fn create(path: &Path) -> Result<Output, Failure> {
        if path == Path::new("-") {
            return Ok(Output {
                writer: BufWriter::new(Box::new(io::stdout())),
                path: None,
            });
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let file = File::create(&partial).map_err(|error| {
            Failure::Usage(format!("{}: cannot be written: {error}", path.display()))
        })?;
        Ok(Output {
            writer: BufWriter::new(Box::new(file)),
            path: Some((partial, path.to_owned())),
        })
    }

    fn keep(mut self) -> Result<(), Failure> {
        self.writer
            .flush()
            .map_err(Failure::writing("cannot write the result"))?;
        match self.path.take() {
            Some((partial, path)) => std::fs::rename(partial, path)
                .map_err(Failure::during("cannot name the finished result")),
            None => Ok(()),
        }
    }
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
            let _ = std::fs::remove_file(partial);
        }
    }
}
