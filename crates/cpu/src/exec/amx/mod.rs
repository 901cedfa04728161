//! AMX: tile configuration, loads and stores, products (SDM vol. 1, chapter 18, and vol. 2). Tile operations are
//! computed in software; an instruction that faults continues at the faulting row when it is restarted.

#[allow(unsafe_code, reason = "sums are computed under an MXCSR of their own")]
mod multiply;
#[cfg(test)]
mod tests;

use crate::arch::{ROW, Shape, TILES, TileConfig};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op, address_mask};
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, Register};
use ledger::Class;
use multiply::Product;
use x86::control::*;

/// Instruction table rows of AMX.
pub static ROWS: &[Row] = &[
    Row::new(Ldtilecfg, Class::TileMove, |_, _| Some(load_config)),
    Row::new(Sttilecfg, Class::TileMove, |_, _| Some(store_config)),
    Row::new(Tilerelease, Class::TileMove, |_, _| Some(release)),
    Row::new(Tilezero, Class::TileMove, |_, _| Some(zero)),
    Row::new(Tileloadd, Class::TileMove, |i, op| rows_of_memory(i, op, load)),
    Row::new(Tileloaddt1, Class::TileMove, |i, op| rows_of_memory(i, op, load)),
    Row::new(Tilestored, Class::TileMove, |i, op| rows_of_memory(i, op, store)),
    Row::new(Tdpbssd, Class::TileMultiply, |_, _| Some(|cpu, op| product(cpu, op, Product::SignedSigned))),
    Row::new(Tdpbsud, Class::TileMultiply, |_, _| Some(|cpu, op| product(cpu, op, Product::SignedUnsigned))),
    Row::new(Tdpbusd, Class::TileMultiply, |_, _| Some(|cpu, op| product(cpu, op, Product::UnsignedSigned))),
    Row::new(Tdpbuud, Class::TileMultiply, |_, _| Some(|cpu, op| product(cpu, op, Product::UnsignedUnsigned))),
    Row::new(Tdpbf16ps, Class::TileMultiply, |_, _| Some(|cpu, op| product(cpu, op, Product::Brain))),
    Row::new(Tdpfp16ps, Class::TileMultiply, |_, _| Some(|cpu, op| product(cpu, op, Product::Half))),
];

/// CPUID.1EH: maximum number of rows of a second source, and maximum number of bytes in a row of it and of the
/// destination.
const MAX_K: u8 = 16;
const MAX_N: u8 = 64;

/// Binds the memory operand of a load or store: the index register is a stride, and not part of the address.
fn rows_of_memory(i: &Instruction, op: &mut Op, handler: Handler) -> Option<Handler> {
    // Without an index register the stride is 0; the decoder ensures that there is a SIB byte.
    op.r3 = op.index;
    op.index = crate::op::NO_REG;
    // The tile is operand 0 of a load, and operand 1 of a store.
    if i.op0_register() == Register::None {
        op.r0 = op.r1;
    }
    Some(handler)
}

impl Cpu {
    /// Raises #UD unless tiles may be used: in 64-bit mode, with the state components enabled.
    fn tiles_ready(&mut self) -> Exec {
        let enabled = self.arch.cr4 & CR4_OSXSAVE != 0 && self.arch.xcr0 & XCR0_TILES == XCR0_TILES;
        if enabled && self.engine.long64 { Ok(()) } else { Err(self.ud()) }
    }

    /// Raises #NM if IA32_XFD disables a state component that an instruction needs, and records it in IA32_XFD_ERR (SDM
    /// vol. 1, 13.14).
    pub(crate) fn needs_state(&mut self, components: u64) -> Exec {
        let disabled = self.disabled_state() & components;
        if disabled != 0 {
            self.arch.msr.xfd_err = disabled;
            return Err(self.nm());
        }
        Ok(())
    }

    /// Returns the state components that IA32_XFD disables.
    pub(crate) fn disabled_state(&self) -> u64 {
        self.arch.msr.xfd & self.arch.xcr0
    }

    /// Returns the shape of a tile that an instruction uses. A tile without a shape raises #UD, as does every tile
    /// without a configuration.
    fn shape(&mut self, tile: u8) -> Exec<Shape> {
        let shape = self.arch.tiles.config.shapes[usize::from(tile) % TILES];
        if shape.rows == 0 || shape.bytes & 3 != 0 { Err(self.ud()) } else { Ok(shape) }
    }
}

