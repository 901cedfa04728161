//! The host-state area: checks on VM entry (SDM vol. 3, 26.2.2 to 26.2.4), load on VM exit (27.5).

use super::super::capability::CR0_FIXED;
use super::super::checks::{Check, require};
use super::super::state::GuestView;
use super::super::vmcs::Vmcs;
use super::cet;
use crate::arch::{Segment, TableRegister};
use crate::exec::msr::good_pat;
use crate::state::Cpu;
use x86::control::*;
use x86::debug::DR7_FIXED;
use x86::vmx::{entry, exit, vmcs};
use x86::{descriptor, reg, rights, seg};

/// Segment registers in the order of the host's selector fields.
const SELECTORS: [(u8, u32); 6] = [
    (seg::ES, vmcs::HOST_ES_SELECTOR),
    (seg::CS, vmcs::HOST_CS_SELECTOR),
    (seg::SS, vmcs::HOST_SS_SELECTOR),
    (seg::DS, vmcs::HOST_DS_SELECTOR),
    (seg::FS, vmcs::HOST_FS_SELECTOR),
    (seg::GS, vmcs::HOST_GS_SELECTOR),
];
/// Bits of CR0 that VM entries (26.3.2.1) and exits (27.5.1) preserve, in addition to undefined ones.
pub(super) const CR0_KEPT: u64 = CR0_ET | CR0_CD | CR0_NW;

impl Cpu {
    /// Returns the registers that translate the linear addresses of a hypervisor on the machine, while its guest runs.
    /// That hypervisor may use the processor's VMX, or the one that the board's hypervisor emulates.
    pub fn host_registers(&self) -> Option<GuestView> {
        if let Some(inner) = self.arch.vmx.inner {
            return Some(inner.host);
        }
        let (_, vmcs) = self.arch.vmx.operation.current().filter(|_| self.guest_of_software().is_some())?;
        let [cr0, cr4, efer, ..] = self.arch.vmx.operation.host_under;
        Some(GuestView { cr0, cr3: vmcs.get(vmcs::HOST_CR3), cr4, efer, pdpte: self.arch.pdpte, xcr0: self.arch.xcr0 })
    }

    /// Checks the host-state area.
    pub(super) fn check_host(&self, v: &Vmcs) -> Check {
        let (cr0, cr3, cr4) = (v.get(vmcs::HOST_CR0), v.get(vmcs::HOST_CR3), v.get(vmcs::HOST_CR4));
        require(cr0 >> 32 == 0 && cr0 & CR0_FIXED == CR0_FIXED, "host's CR0")?;
        require(cr4 & CR4_VMXE != 0 && cr4 & !self.cr4_bits() == 0, "host's CR4")?;
        require(cr4 & CR4_CET == 0 || cr0 & CR0_WP != 0, "host's CR4.CET without CR0.WP")?;
        require(cr3 & self.beyond_physical() == 0, "host's CR3")?;
        let canonical = [
            vmcs::HOST_SYSENTER_ESP,
            vmcs::HOST_SYSENTER_EIP,
            vmcs::HOST_FS_BASE,
            vmcs::HOST_GS_BASE,
            vmcs::HOST_TR_BASE,
            vmcs::HOST_GDTR_BASE,
            vmcs::HOST_IDTR_BASE,
        ];
        require(
            canonical.iter().all(|field| self.canonical_base(v.get(*field))),
            "host's address that is not canonical",
        )?;
        let controls = v.get32(vmcs::EXIT_CONTROLS);
        let long = controls & exit::HOST_64 != 0;
        require(controls & exit::LOAD_PAT == 0 || good_pat(v.get(vmcs::HOST_PAT)), "host's PAT")?;
        if controls & exit::LOAD_EFER != 0 {
            let efer = v.get(vmcs::HOST_EFER);
            require(efer & !self.efer_bits() == 0, "reserved bits of the host's EFER")?;
            let modes = if long { EFER_LMA | EFER_LME } else { 0 };
            require(efer & (EFER_LMA | EFER_LME) == modes, "host's EFER against the host address-space size")?;
        }
        if controls & exit::LOAD_CET != 0 {
            self.check_cet(v, cet::HOST, long)?;
        }
        let mut selectors = SELECTORS.iter().map(|(_, field)| *field).chain([vmcs::HOST_TR_SELECTOR]);
        require(selectors.all(|field| v.get(field) & 7 == 0), "RPL or TI of a host's selector")?;
        require(v.get(vmcs::HOST_CS_SELECTOR) != 0 && v.get(vmcs::HOST_TR_SELECTOR) != 0, "host's CS or TR 0")?;
        require(long || v.get(vmcs::HOST_SS_SELECTOR) != 0, "host's SS 0")?;
        require(long == self.long_mode(), "host address-space size")?;
        let rip = v.get(vmcs::HOST_RIP);
        if long {
            require(cr4 & CR4_PAE != 0, "host's CR4.PAE clear")?;
            require(self.canonical_base(rip), "host's RIP")
        } else {
            require(v.get32(vmcs::ENTRY_CONTROLS) & entry::IA32E_GUEST == 0, "IA-32e mode guest of a 32-bit host")?;
            require(cr4 & CR4_PCIDE == 0, "host's CR4.PCIDE")?;
            require(rip >> 32 == 0, "host's RIP")
        }
    }

