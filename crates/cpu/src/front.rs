//! The fast path's view of guest memory: host pointers of pages in the modelled first-level data TLB, and pages of the
//! modelled first-level instruction TLB.
//!
//! Every entry is a copy of an entry in the modelled TLB, and a lookup neither charges nor changes anything. An access
//! without an entry takes the slow path, which uses the modelled TLB. The contents of these tables therefore have no
//! effect on a ledger.
//!
//! There is one [`Area`] for each of the most recently used address spaces, so that their entries are kept while
//! another one is active, as in the TLB. The layout of an area is made for translated code, whose stack pointer points
//! into it: its data is at constant offsets. Pages that leave the TLB are removed from the
//! current area at once, and from other areas, by a log, when these are entered again.

mod half;

pub use half::{Half, Mapped, PAGES, SLOTS, Slot, slot, slot_mask};

use crate::mapping::Mapping;
use crate::time::memory::LINE_SHIFT;
use half::set_bits;
use ledger::caches::LINE;
use std::alloc::{Layout, handle_alloc_error};
use std::mem::offset_of;
use std::ptr::NonNull;
use x86::page::PAGE;

/// Number of slots for pages of code.
pub const FETCH_SLOTS: usize = 256;
/// Number of slots for large pages of code, in units of 2 MiB.
pub const LARGE_SLOTS: usize = 64;
/// Number of modes with tables of their own.
pub const MODES: usize = 3;

/// Accesses that the fast path may execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Accesses at CPL 3.
    User = 0,
    /// Accesses below CPL 3, including user pages.
    Supervisor = 1,
    /// Accesses below CPL 3 while SMAP applies.
    SupervisorOnly = 2,
    /// None: every access takes the slow path.
    Slow = 3,
}

/// Host pointers for one [`Mode`].
#[repr(C)]
pub struct Table {
    /// Readable pages.
    pub read: Half,
    /// Writable pages without a line that is marked as decoded or monitored.
    pub write: Half,
    /// True if an entry has been added since the table was cleared.
    used: bool,
}

impl Table {
    fn clear_private(&mut self) {
        self.read.clear_private();
        self.write.clear_private();
    }

    /// Initializes zeroed memory to an empty table.
    fn reset(&mut self, shift: u8) {
        self.read.reset(shift);
        self.write.reset(shift);
        self.used = false;
    }

    fn clear(&mut self) {
        self.read.clear();
        self.write.clear();
        self.used = false;
    }
}

/// Pages of one [`Mode`] in the modelled TLB, behind a [`Table`] of lines: a line that the table does not have is found without
/// the TLB.
struct Pages {
    read: Known,
    write: Known,
    used: bool,
}

impl Pages {
    fn reset(&mut self) {
        self.read.half.reset(PAGES);
        self.write.half.reset(PAGES);
        self.used = false;
    }

    fn clear(&mut self) {
        self.read.half.clear();
        self.write.half.clear();
        self.used = false;
    }
}

/// Pages for one kind of access, with their guest-physical addresses.
struct Known {
    half: Half,
    physical: [u64; SLOTS],
}

/// Data in front of an area's tables, for translated code.
///
/// # Safety
/// Memory of zeroes is a valid value.
pub unsafe trait Attached {
    /// Initializes memory of zeroes.
    fn reset(&mut self);
}

/// Tables of one address space, and data that the user of the tables attaches to them.
#[repr(C, align(64))]
pub struct Area<D> {
    /// The attached data.
    pub running: D,
    /// Tables by [`Mode`].
    pub tables: [Table; MODES],
    /// Pages of code, see [`signature`].
    pub fetch: [u64; FETCH_SLOTS],
    /// Large pages of code, see [`large_signature`].
    pub large: [u64; LARGE_SLOTS],
    /// Slots of both that may be for pages of one address space, which are not global.
    private_code: PrivateCode,
    /// Pages of data by [`Mode`], if the tables have lines.
    pages: [Pages; MODES],
    /// True if the pages of code may include parts of large pages.
    pieces: bool,
    /// Position in the log up to which removals have been applied.
    followed: u64,
    /// [`Ram::epoch`](crate::Ram::epoch) at the last removal of writable pages.
    epoch: u64,
}

