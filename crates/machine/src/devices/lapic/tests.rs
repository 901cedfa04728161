use proptest::prelude::*;
use x86::msr::{APIC_BASE, TSC_DEADLINE, X2APIC_FIRST};

use super::*;
use crate::devices::ioapic::{Target, decode_msi};

/// TSC and timer both run at 1 GHz: one timer clock is 1000 ticks.
const CLOCK: Clock = Clock::new(1_000_000_000);
const X2APIC: u64 = APIC_BASE_ENABLE | APIC_BASE_X2APIC;

fn lapic(id: u32) -> Lapic {
    let config = LapicConfig { id, bsp: id == 0, x2apic: true, physical_bits: 46, clock: CLOCK, timer_hz: TIMER_HZ };
    let mut lapic = Lapic::new(config);
    write(&mut lapic, 0xf0, 0x1ff);
    lapic
}

fn x2apic(id: u32) -> Lapic {
    let mut lapic = lapic(id);
    let value = lapic.apic_base() | APIC_BASE_X2APIC;
    assert!(lapic.set_apic_base(value));
    lapic
}

fn write(lapic: &mut Lapic, offset: u64, value: u32) {
    lapic.mmio_write(offset, 4, u64::from(value), 0);
}

fn read(lapic: &mut Lapic, offset: u64) -> u32 {
    lapic.mmio_read(offset, 4, 0) as u32
}

fn fixed(target: Target, vector: u8) -> InterruptMessage {
    InterruptMessage { target, wide: false, delivery: Delivery::Fixed, vector, level_triggered: false }
}

fn pending(lapic: &Lapic) -> Option<u8> {
    highest(&lapic.irr)
}

#[test]
fn reset_values() {
    let mut apic = Lapic::new(LapicConfig { bsp: true, ..lapic(0).config });
    for (offset, expected) in [
        (0x20, 0),
        (0x30, 0x5_0014),
        (0x80, 0),
        (0xd0, 0),
        (0xe0, u32::MAX),
        (0xf0, 0xff),
        (0x320, 0x1_0000),
        (0x350, 0x1_0000),
    ] {
        assert_eq!(read(&mut apic, offset), expected, "{offset:#x}");
    }
    assert_eq!(apic.apic_base(), 0xfee0_0900);
}

#[test]
fn apic_base_transitions() {
    const OFF: u64 = 0;
    const XAPIC: u64 = APIC_BASE_ENABLE;
    const INVALID: u64 = APIC_BASE_X2APIC;
    // (preceding states, last write, accepted)
    let table: [(&[u64], u64, bool); 13] = [
        (&[XAPIC], XAPIC, true),
        (&[XAPIC], OFF, true),
        (&[XAPIC], X2APIC, true),
        (&[XAPIC], INVALID, false),
        (&[OFF], INVALID, false),
        (&[OFF], X2APIC, false),
        (&[OFF], XAPIC, true),
        (&[X2APIC], XAPIC, false),
        (&[X2APIC], INVALID, false),
        (&[X2APIC], OFF, true),
        (&[X2APIC], X2APIC, true),
        (&[XAPIC], XAPIC | 1, false),
        (&[XAPIC], XAPIC | 1 << 46, false),
    ];
    for (path, last, accepted) in table {
        let mut apic = lapic(0);
        for &state in path {
            assert!(apic.set_apic_base(DEFAULT_BASE | APIC_BASE_BSP | state));
        }
        let before = apic.apic_base();
        let value = DEFAULT_BASE | APIC_BASE_BSP | last;
        assert_eq!(apic.set_apic_base(value), accepted, "{path:x?} then {last:#x}");
        assert_eq!(apic.apic_base(), if accepted { value } else { before });
    }
}

#[test]
fn x2apic_mode_needs_the_feature() {
    let mut apic = Lapic::new(LapicConfig { x2apic: false, ..lapic(0).config });
    assert!(!apic.set_apic_base(DEFAULT_BASE | X2APIC));
}

