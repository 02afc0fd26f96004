//! JSON as rt-app reads it: with comments, and with keys that come several times. Every value knows its place.

/// Deepest nesting; rt-app needs six levels.
const DEPTH_MAX: u32 = 64;

/// A value and where it begins, as a byte of the text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) at: usize,
    pub(super) kind: Kind,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    /// In the order of the file, repeated keys included.
    Object(Vec<(String, Value)>),
}

/// What is wrong, and at which byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: String,
}

/// Reads a whole text.
pub(super) fn parse(text: &str) -> Result<Value, Fault> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    parser.skip()?;
    if parser.at < text.len() {
        return Err(parser.wrong("the end of the file"));
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong(&self, expected: &str) -> Fault {
        Fault {
            at: self.at,
            what: format!("expected {expected}"),
        }
    }

    /// Skips white space and comments of both forms.
    fn skip(&mut self) -> Result<(), Fault> {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if let Some(comment) = trimmed.strip_prefix("/*") {
                let end = comment
                    .find("*/")
                    .ok_or_else(|| self.wrong("the end of this comment"))?;
                self.at += end + 4;
            } else if trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else {
                return Ok(());
            }
        }
    }

    fn take(&mut self, wanted: char) -> Result<bool, Fault> {
        self.skip()?;
        let found = self.rest().starts_with(wanted);
        self.at += usize::from(found);
        Ok(found)
    }

    fn value(&mut self, depth: u32) -> Result<Value, Fault> {
        self.skip()?;
        if depth > DEPTH_MAX {
            return Err(self.wrong("at most 64 levels"));
        }
        let at = self.at;
        let kind = match self.rest().bytes().next() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Kind::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.literal()?,
        };
        Ok(Value { at, kind })
    }

    fn object(&mut self, depth: u32) -> Result<Kind, Fault> {
        self.at += 1;
        let mut fields = Vec::new();
        loop {
            // A comma before the end is accepted, as by rt-app's own preprocessing.
            if self.take('}')? {
                return Ok(Kind::Object(fields));
            }
            if !self.rest().starts_with('"') {
                return Err(self.wrong("a key in quotation marks or '}'"));
            }
            let key = self.string()?;
            if !self.take(':')? {
                return Err(self.wrong("':'"));
            }
            let value = self.value(depth + 1)?;
            fields.push((key, value));
            if !self.take(',')? && !self.rest().starts_with('}') {
                return Err(self.wrong("',' or '}'"));
            }
        }
    }

    fn list(&mut self, depth: u32) -> Result<Kind, Fault> {
        self.at += 1;
        let mut values = Vec::new();
        loop {
            if self.take(']')? {
                return Ok(Kind::List(values));
            }
            values.push(self.value(depth + 1)?);
            if !self.take(',')? && !self.rest().starts_with(']') {
                return Err(self.wrong("',' or ']'"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        while let Some(letter) = self.rest().chars().next() {
            self.at += letter.len_utf8();
            match letter {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                '\n' => break,
                other => text.push(other),
            }
        }
        self.at = begin;
        Err(self.wrong("a second quotation mark on the same line"))
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let letter = self.rest().chars().next();
        let letter = letter.ok_or_else(|| self.wrong("an escape"))?;
        self.at += letter.len_utf8();
        match letter {
            '"' | '\\' | '/' => Ok(letter),
            'n' => Ok('\n'),
            't' => Ok('\t'),
            'r' => Ok('\r'),
            'u' => {
                let code = self
                    .rest()
                    .get(..4)
                    .and_then(|code| u32::from_str_radix(code, 16).ok());
                let found = code.and_then(char::from_u32);
                let found = found.ok_or_else(|| self.wrong("four hexadecimal digits"))?;
                self.at += 4;
                Ok(found)
            }
            _ => Err(self.wrong("a known escape")),
        }
    }

    fn number(&mut self) -> Result<Kind, Fault> {
        let part = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
        let length = self.rest().bytes().take_while(|&byte| part(byte)).count();
        match self.rest()[..length].parse::<f64>() {
            Ok(number) if number.is_finite() => {
                self.at += length;
                Ok(Kind::Number(number))
            }
            _ => Err(self.wrong("a number")),
        }
    }

    fn literal(&mut self) -> Result<Kind, Fault> {
        for (word, kind) in [
            ("true", Kind::Bool(true)),
            ("false", Kind::Bool(false)),
            ("null", Kind::Null),
        ] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(kind);
            }
        }
        Err(self.wrong("a value"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_repeated_keys_are_kept_apart() {
        let value = parse("{ /* a */ \"run\": 1, // b\n \"run\" : -2.5e1, \"x\": [true, null,], }");
        let Ok(Value {
            kind: Kind::Object(fields),
            ..
        }) = value
        else {
            panic!("{value:?}");
        };
        assert_eq!(fields.len(), 3);
        assert_eq!(fields[1].1.kind, Kind::Number(-25.0));
    }

    #[test]
    fn faults_know_their_place() {
        for (text, at) in [
            ("", 0),
            ("{", 1),
            ("{\"a\" 1}", 5),
            ("{\"a\": 1 \"b\": 2}", 8),
            ("[1, 2", 5),
            ("\"open", 0),
            ("/* open", 0),
            ("{\"a\": wrong}", 6),
            ("1 2", 2),
            ("\"\\ud800\"", 3),
            ("1e999", 0),
        ] {
            assert_eq!(parse(text).map_err(|fault| fault.at), Err(at), "{text}");
        }
        assert!(parse(&"[".repeat(1_000_000)).is_err());
    }
}
