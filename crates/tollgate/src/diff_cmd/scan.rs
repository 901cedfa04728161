//! `--scan NAME=a,b,c`: values that replace `{NAME}` in the command and in the settings of sides.

use std::ffi::{OsStr, OsString};

/// A parameter and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Name of the parameter.
    pub name: String,
    /// Its values, at least one.
    pub values: Vec<String>,
}

/// A value of each parameter.
pub type Values = Vec<(String, String)>;

/// Splits a list at its commas. A comma behind a backslash is part of a value.
fn split(list: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut chars = list.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some(',')) => {
                chars.next();
                all.last_mut().expect("there is always a value").push(',');
            }
            (',', _) => all.push(String::new()),
            _ => all.last_mut().expect("there is always a value").push(c),
        }
    }
    all
}

impl Scan {
    /// Parses `NAME=a,b,c`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, list) = text
            .split_once('=')
            .ok_or("a scan has the form NAME=a,b,c, and {NAME} stands in the command: --scan n=1,2 -- COMMAND {n}")?;
        if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)) {
            return Err("the name of a parameter consists of letters, digits, - and _".to_owned());
        }
        let values = split(list);
        if let Some(twice) = (1..values.len()).find(|at| values[..*at].contains(&values[*at])) {
            return Err(format!("the value '{}' occurs twice", values[twice]));
        }
        Ok(Self { name: name.to_owned(), values })
    }

    /// Returns true if the parameter stands in a text.
    pub fn is_in(&self, text: &str) -> bool {
        text.contains(&format!("{{{}}}", self.name))
    }
}

/// Replaces parameters in a text, once: what a value contains is not replaced.
pub fn replaced(text: &str, values: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        out += before;
        let found = values.iter().find_map(|(name, value)| {
            let behind = from.strip_prefix('{')?.strip_prefix(name.as_str())?.strip_prefix('}')?;
            Some((value, behind))
        });
        (out, rest) = match found {
            Some((value, behind)) => (out + value, behind),
            None => (out + "{", &from[1..]),
        };
    }
    out + rest
}

/// Replaces parameters in a word of a command line. A word that is no text has none.
pub fn replaced_in(word: &OsStr, values: &[(String, String)]) -> OsString {
    word.to_str().map_or_else(|| word.to_owned(), |text| replaced(text, values).into())
}

/// Returns every combination of the values of parameters; the values of the last one change first.
pub fn product(scans: &[&Scan]) -> Vec<Values> {
    let mut all: Vec<Values> = vec![Vec::new()];
    for scan in scans {
        let with = |before: &Values| {
            let each = |value: &String| [&before[..], &[(scan.name.clone(), value.clone())]].concat();
            scan.values.iter().map(each).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// Writes values as `a=1,b=2`.
pub fn text<'a>(values: impl Iterator<Item = &'a (String, String)>) -> String {
    values.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_a_name_and_values() {
        let scan = Scan::parse("n=1,two words,a\\,b,").unwrap();
        assert_eq!(
            (scan.name.as_str(), &scan.values[..]),
            ("n", &["1", "two words", "a,b", ""].map(str::to_owned)[..])
        );
        for (wrong, why) in [("n", "form"), ("=1", "consists"), ("a b=1", "consists"), ("n=1,2,1", "'1' occurs twice")]
        {
            assert!(Scan::parse(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_parameter_is_replaced_where_it_stands_and_only_once() {
        let values = [("n".to_owned(), "{m}".to_owned()), ("m".to_owned(), "2".to_owned())];
        assert_eq!(replaced("-g {n} {m} {x} ${{n} {}{", &values), "-g {m} 2 {x} ${{m} {}{");
        assert_eq!(replaced_in("{m}".as_ref(), &values), "2");
    }

    #[test]
    fn several_parameters_have_every_combination() {
        let (a, b) = (Scan::parse("a=1,2").unwrap(), Scan::parse("b=x,y").unwrap());
        let all: Vec<String> = product(&[&a, &b]).iter().map(|values| text(values.iter())).collect();
        assert_eq!(all, ["a=1,b=x", "a=1,b=y", "a=2,b=x", "a=2,b=y"]);
        assert_eq!(product(&[]), [Values::new()]);
    }
}
