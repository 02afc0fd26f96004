//! Names and messages of another process, made harmless for a terminal.

/// Longest message that is shown. Unit: characters. Default 4,200: the longest path of a group and some words.
const SHOWN_MAX: usize = 4_200;

/// Whether a terminal, or the eye, would take `letter` for something else than itself: control characters (C1 included, which some
/// terminals obey), those that turn the direction of text, and those without width.
fn is_hostile(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `text` for a terminal: a question mark for each hostile letter, and not more than [`SHOWN_MAX`].
pub fn printable(text: &str) -> String {
    let shown = |letter: char| if is_hostile(letter) { '?' } else { letter };
    let mut result: String = text.chars().take(SHOWN_MAX).map(shown).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        result.push_str("...");
    }
    result
}

/// `json` with hostile letters as escapes, which are the same to whoever reads it. They can only be inside its texts.
pub fn escaped(json: &str) -> String {
    let mut result = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_hostile(letter) {
            result += &format!("\\u{:04x}", u32::from(letter));
        } else {
            result.push(letter);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_as_a_command() {
        assert_eq!(
            printable("a\u{1b}[2J\u{9b}m\u{202e}\n\u{7f}é"),
            "a?[2J?m???é"
        );
        let long = "x".repeat(SHOWN_MAX + 1);
        assert_eq!(printable(&long).len(), SHOWN_MAX + 3);
        assert_eq!(printable(&long[1..]), long[1..]);
    }

    #[test]
    fn escapes_say_the_same() {
        let name = "a\u{9b}\u{202e}\u{7f}é\u{1b}";
        let json = serde_json::json!({ "name": name }).to_string();
        let harmless = escaped(&json);
        assert!(!harmless.chars().any(is_hostile), "{harmless:?}");
        let read: serde_json::Value = serde_json::from_str(&harmless).expect("it is JSON still");
        assert_eq!(read["name"], name);
    }
}
