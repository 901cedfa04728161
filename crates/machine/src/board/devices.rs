//! The devices that every board has, one line each.

use crate::device::{At, Device, DeviceContext};
use crate::devices::debug_exit::ExitPorts;
use crate::devices::fw_cfg::FwCfg;
use crate::devices::i8042::I8042;
use crate::devices::ioapic::IoApic;
use crate::devices::lapic::Lapics;
use crate::devices::marker::Marker;
use crate::devices::network::SharedNetwork;
use crate::devices::pic::Pic;
use crate::devices::pit::Pit;
use crate::devices::pm::Pm;
use crate::devices::port80::DebugPorts;
use crate::devices::pvpanic::PvPanic;
use crate::devices::reset::ResetPorts;
use crate::devices::rtc::Rtc;
use crate::devices::serial::Serial;
use crate::devices::status::StatusPort;
use crate::devices::testdev::TestDevice;
use crate::devices::workload::Workload;
use crate::pci::PciBus;
use ledger::Ticks;

use super::BoardError;
use super::parts::Maker;

/// Defines the set of devices: the name of each, its type, and its constructor. Accesses are dispatched by device
/// number, and calls are direct.
macro_rules! devices {
    ($maker:ident: $($name:ident: $type:ty = $make:expr;)*) => {
        /// Number of a device.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Id { $($name),* }

        impl Id {
            /// All devices, in their order.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the name of the device's state.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }

        /// All devices.
        #[allow(missing_docs)]
        pub struct Devices { $(pub $name: $type),* }

        impl Devices {
            /// Creates the devices in the state in which firmware leaves them.
            pub fn new($maker: &mut Maker) -> Result<Self, BoardError> {
                Ok(Self { $($name: $make),* })
            }

            /// Returns a device for inspection.
            pub fn look(&self, id: Id) -> &dyn Device {
                match id { $(Id::$name => &self.$name),* }
            }

            /// Returns a device.
            pub fn get(&mut self, id: Id) -> &mut dyn Device {
                match id { $(Id::$name => &mut self.$name),* }
            }

            /// Reads from a device.
            #[inline]
            pub fn read(&mut self, id: Id, at: At, ctx: &mut DeviceContext, events: &mut Events) -> u64 {
                match id {
                    $(Id::$name => {
                        let value = Device::read(&mut self.$name, at, ctx);
                        events.set(id, Device::next_event(&self.$name));
                        value
                    })*
                }
            }

            /// Writes to a device.
            #[inline]
            pub fn write(&mut self, id: Id, at: At, value: u64, ctx: &mut DeviceContext, events: &mut Events) {
                match id {
                    $(Id::$name => {
                        Device::write(&mut self.$name, at, value, ctx);
                        events.set(id, Device::next_event(&self.$name));
                    })*
                }
            }
        }
    };
}

// The order of this list is the order in which devices advance and report their lines.
devices! { maker:
    pic: Pic = Pic::as_firmware_leaves();
    ioapic: IoApic = IoApic::new(super::Board::IO_APIC_ID);
    lapics: Lapics = maker.lapics();
    pit: Pit = Pit::as_firmware_leaves(maker.clock, 0);
    i8042: I8042 = I8042::new();
    serial: Serial = Serial::new();
    rtc: Rtc = maker.rtc();
    pm: Pm = Pm::new(maker.clock, false);
    testdev: TestDevice = TestDevice::new();
    pci: PciBus = maker.pci()?;
    reset: ResetPorts = ResetPorts::new();
    exit: ExitPorts = ExitPorts::default();
    status: StatusPort = StatusPort;
    pvpanic: PvPanic = PvPanic;
    fw_cfg: FwCfg = FwCfg::new(maker.ram.size(), maker.cpus as u16);
    marker: Marker = Marker::new(maker.cpus);
    debug: DebugPorts = DebugPorts::default();
    workload: Workload = Workload::new(&maker.parts.workload);
    network: SharedNetwork = maker.network.clone();
}

/// Time of the next event of each device, and of the first of these events.
#[derive(Clone, Debug)]
pub struct Events {
    at: [Ticks; Id::ALL.len()],
    next: Ticks,
}

impl Default for Events {
    fn default() -> Self {
        Self { at: [Ticks::MAX; Id::ALL.len()], next: Ticks::MAX }
    }
}

impl Events {
    /// Sets the time of a device's next event.
    #[inline]
    pub fn set(&mut self, id: Id, event: Option<Ticks>) {
        let event = event.unwrap_or(Ticks::MAX);
        let at = &mut self.at[id as usize];
        if *at != event {
            *at = event;
            self.next = self.at.iter().copied().min().unwrap_or(Ticks::MAX);
        }
    }

    /// Returns the time of the first event.
    #[inline]
    pub fn next(&self) -> Option<Ticks> {
        (self.next != Ticks::MAX).then_some(self.next)
    }
}
