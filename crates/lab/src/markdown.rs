//! Texts in Markdown: what a user has named is shown as it is, and is neither a mark nor a reference to a person, an issue or a commit.

use std::ops::RangeInclusive;

/// Separates the sign of a reference from its name. Services look for references in the text that Markdown has become, where a backslash has no effect.
const APART: &str = "<!-- -->";
/// Lengths of the names of commits.
const COMMIT: RangeInclusive<usize> = 7..=40;

/// Returns true for each character that belongs to code between backticks. Backticks of names are none.
fn code_in(chars: &[char], names: &[&str]) -> Vec<bool> {
    let mut named = vec![false; chars.len()];
    for name in names.iter().filter(|name| name.contains('`')) {
        let name: Vec<char> = name.chars().collect();
        for at in (0..chars.len()).filter(|at| chars[*at..].starts_with(&name)) {
            named[at..at + name.len()].fill(true);
        }
    }
    let marks: Vec<usize> = (0..chars.len()).filter(|at| chars[*at] == '`' && !named[*at]).collect();
    let mut code = vec![false; chars.len()];
    let is_double = chars.windows(2).any(|pair| pair == ['`', '`']);
    if marks.len().is_multiple_of(2) && !is_double {
        marks.chunks(2).for_each(|pair| code[pair[0]..=pair[1]].fill(true));
    }
    code
}

/// Returns true if the text from `&` on is the name of a character.
fn is_entity(chars: &[char]) -> bool {
    let name = chars[1..].iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '#').count();
    name > 0 && chars.get(name + 1) == Some(&';')
}

/// Returns true if a reference, an address or a picture would end or go on behind this character: services make links of `#12`, `GH-12`, `@name`, `x@y.org`,
/// `https://y.org`, `www.y.org` and commits, and a picture of `:b:`.
fn is_reference(chars: &[char], at: usize) -> bool {
    let (before, behind) = (&chars[..at], &chars[at + 1..]);
    let ends_with = |text: &str| {
        let word: Vec<&char> = before.iter().rev().take_while(|c| c.is_alphanumeric()).collect();
        word.len() == text.len() && word.into_iter().rev().zip(text.chars()).all(|(a, b)| a.eq_ignore_ascii_case(&b))
    };
    let is = |of: fn(&char) -> bool| behind.first().is_some_and(of);
    match chars[at] {
        '@' => is(|c| c.is_alphanumeric()),
        '#' => is(char::is_ascii_digit),
        '-' => ends_with("gh") && is(char::is_ascii_digit),
        '.' => ends_with("www"),
        ':' => {
            let name = behind.iter().take_while(|c| c.is_ascii_alphanumeric() || "_+-".contains(**c)).count();
            behind.starts_with(&['/', '/']) || name > 0 && behind.get(name) == Some(&':')
        }
        // The first character of a word that may be the name of a commit.
        c if is_hexadecimal(c) && before.last().is_none_or(|c| !c.is_alphanumeric()) => {
            let word = chars[at..].iter().take_while(|c| c.is_alphanumeric()).count();
            COMMIT.contains(&word) && chars[at..at + word].iter().all(|c| is_hexadecimal(*c))
        }
        _ => false,
    }
}

/// Returns true for a digit as names of commits have them.
fn is_hexadecimal(c: char) -> bool {
    c.is_ascii_digit() || ('a'..='f').contains(&c)
}

/// Returns the position of a character that would make a heading, a quotation or a list of the text that it begins.
fn block_mark(chars: &[char]) -> Option<usize> {
    let ends = |at: usize| chars.get(at).is_none_or(|c| *c == ' ');
    let count = |is: fn(&char) -> bool| chars.iter().take_while(|c| is(c)).count();
    let (hashes, digits) = (count(|c| *c == '#'), count(char::is_ascii_digit));
    match chars.first()? {
        '>' => Some(0),
        '-' | '+' if ends(1) => Some(0),
        '#' if ends(hashes) => Some(0),
        _ if digits > 0 && chars.get(digits).is_some_and(|c| ".)".contains(*c)) && ends(digits + 1) => Some(digits),
        _ => None,
    }
}

/// Returns a sentence of this program: words between backticks are code, except in `names`, which are parts of the sentence.
pub fn sentence(text: &str, names: &[&str]) -> String {
    let chars = line(text);
    let code = code_in(&chars, names);
    escaped(&chars, &code)
}

/// Returns a text that has no marks of its own.
pub fn plain(text: &str) -> String {
    let chars = line(text);
    let code = vec![false; chars.len()];
    escaped(&chars, &code)
}

/// Returns the characters of a text as one line.
fn line(text: &str) -> Vec<char> {
    text.trim_start().chars().map(|c| if "\n\r".contains(c) { ' ' } else { c }).collect()
}

