//! Functions of the guest for which the machine waits. The machine reports that a function has been executed, without a
//! trace in the guest or on the ledger.
//!
//! The functions get breakpoints as those of a debugger, which are passed at once. The load address of a kernel is
//! known only when the kernel runs: a compressed kernel relocates itself (KASLR) by a multiple of its alignment, so
//! until then every possible address of a function has a breakpoint. When the first of these is reached, the machine
//! looks for the kernel's own tables in memory. The tables of a kernel that is found at run time (because another
//! kernel has loaded it) supply the functions that are in no image.

use crate::kernel_symbols::{self, ALIGNMENT, IMAGE};
use crate::memory::GuestRam;
use crate::vcpus::Vcpus;
use cpu::stops::Stops;
use ledger::symbols::{ImageFunctions, Symbol};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Status of a function for which the machine waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaiting {
    /// No function has that name and the required length.
    Unknown,
    /// The place has not been executed.
    NotExecuted,
    /// The place has been executed.
    Executed,
}

/// A place in a function, in the notation of gdb and perf: `name`, `name+4`, `name+0x1f`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the function.
    pub function: String,
    /// Offset from the beginning of the function, in bytes.
    pub offset: u64,
}

impl Place {
    /// Parses a place.
    pub fn parse(text: &str) -> Self {
        let number = |digits: &str| match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        };
        let split = text.rsplit_once('+').and_then(|(function, offset)| Some((function, number(offset)?)));
        let (function, offset) = split.unwrap_or((text, 0));
        Self { function: function.to_owned(), offset }
    }

    /// Returns the addresses of the place in functions of that name, which are given by start and size.
    fn within<'a>(&self, functions: impl IntoIterator<Item = &'a (u64, u64)>) -> Vec<u64> {
        let inside = |(start, size): &(u64, u64)| (self.offset < *size).then(|| start.wrapping_add(self.offset));
        functions.into_iter().filter_map(inside).collect()
    }
}

struct Function {
    place: Place,
    /// Addresses of the place.
    at: Vec<u64>,
    /// Addresses in an image that relocates itself, as linked.
    linked_at: Vec<u64>,
    executed: bool,
}

/// All places for which the machine waits.
pub(crate) struct Awaited {
    functions: Vec<Function>,
    stops: Arc<Stops>,
    /// The image, until its load address is known.
    image: Option<ImageFunctions>,
    /// Load addresses at which the image has been ruled out.
    excluded: BTreeSet<u64>,
    /// Functions of the kernel that was found last.
    kernel: Option<Arc<[Symbol]>>,
}

impl Awaited {
    pub(crate) fn new(places: Vec<Place>, image: ImageFunctions, files: &[Symbol]) -> Self {
        let function = |place: Place| {
            let linked_at = place.within(image.named(&place.function));
            let in_files: Vec<(u64, u64)> =
                files.iter().filter(|symbol| symbol.name == place.function).map(|s| (s.start, s.size)).collect();
            let mut at = place.within(&in_files);
            if !image.slides {
                at.extend(&linked_at);
            }
            Function { place, at, linked_at, executed: false }
        };
        let functions = places.into_iter().map(function).collect();
        let image = image.slides.then_some(image);
        Self { functions, stops: Arc::default(), image, excluded: BTreeSet::new(), kernel: None }
    }

    /// Returns the status of a place, by its index.
    pub(crate) fn status(&self, number: usize) -> Awaiting {
        match self.functions.get(number) {
            Some(function) if function.executed => Awaiting::Executed,
            Some(function) if !function.at.is_empty() || !function.linked_at.is_empty() => Awaiting::NotExecuted,
            _ => Awaiting::Unknown,
        }
    }

    /// Returns the addresses at which breakpoints are needed.
    fn wanted(&self) -> BTreeSet<u64> {
        let waiting = || self.functions.iter().filter(|function| !function.executed);
        let mut wanted: BTreeSet<u64> = waiting().flat_map(|function| function.at.iter().copied()).collect();
        if self.image.is_some() {
            let linked = waiting().flat_map(|function| function.linked_at.iter().copied());
            let moved = linked.flat_map(|at| (at..IMAGE.end).step_by(ALIGNMENT as usize));
            wanted.extend(moved.filter(|at| IMAGE.contains(at) && !self.excluded.contains(at)));
        }
        wanted
    }

    /// Sets the breakpoints that are needed.
    pub(crate) fn place(&self, vcpus: &mut Vcpus) {
        let wanted = self.wanted();
        for vcpu in &mut vcpus.all {
            match wanted.is_empty() {
                true => vcpu.cpu.leave_alone(),
                false => vcpu.cpu.debug(self.stops.clone()),
            }
        }
        vcpus.cache.code.set_breakpoints(wanted);
    }

    /// Handles the arrival of a processor at a breakpoint.
    pub(crate) fn reached(&mut self, vcpus: &mut Vcpus, index: usize, ram: &GuestRam) {
        self.stops.take_why();
        let cpu = &vcpus.all[index].cpu;
        let here = cpu.code_linear();
        if let Some(image) = &self.image
            && !self.functions.iter().any(|function| function.at.contains(&here))
        {
            let running = kernel_symbols::running(cpu, ram);
            match running.and_then(|kernel| image.slide_to(&kernel.functions)) {
                Some(slide) => {
                    for function in &mut self.functions {
                        function.at.extend(function.linked_at.iter().map(|at| at.wrapping_add(slide)));
                    }
                    self.image = None;
                }
                None => {
                    self.excluded.insert(here);
                }
            }
        }
        for function in self.functions.iter_mut().filter(|function| function.at.contains(&here)) {
            function.executed = true;
        }
        self.place(vcpus);
    }

