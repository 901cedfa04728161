//! Pairs of kernels that do one thing in two ways: what matters is which way is faster, and by how much.

use crate::kernel::{Data, Kernel};
use crate::layout::{HUGE, SMALL};
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, byte_ptr, dword_ptr, ptr, qword_ptr, registers::*, xmmword_ptr};
use silicon::random::Random;

/// Two ways to do one thing.
pub struct Pair {
    /// Name: the first way and the second.
    pub name: &'static str,
    /// The kernels.
    pub ways: [Kernel; 2],
}

type Emitted = Result<(), IcedError>;

/// Rounds of a short loop.
const ROUNDS: u64 = 4000;
/// Bytes of random data, more than a predictor can learn by heart, although a measurement is repeated many times.
const BYTES: u64 = 1 << 20;
/// Numbers of a table of indices.
const INDICES: u64 = 1 << 14;

/// Makes both kernels, which share preparation, rounds and data.
fn pair<P, A, B>(name: &'static str, rounds: u64, prepare: P, first: A, second: B) -> Pair
where
    P: Fn(&mut CodeAssembler) -> Emitted + Send + Sync + Clone + 'static,
    A: Fn(&mut CodeAssembler) -> Emitted + Send + Sync + 'static,
    B: Fn(&mut CodeAssembler) -> Emitted + Send + Sync + 'static,
{
    let first = Kernel::new(format!("{name}: 1"), rounds, prepare.clone(), first);
    let second = Kernel::new(format!("{name}: 2"), rounds, prepare, second);
    Pair { name, ways: [first, second] }
}

impl Pair {
    fn with(mut self, data: Data) -> Self {
        for way in &mut self.ways {
            way.data.push(data.clone());
        }
        self
    }

    fn data(mut self, first: Data, second: Data) -> Self {
        self.ways[0].data.push(first);
        self.ways[1].data.push(second);
        self
    }

    fn warm(mut self, warm: u64) -> Self {
        self.ways.iter_mut().for_each(|way| way.warm = warm);
        self
    }
}

/// Pointers that most kernels use: RBX and RSI to data in large pages, RDI 1 MiB above, RBP in the middle.
fn pointers(a: &mut CodeAssembler) -> Emitted {
    a.mov(rbx, HUGE)?;
    a.mov(rsi, HUGE)?;
    a.mov(rdi, HUGE + (1 << 20) + 2048)?;
    a.mov(rbp, HUGE + (1 << 19))?;
    a.mov(ecx, 3)?;
    a.mov(r8d, 7)?;
    a.mov(r9d, 1)?;
    a.xor(r10d, r10d)?;
    a.mov(r11, 0x3ff0_0000_0000_0000u64)?;
    a.movq(xmm1, r11)?;
    a.movq(xmm2, r11)?;
    a.pxor(xmm0, xmm0)
}

/// Writes a piece of code several times.
fn times(a: &mut CodeAssembler, count: usize, emit: impl Fn(&mut CodeAssembler, i32) -> Emitted) -> Emitted {
    (0..count as i32).try_for_each(|n| emit(a, n))
}

/// Returns the pairs.
pub fn pairs() -> Vec<Pair> {
    [branches(), arithmetic(), vectors(), stores(), memory(), calls(), front_end()].into_iter().flatten().collect()
}

/// Reads the next byte of the data to ECX.
fn next_byte(a: &mut CodeAssembler) -> Emitted {
    a.movzx(ecx, byte_ptr(rsi + SMALL))?;
    a.inc(esi)?;
    a.and(esi, BYTES as i32 - 1)
}

fn from_start(a: &mut CodeAssembler) -> Emitted {
    a.xor(esi, esi)?;
    a.mov(r9d, 1)
}

/// Adds the byte if it is at least 128, by a branch.
fn add_if(a: &mut CodeAssembler) -> Emitted {
    let mut less = a.create_label();
    next_byte(a)?;
    a.cmp(ecx, 128)?;
    a.jb(less)?;
    a.add(r8, rcx)?;
    a.set_label(&mut less)?;
    a.add(r10, r9)
}

/// Does the same without a branch.
fn add_if_by_cmov(a: &mut CodeAssembler) -> Emitted {
    next_byte(a)?;
    a.xor(r11d, r11d)?;
    a.cmp(ecx, 128)?;
    a.cmovae(r11d, ecx)?;
    a.add(r8, r11)?;
    a.add(r10, r9)
}

fn branches() -> Vec<Pair> {
    let random = || Random::bytes(13, BYTES as usize);
    let sorted = || {
        let mut bytes = random();
        bytes.sort_unstable();
        bytes
    };
    let bytes = |bytes| Data::Bytes(SMALL, bytes);
    // A binary search of 1024 numbers, for keys that follow each other at random.
    let numbers: Vec<u8> = (0..1024u32).flat_map(|n| (n * 64).to_le_bytes()).collect();
    let search = |branches: bool| {
        move |a: &mut CodeAssembler| {
            next_byte(a)?;
            a.movzx(r11d, byte_ptr(rsi + SMALL))?;
            a.shl(r11d, 8)?;
            a.or(ecx, r11d)?;
            a.xor(edi, edi)?;
            times(a, 10, |a, n| {
                let half = 512 >> n;
                if branches {
                    let mut less = a.create_label();
                    a.cmp(dword_ptr(rbx + rdi * 4 + 4 * half), ecx)?;
                    a.ja(less)?;
                    a.add(edi, half)?;
                    a.set_label(&mut less)?;
                    a.nop()
                } else {
                    a.lea(r11d, dword_ptr(rdi + half))?;
                    a.cmp(dword_ptr(rbx + rdi * 4 + 4 * half), ecx)?;
                    a.cmovbe(edi, r11d)
                }
            })
        }
    };
    let beginning = |a: &mut CodeAssembler| {
        from_start(a)?;
        a.mov(rbx, HUGE)
    };
    // The direction changes with each round, or every 8th: both are learnt at once.
    vec![
        pair("branch on random, on sorted data", BYTES, from_start, add_if, add_if)
            .data(bytes(random()), bytes(sorted()))
            .warm(BYTES),
        pair("branch, CMOV on random data", BYTES / 2, from_start, add_if, add_if_by_cmov)
            .with(bytes(random()))
            .warm(BYTES),
        pair("branch, CMOV on sorted data", BYTES, from_start, add_if, add_if_by_cmov)
            .with(bytes(sorted()))
            .warm(BYTES),
        pair("binary search by branches, by CMOV", BYTES / 16, beginning, search(true), search(false))
            .with(bytes(random()))
            .with(Data::Bytes(HUGE, numbers))
            .warm(4096),
        pair(
            "LOOP, DEC and JNZ",
            ROUNDS,
            pointers,
            |a| {
                let mut top = a.create_label();
                a.mov(ecx, 16)?;
                a.set_label(&mut top)?;
                a.add(r8, r9)?;
                a.loop_(top)
            },
            |a| {
                let mut top = a.create_label();
                a.mov(ecx, 16)?;
                a.set_label(&mut top)?;
                a.add(r8, r9)?;
                a.dec(ecx)?;
                a.jne(top)
            },
        ),
    ]
}

fn arithmetic() -> Vec<Pair> {
    vec![
        pair(
            "division by 10, multiplication and shift",
            ROUNDS,
            pointers,
            |a| {
                a.mov(eax, r8d)?;
                a.xor(edx, edx)?;
                a.mov(ecx, 10)?;
                a.div(ecx)?;
                a.lea(r8d, dword_ptr(rax + 1_000_000))
            },
            |a| {
                a.mov(eax, r8d)?;
                a.mov(ecx, 0xcccc_cccdu32)?;
                a.imul_2(rax, rcx)?;
                a.shr(rax, 35)?;
                a.lea(r8d, dword_ptr(rax + 1_000_000))
            },
        ),
        pair(
            "DIV of 64 bits, of 32 bits",
            ROUNDS,
            pointers,
            |a| {
                a.mov(eax, 1_000_000)?;
                a.xor(edx, edx)?;
                a.div(r8)?;
                a.add(r10, rax)
            },
            |a| {
                a.mov(eax, 1_000_000)?;
                a.xor(edx, edx)?;
                a.div(r8d)?;
                a.add(r10, rax)
            },
        ),
        pair(
            "IMUL by 9, LEA",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.imul_3(r8, r8, 9)),
            |a| times(a, 8, |a, _| a.lea(r8, qword_ptr(r8 + r8 * 8))),
        ),
        pair(
            "dependent, independent multiplications",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.imul_2(r8, rcx)),
            |a| times(a, 4, |a, _| a.imul_2(r8, rcx).and_then(|()| a.imul_2(r10, rcx))),
        ),
        pair(
            "one sum, four sums",
            ROUNDS,
            pointers,
            |a| times(a, 16, |a, _| a.addsd(xmm1, xmm2)),
            |a| {
                let sums = [xmm3, xmm4, xmm5, xmm6];
                times(a, 16, |a, n| a.addsd(sums[n as usize % 4], xmm2))
            },
        ),
        pair("INC, ADD", ROUNDS, pointers, |a| times(a, 8, |a, _| a.inc(r8)), |a| times(a, 8, |a, _| a.add(r8, 1))),
        pair(
            "LEA of three terms, two additions",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.lea(r8, qword_ptr(r8 + rcx * 2 + 8))),
            |a| times(a, 8, |a, _| a.add(r8, rcx).and_then(|()| a.add(r8, 8))),
        ),
        pair(
            "SHLD, shifts and OR",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, _| a.shld(r8, r9, 7)),
            |a| {
                times(a, 4, |a, _| {
                    a.mov(r11, r9)?;
                    a.shr(r11, 57)?;
                    a.shl(r8, 7)?;
                    a.or(r8, r11)
                })
            },
        ),
        pair(
            "shift by CL, by a constant",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.shl(r8, cl)),
            |a| times(a, 8, |a, _| a.shl(r8, 3)),
        ),
        pair(
            "BSF, POPCNT",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.bsf(r8, r11)),
            |a| times(a, 8, |a, _| a.popcnt(r8, r11)),
        ),
        pair(
            "POPCNT into one register, into a cleared one",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.popcnt(r8, r11)),
            |a| times(a, 8, |a, _| a.xor(r8d, r8d).and_then(|()| a.popcnt(r8, r11))),
        ),
        pair(
            "byte register, whole register",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.mov(r8b, r9b).and_then(|()| a.add(r10, r8))),
            |a| times(a, 8, |a, _| a.movzx(r8d, r9b).and_then(|()| a.add(r10, r8))),
        ),
        pair(
            "ADC chain, ADD",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, n| a.adc([r8, r10, r11, rcx][n as usize % 4], r9)),
            |a| times(a, 8, |a, n| a.add([r8, r10, r11, rcx][n as usize % 4], r9)),
        ),
    ]
}

