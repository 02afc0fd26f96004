//! What a person, or a program, sees of the demo: progress, table, JSON object, picture.

mod checks;
mod html;
pub mod progress;
mod svg;
mod tenants;
mod verdict;

use std::fs::OpenOptions;
use std::path::Path;

use quotient_trace::chart::duration;
use serde::Serialize;

use self::checks::Check;
use crate::demo::disturbance::Validity;
use crate::demo::results::{Row, Series};
use crate::demo::tenants::Scene;
use crate::failure::{Failure, print};
use crate::json::versioned;

/// Width of what is printed for people. Unit: characters. Default 79: every terminal has them.
const COLUMNS: usize = 79;

/// Under what conditions the figures were taken.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    /// Of this binary.
    pub version: String,
    /// CPUs of the machine.
    pub cpus: u32,
    /// tokio workers of the server.
    pub workers: u32,
    /// Tasks of the noisy neighbour.
    pub hogs: u32,
    /// Keep-alive connections of the client.
    pub connections: u32,
    /// How often every mode had its turn, in rounds that the figures are of.
    pub rounds: u32,
    /// Arrivals per second of the open loop.
    pub rate_rps: u32,
    /// Seed of arrivals and documents.
    pub seed: u64,
    /// Whether the server was kept on as many CPUs as it has workers, and the client off them.
    pub confined: bool,
    /// How long the run took.
    pub seconds: f64,
}

/// What was measured.
#[derive(Debug)]
pub struct Figures {
    /// One a set-up.
    pub rows: Vec<Row>,
    /// One a set-up.
    pub series: Vec<Series>,
    /// The twenty tenants.
    pub scene: Option<Scene>,
}

/// The results of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    facts: Facts,
    verdict: String,
    rows: Vec<Row>,
    checks: Vec<Check>,
    validity: Validity,
    scene: Option<Scene>,
    #[serde(skip)]
    series: Vec<Series>,
}

impl Report {
    /// Puts the results together and words the verdict.
    pub fn new(facts: Facts, figures: Figures, validity: Validity) -> Self {
        let Figures {
            rows,
            series,
            scene,
        } = figures;
        let verdict = verdict::sentence(&facts, &rows, &validity);
        Self {
            facts,
            verdict,
            checks: checks::of(&rows, validity.judged),
            rows,
            validity,
            scene,
            series,
        }
    }

    /// Prints the table and the verdict, or with `json` one JSON object, and writes the picture to `out`.
    ///
    /// # Errors
    /// When the picture or standard output cannot be written.
    pub fn publish(&self, out: &Path, json: bool) -> Result<(), Failure> {
        std::fs::write(out, html::page(self))
            .map_err(Failure::during(&format!("cannot write {}", out.display())))?;
        let text = if json {
            versioned("quotient-demo/1", self)? + "\n"
        } else {
            let scene = self.scene.as_ref().map_or_else(String::new, |scene| {
                let sentence = wrapped(&tenants::sentence(scene, self.validity.judged));
                format!("\n{}\n{sentence}\n", tenants::table(scene))
            });
            format!(
                "\n{}\n{}\n\n{}{scene}\nThe picture: {}\n",
                table(&self.rows),
                wrapped(&self.verdict),
                checks::lines(&self.checks),
                out.display()
            )
        };
        print(&text)
    }
}

/// Fails early if the picture cannot be written at the end. Leaves no file that was not there before.
///
/// # Errors
/// `Usage`, with the path and the operating system's reason.
pub fn check_writable(out: &Path) -> Result<(), Failure> {
    let existed = out.exists();
    let opened = OpenOptions::new().create(true).append(true).open(out);
    opened.map_err(|error| {
        Failure::Usage(format!(
            "--out {}: cannot be written: {error}",
            out.display()
        ))
    })?;
    if !existed {
        // An empty file that stays behind is no reason to refuse the run.
        let _ = std::fs::remove_file(out);
    }
    Ok(())
}

/// One slot's row in a few words, for the progress display.
pub fn brief(row: &Row) -> String {
    format!(
        "{:>4.0}/{:.0} req/s  p99 {:>8}  hogs {:.2} CPU  capacity {:.0}",
        row.victim_rps,
        row.offered_rps,
        duration(row.p99_us),
        row.hog_cpu,
        row.capacity_rps
    )
}

/// At most 80 columns.
fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<15}{:>6}{:>9}{:>9}{:>9}{:>12}{:>9}{:>10}\n",
        "mode", "req/s", "p50", "p99", "max", "victim CPU", "hog CPU", "capacity"
    );
    for row in rows {
        text += &format!(
            "{:<15}{:>6.0}{:>9}{:>9}{:>9}{:>12.2}{:>9.2}{:>10.0}\n",
            row.mode,
            row.victim_rps,
            duration(row.p50_us),
            duration(row.p99_us),
            duration(row.max_us),
            row.victim_cpu,
            row.hog_cpu,
            row.capacity_rps
        );
    }
    text
}

/// Breaks `text` between words into lines of at most `COLUMNS` characters.
fn wrapped(text: &str) -> String {
    let (mut lines, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            lines.push('\n');
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_lose_none() {
        let text = "a few words ".repeat(30);
        let lines = wrapped(&text);
        assert!(lines.lines().count() > 3 && lines.lines().all(|line| line.len() <= COLUMNS));
        assert!(lines.split_whitespace().eq(text.split_whitespace()));
    }

    #[test]
    fn an_unwritable_path_is_refused_and_a_writable_one_left_alone() {
        let folder = std::env::temp_dir().join(format!("quotient-report-{}", std::process::id()));
        let file = folder.join("picture.html");
        let refusal = check_writable(&file)
            .expect_err("the folder does not exist")
            .to_string();
        assert!(
            refusal.contains("--out") && refusal.contains("picture.html"),
            "{refusal}"
        );
        std::fs::create_dir_all(&folder).expect("a folder in the temporary directory");
        assert!(check_writable(&file).is_ok() && !file.exists());
        std::fs::remove_dir_all(&folder).expect("our own folder");
    }
}
