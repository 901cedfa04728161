//! The forms of a result, such as JSON: one is printed, and any number of them are written to files.

use crate::output::{Named, OutputFile};
use crate::table::emit;
use crate::usage::WrongArguments;
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name of standard output, as programs that write files have it.
pub const OUTPUT: &str = "-";

/// The place of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Output,
    /// A file.
    File(PathBuf),
}

impl Target {
    /// Parses the value of an option.
    pub fn parse(value: OsString) -> Result<Self, String> {
        match value {
            value if value == OUTPUT => Ok(Self::Output),
            value if value.is_empty() => Err("the name of the file is empty".to_owned()),
            value => Ok(Self::File(value.into())),
        }
    }

    fn file(&self) -> Option<&Path> {
        match self {
            Self::Output => None,
            Self::File(path) => Some(path),
        }
    }
}

/// Returns the parser of an option's value.
pub fn target() -> impl TypedValueParser<Value = Target> {
    OsStringValueParser::new().try_map(Target::parse)
}

/// A form that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form<'a, K> {
    /// The option.
    pub option: &'static str,
    /// The form itself.
    pub kind: K,
    /// The place.
    pub target: &'a Target,
}

/// Returns a form if its option is given.
pub fn form<'a, K>(option: &'static str, kind: K, target: &'a Option<Target>) -> Option<Form<'a, K>> {
    target.as_ref().map(|target| Form { option, kind, target })
}

/// Forms that were asked for.
pub struct Forms<'a, K>(Vec<Form<'a, K>>);

impl<'a, K: Copy> Forms<'a, K> {
    /// Takes the forms that were asked for. Standard output has room for one.
    pub fn new(forms: impl IntoIterator<Item = Form<'a, K>>) -> Result<Self, WrongArguments> {
        let forms: Vec<Form<K>> = forms.into_iter().collect();
        let mut printed = forms.iter().filter(|form| form.target.file().is_none());
        match (printed.next(), printed.next()) {
            (Some(one), Some(other)) => {
                let (one, other) = (one.option, other.option);
                let both =
                    if one == other { format!("{one} is given twice") } else { format!("{one} and {other} are given") };
                Err(WrongArguments::new(format!(
                    "{both}, and one result is printed: write the other one to a file, for instance by {other}=FILE"
                )))
            }
            _ => Ok(Self(forms)),
        }
    }

    /// Returns the form that is printed, if it is not the text for people.
    pub fn printed(&self) -> Option<K> {
        self.0.iter().find(|form| form.target.file().is_none()).map(|form| form.kind)
    }

    /// Returns the files, with their options.
    pub fn named(&self) -> impl Iterator<Item = Named<'a>> + '_ {
        self.0.iter().filter_map(|form| Some((form.option, form.target.file()?)))
    }

    /// Prepares the files.
    pub fn create(&self) -> Result<Prepared<K>> {
        let files = self.0.iter().filter_map(|form| Some((form.kind, form.target.file()?)));
        let files = files.map(|(kind, path)| Ok((kind, OutputFile::create(path, "result")?)));
        Ok(Prepared { printed: self.printed(), files: files.collect::<Result<_>>()? })
    }
}

/// Forms whose files can be written.
pub struct Prepared<K> {
    printed: Option<K>,
    files: Vec<(K, OutputFile)>,
}

impl<K: Copy> Prepared<K> {
    /// Returns the form that is printed, if it is not the text for people.
    pub fn printed(&self) -> Option<K> {
        self.printed
    }

    /// Prints one form, or the text for people, and writes the files.
    pub fn show(self, form: impl Fn(K) -> Result<String>, text: impl FnOnce() -> String) -> Result<()> {
        emit(&self.printed.map_or_else(|| Ok(text()), &form)?)?;
        self.files.into_iter().try_for_each(|(kind, file)| file.write(form(kind)?.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_form_is_printed_and_the_others_are_in_files() {
        let form = |option, target| Form { option, kind: option, target };
        let (output, file) = (Target::Output, Target::File("a.json".into()));
        let forms = Forms::new([form("--json", &file), form("--csv", &output)]).unwrap();
        assert_eq!(forms.printed(), Some("--csv"));
        assert_eq!(forms.named().collect::<Vec<_>>(), [("--json", Path::new("a.json"))]);
        assert_eq!(Forms::new([form("--json", &file)]).unwrap().printed(), None, "the text is printed");
        let refused = |other| Forms::new([form("--json", &output), form(other, &output)]).err().unwrap().to_string();
        assert_eq!(
            refused("--csv"),
            "--json and --csv are given, and one result is printed: write the other one to a file, for instance by --csv=FILE"
        );
        assert!(refused("--json").starts_with("--json is given twice, "));
    }

    #[test]
    fn a_dash_is_standard_output() {
        let parsed = |text: &str| Target::parse(text.into());
        assert_eq!(parsed("-"), Ok(Target::Output));
        assert_eq!(parsed("-a"), Ok(Target::File("-a".into())));
        assert_eq!(parsed(""), Err("the name of the file is empty".to_owned()));
    }
}
