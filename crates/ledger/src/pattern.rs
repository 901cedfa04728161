//! Patterns of names, as of tasks and of an experiment's cells: `*` stands for any characters, `?` for one.

/// Returns true if a pattern has wildcards.
pub fn has_wildcards(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// Returns true if `text` matches `pattern`.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The position of the last asterisk, and the position in the text from which it is tried next.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                p = at + 1;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn wildcards_stand_for_characters() {
        for (pattern, text) in [
            ("*", ""),
            ("switch/*", "switch/native"),
            ("*/native", "switch/native"),
            ("*a*b*c", "xxaxbxbxc"),
            ("hackbench-?/trunk", "hackbench-5/trunk"),
            ("a", "a"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("?", ""), ("switch", "switch/native"), ("*a*b*c", "abcb"), ("b*", "ab")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
