//! Networks in virtual time: frames, links, ports, a learning bridge, captures, a traffic generator and its sink.
//!
//! A network interface of a machine (a *NIC*) is connected to a port of a [`Network`] and sees only that port, by the
//! trait [`Port`]. The other end of the port is a tester (generator and sink), a bridge with other ports, or the host's
//! network. This crate does not depend on processors. Time is counted in picoseconds of virtual time, and everything
//! happens in calls that pass the time: the same calls give the same frames at the same times.
//!
//! Frames, captures and all other inputs come from guests, files and the host's network, and are not trusted.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod capture;
pub mod exchange;
pub mod fabric;
pub mod frame;
pub mod generator;
pub mod headers;
pub mod lane;
pub mod options;
pub mod port;
pub mod rfc2544;
pub mod rss;
pub mod segment;
pub mod sink;
pub mod stream;
pub mod tester;
pub mod time;

pub use exchange::Exchange;
pub use fabric::{Network, PortReport};
pub use frame::{Frame, Offloads, Partial, Segments};
pub use port::{Plug, Port};
pub use time::{Rate, Time};