    /// Loads the host's state, without its lists of MSRs.
    pub(super) fn load_host(&mut self) {
        let v = &self.arch.vmx.operation.vmcs;
        let field = |encoding: u32| v.get(encoding);
        let controls = v.get32(vmcs::EXIT_CONTROLS);
        let long = controls & exit::HOST_64 != 0;
        let (cr0, cr4) = (field(vmcs::HOST_CR0), field(vmcs::HOST_CR4));
        let mut efer = self.arch.msr.efer;
        if controls & exit::LOAD_EFER != 0 {
            efer = field(vmcs::HOST_EFER);
        }
        let modes = EFER_LMA | EFER_LME;
        efer = efer & !modes | if long { modes } else { 0 };
        let selectors = SELECTORS.map(|(which, encoding)| (which, field(encoding) as u16));
        let bases = [(seg::FS, field(vmcs::HOST_FS_BASE)), (seg::GS, field(vmcs::HOST_GS_BASE))];
        let tr = Segment {
            base: field(vmcs::HOST_TR_BASE),
            limit: 0x67,
            rights: u32::from(descriptor::TSS32 | descriptor::BUSY) | rights::P,
            selector: field(vmcs::HOST_TR_SELECTOR) as u16,
        };
        let (gdtr, idtr) = (field(vmcs::HOST_GDTR_BASE), field(vmcs::HOST_IDTR_BASE));
        let sysenter = [vmcs::HOST_SYSENTER_CS, vmcs::HOST_SYSENTER_ESP, vmcs::HOST_SYSENTER_EIP].map(field);
        let (rsp, rip, cr3) = (field(vmcs::HOST_RSP), field(vmcs::HOST_RIP), field(vmcs::HOST_CR3));
        let enforcement = (controls & exit::LOAD_CET != 0).then(|| cet::HOST.map(field));
        let pat = (controls & exit::LOAD_PAT != 0).then(|| field(vmcs::HOST_PAT));
        self.arch.cr0 = cr0 & !CR0_KEPT | self.arch.cr0 & CR0_KEPT;
        self.arch.cr3 = cr3;
        self.arch.cr4 = if long { cr4 | CR4_PAE } else { cr4 & !CR4_PCIDE };
        self.arch.msr.efer = efer;
        self.arch.dr[7] = DR7_FIXED;
        self.arch.msr.debugctl = 0;
        [self.arch.msr.sysenter_cs, self.arch.msr.sysenter_esp, self.arch.msr.sysenter_eip] = sysenter;
        self.arch.msr.pat = pat.unwrap_or(self.arch.msr.pat);
        if let Some(values) = enforcement {
            self.load_cet(values);
        }
        for (which, selector) in selectors {
            self.arch.seg[usize::from(which)] = host_segment(which, selector, long);
        }
        for (which, base) in bases {
            self.arch.seg[usize::from(which)].base = base;
        }
        self.arch.tr = tr;
        self.arch.ldtr = Segment { base: 0, limit: 0, rights: rights::UNUSABLE, selector: 0 };
        self.arch.gdtr = TableRegister { base: gdtr, limit: 0xffff };
        self.arch.idtr = TableRegister { base: idtr, limit: 0xffff };
        self.arch.gpr[usize::from(reg::RSP)] = rsp;
        self.arch.rip = rip;
        self.arch.cpl = 0;
        self.arch.single_step = false;
        self.arch.pending_dr6 = 0;
        self.set_rflags(2);
    }
}

/// Returns the contents of a segment register after a VM exit (27.5.2).
fn host_segment(which: u8, selector: u16, long: bool) -> Segment {
    let data = rights::S | rights::P | rights::ACCESSED | rights::RW | rights::DB | rights::G;
    let rights = match which {
        seg::CS if long => data & !rights::DB | rights::CODE | rights::L,
        seg::CS => data | rights::CODE,
        _ if selector == 0 => data | rights::UNUSABLE,
        _ => data,
    };
    Segment { base: 0, limit: u32::MAX, rights, selector }
}
