//! Putting a filter in force.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use quotient_keys::{Change, FlipError, Receipt, transaction};

use crate::callsite::callsites;
use crate::filter::{Filter, FilterError};

/// The environment variable of [`reload_by_environment`].
pub const VARIABLE: &str = "QUOTIENT_DEBUG";

/// Reloads take turns, so that each leaves what its own filter says.
static TURN: Mutex<()> = Mutex::new(());

/// What a reload has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Callsites of the program.
    pub callsites: usize,
    /// Those that are on now.
    pub on: usize,
    /// Those that were switched.
    pub changed: usize,
    /// What that cost.
    pub receipt: Receipt,
}

/// Why a filter was not put in force. Every callsite is as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReloadError {
    /// It cannot be read.
    Filter(FilterError),
    /// A directive means no callsite of this program.
    NoCallsite {
        /// Its pattern.
        pattern: String,
    },
    /// A callsite cannot be switched: somebody holds it on, or sits on its code.
    Flip(FlipError),
    /// The environment variable is not Unicode.
    NotUnicode {
        /// As far as it can be shown.
        value: String,
    },
}

impl fmt::Display for ReloadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(error) => write!(formatter, "a filter that cannot be read: {error}"),
            Self::NoCallsite { pattern } => {
                write!(formatter, "`{pattern}` means no callsite of this program")
            }
            Self::Flip(error) => write!(formatter, "a callsite cannot be switched: {error}"),
            Self::NotUnicode { value } => {
                write!(formatter, "{VARIABLE} is not Unicode: `{value}`")
            }
        }
    }
}

impl core::error::Error for ReloadError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Filter(error) => Some(error),
            Self::Flip(error) => Some(error),
            Self::NoCallsite { .. } | Self::NotUnicode { .. } => None,
        }
    }
}

impl From<FilterError> for ReloadError {
    fn from(error: FilterError) -> Self {
        Self::Filter(error)
    }
}

/// Puts a filter in force: every callsite is on or off as it says, in one transaction. When it has returned, no thread that is
/// ordered after the call takes the old branch.
///
/// # Errors
/// [`ReloadError`]: no callsite has changed.
///
/// # Complexity
/// Callsites times directives to decide; proportional to the callsites that change to switch, with the barriers of one flip.
pub fn reload(filter: &str) -> Result<Reloaded, ReloadError> {
    let filter: Filter = filter.parse()?;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let callsites = callsites();
    let wanted = filter
        .decide(&callsites)
        .map_err(|pattern| ReloadError::NoCallsite { pattern })?;
    let changes: Vec<Change> = callsites
        .iter()
        .zip(&wanted)
        .filter(|&(callsite, &on)| callsite.is_on() != on)
        .map(|(callsite, &on)| {
            if on {
                Change::Enable(callsite.key)
            } else {
                Change::Disable(callsite.key)
            }
        })
        .collect();
    let receipt = transaction(&changes).map_err(ReloadError::Flip)?;
    Ok(Reloaded {
        callsites: callsites.len(),
        on: wanted.iter().filter(|&&on| on).count(),
        changed: changes.len(),
        receipt,
    })
}

/// [`reload`] with the filter in the environment variable [`VARIABLE`], `QUOTIENT_DEBUG`. `None`: it is not set, and nothing was
/// done.
///
/// # Errors
/// As [`reload`], and [`ReloadError::NotUnicode`].
pub fn reload_by_environment() -> Result<Option<Reloaded>, ReloadError> {
    let Some(filter) = std::env::var_os(VARIABLE) else {
        return Ok(None);
    };
    match filter.to_str() {
        Some(filter) => reload(filter).map(Some),
        None => Err(ReloadError::NotUnicode {
            value: filter.to_string_lossy().into_owned(),
        }),
    }
}
