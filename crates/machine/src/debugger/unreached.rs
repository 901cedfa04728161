//! Breakpoints that the guest never reached, and the probable reason: most often the addresses of the debugger's symbols are not those of the running
//! kernel.

use super::session::Session;
use crate::guest_memory::GuestMemory;
use crate::kernel_symbols::{self, View};
use ledger::symbols::{ImageFunctions, Symbol};
use std::collections::BTreeMap;

/// Number of addresses that are listed.
const LISTED: usize = 4;

/// Breakpoints with which the guest has run.
#[derive(Debug, Default)]
pub struct Reached(BTreeMap<u64, bool>);

impl Reached {
    /// Notes that the guest runs with breakpoints.
    pub fn run_with(&mut self, addresses: impl Iterator<Item = u64>) {
        for address in addresses {
            self.0.entry(address).or_default();
        }
    }

    /// Notes that the guest has stopped at an address.
    pub fn stopped_at(&mut self, address: u64) {
        if let Some(reached) = self.0.get_mut(&address) {
            *reached = true;
        }
    }

    fn missed(&self) -> Vec<u64> {
        self.0.iter().filter(|(_, reached)| !**reached).map(|(address, _)| *address).collect()
    }
}

/// Returns the probable reason why breakpoints were not reached.
fn reason(session: &Session, missed: &[u64]) -> String {
    let machine = &*session.machine;
    let cpu = &machine.vcpus.all[session.current].cpu;
    let running = match cpu.guest_of_software() {
        Some(_) => GuestMemory::around(cpu, cpu.arch.rip).and_then(|memory| memory.kernel().ok()),
        None => kernel_symbols::running(cpu, &machine.ram),
    };
    let functions = running.map(|kernel| kernel.functions).unwrap_or_default();
    let within = |address: u64| function_at(&functions, address).is_some();
    if let Some(first) = functions.first().filter(|_| missed.iter().any(|address| !within(*address))) {
        return match ImageFunctions::of(&machine.image).slide_to(&functions) {
            Some(slide) if slide != 0 && missed.iter().any(|address| within(address.wrapping_add(slide))) => format!(
                "the running kernel has moved itself by {slide:#x} (KASLR): boot with nokaslr, or in gdb: symbol-file -o {slide:#x} vmlinux"
            ),
            Some(_) => {
                format!("not all of them are in the running kernel, whose first function is at {:#x}", first.start)
            }
            None => format!(
                "the running kernel, whose first function is at {:#x}, is not the booted image: `monitor kernel` says where it is",
                first.start
            ),
        };
    }
    let view = View::of(cpu);
    match missed.iter().all(|address| view.look_up(*address).is_none()) {
        true => "nothing is mapped there: the debugger's symbols are those of another program, or at another address"
            .to_owned(),
        false => "that code was not executed".to_owned(),
    }
}

/// Returns the function that contains an address; `functions` are sorted by address.
fn function_at(functions: &[Symbol], address: u64) -> Option<&Symbol> {
    let after = functions.partition_point(|function| function.start <= address);
    let function = functions.get(after.checked_sub(1)?)?;
    (address - function.start < function.size.max(1)).then_some(function)
}

/// Describes the breakpoints that the guest never reached, if there are any.
pub fn describe(session: &Session) -> Option<String> {
    let missed = session.reached.missed();
    let (count, listed) = (missed.len(), missed.iter().take(LISTED).map(|address| format!("{address:#x}")));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let more = if count > LISTED { ", ..." } else { "" };
    let what = match count {
        0 => return None,
        1 => "a breakpoint was".to_owned(),
        _ => format!("{count} breakpoints were"),
    };
    Some(format!("{what} never reached ({listed}{more}): {}", reason(session, &missed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_one_function_or_in_none() {
        let functions = [Symbol::new(0x100, 0x10, "a"), Symbol::new(0x110, 0, "b"), Symbol::new(0x200, 8, "c")];
        let name = |address| function_at(&functions, address).map(|function| function.name.as_str());
        assert_eq!([0xff, 0x100, 0x10f].map(name), [None, Some("a"), Some("a")]);
        assert_eq!([0x110, 0x111, 0x207, 0x208].map(name), [Some("b"), None, Some("c"), None]);
    }
}