fn vectors() -> Vec<Pair> {
    vec![
        pair(
            "four scalar additions, one of a vector",
            ROUNDS,
            pointers,
            |a| {
                let sums = [xmm3, xmm4, xmm5, xmm6];
                times(a, 16, |a, n| a.addss(sums[n as usize % 4], xmm2))
            },
            |a| {
                let sums = [xmm3, xmm4, xmm5, xmm6];
                times(a, 4, |a, n| a.addps(sums[n as usize % 4], xmm2))
            },
        ),
        pair(
            "division, multiplication of numbers",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, _| a.divsd(xmm1, xmm2)),
            |a| times(a, 4, |a, _| a.mulsd(xmm1, xmm2)),
        ),
        pair(
            "square root, multiplication",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, _| a.sqrtsd(xmm1, xmm1)),
            |a| times(a, 4, |a, _| a.mulsd(xmm1, xmm1)),
        ),
        pair(
            "CVTSI2SD into one register, into a cleared one",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.cvtsi2sd(xmm3, r8d)),
            |a| times(a, 8, |a, _| a.pxor(xmm3, xmm3).and_then(|()| a.cvtsi2sd(xmm3, r8d))),
        ),
        pair(
            "value through a vector register, through a general one",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, _| a.movq(xmm3, r8).and_then(|()| a.movq(r8, xmm3))),
            |a| times(a, 4, |a, _| a.mov(r11, r8).and_then(|()| a.lea(r8, qword_ptr(r11 + 1)))),
        ),
        pair(
            "sum of 4 KiB by bytes, by vectors",
            64,
            pointers,
            |a| {
                let mut top = a.create_label();
                a.xor(esi, esi)?;
                a.set_label(&mut top)?;
                a.movzx(ecx, byte_ptr(rbx + rsi))?;
                a.add(r8, rcx)?;
                a.inc(esi)?;
                a.cmp(esi, 4096)?;
                a.jb(top)
            },
            |a| {
                let mut top = a.create_label();
                a.xor(esi, esi)?;
                a.set_label(&mut top)?;
                a.movdqa(xmm3, xmmword_ptr(rbx + rsi))?;
                a.psadbw(xmm3, xmm0)?;
                a.paddq(xmm4, xmm3)?;
                a.add(esi, 16)?;
                a.cmp(esi, 4096)?;
                a.jb(top)
            },
        )
        .with(Data::Fill(HUGE, 4096, 1)),
    ]
}

