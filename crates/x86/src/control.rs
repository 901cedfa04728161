//! Control registers, EFER and XCR0 (SDM vol. 3, 2.2.1, 2.5 and 2.6).

/// Protected mode.
pub const CR0_PE: u64 = 1 << 0;
/// Monitor coprocessor: WAIT faults with TS too.
pub const CR0_MP: u64 = 1 << 1;
/// Emulation: x87 instructions raise #NM.
pub const CR0_EM: u64 = 1 << 2;
/// Task switched: the next x87 or vector instruction faults.
pub const CR0_TS: u64 = 1 << 3;
/// Extension type: always set.
pub const CR0_ET: u64 = 1 << 4;
/// Numeric error: x87 errors are exceptions.
pub const CR0_NE: u64 = 1 << 5;
/// Write protection applies to supervisor accesses too.
pub const CR0_WP: u64 = 1 << 16;
/// Alignment mask: RFLAGS.AC enables alignment checks.
pub const CR0_AM: u64 = 1 << 18;
/// Not write-through.
pub const CR0_NW: u64 = 1 << 29;
/// Cache disable.
pub const CR0_CD: u64 = 1 << 30;
/// Paging.
pub const CR0_PG: u64 = 1 << 31;

/// The PCID in CR3, with CR4.PCIDE.
pub const CR3_PCID: u64 = 0xfff;
/// A value moved to CR3 with CR4.PCIDE: nothing is flushed.
pub const CR3_NO_FLUSH: u64 = 1 << 63;
/// The page directory of 32-bit paging in CR3.
pub const CR3_ADDRESS_32: u64 = 0xffff_f000;
/// The page-directory-pointer table of PAE paging in CR3.
pub const CR3_ADDRESS_PAE: u64 = 0xffff_ffe0;

/// Virtual-8086 mode extensions.
pub const CR4_VME: u64 = 1 << 0;
/// Protected-mode virtual interrupts.
pub const CR4_PVI: u64 = 1 << 1;
/// RDTSC requires CPL 0.
pub const CR4_TSD: u64 = 1 << 2;
/// Debugging extensions: I/O breakpoints, no aliases of DR6 and DR7.
pub const CR4_DE: u64 = 1 << 3;
/// 4 MiB pages under 32-bit paging.
pub const CR4_PSE: u64 = 1 << 4;
/// Physical address extension: entries of eight bytes.
pub const CR4_PAE: u64 = 1 << 5;
/// Machine checks are exceptions.
pub const CR4_MCE: u64 = 1 << 6;
/// Global pages.
pub const CR4_PGE: u64 = 1 << 7;
/// RDPMC at any CPL.
pub const CR4_PCE: u64 = 1 << 8;
/// FXSAVE and FXRSTOR save vector registers; SSE is enabled.
pub const CR4_OSFXSR: u64 = 1 << 9;
/// SIMD floating-point errors are #XM.
pub const CR4_OSXMMEXCPT: u64 = 1 << 10;
/// SGDT and similar instructions require CPL 0.
pub const CR4_UMIP: u64 = 1 << 11;
/// 57-bit linear addresses: five levels of tables.
pub const CR4_LA57: u64 = 1 << 12;
/// VMX operation is allowed.
pub const CR4_VMXE: u64 = 1 << 13;
/// SMX operation is allowed.
pub const CR4_SMXE: u64 = 1 << 14;
/// RDFSBASE and similar instructions are allowed.
pub const CR4_FSGSBASE: u64 = 1 << 16;
/// Process-context identifiers.
pub const CR4_PCIDE: u64 = 1 << 17;
/// XSAVE and XCR0 are enabled.
pub const CR4_OSXSAVE: u64 = 1 << 18;
/// The supervisor can't fetch from user pages.
pub const CR4_SMEP: u64 = 1 << 20;
/// The supervisor can't access user pages unless RFLAGS.AC is set.
pub const CR4_SMAP: u64 = 1 << 21;
/// Protection keys for user pages.
pub const CR4_PKE: u64 = 1 << 22;
/// Control-flow enforcement.
pub const CR4_CET: u64 = 1 << 23;
/// Protection keys for supervisor pages.
pub const CR4_PKS: u64 = 1 << 24;

/// SYSCALL is enabled.
pub const EFER_SCE: u64 = 1 << 0;
/// Long mode is enabled.
pub const EFER_LME: u64 = 1 << 8;
/// Long mode is active.
pub const EFER_LMA: u64 = 1 << 10;
/// Execute-disable bits of page tables are in effect.
pub const EFER_NXE: u64 = 1 << 11;
/// Secure virtual machines are enabled (APM vol. 2, 3.1.7).
pub const EFER_SVME: u64 = 1 << 12;
/// Long-mode segment limits (APM vol. 2, 3.1.7).
pub const EFER_LMSLE: u64 = 1 << 13;
/// Fast FXSAVE and FXRSTOR (APM vol. 2, 3.1.7).
pub const EFER_FFXSR: u64 = 1 << 14;
/// Translation cache extension (APM vol. 2, 3.1.7).
pub const EFER_TCE: u64 = 1 << 15;

/// x87 state; always set in XCR0.
pub const XCR0_X87: u64 = 1 << 0;
/// XMM registers and MXCSR.
pub const XCR0_SSE: u64 = 1 << 1;
/// Upper halves of YMM registers.
pub const XCR0_AVX: u64 = 1 << 2;
/// AVX-512: opmask registers, upper halves of ZMM0-15, ZMM16-31; enabled together.
pub const XCR0_AVX512: u64 = 7 << 5;
/// PKRU.
pub const XCR0_PKRU: u64 = 1 << 9;
/// AMX: the configuration of tiles and their data; enabled together.
pub const XCR0_TILES: u64 = 3 << 17;
/// The data of tiles.
pub const XCR0_TILE_DATA: u64 = 1 << 18;
