//! Access of a debugger to guest memory: by linear addresses of a processor or by physical addresses, without an effect
//! on accessed and dirty flags or the TLB.

use crate::kernel_symbols::View;
use crate::machine::Machine;
use x86::page::PAGE;

/// Returns the physical address of a byte of RAM; under a hypervisor, the guest-physical one.
fn place(machine: &Machine, processor: usize, address: u64, physical: bool) -> Option<u64> {
    let cpu = &machine.vcpus.all[processor].cpu;
    let at = if physical { address } else { View::of(cpu).look_up(address)? };
    cpu.wiring.ram.visible_page(at).map(|_| at)
}

/// Returns the number of bytes, at most `len`, from `address` to the end of its page.
fn here(address: u64, len: usize) -> usize {
    len.min((PAGE - address % PAGE) as usize)
}

/// Reads as many bytes as are accessible, and returns their number.
pub fn read(machine: &Machine, processor: usize, address: u64, physical: bool, out: &mut [u8]) -> usize {
    let ram = &machine.vcpus.all[processor].cpu.wiring.ram;
    let mut done = 0;
    while done < out.len() {
        let at = address.wrapping_add(done as u64);
        let piece = done..done + here(at, out.len() - done);
        let Some(from) = place(machine, processor, at, physical) else { break };
        if !ram.read_bytes(from, &mut out[piece.clone()]) {
            break;
        }
        done = piece.end;
    }
    done
}

/// Writes all of the bytes, or none. Overwritten code is decoded again.
pub fn write(machine: &mut Machine, processor: usize, address: u64, physical: bool, bytes: &[u8]) -> bool {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < bytes.len() {
        let at = address.wrapping_add(done as u64);
        let piece = done..done + here(at, bytes.len() - done);
        let Some(to) = place(machine, processor, at, physical) else { return false };
        done = piece.end;
        pieces.push((to, piece));
    }
    let cpu = &mut machine.vcpus.all[processor].cpu;
    for (to, piece) in pieces {
        let bytes = &bytes[piece];
        cpu.code_written(to, bytes.len() as u64);
        cpu.wiring.ram.write_bytes(to, bytes);
    }
    cpu.drop_written_code(&mut machine.vcpus.cache);
    true
}
