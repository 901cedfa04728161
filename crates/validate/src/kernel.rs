//! A kernel: a loop whose time is measured, and the data that it works on.

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use silicon::random::Random;

/// Writes instructions.
pub type Emit = Box<dyn Fn(&mut CodeAssembler) -> Result<(), IcedError> + Send + Sync>;

/// A loop whose time is measured.
///
/// R15 counts the rounds and RSP is the stack; every other register is free. RAX and RDX keep nothing from the rounds
/// before the first time stamp.
pub struct Kernel {
    /// Name, unique in the program.
    pub name: String,
    /// Instructions before the loop, without time.
    pub prepare: Emit,
    /// Instructions of one round.
    pub body: Emit,
    /// Rounds that are measured.
    pub rounds: u64,
    /// Rounds before them.
    pub warm: u64,
    /// Steps in a round; a figure is the time of one step.
    pub steps: f64,
    /// Contents of memory.
    pub data: Vec<Data>,
}

impl Kernel {
    /// Creates a kernel of this loop with one step in a round, that runs a tenth of its rounds before it is measured.
    pub fn new(
        name: impl Into<String>,
        rounds: u64,
        prepare: impl Fn(&mut CodeAssembler) -> Result<(), IcedError> + Send + Sync + 'static,
        body: impl Fn(&mut CodeAssembler) -> Result<(), IcedError> + Send + Sync + 'static,
    ) -> Self {
        let (prepare, body) = (Box::new(prepare), Box::new(body));
        Self { name: name.into(), prepare, body, rounds, warm: rounds.div_ceil(10), steps: 1.0, data: Vec::new() }
    }

    /// Sets the steps of a round.
    pub fn steps(self, steps: impl Into<f64>) -> Self {
        Self { steps: steps.into(), ..self }
    }

    /// Sets the rounds before the measurement.
    pub fn warm(self, warm: u64) -> Self {
        Self { warm, ..self }
    }

    /// Adds contents of memory.
    pub fn with(mut self, data: Data) -> Self {
        self.data.push(data);
        self
    }
}

/// Contents of a piece of memory.
#[derive(Clone, Debug)]
pub enum Data {
    /// A ring of pointers through all nodes in random order.
    Ring {
        /// Address of the first node.
        base: u64,
        /// Number of nodes.
        nodes: u64,
        /// Distance of nodes.
        step: u64,
        /// Distance that is added for each node modulo a page: nodes of different pages then lie in different sets of a
        /// cache.
        skew: u64,
        /// True if the ring follows the addresses.
        sorted: bool,
    },
    /// These bytes.
    Bytes(u64, Vec<u8>),
    /// This byte so many times.
    Fill(u64, u64, u8),
}

impl Data {
    /// Returns the address and the bytes.
    pub fn contents(&self) -> (u64, Vec<u8>) {
        match self {
            Self::Bytes(address, bytes) => (*address, bytes.clone()),
            Self::Fill(address, len, byte) => (*address, vec![*byte; *len as usize]),
            Self::Ring { base, nodes, step, skew, sorted } => {
                let place = |node: u64| base + node * step + (node * skew) % crate::layout::PAGE;
                let mut next: Vec<u64> = (0..*nodes).collect();
                if *sorted {
                    next.rotate_left(1);
                } else {
                    // Sattolo's algorithm makes a permutation of one cycle.
                    let mut random = Random::new(*nodes);
                    for i in (1..next.len()).rev() {
                        next.swap(i, random.below(i as u64) as usize);
                    }
                }
                let end = place(nodes - 1) + 8;
                let mut bytes = vec![0; (end - base) as usize];
                for (node, next) in (0..).zip(next) {
                    let at = (place(node) - base) as usize;
                    bytes[at..at + 8].copy_from_slice(&place(next).to_le_bytes());
                }
                (*base, bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_visits_every_node_once() {
        for sorted in [false, true] {
            let ring = Data::Ring { base: 0x1000, nodes: 100, step: 4096, skew: 64, sorted };
            let (base, bytes) = ring.contents();
            let read = |at: u64| u64::from_le_bytes(bytes[(at - base) as usize..][..8].try_into().unwrap());
            let mut visited = std::collections::BTreeSet::new();
            let mut at = base;
            while visited.insert(at) {
                at = read(at);
            }
            assert_eq!((at, visited.len()), (base, 100));
        }
    }
}
