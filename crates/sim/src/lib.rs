//! The simulator: runs whole stores and clusters in one thread, from one seed, with faults and checkers.
//!
//! ```text
//!   seed ─▶ Random ─▶ workload ─▶ the real store, node, monitor, client ─▶ model, checker
//!                └──▶ faults ─▶ SimDisk, network, state store ──▲
//! ```
//!
//! `docs/proof.md` describes what is simulated, within which limits, and what the checkers accept.

pub mod cluster;
pub mod disk;
pub mod outcome;
pub mod pattern;
pub mod random;
pub mod register;
pub mod store;
pub mod tally;
pub mod trace;
