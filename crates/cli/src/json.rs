//! One JSON object on standard output, which says what it is.

use serde::Serialize;

use crate::failure::{Failure, print};

/// A result and the form that it has. The number grows whenever a reader of the last form would be wrong about this one; fields
/// that come in addition do not count.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema: &'a str,
    #[serde(flatten)]
    value: &'a T,
}

/// Words `value`, which must be an object, with its form, such as `quotient-sim/1`, in front.
///
/// # Errors
/// `Run` if it cannot be worded.
pub fn versioned(schema: &str, value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(&Versioned { schema, value })
        .map_err(Failure::during("cannot write JSON"))
}

/// Prints `value` as [`versioned`] words it, and the end of the line.
///
/// # Errors
/// `Run` if it cannot be worded, `Closed` if nobody reads it.
pub fn print_versioned(schema: &str, value: &impl Serialize) -> Result<(), Failure> {
    print(&(versioned(schema, value)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_comes_first_and_nothing_is_lost() {
        let text = versioned("quotient-x/1", &serde_json::json!({ "b": 1.5, "a": [2] }));
        assert_eq!(
            text.ok().as_deref(),
            Some(r#"{"schema":"quotient-x/1","a":[2],"b":1.5}"#)
        );
        assert!(versioned("quotient-x/1", &[1]).is_err());
    }
}