#[test]
fn disabling_resets_and_keeps_the_id() {
    let mut apic = x2apic(0x15);
    apic.set_cr8(0);
    assert!(apic.msr_write(0x832, 0x30, 0));
    assert_eq!(apic.mmio_base(), None);
    assert!(apic.set_apic_base(DEFAULT_BASE));
    assert_eq!(apic.mmio_base(), None);
    apic.set_cr8(0xf);
    assert_eq!(apic.cr8(), 0xf, "CR8 works without the APIC");
    apic.set_cr8(0);
    assert!(apic.set_apic_base(0xfed4_0000 | APIC_BASE_ENABLE));
    assert_eq!(apic.mmio_base(), Some(0xfed4_0000));
    assert_eq!(read(&mut apic, 0x20), 0x1500_0000);
    assert_eq!(read(&mut apic, 0xf0), 0xff);
    assert_eq!(read(&mut apic, 0x320), LVT_MASKED);
}

#[test]
fn priorities() {
    // (TPR, in service, pending, PPR, delivered)
    let table = [
        (0x00, None, 0x30, 0x00, Some(0x30)),
        (0x2f, None, 0x30, 0x2f, Some(0x30)),
        (0x30, None, 0x3f, 0x30, None),
        (0x00, Some(0x45), 0x4f, 0x40, None),
        (0x00, Some(0x45), 0x50, 0x40, Some(0x50)),
        (0x43, Some(0x45), 0x50, 0x43, Some(0x50)),
        (0xff, None, 0xff, 0xff, None),
    ];
    for (tpr, serving, vector, ppr, delivered) in table {
        let mut apic = lapic(0);
        if let Some(serving) = serving {
            apic.receive(&fixed(Target::All, serving));
            assert_eq!(apic.acknowledge(), Some(serving));
        }
        write(&mut apic, 0x80, tpr);
        apic.receive(&fixed(Target::All, vector));
        assert_eq!(read(&mut apic, 0xa0), ppr);
        assert_eq!(apic.interrupt(), delivered.map(Interrupt::Vector), "{tpr:#x} {serving:x?} {vector:#x}");
        assert_eq!(apic.acknowledge(), delivered);
    }
}

#[test]
fn cr8_and_tpr_are_one_register() {
    let mut apic = lapic(0);
    write(&mut apic, 0x80, 0x5a);
    assert_eq!(apic.cr8(), 5);
    apic.set_cr8(0xf);
    assert_eq!(read(&mut apic, 0x80), 0xf0);
}

#[test]
fn eoi_ends_the_highest_and_is_broadcast_for_levels() {
    let mut apic = lapic(0);
    for (vector, level_triggered) in [(0x31, false), (0x51, true)] {
        apic.receive(&InterruptMessage { level_triggered, ..fixed(Target::All, vector) });
        assert_eq!(apic.acknowledge(), Some(vector));
    }
    assert_eq!(read(&mut apic, 0x1a0), 1 << 17, "TMR of 0x51");
    write(&mut apic, 0xb0, 0);
    assert_eq!(apic.pop_eoi(), Some(0x51));
    assert_eq!(read(&mut apic, 0x110), 1 << 17, "0x31 is still in service");
    write(&mut apic, 0xb0, 0);
    write(&mut apic, 0xb0, 0);
    assert_eq!((apic.pop_eoi(), highest(&apic.isr)), (None, None));
}

#[test]
fn tmr_follows_the_last_message_of_a_vector() {
    let mut apic = lapic(0);
    for level_triggered in [true, false] {
        apic.receive(&InterruptMessage { level_triggered, ..fixed(Target::All, 0x60) });
        assert_eq!(read(&mut apic, 0x1b0) & 1 != 0, level_triggered);
    }
}

#[test]
fn software_disable_masks_the_lvt_and_drops_messages() {
    let mut apic = lapic(0);
    write(&mut apic, 0x320, 0x30);
    apic.receive(&fixed(Target::All, 0x40));
    write(&mut apic, 0xf0, 0xff);
    assert_eq!(read(&mut apic, 0x320), LVT_MASKED | 0x30);
    write(&mut apic, 0x320, 0x30);
    assert_eq!(read(&mut apic, 0x320), LVT_MASKED | 0x30, "cannot be unmasked");
    apic.receive(&fixed(Target::All, 0x50));
    assert_eq!(apic.acknowledge(), Some(0x40), "what was pending stays");
    assert_eq!(apic.acknowledge(), None);
    apic.receive(&InterruptMessage { delivery: Delivery::Nmi, ..fixed(Target::All, 0) });
    assert_eq!(apic.take_nmis(), 1, "NMIs are not affected");
}