/// Copies or fills by a vector loop of 64 bytes.
fn vector_loop(a: &mut CodeAssembler, bytes: u64, copies: bool) -> Emitted {
    let mut top = a.create_label();
    a.xor(ecx, ecx)?;
    a.set_label(&mut top)?;
    times(a, 4, |a, n| {
        if copies {
            a.movups(xmm3, xmmword_ptr(rsi + rcx + 16 * n))?;
        }
        a.movups(xmmword_ptr(rdi + rcx + 16 * n), if copies { xmm3 } else { xmm0 })
    })?;
    a.add(ecx, 64)?;
    a.cmp(ecx, bytes as i32)?;
    a.jb(top)
}

/// Does the same by a repeated string instruction.
fn repeated(a: &mut CodeAssembler, bytes: u64, copies: bool) -> Emitted {
    a.mov(r12, rsi)?;
    a.mov(r13, rdi)?;
    a.mov(ecx, bytes as u32)?;
    if copies {
        a.rep().movsb()?;
    } else {
        a.xor(eax, eax)?;
        a.rep().stosb()?;
    }
    a.mov(rsi, r12)?;
    a.mov(rdi, r13)
}

fn stores() -> Vec<Pair> {
    let strings = |name, rounds, bytes, copies| {
        pair(name, rounds, pointers, move |a| repeated(a, bytes, copies), move |a| vector_loop(a, bytes, copies))
            .with(Data::Fill(HUGE, 2 << 20, 1))
    };
    // All of the memory is written, a line in each round.
    let streamed = |name, bytes: u64| {
        let lines = move |nontemporal: bool| {
            move |a: &mut CodeAssembler| {
                times(a, 4, |a, n| match nontemporal {
                    true => a.movntps(xmmword_ptr(rsi + 16 * n), xmm0),
                    false => a.movaps(xmmword_ptr(rsi + 16 * n), xmm0),
                })?;
                a.add(rsi, 64)?;
                a.cmp(rsi, rdi)?;
                a.cmovae(rsi, rbx)
            }
        };
        let prepare = move |a: &mut CodeAssembler| {
            pointers(a)?;
            a.mov(rdi, HUGE + bytes)
        };
        // A whole pass at least: a part of a large memory would be found in the third level by the next measurement.
        let rounds = (bytes / 64).max(2048);
        pair(name, rounds, prepare, lines(true), lines(false)).with(Data::Fill(HUGE, bytes, 0)).warm(rounds)
    };
    vec![
        pair(
            "value through memory, through a register",
            ROUNDS,
            pointers,
            |a| {
                times(a, 4, |a, _| {
                    a.mov(qword_ptr(rbx), r8)?;
                    a.mov(r8, qword_ptr(rbx))?;
                    a.add(r8, r9)
                })
            },
            |a| {
                times(a, 4, |a, _| {
                    a.mov(r11, r8)?;
                    a.mov(r8, r11)?;
                    a.add(r8, r9)
                })
            },
        ),
        pair(
            "load of two stores, of one",
            ROUNDS,
            pointers,
            |a| {
                a.mov(dword_ptr(rbx), r8d)?;
                a.mov(dword_ptr(rbx + 4), r9d)?;
                a.mov(r8, qword_ptr(rbx))?;
                a.add(r8, r9)
            },
            |a| {
                a.mov(dword_ptr(rbx + 8), r9d)?;
                a.mov(qword_ptr(rbx), r8)?;
                a.mov(r8, qword_ptr(rbx))?;
                a.add(r8, r9)
            },
        ),
        pair(
            "sum in memory, in a register",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, _| a.add(qword_ptr(rbx), r9)),
            |a| times(a, 4, |a, _| a.add(r8, r9)),
        ),
        pair(
            "LOCK ADD, ADD",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, n| a.lock().add(qword_ptr(rbx + 64 * n), r9)),
            |a| times(a, 4, |a, n| a.add(qword_ptr(rbx + 64 * n), r9)),
        ),
        pair(
            "XCHG with memory, MOV",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, n| a.xchg(qword_ptr(rbx + 64 * n), r8)),
            |a| {
                times(a, 4, |a, n| {
                    a.mov(r11, qword_ptr(rbx + 64 * n))?;
                    a.mov(qword_ptr(rbx + 64 * n), r8)
                })
            },
        ),
        pair(
            "store and MFENCE, LOCK OR on the stack",
            ROUNDS,
            pointers,
            |a| a.mov(qword_ptr(rbx), r8).and_then(|()| a.mfence()),
            |a| a.mov(qword_ptr(rbx), r8).and_then(|()| a.lock().or(dword_ptr(rsp - 64), 0)),
        ),
        strings("REP MOVSB, vector loop: 64 bytes", ROUNDS / 2, 64, true),
        strings("REP MOVSB, vector loop: 1 KiB", 512, 1024, true),
        strings("REP MOVSB, vector loop: 16 KiB", 64, 16 << 10, true),
        strings("REP STOSB, vector loop: 64 bytes", ROUNDS / 2, 64, false),
        strings("REP STOSB, vector loop: 16 KiB", 64, 16 << 10, false),
        streamed("non-temporal, plain stores: 16 KiB", 16 << 10),
        streamed("non-temporal, plain stores: 64 MiB", 64 << 20),
        pair(
            "PUSH and POP, MOV",
            ROUNDS,
            pointers,
            |a| times(a, 4, |a, _| a.push(r8).and_then(|()| a.pop(r10))),
            |a| {
                times(a, 4, |a, n| {
                    a.mov(qword_ptr(rsp - 8 * n - 8), r8)?;
                    a.mov(r10, qword_ptr(rsp - 8 * n - 8))
                })
            },
        ),
    ]
}

