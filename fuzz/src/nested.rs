//! A guest that is a dishonest hypervisor: the bytes determine its EPT, the page tables of its own guest, and the times
//! at which it executes INVEPT. Every access of its own guest must end, the tables of shadow EPT must be consistent
//! after each step, and memory must be bounded. If the guest executes INVEPT after each change, its own guest must see
//! the same as on a processor of its own.

use arbitrary::{Result, Unstructured};
use cpu::fault::Cause;
use cpu::walk::{Access, Privilege};
use cpu::{Cpu, Ram};
use hypervisor::VmConfig;
use hypervisor::config::{MmuMode, NestedRoots};
use hypervisor::mmu::{
    EptExit, EptFormat, Fault, Guest, HostFeatures, Mmu, Nested, NestedFault, NestedInvept, Pml, Resolution,
    SlotConfig, VcpuMmu,
};
use testkit::Random;
use x86::control::*;
use x86::page::{OFFSET, code};
use x86::vmx::{primary, reason, secondary};
use x86::{ept, vector};

/// Size of RAM in bytes, and address of the hypervisor's tables.
const RAM: u64 = 1 << 20;
const POOL: u64 = 0xd000_0000;
/// First of the frames in which most tables lie, and number of these frames.
const TABLES: u64 = 0x20;
const COUNT: u64 = 16;
/// Number of steps of one input.
const STEPS: usize = 200;
/// Number of faults after which an access must have ended.
const FAULTS: usize = 64;

/// The outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Place(u64),
    Fault(u32),
    Exit(EptExit),
}

/// Converts an exit; the log's exit has no address.
fn exit(exit: EptExit) -> Met {
    Met::Exit(match exit {
        EptExit::LogFull { qualification, .. } => EptExit::LogFull { gpa: 0, linear: 0, qualification },
        other => other,
    })
}

fn asked(access: Access, privilege: Privilege) -> u32 {
    let user = if privilege == Privilege::User { code::USER } else { 0 };
    user | match access {
        Access::Write => code::WRITE,
        Access::Fetch => code::FETCH,
        _ => 0,
    }
}

/// Walks the tables as a processor would under an EPT pointer.
fn walk(cpu: &mut Cpu, guest: &Guest, eptp: u64, pml: Option<Pml>, at: u64, access: Access, by: Privilege) -> Met {
    let nested = guest.nested.unwrap_or_default();
    cpu.arch.cr0 = guest.cr0;
    cpu.arch.cr3 = guest.cr3;
    cpu.arch.cr4 = guest.cr4;
    cpu.arch.msr.efer = guest.efer;
    cpu.arch.pdpte = guest.pdpte;
    cpu.arch.flags = guest.rflags;
    cpu.arch.cpl = guest.cpl;
    let controls = &mut cpu.arch.vmx.controls;
    controls.primary = primary::SECONDARY;
    controls.secondary = secondary::EPT | secondary::UNRESTRICTED_GUEST;
    if nested.ept.mode_based {
        controls.secondary |= secondary::MODE_BASED_EXECUTE;
    }
    if let Some(pml) = pml {
        controls.secondary |= secondary::PML;
        (controls.pml_address, controls.pml_index) = (pml.address, pml.index);
    }
    controls.eptp = eptp;
    cpu.arch.vmx.ept = true;
    if let Ok(walked) = cpu.walk(at, access, by) {
        return Met::Place(walked.entry.physical | at & ((1 << walked.entry.shift) - 1));
    }
    let report = cpu.arch.vm_exit;
    let (gpa, linear, qualification) = (report.guest_physical, report.guest_linear, report.qualification);
    match std::mem::take(&mut cpu.engine.fault) {
        Cause::Exception(vector::PF, Some(code)) => Met::Fault(code),
        Cause::VmExit if report.reason == reason::EPT_VIOLATION => {
            Met::Exit(EptExit::Violation { gpa, linear, qualification })
        }
        Cause::VmExit if report.reason == reason::EPT_MISCONFIGURATION => Met::Exit(EptExit::Misconfiguration { gpa }),
        Cause::VmExit => Met::Exit(EptExit::LogFull { gpa: 0, linear: 0, qualification }),
        other => panic!("{other:?}"),
    }
}

