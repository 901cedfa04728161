//! Functions of the guest that are waited for: whether one has been executed, without a trace in the guest and on the ledger.
//!
//! They have breakpoints as a debugger's, which are passed at once. Where a kernel goes is known only when it is there: a compressed kernel moves
//! itself (KASLR), by a multiple of what it is aligned to, so that until then breakpoints are at all places where a function may
//! come to be. The first that is reached tells to look for the kernel's own tables in memory. A kernel that is found when it runs
//! (one that another one has loaded) is asked for the functions that are in no image.

mod functions;

use crate::kernel_symbols::{self, ALIGNMENT, IMAGE};
use crate::memory::GuestRam;
use crate::vcpus::Vcpus;
use cpu::stops::Stops;
use ledger::symbols::{ImageFunctions, Symbol};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// What became of a function that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaiting {
    /// No function has that name, or none that is so long.
    Unknown,
    /// It has not been executed.
    NotExecuted,
    /// It has been executed.
    Executed,
}

/// A place in a function, as gdb and perf write it: `name`, `name+4`, `name+0x1f`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function.
    pub function: String,
    /// Bytes from its beginning.
    pub offset: u64,
}

impl Place {
    /// Reads one.
    pub fn parse(text: &str) -> Self {
        let number = |digits: &str| match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        };
        let split = text.rsplit_once('+').and_then(|(function, offset)| Some((function, number(offset)?)));
        let (function, offset) = split.unwrap_or((text, 0));
        Self { function: function.to_owned(), offset }
    }

    /// Where it is in functions of that name, of which there are start and size.
    fn within<'a>(&self, functions: impl IntoIterator<Item = &'a (u64, u64)>) -> Vec<u64> {
        let inside = |(start, size): &(u64, u64)| (self.offset < *size).then(|| start.wrapping_add(self.offset));
        functions.into_iter().filter_map(inside).collect()
    }
}

struct Function {
    place: Place,
    /// Where it is.
    at: Vec<u64>,
    /// Where it is in the image that decides itself where it goes.
    linked_at: Vec<u64>,
    executed: bool,
}

/// What is waited for.
pub(crate) struct Awaited {
    functions: Vec<Function>,
    stops: Rc<Stops>,
    /// The image, until it is known where it has gone.
    image: Option<ImageFunctions>,
    /// Where the image was thought to be, and was not.
    excluded: BTreeSet<u64>,
    /// The functions of the kernel that was found last.
    kernel: Option<Arc<[Symbol]>>,
}

impl Awaited {
    fn new(places: Vec<Place>, image: ImageFunctions, files: &[Symbol]) -> Self {
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
        Self { functions, stops: Rc::default(), image, excluded: BTreeSet::new(), kernel: None }
    }

    /// Where breakpoints are wanted.
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

    /// Puts breakpoints where they are wanted.
    fn place(&self, vcpus: &mut Vcpus) {
        let wanted = self.wanted();
        for vcpu in &mut vcpus.all {
            match wanted.is_empty() {
                true => vcpu.cpu.leave_alone(),
                false => vcpu.cpu.debug(self.stops.clone()),
            }
        }
        vcpus.cache.set_breakpoints(wanted);
    }

    /// A processor is at a breakpoint.
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

    /// Looks whether there is a kernel in memory that was not there before.
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

    /// A guest that spins for some slices, calls a function often, and ends with status 1. The code, and where the function begins.
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