/// Loads an element of each step of memory, and begins again after `bytes`.
fn walk(bytes: u64, step: u64) -> impl Fn(&mut CodeAssembler) -> Emitted + Send + Sync + 'static {
    move |a| {
        a.add(r8d, dword_ptr(rbx + rsi))?;
        a.add(rsi, step as i32)?;
        a.cmp(rsi, bytes as i32)?;
        a.cmovae(rsi, r10)
    }
}

fn walking(a: &mut CodeAssembler) -> Emitted {
    pointers(a)?;
    a.xor(esi, esi)
}

fn memory() -> Vec<Pair> {
    let ring = |nodes, sorted| Data::Ring { base: HUGE, nodes, step: 64, skew: 0, sorted };
    let follow = |a: &mut CodeAssembler| a.mov(rbx, qword_ptr(rbx)).and_then(|()| a.add(r8, r9));
    let listed = |name, nodes: u64| {
        pair(name, nodes.min(20_000), pointers, follow, follow)
            .data(ring(nodes, false), ring(nodes, true))
            .warm(nodes.min(200_000))
    };
    let loads = |offset: i32, step: i32| {
        move |a: &mut CodeAssembler| times(a, 16, |a, n| a.mov(r8, qword_ptr(rbx + offset + step * n)))
    };
    // 16 MiB of random indices of 4 MiB of data: prefetched eight ahead, or not.
    let mut random = Random::new(3);
    let indices: Vec<u8> = (0..INDICES).flat_map(|_| (random.below(1 << 18) as u32 * 64).to_le_bytes()).collect();
    let gathered = |prefetches: bool| {
        move |a: &mut CodeAssembler| {
            if prefetches {
                a.mov(ecx, dword_ptr(rsi * 4 + (SMALL + 64)))?;
                a.prefetcht0(byte_ptr(rbx + rcx))?;
            }
            a.mov(ecx, dword_ptr(rsi * 4 + SMALL))?;
            a.mov(r11, qword_ptr(rbx + rcx))?;
            // The next load's address depends on this one, as if it had been looked at.
            a.and(r11d, 0)?;
            a.lea(rsi, qword_ptr(rsi + r11 + 1))?;
            a.and(esi, (INDICES - 1) as i32)
        }
    };
    let list_of_integers = |nodes: u64| {
        pair(
            "list, array of 256 KiB",
            8192,
            walking,
            |a| a.mov(rbp, qword_ptr(rbp)).and_then(|()| a.add(r8, r9)),
            walk(256 << 10, 64),
        )
        .with(Data::Ring { base: HUGE + (1 << 19), nodes, step: 64, skew: 0, sorted: false })
        .warm(8192)
    };
    let cached = |bytes: u64| Data::Fill(HUGE, bytes, 1);
    vec![
        listed("shuffled, sorted list in 256 KiB", 4096),
        listed("shuffled, sorted list in 8 MiB", 1 << 17),
        list_of_integers(4096),
        pair("every 16th element, every element: 8 MiB", 100_000, walking, walk(8 << 20, 64), walk(8 << 20, 4))
            .with(cached(8 << 20))
            .warm(200_000),
        pair("columns, rows of a matrix of 4 MiB", 50_000, walking, walk(4 << 20, 4096 + 64), walk(4 << 20, 64))
            .with(cached(4 << 20))
            .warm(100_000),
        pair("structures of 64 bytes, dense fields: 1 MiB", 16_384, walking, walk(1 << 20, 64), walk(1 << 16, 4))
            .with(cached(1 << 20))
            .warm(32_768),
        pair("16 lines 4 KiB apart, in a row", ROUNDS, pointers, loads(0, 4096), loads(0, 64)).with(cached(1 << 17)),
        pair("loads across lines, within lines", ROUNDS, pointers, loads(60, 64), loads(56, 64)).with(cached(1 << 17)),
        pair("loads across pages, within pages", ROUNDS, pointers, loads(4092, 4096), loads(4088, 4096))
            .with(cached(1 << 17)),
        pair("without, with PREFETCHT0: 16 MiB", 16_384, walking, gathered(false), gathered(true))
            .with(cached(16 << 20))
            .with(Data::Bytes(SMALL, indices))
            .warm(32_768),
    ]
}

