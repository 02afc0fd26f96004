//! From a text to a config, with everything that is wrong.

use std::collections::HashMap;

use quotient::{ApplyError, Config, Error, GroupConfig, LimitError};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fields::{FIELDS, Field};
use crate::problem::{Collector, Problems};

/// Longest text. Unit: bytes. Default 4 MiB: ten thousand groups with every setting.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// Most groups, and parents with defaults, of one text. Unit: entries. Default 10,000.
pub const ENTRIES_MAX: usize = 10_000;

/// Reads a text for a scheduler of so many virtual CPUs ([`quotient::Scheduler::vcpus`]), of which a share is worked out. O(length).
///
/// # Errors
/// Everything that is wrong, in the order of the text: what is no TOML, unknown keys, values that are no setting or out of
/// range, paths that cannot be a group's. What only a scheduler knows ([`quotient::Scheduler::apply`]) is not looked at.
pub fn parse(text: &str, vcpus: usize) -> Result<Config, Problems> {
    let mut problems = Collector::new(text);
    if text.len() > TEXT_BYTES_MAX {
        let message = format!(
            "the text has {} bytes, allowed are {TEXT_BYTES_MAX}",
            text.len()
        );
        problems.add(0, message);
        problems.finish(true)?;
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            problems.add(offset, error.message());
        }
        problems.finish(true)?;
    }
    let mut reader = Reader {
        config: Config::new(),
        entries: HashMap::new(),
        problems,
        vcpus,
    };
    for (key, value) in document.get_ref() {
        let section = match key.get_ref().as_ref() {
            "groups" => Section::Groups,
            "children" => Section::Children,
            other => {
                let message = format!("unknown section {other:?}, known are groups and children");
                reader.problems.add(key.span().start, message);
                continue;
            }
        };
        reader.section(section, value);
    }
    reader.finish()
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Section {
    Groups,
    Children,
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::Children => "children",
        }
    }
}

/// Where an entry stands in the text.
struct Entry {
    start: usize,
    /// Names of the settings that were read, and where their values are.
    fields: Vec<(&'static str, usize)>,
    /// Its `max` could not be used.
    has_bad_max: bool,
}

impl Entry {
    /// Where what `error` is about stands: the value of its field, if it is about one, or the entry's beginning.
    fn place_of(&self, error: &Error) -> usize {
        let name = match error {
            Error::Weight(_) => "weight",
            Error::Limit(LimitError::OutOfRange { field: "burst", .. }) => "burst",
            Error::Limit(_) => "max",
            _ => "",
        };
        let field = self.fields.iter().find(|(known, _)| *known == name);
        field.map_or(self.start, |(_, place)| *place)
    }
}

struct Reader<'text> {
    config: Config,
    entries: HashMap<(Section, String), Entry>,
    problems: Collector<'text>,
    vcpus: usize,
}

impl Reader<'_> {
    fn section(&mut self, section: Section, value: &Spanned<DeValue<'_>>) {
        let name = section.name();
        let DeValue::Table(entries) = value.get_ref() else {
            let message = format!("{name} is no table: write [{name}.\"path/of/group\"]");
            self.problems.add(value.span().start, message);
            return;
        };
        if entries.len() > ENTRIES_MAX {
            let message = format!(
                "{name} has {} entries, allowed are {ENTRIES_MAX}",
                entries.len()
            );
            self.problems.add(value.span().start, message);
            return;
        }
        for (path, entry) in entries {
            self.entry(section, path, entry);
        }
    }

    /// One group, or one parent.
    fn entry(
        &mut self,
        section: Section,
        path: &Spanned<toml::de::DeString<'_>>,
        entry: &Spanned<DeValue<'_>>,
    ) {
        let name = format!("{}.{}", section.name(), key_shown(path.get_ref()));
        let DeValue::Table(settings) = entry.get_ref() else {
            let message = format!("{name} is no table of settings");
            self.problems.add(entry.span().start, message);
            return;
        };
        let mut config = GroupConfig::new();
        let mut known = Entry {
            start: path.span().start,
            fields: Vec::new(),
            has_bad_max: false,
        };
        for (key, value) in settings {
            let Some(field) = Field::find(key.get_ref()) else {
                let known: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
                let message = format!(
                    "{name} has no setting {:?}, known are {}",
                    key.get_ref().chars().take(64).collect::<String>(),
                    known.join(", ")
                );
                self.problems.add(key.span().start, message);
                continue;
            };
            known.fields.push((field.name, value.span().start));
            match field.read(config.clone(), value, self.vcpus) {
                Ok(read) => config = read,
                Err(problems) => {
                    known.has_bad_max |= field.name == "max";
                    for (offset, message) in problems {
                        let separator = if message.starts_with("is ") {
                            " "
                        } else {
                            ": "
                        };
                        let message = format!("{name}.{}{separator}{message}", field.name);
                        self.problems.add(offset, message);
                    }
                }
            }
        }
        // What is right of it is looked at together, whatever is wrong beside it.
        let path = path.get_ref().clone().into_owned();
        self.entries.insert((section, path.clone()), known);
        match section {
            Section::Groups => self.config.set_group(path, config),
            Section::Children => self.config.set_children(path, config),
        }
    }

    /// Whether the limit that a burst, soft or smooth of that entry belongs to is there, but wrong, which has been said.
    fn has_bad_max(&self, section: Section, path: &str) -> bool {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let is_bad = |section, path: &str| {
            let entry = self.entries.get(&(section, path.to_owned()));
            entry.is_some_and(|entry| entry.has_bad_max)
        };
        is_bad(section, path) || section == Section::Groups && is_bad(Section::Children, parent)
    }

    /// What can be wrong with settings that are right one by one.
    fn finish(mut self) -> Result<Config, Problems> {
        let mut defaults = Config::new();
        for (parent, config) in self.config.children() {
            defaults.set_children(parent, config.clone());
        }
        let of_defaults: Vec<ApplyError> = defaults.problems(self.vcpus).collect();
        for problem in self.config.problems(self.vcpus) {
            let section = if of_defaults.contains(&problem) {
                Section::Children
            } else {
                Section::Groups
            };
            if matches!(*problem.error, Error::Unlimited { .. })
                && self.has_bad_max(section, &problem.path)
            {
                continue;
            }
            let entry = self.entries.get(&(section, problem.path.clone()));
            let place = entry.map_or(0, |entry| entry.place_of(&problem.error));
            self.problems.add(place, problem.to_string());
        }
        self.problems.finish(false)?;
        Ok(self.config)
    }
}

/// A key as it stands in a header: quoted if it has to be, and cut.
fn key_shown(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.len() <= 64 && key.bytes().all(is_bare) {
        return key.to_owned();
    }
    let cut: String = key.chars().take(64).collect();
    format!("{cut:?}")
}
