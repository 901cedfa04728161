//! Quoting for a shell.

/// Quotes a word, so that a shell takes it literally.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_shell_takes_words_as_they_are() {
        let words = ["plain-word", "", "two words", "it's", "$HOME `x` \"y\""];
        let line = words.map(super::quoted).join(" ");
        let output = std::process::Command::new("sh").arg("-c").arg(format!("printf '%s\\n' {line}")).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), words.map(|word| format!("{word}\n")).concat());
    }
}
