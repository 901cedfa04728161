//! One cell of the matrix: what is run for it.

use super::kernels::of_kernel;
use super::{Experiment, Guest, Image, Measure, Platform, PlatformName, Row, Settings, grown, kvm};
use crate::runner::quoted;

/// Seconds of the host's time after which a cell has failed, where the experiment says nothing.
const TIMEOUT: u32 = 900;

/// One cell of an experiment's matrix.
#[derive(Clone, Debug)]
pub struct Cell<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The row's position.
    pub row: usize,
    /// The column's position.
    pub column: usize,
    /// The settings of experiment, column and row together.
    pub settings: Settings,
}

impl<'a> Cell<'a> {
    /// The cell where a row and a column meet.
    pub(super) fn new(experiment: &'a Experiment, row: usize, column: usize) -> Self {
        let below = experiment.columns[column].settings.or(&experiment.defaults);
        let mut settings = experiment.rows[row].line.settings.or(&below);
        if let Some(kernel) = settings.kernel {
            settings.guest = settings.guest.map(|guest| of_kernel(&guest, kernel));
        }
        Self { experiment, row, column, settings }
    }

    /// Its name: row/column.
    pub fn id(&self) -> String {
        format!("{}/{}", self.row_of().line.id, self.experiment.columns[self.column].id)
    }

    /// Its name among the cells of all experiments.
    pub fn full_id(&self) -> String {
        format!("{}/{}", self.experiment.name, self.id())
    }

    /// Its row.
    pub fn row_of(&self) -> &'a Row {
        &self.experiment.rows[self.row]
    }

    /// Its guest.
    pub fn guest(&self) -> &'a Guest {
        let name = self.settings.guest.as_deref().unwrap_or_default();
        // The parser has checked that it is there.
        &self.experiment.guests[name]
    }

    /// The published figure.
    pub fn published(&self) -> Option<f64> {
        self.row_of().published.get(&self.column).copied()
    }

    /// Seconds of the host's time after which it has failed.
    pub fn timeout(&self) -> u32 {
        self.settings.timeout.unwrap_or(TIMEOUT)
    }

    /// The name of its profile.
    pub fn profile(&self) -> &str {
        self.settings.profile.as_deref().unwrap_or_default()
    }

    /// Its memory in this layout, as `--memory` names it; `None` for the usual one.
    pub fn memory(&self) -> Option<String> {
        let memory = self.settings.memory.as_deref();
        match self.experiment.grown {
            0 => memory.map(str::to_owned),
            // `tollgate run` refuses a text that is no size, as the experiment has it.
            mebibytes => grown::grown(memory, mebibytes).or_else(|| memory.map(str::to_owned)),
        }
    }

    /// The files it reads, as the experiment names them.
    pub fn files(&self) -> Vec<&'a str> {
        let guest = self.guest();
        let mut files = match &guest.image {
            Image::Bare(image) => vec![image.as_str()],
            Image::Linux { kernel, initrd } => vec![kernel.as_str()].into_iter().chain(initrd.as_deref()).collect(),
        };
        files.extend(guest.symbols.iter().map(String::as_str));
        files
    }

    /// The captures that its generators replay: they are input as its images are, but are not made by its guest's command.
    pub fn captures(&self) -> Vec<&str> {
        let options =
            self.nets().flat_map(|net| net.split_once([':', ','])).flat_map(|(_, options)| options.split(','));
        options.filter_map(|option| option.strip_prefix("replay=")).collect()
    }

    /// Its network devices, as `--net` names them.
    fn nets(&self) -> impl Iterator<Item = &str> {
        self.settings.net.iter().flat_map(|nets| nets.split_ascii_whitespace())
    }

    /// Arguments of `tollgate` that run it, but for where its ledger goes and when it has taken too long.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = self.boot_arguments();
        if let Some(workload) = &self.settings.workload {
            arguments.extend(["--workload".to_owned(), workload.clone()]);
        }
        // A boot that cells share needs no call stacks.
        if let Some(sample) = &self.experiment.sample {
            arguments.extend(["--sample".to_owned(), sample.clone()]);
        }
        if matches!(self.row_of().metric.measure, Measure::Sink { .. }) {
            arguments.push("--json".to_owned());
        }
        arguments
    }

    /// Those that decide how its guest boots: all that is there before the guest asks for its workload.
    pub fn boot_arguments(&self) -> Vec<String> {
        let guest = self.guest();
        let mut arguments = vec!["run".to_owned()];
        let mut option = |name: &str, value: &str| arguments.extend([format!("--{name}"), value.to_owned()]);
        match &guest.image {
            Image::Bare(image) => option("kernel", image),
            Image::Linux { kernel, initrd } => {
                option("kernel", kernel);
                if let Some(initrd) = initrd {
                    option("initrd", initrd);
                }
            }
        }
        let on_kvm = self.settings.platform == Some(Platform::Kvm);
        option("append", &self.command_line());
        option("cpu", self.profile());
        option("model", self.settings.model.unwrap_or_default().name());
        if let Some(memory) = self.memory() {
            option("memory", &memory);
        }
        match self.settings.cpus {
            _ if on_kvm => option("cpus", &kvm::host_processors(&self.settings).to_string()),
            Some(cpus) => option("cpus", &cpus.to_string()),
            None => {}
        }
        self.nets().for_each(|net| option("net", net));
        // Bare is what `tollgate run` does anyway.
        if let Some(Platform::Own(platform)) = self.settings.platform
            && platform != PlatformName::Bare
        {
            option("platform", platform.into());
        }
        if !on_kvm {
            self.settings.hypervisor_options().iter().for_each(|(name, value)| option(name, value));
        }
        for file in &guest.symbols {
            option("symbols", file);
        }
        arguments
    }

    /// The command line of its guest's kernel.
    pub fn command_line(&self) -> String {
        let on_kvm = self.settings.platform == Some(Platform::Kvm);
        // The parser has checked that KVM has counterparts to the switches.
        let words = if on_kvm { kvm::words(&self.settings).unwrap_or_default() } else { Vec::new() };
        self.settings.append.iter().chain(&words).map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// The command that runs it, as one would type it.
    pub fn command(&self) -> String {
        let arguments = self.arguments().iter().map(|word| quoted(word)).collect::<Vec<_>>();
        format!("tollgate {}", arguments.join(" "))
    }
}
