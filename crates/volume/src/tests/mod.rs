//! Tests of the client core with a monitor and OSDs that each test controls.

mod direct;
mod faults;
mod lazy;
mod lazy_random;
mod objects;
mod random;
mod routing;
mod work;
mod world;