impl<D> Area<D> {
    fn clear(&mut self) {
        self.tables.iter_mut().filter(|table| table.used).for_each(Table::clear);
        self.pages.iter_mut().filter(|pages| pages.used).for_each(Pages::clear);
        self.fetch.fill(NO_SIGNATURE);
        self.large.fill(NO_SIGNATURE);
        self.private_code = PrivateCode::default();
        self.pieces = false;
    }

    /// Drops what is not global, in an area without lines.
    fn clear_private(&mut self) {
        self.tables.iter_mut().filter(|table| table.used).for_each(Table::clear_private);
        let PrivateCode { small, large } = std::mem::take(&mut self.private_code);
        for (word, bits) in small.into_iter().enumerate() {
            set_bits(bits).for_each(|bit| self.fetch[word * 64 + bit] = NO_SIGNATURE);
        }
        set_bits(large).for_each(|bit| self.large[bit] = NO_SIGNATURE);
    }

    /// Drops pages that can be written if a page may have got its first marked line since.
    fn follow_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.drop_writes();
        }
    }

    /// Drops a page. For code, returns true if there was an entry.
    fn drop(&mut self, Left { linear, shift, tables, .. }: Left, code: bool) -> bool {
        if code {
            return self.drop_fetch(linear, shift);
        }
        self.drop_range(linear, shift, tables);
        false
    }

    fn drop_range(&mut self, linear: u64, shift: u8, tables: Tables) {
        for (mode, table) in self.tables.iter_mut().enumerate() {
            let [reads, writes] = tables.of_mode(mode);
            if reads && table.used {
                table.read.drop_range(linear, shift);
            }
            if writes && table.used {
                table.write.drop_range(linear, shift);
            }
        }
        if shift >= PAGES {
            for pages in self.pages.iter_mut().filter(|pages| pages.used) {
                pages.read.half.drop_range(linear, shift);
                pages.write.half.drop_range(linear, shift);
            }
        }
    }

    /// Drops a page of code. Returns true if there was an entry.
    fn drop_fetch(&mut self, linear: u64, shift: u8) -> bool {
        let mut any = false;
        // A large page that contains a separately translated page is handled in pieces from now on.
        let large = if shift <= LARGE { large_slot(linear)..large_slot(linear) + 1 } else { 0..LARGE_SLOTS };
        let whole = shift.max(LARGE);
        for found in &mut self.large[large] {
            let same = large_linear(*found) >> whole == (linear & LINEAR) >> whole;
            if same && *found != NO_SIGNATURE {
                *found = NO_SIGNATURE;
                any = true;
            }
        }
        let slots = match shift {
            12 => fetch_slot(linear)..fetch_slot(linear) + 1,
            _ if self.pieces => 0..FETCH_SLOTS,
            _ => 0..0,
        };
        for i in slots {
            let same = linear_of(i, self.fetch[i]) >> shift == (linear & LINEAR) >> shift;
            if same && self.fetch[i] != NO_SIGNATURE {
                self.fetch[i] = NO_SIGNATURE;
                any = true;
            }
        }
        any
    }

    fn drop_writes(&mut self) {
        self.tables.iter_mut().filter(|table| table.used).for_each(|table| table.write.clear());
        self.pages.iter_mut().filter(|pages| pages.used).for_each(|pages| pages.write.half.clear());
    }
}

/// Slots for pages of code that may not be global, by a bit for each.
#[derive(Default)]
struct PrivateCode {
    small: [u64; FETCH_SLOTS / 64],
    large: u64,
}

/// Sets a bit of a word to a value.
fn set_bit(word: &mut u64, at: usize, value: bool) {
    *word = *word & !(1 << at) | u64::from(value) << at;
}

