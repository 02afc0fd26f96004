//! `quotient convert`: a trace in, the same trace in another format out, in one pass.

pub mod input;
mod pictured;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use quotient_trace::{Ftrace, Html, JsonLines, Perfetto};

use crate::failure::Failure;
use crate::output::Output;
use input::{From, Input};
use pictured::Pictured;

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
            input.pump(&mut writer, false)?;
            writer.finish().map(drop)
        }
        To::Perfetto => {
            let mut writer = Perfetto::new(&mut output);
            let mut pictured = Pictured::of(&mut writer);
            input.pump(&mut pictured, false)?;
            pictured.tell(&arguments.output);
            writer.finish().map(drop)
        }
        To::Jsonl => {
            let mut writer = JsonLines::new(&mut output);
            input.pump(&mut writer, true)?;
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
