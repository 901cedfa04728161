//! Tiles: the registers of AMX (SDM vol. 1, chapter 18).

use serde::{Deserialize, Serialize};

/// How many tiles palette 1 has.
pub const TILES: usize = 8;
/// Bytes of a row.
pub const ROW: usize = 64;
/// Rows of a tile.
pub const ROWS: usize = 16;
/// Bytes of a tile.
pub const TILE: usize = ROW * ROWS;

/// The shape of a tile. Either both numbers are 0, and the tile cannot be used, or none is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Rows, up to [`ROWS`].
    pub rows: u8,
    /// Bytes of each row, up to [`ROW`].
    pub bytes: u8,
}

impl Shape {
    /// A tile can have this shape.
    fn is_possible(self) -> bool {
        (self.rows == 0) == (self.bytes == 0) && usize::from(self.rows) <= ROWS && usize::from(self.bytes) <= ROW
    }
}

/// The configuration of tiles (TILECFG).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TileConfig {
    /// The palette in use; with 0 the tiles are not configured, and nothing else is set.
    pub palette: u8,
    /// The row at which an instruction goes on that a fault has interrupted.
    pub start_row: u8,
    /// The shapes of the tiles.
    pub shapes: [Shape; TILES],
}

/// Offset of the tiles' widths in an image of TILECFG.
const WIDTHS: usize = 16;
/// Offset of their numbers of rows.
const HEIGHTS: usize = 48;

impl TileConfig {
    /// The 64 bytes of it as STTILECFG stores them.
    pub fn image(&self) -> [u8; 64] {
        let mut image = [0; 64];
        (image[0], image[1]) = (self.palette, self.start_row);
        for (n, shape) in self.shapes.iter().enumerate() {
            image[WIDTHS + 2 * n] = shape.bytes;
            image[HEIGHTS + n] = shape.rows;
        }
        image
    }

    /// What LDTILECFG makes of an image; `None` if that is #GP.
    pub fn from_image(image: &[u8; 64]) -> Option<Self> {
        let mut config = Self { palette: image[0], start_row: image[1], ..Self::default() };
        match config.palette {
            // The rest is not looked at.
            0 => return Some(Self::default()),
            1 => {}
            _ => return None,
        }
        let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let reserved = [&image[2..WIDTHS], &image[WIDTHS + 2 * TILES..HEIGHTS], &image[HEIGHTS + TILES..]];
        for (n, shape) in config.shapes.iter_mut().enumerate() {
            *shape = Shape { rows: image[HEIGHTS + n], bytes: image[WIDTHS + 2 * n] };
            if !shape.is_possible() || image[WIDTHS + 2 * n + 1] != 0 {
                return None;
            }
        }
        reserved.into_iter().all(zero).then_some(config)
    }
}

/// The tiles of a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiles {
    /// How they are configured.
    pub config: TileConfig,
    /// The tiles, one after the other; empty in the initial configuration, in which all are zero.
    data: Vec<u8>,
}

impl Tiles {
    /// The data has been written since it was in its initial configuration.
    pub fn are_in_use(&self) -> bool {
        !self.data.is_empty()
    }

    /// Puts the data in its initial configuration.
    pub fn clear(&mut self) {
        self.data = Vec::new();
    }

    /// A tile.
    pub fn tile(&self, number: usize) -> &[u8; TILE] {
        self.data.as_chunks().0.get(number).unwrap_or(&[0; TILE])
    }

    /// A tile, to write to it.
    pub fn tile_mut(&mut self, number: usize) -> &mut [u8; TILE] {
        if self.data.is_empty() {
            self.data = vec![0; TILES * TILE];
        }
        &mut self.data.as_chunks_mut().0[number % TILES]
    }

    /// A row of a tile.
    pub fn row(&self, tile: usize, row: usize) -> &[u8; ROW] {
        &self.tile(tile).as_chunks().0[row % ROWS]
    }

    /// Writes a row of a tile; what `bytes` does not reach becomes zero.
    pub fn set_row(&mut self, tile: usize, row: usize, bytes: &[u8]) {
        let to = &mut self.tile_mut(tile).as_chunks_mut::<ROW>().0[row % ROWS];
        to.fill(0);
        to[..bytes.len()].copy_from_slice(bytes);
    }

    /// Clears the rows of a tile from a number on.
    pub fn clear_rows(&mut self, tile: usize, from: usize) {
        self.tile_mut(tile)[from.min(ROWS) * ROW..].fill(0);
    }

    /// A processor can be in this state, which may come from a file.
    pub(crate) fn fit(&self) -> bool {
        TileConfig::from_image(&self.config.image()) == Some(self.config)
            && [0, TILES * TILE].contains(&self.data.len())
    }
}