/// Bits of a linear address that distinguish pages, for any paging depth.
const LINEAR: u64 = (1 << 57) - 1;
/// Position of the linear part in a signature.
const PAGE_SHIFT: u32 = 27;
/// Bits of a signature that identify the physical page.
const PHYSICAL_PART: u64 = (1 << PAGE_SHIFT) - 2;
/// Lowest bit of a linear address that its signature includes.
const SIGNED: u32 = 20;
/// Limit of guest-physical addresses in signatures.
const PHYSICAL: u64 = 1 << 38;

/// Returns the slot of a page of code.
#[inline(always)]
pub fn fetch_slot(linear: u64) -> usize {
    (linear >> 12) as usize % FETCH_SLOTS
}

/// Returns the signature of a linear page in its slot, which states its guest-physical page and the permission to fetch
/// from it, by user code or not. It consists of the number of the linear page without the bits that the slot implies
/// (37 bits), the number of the physical page (26 bits), and the user bit. The second value is false if the physical
/// address does not fit.
#[inline(always)]
pub fn signature(linear: u64, physical: u64, user: bool) -> (u64, bool) {
    let page = (linear & LINEAR) >> SIGNED;
    (page << PAGE_SHIFT | (physical & (PHYSICAL - 1)) >> 12 << 1 | u64::from(user), physical < PHYSICAL)
}

fn linear_of(slot: usize, signature: u64) -> u64 {
    (signature >> PAGE_SHIFT) << SIGNED | (slot as u64) << 12
}

/// Log2 of the size of a slot for large pages.
const LARGE: u8 = 21;

/// Returns the slot of a large page of code.
#[inline(always)]
pub fn large_slot(linear: u64) -> usize {
    (linear >> LARGE) as usize % LARGE_SLOTS
}

/// Returns the signature of 2 MiB at a linear address, which states their guest-physical address and the permission to
/// fetch from them, by user code or not. Both addresses are multiples of 2 MiB. The second value is false if the
/// physical address does not fit.
#[inline(always)]
pub fn large_signature(linear: u64, physical: u64, user: bool) -> (u64, bool) {
    let page = (linear & LINEAR) >> LARGE;
    (page << PAGE_SHIFT | (physical & (PHYSICAL - 1)) >> LARGE << 1 | u64::from(user), physical < PHYSICAL)
}

fn large_linear(signature: u64) -> u64 {
    signature >> PAGE_SHIFT << LARGE
}

/// An empty slot. The page with this signature is never stored.
const NO_SIGNATURE: u64 = u64::MAX;

/// Number of areas, each for one address space.
const AREAS: usize = 16;
/// Marks an area without an address space.
const NO_SPACE: u32 = u32::MAX;
/// Marks an area without pages.
const NO_CONTEXT: u32 = u32::MAX;

/// Returns the part of an address space's number that its global pages are bound to: the VPID and the EPT pointer.
fn context(space: u32) -> u32 {
    space >> 16
}

/// Number of removals that the log holds for areas that are not current: more than the modelled cache has lines.
const LOG: usize = 1024;
/// Size of the stack of translated code below an area, which the host uses for signal frames.
const STACK: usize = 64 << 10;

/// A page that has been removed from the TLB, or replaced.
#[derive(Clone, Copy, Default)]
pub(crate) struct Left {
    /// Linear address.
    pub linear: u64,
    /// Log2 of the size.
    pub shift: u8,
    /// Address space of the page; `None` for all.
    pub key: Option<u32>,
    /// The tables that may have it.
    pub tables: Tables,
}

/// A set of tables: a bit for each [`Mode`] and kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tables(pub u8);

impl Tables {
    /// All tables.
    pub const ALL: Self = Self(u8::MAX);

    /// The table for reads in a mode other than [`Mode::Slow`], and with `writable` the one for writes.
    pub fn of(mode: Mode, writable: bool) -> Self {
        Self((if writable { 0b11 } else { 0b01 }) << (2 * mode as u8))
    }

    /// Returns whether the tables for reads and for writes of a mode, by its number, are in the set.
    fn of_mode(self, mode: usize) -> [bool; 2] {
        [0, 1].map(|bit| self.0 >> (2 * mode + bit) & 1 != 0)
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self::ALL
    }
}

