//! What is wrong with the JSON of a file, in words for users. The parser's own messages name the types of the program.

use serde_json::error::{Category, Error};

/// Describes an error of the parser.
pub fn wrong_json(error: &Error) -> String {
    match error.classify() {
        Category::Eof => "it is cut off".to_owned(),
        Category::Syntax | Category::Io => format!("it is not JSON (line {}, column {})", error.line(), error.column()),
        Category::Data if error.line() > 0 => {
            format!("a part is missing, or of another kind (line {}, column {})", error.line(), error.column())
        }
        Category::Data => "a part is missing, or of another kind".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_a_user() {
        let wrong = |text: &str| wrong_json(&serde_json::from_str::<[u8; 2]>(text).unwrap_err());
        assert_eq!(wrong("[1"), "it is cut off");
        assert_eq!(wrong("[1,\n]"), "it is not JSON (line 2, column 1)");
        assert_eq!(wrong("{}"), "a part is missing, or of another kind (line 1, column 0)");
        let error = serde_json::from_value::<u8>(serde_json::json!("text")).unwrap_err();
        assert_eq!(wrong_json(&error), "a part is missing, or of another kind");
    }
}
