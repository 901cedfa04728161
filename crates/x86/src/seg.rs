//! Numbers of segment registers, as instructions encode them (SDM vol. 2, table B-8).

/// ES.
pub const ES: u8 = 0;
/// CS.
pub const CS: u8 = 1;
/// SS.
pub const SS: u8 = 2;
/// DS.
pub const DS: u8 = 3;
/// FS.
pub const FS: u8 = 4;
/// GS.
pub const GS: u8 = 5;