/// Where areas may have a line of the modelled cache: its linear address, with the [`Tables`] in the bits below it. Without tables, no area has
/// the line.
#[derive(Clone, Copy, Default)]
pub(crate) struct Exposure(u64);

impl Exposure {
    /// Returns true if the line is at an address.
    pub fn is_at(self, linear: u64) -> bool {
        self.0 & !(LINE - 1) == linear && self.0 != 0
    }

    /// The line at an address is in these tables too. It was at that address before, or nowhere.
    pub fn add(&mut self, linear: u64, Tables(tables): Tables) {
        self.0 |= linear | u64::from(tables);
    }

    /// The line is to leave: returns what, or `None` if it is nowhere.
    pub fn leave(&mut self) -> Option<Left> {
        let Self(before) = std::mem::take(self);
        let tables = Tables((before % LINE) as u8);
        (before != 0).then_some(Left { linear: before & !(LINE - 1), shift: LINE_SHIFT, key: None, tables })
    }
}

// The tables of all modes fit below the address of a line.
const _: () = assert!(2 * MODES <= LINE_SHIFT as usize);

impl Left {
    /// Returns true if the page may belong to an address space.
    fn concerns(&self, space: u32) -> bool {
        self.key.is_none_or(|key| key == space)
    }
}

/// Guarded memory below a stack, which also catches an overrun of the area.
const BELOW: usize = 4096;

#[repr(C, align(4096))]
struct Frame<D> {
    guard: [u8; BELOW],
    stack: [u8; STACK],
    area: Area<D>,
}

/// A page that was accessed, and other pages of its aligned group of [`GROUP`](crate::ram::GROUP), by a bit for each.
#[derive(Clone, Copy)]
pub(crate) struct Accessed {
    /// Linear address.
    pub page: u64,
    /// Host address.
    pub host: u64,
    /// True if the page was written, and not only read.
    pub written: bool,
    /// Readable pages of the group.
    pub readable: u8,
    /// Writable pages of the group that have no marked line.
    pub writable: u8,
    /// The page in the TLB.
    pub mapped: Mapped,
}

/// A page of data that the TLB has.
#[derive(Clone, Copy)]
pub(crate) struct KnownPage {
    /// Host address of the access.
    pub host: u64,
    /// Guest-physical address of the access.
    pub physical: u64,
    /// True if the page may be written on the fast path.
    pub writable: bool,
    /// The page in the TLB.
    pub mapped: Mapped,
}

/// The areas of one processor.
pub struct Front<D> {
    frames: Mapping,
    /// The current area.
    area: NonNull<Area<D>>,
    /// Current table.
    table: NonNull<Table>,
    mode: Mode,
    /// Log2 of the size of the pages or lines in the tables.
    shift: u8,
    /// A table that stays empty.
    nothing: Box<Table>,
    /// Address space of the current area.
    space: u32,
    /// Address space of each area, or [`NO_SPACE`].
    spaces: [u32; AREAS],
    /// Context of the address spaces whose pages each area has, or [`NO_CONTEXT`]: see [`context`].
    contexts: [u32; AREAS],
    next: usize,
    /// The last removals; the flag is true for pages of code.
    log: [(Left, bool); LOG],
    logged: u64,
}

// SAFETY: the frames and the empty table belong to the value alone, and the pointers to them are used through it. What is
// attached consists of numbers and raw pointers, which each entry into translated code sets before anything follows them.
unsafe impl<D: Attached> Send for Front<D> {}

impl<D: Attached> Front<D> {
    /// Creates empty areas, for pages or lines of 2^`shift` bytes.
    pub fn new(shift: u8) -> Self {
        let frames = Self::allocate();
        let mut nothing = Box::new(Table { read: Half::empty(shift), write: Half::empty(shift), used: false });
        let table = NonNull::from(&mut *nothing);
        // SAFETY: the first frame is allocated.
        let area = unsafe { NonNull::new_unchecked(&raw mut (*frames.start().cast::<Frame<D>>()).area) };
        let mut front = Self {
            frames,
            area,
            table,
            mode: Mode::Slow,
            shift,
            nothing,
            space: NO_SPACE,
            spaces: [NO_SPACE; AREAS],
            contexts: [NO_CONTEXT; AREAS],
            next: 0,
            log: [(Left::default(), false); LOG],
            logged: 0,
        };
        front.claim(0, NO_SPACE, 0);
        front
    }

