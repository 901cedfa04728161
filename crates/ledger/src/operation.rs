//! What a hypervisor's software does around VM exits, in the steps that a profile has a price for.

/// One step of a hypervisor's software: the parameter of [`crate::Family::Operation`].
///
/// A step's price is that of its code and of the memory it touches; what the processor does by itself (the exit, the entry, the
/// refilling of the TLB) is charged as events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Operation {
    /// All software around one exit and the entry after it: the guest's registers, the host's state, finding the handler, the
    /// checks before the next entry. VMREADs and VMWRITEs that every exit needs are in it.
    RunLoop,
    /// VMREAD beyond those of the run loop.
    Vmread,
    /// VMWRITE beyond those of the run loop.
    Vmwrite,
    /// One entry of the guest's page tables is read: its frame is looked up in the memory slots, the entry loaded and checked.
    GuestWalk,
    /// One entry of the hypervisor's own tables (shadow or EPT) is read on the way down.
    TableRead,
    /// One entry of the hypervisor's own tables is made and written.
    TableWrite,
    /// A page for a table of the hypervisor's own is taken from where such pages are kept, with what describes it.
    PageAllocate,
    /// A page for a table is filled with empty entries.
    PageZero,
    /// A page of a table goes back to where such pages are kept.
    PageFree,
    /// A shadow page is looked up by guest frame and role.
    HashLookup,
    /// An entry of a table is added to the reverse map of its frame.
    RmapAdd,
    /// An entry of a table is removed from the reverse map of its frame.
    RmapRemove,
    /// One entry is visited on the way along a reverse map.
    RmapWalk,
    /// Write permission is taken from one entry.
    WriteProtect,
    /// The memory slot of a guest frame is looked up, and through it the frame's host page.
    SlotLookup,
    /// A root is taken into use: found or made, and counted.
    RootLoad,
    /// A root is put down: its count goes down, and what it pinned is let go. Pages that are freed then are charged as such.
    RootFree,
    /// The role of the MMU is worked out anew, with the tables for the guest's permissions.
    RoleUpdate,
    /// One entry of an unsync shadow page is compared with the guest's entry, and put right.
    SyncEntry,
    /// INVEPT.
    Invept,
    /// INVVPID.
    Invvpid,
    /// The hypervisor decides on a TLB flush and asks for it; the instruction that flushes is charged as such.
    TlbFlush,
    /// One instruction is fetched, decoded and emulated.
    Emulate,
    /// A device model inside the kernel handles an access.
    DeviceKernel,
    /// Round trip to the user-space part of the hypervisor, with its device model.
    DeviceUser,
    /// An event is injected: chosen, acknowledged where it comes from, and put into the controls.
    Inject,
    /// The answer to a CPUID is looked up.
    CpuidLookup,
    /// An MSR is read or written for the guest.
    Msr,
    /// A hypercall is told from others and done.
    Hypercall,
    /// One frame is entered into, or cleared from, the log of written frames.
    DirtyLog,
    /// One set of state (FPU, or the MSRs that entries do not switch) is switched between the guest and the host.
    StateLoad,
    /// An interrupt or NMI window is asked for, or taken back.
    InterruptWindow,
    /// Software side of an access to a control register: its checks, shadows and consequences, without those charged by name.
    ControlRegister,
    /// The fixed part of handling a page fault or an EPT violation.
    Fault,
    /// The paravirtual state page of a virtual CPU is updated.
    ProfileMove,
}

impl Operation {
    /// Every operation, in the order of its discriminant.
    pub const ALL: [Operation; Operation::COUNT] = [
        Operation::RunLoop,
        Operation::Vmread,
        Operation::Vmwrite,
        Operation::GuestWalk,
        Operation::TableRead,
        Operation::TableWrite,
        Operation::PageAllocate,
        Operation::PageZero,
        Operation::PageFree,
        Operation::HashLookup,
        Operation::RmapAdd,
        Operation::RmapRemove,
        Operation::RmapWalk,
        Operation::WriteProtect,
        Operation::SlotLookup,
        Operation::RootLoad,
        Operation::RootFree,
        Operation::RoleUpdate,
        Operation::SyncEntry,
        Operation::Invept,
        Operation::Invvpid,
        Operation::TlbFlush,
        Operation::Emulate,
        Operation::DeviceKernel,
        Operation::DeviceUser,
        Operation::Inject,
        Operation::CpuidLookup,
        Operation::Msr,
        Operation::Hypercall,
        Operation::DirtyLog,
        Operation::StateLoad,
        Operation::InterruptWindow,
        Operation::ControlRegister,
        Operation::Fault,
        Operation::ProfileMove,
    ];
    /// How many operations there are.
    pub const COUNT: usize = 35;

