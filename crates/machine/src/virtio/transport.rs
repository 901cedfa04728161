//! Virtio over PCI (virtio 1.2, 4.1): capabilities, the common registers, notifications and interrupts.
//!
//! All structures are in one 64-bit memory BAR: common configuration, ISR, device configuration, notifications, MSI-X
//! table and pending bits. There is one vector for configuration changes and one per queue; without MSI-X, interrupts
//! use the INTx pin.

use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueState, QueueT};

use super::packed::{Packed, Places};
use super::{Broken, Device, Ring};
use crate::device::DeviceContext;
use crate::host::Piece;
use crate::pci::{ConfigSpace, Function, Identity, Inbox, MsiX};
use crate::state::{Plain, Saved, StateError, decode, encode, require, same};
use ledger::Ticks;
use serde::{Deserialize, Serialize};

const VENDOR: u16 = 0x1af4;
const FIRST_DEVICE_ID: u16 = 0x1040;
const REVISION: u8 = 1;

/// The base address register, and the offsets of the structures in it.
const BAR: usize = 0;
const BAR_SIZE: u64 = 0x8000;
const COMMON: u64 = 0x0000;
const ISR: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
const NOTIFY: u64 = 0x3000;
const TABLE: u64 = 0x4000;
const PENDING: u64 = 0x5000;
const AREA: u64 = 0x1000;

/// Capability IDs and types.
const CAPABILITY_VENDOR: u8 = 9;
const CAP_COMMON: u8 = 1;
const CAP_NOTIFY: u8 = 2;
const CAP_ISR: u8 = 3;
const CAP_DEVICE: u8 = 4;
const CAP_PCI: u8 = 5;
const CAP_LEN: u8 = 16;
/// Distance between the notification addresses of two queues.
const NOTIFY_STRIDE: u32 = 4;
/// Offsets in the capability that gives access to the BAR through configuration space.
const WINDOW_BAR: usize = 4;
const WINDOW_OFFSET: usize = 8;
const WINDOW_LENGTH: usize = 12;
const WINDOW_DATA: usize = 16;

/// Registers of the common configuration.
mod reg {
    pub const DEVICE_FEATURE_SELECT: usize = 0x00;
    pub const DEVICE_FEATURE: usize = 0x04;
    pub const DRIVER_FEATURE_SELECT: usize = 0x08;
    pub const DRIVER_FEATURE: usize = 0x0c;
    pub const CONFIG_VECTOR: usize = 0x10;
    pub const NUM_QUEUES: usize = 0x12;
    pub const STATUS: usize = 0x14;
    pub const QUEUE_SELECT: usize = 0x16;
    pub const QUEUE_SIZE: usize = 0x18;
    pub const QUEUE_VECTOR: usize = 0x1a;
    pub const QUEUE_ENABLE: usize = 0x1c;
    pub const QUEUE_NOTIFY_OFF: usize = 0x1e;
    pub const QUEUE_DESC: usize = 0x20;
    pub const QUEUE_DRIVER: usize = 0x28;
    pub const QUEUE_DEVICE: usize = 0x30;
    pub const LEN: usize = 0x38;
}

const NO_VECTOR: u16 = 0xffff;
const ISR_QUEUE: u8 = 1;
const ISR_CONFIG: u8 = 2;

const ACKNOWLEDGE: u8 = VIRTIO_CONFIG_S_ACKNOWLEDGE as u8;
const DRIVER: u8 = VIRTIO_CONFIG_S_DRIVER as u8;
const DRIVER_OK: u8 = VIRTIO_CONFIG_S_DRIVER_OK as u8;
const FEATURES_OK: u8 = VIRTIO_CONFIG_S_FEATURES_OK as u8;
const NEEDS_RESET: u8 = VIRTIO_CONFIG_S_NEEDS_RESET as u8;
const FAILED: u8 = VIRTIO_CONFIG_S_FAILED as u8;