    /// Allocates frames of zeroes, which are valid for all fields. A frame takes memory on first use: the allocator
    /// would write to all of them, as they are aligned to pages.
    fn allocate() -> Mapping {
        let mapped = Mapping::anonymous(size_of::<[Frame<D>; AREAS]>()).and_then(|frames| {
            let mut guards = (0..AREAS).map(|number| number * size_of::<Frame<D>>() + offset_of!(Frame<D>, guard));
            guards.try_for_each(|at| frames.guard(at, BELOW))?;
            Ok(frames)
        });
        mapped.unwrap_or_else(|_| handle_alloc_error(Layout::new::<[Frame<D>; AREAS]>()))
    }

    fn frames(&self) -> *mut Frame<D> {
        self.frames.start().cast()
    }

    fn nth(&mut self, number: usize) -> &mut Area<D> {
        assert!(number < AREAS);
        // SAFETY: the frame is allocated and initialized (zeroes are valid), and only reachable through `self`.
        unsafe { &mut (*self.frames().add(number)).area }
    }

    /// Returns the current area, in which translated code runs.
    pub fn current(&mut self) -> &mut Area<D> {
        // SAFETY: it is an area of one of the frames; no other reference to it is alive while `self` is borrowed.
        unsafe { self.area.as_mut() }
    }

    /// Assigns an area to an address space. The area keeps the global pages of spaces with the same context.
    fn claim(&mut self, number: usize, space: u32, epoch: u64) {
        let (logged, shift) = (self.logged, self.shift);
        let same = std::mem::replace(&mut self.contexts[number], context(space)) == context(space);
        let area = self.nth(number);
        // New memory is neither filled nor empty.
        let fresh = area.fetch[0] == 0 && area.fetch[1] == 0;
        if fresh {
            area.tables.iter_mut().for_each(|table| table.reset(shift));
            if shift != PAGES {
                area.pages.iter_mut().for_each(Pages::reset);
            }
            area.running.reset();
        }
        // Lines leave the cache so often that there are few left, and to apply their removals takes longer than to begin anew.
        let same = same && shift == PAGES && logged - area.followed <= LOG as u64;
        if same {
            self.follow(number, |_| true);
            let area = self.nth(number);
            area.clear_private();
            area.follow_epoch(epoch);
        } else {
            area.clear();
            area.followed = logged;
            area.epoch = epoch;
        }
        self.spaces[number] = space;
        self.switch(number);
    }

    /// Applies the removals that concern an area since it was the current one.
    fn follow(&mut self, number: usize, concerns: impl Fn(&Left) -> bool) {
        let logged = self.logged;
        for at in self.nth(number).followed..logged {
            let (left, code) = self.log[at as usize % LOG];
            if concerns(&left) {
                self.nth(number).drop(left, code);
            }
        }
        self.nth(number).followed = logged;
    }

    fn switch(&mut self, number: usize) {
        self.space = self.spaces[number];
        self.area = NonNull::from(self.nth(number));
        self.set_mode(self.mode);
    }

    /// Makes the area of an address space current.
    pub(crate) fn enter(&mut self, space: u32, epoch: u64) {
        let Some(number) = self.spaces.iter().position(|&s| s == space) else {
            // An unused area, or each in turn.
            let number = self.spaces.iter().position(|&s| s == NO_SPACE).unwrap_or(self.next);
            self.next = (number + 1) % AREAS;
            return self.claim(number, space, epoch);
        };
        let (logged, followed) = (self.logged, self.nth(number).followed);
        if logged - followed > LOG as u64 {
            return self.claim(number, space, epoch);
        }
        self.follow(number, |left| left.concerns(space));
        self.nth(number).follow_epoch(epoch);
        self.switch(number);
    }