#[test]
fn xapic_id_cannot_be_changed() {
    let mut apic = lapic(3);
    write(&mut apic, 0x20, 0x0900_0000);
    assert_eq!(read(&mut apic, 0x20), 0x0300_0000);
}

#[test]
fn undefined_registers_set_the_error_status() {
    let mut apic = lapic(0);
    write(&mut apic, 0x370, 0xfe);
    assert_eq!(read(&mut apic, 0x3a0), 0);
    assert_eq!(read(&mut apic, 0x280), 0, "shown after a write only");
    write(&mut apic, 0x280, 0);
    assert_eq!(read(&mut apic, 0x280), error::ILLEGAL_REGISTER);
    assert_eq!(pending(&apic), Some(0xfe));
    write(&mut apic, 0x280, 0);
    assert_eq!(read(&mut apic, 0x280), 0);
}

#[test]
fn illegal_vectors_are_reported() {
    // (offset, value, error)
    for (offset, value, bit) in [
        (0x300, 0x0004_000f, error::SEND_ILLEGAL_VECTOR),
        (0x300, 0x0000_0001, error::SEND_ILLEGAL_VECTOR),
        (0x380, 0, 0),
    ] {
        let mut apic = lapic(0);
        write(&mut apic, offset, value);
        write(&mut apic, 0x280, 0);
        assert_eq!(read(&mut apic, 0x280), bit, "{value:#x}");
        assert_eq!(apic.pop_message(), None);
    }
    let mut apic = lapic(0);
    apic.receive(&fixed(Target::All, 3));
    write(&mut apic, 0x280, 0);
    assert_eq!(read(&mut apic, 0x280), error::RECEIVE_ILLEGAL_VECTOR);
}

#[test]
fn partial_and_misaligned_accesses() {
    let mut apic = lapic(0);
    apic.mmio_write(0x80, 1, 0x40, 0);
    apic.mmio_write(0x84, 4, 0x40, 0);
    assert_eq!(read(&mut apic, 0x80), 0);
    for (offset, size, expected) in [(0x30, 1, 0x14), (0x32, 1, 5), (0x30, 2, 0x14), (0x34, 4, 0), (0x30, 8, 0x5_0014)]
    {
        assert_eq!(apic.mmio_read(offset, size, 0), expected, "{offset:#x} {size}");
    }
}

#[test]
fn icr_messages() {
    // (high, low, message)
    let message = |target, delivery, vector| {
        Some(InterruptMessage { target, wide: false, delivery, vector, level_triggered: false })
    };
    let table = [
        (0x0300_0000, 0x0000_4031, message(Target::Physical(3), Delivery::Fixed, 0x31)),
        (0x0500_0000, 0x0000_4931, message(Target::Logical(5), Delivery::LowestPriority, 0x31)),
        (0, 0x0008_4031, message(Target::All, Delivery::Fixed, 0x31)),
        (0, 0x000c_4031, message(Target::AllBut(2), Delivery::Fixed, 0x31)),
        (0, 0x000c_c500, message(Target::AllBut(2), Delivery::Init, 0)),
        (0, 0x000c_8500, None),
        (0x0100_0000, 0x0000_0608, message(Target::Physical(1), Delivery::StartUp, 8)),
        (0x0100_0000, 0x0000_0400, message(Target::Physical(1), Delivery::Nmi, 0)),
        (0, 0x0000_0331, None),
    ];
    for (high, low, expected) in table {
        let mut apic = lapic(2);
        write(&mut apic, 0x310, high);
        write(&mut apic, 0x300, low | 1 << 12);
        assert_eq!(apic.pop_message(), expected, "{high:#x} {low:#x}");
        assert_eq!(read(&mut apic, 0x300), low, "delivery status reads as idle");
    }
}

