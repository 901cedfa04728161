//! Feature bits of the network device (virtio 1.2, 5.1.3), and their effect on frames.

use network::Offloads;
use network::options::Nic;

macro_rules! bits {
    ($($name:ident = $bit:literal;)*) => { $(pub const $name: u64 = 1 << $bit;)* };
}

bits! {
    CSUM = 0;
    GUEST_CSUM = 1;
    CTRL_GUEST_OFFLOADS = 2;
    MTU = 3;
    MAC = 5;
    GUEST_TSO4 = 7;
    GUEST_TSO6 = 8;
    GUEST_ECN = 9;
    HOST_TSO4 = 11;
    HOST_TSO6 = 12;
    HOST_ECN = 13;
    MRG_RXBUF = 15;
    STATUS = 16;
    CTRL_VQ = 17;
    CTRL_RX = 18;
    CTRL_VLAN = 19;
    CTRL_RX_EXTRA = 20;
    MQ = 22;
    CTRL_MAC_ADDR = 23;
    VQ_NOTF_COAL = 52;
    NOTF_COAL = 53;
    GUEST_USO4 = 54;
    GUEST_USO6 = 55;
    HOST_USO = 56;
    HASH_REPORT = 57;
    GUEST_HDRLEN = 59;
    RSS = 60;
    SPEED_DUPLEX = 63;
}

/// Features that a driver may switch on and off at run time.
pub const GUEST_OFFLOADS: u64 = GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6;
/// Offloads that a driver may leave to the device.
const HOST_OFFLOADS: u64 = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO | GUEST_HDRLEN;
/// Dependencies: the feature, and the features of which it requires at least one (5.1.3.1).
const NEEDS: [(u64, u64); 17] = [
    (GUEST_TSO4, GUEST_CSUM),
    (GUEST_TSO6, GUEST_CSUM),
    (GUEST_ECN, GUEST_TSO4 | GUEST_TSO6),
    (GUEST_USO4, GUEST_CSUM),
    (GUEST_USO6, GUEST_CSUM),
    (HOST_TSO4, CSUM),
    (HOST_TSO6, CSUM),
    (HOST_ECN, HOST_TSO4 | HOST_TSO6),
    (HOST_USO, CSUM),
    (CTRL_RX, CTRL_VQ),
    (CTRL_VLAN, CTRL_VQ),
    (CTRL_RX_EXTRA, CTRL_VQ),
    (MQ, CTRL_VQ),
    (CTRL_MAC_ADDR, CTRL_VQ),
    (NOTF_COAL | VQ_NOTF_COAL, CTRL_VQ),
    (RSS, CTRL_VQ),
    (HASH_REPORT, CTRL_VQ),
];

/// Returns the features that a NIC offers.
pub fn offered(nic: &Nic) -> u64 {
    let control =
        CTRL_VQ | CTRL_RX | CTRL_VLAN | CTRL_RX_EXTRA | CTRL_MAC_ADDR | NOTF_COAL | VQ_NOTF_COAL | CTRL_GUEST_OFFLOADS;
    let mut features = control | MAC | MRG_RXBUF | STATUS | SPEED_DUPLEX | HASH_REPORT;
    if nic.queues > 1 {
        features |= MQ | RSS;
    }
    if nic.offloads {
        features |= GUEST_OFFLOADS | HOST_OFFLOADS;
    }
    if nic.mtu.is_some() {
        features |= MTU;
    }
    if nic.packed {
        features |= super::super::transport::PACKED;
    }
    features
}

/// Removes negotiated features whose dependencies are missing.
pub fn effective(features: u64) -> u64 {
    NEEDS.iter().fold(features, |left, &(feature, needed)| if left & needed == 0 { left & !feature } else { left })
}

/// Returns the offloads that the driver accepts in received frames.
pub fn takes(features: u64) -> Offloads {
    let has = |bit: u64| features & bit != 0;
    Offloads {
        checksum: has(GUEST_CSUM),
        tcp4: has(GUEST_TSO4),
        tcp6: has(GUEST_TSO6),
        ecn: has(GUEST_ECN),
        udp4: has(GUEST_USO4),
        udp6: has(GUEST_USO6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use network::options::Net;

    fn bits(bits: &[u32]) -> u64 {
        bits.iter().fold(0, |all, bit| all | 1 << bit)
    }

    #[test]
    fn a_nic_offers_what_its_options_say() {
        let plain = bits(&[2, 5, 15, 16, 17, 18, 19, 20, 23, 52, 53, 57, 63]);
        let offloads = bits(&[0, 1, 7, 8, 9, 11, 12, 13, 54, 55, 56, 59]);
        for (text, expected) in [
            ("sink,offloads=off", plain),
            ("sink", plain | offloads),
            ("sink,queues=2", plain | offloads | bits(&[22, 60])),
            ("sink,offloads=off,mtu=1500", plain | bits(&[3])),
            ("sink,offloads=off,packed=on", plain | bits(&[34])),
        ] {
            let Ok(Net::Nic(nic)) = text.parse() else { panic!("{text}") };
            assert_eq!(offered(&nic), expected, "{text}");
        }
    }

    #[test]
    fn features_without_what_they_need_have_no_effect() {
        let all = u64::MAX;
        for (missing, gone) in [
            (&[][..], &[][..]),
            (&[1], &[7, 8, 9, 54, 55]),
            (&[7], &[]),
            (&[7, 8], &[9]),
            (&[0], &[11, 12, 13, 56]),
            (&[12], &[]),
            (&[11, 12], &[13]),
            (&[17], &[18, 19, 20, 22, 23, 52, 53, 57, 60]),
        ] {
            let left = all & !bits(missing);
            assert_eq!(effective(left), left & !bits(gone), "without {missing:?}");
        }
    }

    #[test]
    fn a_driver_takes_the_offloads_of_its_features() {
        let none = Offloads::default();
        for (bit, expected) in [
            (0, none),
            (1, Offloads { checksum: true, ..none }),
            (7, Offloads { tcp4: true, ..none }),
            (8, Offloads { tcp6: true, ..none }),
            (9, Offloads { ecn: true, ..none }),
            (54, Offloads { udp4: true, ..none }),
            (55, Offloads { udp6: true, ..none }),
        ] {
            assert_eq!(takes(bits(&[bit])), expected, "{bit}");
        }
    }
}
