//! Interrupt vectors and their handlers.
//!
//! An image may return to real mode with interrupts enabled. It then finds a handler that counts timer ticks, handlers
//! that end the interrupts of the two controllers, and BIOS calls that return fields of the data area or report that
//! they are unsupported.

/// Segment of the handlers: the reserved top of the first megabyte.
const SEGMENT: u16 = 0xf000;
const VECTORS: usize = 256;

/// Code in the handlers' segment.
pub(super) struct Handler {
    offset: u16,
    pub code: &'static [u8],
}

impl Handler {
    pub fn address(&self) -> u64 {
        (u64::from(SEGMENT) << 4) + u64::from(self.offset)
    }
}

/// Indices into [`CODE`].
const RETURN: usize = 0;
const TICK: usize = 1;
const END_PRIMARY: usize = 2;
const END_SECONDARY: usize = 3;
const EQUIPMENT: usize = 4;
const BASE_MEMORY: usize = 5;
const UNSUPPORTED: usize = 6;

/// Code of the handlers. The handler that only returns is at its traditional address.
#[rustfmt::skip]
pub(super) const CODE: [Handler; 7] = [
    // iret
    Handler { offset: 0xff53, code: &[0xcf] },
    // push ax; push ds; xor ax, ax; mov ds, ax; add word [0x46c], 1; adc word [0x46e], 0; int 0x1c; mov al, 0x20;
    // out 0x20, al; pop ds; pop ax; iret
    Handler { offset: 0xfea5, code: &[
        0x50, 0x1e, 0x31, 0xc0, 0x8e, 0xd8, 0x83, 0x06, 0x6c, 0x04, 0x01, 0x83, 0x16, 0x6e, 0x04, 0x00, 0xcd, 0x1c, 0xb0, 0x20,
        0xe6, 0x20, 0x1f, 0x58, 0xcf,
    ] },
    // push ax; mov al, 0x20; out 0x20, al; pop ax; iret
    Handler { offset: 0xff00, code: &[0x50, 0xb0, 0x20, 0xe6, 0x20, 0x58, 0xcf] },
    // push ax; mov al, 0x20; out 0xa0, al; out 0x20, al; pop ax; iret
    Handler { offset: 0xff10, code: &[0x50, 0xb0, 0x20, 0xe6, 0xa0, 0xe6, 0x20, 0x58, 0xcf] },
    // push ds; xor ax, ax; mov ds, ax; mov ax, [0x410]; pop ds; iret
    Handler { offset: 0xf84d, code: &[0x1e, 0x31, 0xc0, 0x8e, 0xd8, 0xa1, 0x10, 0x04, 0x1f, 0xcf] },
    // push ds; xor ax, ax; mov ds, ax; mov ax, [0x413]; pop ds; iret
    Handler { offset: 0xf841, code: &[0x1e, 0x31, 0xc0, 0x8e, 0xd8, 0xa1, 0x13, 0x04, 0x1f, 0xcf] },
    // push bp; mov bp, sp; or byte [bp + 6], 1 (the carry flag of the caller); pop bp; mov ah, 0x86; iret
    Handler { offset: 0xf859, code: &[0x55, 0x89, 0xe5, 0x80, 0x4e, 0x06, 0x01, 0x5d, 0xb4, 0x86, 0xcf] },
];

/// Returns the handler of a vector.
fn handler(vector: usize) -> &'static Handler {
    &CODE[match vector {
        0x08 => TICK,
        0x09..=0x0f => END_PRIMARY,
        0x11 => EQUIPMENT,
        0x12 => BASE_MEMORY,
        // Disks, system services, time of day and PCI: callers check the carry flag.
        0x13 | 0x15 | 0x1a => UNSUPPORTED,
        0x70..=0x77 => END_SECONDARY,
        _ => RETURN,
    }]
}

/// Builds the vector table.
pub(super) fn vectors() -> Vec<u8> {
    let pointer = |vector| {
        let [a, b] = handler(vector).offset.to_le_bytes();
        let [c, d] = SEGMENT.to_le_bytes();
        [a, b, c, d]
    };
    (0..VECTORS).flat_map(pointer).collect()
}
