//! The reference of scenario files. Names of fields and of choices come from the structures that files are read into, and a test
//! compares what is said of them with those: a field without its line, or a line without its field, is a failed test.

mod table;

use super::expression;
use core::fmt::Write;
use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use table::{KINDS, PARTS, Takes};

/// Notes what a structure asks for: the names of its fields, or of its choices.
struct Probe<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("only names are wanted"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(fields);
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.extend(variants);
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// The names of a structure's fields, or of an enumeration's choices, as files write them.
fn names<'de, T: Deserialize<'de>>() -> Vec<&'static str> {
    let mut found = Vec::new();
    // Refused at the first field, as it should be.
    let _ = T::deserialize(Probe(&mut found));
    found
}

/// The reference of scenario files as text.
pub fn reference() -> String {
    let mut text = String::new();
    // A string takes everything.
    let _ = write(&mut text);
    text
}

fn write(text: &mut String) -> core::fmt::Result {
    writeln!(
        text,
        "Scenario files are TOML: a machine, groups, workloads, variants of them, and what is expected.\n\
         Unknown fields, groups, runs and figures are errors, with line and column, before anything runs.\n\n\
         A time is a number with a unit (ns, us, ms, s, min), as text: \"1.5ms\". A span is a time (\"5ms\"), a range in\n\
         which each length is as likely as any other (\"1ms..3ms\"), or an exponential distribution with that mean\n\
         (\"~5ms\"). A count is a number or follows the machine: \"cpus\", \"2*cpus\", \"cpus/4\"."
    )?;
    for part in PARTS {
        writeln!(text, "\n{}\n  {}", part.heading, part.about)?;
        for name in (part.fields)() {
            let line = part.lines.iter().find(|(described, ..)| *described == name);
            let (_, takes, about) = line.unwrap_or(&("", Takes::A(""), ""));
            let takes = match takes {
                Takes::A(word) => (*word).to_owned(),
                Takes::One(names) => names().join(" | "),
            };
            if takes.len() <= 13 {
                writeln!(text, "  {name:<20} {takes:<13} {about}")?;
                continue;
            }
            let mut rows = rows(&takes).into_iter();
            writeln!(text, "  {name:<20} {}", rows.next().unwrap_or_default())?;
            for row in rows {
                writeln!(text, "  {:<20} {row}", "")?;
            }
            writeln!(text, "  {:<34} {about}", "")?;
        }
    }
    writeln!(text, "\nkinds of workloads")?;
    for (name, needs, may, about) in KINDS {
        let mut fields = needs.join(", ");
        if !may.is_empty() {
            let may = may.join(", ");
            fields += &format!("{}[{may}]", if needs.is_empty() { "" } else { " " });
        }
        writeln!(text, "  {name:<20} {about}\n  {:<20}   {fields}", "")?;
    }
    writeln!(
        text,
        "\nexpressions\n  + - * / ( ), numbers, times (\"2ms\" counts ns), close(a, b, per cent), and figures of the first run or of\n  \
         another one, `run:p99[web] / 1ms`. Times are in ns."
    )?;
    for (of, figures) in expression::figures() {
        for (place, row) in rows(&figures.join(" ")).iter().enumerate() {
            let of = if place == 0 { of } else { "" };
            writeln!(text, "  {of:<20} {row}")?;
        }
    }
    Ok(())
}

/// Words in rows of at most 90 letters.
fn rows(words: &str) -> Vec<String> {
    let mut rows = vec![String::new()];
    for word in words.split(' ') {
        if let Some(row) = rows.last_mut()
            && row.len() + word.len() < 90
        {
            if !row.is_empty() {
                row.push(' ');
            }
            row.push_str(word);
        } else {
            rows.push(word.to_owned());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::document::Kind;
    use super::super::{Files, Scenario};
    use super::*;
    use std::io::BufRead;

    #[test]
    fn every_field_has_its_line_and_every_line_its_field() {
        for part in PARTS {
            let mut said: Vec<&str> = part.lines.iter().map(|(name, ..)| *name).collect();
            let mut read = (part.fields)();
            assert!(!read.is_empty(), "{}", part.heading);
            said.sort_unstable();
            read.sort_unstable();
            assert_eq!(said, read, "{}", part.heading);
        }
        let said: Vec<&str> = KINDS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(said, names::<Kind>());
    }

    struct OneFile;

    impl Files for OneFile {
        fn read(&mut self, _: &str) -> Result<String, String> {
            Ok("{\"tasks\": {\"a\": {\"run\": 1}}}".into())
        }

        fn open(&mut self, _: &str) -> Result<Box<dyn BufRead>, String> {
            let line = "# tracer: nop\n";
            Ok(Box::new(std::io::Cursor::new(line)))
        }
    }

    fn example(field: &str) -> &'static str {
        match field {
            "work" | "gap" | "think" | "kernel" | "wait" | "pause" | "merge" | "period"
            | "write" => "\"5ms\"",
            "how" => "\"own-thread\"",
            "file" => "\"x\"",
            "loop" => "\"open\"",
            "batched" => "true",
            _ => "1",
        }
    }

    fn parsed(kind: &str, fields: &[&str]) -> Result<(), String> {
        let mut text = format!(
            "name = \"x\"\nduration = \"1s\"\nmachine = {{ shape = \"2\" }}\n[[workload]]\nname = \"w\"\nkind = \"{kind}\"\n"
        );
        for field in fields {
            text += &format!("{field} = {}\n", example(field));
        }
        match Scenario::parse("x.toml", &text, &mut OneFile) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn kinds_need_and_take_what_their_lines_say() {
        let own: Vec<&str> = KINDS
            .iter()
            .flat_map(|(_, needs, may, _)| needs.iter().chain(*may))
            .copied()
            .collect();
        for (kind, needs, may, _) in KINDS {
            for missing in *needs {
                let others: Vec<&str> = needs
                    .iter()
                    .copied()
                    .filter(|need| need != missing)
                    .collect();
                let error = parsed(kind, &others).expect_err(kind);
                assert!(
                    error.contains("needs `"),
                    "{kind} without {missing}: {error}"
                );
            }
            let all: Vec<&str> = needs.iter().chain(*may).copied().collect();
            let fault = parsed(kind, &all).err().unwrap_or_default();
            // An empty recording is none, which is said last.
            let is_about_fields = fault.contains("needs `") || fault.contains("no use for");
            assert!(
                !is_about_fields && (fault.is_empty() || *kind == "replay"),
                "{kind}: {fault}"
            );
            for other in own.iter().filter(|field| !all.contains(field)) {
                let mut more = all.clone();
                more.push(other);
                let refused = parsed(kind, &more).expect_err(kind);
                assert!(
                    *kind == "replay" || refused.contains("no use for"),
                    "{kind} with {other}: {refused}"
                );
            }
        }
    }

    #[test]
    fn the_reference_fits_a_screen_and_names_choices() {
        let text = reference();
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
        for word in [
            "[[expect]]",
            "closed-loop",
            "needed | busy",
            "p999",
            "exit-to-user",
        ] {
            assert!(text.contains(word), "{word}");
        }
    }
}
