//! The limit of the recorded cgroup, as a text trace notes it in a comment: what a limit cut off is not in the trace, so that its reader has to know.

use core::fmt;

use quotient_core::Nanos;

/// Begins the comment.
const REMARK: &str = "# recorded under the limit of /";

/// A limit that a trace was recorded under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedLimit {
    /// CPU time in each period.
    pub quota: Nanos,
    /// The period, not zero.
    pub period: Nanos,
    /// Whose limit it is: a path below the root, without a slash before it.
    pub cgroup: String,
}

impl NotedLimit {
    /// Reads the comment; `None` if it is another one.
    pub(super) fn in_remark(text: &str) -> Option<NotedLimit> {
        let (cgroup, limit) = text.strip_prefix(REMARK)?.rsplit_once(": ")?;
        let (quota, period) = limit.split_once(" in every ")?;
        let micros = |text: &str| text.trim().strip_suffix(" us")?.parse::<u64>().ok();
        let nanos = |text: &str| Some(Nanos(micros(text)?.checked_mul(1_000)?));
        Some(NotedLimit {
            quota: nanos(quota)?,
            period: nanos(period).filter(|period| *period > Nanos::ZERO)?,
            cgroup: cgroup.to_owned(),
        })
    }
}

/// The comment, without an end of its line. Control characters in the path become question marks.
impl fmt::Display for NotedLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printable = |letter: char| if letter.is_control() { '?' } else { letter };
        let cgroup: String = self.cgroup.chars().map(printable).collect();
        let (quota, period) = (self.quota.0 / 1_000, self.period.0 / 1_000);
        write!(
            formatter,
            "{REMARK}{cgroup}: {quota} us in every {period} us"
        )
    }
}

/// Begins the comment behind the last event.
const THROTTLES: &str = "# meanwhile throttled in ";

/// How often the noted limit was reached while the trace was recorded, by the kernel's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedThrottles {
    /// Periods in which the cgroup was throttled, at most all of them.
    pub throttled: u64,
    /// Periods in which it had something to do.
    pub periods: u64,
}

impl NotedThrottles {
    /// Reads the comment; `None` if it is another one, or says nothing that can be.
    pub(super) fn in_remark(text: &str) -> Option<NotedThrottles> {
        let (throttled, periods) = text.strip_prefix(THROTTLES)?.split_once(" of ")?;
        let throttled = throttled.parse().ok()?;
        let periods = periods.trim_end().strip_suffix(" periods")?.parse().ok()?;
        (throttled <= periods).then_some(NotedThrottles { throttled, periods })
    }
}

/// The comment, without an end of its line.
impl fmt::Display for NotedThrottles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotedThrottles { throttled, periods } = self;
        write!(formatter, "{THROTTLES}{throttled} of {periods} periods")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counted_is_read() {
        let counted = NotedThrottles {
            throttled: 7,
            periods: 60,
        };
        let text = counted.to_string();
        assert_eq!(NotedThrottles::in_remark(&text), Some(counted));
        for text in [
            "# meanwhile throttled in 7 of 6 periods",
            "# meanwhile throttled in 7 of x periods",
            "# meanwhile throttled in 7",
        ] {
            assert_eq!(NotedThrottles::in_remark(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_noted_is_read() {
        let limit = NotedLimit {
            quota: Nanos::from_millis(60),
            period: Nanos::from_millis(100),
            cgroup: "odd: 1 us in every 2 us/a".into(),
        };
        assert_eq!(NotedLimit::in_remark(&limit.to_string()), Some(limit));
        for text in [
            "# recorded",
            "# recorded under the limit of /a: 1 us in every 0 us",
            "# recorded under the limit of /a: 99999999999999999999 us in every 1 us",
        ] {
            assert_eq!(NotedLimit::in_remark(text), None, "{text}");
        }
    }
}