fn calls() -> Vec<Pair> {
    /// Writes a function, over which the code jumps, and the code that uses it.
    fn with_function(
        a: &mut CodeAssembler,
        function: impl Fn(&mut CodeAssembler) -> Emitted,
        rest: impl Fn(&mut CodeAssembler, iced_x86::code_asm::CodeLabel) -> Emitted,
    ) -> Emitted {
        let (mut called, mut over) = (a.create_label(), a.create_label());
        a.jmp(over)?;
        a.set_label(&mut called)?;
        function(a)?;
        a.set_label(&mut over)?;
        a.nop()?;
        rest(a, called)
    }
    let adds = |a: &mut CodeAssembler| a.add(r8, r9).and_then(|()| a.ret());
    vec![
        pair(
            "call, the same inline",
            ROUNDS,
            pointers,
            move |a| with_function(a, adds, |a, called| times(a, 4, |a, _| a.call(called))),
            move |a| with_function(a, adds, |a, _| times(a, 4, |a, _| a.add(r8, r9))),
        ),
        pair(
            "indirect, direct call",
            ROUNDS,
            pointers,
            move |a| {
                with_function(a, adds, |a, called| {
                    a.lea(rcx, ptr(called))?;
                    times(a, 4, |a, _| a.call(rcx))
                })
            },
            move |a| with_function(a, adds, |a, called| times(a, 4, |a, _| a.call(called))),
        ),
        pair(
            "return to a pushed address, call",
            ROUNDS,
            pointers,
            |a| {
                let mut next = a.create_label();
                a.lea(rcx, ptr(next))?;
                a.push(rcx)?;
                a.ret()?;
                a.set_label(&mut next)?;
                a.add(r8, r9)
            },
            move |a| with_function(a, adds, |a, called| a.call(called)),
        ),
    ]
}

