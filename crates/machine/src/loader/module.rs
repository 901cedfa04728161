//! Modules: files that are loaded beside an image, with a command line each.

/// A module, or an initial RAM disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// What it contains.
    pub bytes: Vec<u8>,
    /// The name of its file, and what follows it.
    pub cmdline: String,
}

/// Splits `file arguments,file arguments`. Two commas are one that does not separate.
pub fn split_modules(list: &str) -> Vec<String> {
    let mut modules = vec![String::new()];
    let mut rest = list.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ',' && rest.next_if_eq(&',').is_none() {
            modules.push(String::new());
        } else if let Some(last) = modules.last_mut() {
            last.push(c);
        }
    }
    modules
}

/// The inverse of [`split_modules`].
pub fn join_modules<'a>(modules: impl Iterator<Item = &'a str>) -> String {
    modules.map(|module| module.replace(',', ",,")).collect::<Vec<_>>().join(",")
}