const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
/// Feature bit of packed rings; a device that supports them includes it in its own features.
pub const PACKED: u64 = 1 << VIRTIO_F_RING_PACKED;
const INDIRECT: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// A queue and its interrupt vector.
struct Slot {
    /// The split ring; for a packed ring, its size and addresses.
    queue: Queue,
    /// Positions of driver and device in a packed ring.
    packed: Option<Places>,
    /// Number of returned entries of which the driver has not been notified.
    unannounced: u16,
    vector: u16,
    /// True if the device has been told that the queue is started.
    started: bool,
}

/// A virtio device on the PCI bus.
pub struct VirtioPci<D> {
    device: D,
    config: ConfigSpace,
    msix: MsiX,
    /// Offset of the capability with the window.
    window: usize,
    queues: Vec<Slot>,
    registers: Registers,
}

/// Registers that belong to no queue, and pending status: plain data, saved unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Registers {
    queue_select: u16,
    config_vector: u16,
    device_feature_select: u32,
    driver_feature_select: u32,
    driver_features: u64,
    status: u8,
    isr: u8,
}

impl Registers {
    /// State after a reset.
    const RESET: Self = Self {
        queue_select: 0,
        config_vector: NO_VECTOR,
        device_feature_select: 0,
        driver_feature_select: 0,
        driver_features: 0,
        status: 0,
        isr: 0,
    };
}

impl<D: Device> VirtioPci<D> {
    /// Creates a transport for a device.
    pub fn new(device: D) -> Self {
        let mut config = ConfigSpace::new(Identity {
            vendor: VENDOR,
            device: FIRST_DEVICE_ID + device.kind(),
            class: device.class(),
            revision: REVISION,
            subsystem_vendor: VENDOR,
            subsystem: FIRST_DEVICE_ID + device.kind(),
        });
        config.add_memory_bar(BAR, BAR_SIZE);
        let queues: Vec<Slot> = device.queues().iter().map(|&size| Slot::new(size)).collect();
        let msix = MsiX::new(&mut config, queues.len() as u16 + 1, BAR as u8, TABLE as u32, PENDING as u32);
        let area = |kind, offset: u64, len: u32| capability(kind, offset as u32, len);
        config.add_capability(CAPABILITY_VENDOR, &area(CAP_COMMON, COMMON, reg::LEN as u32), &[]);
        config.add_capability(CAPABILITY_VENDOR, &area(CAP_ISR, ISR, 1), &[]);
        if !device.config().is_empty() {
            config.add_capability(CAPABILITY_VENDOR, &area(CAP_DEVICE, DEVICE, device.config().len() as u32), &[]);
        }
        let mut notify = area(CAP_NOTIFY, NOTIFY, NOTIFY_STRIDE * queues.len() as u32);
        notify[0] += 4;
        notify.extend(NOTIFY_STRIDE.to_le_bytes());
        config.add_capability(CAPABILITY_VENDOR, &notify, &[]);
        let mut body = area(CAP_PCI, 0, 0);
        body[0] += 4;
        body.extend([0; 4]);
        let mut writable = vec![0; body.len()];
        writable[WINDOW_BAR - 2] = 0xff;
        writable[WINDOW_OFFSET - 2..].fill(0xff);
        let window = config.add_capability(CAPABILITY_VENDOR, &body, &writable);
        Self { device, config, msix, window, queues, registers: Registers::RESET }
    }

    fn features(&self) -> u64 {
        self.device.features() | VERSION_1 | EVENT_IDX | INDIRECT
    }

    /// Returns true if a driver may have negotiated these features.
    fn accepts(&self, features: u64) -> bool {
        features & !self.features() == 0 && features & VERSION_1 != 0
    }

    fn selected(&self) -> Option<&Slot> {
        self.queues.get(usize::from(self.registers.queue_select))
    }