#[test]
fn self_ipi_is_pending_at_once() {
    let mut apic = lapic(0);
    write(&mut apic, 0x300, 0x0004_00f1);
    assert_eq!(apic.interrupt(), Some(Interrupt::Vector(0xf1)));
    let mut apic = x2apic(0);
    assert!(apic.msr_write(0x83f, 0xf2, 0));
    assert!(apic.msr_write(0x830, 0x0004_00f1, 0));
    assert_eq!([apic.acknowledge(), apic.acknowledge()], [Some(0xf2), None]);
}

#[test]
fn x2apic_registers_and_their_reserved_bits() {
    // (register, value, accepted)
    let writes = [
        (0x802, 0, false),
        (0x803, 0, false),
        (0x808, 0xff, true),
        (0x808, 0x100, false),
        (0x80a, 0, false),
        (0x80b, 0, true),
        (0x80b, 1, false),
        (0x80d, 0, false),
        (0x80e, 0, false),
        (0x80f, 0x1ff, true),
        (0x80f, 0x1_0000, false),
        (0x810, 0, false),
        (0x828, 0, true),
        (0x828, 1, false),
        (0x830, 0x1_0000_4030, true),
        (0x830, 0x2000, false),
        (0x830, 0x10_0000, false),
        (0x831, 0, false),
        (0x832, 0x4_00ef, true),
        (0x832, 0x8_0000, false),
        (0x838, 0xffff_ffff, true),
        (0x838, 0x1_0000_0000, false),
        (0x839, 0, false),
        (0x83e, 0xb, true),
        (0x83e, 4, false),
        (0x83f, 0x30, true),
        (0x83f, 0x100, false),
        (0x840, 0, false),
        (0x8ff, 0, false),
    ];
    for (index, value, accepted) in writes {
        assert_eq!(x2apic(0).msr_write(index, value, 0), accepted, "{index:#x} {value:#x}");
        assert!(!lapic(0).msr_write(index, value, 0), "{index:#x} in xAPIC mode");
    }
    let reads = [
        (0x802, Some(0x25)),
        (0x803, Some(0x5_0014)),
        (0x80d, Some(0x2_0020)),
        (0x80b, None),
        (0x80e, None),
        (0x831, None),
        (0x83f, None),
        (0x801, None),
        (0x8ff, None),
        (0x7ff, None),
    ];
    for (index, expected) in reads {
        assert_eq!(x2apic(0x25).msr_read(index, 0), expected, "{index:#x}");
    }
}

#[test]
fn x2apic_icr_carries_a_32_bit_destination() {
    let mut apic = x2apic(0);
    assert!(apic.msr_write(0x830, 0x0001_0002_0000_4831, 0));
    assert_eq!(apic.pop_message().map(|m| (m.target, m.wide)), Some((Target::Logical(0x1_0002), true)));
    assert_eq!(apic.msr_read(0x830, 0), Some(0x0001_0002_0000_4831));
}

#[test]
fn timer_interrupts() {
    let mut apic = lapic(0);
    write(&mut apic, 0x3e0, 0xb);
    write(&mut apic, 0x320, 0x2_00ee);
    apic.mmio_write(0x380, 4, 1000, 5_000);
    assert_eq!(apic.next_event(), Some(1_005_000));
    assert_eq!(apic.mmio_read(0x390, 4, 405_000), 600);
    apic.advance(1_005_000);
    assert_eq!(apic.acknowledge(), Some(0xee));
    assert_eq!(apic.next_event(), Some(2_005_000));
    apic.mmio_write(0x320, 4, 0x3_00ee, 1_500_000);
    apic.advance(2_005_000);
    assert_eq!((pending(&apic), apic.next_event()), (None, None), "masked");
    apic.mmio_write(0x320, 4, 0x2_00ee, 9_500_000);
    assert_eq!((pending(&apic), apic.next_event()), (None, Some(10_005_000)), "what passed while masked is lost");
}

#[test]
fn tsc_deadline_in_the_past_interrupts_within_the_write() {
    let mut apic = x2apic(0);
    assert!(apic.msr_write(0x832, 0x4_00ef, 0));
    assert!(apic.msr_write(TSC_DEADLINE, 100, 100_000));
    assert_eq!(apic.interrupt(), Some(Interrupt::Vector(0xef)));
    assert_eq!(apic.msr_read(TSC_DEADLINE, 100_000), Some(0));
}

