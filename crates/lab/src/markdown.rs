//! Texts in Markdown: what a user has named is shown as it is, and is neither a mark nor a reference to a person or an issue.

/// Separates the sign of a reference from its name. Services look for references in the text that Markdown has become, where a backslash has no effect.
const APART: &str = "<!-- -->";

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

/// Returns true if `@` or `#` begins a reference.
fn is_reference(c: char, before: Option<char>, after: Option<char>) -> bool {
    match c {
        '@' => !before.is_some_and(char::is_alphanumeric) && after.is_some_and(char::is_alphanumeric),
        _ => c == '#' && after.is_some_and(|c| c.is_ascii_digit()),
    }
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
    let text = text.replace(['\n', '\r'], " ");
    let chars: Vec<char> = text.trim_start().chars().collect();
    let code = code_in(&chars, names);
    let of_block = block_mark(&chars);
    let is_link = text.contains("](") || text.contains("][");
    let is_struck = text.matches('~').count() > 1;
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
            _ if mark => out.extend(['\\', *c]),
            _ => out.push(*c),
        }
        if is_reference(*c, before, after) {
            out += APART;
        }
    }
    out
}

/// Returns a text that has no marks of its own.
pub fn plain(text: &str) -> String {
    sentence(text, &[text])
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
        if is_reference(*c, n.checked_sub(1).map(|n| chars[n]), chars.get(n + 1).copied()) {
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
            ("@name a@b (@x)", "@<!-- -->name a@b (@<!-- -->x)"),
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
    fn code_of_a_sentence_stays_and_that_of_a_name_does_not() {
        let text = "a`b`: `x=<1>` has no effect";
        assert_eq!(sentence(text, &[]), "a`b`: `x=<1>` has no effect");
        assert_eq!(sentence(text, &["A", "a`b`"]), "a\\`b\\`: `x=<1>` has no effect");
        // Text between backticks that may belong to a name is not taken for code.
        assert_eq!(sentence("``<b>``", &[]), "\\`\\`&lt;b>\\`\\`");
        assert_eq!(sentence("a` `x`", &["b"]), "a\\` \\`x\\`");
    }
}
