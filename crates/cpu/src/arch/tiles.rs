//! Tiles: the registers of AMX (SDM vol. 1, chapter 18).

use serde::{Deserialize, Serialize};

/// Number of tiles in palette 1.
pub const TILES: usize = 8;
/// Size of a row in bytes.
pub const ROW: usize = 64;
/// Maximum number of rows of a tile.
pub const ROWS: usize = 16;
/// Size of a tile in bytes.
pub const TILE: usize = ROW * ROWS;

/// Shape of a tile. Either both numbers are 0, and the tile cannot be used, or both are nonzero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Number of rows, up to [`ROWS`].
    pub rows: u8,
    /// Number of bytes per row, up to [`ROW`].
    pub bytes: u8,
}

impl Shape {
    /// Returns true if a tile can have this shape.
    fn is_possible(self) -> bool {
        (self.rows == 0) == (self.bytes == 0) && usize::from(self.rows) <= ROWS && usize::from(self.bytes) <= ROW
    }
}

/// Tile configuration (TILECFG).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TileConfig {
    /// Palette in use; with palette 0 the tiles are not configured, and all other fields are zero.
    pub palette: u8,
    /// Row at which an instruction that was interrupted by a fault continues.
    pub start_row: u8,
    /// Shapes of the tiles.
    pub shapes: [Shape; TILES],
}

/// Offset of the tiles' widths in a TILECFG image.
const WIDTHS: usize = 16;
/// Offset of the tiles' row counts in a TILECFG image.
const HEIGHTS: usize = 48;

impl TileConfig {
    /// Returns the 64-byte image that STTILECFG stores.
    pub fn image(&self) -> [u8; 64] {
        let mut image = [0; 64];
        (image[0], image[1]) = (self.palette, self.start_row);
        for (n, shape) in self.shapes.iter().enumerate() {
            image[WIDTHS + 2 * n] = shape.bytes;
            image[HEIGHTS + n] = shape.rows;
        }
        image
    }

    /// Decodes an image as LDTILECFG does. Returns `None` for #GP.
    pub fn from_image(image: &[u8; 64]) -> Option<Self> {
        let mut config = Self { palette: image[0], start_row: image[1], ..Self::default() };
        match config.palette {
            // The other bytes are ignored.
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

/// Tiles of a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiles {
    /// Tile configuration.
    pub config: TileConfig,
    /// Data of all tiles in order; empty in the initial configuration, in which all are zero.
    data: Vec<u8>,
}

impl Tiles {
    /// Returns true if the data is not in its initial configuration.
    pub fn are_in_use(&self) -> bool {
        !self.data.is_empty()
    }

    /// Resets the data to its initial configuration.
    pub fn clear(&mut self) {
        self.data = Vec::new();
    }

    /// Returns a tile.
    pub fn tile(&self, number: usize) -> &[u8; TILE] {
        self.data.as_chunks().0.get(number).unwrap_or(&[0; TILE])
    }

    /// Returns a tile for writing.
    pub fn tile_mut(&mut self, number: usize) -> &mut [u8; TILE] {
        if self.data.is_empty() {
            self.data = vec![0; TILES * TILE];
        }
        &mut self.data.as_chunks_mut().0[number % TILES]
    }

    /// Returns a row of a tile.
    pub fn row(&self, tile: usize, row: usize) -> &[u8; ROW] {
        &self.tile(tile).as_chunks().0[row % ROWS]
    }

    /// Writes a row of a tile; bytes beyond `bytes` become zero.
    pub fn set_row(&mut self, tile: usize, row: usize, bytes: &[u8]) {
        let to = &mut self.tile_mut(tile).as_chunks_mut::<ROW>().0[row % ROWS];
        to.fill(0);
        to[..bytes.len()].copy_from_slice(bytes);
    }

    /// Clears the rows of a tile from row `from` on.
    pub fn clear_rows(&mut self, tile: usize, from: usize) {
        self.tile_mut(tile)[from.min(ROWS) * ROW..].fill(0);
    }

    /// Returns true if the state, which may come from a file, is possible.
    pub(crate) fn fit(&self) -> bool {
        TileConfig::from_image(&self.config.image()) == Some(self.config)
            && [0, TILES * TILE].contains(&self.data.len())
    }
}