    /// Returns the current values of the common registers.
    fn common(&self) -> [u8; reg::LEN] {
        let half = |features: u64, select: u32| match select {
            0 => features as u32,
            1 => (features >> 32) as u32,
            _ => 0,
        };
        let mut out = [0; reg::LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(reg::DEVICE_FEATURE_SELECT, &self.registers.device_feature_select.to_le_bytes());
        put(reg::DEVICE_FEATURE, &half(self.features(), self.registers.device_feature_select).to_le_bytes());
        put(reg::DRIVER_FEATURE_SELECT, &self.registers.driver_feature_select.to_le_bytes());
        put(
            reg::DRIVER_FEATURE,
            &half(self.registers.driver_features, self.registers.driver_feature_select).to_le_bytes(),
        );
        put(reg::CONFIG_VECTOR, &self.registers.config_vector.to_le_bytes());
        put(reg::NUM_QUEUES, &(self.queues.len() as u16).to_le_bytes());
        put(reg::STATUS, &[self.registers.status]);
        put(reg::QUEUE_SELECT, &self.registers.queue_select.to_le_bytes());
        if let Some(Slot { queue, vector, .. }) = self.selected() {
            put(reg::QUEUE_SIZE, &queue.size().to_le_bytes());
            put(reg::QUEUE_VECTOR, &vector.to_le_bytes());
            put(reg::QUEUE_ENABLE, &u16::from(queue.ready()).to_le_bytes());
            put(reg::QUEUE_NOTIFY_OFF, &self.registers.queue_select.to_le_bytes());
            put(reg::QUEUE_DESC, &queue.desc_table().to_le_bytes());
            put(reg::QUEUE_DRIVER, &queue.avail_ring().to_le_bytes());
            put(reg::QUEUE_DEVICE, &queue.used_ring().to_le_bytes());
        } else {
            put(reg::QUEUE_VECTOR, &NO_VECTOR.to_le_bytes());
        }
        out
    }

    /// Handles a write to a register with the register's own width (a 64-bit register may be written in halves).
    fn write_common(&mut self, at: usize, size: u8, value: u64, ctx: &mut DeviceContext) {
        let valid = |vector: u16| if vector < self.msix.vectors() { vector } else { NO_VECTOR };
        match (at, size) {
            (reg::DEVICE_FEATURE_SELECT, 4) => self.registers.device_feature_select = value as u32,
            (reg::DRIVER_FEATURE_SELECT, 4) => self.registers.driver_feature_select = value as u32,
            (reg::DRIVER_FEATURE, 4) => self.write_features(value as u32),
            (reg::CONFIG_VECTOR, 2) => self.registers.config_vector = valid(value as u16),
            (reg::STATUS, 1) => self.write_status(value as u8, ctx.now),
            (reg::QUEUE_SELECT, 2) => self.registers.queue_select = value as u16,
            (reg::QUEUE_VECTOR, 2) => {
                let vector = valid(value as u16);
                if let Some(slot) = self.queues.get_mut(usize::from(self.registers.queue_select)) {
                    slot.vector = vector;
                }
            }
            (reg::QUEUE_ENABLE, 2) if value == 1 => self.enable_queue(ctx),
            (_, 8) if at >= reg::QUEUE_DESC && at.is_multiple_of(8) => {
                self.write_queue(at, value as u32);
                self.write_queue(at + 4, (value >> 32) as u32);
            }
            (reg::QUEUE_SIZE, 2) | (reg::QUEUE_DESC.., 4) => self.write_queue(at, value as u32),
            _ => {}
        }
    }

    fn write_features(&mut self, value: u32) {
        let (shift, mask) = match self.registers.driver_feature_select {
            0 => (0, 0xffff_ffff),
            1 => (32, 0xffff_ffff << 32),
            _ => return,
        };
        if self.registers.status & FEATURES_OK == 0 {
            self.registers.driver_features = (self.registers.driver_features & !mask) | u64::from(value) << shift;
        }
    }

    /// Handles a write to a queue's parameters, which are fixed once the queue is enabled.
    fn write_queue(&mut self, at: usize, value: u32) {
        let Some(slot) = self.queues.get_mut(usize::from(self.registers.queue_select)) else { return };
        let queue = &mut slot.queue;
        if queue.ready() {
            return;
        }
        let (low, high) = if at.is_multiple_of(8) { (Some(value), None) } else { (None, Some(value)) };
        match at & !7 {
            _ if at == reg::QUEUE_SIZE => queue.set_size(value as u16),
            reg::QUEUE_DESC => queue.set_desc_table_address(low, high),
            reg::QUEUE_DRIVER => queue.set_avail_ring_address(low, high),
            reg::QUEUE_DEVICE => queue.set_used_ring_address(low, high),
            _ => {}
        }
    }

    fn enable_queue(&mut self, ctx: &mut DeviceContext) {
        let event_idx = self.registers.driver_features & EVENT_IDX != 0;
        let packed = self.registers.driver_features & PACKED != 0;
        let Some(slot) = self.queues.get_mut(usize::from(self.registers.queue_select)) else { return };
        if slot.queue.ready() {
            return;
        }
        slot.queue.set_event_idx(event_idx);
        slot.queue.set_ready(true);
        (slot.packed, slot.unannounced) = (packed.then_some(Places::START), 0);
        let valid = match &mut slot.packed {
            Some(places) => Packed::new(&slot.queue, places, ctx.ram.map()).is_valid(),
            None => slot.queue.is_valid(ctx.ram.map()),
        };
        if !valid {
            slot.queue.set_ready(false);
            self.break_down(ctx);
        }
        self.start_queues(ctx.now);
    }

    /// Tells the device which queues have been started and stopped.
    fn start_queues(&mut self, now: Ticks) {
        let live = is_live(self.registers.status);
        for (slot, number) in self.queues.iter_mut().zip(0..) {
            match (live && slot.queue.ready(), slot.started) {
                (true, false) => self.device.started(number, now),
                (false, true) => self.device.stopped(number, now),
                _ => continue,
            }
            slot.started = !slot.started;
        }
    }

    fn write_status(&mut self, value: u8, now: Ticks) {
        if value == 0 {
            self.reset(now);
            return;
        }
        let mut set = value & (ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED);
        if !self.accepts(self.registers.driver_features) {
            set &= !FEATURES_OK;
        }
        if (self.registers.status | set) & FEATURES_OK == 0 {
            set &= !DRIVER_OK;
        }
        if set & !self.registers.status & FEATURES_OK != 0 {
            self.device.negotiated(self.registers.driver_features);
        }
        self.registers.status |= set;
        self.start_queues(now);
    }

    fn reset(&mut self, now: Ticks) {
        self.registers.status = 0;
        self.start_queues(now);
        self.device.reset();
        for slot in &mut self.queues {
            slot.queue.reset();
            (slot.packed, slot.unannounced) = (None, 0);
            slot.vector = NO_VECTOR;
        }
        self.registers = Registers::RESET;
        self.config.set_interrupt_status(false);
    }

    /// Puts the device into the state DEVICE_NEEDS_RESET after an unrecoverable error of the driver.
    fn break_down(&mut self, ctx: &mut DeviceContext) {
        self.registers.status |= NEEDS_RESET;
        self.start_queues(ctx.now);
        if self.registers.status & DRIVER_OK != 0 {
            self.interrupt(ISR_CONFIG, self.registers.config_vector, ctx);
        }
    }

    fn interrupt(&mut self, cause: u8, vector: u16, ctx: &mut DeviceContext) {
        if self.msix.enabled() {
            self.msix.raise(vector, &mut ctx.out.messages);
        } else {
            self.registers.isr |= cause;
            self.config.set_interrupt_status(true);
        }
    }

    /// Lets the device process a queue, if the driver has set it up completely.
    fn work(&mut self, index: u16, ctx: &mut DeviceContext) {
        let live = is_live(self.registers.status) && self.config.is_bus_master();
        let Some(slot) = self.queues.get_mut(usize::from(index)) else { return };
        if !live || !slot.queue.ready() {
            return;
        }
        let vector = slot.vector;
        let Slot { queue, packed, unannounced, .. } = slot;
        let mut ring = Ring::new(queue, packed.as_mut(), unannounced, ctx.ram.map());
        match self.device.process(index, &mut ring, ctx).and_then(|()| ring.finish()) {
            Ok(true) => self.interrupt(ISR_QUEUE, vector, ctx),
            Ok(false) => {}
            Err(Broken) => self.break_down(ctx),
        }
    }

    /// Processes the queues for which the device has data.
    fn poll(&mut self, ctx: &mut DeviceContext) {
        for queue in 0..self.queues.len() as u16 {
            if self.device.has_input(queue) {
                self.work(queue, ctx);
            }
        }
    }

    /// Returns the target of the window in configuration space, if it is valid.
    fn window(&self) -> Option<(u64, u8)> {
        let field = |at| self.config.read(self.window + at, 4);
        let (offset, length) = (u64::from(field(WINDOW_OFFSET)), field(WINDOW_LENGTH));
        let bar = self.config.read(self.window + WINDOW_BAR, 1) as usize;
        let fits = bar == BAR && matches!(length, 1 | 2 | 4) && offset % u64::from(length) == 0;
        (fits && offset + u64::from(length) <= BAR_SIZE).then_some((offset, length as u8))
    }

    fn is_window(&self, at: usize) -> bool {
        (self.window + WINDOW_DATA..self.window + WINDOW_DATA + 4).contains(&at)
    }
}

impl Slot {
    fn new(size: u16) -> Self {
        // Devices return constant powers of two; any other size gives a queue without entries.
        let queue = Queue::new(size).unwrap_or_default();
        Self { queue, packed: None, unannounced: 0, vector: NO_VECTOR, started: false }
    }
}

/// Returns true if the driver is ready and the device does not need a reset.
fn is_live(status: u8) -> bool {
    status & (DRIVER_OK | NEEDS_RESET) == DRIVER_OK
}

/// Returns the body of a vendor capability (after ID and link).
fn capability(kind: u8, offset: u32, len: u32) -> Vec<u8> {
    let mut body = vec![CAP_LEN, kind, BAR as u8, 0, 0, 0];
    body.extend(offset.to_le_bytes());
    body.extend(len.to_le_bytes());
    body
}

/// Returns `size` bytes at `offset` of a register block; bytes beyond its end are zero.
fn window_of(block: &[u8], offset: u64, size: u8) -> u64 {
    let byte = |i: u8| block.get(offset as usize + usize::from(i)).map_or(0, |&b| u64::from(b) << (8 * i));
    (0..size.min(8)).map(byte).sum()
}

impl<D: Device> Function for VirtioPci<D> {
    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_read(&mut self, at: usize, size: u8, ctx: &mut DeviceContext) -> u32 {
        if self.is_window(at)
            && let Some((offset, length)) = self.window()
        {
            let value = self.bar_read(BAR, offset, length, ctx) as u32;
            self.config.write(self.window + WINDOW_DATA, 4, value);
        }
        self.config.read(at, size)
    }

