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
    if let [topic, below @ ..] = arguments.topic.as_slice()
        && topic == "scenario"
    {
        return match below.first() {
            None => print(&scenario::reference()),
            Some(name) => Err(Failure::Usage(format!(
                "the topic scenario has nothing below it, such as {name:?}: `quotient help scenario` is all of it"
            ))),
        };
    }
    command.build();
    let mut found = &command;
    for (place, name) in arguments.topic.iter().enumerate() {
        found = found
            .find_subcommand(name)
            .ok_or_else(|| Failure::Usage(unknown(found, &arguments.topic[..place], name)))?;
    }
    let mut found = found.clone();
    let text = found.render_long_help().to_string();
    let topics = if arguments.topic.is_empty() {
        format!("\nTopics (quotient help TOPIC):\n  {TOPICS}\n")
    } else {
        String::new()
    };
    print(&(text + &topics))
}

/// There is no `name` below the command `found`, which `path` has led to.
fn unknown(found: &Command, path: &[String], name: &str) -> String {
    if path.is_empty() {
        return format!(
            "no command or topic {name:?}; topics are {TOPICS}; `quotient help` lists the commands"
        );
    }
    let path = path.join(" ");
    let known: Vec<&str> = found
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(Command::get_name)
        .collect();
    if known.is_empty() {
        format!("quotient {path} has no commands, so no {name:?}")
    } else {
        format!(
            "quotient {path} has no command {name:?}, only {}",
            known.join(", ")
        )
    }
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