#[test]
fn extint_passes_through_virtual_wire_or_a_disabled_apic() {
    let mut apic = lapic(0);
    apic.set_lint(0, true);
    assert_eq!(apic.interrupt(), None);
    apic.set_virtual_wire();
    assert_eq!(apic.interrupt(), Some(Interrupt::ExtInt));
    apic.set_lint(0, false);
    assert_eq!(apic.interrupt(), None);
    assert!(apic.set_apic_base(DEFAULT_BASE));
    apic.set_lint(0, true);
    assert_eq!(apic.interrupt(), Some(Interrupt::ExtInt));
}

#[test]
fn extint_message_lets_the_8259_through_once() {
    let mut apic = lapic(0);
    apic.receive(&InterruptMessage { delivery: Delivery::ExtInt, ..fixed(Target::All, 0) });
    apic.set_lint(0, true);
    assert_eq!(apic.interrupt(), Some(Interrupt::ExtInt));
    apic.acknowledge_extint();
    assert_eq!(apic.interrupt(), None);
}

#[test]
fn lint_pins_deliver_what_their_lvt_says() {
    let mut apic = lapic(0);
    apic.set_virtual_wire();
    apic.set_lint(1, true);
    apic.set_lint(1, true);
    assert_eq!(apic.take_nmis(), 1);
    write(&mut apic, 0x350, 0x70);
    apic.set_lint(0, true);
    assert_eq!(apic.acknowledge(), Some(0x70));
    apic.set_lint(0, false);
    write(&mut apic, 0xb0, 0);
    write(&mut apic, 0x350, LVT_LEVEL | 0x71);
    apic.set_lint(0, true);
    assert_eq!(apic.acknowledge(), Some(0x71));
    assert_ne!(read(&mut apic, 0x350) & LVT_REMOTE_IRR, 0);
    write(&mut apic, 0xb0, 0);
    assert_eq!(apic.acknowledge(), Some(0x71), "still asserted");
    apic.set_lint(0, false);
    write(&mut apic, 0xb0, 0);
    assert_eq!((pending(&apic), read(&mut apic, 0x350) & LVT_REMOTE_IRR), (None, 0));
}

#[test]
fn init_cancels_startup_and_nmis_saturate() {
    let mut apic = lapic(1);
    let send = |apic: &mut Lapic, delivery, vector| {
        apic.receive(&InterruptMessage { delivery, ..fixed(Target::All, vector) });
    };
    send(&mut apic, Delivery::StartUp, 8);
    send(&mut apic, Delivery::Init, 0);
    assert!(apic.has_signals());
    assert_eq!((apic.take_init(), apic.take_init(), apic.take_startup()), (true, false, None));
    send(&mut apic, Delivery::StartUp, 9);
    assert_eq!((apic.take_startup(), apic.take_startup()), (Some(9), None));
    (0..5).for_each(|_| send(&mut apic, Delivery::Nmi, 0));
    assert_eq!((apic.take_nmis(), apic.take_nmis()), (2, 0));
    assert!(!apic.has_signals());
}

/// Returns the processors, of four, that receive vector 0x50.
fn receivers(lapics: &mut [Lapic], target: Target, wide: bool) -> Vec<u32> {
    route(lapics, &InterruptMessage { wide, ..fixed(target, 0x50) });
    lapics.iter_mut().filter_map(|apic| apic.acknowledge().map(|_| apic.id())).collect()
}

