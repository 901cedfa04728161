//! Quoting for a shell.

/// Quotes a word, so that a shell takes it literally.
pub fn quoted(word: &str) -> String {
    // A shell expands braces around a list or a range alone, and a brace alone begins or ends a group.
    let braces = word.contains(',') || word.contains("..") || ["{", "}"].contains(&word);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c) || (!braces && "{}".contains(c));
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_shell_takes_words_as_they_are() {
        let words = [
            "plain-word",
            "",
            "two words",
            "it's",
            "$HOME `x` \"y\"",
            "{l}",
            "-l{l}x",
            "{a,b}",
            "{1..3}",
            "{",
            "}",
            "~",
        ];
        let line = words.map(super::quoted).join(" ");
        assert!(line.contains(" {l} -l{l}x '{a,b}' "), "{line}");
        for shell in ["sh", "bash"] {
            let Ok(output) = std::process::Command::new(shell).arg("-c").arg(format!("printf '%s\\n' {line}")).output()
            else {
                continue;
            };
            assert_eq!(String::from_utf8(output.stdout).unwrap(), words.map(|word| format!("{word}\n")).concat());
        }
    }
}
