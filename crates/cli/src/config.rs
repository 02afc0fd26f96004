//! `quotient config`: files of settings, without a scheduler.

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};
use quotient_config::{FIELDS, Kind, Problems, TEXT_BYTES_MAX};
use serde_json::{Value, json};

use crate::failure::{Failure, print};

/// What `quotient config` takes.
#[derive(Debug, Clone, Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Clone, Subcommand)]
enum Action {
    /// Whether a scheduler would take the file; every problem with line and column, exit code 1 if a setting is wrong, 3 if it is no TOML
    Check(CheckArguments),
    /// Every setting with what may stand there, its default and its meaning
    Reference,
    /// The same as a JSON schema, for editors
    Schema,
}

#[derive(Debug, Clone, Args)]
struct CheckArguments {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Virtual CPUs of the scheduler, of which `share` is a part (1..=1024) [default: the processors of this machine]
    #[arg(long, value_parser = value_parser!(u16).range(1..=1024))]
    vcpus: Option<u16>,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Checks, or prints what there is to know.
///
/// # Errors
/// `Run` for a file with wrong settings, `Unreadable` for what is no TOML, `Usage` for what cannot be opened.
pub fn run(arguments: &ConfigArguments) -> Result<(), Failure> {
    match &arguments.action {
        Action::Check(arguments) => check(arguments),
        Action::Reference => print(&quotient_config::reference()),
        Action::Schema => print(&format!("{:#}\n", schema())),
    }
}

/// A number of groups, in words.
fn counted(groups: usize) -> String {
    match groups {
        1 => "1 group".to_owned(),
        _ => format!("{groups} groups"),
    }
}

fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let name = arguments.file.display().to_string();
    let text = read(arguments, &name)?;
    let vcpus = arguments.vcpus.map_or_else(processors, usize::from);
    let answer = quotient_config::parse(&text, vcpus);
    let (problems, groups, children) = match &answer {
        Ok(config) => (None, config.groups().len(), config.children().len()),
        Err(problems) => (Some(problems), 0, 0),
    };
    let report = if arguments.json {
        let all = problems.into_iter().flat_map(Problems::iter);
        let list: Vec<Value> = all
            .map(|problem| json!({ "line": problem.line, "column": problem.column, "message": problem.message }))
            .collect();
        format!(
            "{}\n",
            json!({ "file": name, "good": list.is_empty(), "groups": groups, "children": children, "problems": list })
        )
    } else if let Some(problems) = problems {
        let lines = problems.iter().map(|problem| format!("{name}:{problem}\n"));
        lines.collect()
    } else {
        format!(
            "{name}: good: {}, defaults for the children of {}\n",
            counted(groups),
            counted(children)
        )
    };
    print(&report)?;
    let Some(problems) = problems else {
        return Ok(());
    };
    let count = problems.count();
    let message = format!(
        "{name}: {count} {}",
        if count == 1 { "problem" } else { "problems" }
    );
    if problems.is_syntax() {
        return Err(Failure::Unreadable(message));
    }
    Err(Failure::Run(message))
}

fn read(arguments: &CheckArguments, name: &str) -> Result<String, Failure> {
    if arguments.file.is_dir() {
        let message = format!("{name}: a folder, and settings are one file");
        return Err(Failure::Unreadable(message));
    }
    let unusable = |error: std::io::Error| Failure::Usage(format!("cannot open {name}: {error}"));
    let length = std::fs::metadata(&arguments.file).map_err(unusable)?.len();
    if length > TEXT_BYTES_MAX as u64 {
        let message = format!("{name} has {length} bytes, allowed are {TEXT_BYTES_MAX}");
        return Err(Failure::Unreadable(message));
    }
    let bytes = std::fs::read(&arguments.file).map_err(unusable)?;
    String::from_utf8(bytes).map_err(Failure::reading(name))
}

fn processors() -> usize {
    let processors = std::thread::available_parallelism();
    processors.map_or(1, |count| count.get().min(quotient::MAX_VCPUS))
}

/// The settings as a JSON schema, made of the reader's own table.
fn schema() -> Value {
    let fields = FIELDS.iter().map(|field| {
        let mut kind = match field.kind {
            Kind::Integer { min, max } => {
                json!({ "type": "integer", "minimum": min, "maximum": max })
            }
            Kind::Boolean => json!({ "type": "boolean" }),
            Kind::Duration => json!({ "type": "string", "pattern": "^[0-9]+(ns|us|ms|s)$" }),
            Kind::Limit => json!({ "oneOf": [{ "type": "string" }, part("cpus"), part("share")] }),
            _ => json!({}),
        };
        let meaning = format!("{} (default: {})", field.meaning, field.default);
        kind["description"] = Value::from(meaning);
        (field.name.to_owned(), kind)
    });
    let fields: serde_json::Map<String, Value> = fields.collect();
    let group = json!({ "type": "object", "additionalProperties": false, "properties": fields });
    let section = |meaning: &str| json!({ "type": "object", "description": meaning, "additionalProperties": { "$ref": "#/$defs/group" } });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Groups of a quotient scheduler",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "groups": section("settings of groups, by path"),
            "children": section("defaults of the groups directly below a path"),
        },
        "$defs": { "group": group },
    })
}

fn part(name: &str) -> Value {
    json!({ "type": "object", "additionalProperties": false, "required": [name],
        "properties": { name: { "type": "number", "exclusiveMinimum": 0 } } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_every_setting_with_its_range() {
        let schema = schema();
        let settings = &schema["$defs"]["group"]["properties"];
        assert_eq!(settings["weight"]["maximum"], 10_000);
        assert!(
            FIELDS
                .iter()
                .all(|field| settings[field.name]["description"].is_string())
        );
    }
}