fn load_config(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.tiles_ready()?;
    let mut image = [0; 64];
    cpu.load_bytes(op, &mut image)?;
    let Some(config) = TileConfig::from_image(&image) else { return Err(cpu.gp(0)) };
    // The data is reset to its initial configuration, which XFD does not prevent.
    cpu.arch.tiles.clear();
    cpu.arch.tiles.config = config;
    Ok(Flow::Next)
}

fn store_config(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.tiles_ready()?;
    let image = cpu.arch.tiles.config.image();
    cpu.store_bytes(op, &image)?;
    Ok(Flow::Next)
}

fn release(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.tiles_ready()?;
    cpu.arch.tiles.clear();
    cpu.arch.tiles.config = TileConfig::default();
    Ok(Flow::Next)
}

fn zero(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.tiles_ready()?;
    cpu.needs_state(XCR0_TILE_DATA)?;
    if cpu.arch.tiles.config.shapes[usize::from(op.r0) % TILES].rows == 0 {
        return Err(cpu.ud());
    }
    cpu.arch.tiles.clear_rows(usize::from(op.r0), 0);
    cpu.arch.tiles.config.start_row = 0;
    Ok(Flow::Next)
}

/// Calls `each` for every row of a tile from the start row on, with the linear address of the row.
fn each_row(cpu: &mut Cpu, op: &Op, write: bool, mut each: impl FnMut(&mut Cpu, usize, u64, usize) -> Exec) -> Exec {
    cpu.tiles_ready()?;
    cpu.needs_state(XCR0_TILE_DATA)?;
    let shape = cpu.shape(op.r0)?;
    let start = cpu.arch.tiles.config.start_row;
    if start >= shape.rows {
        return Err(cpu.ud());
    }
    let (first, stride) = (op.ea(cpu), cpu.reg(op.r3) << (op.scale & 3));
    for row in start..shape.rows {
        // Completed rows are kept if this row faults.
        cpu.arch.tiles.config.start_row = row;
        let offset = first.wrapping_add(stride.wrapping_mul(u64::from(row))) & address_mask(op.asize);
        let linear = cpu.linear(op.seg, offset, u64::from(shape.bytes), write)?;
        each(cpu, usize::from(row), linear, usize::from(shape.bytes))?;
    }
    cpu.arch.tiles.config.start_row = 0;
    Ok(())
}

fn load(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let tile = usize::from(op.r0);
    each_row(cpu, op, false, |cpu, row, linear, len| {
        let mut bytes = [0; ROW];
        cpu.read_bytes(linear, op.seg, &mut bytes[..len])?;
        cpu.arch.tiles.set_row(tile, row, &bytes);
        Ok(())
    })?;
    let rows = cpu.arch.tiles.config.shapes[tile % TILES].rows;
    cpu.arch.tiles.clear_rows(tile, usize::from(rows));
    Ok(Flow::Next)
}

fn store(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let tile = usize::from(op.r0);
    each_row(cpu, op, true, |cpu, row, linear, len| {
        let bytes = *cpu.arch.tiles.row(tile, row);
        cpu.write_bytes(linear, op.seg, &bytes[..len])
    })?;
    Ok(Flow::Next)
}

fn product(cpu: &mut Cpu, op: &Op, product: Product) -> Exec<Flow> {
    cpu.tiles_ready()?;
    cpu.needs_state(XCR0_TILE_DATA)?;
    if op.r0 == op.r1 || op.r1 == op.r2 || op.r0 == op.r2 {
        return Err(cpu.ud());
    }
    let (to, a, b) = (cpu.shape(op.r0)?, cpu.shape(op.r1)?, cpu.shape(op.r2)?);
    let fits = to.bytes == b.bytes && to.rows == a.rows && a.bytes / 4 == b.rows;
    if !fits || to.bytes > MAX_N || b.rows > MAX_K {
        return Err(cpu.ud());
    }
    let (first, second) = (*cpu.arch.tiles.tile(usize::from(op.r1)), *cpu.arch.tiles.tile(usize::from(op.r2)));
    let target = cpu.arch.tiles.tile_mut(usize::from(op.r0));
    product.add(target, &first, &second, [to.rows, b.rows, to.bytes / 4].map(usize::from));
    cpu.arch.tiles.config.start_row = 0;
    Ok(Flow::Next)
}
