//! From a text to a config, with everything that is wrong.

use std::collections::HashMap;

use quotient::{ApplyError, Config, GroupConfig};
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
        places: HashMap::new(),
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

struct Reader<'text> {
    config: Config,
    /// Where an entry without problems of its own begins.
    places: HashMap<(Section, String), usize>,
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
        let mut is_good = true;
        for (key, value) in settings {
            let Some(field) = Field::find(key.get_ref()) else {
                let known: Vec<&str> = FIELDS.iter().map(|field| field.name).collect();
                let message = format!(
                    "{name} has no setting {:?}, known are {}",
                    key.get_ref().chars().take(64).collect::<String>(),
                    known.join(", ")
                );
                self.problems.add(key.span().start, message);
                is_good = false;
                continue;
            };
            match field.read(config.clone(), value, self.vcpus) {
                Ok(read) => config = read,
                Err((offset, message)) => {
                    let separator = if message.starts_with("is ") {
                        " "
                    } else {
                        ": "
                    };
                    let message = format!("{name}.{}{separator}{message}", field.name);
                    self.problems.add(offset, message);
                    is_good = false;
                }
            }
        }
        if is_good {
            let start = path.span().start;
            let path = path.get_ref().clone().into_owned();
            self.places.insert((section, path.clone()), start);
            match section {
                Section::Groups => self.config.set_group(path, config),
                Section::Children => self.config.set_children(path, config),
            }
        }
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
            let place = self.places.get(&(section, problem.path.clone()));
            self.problems
                .add(place.copied().unwrap_or(0), problem.to_string());
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
