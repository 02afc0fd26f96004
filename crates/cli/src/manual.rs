//! What is generated from the definitions of the arguments: help on topics, completions of shells, manual pages.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use quotient_sim::scenario;

use crate::failure::{Failure, print};

/// Topics of `quotient help` that are no commands.
const TOPICS: &str = "scenario: all fields of scenario files, and the figures of expectations";

/// What `quotient help` takes.
#[derive(Debug, Clone, Args)]
pub struct HelpArguments {
    /// A command, such as `sim` or `bench fair`, or `scenario`: what scenario files may say
    #[arg(value_name = "COMMAND|TOPIC")]
    topic: Vec<String>,
}

/// What `quotient completions` takes.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// What `quotient man` takes.
#[derive(Debug, Clone, Args)]
pub struct ManArguments {
    /// Writes one page a command into this folder, which must be there [default: the first page, on standard output]
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Prints help on a command or a topic.
///
/// # Errors
/// `Usage` if there is no such thing; what printing says.
pub fn help(arguments: &HelpArguments, mut command: Command) -> Result<(), Failure> {
    if arguments.topic == ["scenario"] {
        return print(&scenario::reference());
    }
    command.build();
    let mut found = &mut command;
    for name in &arguments.topic {
        let known = found.find_subcommand_mut(name);
        found = known.ok_or_else(|| {
            Failure::Usage(format!("no command or topic {name:?}; topics are {TOPICS}"))
        })?;
    }
    let text = found.render_long_help().to_string();
    let topics = if arguments.topic.is_empty() {
        format!("\nTopics (quotient help TOPIC):\n  {TOPICS}\n")
    } else {
        String::new()
    };
    print(&(text + &topics))
}

/// Prints a shell's completions.
///
/// # Errors
/// What printing says.
pub fn completions(arguments: &CompletionsArguments, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "quotient", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints or writes manual pages.
///
/// # Errors
/// `Usage` if the folder cannot be written; what printing says.
pub fn man(arguments: &ManArguments, command: Command) -> Result<(), Failure> {
    let Some(folder) = &arguments.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(Failure::during("cannot word the page"))?;
        return print(&String::from_utf8_lossy(&page));
    };
    clap_mangen::generate_to(command, folder)
        .map_err(|error| Failure::Usage(format!("{}: {error}", folder.display())))
}