#[test]
fn routing_in_xapic_mode() {
    let flat = |target, expected: &[u32]| (0xffff_ffff, [1, 2, 4, 8], target, expected.to_vec());
    let cluster = |target, expected: &[u32]| (0x0fff_ffff, [0x11, 0x12, 0x21, 0x22], target, expected.to_vec());
    let table = [
        flat(Target::Physical(2), &[2]),
        flat(Target::Physical(0xff), &[0, 1, 2, 3]),
        flat(Target::Physical(9), &[]),
        flat(Target::Logical(0x5), &[0, 2]),
        flat(Target::Logical(0xff), &[0, 1, 2, 3]),
        flat(Target::Logical(0), &[]),
        flat(Target::All, &[0, 1, 2, 3]),
        flat(Target::AllBut(1), &[0, 2, 3]),
        flat(Target::Only(1), &[1]),
        cluster(Target::Logical(0x13), &[0, 1]),
        cluster(Target::Logical(0x22), &[3]),
        cluster(Target::Logical(0x31), &[]),
        cluster(Target::Logical(0xff), &[0, 1, 2, 3]),
    ];
    for (dfr, ldr, target, expected) in table {
        let mut lapics: Vec<_> = (0..4).map(lapic).collect();
        for (apic, ldr) in lapics.iter_mut().zip(ldr) {
            write(apic, 0xe0, dfr);
            write(apic, 0xd0, ldr << 24);
        }
        assert_eq!(receivers(&mut lapics, target, false), expected, "{dfr:#x} {target:?}");
    }
}

#[test]
fn routing_in_x2apic_mode() {
    let table: [(Target, bool, &[u32]); 6] = [
        (Target::Physical(0x11), true, &[0x11]),
        (Target::Physical(0xffff_ffff), true, &[0, 1, 0x10, 0x11]),
        (Target::Physical(0xff), true, &[]),
        (Target::Physical(0xff), false, &[0, 1, 0x10, 0x11]),
        (Target::Logical(0x1_0003), true, &[0x10, 0x11]),
        (Target::Logical(0x2), false, &[1]),
    ];
    for (target, wide, expected) in table {
        let mut lapics: Vec<_> = [0, 1, 0x10, 0x11].into_iter().map(x2apic).collect();
        assert_eq!(receivers(&mut lapics, target, wide), expected, "{target:?} {wide}");
    }
}

#[test]
fn lowest_priority_goes_to_one_idle_enabled_processor() {
    let mut lapics: Vec<_> = (0..4).map(lapic).collect();
    write(&mut lapics[0], 0xf0, 0xff);
    write(&mut lapics[1], 0x80, 0x20);
    let message = decode_msi(0xfee0_f00c, 0x50).expect("an MSI");
    for (apic, bit) in lapics.iter_mut().zip([1, 2, 4, 8]) {
        write(apic, 0xd0, bit << 24);
    }
    assert!(route(&mut lapics, &message));
    assert_eq!(lapics.iter().map(pending).collect::<Vec<_>>(), [None, None, Some(0x50), None]);
    assert!(!route(&mut lapics, &InterruptMessage { target: Target::Logical(0x10), ..message }));
}

proptest! {
    #[test]
    fn random_accesses_do_not_panic(
        ops in prop::collection::vec((0..9u8, any::<u32>(), any::<u64>(), 0u64..1 << 30), 0..300),
    ) {
        let mut now: Ticks = 0;
        let mut apic = lapic(7);
        for (op, place, value, step) in ops {
            now += step;
            match op {
                0 | 1 => apic.mmio_write(u64::from(place & 0xff0), 4, value, now),
                2 => { apic.mmio_read(u64::from(place & 0xfff), (value & 15) as u8, now); }
                3 | 4 => { apic.msr_write(X2APIC_FIRST + (place & 0x7f), value >> (place & 0x3f), now); }
                5 => { apic.msr_read(X2APIC_FIRST + (place & 0x7f), now); }
                6 => { apic.msr_write([APIC_BASE, TSC_DEADLINE][place as usize & 1], value & 0xfee0_0d00, now); }
                7 => {
                    apic.set_lint((place & 3) as usize, value & 1 != 0);
                    apic.acknowledge();
                    apic.interrupt();
                }
                _ => {
                    if let Some(message) = decode_msi(0xfee0_0000 | u64::from(place & 0xff00c), value as u32) {
                        route(std::slice::from_mut(&mut apic), &message);
                    }
                }
            }
            while apic.pop_message().is_some() || apic.pop_eoi().is_some() {}
            if let Some(event) = apic.next_event() {
                apic.advance(now);
                prop_assert!(event > now || apic.next_event() != Some(event));
            }
        }
    }
}
