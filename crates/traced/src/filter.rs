//! Filters as operators write them. The grammar is in the crate's notes.

use core::fmt;
use core::str::FromStr;

use quotient_keys::name_matches;
use tracing::Level;

use crate::callsite::Callsite;

/// Longest filter, bytes. Ours: no sensible filter comes near, and whoever may write one cannot make a reload long.
pub const FILTER_BYTES_MAX: usize = 16 * 1024;

/// Most directives of a filter. Ours, as above.
pub const DIRECTIVES_MAX: usize = 256;

/// Which callsites are to be on: a list of directives, of which the last that means a callsite decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    directives: Vec<Directive>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Directive {
    pattern: String,
    /// The pattern for what lies under a target.
    beneath: String,
    /// The most verbose level that is on; `None`: none is.
    level: Option<Level>,
}

impl Directive {
    fn new(pattern: &str, level: Option<Level>) -> Self {
        Self {
            pattern: pattern.to_owned(),
            beneath: format!("{pattern}::*"),
            level,
        }
    }

    fn means(&self, callsite: &Callsite) -> bool {
        let names = [
            callsite.target,
            callsite.key.name(),
            callsite.place,
            callsite.file(),
        ];
        names.iter().any(|name| name_matches(&self.pattern, name))
            || name_matches(&self.beneath, callsite.target)
    }

    /// Whether a callsite that it means is to be on.
    fn lets(&self, callsite: &Callsite) -> bool {
        self.level.is_some_and(|level| callsite.level <= level)
    }
}

/// Why a filter cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterError {
    /// Longer than [`FILTER_BYTES_MAX`].
    TooLong {
        /// Its length, bytes.
        bytes: usize,
    },
    /// More directives than [`DIRECTIVES_MAX`].
    TooMany {
        /// How many there are.
        directives: usize,
    },
    /// A directive without a pattern.
    NoPattern {
        /// As it was written.
        directive: String,
    },
    /// What stands after `=` is neither `on`, `off` nor a level.
    Level {
        /// As it was written.
        directive: String,
        /// What stands there.
        value: String,
    },
}

impl fmt::Display for FilterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(
                    formatter,
                    "a filter of {bytes} bytes, at most {FILTER_BYTES_MAX} are taken"
                )
            }
            Self::TooMany { directives } => write!(
                formatter,
                "a filter of {directives} directives, at most {DIRECTIVES_MAX} are taken"
            ),
            Self::NoPattern { directive } => {
                write!(formatter, "`{directive}` has no pattern before its `=`")
            }
            Self::Level { directive, value } => write!(
                formatter,
                "`{directive}`: `{value}` is none of on, off, error, warn, info, debug, trace"
            ),
        }
    }
}

impl core::error::Error for FilterError {}

/// The levels by name.
fn level_of(word: &str) -> Option<Level> {
    [
        Level::ERROR,
        Level::WARN,
        Level::INFO,
        Level::DEBUG,
        Level::TRACE,
    ]
    .into_iter()
    .find(|level| word.eq_ignore_ascii_case(level.as_str()))
}

impl FromStr for Directive {
    type Err = FilterError;

    fn from_str(word: &str) -> Result<Self, FilterError> {
        let Some((pattern, value)) = word.split_once('=') else {
            return Ok(match level_of(word) {
                Some(level) => Self::new("*", Some(level)),
                None => Self::new(word, Some(Level::TRACE)),
            });
        };
        let (pattern, value) = (pattern.trim(), value.trim());
        let directive = || word.to_owned();
        if pattern.is_empty() {
            return Err(FilterError::NoPattern {
                directive: directive(),
            });
        }
        let level = match value.to_ascii_lowercase().as_str() {
            "on" => Some(Level::TRACE),
            "off" => None,
            _ => Some(level_of(value).ok_or_else(|| FilterError::Level {
                directive: directive(),
                value: value.to_owned(),
            })?),
        };
        Ok(Self::new(pattern, level))
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(FilterError::TooLong { bytes: text.len() });
        }
        let words = text.split(',').map(str::trim);
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        if words.len() > DIRECTIVES_MAX {
            return Err(FilterError::TooMany {
                directives: words.len(),
            });
        }
        let directives = words
            .into_iter()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Ok(Self { directives })
    }
}

impl Filter {
    /// Whether each callsite is to be on.
    ///
    /// # Errors
    /// The pattern of the first directive that means none of them.
    pub(crate) fn decide(&self, callsites: &[Callsite]) -> Result<Vec<bool>, String> {
        let mut wanted = vec![false; callsites.len()];
        for directive in &self.directives {
            let mut means_one = false;
            for (callsite, wanted) in callsites.iter().zip(&mut wanted) {
                if directive.means(callsite) {
                    means_one = true;
                    *wanted = directive.lets(callsite);
                }
            }
            if !means_one {
                return Err(directive.pattern.clone());
            }
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_read_as_they_are_written() {
        let read = |text: &str| text.parse::<Filter>().map(|filter| filter.directives);
        assert_eq!(read(""), Ok(Vec::new()));
        assert_eq!(
            read(" app::net , store=OFF,, *:12=Debug,info,error = on "),
            Ok(vec![
                Directive::new("app::net", Some(Level::TRACE)),
                Directive::new("store", None),
                Directive::new("*:12", Some(Level::DEBUG)),
                Directive::new("*", Some(Level::INFO)),
                Directive::new("error", Some(Level::TRACE)),
            ])
        );
        assert_eq!(
            read("app=debug,store=loud"),
            Err(FilterError::Level {
                directive: "store=loud".to_owned(),
                value: "loud".to_owned()
            })
        );
        assert!(matches!(read("=debug"), Err(FilterError::NoPattern { .. })));
    }

    #[test]
    fn a_filter_has_a_bound() {
        let many = "a,".repeat(DIRECTIVES_MAX);
        assert!(many.parse::<Filter>().is_ok());
        let too_many = format!("{many}a");
        assert_eq!(
            too_many.parse::<Filter>(),
            Err(FilterError::TooMany {
                directives: DIRECTIVES_MAX + 1
            })
        );
        let bytes = FILTER_BYTES_MAX + 1;
        assert_eq!(
            "a".repeat(bytes).parse::<Filter>(),
            Err(FilterError::TooLong { bytes })
        );
    }
}