    fn config_write(&mut self, at: usize, size: u8, value: u32, ctx: &mut DeviceContext) {
        self.config.write(at, size, value);
        self.msix.refresh(&self.config, &mut ctx.out.messages);
        if self.is_window(at)
            && let Some((offset, length)) = self.window()
        {
            let value = self.config.read(self.window + WINDOW_DATA, length);
            self.bar_write(BAR, offset, length, u64::from(value), ctx);
        }
        // Requests that were blocked while bus mastering was disabled can be processed now.
        self.poll(ctx);
    }

    fn bar_read(&mut self, _bar: usize, offset: u64, size: u8, _ctx: &mut DeviceContext) -> u64 {
        match offset / AREA * AREA {
            COMMON => window_of(&self.common(), offset, size),
            ISR if offset == ISR => {
                self.config.set_interrupt_status(false);
                u64::from(std::mem::take(&mut self.registers.isr))
            }
            DEVICE => window_of(self.device.config(), offset - DEVICE, size),
            TABLE => self.msix.read_table(offset - TABLE, size),
            PENDING => self.msix.read_pending(offset - PENDING, size),
            _ => 0,
        }
    }

    fn bar_write(&mut self, _bar: usize, offset: u64, size: u8, value: u64, ctx: &mut DeviceContext) {
        match offset / AREA * AREA {
            COMMON => self.write_common(offset as usize, size, value, ctx),
            NOTIFY => {
                self.work(((offset - NOTIFY) / u64::from(NOTIFY_STRIDE)) as u16, ctx);
                // Control messages of the driver may have an answer.
                self.poll(ctx);
            }
            TABLE => self.msix.write_table(offset - TABLE, size, value, &mut ctx.out.messages),
            _ => {}
        }
    }

