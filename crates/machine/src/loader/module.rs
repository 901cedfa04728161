//! Modules: files that are loaded with an image, each with a command line.

/// A module, or an initial RAM disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Contents.
    pub bytes: Vec<u8>,
    /// Command line: [`Module::NAME`] and arguments.
    pub cmdline: String,
    /// File name and arguments as given by the user, for [`crate::Machine::description`]. Neither the guest nor the
    /// ledger gets the name of a file on this host.
    pub file: String,
}

impl Module {
    /// Name of every module for a guest that asks for it, in place of a file name.
    pub const NAME: &str = "initrd";

    /// Creates the module for `file arguments`, with these contents.
    pub fn new(bytes: Vec<u8>, file: &str) -> Self {
        let arguments = file.find(' ').map_or("", |at| &file[at..]);
        Self { bytes, cmdline: format!("{}{arguments}", Self::NAME), file: file.to_owned() }
    }

    /// Returns the arguments, which follow the name in the command line.
    pub fn arguments(&self) -> &str {
        self.cmdline.split_once(' ').map_or("", |(_, arguments)| arguments)
    }
}

/// Splits `file arguments,file arguments`. Two commas stand for one that does not separate.
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

/// Joins modules: the inverse of [`split_modules`].
pub fn join_modules<'a>(modules: impl Iterator<Item = &'a str>) -> String {
    modules.map(|module| module.replace(',', ",,")).collect::<Vec<_>>().join(",")
}
