//! Marks that a program writes into its own trace (`trace_marker`): where a piece of its work begins and ends.
//!
//! The spelling is Android's, which most libraries write: `B|pid|name` and `E|pid` nest on a thread, `S|pid|name|cookie`
//! and `F|pid|name|cookie` belong together wherever they are written. Other texts are somebody's notes.

use quotient_core::Nanos;
use quotient_core::event::TaskId;
use serde::{Deserialize, Serialize};

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// `B`: begins on this thread.
    Begin,
    /// `E`: what began last on this thread ends.
    End,
    /// `S`: begins; the end has the same name and cookie.
    Start,
    /// `F`: ends, on whatever thread.
    Finish,
}

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// When.
    pub time: Nanos,
    /// Who wrote it.
    pub task: TaskId,
    /// What.
    pub kind: MarkKind,
    /// What begins or ends; empty for `E`.
    #[serde(default)]
    pub name: String,
    /// Tells apart what runs at the same time; empty for `B` and `E`.
    #[serde(default)]
    pub cookie: String,
}

impl Mark {
    /// As its program would write it; `process` is that program's number.
    pub(crate) fn text(&self, process: TaskId) -> String {
        let masked =
            |text: &str| text.replace(|letter: char| letter == '|' || letter.is_control(), "_");
        let (name, cookie) = (masked(&self.name), masked(&self.cookie));
        match self.kind {
            MarkKind::Begin => format!("B|{}|{name}", process.0),
            MarkKind::End => format!("E|{}", process.0),
            MarkKind::Start => format!("S|{}|{name}|{cookie}", process.0),
            MarkKind::Finish => format!("F|{}|{name}|{cookie}", process.0),
        }
    }
}

/// Reads what was written.
pub(super) fn parse(time: Nanos, task: TaskId, text: &str) -> Option<Mark> {
    let mut parts = text.trim_end().split('|');
    let kind = match parts.next()? {
        "B" => MarkKind::Begin,
        "E" => MarkKind::End,
        "S" => MarkKind::Start,
        "F" => MarkKind::Finish,
        _ => return None,
    };
    // The process, which the line says as well.
    let _ = parts.next();
    let name = parts.next().unwrap_or_default();
    let cookie = parts.next().unwrap_or_default();
    let is_whole = match kind {
        MarkKind::Begin => !name.is_empty(),
        MarkKind::End => true,
        MarkKind::Start | MarkKind::Finish => !name.is_empty() && !cookie.is_empty(),
    };
    is_whole.then(|| Mark {
        time,
        task,
        kind,
        name: name.to_owned(),
        cookie: cookie.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_no_marks() {
        let read = |text| parse(Nanos(5), TaskId(3), text);
        let begin = read("B|12|get /").expect("a mark");
        assert_eq!(
            (begin.kind, begin.name.as_str()),
            (MarkKind::Begin, "get /")
        );
        assert_eq!(read("E\n").map(|mark| mark.kind), Some(MarkKind::End));
        let async_one = read("S|12|rpc|77").expect("a mark");
        assert_eq!(
            (async_one.name.as_str(), async_one.cookie.as_str()),
            ("rpc", "77")
        );
        for note in ["", "hello", "B|12|", "S|12|rpc", "C|12|depth|4", "Bx|1|y"] {
            assert_eq!(read(note), None, "{note}");
        }
    }
}