    fn input(&mut self, bytes: &[u8], ctx: &mut DeviceContext) {
        self.device.input(bytes);
        self.poll(ctx);
    }

    fn inbox(&self) -> Inbox {
        self.device.inbox()
    }

    fn piece(&mut self, piece: &Piece, ctx: &mut DeviceContext) {
        self.device.piece(piece);
        self.poll(ctx);
    }

    fn channel_inbox(&self, channel: u8) -> Inbox {
        self.device.channel_inbox(channel)
    }

    fn next_event(&self) -> Option<Ticks> {
        self.device.next_event()
    }

    fn advance(&mut self, ctx: &mut DeviceContext) {
        self.device.advance(ctx.now);
        self.poll(ctx);
    }

    fn intx(&self) -> bool {
        self.registers.isr != 0 && !self.msix.enabled() && self.config.intx_allowed()
    }
}

/// Saved state of a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedSlot {
    max_size: u16,
    next_avail: u16,
    next_used: u16,
    event_idx: bool,
    size: u16,
    ready: bool,
    /// Addresses of descriptor table, available ring and used ring.
    rings: [u64; 3],
    packed: Option<Places>,
    unannounced: u16,
    vector: u16,
    started: bool,
}

impl SavedSlot {
    fn of(slot: &Slot) -> Self {
        let state = slot.queue.state();
        Self {
            max_size: state.max_size,
            next_avail: state.next_avail,
            next_used: state.next_used,
            event_idx: state.event_idx_enabled,
            size: state.size,
            ready: state.ready,
            rings: [state.desc_table, state.avail_ring, state.used_ring],
            packed: slot.packed,
            unannounced: slot.unannounced,
            vector: slot.vector,
            started: slot.started,
        }
    }