/// A machine whose guest has a guest.
struct Machine {
    mmu: Mmu,
    vcpus: [VcpuMmu; 2],
    cpu: Cpu,
    slot: SlotConfig,
    limit: u32,
}

impl Machine {
    fn new(config: &VmConfig) -> Self {
        let frames = RAM >> 12;
        let pages = Mmu::pool_pages(config, frames, 2);
        let ram = Ram::with_hidden(RAM, POOL, u64::from(pages) << 12);
        let host = HostFeatures { physical_bits: 46, ept_flags: true, gigabyte_pages: true };
        let mut mmu = Mmu::new(config, host, ram.clone(), POOL, pages, frames).expect("an MMU");
        let slot = SlotConfig { gfn: 0, pages: frames, hpa: 0, read_only: false, log_dirty: false };
        mmu.add_slot(slot).expect("a slot");
        let vcpus = [(); 2].map(|()| mmu.add_vcpu().expect("a page"));
        let limit = mmu.pages_used().1;
        Self { mmu, vcpus, cpu: testkit::cpu(ram), slot, limit }
    }

    /// Writes a quadword as the guest.
    fn write(&mut self, vcpu: usize, gpa: u64, value: u64) {
        let outer = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
        for _ in 0..FAULTS {
            let root = self.mmu.prepare(&mut self.vcpus[vcpu], &outer).expect("a root");
            let eptp = root.hpa | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK | ept::EPTP_ACCESSED_DIRTY;
            let fault = match walk(&mut self.cpu, &outer, eptp, None, gpa, Access::Write, Privilege::Supervisor) {
                Met::Place(hpa) => {
                    self.cpu.wiring.ram.write(hpa, value);
                    return;
                }
                Met::Exit(EptExit::Violation { gpa, linear, qualification }) => {
                    Fault::Violation { gpa, linear, qualification }
                }
                Met::Exit(EptExit::Misconfiguration { gpa }) => Fault::Misconfiguration { gpa },
                other => panic!("{other:?}"),
            };
            match self.mmu.fault(&mut self.vcpus[vcpu], &outer, fault) {
                Resolution::Fixed => {}
                Resolution::Emulate { .. } => {
                    self.cpu.wiring.ram.write(gpa, value);
                    self.mmu.page_written(gpa, 8);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("a write to {gpa:#x} does not end");
    }

    /// Accesses an address as the guest's own guest. The index of the log continues.
    fn access(&mut self, vcpu: usize, guest: &mut Guest, at: u64, access: Access, by: Privilege) -> Met {
        for _ in 0..FAULTS {
            let root = self.mmu.prepare(&mut self.vcpus[vcpu], guest).expect("a root");
            self.mmu.take_flushes(&mut self.vcpus[vcpu]);
            self.mmu.take_written();
            let flags = if root.flags { ept::EPTP_ACCESSED_DIRTY } else { 0 };
            let eptp = root.hpa | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK | flags;
            let fault = match walk(&mut self.cpu, guest, eptp, None, at, access, by) {
                Met::Exit(EptExit::Violation { gpa, linear, qualification }) => {
                    Fault::Violation { gpa, linear, qualification }
                }
                Met::Exit(EptExit::Misconfiguration { gpa }) => Fault::Misconfiguration { gpa },
                other => return other,
            };
            let resolution = self.mmu.fault(&mut self.vcpus[vcpu], guest, fault);
            self.log(guest);
            match resolution {
                Resolution::Fixed => {}
                Resolution::Reflect(reflected) => return exit(reflected),
                Resolution::Emulate { .. } => {
                    let found = self.mmu.nested_walk(guest, at, asked(access, by));
                    self.log(guest);
                    return match found {
                        Ok(place) => Met::Place(place),
                        Err(NestedFault::Page(fault)) => Met::Fault(fault.code),
                        Err(NestedFault::Exit(reflected)) => {
                            if let EptExit::Violation { gpa, .. } = reflected {
                                self.mmu.nested_violation(&self.vcpus[vcpu], gpa);
                            }
                            exit(reflected)
                        }
                    };
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("an access to {at:#x} does not end");
    }

    fn log(&mut self, guest: &mut Guest) {
        let logged = self.mmu.take_logged();
        if let Some(pml) = guest.nested.as_mut().and_then(|nested| nested.pml.as_mut()) {
            pml.index = pml.index.wrapping_sub(logged);
        }
    }

    fn invept(&mut self, what: NestedInvept) {
        for vcpu in &mut self.vcpus {
            self.mmu.nested_invept(vcpu, what);
            self.mmu.flush_guest(vcpu);
        }
    }

    fn check(&self) {
        let [first, second] = &self.vcpus;
        if let Err(wrong) = self.mmu.check(&[first, second]) {
            panic!("{wrong}");
        }
        assert!(self.mmu.pages_used().0 <= self.limit);
    }
}

/// Reads an address in a table and the value to write there.
fn entry(input: &mut Unstructured) -> Result<(u64, u64)> {
    let [frame, index, bits, more] = input.arbitrary::<[u8; 4]>()?;
    let at = ((TABLES + u64::from(frame) % COUNT) << 12) | (u64::from(index & 7) * 8);
    if more & 0x80 != 0 {
        return Ok((at, input.arbitrary()?));
    }
    let target = if more & 0x40 != 0 { u64::from(input.arbitrary::<u16>()?) } else { TABLES + u64::from(more) % COUNT };
    let flags = u64::from(input.arbitrary::<u16>()? & 0xff8);
    let large = if more & 0x20 != 0 { ept::LARGE } else { 0 };
    let plain = if bits & 8 != 0 { u64::from(bits & 7) | flags } else { ept::RIGHTS | flags & 0x700 };
    Ok((at, target << 12 | plain | large))
}

/// Reads an address of the guest's own guest.
fn address(input: &mut Unstructured) -> Result<u64> {
    let [low, indexes, more, _] = input.arbitrary::<[u8; 4]>()?;
    let index = |shift: u32| u64::from(indexes >> shift & 3);
    let upper = if more & 1 == 0 { 0 } else { index(4) << 30 | index(6) << 39 };
    Ok(upper | index(0) << 12 | index(2) << 21 | u64::from(low) << 3)
}

/// Chooses the paging mode of the guest's own guest and its EPT pointer.
fn choose(input: &mut Unstructured, guest: &mut Guest, logs: bool) -> Result<()> {
    let [mode, root, top, more] = input.arbitrary::<[u8; 4]>()?;
    let table = |byte: u8| (TABLES + u64::from(byte) % COUNT) << 12;
    let (paging, pae, long) = (CR0_PG | if more & 1 != 0 { CR0_WP } else { 0 }, CR4_PAE, EFER_LME | EFER_LMA);
    let (cr0, cr4, efer) =
        [(0, 0, 0), (paging, CR4_PSE, 0), (paging, pae, EFER_NXE), (paging, pae, long)][usize::from(mode & 3)];
    (guest.cr0, guest.cr4, guest.efer) = (CR0_PE | cr0, cr4, efer);
    guest.cr3 = table(root);
    guest.pdpte = std::array::from_fn(|number| table(root.wrapping_add(number as u8)) | 1);
    let flags = if more & 2 != 0 { ept::EPTP_ACCESSED_DIRTY } else { 0 };
    let pml = Pml { address: (TABLES + COUNT + 1) << 12, index: u16::from(more) << 2 };
    guest.nested = Some(Nested {
        eptp: Some(table(top) | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK | flags),
        ept: EptFormat { execute_only: true, flags: true, pages_2m: true, pages_1g: true, mode_based: more & 4 != 0 },
        pml: (logs && flags != 0 && more & 8 != 0).then_some(pml),
    });
    Ok(())
}

fn scenario(input: &mut Unstructured) -> Result<()> {
    let [switches, more] = input.arbitrary::<[u8; 2]>()?;
    let bit = |number: u8| switches & 1 << number != 0;
    let config = VmConfig {
        mmu: if bit(0) { MmuMode::LegacyTdp } else { MmuMode::Tdp },
        unsync: bit(1),
        huge_pages: bit(2),
        nested_roots: if bit(3) { NestedRoots::Drop } else { NestedRoots::Keep },
        mmu_pages: bit(4).then_some(VmConfig::MIN_MMU_PAGES),
        ..VmConfig::default()
    };
    let honest = more & 1 != 0;
    let mut machine = Machine::new(&config);
    let mut bare = testkit::cpu(Ram::anonymous(RAM));
    let mut guests = [Guest { rflags: 2, ..Guest::default() }; 2];
    for guest in &mut guests {
        choose(input, guest, honest)?;
    }
    // The accesses of a dishonest guest are not compared.
    let mut vcpu = 0;
    let result = (|| {
        for _ in 0..STEPS {
            let what = input.arbitrary::<u8>()?;
            match what & 15 {
                0..=4 => {
                    let (at, value) = entry(input)?;
                    bare.wiring.ram.write(at, value);
                    machine.write(vcpu, at, value);
                    if honest {
                        machine.invept(NestedInvept::All);
                    }
                }
                5..=10 => {
                    let access = [Access::Read, Access::Write, Access::Fetch, Access::Read][usize::from(what >> 4 & 3)];
                    let by = if what & 0x40 != 0 { Privilege::User } else { Privilege::Supervisor };
                    let at = address(input)?;
                    let guest = &mut guests[vcpu];
                    guest.cpl = if by == Privilege::User { 3 } else { 0 };
                    let before = *guest;
                    let met = machine.access(vcpu, guest, at, access, by);
                    if honest {
                        let nested = before.nested.unwrap_or_default();
                        let expected = walk(&mut bare, &before, nested.eptp.unwrap_or(0), nested.pml, at, access, by);
                        assert_eq!(met, expected, "{at:#x} {access:?} {by:?} {before:x?}");
                    }
                }
                11 => choose(input, &mut guests[vcpu], honest)?,
                12 => vcpu ^= 1,
                13 => {
                    let top = guests[vcpu].nested.and_then(|nested| nested.eptp).unwrap_or(0);
                    machine.invept(if what & 0x10 == 0 { NestedInvept::All } else { NestedInvept::Single(top) });
                }
                14 => match what >> 4 & 3 {
                    0 => drop(machine.mmu.log_dirty(0, true)),
                    1 => drop(machine.mmu.log_dirty(0, false)),
                    2 => drop(machine.mmu.take_dirty_log(0)),
                    _ => drop(machine.mmu.unprotect(TABLES + u64::from(input.arbitrary::<u8>()?) % COUNT)),
                },
                _ => match what >> 4 & 3 {
                    0 => {
                        assert!(machine.mmu.remove_slot(0));
                        machine.check();
                        machine.mmu.add_slot(machine.slot).expect("a slot");
                    }
                    1 => machine.mmu.unload(&mut machine.vcpus[vcpu]),
                    2 => machine.mmu.nested_invvpid(&mut machine.vcpus[vcpu]),
                    _ => machine.mmu.flush_guest(&mut machine.vcpus[vcpu]),
                },
            }
            machine.check();
        }
        Ok(())
    })();
    if honest {
        let (mut expected, mut found) = (vec![0; RAM as usize], vec![0; RAM as usize]);
        assert!(bare.wiring.ram.read_bytes(0, &mut expected) && machine.cpu.wiring.ram.read_bytes(0, &mut found));
        let differs = (0..expected.len()).find(|at| expected[*at] != found[*at]);
        assert_eq!(differs.map(|at| at as u64 & !OFFSET), None, "memory differs in this frame");
    }
    result
}

/// Runs the input.
pub fn run(data: &[u8]) {
    let _ = scenario(&mut Unstructured::new(data));
}

/// Returns tables that lead to memory, and accesses to them.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    let mut seed = |number: u8| {
        let mut bytes = vec![number, number >> 2, 0, 0, 0, 2, number, 4, 0, 2];
        // These are the tables of one pointer, from the top down; each entry but the last table's leads to the next
        // table.
        for (frame, next) in [(0u8, 1u8), (1, 2), (2, 3), (3, 8)] {
            for index in 0..4 {
                bytes.extend([0, frame, index, 0, next, 0x30, 7]);
            }
        }
        for _ in 0..400 {
            bytes.push((random.next() >> 24) as u8);
        }
        bytes
    };
    (0..32).map(&mut seed).collect()
}