    /// Drops all pages; the current address space must be entered again.
    pub(crate) fn forget(&mut self) {
        (self.spaces, self.contexts) = ([NO_SPACE; AREAS], [NO_CONTEXT; AREAS]);
    }

    /// Drops the pages of address spaces that are not global; the current one must be entered again.
    pub(crate) fn forget_private(&mut self, is_gone: impl Fn(u32) -> bool) {
        self.spaces.iter_mut().filter(|space| is_gone(**space)).for_each(|space| *space = NO_SPACE);
    }

    /// Returns the current mode.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Sets the current mode.
    pub(crate) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.table = match mode {
            Mode::Slow => NonNull::from(&mut *self.nothing),
            mode => NonNull::from(&mut self.current().tables[mode as usize]),
        };
    }

    /// Drops a page here, and logs the removal for the other areas. Returns true if it was known as a page of code and
    /// `code` is set.
    fn leave(&mut self, left: Left, code: bool) -> bool {
        self.log[self.logged as usize % LOG] = (left, code);
        self.logged += 1;
        self.current().followed += 1;
        left.concerns(self.space) && self.current().drop(left, code)
    }

    /// Drops a page that is removed from the data TLB.
    pub(crate) fn drop_range(&mut self, left: Left) {
        self.leave(left, false);
    }

    /// Drops a page that is removed from the instruction TLB. Returns true if it was known.
    pub(crate) fn drop_fetch(&mut self, left: Left) -> bool {
        self.leave(left, true)
    }

    /// Handles a change of [`Ram::epoch`](crate::Ram::epoch): a page may have got its first marked line.
    #[inline]
    pub(crate) fn follow_marks(&mut self, epoch: u64) {
        self.current().follow_epoch(epoch);
    }

    /// Adds an accessed page, and others of the page that contains it, for a mode other than [`Mode::Slow`].
    pub(crate) fn fill(&mut self, mode: Mode, access: Accessed) {
        let Accessed { page, host, written, readable, writable, mapped } = access;
        let table = &mut self.current().tables[mode as usize];
        table.used = true;
        // A writable page is also readable.
        table.read.fill(half::Pages { page, host, which: readable, mapped }, true);
        if writable != 0 {
            table.write.fill(half::Pages { page, host, which: writable, mapped }, written);
        }
    }

    /// Adds the line at `linear`, which is at `host` and in the modelled cache, for a mode other than [`Mode::Slow`].
    pub(crate) fn fill_line(&mut self, mode: Mode, linear: u64, host: u64, writable: bool, mapped: Mapped) {
        let table = &mut self.current().tables[mode as usize];
        table.used = true;
        table.read.fill_line(linear, host, mapped);
        if writable {
            table.write.fill_line(linear, host, mapped);
        }
    }

    /// Adds the page of an access to those from which lines can be added. `page` and `physical` are addresses of pages.
    pub(crate) fn fill_page(&mut self, mode: Mode, access: Accessed, physical: u64) {
        let Accessed { page, host, readable, writable, mapped, .. } = access;
        let pages = &mut self.current().pages[mode as usize];
        pages.used = true;
        for (known, which) in [(&mut pages.read, readable), (&mut pages.write, writable)] {
            if which != 0 {
                known.half.fill(half::Pages { page, host, which, mapped }, true);
                known.physical[slot(page, PAGES)] = physical;
            }
        }
    }

    /// Returns the host address and the guest-physical address of `len` bytes inside one page, if the page is known for
    /// this access, and whether a page is known for writes.
    #[inline]
    pub(crate) fn page(&mut self, mode: Mode, linear: u64, len: u64, write: bool) -> Option<KnownPage> {
        if mode == Mode::Slow {
            return None;
        }
        let pages = &self.current().pages[mode as usize];
        let writable = pages.write.half.find(linear, len);
        let known = if write { &pages.write } else { &pages.read };
        let host = if write { writable } else { pages.read.half.find(linear, len) }?;
        let (at, offset) = (slot(linear, PAGES), linear & (PAGE - 1));
        let (physical, mapped) = (known.physical[at] | offset, known.half.mapped(at));
        Some(KnownPage { host, physical, writable: writable.is_some(), mapped })
    }

    /// Returns log2 of the size of the pages or lines in the tables.
    #[inline]
    pub fn shift(&self) -> u8 {
        self.shift
    }

    #[inline(always)]
    fn table(&self) -> &Table {
        // SAFETY: it points to the empty table or into the current area, both of which live as long as `self`, and
        // changes need `&mut self`.
        unsafe { self.table.as_ref() }
    }

    /// Returns the host address of `len` readable bytes inside one page.
    #[inline(always)]
    pub fn read(&self, linear: u64, len: u64) -> Option<*const u8> {
        self.table().read.find(linear, len).map(|host| host as *const u8)
    }

    /// Returns the host address of `len` writable bytes inside one page.
    #[inline(always)]
    pub fn write(&self, linear: u64, len: u64) -> Option<*mut u8> {
        self.table().write.find(linear, len).map(|host| host as *mut u8)
    }

    fn table_of(&self, mode: Mode) -> &Table {
        match mode {
            Mode::Slow => &self.nothing,
            // SAFETY: it is an area of one of the frames, which live as long as `self`, and changes need `&mut self`.
            mode => unsafe { &self.area.as_ref().tables[mode as usize] },
        }
    }

    /// Performs [`Self::read`] for a mode other than the current one.
    #[inline]
    pub(crate) fn read_in(&self, mode: Mode, linear: u64, len: u64) -> Option<*const u8> {
        self.table_of(mode).read.find(linear, len).map(|host| host as *const u8)
    }

    /// Performs [`Self::write`] for a mode other than the current one.
    #[inline]
    pub(crate) fn write_in(&self, mode: Mode, linear: u64, len: u64) -> Option<*mut u8> {
        self.table_of(mode).write.find(linear, len).map(|host| host as *mut u8)
    }

    /// Returns the guest-physical address of a page of code, if instructions may be fetched from it.
    #[inline]
    pub(crate) fn code_page(&mut self, linear: u64, user: bool) -> Option<u64> {
        let found = self.current().fetch[fetch_slot(linear)];
        let same = (found ^ signature(linear, 0, user).0) & !PHYSICAL_PART == 0;
        if same && found != NO_SIGNATURE {
            return Some((found & PHYSICAL_PART) << 11);
        }
        let found = self.current().large[large_slot(linear)];
        let same = (found ^ large_signature(linear, 0, user).0) & !PHYSICAL_PART == 0;
        same.then_some((found & PHYSICAL_PART) << (LARGE - 1) | linear & ((1 << LARGE) - 1) & !(PAGE - 1))
    }

    /// Returns true if a page of code is known as part of a large page.
    pub(crate) fn is_large(&mut self, linear: u64) -> bool {
        let found = self.current().large[large_slot(linear)];
        found != NO_SIGNATURE && large_linear(found) >> LARGE == (linear & LINEAR) >> LARGE
    }

    /// Adds a page of code. `whole` is true if the 2 MiB around it belong to one TLB page of at least that size.
    pub(crate) fn fill_code(&mut self, linear: u64, physical: u64, user: bool, mapped: Mapped, whole: bool) {
        let area = self.current();
        if whole {
            if let (signature, true) = large_signature(linear, physical, user) {
                let slot = large_slot(linear);
                area.large[slot] = signature;
                set_bit(&mut area.private_code.large, slot, !mapped.global);
            }
            return;
        }
        match signature(linear, physical, user) {
            (signature, true) if signature != NO_SIGNATURE => {
                let slot = fetch_slot(linear);
                area.fetch[slot] = signature;
                area.pieces |= mapped.large;
                set_bit(&mut area.private_code.small[slot / 64], slot % 64, !mapped.global);
            }
            _ => {}
        }
    }
}