    /// Checks if there is a new kernel in memory.
    pub(crate) fn look(&mut self, vcpus: &mut Vcpus) {
        let Some(kernel) = vcpus.tasks.kernel() else { return };
        if self.kernel.as_ref().is_some_and(|known| Arc::ptr_eq(known, &kernel.functions)) {
            return;
        }
        let functions = kernel.functions.clone();
        let mut new = false;
        for function in self.functions.iter_mut().filter(|f| !f.executed && f.at.is_empty() && f.linked_at.is_empty()) {
            let named = functions.iter().filter(|symbol| symbol.name == function.place.function);
            let named: Vec<(u64, u64)> = named.map(|symbol| (symbol.start, symbol.size)).collect();
            function.at = function.place.within(&named);
            new |= !function.at.is_empty();
        }
        self.kernel = Some(functions);
        if new {
            self.place(vcpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;
    use crate::machine::{Machine, Outcome};
    use crate::testing::{self, ENTRY, Nobody, hvm};
    use cpu::Tier;
    use iced_x86::code_asm::*;
    use ledger::symbols::Symbols;

    /// Returns the code of a guest that spins for some slices, calls a function often, and ends with status 1, and the
    /// address of the function.
    fn program() -> (Vec<u8>, u64) {
        let mut a = CodeAssembler::new(32).unwrap();
        let (mut spin, mut turn, mut function) = (a.create_label(), a.create_label(), a.create_label());
        a.mov(esp, 0x10_4000).unwrap();
        a.mov(ecx, 3_000_000).unwrap();
        a.set_label(&mut spin).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(spin).unwrap();
        a.mov(ecx, 3_000_000).unwrap();
        a.set_label(&mut turn).unwrap();
        a.call(function).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(turn).unwrap();
        a.xor(eax, eax).unwrap();
        a.out(0xf4, al).unwrap();
        a.set_label(&mut function).unwrap();
        a.inc(eax).unwrap();
        a.ret().unwrap();
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let result = a.assemble_options(u64::from(ENTRY), options).unwrap();
        let function = result.label_ip(&function).unwrap();
        (result.inner.code_buffer, function)
    }

    fn machine(tier: Tier, platform: &Platform) -> Machine {
        Machine::new(testing::config(&program().0, platform.clone(), tier)).unwrap()
    }

    #[test]
    fn a_function_is_noticed_in_the_slice_that_executes_it() {
        let function = program().1;
        let files = [Symbol::new(function, 2, "function"), Symbol::new(function + 0x100, 4, "never")];
        let places = ["function", "function+1", "function+0x2", "never", "unknown"].map(Place::parse);
        for platform in [Platform::Bare, hvm()] {
            let mut plain = machine(Tier::Interpreter, &platform);
            assert_eq!(plain.run(&mut Nobody), Outcome::DebugExit(1));
            let end = plain.vcpus.now();
            let expected = plain.ledger(&Symbols::default()).to_bytes().unwrap();
            for tier in [Tier::Interpreter, Tier::Translator, Tier::Auto] {
                let mut machine = machine(tier, &platform);
                machine.await_functions(places.to_vec(), &files);
                let executed = |machine: &Machine| machine.has_executed(0) == Awaiting::Executed;
                let outcome = machine.run_until(&mut Nobody, &mut |machine| executed(machine));
                assert_eq!(outcome, None, "it has been executed");
                let now = machine.vcpus.now();
                assert!(now > machine.vcpus.slice && now < end / 2, "{now} of {end}");
                let became = [0, 1, 2, 3, 4, 5].map(|number| machine.has_executed(number));
                let (yes, no, unknown) = (Awaiting::Executed, Awaiting::NotExecuted, Awaiting::Unknown);
                assert_eq!(became, [yes, yes, unknown, no, unknown, unknown]);
                assert_eq!(machine.run(&mut Nobody), Outcome::DebugExit(1));
                assert!(
                    machine.ledger(&Symbols::default()).to_bytes().unwrap() == expected,
                    "{tier:?}: another ledger"
                );
            }
        }
    }

    #[test]
    fn a_kernel_that_moves_has_breakpoints_wherever_it_may_be() {
        let mut awaited = Awaited::new(vec![Place::parse("f")], ImageFunctions::default(), &[]);
        assert!(awaited.wanted().is_empty());
        awaited.image = Some(ImageFunctions::default());
        awaited.functions[0].linked_at = vec![IMAGE.end - 2 * ALIGNMENT + 0x10];
        awaited.excluded.insert(IMAGE.end - 2 * ALIGNMENT + 0x10);
        assert_eq!(awaited.wanted().into_iter().collect::<Vec<_>>(), [IMAGE.end - ALIGNMENT + 0x10]);
        awaited.functions[0].executed = true;
        assert!(awaited.wanted().is_empty());
    }

    #[test]
    fn places_are_written_as_for_gdb_and_perf() {
        let place = |function: &str, offset| Place { function: function.to_owned(), offset };
        assert_eq!(Place::parse("start_kernel"), place("start_kernel", 0));
        assert_eq!(Place::parse("start_kernel+0x1f"), place("start_kernel", 0x1f));
        assert_eq!(Place::parse("a+b+10"), place("a+b", 10));
        assert_eq!(Place::parse("a+b"), place("a+b", 0));
    }
}
