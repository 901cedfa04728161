//! The command `forms`: a core's table of forms, measured on this machine's processor.

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use difftest::timing::table::{self, Figures, Line, Ports};
use serde::Serialize;
use silicon::host::Processor;
use silicon::measure;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::PathBuf;
use uarch::CoreTable;

const EXAMPLES: &str = "\
Examples:
  difftest forms --core zen4 > zen5.forms                          a core of four integer pipes, measured
  difftest forms --core zen4 --set A0123=A012345,A0123 --issue 8   the same with two more pipes
  difftest forms --core zen4 --json                                the figures alone";

/// Measures what each form of instruction takes on this machine's processor, and writes a table of forms.
///
/// The forms are those of a known core, which also has the uops and the ports that time alone does not show. The
/// machine should be idle. Exits with status 2 if nothing could be measured.
#[derive(clap::Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct FormsOptions {
    /// Known core
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(CoreTable::names()))]
    core: String,
    /// Sets of ports that forms of a set of the known core may have here, the widest first (repeatable)
    #[arg(long = "set", value_name = "SET=SET,...")]
    sets: Vec<String>,
    /// Uops that enter the window a cycle; those of the known core without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    issue: Option<u32>,
    /// Only forms of this mnemonic (repeatable)
    #[arg(long, value_name = "NAME")]
    mnemonic: Vec<String>,
    /// Measurements of a form, of which the least counts
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
    /// Figures to use instead of measuring, as `--json` prints them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["times", "mnemonic"])]
    from: Option<PathBuf>,
    /// Figures as JSON instead of the table
    #[arg(long)]
    json: bool,
}

/// The figures, as `--json` prints them.
#[derive(Serialize, serde::Deserialize)]
struct Report {
    processor: Processor,
    core: String,
    forms: BTreeMap<String, Figures>,
}

/// Runs the command.
pub fn run(options: &FormsOptions) -> Result<bool> {
    let (_, base) = CoreTable::files(&options.core).context("the core is not built in")?;
    let core = CoreTable::named(&options.core)?;
    let mut base = table::read(base);
    if !options.mnemonic.is_empty() {
        let wanted = |name: &String| {
            let mnemonic = name.split(':').next().unwrap_or_default();
            options.mnemonic.iter().any(|wanted| mnemonic.eq_ignore_ascii_case(wanted))
        };
        base.retain(|name, _| wanted(name));
        if base.is_empty() {
            bail!("the core {} has no form of {}", options.core, options.mnemonic.join(", "));
        }
    }
    let mut ports =
        Ports { sets: BTreeMap::new(), issue: f64::from(options.issue.unwrap_or(core.parameters.front.issue)) };
    for text in &options.sets {
        let (of, here) = sets(text)?;
        if !base.values().any(|line| line.has_ports(&of)) {
            bail!("--set {text}: no form of {} has the ports {of}", options.core);
        }
        ports.sets.insert(of, here);
    }
    let report = match &options.from {
        Some(file) => {
            let text = std::fs::read(file).with_context(|| file.display().to_string())?;
            serde_json::from_slice(&text).with_context(|| file.display().to_string())?
        }
        None => Report {
            processor: Processor::of_host(),
            core: options.core.clone(),
            forms: measured(&base, options.times),
        },
    };
    if report.core != options.core {
        bail!("the figures are of the forms of {}: use --core {}", report.core, report.core);
    }
    if let Some((name, _)) = report.forms.iter().find(|(_, figures)| !figures.are_possible()) {
        bail!("the figures of {name} are not possible");
    }
    if report.forms.is_empty() {
        bail!("no form could be measured");
    }
    if options.json {
        serde_json::to_writer_pretty(std::io::stdout().lock(), &report)?;
        println!();
        return Ok(true);
    }
    let (forms, kept) = table::table(&base, &report.forms, &ports);
    print_table(&report, &core.parameters.title, &forms, &kept);
    Ok(true)
}

/// Parses `SET=SET,...`.
fn sets(text: &str) -> Result<(String, Vec<String>)> {
    let (of, here) = text.split_once('=').with_context(|| format!("--set {text} has no `=`"))?;
    let here: Vec<String> = here.split(',').map(str::to_owned).collect();
    let group = of.chars().next();
    if here.iter().any(|set| set.len() < 2 || set.chars().next() != group) {
        bail!("--set {text}: a set is the letter of its group and one or more ports, as in {of}");
    }
    Ok((of.to_owned(), here))
}

fn measured(base: &BTreeMap<String, Line>, times: u32) -> BTreeMap<String, Figures> {
    let options = silicon::Options::default();
    let cycles = |block: &[_]| {
        let figures = (0..times).filter_map(|_| measure::measure(block, &options).ok());
        figures.map(|figure| figure.cycles).min_by(f64::total_cmp)
    };
    let terminal = std::io::stderr().is_terminal();
    let figures = table::measure(base, cycles, |done, of| {
        if terminal && done % 16 == 0 {
            eprint!("\r{done} of {of} forms ");
        }
    });
    if terminal {
        eprintln!();
    }
    figures
}

fn print_table(report: &Report, title: &str, forms: &BTreeMap<String, Line>, kept: &BTreeSet<String>) {
    let Processor { name, family, model, .. } = &report.processor;
    println!(
        "# What the instructions of {name} (family {family:x}h, model {model:x}h) take: the forms of instructions, grouped by equal values."
    );
    println!("#");
    println!(
        "# Source: measured on that processor, {} of {} forms: `difftest forms --core {}`.",
        forms.len() - kept.len(),
        forms.len(),
        report.core
    );
    println!("# Uops, ports and the other forms are those of {title}.");
    print!("{}", table::write(forms));
}
