//! Scenario files: a machine, its costs, groups, workloads, variants of them, and what is expected to come out.
//!
//! TOML. `base = "other.toml"` takes over another file's fields; `[[variant]]` and `[[sweep]]` make several runs of one
//! file; `[[expect]]` compares figures of the runs (see `expression`) with bars and with what the source reports.

mod build;
mod cpusets;
mod document;
mod expression;
mod names;
mod reference;
mod unused;
mod values;
mod workload;

use crate::machine::Machine;
use crate::outcome::Outcome;
use crate::plan::Plan;
use core::fmt;
use core::ops::Range;
use document::{Document, ExpectTable};
use serde::Serialize;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

pub use reference::reference;
use values::of;
pub use values::{span, time};

/// Most files that a scenario may be based on, one on the other.
const BASES_MAX: usize = 16;

/// Most runs of one scenario.
const RUNS_MAX: usize = 1_000;

/// Largest scenario or rt-app file, bytes.
const FILE_MAX: u64 = 16 << 20;

/// Where a scenario's other files come from.
pub trait Files {
    /// The text of a file that is named in the scenario.
    ///
    /// # Errors
    /// Why it cannot be read, with its name.
    fn read(&mut self, name: &str) -> Result<String, String>;

    /// A file that is named in the scenario and may be large.
    ///
    /// # Errors
    /// Why it cannot be opened, with its name.
    fn open(&mut self, name: &str) -> Result<Box<dyn BufRead>, String>;
}

/// Files beside the scenario.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder of a scenario file.
    pub fn of(scenario: &Path) -> Folder {
        Folder(
            scenario
                .parent()
                .map_or_else(PathBuf::new, Path::to_path_buf),
        )
    }
}

impl Files for Folder {
    fn read(&mut self, name: &str) -> Result<String, String> {
        let path = self.0.join(name);
        let fault = |error: std::io::Error| format!("{}: {error}", path.display());
        let length = std::fs::metadata(&path).map_err(fault)?.len();
        if length > FILE_MAX {
            let path = path.display();
            return Err(format!("{path}: {length} bytes are more than {FILE_MAX}"));
        }
        std::fs::read_to_string(&path).map_err(fault)
    }

    fn open(&mut self, name: &str) -> Result<Box<dyn BufRead>, String> {
        let path = self.0.join(name);
        let file =
            std::fs::File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Box::new(std::io::BufReader::new(file)))
    }
}

/// Something wrong, perhaps with its place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    span: Option<Range<usize>>,
    what: String,
}

impl Fault {
    fn at(span: Range<usize>, what: String) -> Fault {
        Fault {
            span: Some(span),
            what,
        }
    }

    fn plain(what: String) -> Fault {
        Fault { span: None, what }
    }
}

/// A scenario that cannot be used: what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// The file.
    pub file: String,
    /// Line, from 1, if known.
    pub line: Option<usize>,
    /// Column, from 1, if known.
    pub column: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl ScenarioError {
    fn new(file: &str, text: &str, fault: Fault) -> ScenarioError {
        let place = fault.span.map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let last = before.rsplit('\n').next().unwrap_or("");
            (line, last.chars().count() + 1)
        });
        ScenarioError {
            file: file.into(),
            line: place.map(|(line, _)| line),
            column: place.map(|(_, column)| column),
            what: fault.what,
        }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(formatter, ":{line}:{column}")?;
        }
        write!(formatter, ": {}", self.what)
    }
}

impl std::error::Error for ScenarioError {}

/// A scenario that was read and checked.
#[derive(Clone, Debug)]
pub struct Scenario {
    document: Document,
    runs: Vec<Run>,
    file: String,
    text: String,
    /// Whether the runs come from more than this one text, so that places in it mean nothing.
    is_derived: bool,
    /// Whether it takes over another file's fields.
    is_based: bool,
}

/// One run of a scenario.
#[derive(Clone, Debug)]
struct Run {
    name: String,
    document: Document,
    /// Where the file makes it what it is: its variant or sweep.
    span: Option<Range<usize>>,
}