/// Returns characters as Markdown that shows them. Those of `code` stay.
fn escaped(chars: &[char], code: &[bool]) -> String {
    let of_block = block_mark(chars);
    let has = |pair: [char; 2]| chars.windows(2).any(|chars| chars == pair);
    let count = |mark: char| chars.iter().filter(|c| **c == mark).count();
    let is_link = has([']', '(']) || has([']', '[']);
    let (is_struck, is_formula) = (count('~') > 1, count('$') > 1);
    // An underscore within a word is no mark.
    let at = |at: Option<usize>| at.and_then(|at| chars.get(at)).copied();
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let closes = |n: usize| chars[n] == '_' && n > 0 && chars[n - 1] != ' ' && !is_word(at(Some(n + 1)));
    let is_emphasis = (0..chars.len()).any(closes);
    let mut out = String::new();
    for (n, c) in chars.iter().enumerate() {
        if code[n] {
            out.push(*c);
            continue;
        }
        let (before, after) = (at(n.checked_sub(1)), at(Some(n + 1)));
        let mark = match c {
            '*' | '\\' | '`' => true,
            '~' => is_struck,
            '[' | ']' => is_link,
            '_' => is_emphasis && !(is_word(before) && is_word(after)),
            _ => of_block == Some(n),
        };
        match c {
            '<' => out += "&lt;",
            '&' if is_entity(&chars[n..]) => out += "&amp;",
            // A formula needs two of them, and a backslash would not prevent it.
            '$' if is_formula => out += "<span>$</span>",
            _ if mark => out.extend(['\\', *c]),
            _ => out.push(*c),
        }
        if is_reference(chars, n) {
            out += APART;
        }
    }
    out
}

/// Returns a text as a cell of a table.
pub fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

/// Returns a text as code.
pub fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    match longest {
        0 => format!("`{text}`"),
        _ => {
            let fence = "`".repeat(longest + 1);
            format!("{fence} {text} {fence}")
        }
    }
}

/// Returns a text as code that is read as it was written: a block of code if it has several lines. `indent` is that of the text around it.
pub fn verbatim(text: &str, indent: &str) -> String {
    if text.contains(['\n', '\r']) { block(text, indent) } else { code(text) }
}

/// Returns lines as a block of code. `indent` is that of the text around it.
pub fn block(text: &str, indent: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    let lines = std::iter::once(fence.as_str()).chain(text.lines()).chain([fence.as_str()]);
    lines.map(|line| format!("\n{indent}{line}")).collect()
}

/// Returns a text for HTML within Markdown.
pub fn html(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::new();
    for (n, c) in chars.iter().enumerate() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '\n' | '\r' => out.push(' '),
            c => out.push(*c),
        }
        if is_reference(&chars, n) {
            out += APART;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_as_it_is() {
        for (name, shown) in [
            ("a `b` c", "a \\`b\\` c"),
            ("``", "\\`\\`"),
            ("&copy; &#65; R&D; a & b", "&amp;copy; &amp;#<!-- -->65; R&amp;D; a & b"),
            ("  `a` b", "\\`a\\` b"),
            ("a\n`b`", "a \\`b\\`"),
            ("@name a@b.org (@x)", "@<!-- -->name a@<!-- -->b.org (@<!-- -->x)"),
            ("GH-12 gh-1 xgh-1 GH-x", "GH-<!-- -->12 gh-<!-- -->1 xgh-1 GH-x"),
            ("https://a.org www.a.org", "https:<!-- -->//a.org www.<!-- -->a.org"),
            ("94950f34 94950f3g 1,234,567 abcdef", "9<!-- -->4950f34 94950f3g 1,234,567 abcdef"),
            (":b: a::b 1:2", ":<!-- -->b: a::b 1:2"),
            ("$a$ b", "<span>$</span>a<span>$</span> b"),
            ("$a", "$a"),
            ("#12 x/y#3 #PF", "#<!-- -->12 x/y#<!-- -->3 #PF"),
            ("# x", "\\# x"),
            ("- x", "\\- x"),
            ("1. x", "1\\. x"),
            ("> x", "\\> x"),
            ("-1.5% +3", "-1.5% +3"),
            ("~a~ <b> *c*", "\\~a\\~ &lt;b> \\*c\\*"),
            ("  __x64_sys_read", "__x64_sys_read"),
        ] {
            assert_eq!(plain(name), shown);
        }
        assert_eq!(cell("a|b"), "a\\|b");
        assert_eq!(html("<@x> & #1"), "&lt;@<!-- -->x&gt; &amp; #<!-- -->1");
    }

    #[test]
    fn a_command_line_can_be_copied() {
        assert_eq!(verbatim("a *b* | <c> @d_e_", ""), "`a *b* | <c> @d_e_`");
        assert_eq!(verbatim("sh -c 'a\nb'", "  "), "\n  ```\n  sh -c 'a\n  b'\n  ```");
        assert_eq!(verbatim("```\n", ""), "\n````\n```\n````");
    }

    #[test]
    fn code_of_a_sentence_stays_and_that_of_a_name_does_not() {
        let text = "a`b`: `x=<1>` has no effect";
        assert_eq!(sentence(text, &[]), "a`b`: `x=<1>` has no effect");
        assert_eq!(sentence(text, &["A", "a`b`"]), "a\\`b\\`: `x=<1>` has no effect");
        // Text between backticks that may belong to a name is not taken for code.
        assert_eq!(sentence("``<b>``", &[]), "\\`\\`&lt;b>\\`\\`");
        assert_eq!(sentence("a` `x`", &["b"]), "a\\` \\`x\\`");
    }
}