    /// The identifier used in profiles and in machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::RunLoop => "run_loop",
            Operation::Vmread => "vmread",
            Operation::Vmwrite => "vmwrite",
            Operation::GuestWalk => "guest_walk",
            Operation::TableRead => "table_read",
            Operation::TableWrite => "table_write",
            Operation::PageAllocate => "page_allocate",
            Operation::PageZero => "page_zero",
            Operation::PageFree => "page_free",
            Operation::HashLookup => "hash_lookup",
            Operation::RmapAdd => "rmap_add",
            Operation::RmapRemove => "rmap_remove",
            Operation::RmapWalk => "rmap_walk",
            Operation::WriteProtect => "write_protect",
            Operation::SlotLookup => "slot_lookup",
            Operation::RootLoad => "root_load",
            Operation::RootFree => "root_free",
            Operation::RoleUpdate => "role_update",
            Operation::SyncEntry => "sync_entry",
            Operation::Invept => "invept",
            Operation::Invvpid => "invvpid",
            Operation::TlbFlush => "tlb_flush",
            Operation::Emulate => "emulate",
            Operation::DeviceKernel => "device_kernel",
            Operation::DeviceUser => "device_user",
            Operation::Inject => "inject",
            Operation::CpuidLookup => "cpuid_lookup",
            Operation::Msr => "msr",
            Operation::Hypercall => "hypercall",
            Operation::DirtyLog => "dirty_log",
            Operation::StateLoad => "state_load",
            Operation::InterruptWindow => "interrupt_window",
            Operation::ControlRegister => "control_register",
            Operation::Fault => "fault",
            Operation::ProfileMove => "profile_move",
        }
    }

    /// What a report calls it.
    pub const fn title(self) -> &'static str {
        match self {
            Operation::RunLoop => "run loop",
            Operation::Vmread => "VMREAD",
            Operation::Vmwrite => "VMWRITE",
            Operation::GuestWalk => "guest table entries read",
            Operation::TableRead => "own table entries read",
            Operation::TableWrite => "own table entries written",
            Operation::PageAllocate => "table pages allocated",
            Operation::PageZero => "table pages zeroed",
            Operation::PageFree => "table pages freed",
            Operation::HashLookup => "shadow pages looked up",
            Operation::RmapAdd => "reverse map additions",
            Operation::RmapRemove => "reverse map removals",
            Operation::RmapWalk => "reverse map entries visited",
            Operation::WriteProtect => "entries write-protected",
            Operation::SlotLookup => "memory slot look-ups",
            Operation::RootLoad => "roots loaded",
            Operation::RootFree => "roots put down",
            Operation::RoleUpdate => "MMU roles worked out",
            Operation::SyncEntry => "shadow entries synchronized",
            Operation::Invept => "INVEPT",
            Operation::Invvpid => "INVVPID",
            Operation::TlbFlush => "TLB flush requests",
            Operation::Emulate => "instructions emulated",
            Operation::DeviceKernel => "device model in the kernel",
            Operation::DeviceUser => "device model in user space",
            Operation::Inject => "events injected",
            Operation::CpuidLookup => "CPUID look-ups",
            Operation::Msr => "MSR accesses",
            Operation::Hypercall => "hypercalls",
            Operation::DirtyLog => "dirty log",
            Operation::StateLoad => "guest and host state switched",
            Operation::InterruptWindow => "interrupt windows",
            Operation::ControlRegister => "control register accesses",
            Operation::Fault => "faults handled",
            Operation::ProfileMove => "paravirtual state updates",
        }
    }

    /// The operation with that number.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    /// The operation with that identifier.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_in_order_under_names_of_their_own() {
        assert!(Operation::ALL.iter().enumerate().all(|(i, operation)| *operation as usize == i));
        assert!(Operation::ALL.into_iter().all(|o| Operation::from_name(o.name()) == Some(o)));
        let mut titles = Operation::ALL.map(Operation::title);
        titles.sort_unstable();
        assert!(titles.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