/// One expectation and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub what: String,
    /// Unit of the figures.
    pub unit: String,
    /// What the source of the scenario reports, if it does.
    pub seed: Option<f64>,
    /// What was computed.
    pub value: f64,
    /// What `value` is if it is no figure, where JSON has `null`: a part of nothing is `infinite`, nothing of nothing `undefined`. Such a
    /// value meets nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_is: Option<&'static str>,
    /// The least that is accepted.
    pub min: Option<f64>,
    /// The most that is accepted.
    pub max: Option<f64>,
    /// Whether it was met.
    pub met: bool,
}

impl Scenario {
    /// Reads a scenario file, what it is based on, and checks it.
    ///
    /// # Errors
    /// [`ScenarioError`] with file, line and column.
    pub fn load(path: &Path) -> Result<Scenario, ScenarioError> {
        let name = path.display().to_string();
        let file = path
            .file_name()
            .map(|file| file.to_string_lossy().into_owned());
        let mut folder = Folder::of(path);
        let text = folder
            .read(file.as_deref().unwrap_or(""))
            .map_err(|what| ScenarioError::new("scenario", "", Fault::plain(what)))?;
        Scenario::parse(&name, &text, &mut folder)
    }

    /// Reads a scenario from text. `name` is what errors call it; other files come from `files`.
    ///
    /// # Errors
    /// [`ScenarioError`] with file, line and column.
    pub fn parse(name: &str, text: &str, files: &mut dyn Files) -> Result<Scenario, ScenarioError> {
        let fault = |fault: Fault| ScenarioError::new(name, text, fault);
        let table: Table =
            toml::from_str(text).map_err(|error| fault(parse_fault(text, &error)))?;
        let based = table.contains_key("base");
        let table = with_bases(table, name, files).map_err(fault)?;
        if let Some(what) = unshowable("", &table) {
            return Err(fault(Fault::plain(what)));
        }
        // Without a base the text itself is read, because its values know their places.
        let document: Document = if based {
            document_of(&table).map_err(fault)?
        } else {
            toml::from_str(text).map_err(|error| fault(parse_fault(text, &error)))?
        };
        let runs = runs_of(&document, &table).map_err(|mut found| {
            found.span = found.span.filter(|_| !based);
            fault(found)
        })?;
        let is_derived = based || !(document.variant.is_empty() && document.sweep.is_empty());
        let scenario = Scenario {
            document,
            runs,
            file: name.into(),
            text: text.into(),
            is_derived,
            is_based: based,
        };
        let mut shapes = Vec::with_capacity(scenario.runs.len());
        let mut unused = unused::Unused::default();
        for (index, run) in scenario.runs.iter().enumerate() {
            let plan = scenario.plan(index, None, None, files)?;
            shapes.push(names::shape(&plan));
            unused.see(&run.document, &plan);
        }
        if let Some(mut found) = unused.first(&scenario.document) {
            found.span = found.span.filter(|_| !based);
            return Err(fault(found));
        }
        for expect in &scenario.document.expect {
            if let Err(mut found) = check_bounds(expect) {
                found.span = found.span.filter(|_| !based);
                return Err(fault(found));
            }
        }
        // What would be wrong after the run is said before it.
        scenario.judge(&shapes)?;
        if let Some(mut found) = without_bounds(&scenario.document) {
            found.span = found.span.filter(|_| !based);
            return Err(fault(found));
        }
        Ok(scenario)
    }

    /// What the scenario is called.
    pub fn name(&self) -> &str {
        &self.document.name
    }

    /// What it is about.
    pub fn about(&self) -> &str {
        &self.document.about
    }

    /// Where its costs come from.
    pub fn sources(&self) -> &[String] {
        &self.document.costs.sources
    }

    /// The names of its runs; a single one without variants is called "run".
    pub fn runs(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().map(|run| run.name.as_str())
    }

