//! What a monitor does, told by claims.

mod faults;
mod life;
mod operator;
mod rig;
