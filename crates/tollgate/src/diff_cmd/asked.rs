//! What each side is asked to be: A and B, or sides with names, which `--side` and `--scan` give.

use super::DiffArgs;
use super::scan::{self, Scan, Values};
use super::settings::Settings;
use super::sides::{Sides, is_single};
use crate::exec_runs::{self, options};
use lab::diff::several::{LONGEST_NAME, MOST_SIDES, is_name};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// A side as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Name of the side.
    pub name: String,
    /// Name of its files, without their endings.
    pub stem: String,
    /// Its kernel, if one was named.
    pub kernel: Option<String>,
    /// Options of `tollgate exec`, except for the kernel.
    pub options: Vec<OsString>,
    /// The options that are its own, for its title.
    pub differing: Vec<String>,
    /// Words for the command line of its kernel.
    pub words: String,
    /// The command.
    pub command: Vec<OsString>,
    /// The parameters that were replaced.
    pub parameters: Values,
}

/// `--side NAME[=SETTINGS]`, before parameters are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    name: String,
    settings: String,
}

impl Named {
    /// Parses the option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, settings) = text.split_once('=').unwrap_or((text, ""));
        if name.trim().is_empty() {
            return Err("a side has the form NAME or NAME=SETTINGS".to_owned());
        }
        Ok(Self { name: name.to_owned(), settings: settings.to_owned() })
    }
}

/// Returns both sides of a comparison of two.
pub fn two(args: &DiffArgs) -> [Asked; 2] {
    [0, 1].map(|side| {
        let given = args.kernels.get(side).map(|name| name.to_string_lossy().into_owned());
        let mut options = [args.sides.common.clone(), args.sides.own[side].clone()].concat();
        options.retain(|option| !is_kernel(option));
        Asked {
            name: ["A", "B"][side].to_owned(),
            stem: ["a", "b"][side].to_owned(),
            kernel: given.or_else(|| args.sides.kernel(side).map(str::to_owned)),
            options,
            differing: args.sides.differing(side),
            words: [&args.a, &args.b][side].trim().to_owned(),
            command: args.command.clone(),
            parameters: Values::new(),
        }
    })
}

fn is_kernel(option: &OsString) -> bool {
    option.to_string_lossy().starts_with("--kernel=")
}

/// Returns the name of an option on a command line.
fn name_of(option: &OsString) -> String {
    let text = option.to_string_lossy();
    text.trim_start_matches("--").split('=').next().unwrap_or_default().to_owned()
}

/// Returns the options of a side: its own, and those of all sides, which an option of its own that takes one value replaces.
fn merged(common: &[OsString], own: &[OsString]) -> Vec<OsString> {
    let single: BTreeSet<String> =
        options().iter().filter(|arg| is_single(arg)).filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
    let replaced: BTreeSet<String> = own.iter().map(name_of).filter(|name| single.contains(name)).collect();
    let kept = common.iter().filter(|option| !replaced.contains(&name_of(option)) && !own.contains(option));
    kept.chain(own).cloned().collect()
}

/// Returns the name of a side whose parameters have values.
fn name(named: Option<&Named>, values: &Values) -> String {
    let Some(Named { name, .. }) = named else { return scan::text(values.iter()) };
    let unnamed = values.iter().filter(|(parameter, _)| !name.contains(&format!("{{{parameter}}}")));
    let unnamed = scan::text(unnamed);
    let name = scan::replaced(name, values);
    if unnamed.is_empty() { name } else { format!("{name}:{unnamed}") }
}

/// Returns the name of a side's files. Other sides have `taken` names.
fn stem(name: &str, taken: &[Asked]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._=+,-".contains(c) { c } else { '_' };
    let stem: String = name.chars().map(plain).collect();
    let stem = if stem.starts_with(['.', '-']) { format!("_{stem}") } else { stem };
    let is_free = |stem: &String| !taken.iter().any(|other| other.stem == *stem);
    let numbered = (2..).map(|number| format!("{stem}_{number}"));
    std::iter::once(stem.clone()).chain(numbered).find(is_free).expect("there are more numbers than sides")
}

