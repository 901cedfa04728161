//! `tollgate run`.

mod ends;
mod images;
mod input;
mod ledger;
mod machines;
mod network;
mod snapshot;
mod tiers;
