//! The cluster: its map, the keys in the state store, the messages to and from monitors, and the
//! monitor's logic.
//!
//! ```text
//!   operator ──Command──▶ Monitor ──Transaction──▶ state store (JSON keys)
//!   OSD ──boot, report──▶    │
//!   client ──session────▶    └──MapDelta──▶ OSDs, clients
//! ```

pub mod copy;
pub mod heartbeat;
pub mod map;
pub mod message;
pub mod monitor;
pub mod monitor_link;
pub mod numbers;
pub mod reconnect;
mod record_errors;
pub mod records;
mod revisions_by_pool;
pub mod settings;
pub mod state;
pub mod stats;
