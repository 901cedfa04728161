//! What the second tier, same-ISA translation, keeps beside the tables of the fast path.

/// What translated code keeps at its stack pointer.
#[repr(C)]
pub struct Running {
    registers: [u64; 16],
}
