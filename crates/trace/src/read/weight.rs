//! What a trace notes of cgroups' weights: what each gets of a CPU beside its siblings.

use core::fmt;

use quotient_core::{Nanos, Weight};
use serde::{Deserialize, Serialize};

use super::noted::{after_time, in_line, write_time};

/// Begins the comment about a weight at first.
const REMARK: &str = "# weight of /";
/// The same behind the time, about one that was seen later.
const LATER: &str = "the weight of /";
/// Behind the weight of a group that runs only where nobody else wants to.
const IDLE: &str = ", idle";

/// The weight of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotedWeight {
    /// When it was seen, by the clock of the events; `None`: before the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Nanos>,
    /// A path below the root, without a slash before it.
    pub cgroup: String,
    /// As `cpu.weight` has it: 1 to 10,000, 100 where nobody set another.
    pub weight: u32,
    /// Whether it runs only where nobody else wants to (`cpu.idle`).
    #[serde(default)]
    pub idle: bool,
}

impl NotedWeight {
    /// Reads the comment; `None` if it is another one, or says nothing that can be.
    pub(super) fn in_remark(text: &str) -> Option<NotedWeight> {
        let text = text.trim_end();
        let (at, rest) = match text.strip_prefix(REMARK) {
            Some(rest) => (None, rest),
            None => {
                let (at, rest) = after_time(text)?;
                (Some(at), rest.strip_prefix(LATER)?)
            }
        };
        let (cgroup, weight) = rest.rsplit_once(": ")?;
        let (weight, idle) = match weight.strip_suffix(IDLE) {
            Some(weight) => (weight, true),
            None => (weight, false),
        };
        let noted = NotedWeight {
            at,
            cgroup: cgroup.to_owned(),
            weight: weight.parse().ok()?,
            idle,
        };
        noted.is_possible().then_some(noted)
    }

    /// Whether a kernel has such weights.
    pub(super) fn is_possible(&self) -> bool {
        Weight::new(self.weight).is_ok()
    }
}

/// The comment, without an end of its line. Control characters in the path become question marks.
impl fmt::Display for NotedWeight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            None => formatter.write_str(REMARK)?,
            Some(at) => {
                write_time(at, formatter)?;
                formatter.write_str(LATER)?;
            }
        }
        let idle = if self.idle { IDLE } else { "" };
        write!(
            formatter,
            "{}: {}{idle}",
            in_line(&self.cgroup),
            self.weight
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_as_they_were_noted() {
        for (at, idle, expected) in [
            (None, false, "# weight of /odd: 7/web: 300"),
            (None, true, "# weight of /odd: 7/web: 300, idle"),
            (
                Some(Nanos::from_micros(7_000_042)),
                false,
                "# at 7.000042 s the weight of /odd: 7/web: 300",
            ),
        ] {
            let noted = NotedWeight {
                at,
                cgroup: "odd: 7/web".to_owned(),
                weight: 300,
                idle,
            };
            assert_eq!(noted.to_string(), expected);
            assert_eq!(NotedWeight::in_remark(expected), Some(noted));
        }
        for text in [
            "# weight of /web: 0",
            "# weight of /web: 10001",
            "# weight of /web: x",
            "# weight of /web",
            "# at 7 s the weight of /web: 100",
            "# at 7.000042 s the weight of /web: -1",
        ] {
            assert_eq!(NotedWeight::in_remark(text), None, "{text}");
        }
    }
}
