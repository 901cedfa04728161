//! Remarks on several sides that say the same.

use crate::format::listed;

/// A remark on no side or on several.
struct Remark<'a> {
    /// The sides that it begins with.
    names: Vec<&'a str>,
    /// The shares that it begins with behind them: the least and the greatest.
    shares: Option<[String; 2]>,
    rest: String,
}

/// Splits a share such as `5.1%` from the beginning of a text.
fn share(text: &str) -> Option<(f64, &str, &str)> {
    let end = text.find('%')? + 1;
    let (share, rest) = text.split_at(end);
    let value = share.strip_suffix('%')?.parse::<f64>().ok().filter(|value| value.is_finite())?;
    Some((value, share, rest))
}

impl<'a> Remark<'a> {
    fn new(text: &str, names: &[&'a str]) -> Self {
        let rests = names.iter().filter_map(|name| Some((*name, text.strip_prefix(name)?.strip_prefix(": ")?)));
        // The name of a side may begin another one.
        let Some((name, rest)) = rests.max_by_key(|(name, _)| name.len()) else {
            return Self { names: Vec::new(), shares: None, rest: text.to_owned() };
        };
        let (shares, rest) = match share(rest) {
            Some((_, share, rest)) => (Some([share, share].map(str::to_owned)), rest),
            None => (None, rest),
        };
        Self { names: vec![name], shares, rest: rest.to_owned() }
    }

    /// Returns true if another remark says the same, of other sides or with another share.
    fn is_alike(&self, other: &Self) -> bool {
        self.rest == other.rest
            && self.names.is_empty() == other.names.is_empty()
            && self.shares.is_some() == other.shares.is_some()
    }

    fn add(&mut self, other: Self) {
        let value = |text: &str| share(text).map_or(0.0, |(value, ..)| value);
        self.names.extend(other.names.into_iter().filter(|name| !self.names.contains(name)).collect::<Vec<_>>());
        if let (Some([least, most]), Some([share, _])) = (&mut self.shares, other.shares) {
            if value(&share) < value(least) {
                *least = share;
            } else if value(&share) > value(most) {
                *most = share;
            }
        }
    }

    fn text(self) -> String {
        let shares = self.shares.map_or_else(String::new, |[least, most]| match least == most {
            true => least,
            false => format!("{least} to {most}"),
        });
        match self.names.is_empty() {
            true => self.rest,
            false => format!("{}: {shares}{}", listed(&self.names), self.rest),
        }
    }
}

/// Returns texts of which each is there once: one that holds for several sides begins with all their names, and with a range if their shares differ.
pub fn gathered(texts: Vec<String>, names: &[&str]) -> Vec<String> {
    let mut all: Vec<Remark> = Vec::new();
    for text in texts {
        let remark = Remark::new(&text, names);
        match all.iter_mut().find(|other| other.is_alike(&remark)) {
            Some(other) => other.add(remark),
            None => all.push(remark),
        }
    }
    all.into_iter().map(Remark::text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_on_several_sides_is_one_remark() {
        let texts = ["A: it is slow.", "A note.", "A2: it is slow.", "b: it is fast.", "A note.", "b: it is slow."];
        let found = gathered(texts.map(str::to_owned).to_vec(), &["A", "A2", "b"]);
        assert_eq!(found, ["A, A2 and b: it is slow.", "A note.", "b: it is fast."]);
    }

    #[test]
    fn shares_of_several_sides_are_a_range() {
        let texts = ["A: 5.11% of it.", "B: 5.14% of it.", "C: 4% of it.", "C: 4% of something else.", "5% of nobody."];
        let found = gathered(texts.map(str::to_owned).to_vec(), &["A", "B", "C"]);
        assert_eq!(found, ["A, B and C: 4% to 5.14% of it.", "C: 4% of something else.", "5% of nobody."]);
    }
}
