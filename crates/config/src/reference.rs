//! The settings as a page for people, made of the table that the reader uses.

use std::fmt::Write;

use crate::fields::FIELDS;

/// Every section and setting: what may stand there, its default, what it does.
pub fn reference() -> String {
    let mut text = String::from(
        "# [groups.\"path/of/group\"]  settings of this very group, which is made if it is missing\n\
         # [children.\"path\"]         defaults of every group directly below the path; \"\" is the root\n\
         #\n\
         # A setting that is not given is left to the children's defaults, and else to the program.\n",
    );
    for field in FIELDS {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n# {}\n# allowed: {}\n# default: {}\n{} = …\n",
            field.meaning,
            field.kind.allowed(),
            field.default,
            field.name
        );
    }
    text
}
