//! The client core against a monitor and OSDs that do what each test says.

mod faults;
mod lazy;
mod lazy_random;
mod random;
mod routing;
mod work;
mod world;
