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