/// Returns sides with names: one for each `--side` and for each value of the parameters that stand in its settings or in the command.
pub fn several(named: &[Named], scans: &[Scan], sides: &Sides, command: &[OsString]) -> Result<Vec<Asked>, String> {
    if let Some(option) = sides.own.iter().flatten().next() {
        return Err(format!("--{} is given twice: with --side, a side has its own in its settings", name_of(option)));
    }
    if let Some(twice) = (1..scans.len()).find(|at| scans[..*at].iter().any(|scan| scan.name == scans[*at].name)) {
        return Err(format!("--scan {} is given twice", scans[twice].name));
    }
    let shared: Vec<&str> = command.iter().chain(&sides.common).filter_map(|word| word.to_str()).collect();
    let templates: Vec<Option<&Named>> = if named.is_empty() { vec![None] } else { named.iter().map(Some).collect() };
    let stands = |scan: &Scan, template: &Option<&Named>| {
        let own = template.iter().any(|named| scan.is_in(&named.name) || scan.is_in(&named.settings));
        own || shared.iter().any(|text| scan.is_in(text))
    };
    if let Some(unused) = scans.iter().find(|scan| !templates.iter().any(|template| stands(scan, template))) {
        let name = &unused.name;
        let values = unused.values.join(",");
        let program = command.first().map_or("COMMAND".into(), |word| word.to_string_lossy());
        return Err(format!(
            "--scan {name}: {{{name}}} stands neither in the command nor in settings: write it where the values belong, for instance `--scan {name}={values} -- {program} {{{name}}}`"
        ));
    }
    let used = |template: &Option<&Named>| scans.iter().filter(|scan| stands(scan, template)).collect::<Vec<_>>();
    let number = |template: &Option<&Named>| {
        used(template).iter().try_fold(1_usize, |product, scan| product.checked_mul(scan.values.len()))
    };
    let count = templates.iter().try_fold(0_usize, |sum, template| sum.checked_add(number(template)?));
    if count.is_none_or(|count| count > MOST_SIDES) {
        let count = count.map_or_else(|| "more than can be counted".to_owned(), |count| count.to_string());
        return Err(format!("a comparison has at most {MOST_SIDES} sides, and the product of all values has {count}"));
    }
    let mut all: Vec<Asked> = Vec::new();
    for template in &templates {
        for values in scan::product(&used(template)) {
            let name = name(*template, &values);
            if !is_name(&name) {
                let begin: String = name.chars().take(LONGEST_NAME).collect();
                let more = if begin.len() < name.len() { "…" } else { "" };
                return Err(format!(
                    "the name of a side has at most {LONGEST_NAME} characters, and no control characters: {begin:?}{more}"
                ));
            }
            if all.iter().any(|other| other.name == name) {
                return Err(format!("two sides have the name '{name}'"));
            }
            let settings = template.map_or("", |named| named.settings.as_str());
            let settings = Settings::parse(&scan::replaced(settings, &values));
            let Settings { options: own, words } = settings.map_err(|error| format!("--side {name}: {error}"))?;
            let common: Vec<OsString> = sides.common.iter().map(|word| scan::replaced_in(word, &values)).collect();
            let mut options = merged(&common, &own);
            let kernel = exec_runs::value(options.iter(), "kernel").map(str::to_owned);
            options.retain(|option| !is_kernel(option));
            let differing = own.iter().filter(|option| !is_kernel(option));
            let differing = differing.map(|option| option.to_string_lossy().trim_start_matches('-').to_owned());
            all.push(Asked {
                stem: stem(&name, &all),
                name,
                kernel,
                differing: differing.collect(),
                options,
                words,
                command: command.iter().map(|word| scan::replaced_in(word, &values)).collect(),
                parameters: values,
            });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(named: &[&str], scans: &[&str], common: &[&str], command: &[&str]) -> Result<Vec<Asked>, String> {
        let named: Vec<Named> = named.iter().map(|text| Named::parse(text).unwrap()).collect();
        let scans: Vec<Scan> = scans.iter().map(|text| Scan::parse(text).unwrap()).collect();
        let sides = Sides { common: common.iter().map(OsString::from).collect(), ..Sides::default() };
        several(&named, &scans, &sides, &command.iter().map(OsString::from).collect::<Vec<_>>())
    }

    fn names(all: &[Asked]) -> Vec<&str> {
        all.iter().map(|side| side.name.as_str()).collect()
    }

    #[test]
    fn a_side_has_its_settings_and_those_of_all() {
        let sides = ["base", "off=mitigations=off pti=off", "icx=--cpu icx", "new=--kernel backports nosmt"];
        let all = asked(&sides, &[], &["--kernel=cloud", "--cpu=skx", "--env=X=1"], &["true"]).unwrap();
        assert_eq!(names(&all), ["base", "off", "icx", "new"]);
        assert_eq!(all[0].options, ["--cpu=skx", "--env=X=1"].map(OsString::from));
        assert_eq!((all[1].words.as_str(), &all[1].kernel), ("mitigations=off pti=off", &Some("cloud".to_owned())));
        assert_eq!(all[2].options, ["--env=X=1", "--cpu=icx"].map(OsString::from));
        assert_eq!(all[2].differing, ["cpu=icx"]);
        assert_eq!((all[3].kernel.as_deref(), all[3].words.as_str()), (Some("backports"), "nosmt"));
        assert!(all[3].differing.is_empty(), "the title begins with the kernel");
    }

    #[test]
    fn a_scan_makes_a_side_for_each_value() {
        let all = asked(&[], &["g=1,2"], &[], &["hackbench", "-g", "{g}"]).unwrap();
        assert_eq!(names(&all), ["g=1", "g=2"]);
        assert_eq!(all[1].command, ["hackbench", "-g", "2"].map(OsString::from));
        assert_eq!(all[1].parameters, [("g".to_owned(), "2".to_owned())]);
        let all = asked(&["base", "{m}M=--memory {m}M"], &["m=256,512"], &[], &["true"]).unwrap();
        assert_eq!(names(&all), ["base", "256M", "512M"], "a side without the parameter is one side");
        assert_eq!(all[2].options, ["--memory=512M"].map(OsString::from));
        let all = asked(&["on", "off=pti=off"], &["g=1,2", "l=3"], &[], &["x", "{g}", "{l}"]).unwrap();
        assert_eq!(names(&all), ["on:g=1,l=3", "on:g=2,l=3", "off:g=1,l=3", "off:g=2,l=3"]);
        let all = asked(&[], &["f=/a/b,_a_b"], &[], &["cat", "{f}"]).unwrap();
        assert_eq!(all.iter().map(|side| side.stem.as_str()).collect::<Vec<_>>(), ["f=_a_b", "f=_a_b_2"]);
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |named: &[&str], scans: &[&str]| asked(named, scans, &[], &["x", "{g}"]).unwrap_err();
        assert_eq!(wrong(&["a", "a"], &[]), "two sides have the name 'a'");
        assert_eq!(
            wrong(&["a"], &["h=1,2"]),
            "--scan h: {h} stands neither in the command nor in settings: write it where the values belong, for instance `--scan h=1,2 -- x {h}`"
        );
        assert_eq!(wrong(&[], &["g=1", "g=2"]), "--scan g is given twice");
        assert!(wrong(&["a=--cpuu x"], &[]).starts_with("--side a: unexpected argument '--cpuu'"));
        let many: Vec<String> = (0..9).map(|number| number.to_string()).collect();
        let many = format!("g={}", many.join(","));
        assert!(wrong(&["a={h}", "b={h}"], &[&many, &many.replace('g', "h")]).ends_with("has 162"));
        let long = wrong(&[&"x".repeat(1 << 20)], &[]);
        assert!(long.starts_with("the name of a side has at most 64 characters") && long.len() < 200, "{long}");
        let sides = Sides { own: [vec!["--cpu=skx".into()], vec!["--cpu=icx".into()]], ..Sides::default() };
        let error = several(&[Named::parse("a").unwrap()], &[], &sides, &[]).unwrap_err();
        assert_eq!(error, "--cpu is given twice: with --side, a side has its own in its settings");
    }
}
