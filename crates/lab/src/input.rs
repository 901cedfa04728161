//! JSON from files: what is wrong with it, in words for users, whom the parser's own messages would tell the types of the program; and a check of
//! what the parser allows.

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::error::{Category, Error};
use std::collections::HashSet;
use std::fmt;

/// The most values in a document.
const MOST_VALUES: usize = 32 << 20;
const TWICE: &str = "a key stands there twice";
const TOO_MANY: &str = "it has too many values";

/// Describes an error of the parser.
pub fn wrong_json(error: &Error) -> String {
    let place = format!("(line {}, column {})", error.line(), error.column());
    let message = error.to_string();
    match error.classify() {
        Category::Eof if (error.line(), error.column()) == (1, 0) => "it is empty".to_owned(),
        Category::Eof => "it is cut off".to_owned(),
        Category::Syntax if message.starts_with("recursion limit exceeded") => {
            format!("it is nested too deeply {place}")
        }
        Category::Syntax if message.starts_with("number out of range") => format!("a number is out of range {place}"),
        Category::Syntax | Category::Io => format!("it is not JSON {place}"),
        Category::Data if message.starts_with(TWICE) => format!("{TWICE} {place}"),
        Category::Data if message.starts_with(TOO_MANY) => TOO_MANY.to_owned(),
        Category::Data if error.line() > 0 => format!("a part is missing, or of another kind {place}"),
        Category::Data => "a part is missing, or of another kind".to_owned(),
    }
}

/// Checks that a document is JSON, that no object in it has a key twice (a parser would silently take one of the values), and that it has not too
/// many values for the memory of the host.
pub fn check_json(bytes: &[u8]) -> Result<(), Error> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    Check { left: &mut MOST_VALUES.clone() }.deserialize(&mut parser)?;
    parser.end()
}

/// Reads a value and keeps nothing of it.
struct Check<'a> {
    left: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for Check<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| D::Error::custom(TOO_MANY))?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        while all.next_element_seed(Check { left: self.left })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = all.next_key::<String>()? {
            if !keys.insert(key) {
                return Err(A::Error::custom(TWICE));
            }
            all.next_value_seed(Check { left: self.left })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_a_user() {
        let wrong = |text: &str| wrong_json(&serde_json::from_str::<[u8; 2]>(text).unwrap_err());
        assert_eq!(wrong(""), "it is empty");
        assert_eq!(wrong("[1"), "it is cut off");
        assert_eq!(wrong("[1e999]"), "a number is out of range (line 1, column 6)");
        assert_eq!(wrong("[1,\n]"), "it is not JSON (line 2, column 1)");
        assert_eq!(wrong("{}"), "a part is missing, or of another kind (line 1, column 0)");
        let error = serde_json::from_value::<u8>(serde_json::json!("text")).unwrap_err();
        assert_eq!(wrong_json(&error), "a part is missing, or of another kind");
    }

    #[test]
    fn what_the_parser_allows_is_checked() {
        let wrong = |text: &str| wrong_json(&check_json(text.as_bytes()).unwrap_err());
        check_json(br#"{"a": [null, true, -1, 1, 1.5, "x", {"a": {}}], "b": {"a": 1}}"#).unwrap();
        assert_eq!(wrong(r#"{"a": 1, "b": {"c": 1, "c": 1}}"#), "a key stands there twice (line 1, column 26)");
        assert_eq!(wrong(r#"{"a": 1, "\u0061": 1}"#), "a key stands there twice (line 1, column 17)");
        assert_eq!(wrong("[] []"), "it is not JSON (line 1, column 4)");
        assert_eq!(wrong(&"[".repeat(1000)), "it is nested too deeply (line 1, column 128)");
        assert_eq!(wrong(&format!("[{}0]", "0,".repeat(MOST_VALUES))), "it has too many values");
    }
}