    /// The plan of a run, on another machine or with another seed if given.
    ///
    /// # Errors
    /// [`ScenarioError`] if that machine cannot run it.
    pub fn plan(
        &self,
        run: usize,
        machine: Option<&Machine>,
        seed: Option<u64>,
        files: &mut dyn Files,
    ) -> Result<Plan, ScenarioError> {
        let Some(chosen) = self.runs.get(run) else {
            let what = format!("there is no run {run}");
            return Err(ScenarioError::new(&self.file, "", Fault::plain(what)));
        };
        build::plan(&chosen.document, machine, seed, files).map_err(|mut fault| {
            if self.is_derived {
                fault.span = chosen.span.clone().filter(|_| !self.is_based);
            }
            if self.runs.len() > 1 {
                fault.what = format!("run {}: {}", chosen.name, fault.what);
            }
            ScenarioError::new(&self.file, &self.text, fault)
        })
    }

    /// Compares what came out with what is expected, in the order of the file.
    ///
    /// # Errors
    /// [`ScenarioError`] for an expression that cannot be computed.
    pub fn judge(&self, outcomes: &[Outcome]) -> Result<Vec<Finding>, ScenarioError> {
        let names = self.runs.iter().map(|run| run.name.clone());
        let runs: Vec<(String, &Outcome)> = names.zip(outcomes).collect();
        let mut findings = Vec::new();
        for expect in &self.document.expect {
            let value = expression::evaluate(expect.value.get_ref(), &runs).map_err(|what| {
                let span = (!self.is_based).then(|| expect.value.span());
                let fault = Fault { span, what };
                ScenarioError::new(&self.file, &self.text, fault)
            })?;
            let value_is = match value {
                figure if figure.is_finite() => None,
                figure if figure.is_infinite() => Some("infinite"),
                _ => Some("undefined"),
            };
            let (min, max) = (of(expect.min.as_ref()), of(expect.max.as_ref()));
            let met = value_is.is_none()
                && min.is_none_or(|min| value >= min)
                && max.is_none_or(|max| value <= max);
            findings.push(Finding {
                what: expect.what.clone(),
                unit: expect.unit.clone(),
                seed: of(expect.seed.as_ref()),
                value,
                value_is,
                min,
                max,
                met,
            });
        }
        Ok(findings)
    }
}

/// An expectation of a value without anything that it is held against: it would always be met.
fn without_bounds(document: &Document) -> Option<Fault> {
    let mut expects = document.expect.iter();
    let expect = expects.find(|expect| expect.min.is_none() && expect.max.is_none())?;
    let what = "an [[expect]] without `min` and `max`, needs one or both".to_owned();
    Some(Fault::at(expect.value.span(), what))
}

/// Whether a value can be held against what is expected.
fn check_bounds(expect: &ExpectTable) -> Result<(), Fault> {
    let bounds = [
        ("seed", &expect.seed),
        ("min", &expect.min),
        ("max", &expect.max),
    ];
    for (field, given) in bounds {
        if let Some(given) = given
            && !given.get_ref().is_finite()
        {
            let what = format!(
                "{field} = {} is outside {:e}..={:e}",
                given.get_ref(),
                f64::MIN,
                f64::MAX
            );
            return Err(Fault::at(given.span(), what));
        }
    }
    if let (Some(min), Some(max)) = (&expect.min, &expect.max)
        && min.get_ref() > max.get_ref()
    {
        let (min, max) = (min.get_ref(), max.get_ref());
        let what = format!("min = {min} is above max = {max}: no value is both");
        return Err(Fault::at(expect.value.span(), what));
    }
    Ok(())
}

fn parse_fault(text: &str, error: &toml::de::Error) -> Fault {
    let (span, mut what) = (error.span(), parse_message(error));
    let key = span.as_ref().and_then(|span| key_before(text, span.start));
    if let Some(key) = key.filter(|key| !what.contains(key)) {
        what = format!("{key}: {what}");
    }
    Fault { span, what }
}

/// The key whose value begins there; `None` if none does.
fn key_before(text: &str, at: usize) -> Option<&str> {
    let line = text.get(..at)?.rsplit('\n').next()?;
    let key = line.trim_end().strip_suffix('=')?;
    let key = key.rsplit(['{', ',']).next()?.trim();
    (!key.is_empty()).then_some(key)
}