fn front_end() -> Vec<Pair> {
    vec![
        pair(
            "sum of an array, rolled and unrolled",
            512,
            pointers,
            |a| {
                let mut top = a.create_label();
                a.xor(esi, esi)?;
                a.set_label(&mut top)?;
                a.add(r8, qword_ptr(rbx + rsi * 8))?;
                a.inc(esi)?;
                a.cmp(esi, 64)?;
                a.jb(top)
            },
            |a| {
                a.xor(esi, esi)?;
                times(a, 64, |a, n| a.add(r8, qword_ptr(rbx + 8 * n)))
            },
        )
        .with(Data::Fill(HUGE, 4096, 1)),
        pair(
            "MOV of 0, XOR",
            ROUNDS,
            pointers,
            |a| times(a, 8, |a, _| a.mov(r8d, 0).and_then(|()| a.add(r8, r9))),
            |a| times(a, 8, |a, _| a.xor(r8d, r8d).and_then(|()| a.add(r8, r9))),
        ),
        pair(
            "MOV of 64 bits, of 32 bits",
            ROUNDS,
            pointers,
            |a| times(a, 16, |a, n| a.mov([r8, r10, r11, rcx][n as usize % 4], 0x1234_5678_9abc_def0u64)),
            |a| times(a, 16, |a, n| a.mov([r8d, r10d, r11d, ecx][n as usize % 4], 0x1234_5678u32)),
        ),
        pair("PAUSE, NOP", 512, pointers, |a| times(a, 2, |a, _| a.pause()), |a| times(a, 2, |a, _| a.nop())),
        pair(
            "code of 64 KiB, the same in a loop",
            16,
            pointers,
            |a| times(a, 16_384, |a, n| a.add([r8, r10, r11, rcx][n as usize % 4], rsi)),
            |a| {
                let mut top = a.create_label();
                a.mov(ebp, 1024)?;
                a.set_label(&mut top)?;
                times(a, 16, |a, n| a.add([r8, r10, r11, rcx][n as usize % 4], rsi))?;
                a.dec(ebp)?;
                a.jne(top)
            },
        ),
    ]
}
