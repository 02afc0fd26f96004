//! Flipping many keys by their names: by prefix, by pattern, and as an operator writes it.
//!
//! # Directives
//!
//! `pattern[=on|off]`, separated by commas: `svc.*,ledger.checks=off,net.??=on`. In a pattern `*` stands for any number of
//! characters and `?` for one. Later directives overrule earlier ones for the keys that both name. All of them are one
//! transaction.

use quotient_key::{FlipError, Key, Receipt};

use crate::calls;
use crate::registry;
use crate::step::Change;

/// [`Key::set`] on all keys whose names begin with `prefix`, in one transaction. None is no error.
///
/// # Errors
/// As [`transaction`](crate::transaction): no key changes.
pub fn set_by_prefix(prefix: &str, on: bool) -> Result<Receipt, FlipError> {
    set_those(on, |key| key.name().starts_with(prefix))
}

/// [`Key::set`] on all keys whose names match `pattern` (`*`: any characters, `?`: one), in one transaction. None is no error.
///
/// # Errors
/// As [`transaction`](crate::transaction): no key changes.
pub fn set_matching(pattern: &str, on: bool) -> Result<Receipt, FlipError> {
    set_those(on, |key| name_matches(pattern, key.name()))
}

fn set_those(on: bool, is_meant: impl Fn(&Key) -> bool) -> Result<Receipt, FlipError> {
    let keys = registry::keys().into_iter().filter(|key| is_meant(key));
    let changes: Vec<Change> = keys.map(|key| change(key, on)).collect();
    calls::transaction(&changes)
}

const fn change(key: &'static Key, on: bool) -> Change {
    if on {
        Change::Enable(key)
    } else {
        Change::Disable(key)
    }
}

/// Sets keys as `directives` say (`pattern[=on|off]`, separated by commas), in one transaction.
///
/// ```
/// quotient_keys::static_key! {
///     /// Traces parsing.
///     static PARSING = false, as "trace.parsing";
///     /// Traces storing.
///     static STORING = false, as "trace.storing";
/// }
/// quotient_keys::set_as_directed("trace.*, trace.storing=off")?;
/// assert!(PARSING.is_enabled() && !STORING.is_enabled());
/// # Ok::<(), quotient_keys::FlipError>(())
/// ```
///
/// # Errors
/// [`FlipError::Directive`] for a word that cannot be read, [`FlipError::UnknownKey`] for a pattern that no key matches, or as
/// [`transaction`](crate::transaction): no key changes.
pub fn set_as_directed(directives: &str) -> Result<Receipt, FlipError> {
    let keys = registry::keys();
    let mut wanted: Vec<Option<bool>> = vec![None; keys.len()];
    let words = directives.split(',').map(str::trim);
    for word in words.filter(|word| !word.is_empty()) {
        let (pattern, on) = read(word)?;
        let mut is_known = false;
        for (key, wanted) in keys.iter().zip(&mut wanted) {
            if name_matches(pattern, key.name()) {
                *wanted = Some(on);
                is_known = true;
            }
        }
        if !is_known {
            return Err(FlipError::UnknownKey {
                name: pattern.to_owned(),
            });
        }
    }
    let changes: Vec<Change> = keys
        .into_iter()
        .zip(wanted)
        .filter_map(|(key, wanted)| Some(change(key, wanted?)))
        .collect();
    calls::transaction(&changes)
}

/// [`set_as_directed`] by the environment variable `variable`, which an application chooses. Unset: nothing happens.
///
/// # Errors
/// As [`set_as_directed`]; [`FlipError::Directive`] as well if the variable is not Unicode.
pub fn set_by_environment(variable: &str) -> Result<Receipt, FlipError> {
    match std::env::var_os(variable) {
        None => Ok(Receipt::default()),
        Some(directives) => match directives.to_str() {
            Some(directives) => set_as_directed(directives),
            None => Err(FlipError::Directive {
                word: directives.to_string_lossy().into_owned(),
            }),
        },
    }
}

fn read(word: &str) -> Result<(&str, bool), FlipError> {
    match word.split_once('=') {
        None => Ok((word, true)),
        Some((pattern, value)) => match value.trim() {
            "on" => Ok((pattern.trim(), true)),
            "off" => Ok((pattern.trim(), false)),
            _ => Err(FlipError::Directive {
                word: word.to_owned(),
            }),
        },
    }
}

/// Whether a name matches a pattern (`*`: any characters, `?`: one), as the functions that flip by pattern decide it.
///
/// # Complexity
/// The product of the lengths at worst.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at_pattern, mut at_name) = (0, 0);
    // Where the last star stands, and how far what it stands for was taken to reach.
    let mut star: Option<(usize, usize)> = None;
    while at_name < name.len() {
        match pattern.get(at_pattern) {
            Some(b'*') => {
                star = Some((at_pattern, at_name));
                at_pattern += 1;
            }
            Some(&wanted) if wanted == b'?' || wanted == name[at_name] => {
                at_pattern += 1;
                at_name += 1;
            }
            _ => match star {
                Some((place, reach)) => {
                    star = Some((place, reach + 1));
                    (at_pattern, at_name) = (place + 1, reach + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at_pattern..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, name) in [
            ("*", ""),
            ("svc.*", "svc."),
            ("svc.*", "svc.audit"),
            ("*.audit", "svc.audit"),
            ("a*b*c", "axxbxbyc"),
            ("a?c", "abc"),
            ("x::K[1?]", "x::K[12]"),
        ] {
            assert!(name_matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("svc.*", "svc"),
            ("a?c", "ac"),
            ("a*b", "abc"),
            ("?", ""),
        ] {
            assert!(!name_matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn words_that_cannot_be_read_are_named() {
        assert_eq!(read("a.b"), Ok(("a.b", true)));
        assert_eq!(read("a.b = off"), Ok(("a.b", false)));
        let word = "a=maybe".to_owned();
        assert_eq!(read("a=maybe"), Err(FlipError::Directive { word }));
    }
}