/// What is wrong, in TOML's words, where these are the reader's: a name that is none of a list is said with the list; an integer that only 128 bits hold is "as i128" to the parser, where it wanted "any valid TOML value",
/// which names the parser's types and not what would be right.
fn parse_message(error: &toml::de::Error) -> String {
    let message = error.message();
    if message == "wanted string or table" {
        return "expected a name in quotes".to_owned();
    }
    let wide = ["i128", "u128"].iter().find_map(|wide| {
        let rest = message.strip_prefix("invalid type: integer `")?;
        let (digits, _) = rest.split_once(&format!("` as {wide}, expected "))?;
        Some(format!(
            "the integer {digits} is outside {}..={}",
            i64::MIN,
            i64::MAX
        ))
    });
    wide.unwrap_or_else(|| message.to_owned())
}

/// Lays a table over the one that it is based on, and so on down.
fn with_bases(mut table: Table, name: &str, files: &mut dyn Files) -> Result<Table, Fault> {
    let mut seen = vec![name.rsplit('/').next().unwrap_or(name).to_owned()];
    let mut next = take_base(&mut table)?;
    while let Some(base) = next {
        if seen.contains(&base) {
            seen.push(base);
            let what = format!("a scenario that is based on itself: {}", seen.join(" -> "));
            return Err(Fault::plain(what));
        }
        if seen.len() > BASES_MAX {
            let what = format!("more than {BASES_MAX} files based on each other");
            return Err(Fault::plain(what));
        }
        let text = files.read(&base).map_err(Fault::plain)?;
        let mut below: Table = toml::from_str(&text)
            .map_err(|error| Fault::plain(format!("in base {base}: {error}")))?;
        seen.push(base);
        next = take_base(&mut below)?;
        overlay(&mut below, table);
        table = below;
    }
    Ok(table)
}

fn take_base(table: &mut Table) -> Result<Option<String>, Fault> {
    match table.remove("base") {
        None => Ok(None),
        Some(Value::String(base)) => Ok(Some(base)),
        Some(_) => Err(Fault::plain("base: expected the name of a file".into())),
    }
}

