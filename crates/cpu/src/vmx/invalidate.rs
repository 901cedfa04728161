//! What is invalidated in the TLB, and by whom.

use crate::state::Cpu;

/// What an instruction invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Everything, global translations included.
    All,
    /// All that is not global.
    NonGlobal,
    /// What is not global, of one PCID.
    Pcid(u16),
    /// The page of a linear address, of the current PCID and global.
    Page(u64),
    /// The page of a linear address, of one PCID, unless it is global.
    PageOf {
        /// The address.
        linear: u64,
        /// The PCID.
        pcid: u16,
    },
}

impl Cpu {
    /// Does what an instruction asks of the TLB. In emulation this is only noted: the TLB is not the guest's as the instruction
    /// sees it.
    pub(crate) fn flush_tlb(&mut self, what: Flush) {
        if let Some(emulating) = &mut self.vmx.emulation {
            emulating.note_flush(what);
            return;
        }
        match what {
            Flush::All => self.tlb.flush_all(),
            Flush::NonGlobal => self.tlb.flush_non_global(),
            Flush::Pcid(pcid) => self.tlb.flush_pcid(pcid),
            Flush::Page(linear) => {
                let pcid = self.pcid();
                self.tlb.flush_page(linear, pcid);
            }
            Flush::PageOf { linear, pcid } => self.tlb.flush_page_non_global(linear, pcid),
        }
    }
}
