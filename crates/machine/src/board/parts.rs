//! Configuration of a board.

use crate::console;
use crate::devices::Clock;
use crate::devices::lapic::{self, Lapic, Lapics};
use crate::devices::network::SharedNetwork;
use crate::devices::rtc::{self, Rtc};
use crate::ixgbe::Ixgbe;
use crate::memory::GuestRam;
use crate::pci::option_rom::OptionRom;
use crate::pci::{PciBus, PciError};
use crate::virtio::{Block, Disk, Entropy, Files, Net, Ports, VirtioPci};
use ledger::profile::{Profile, Vendor};
use network::headers::Mac;
use network::options::{Model, Nic};
use network::{Network, Plug};
use std::sync::{Arc, Mutex};

/// Devices in addition to those of every board, and initial values for the others.
pub struct Parts {
    /// Virtio block devices, in order.
    pub disks: Vec<Disk>,
    /// True if the guest's writes to disks stay in memory: the disks remain unchanged, and the machine can be saved.
    pub overlay: bool,
    /// Initial time of the real-time clock, in seconds since 1970.
    pub rtc_start: u64,
    /// Seed of the virtio entropy device.
    pub seed: u64,
    /// Seed of the values of RDRAND and RDSEED. A kernel that trusts the two instructions randomizes its code and data
    /// addresses with them.
    pub random: u64,
    /// True if the paravirtual interface is offered: its code is also in an expansion ROM.
    pub paravirt: bool,
    /// Console that receives typed input.
    pub console: console::Console,
    /// Workload for a guest that asks for it.
    pub workload: String,
    /// Network devices, in order.
    pub nics: Vec<Nic>,
    /// Index of the machine among those that share bridges, if there are others.
    pub member: Option<u8>,
    /// Names of the channels between guest and host, which are ports of a separate virtio console device. Without names
    /// there is no such device.
    pub channels: Vec<String>,
    /// Files for the guest, behind a virtio file system device.
    pub files: Option<guestfs::Server>,
}

impl Parts {
    /// Returns the address of a NIC. Machines that share bridges have different addresses, unless the user sets equal
    /// ones.
    fn address(&self, number: usize) -> Mac {
        self.nics[number].address(self.member.unwrap_or(0), number)
    }

    /// Creates the network to which the NICs are connected.
    pub(super) fn network(&self) -> SharedNetwork {
        let nics = self.nics.iter().enumerate().map(|(number, nic)| (nic, self.address(number)));
        let network = match self.member {
            Some(member) => Network::member(member.into(), nics),
            None => Network::new(nics),
        };
        SharedNetwork(Arc::new(Mutex::new(network)))
    }
}

impl Default for Parts {
    fn default() -> Self {
        let console = console::Console::default();
        Self {
            disks: Vec::new(),
            overlay: false,
            rtc_start: rtc::DEFAULT_START,
            seed: 0,
            random: 0,
            paravirt: false,
            console,
            workload: String::new(),
            nics: Vec::new(),
            member: None,
            channels: Vec::new(),
            files: None,
        }
    }
}

/// Parameters for the constructors of devices.
pub struct Maker<'a> {
    /// The board's clock.
    pub clock: Clock,
    /// Number of processors.
    pub cpus: usize,
    /// Guest memory.
    pub ram: &'a GuestRam,
    /// The processors' profile.
    pub profile: &'a Profile,
    /// Parts that the board has in addition.
    pub parts: Parts,
    /// Network to which the NICs are connected.
    pub network: SharedNetwork,
    /// Device number of the device with channels on the PCI bus, after its creation.
    pub channels: Option<u8>,
}

impl Maker<'_> {
    /// Creates a local APIC for each processor.
    pub fn lapics(&self) -> Lapics {
        let x2apic = self.profile.cpuid().iter().any(|l| l.leaf == 1 && l.ecx & 1 << 21 != 0);
        let lapic = |index: usize| {
            Lapic::new(lapic::LapicConfig {
                id: index as u32,
                bsp: index == 0,
                x2apic,
                physical_bits: u32::from(self.profile.physical_bits.value),
                clock: self.clock,
                timer_hz: lapic::TIMER_HZ,
            })
        };
        let mut lapics = Lapics((0..self.cpus).map(lapic).collect());
        lapics.as_firmware_leaves();
        lapics
    }

    /// Creates the real-time clock, whose memory describes the machine.
    pub fn rtc(&self) -> Rtc {
        let mut rtc = Rtc::new(self.clock, self.parts.rtc_start);
        rtc.describe_machine(self.ram.low_end(), self.ram.size() - self.ram.low_end(), self.cpus);
        rtc
    }

    /// Creates the PCI bus with its devices; the console is number [`super::CONSOLE`].
    pub fn pci(&mut self) -> Result<PciBus, PciError> {
        let mut pci = PciBus::new();
        pci.add(Box::new(VirtioPci::new(Ports::console())))?;
        pci.add(Box::new(VirtioPci::new(Entropy::new(self.parts.seed))))?;
        for (number, disk) in std::mem::take(&mut self.parts.disks).into_iter().enumerate() {
            let id = format!("tollgate{number}");
            let block = Block::new(Box::new(disk), &id);
            let block = if self.parts.overlay { block.with_overlay() } else { block };
            pci.add(Box::new(VirtioPci::new(block)))?;
        }
        for (number, nic) in self.parts.nics.iter().enumerate() {
            let plug = Plug::new(&self.network.0, number);
            let (mac, port) = (self.parts.address(number), Box::new(plug));
            match nic.model {
                Model::Virtio => pci.add(Box::new(VirtioPci::new(Net::new(nic, mac, port, self.clock))))?,
                Model::Ixgbe => pci.add(Box::new(Ixgbe::new(mac, port, self.clock)))?,
            };
        }
        if let Some(server) = self.parts.files.take() {
            pci.add(Box::new(VirtioPci::new(Files::new(server))))?;
        }
        if !self.parts.channels.is_empty() {
            let channels = Ports::channels(std::mem::take(&mut self.parts.channels));
            self.channels = Some(pci.add(Box::new(VirtioPci::new(channels)))?);
        }
        if self.parts.paravirt {
            let rom = hypervisor::paravirt::option_rom(self.profile.vendor == Vendor::Amd);
            pci.add(Box::new(OptionRom::new(rom)))?;
        }
        Ok(pci)
    }
}
