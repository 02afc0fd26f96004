//! Typed errors. Each names the offending value and the range or rule it broke.

use crate::units::{Nanos, Slice};
use core::fmt;
use std::error::Error;

/// A weight outside 1 to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightError {
    /// What was asked for.
    pub value: u32,
}

impl fmt::Display for WeightError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "weight {} is outside 1..=10000", self.value)
    }
}

impl Error for WeightError {}

/// A nice value outside -20 to 19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NiceError {
    /// What was asked for.
    pub value: i32,
}

impl fmt::Display for NiceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "nice value {} is outside -20..=19", self.value)
    }
}

impl Error for NiceError {}

/// A slice outside 0.1 to 100 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceError {
    /// What was asked for.
    pub value: Nanos,
}

impl fmt::Display for SliceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (Slice::MIN.nanos(), Slice::MAX.nanos());
        write!(
            formatter,
            "slice of {} is outside {min} to {max}",
            self.value
        )
    }
}

impl Error for SliceError {}

/// A configuration value outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field's name.
    pub field: &'static str,
    /// What was asked for.
    pub value: u64,
    /// Smallest accepted value.
    pub min: u64,
    /// Largest accepted value.
    pub max: u64,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} = {} is outside {}..={}",
            self.field, self.value, self.min, self.max
        )
    }
}

impl Error for ConfigError {}

/// Why a group could not be created, found or removed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// The path or name is empty.
    Empty,
    /// The path starts with `/`; paths are relative to the root group.
    Absolute {
        /// The path as given.
        path: String,
    },
    /// A segment is empty, `.` or `..`, or a name contains `/`, a control character (newline, tab, escape and NUL among them) or one of
    /// Unicode's line and paragraph separators.
    BadSegment {
        /// The path or name as given.
        path: String,
        /// The segment that broke the rule.
        segment: String,
    },
    /// A segment is longer than [`crate::GroupTree::NAME_LENGTH_MAX`] bytes.
    NameTooLong {
        /// Length in bytes.
        length: usize,
        /// The largest accepted length in bytes.
        max: usize,
    },
    /// The whole path is longer than [`crate::GroupTree::PATH_LENGTH_MAX`] bytes.
    PathTooLong {
        /// Length in bytes.
        length: usize,
        /// The largest accepted length in bytes.
        max: usize,
    },
    /// The group would lie deeper than [`crate::GroupTree::DEPTH_MAX`] levels below the root.
    TooDeep {
        /// The level it would have had.
        depth: usize,
        /// The largest accepted level.
        max: usize,
    },
    /// The parent already has a child of that name.
    Exists {
        /// The path of the group that exists.
        path: String,
    },
    /// No group of that path exists.
    Unknown {
        /// The path as given.
        path: String,
    },
    /// The group was removed before.
    Removed {
        /// The path it had.
        path: String,
    },
    /// The root group cannot be removed.
    Root,
    /// The group still has children.
    HasChildren {
        /// The group's path.
        path: String,
        /// How many children.
        children: usize,
    },
    /// Tasks of the group are queued or running.
    HasRunnable {
        /// The group's path.
        path: String,
        /// How many tasks.
        runnable: usize,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Empty => write!(
                formatter,
                "group path is empty; expected names joined by '/'"
            ),
            GroupError::Absolute { path } => {
                write!(
                    formatter,
                    "group path {path:?} is absolute; paths are relative to the root group"
                )
            }
            GroupError::BadSegment { path, segment } => write!(
                formatter,
                "group path {path:?}: segment {segment:?} must not be empty, '.' or '..', nor contain '/' or control characters"
            ),
            GroupError::NameTooLong { length, max } => {
                write!(
                    formatter,
                    "group name of {length} bytes is longer than {max}"
                )
            }
            GroupError::PathTooLong { length, max } => {
                write!(
                    formatter,
                    "group path of {length} bytes is longer than {max}"
                )
            }
            GroupError::TooDeep { depth, max } => {
                write!(formatter, "group depth {depth} is outside 1..={max}")
            }
            GroupError::Exists { path } => write!(formatter, "group {path:?} exists already"),
            GroupError::Unknown { path } => write!(formatter, "group {path:?} does not exist"),
            GroupError::Removed { path } => write!(formatter, "group {path:?} was removed"),
            GroupError::Root => write!(formatter, "the root group cannot be removed"),
            GroupError::HasChildren { path, children } => {
                write!(
                    formatter,
                    "group {path:?} still has {children} child group(s)"
                )
            }
            GroupError::HasRunnable { path, runnable } => {
                write!(
                    formatter,
                    "group {path:?} still has {runnable} runnable task(s)"
                )
            }
        }
    }
}

impl Error for GroupError {}
