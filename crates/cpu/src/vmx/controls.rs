//! What a VMCS holds besides the registers: the controls of non-root mode, and the guest state that no register has.

use std::rc::Rc;
use x86::vmx::{interruption, primary};

/// The controls that there are, of those that the manuals define.
///
/// Of VM-exit and VM-entry controls there are none that only say what is copied between the processor and a VMCS: the guest's
/// registers stay in the processor.
pub(crate) mod supported {
    use x86::vmx::{entry, exit, pin, primary, secondary};

    /// Of [`pin`].
    pub const PIN: u32 = pin::EXTERNAL_INTERRUPT | pin::NMI | pin::VIRTUAL_NMIS | pin::PREEMPTION_TIMER;
    /// Of [`primary`].
    pub const PRIMARY: u32 = primary::INTERRUPT_WINDOW
        | primary::TSC_OFFSETTING
        | primary::HLT
        | primary::INVLPG
        | primary::MWAIT
        | primary::RDPMC
        | primary::RDTSC
        | primary::CR3_LOAD
        | primary::CR3_STORE
        | primary::CR8_LOAD
        | primary::CR8_STORE
        | primary::NMI_WINDOW
        | primary::MOV_DR
        | primary::UNCONDITIONAL_IO
        | primary::IO_BITMAPS
        | primary::MONITOR_TRAP
        | primary::MSR_BITMAPS
        | primary::MONITOR
        | primary::PAUSE
        | primary::SECONDARY;
    /// Of [`secondary`].
    pub const SECONDARY: u32 = secondary::EPT
        | secondary::DESCRIPTOR_TABLE
        | secondary::RDTSCP
        | secondary::VPID
        | secondary::WBINVD
        | secondary::UNRESTRICTED_GUEST
        | secondary::PAUSE_LOOP
        | secondary::RDRAND
        | secondary::INVPCID
        | secondary::RDSEED
        | secondary::XSAVES;
    /// Of [`exit`].
    pub const EXIT: u32 = exit::ACKNOWLEDGE_INTERRUPT | exit::SAVE_PREEMPTION_TIMER;
    /// Of [`entry`].
    pub const ENTRY: u32 = entry::IA32E_GUEST;
}

/// I/O bitmaps A and B, one after the other.
pub type IoBitmap = [u8; 8192];
/// MSR bitmaps: reads of low MSRs, of high ones, writes of low ones, of high ones.
pub type MsrBitmap = [u8; 4096];

/// Bitmaps as bytes of a file.
mod bitmap {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::rc::Rc;

    pub fn serialize<S: Serializer, const N: usize>(bitmap: &Option<Rc<[u8; N]>>, to: S) -> Result<S::Ok, S::Error> {
        bitmap.as_ref().map(|bitmap| bitmap.as_slice()).serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>, const N: usize>(from: D) -> Result<Option<Rc<[u8; N]>>, D::Error> {
        let Some(bytes) = Option::<Vec<u8>>::deserialize(from)? else { return Ok(None) };
        let length = bytes.len();
        let bitmap = <[u8; N]>::try_from(bytes).map_err(|_| D::Error::invalid_length(length, &"a whole bitmap"))?;
        Ok(Some(Rc::new(bitmap)))
    }
}

/// The controls, and the guest state that no register holds. The names are those of the SDM, vol. 3, 24.4 to 24.8.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Controls {
    /// Pin-based execution controls, see [`x86::vmx::pin`].
    pub pin: u32,
    /// Primary processor-based execution controls, see [`primary`].
    pub primary: u32,
    /// Secondary processor-based execution controls, see [`x86::vmx::secondary`]; only looked at with [`primary::SECONDARY`].
    pub secondary: u32,
    /// VM-exit controls, see [`x86::vmx::exit`].
    pub exit: u32,
    /// VM-entry controls, see [`x86::vmx::entry`]. An exit sets IA-32e mode guest to what EFER.LMA is then.
    pub entry: u32,
    /// Exceptions that exit, by vector.
    pub exception_bitmap: u32,
    /// Error-code bits of page faults that are compared.
    pub pf_error_mask: u32,
    /// What they are compared with: equal, and bit 14 of the bitmap decides; not equal, and its inverse does.
    pub pf_error_match: u32,
    /// Bits of CR0 that the host owns.
    pub cr0_mask: u64,
    /// What the guest reads in them.
    pub cr0_shadow: u64,
    /// Bits of CR4 that the host owns.
    pub cr4_mask: u64,
    /// What the guest reads in them.
    pub cr4_shadow: u64,
    /// Values that may be moved to CR3 without exit.
    pub cr3_targets: [u64; 4],
    /// How many of them count.
    pub cr3_target_count: u32,
    /// Ports that exit, with [`primary::IO_BITMAPS`]; none given: all do.
    #[serde(with = "bitmap")]
    pub io_bitmap: Option<Rc<IoBitmap>>,
    /// MSRs that exit, with [`primary::MSR_BITMAPS`]; none given: all do.
    #[serde(with = "bitmap")]
    pub msr_bitmap: Option<Rc<MsrBitmap>>,
    /// XSAVES and XRSTORS components that exit.
    pub xss_bitmap: u64,
    /// Added to the time-stamp counter, with [`primary::TSC_OFFSETTING`].
    pub tsc_offset: u64,
    /// EPT pointer.
    pub eptp: u64,
    /// Tag of the guest's translations.
    pub vpid: u16,
    /// Pause-loop exiting: the most time-stamp cycles between two PAUSEs of one loop.
    pub ple_gap: u32,
    /// Pause-loop exiting: time-stamp cycles that a loop may take.
    pub ple_window: u32,
    /// VMX-preemption timer, in units of [`super::PREEMPTION_TIMER_SHIFT`].
    pub preemption_timer: u32,

    /// Event to inject, see [`interruption`]; an exit clears its valid bit.
    pub entry_interruption: u32,
    /// Its error code.
    pub entry_error_code: u32,
    /// Length of the instruction that a software interrupt or exception comes from.
    pub entry_instruction_length: u32,

    /// Blocking by STI, MOV SS and NMI, see [`x86::vmx::interruptibility`].
    pub interruptibility: u32,
    /// Active or halted, see [`x86::vmx::activity`].
    pub activity: u32,
    /// Debug exceptions that are due, see [`x86::vmx::pending_debug`].
    pub pending_debug: u64,

    /// What [`charged_space`](crate::micro::Micro::charged_space) is once a value among [`Controls::cr3_targets`] has been moved to
    /// CR3.
    pub target_spaces: [Option<u64>; 4],
}

impl Controls {
    /// Whether all the given primary controls are set.
    #[inline]
    pub fn primary(&self, controls: u32) -> bool {
        self.primary & controls == controls
    }

    /// Whether the entry delivers an event.
    pub fn injects(&self) -> bool {
        let info = self.entry_interruption;
        info & interruption::VALID != 0 && info & interruption::TYPE != interruption::OTHER_EVENT
    }

    /// Whether all the given secondary controls are set and active.
    #[inline]
    pub fn secondary(&self, controls: u32) -> bool {
        self.primary & primary::SECONDARY != 0 && self.secondary & controls == controls
    }
}