/// The page being executed.
pub struct Fetch {
    /// Linear address; odd (never a page address) if it must be looked up again.
    pub page: u64,
    /// Guest-physical address.
    pub physical: u64,
}

const NO_PAGE: u64 = 1;
const SOME_PAGE: u64 = 3;

impl Fetch {
    /// Creates a fetch state without a page.
    pub fn new() -> Self {
        Self { page: NO_PAGE, physical: 0 }
    }

    /// Forces a lookup of the page before the next block (the privilege level may have changed).
    pub fn leave(&mut self) {
        self.page = NO_PAGE;
    }

    /// Handles execution of another page by code that has looked it up itself.
    pub(crate) fn follow(&mut self) {
        self.page = SOME_PAGE;
    }

    /// Returns true if the page must be looked up again.
    pub(crate) fn left(&self) -> bool {
        self.page == NO_PAGE
    }
}

impl Default for Fetch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINEAR: u64 = 0x40_0000;

    struct Nothing;

    // SAFETY: it has no bytes.
    unsafe impl Attached for Nothing {
        fn reset(&mut self) {}
    }

    fn fill(front: &mut Front<Nothing>, global: bool) {
        let mapped = Mapped { large: false, global };
        let access = Accessed { page: LINEAR, host: 0x7000, written: true, readable: 1, writable: 1, mapped };
        front.fill(Mode::User, access);
        assert!(knows(front));
    }

    fn knows(front: &Front<Nothing>) -> bool {
        front.read(LINEAR, 8).is_some() && front.write(LINEAR, 8).is_some()
    }

    #[test]
    fn a_page_leaves_the_address_space_it_was_known_in() {
        let left = |key| Left { linear: LINEAR, shift: 12, key, tables: Tables::ALL };
        let mut front = Front::<Nothing>::new(PAGES);
        front.set_mode(Mode::User);
        for space in [1, 2] {
            front.enter(space, 0);
            fill(&mut front, false);
        }
        front.drop_range(left(Some(1)));
        assert!(knows(&front));
        front.enter(1, 0);
        assert!(!knows(&front));
        fill(&mut front, false);
        front.drop_range(left(None));
        assert!(!knows(&front));
        front.enter(2, 0);
        assert!(!knows(&front));
    }

    #[test]
    fn global_pages_stay_when_an_address_space_goes() {
        let mut front = Front::<Nothing>::new(PAGES);
        front.set_mode(Mode::User);
        let next = |front: &mut Front<Nothing>, space: u32| {
            front.forget_private(|_| true);
            front.enter(space, 0);
            knows(front)
        };
        front.enter(1, 0);
        fill(&mut front, false);
        assert!(!next(&mut front, 1));
        fill(&mut front, true);
        assert!(next(&mut front, 1) && next(&mut front, 2));
        front.drop_range(Left { linear: LINEAR, shift: 12, key: None, tables: Tables::ALL });
        assert!(!next(&mut front, 2));
        // Global pages belong to a VPID and an EPT pointer.
        fill(&mut front, true);
        assert!(!next(&mut front, 1 << 16));
        fill(&mut front, true);
        front.forget();
        front.enter(1 << 16, 0);
        assert!(!knows(&front));
    }

    #[test]
    fn global_pages_that_left_while_another_area_was_current_do_not_stay() {
        let mut front = Front::<Nothing>::new(PAGES);
        front.set_mode(Mode::User);
        for (space, removals, stays) in [(1, 1, false), (2, LOG as u64 + 1, false), (3, 0, true)] {
            front.enter(space, 0);
            fill(&mut front, true);
            let area = front.area;
            front.enter(space + 8, 0);
            for n in 0..removals {
                let linear = if n == 0 { LINEAR } else { 0 };
                front.drop_range(Left { linear, shift: 12, key: Some(space + 8), tables: Tables::ALL });
            }
            front.forget_private(|gone| gone == space);
            front.enter(space + 4, 0);
            assert_eq!(front.area, area);
            assert_eq!(knows(&front), stays, "{removals}");
        }
    }
}