    /// Rebuilds the queue; sizes and alignments are checked. Rings outside of memory break the device when it processes
    /// them.
    fn slot(&self) -> Result<Slot, StateError> {
        let [desc_table, avail_ring, used_ring] = self.rings;
        let queue = Queue::try_from(QueueState {
            max_size: self.max_size,
            next_avail: self.next_avail,
            next_used: self.next_used,
            event_idx_enabled: self.event_idx,
            size: self.size,
            ready: self.ready,
            desc_table,
            avail_ring,
            used_ring,
        });
        let queue = queue.map_err(|_| StateError::Impossible("a virtqueue"))?;
        let places = self.packed.is_none_or(|places| places.are_in(self.size));
        require(places, "a place outside of a virtqueue")?;
        let Self { packed, unannounced, vector, started, .. } = *self;
        Ok(Slot { queue, packed, unannounced, vector, started })
    }
}

/// Saved state of the transport and its device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedTransport {
    config: ConfigSpace,
    msix: MsiX,
    queues: Vec<SavedSlot>,
    registers: Registers,
    #[serde(with = "serde_bytes")]
    device: Vec<u8>,
}

impl<D: Device> Saved for VirtioPci<D> {
    fn version(&self) -> u32 {
        self.device.version()
    }

    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&SavedTransport {
            config: self.config.clone(),
            msix: self.msix.clone(),
            queues: self.queues.iter().map(SavedSlot::of).collect(),
            registers: self.registers.clone(),
            device: self.device.save()?,
        })
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let saved: SavedTransport = decode(bytes)?;
        saved.config.check(&self.config)?;
        saved.msix.check(&self.msix, &saved.config)?;
        let sizes = |slots: &[SavedSlot]| slots.iter().map(|slot| slot.max_size).collect::<Vec<_>>();
        same(&sizes(&saved.queues), &self.queues.iter().map(|slot| slot.queue.max_size()).collect(), "virtio device")?;
        let queues = saved.queues.iter().map(SavedSlot::slot).collect::<Result<Vec<_>, _>>()?;
        let vector = |vector: u16| vector < saved.msix.vectors() || vector == NO_VECTOR;
        let vectors = queues.iter().all(|slot| vector(slot.vector)) && vector(saved.registers.config_vector);
        require(vectors, "a vector that the function does not have")?;
        let status = saved.registers.status;
        let known = ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED | NEEDS_RESET;
        let in_order = status & FEATURES_OK != 0 || status & DRIVER_OK == 0;
        let acceptable = status & FEATURES_OK == 0 || self.accepts(saved.registers.driver_features);
        require(status & !known == 0 && in_order && acceptable, "the status of a virtio device")?;
        let live = is_live(status);
        require(
            queues.iter().all(|slot| slot.started == (live && slot.queue.ready())),
            "a virtqueue that is not what the status says",
        )?;
        let packed = saved.registers.driver_features & PACKED != 0;
        require(
            queues.iter().all(|slot| !slot.queue.ready() || slot.packed.is_some() == packed),
            "a virtqueue of a kind that was not negotiated",
        )?;
        require(saved.registers.isr & !(ISR_QUEUE | ISR_CONFIG) == 0, "the interrupt status of a virtio device")?;
        require(
            saved.config.interrupt_status() == (saved.registers.isr != 0),
            "the interrupt status of a PCI function",
        )?;
        self.device.restore(&saved.device)?;
        self.config = saved.config;
        self.msix = saved.msix;
        self.queues = queues;
        self.registers = saved.registers;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::Place;
    use super::*;
    use crate::virtio::Ports;

    /// Returns a console that a driver uses: its first queue is enabled and started.
    fn used() -> VirtioPci<Ports> {
        let mut function = VirtioPci::new(Ports::console());
        function.registers.driver_features = VERSION_1;
        function.registers.status = ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK;
        function.queues[0].queue.set_ready(true);
        function.queues[0].started = true;
        function
    }

    #[test]
    fn forged_states_are_refused() {
        let changed = |change: &dyn Fn(&mut SavedTransport)| {
            let mut saved: SavedTransport = decode(&used().save().unwrap()).unwrap();
            change(&mut saved);
            let mut function = VirtioPci::new(Ports::console());
            let restored = function.restore(&encode(&saved).unwrap());
            assert!(restored.is_err() || function.save() == encode(&saved));
            restored
        };
        let impossible = |what| Err(StateError::Impossible(what));
        let vector = impossible("a vector that the function does not have");
        let status = impossible("the status of a virtio device");
        let started = impossible("a virtqueue that is not what the status says");
        let kind = impossible("a virtqueue of a kind that was not negotiated");
        let pin = impossible("the interrupt status of a PCI function");
        let place = |index| Some(Places { used: Places::START.used, available: Place { index, wrap: true } });
        type Forgery<'a> = (&'a str, &'a dyn Fn(&mut SavedTransport), Result<(), StateError>);
        let cases: [Forgery; 30] = [
            ("nothing", &|_| (), Ok(())),
            ("a queue is missing", &|saved| saved.queues.truncate(3), Err(StateError::Other("virtio device"))),
            ("a queue is smaller", &|saved| saved.queues[1].max_size = 32, Err(StateError::Other("virtio device"))),
            ("a queue has no size", &|saved| saved.queues[1].size = 3, impossible("a virtqueue")),
            ("the last vector", &|saved| saved.queues[3].vector = 4, Ok(())),
            ("a vector after it", &|saved| saved.queues[3].vector = 5, vector.clone()),
            ("the last vector for changes", &|saved| saved.registers.config_vector = 4, Ok(())),
            ("a vector for changes after it", &|saved| saved.registers.config_vector = 5, vector),
            ("it has failed", &|saved| saved.registers.status |= FAILED, Ok(())),
            ("an unknown status", &|saved| saved.registers.status |= 0x20, status.clone()),
            ("ready without features", &|saved| saved.registers.status &= !FEATURES_OK, status.clone()),
            ("old features", &|saved| saved.registers.driver_features = 0, status.clone()),
            ("unknown features", &|saved| saved.registers.driver_features |= PACKED, status),
            (
                "unknown features that are not accepted yet",
                &|saved| {
                    (saved.registers.driver_features, saved.registers.status) = (u64::MAX, ACKNOWLEDGE | DRIVER);
                    (saved.queues[0].started, saved.queues[0].ready) = (false, false);
                },
                Ok(()),
            ),
            ("an enabled queue has not started", &|saved| saved.queues[0].started = false, started.clone()),
            ("another queue has started", &|saved| saved.queues[1].started = true, started.clone()),
            ("the device needs a reset", &|saved| saved.registers.status |= NEEDS_RESET, started),
            (
                "it needs a reset, and has stopped",
                &|saved| {
                    saved.registers.status |= NEEDS_RESET;
                    saved.queues[0].started = false;
                },
                Ok(()),
            ),
            ("a packed ring", &|saved| saved.queues[0].packed = place(0), kind),
            ("a packed ring that is not enabled", &|saved| saved.queues[1].packed = place(63), Ok(())),
            (
                "a place outside of it",
                &|saved| saved.queues[1].packed = place(64),
                impossible("a place outside of a virtqueue"),
            ),
            (
                "a used place outside of it",
                &|saved| {
                    saved.queues[1].packed = Some(Places { used: Place { index: 64, wrap: true }, ..Places::START })
                },
                impossible("a place outside of a virtqueue"),
            ),
            ("a pending interrupt", &|saved| saved.registers.isr = ISR_QUEUE, pin.clone()),
            ("a pin without an interrupt", &|saved| saved.config.set_interrupt_status(true), pin),
            (
                "both interrupts",
                &|saved| {
                    saved.registers.isr = ISR_QUEUE | ISR_CONFIG;
                    saved.config.set_interrupt_status(true);
                },
                Ok(()),
            ),
            (
                "an unknown interrupt",
                &|saved| {
                    saved.registers.isr = 4;
                    saved.config.set_interrupt_status(true);
                },
                impossible("the interrupt status of a virtio device"),
            ),
            (
                "another function",
                &|saved| saved.config = VirtioPci::new(crate::virtio::Entropy::new(1)).config,
                Err(StateError::Other("PCI function")),
            ),
            ("a selected queue that does not exist", &|saved| saved.registers.queue_select = 99, Ok(())),
            ("positions", &|saved| (saved.queues[2].next_avail, saved.queues[2].next_used) = (7, 5), Ok(())),
            ("entries that are not announced", &|saved| saved.queues[0].unannounced = 3, Ok(())),
        ];
        for (what, change, expected) in cases {
            assert_eq!(changed(change), expected, "{what}");
        }
    }
}