/// Puts `upper` over `lower`: tables field by field, everything else as a whole.
fn overlay(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

/// The document of a table that was put together. Its values' places are not those of any file.
fn document_of(table: &Table) -> Result<Document, Fault> {
    let text = toml::to_string(table).map_err(|error| Fault::plain(error.to_string()))?;
    toml::from_str(&text).map_err(|error| Fault::plain(parse_message(&error)))
}

/// The runs of a document: its variants times the values of its sweeps.
fn runs_of(document: &Document, table: &Table) -> Result<Vec<Run>, Fault> {
    let mut runs: Vec<(String, Table, Option<Range<usize>>)> = document
        .variant
        .iter()
        .map(|variant| {
            let mut changed = table.clone();
            for (key, value) in flatten(&variant.set) {
                set(&mut changed, &key, value).map_err(|what| {
                    let what = format!("variant {}: {what}", variant.name.get_ref());
                    Fault::at(variant.name.span(), what)
                })?;
            }
            let span = Some(variant.name.span());
            Ok((variant.name.get_ref().clone(), changed, span))
        })
        .collect::<Result<_, Fault>>()?;
    if runs.is_empty() {
        if document.sweep.is_empty() {
            return Ok(vec![Run {
                name: "run".into(),
                document: document.clone(),
                span: None,
            }]);
        }
        runs.push((String::new(), table.clone(), None));
    }
    for sweep in &document.sweep {
        if sweep.values.is_empty() {
            let what = format!(
                "sweep of {}: `values` is empty, needs one at least",
                sweep.key.get_ref()
            );
            return Err(Fault::at(sweep.key.span(), what));
        }
        if runs.len().saturating_mul(sweep.values.len()) > RUNS_MAX {
            return Err(Fault::plain(format!("more than {RUNS_MAX} runs")));
        }
        let mut swept = Vec::new();
        for (name, table, _) in &runs {
            for value in &sweep.values {
                let mut changed = table.clone();
                set(&mut changed, sweep.key.get_ref(), value.clone()).map_err(|what| {
                    let what = format!("sweep of {}: {what}", sweep.key.get_ref());
                    Fault::at(sweep.key.span(), what)
                })?;
                let shown = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let separator = if name.is_empty() { "" } else { "/" };
                let span = Some(sweep.key.span());
                swept.push((format!("{name}{separator}{shown}"), changed, span));
            }
        }
        runs = swept;
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut documents = Vec::new();
    for (name, table, span) in runs {
        let fault = |what: String| Fault {
            span: span.clone(),
            what,
        };
        if !seen.insert(name.clone()) {
            return Err(fault(format!("two runs are called {name:?}")));
        }
        let document =
            document_of(&table).map_err(|found| fault(format!("run {name}: {}", found.what)))?;
        documents.push(Run {
            name,
            document,
            span,
        });
    }
    Ok(documents)
}

/// `a = { b = 1 }` and `"a.b" = 1` are the same change.
fn flatten(table: &Table) -> Vec<(String, Value)> {
    let mut flat = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                let below = flatten(inner).into_iter();
                flat.extend(below.map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            other => flat.push((key.clone(), other.clone())),
        }
    }
    flat
}

/// Sets the field that `key` leads to, such as `workload.0.threads`. Tables that are missing are made.
fn set(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let (path, last) = match key.rsplit_once('.') {
        Some((path, last)) => (path, last),
        None => {
            table.insert(key.into(), value);
            return Ok(());
        }
    };
    let mut segments = path.split('.');
    let first = segments.next().unwrap_or("");
    let mut at = table
        .entry(first)
        .or_insert_with(|| Value::Table(Table::new()));
    for segment in segments {
        at = step(at, segment).ok_or_else(|| format!("{key} leads nowhere at {segment:?}"))?;
    }
    match at {
        Value::Table(inner) => {
            inner.insert(last.into(), value);
            Ok(())
        }
        Value::Array(list) => {
            let length = list.len();
            let index = last.parse::<usize>().ok().filter(|&index| index < length);
            let index = index.ok_or_else(|| format!("{key}: no {last:?} in a list of {length}"))?;
            list[index] = value;
            Ok(())
        }
        _ => Err(format!("{key} leads into a plain value")),
    }
}

fn step<'a>(value: &'a mut Value, segment: &str) -> Option<&'a mut Value> {
    match value {
        Value::Table(table) => Some(
            table
                .entry(segment)
                .or_insert_with(|| Value::Table(Table::new())),
        ),
        Value::Array(list) => list.get_mut(segment.parse::<usize>().ok()?),
        _ => None,
    }
}
/// Names and texts go to terminals and pages: the first with a character that does something there, but for ends of lines and tabs. O(size).
fn unshowable(path: &str, table: &Table) -> Option<String> {
    let odd = |text: &str| {
        let is_odd = |letter: &char| letter.is_control() && !"\n\t".contains(*letter);
        text.chars().find(is_odd)
    };
    let in_value = |path: &str, value: &Value| match value {
        Value::String(text) => odd(text).map(|letter| (path.to_owned(), letter)),
        _ => None,
    };
    for (key, value) in table {
        let path = format!("{path}{}", key.escape_debug());
        let found = odd(key).map(|letter| (path.clone(), letter));
        let list = value.as_array().into_iter().flatten();
        let found = found
            .or_else(|| in_value(&path, value))
            .or_else(|| list.clone().find_map(|value| in_value(&path, value)));
        if let Some((path, letter)) = found {
            return Some(format!(
                "{path} holds the control character U+{:04X}; only ends of lines and tabs are allowed",
                u32::from(letter)
            ));
        }
        let below = format!("{path}.");
        let tables = value
            .as_table()
            .into_iter()
            .chain(list.filter_map(Value::as_table));
        if let Some(what) = tables
            .into_iter()
            .find_map(|table| unshowable(&below, table))
        {
            return Some(what);
        }
    }
    None
}
