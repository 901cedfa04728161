//! Routing of interrupt messages to local APICs.

use crate::devices::ioapic::{Delivery, InterruptMessage, Target};

use super::Lapic;

const BROADCAST: u32 = 0xff;
const BROADCAST_X2APIC: u32 = u32::MAX;

impl Lapic {
    fn matches(&self, message: &InterruptMessage) -> bool {
        match message.target {
            Target::All => true,
            Target::AllBut(id) => id != self.id(),
            Target::Only(id) => id == self.id(),
            Target::Physical(id) => self.matches_physical(id, message.wide),
            Target::Logical(id) => self.matches_logical(id, message.wide),
        }
    }

    /// Returns true if a physical destination includes this APIC. An 8-bit 0xff addresses all APICs, even x2APICs: I/O
    /// APICs and MSIs have no other broadcast ID.
    fn matches_physical(&self, id: u32, wide: bool) -> bool {
        let broadcast = if wide { BROADCAST_X2APIC } else { BROADCAST };
        if id == broadcast {
            return true;
        }
        if self.is_x2apic() { id == self.id() } else { id & 0xff == self.id() & 0xff }
    }

    fn matches_logical(&self, id: u32, wide: bool) -> bool {
        if id == if wide { BROADCAST_X2APIC } else { BROADCAST } {
            return true;
        }
        if self.is_x2apic() {
            return id >> 16 == self.ldr >> 16 && id & self.ldr & 0xffff != 0;
        }
        let own = self.ldr >> 24;
        match self.dfr >> 28 {
            0xf => id & own != 0,
            0x0 => id >> 4 == own >> 4 && id & own & 0xf != 0,
            _ => false,
        }
    }
}

/// Delivers a message. Returns true if an APIC accepted it. For lowest priority, the first of the candidates with the
/// lowest processor priority gets the message.
pub fn route(lapics: &mut [Lapic], message: &InterruptMessage) -> bool {
    if message.delivery == Delivery::LowestPriority {
        let chosen =
            lapics.iter_mut().filter(|lapic| lapic.is_active() && lapic.matches(message)).min_by_key(|l| l.ppr());
        return chosen.map(|lapic| lapic.receive(message)).is_some();
    }
    let mut accepted = false;
    for lapic in lapics.iter_mut().filter(|lapic| lapic.is_enabled() && lapic.matches(message)) {
        lapic.receive(message);
        accepted = true;
    }
    accepted
}
