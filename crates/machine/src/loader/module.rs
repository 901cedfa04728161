//! Modules: files that are loaded beside an image, with a command line each.

/// A module, or an initial RAM disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// What it contains.
    pub bytes: Vec<u8>,
    /// Its command line: [`Module::NAME`] and arguments.
    pub cmdline: String,
    /// The file with its arguments as the user gave them, for [`crate::Machine::description`]: the guest and the ledger are not told what a file is
    /// called here.
    pub file: String,
}

impl Module {
    /// What each module is called where a guest asks for it, in place of a file's name.
    pub const NAME: &str = "initrd";

    /// The module that `file arguments` says, with these contents.
    pub fn new(bytes: Vec<u8>, file: &str) -> Self {
        let arguments = file.find(' ').map_or("", |at| &file[at..]);
        Self { bytes, cmdline: format!("{}{arguments}", Self::NAME), file: file.to_owned() }
    }

    /// What follows the name in its command line.
    pub fn arguments(&self) -> &str {
        self.cmdline.split_once(' ').map_or("", |(_, arguments)| arguments)
    }
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
