//! The client core against a monitor and OSDs that do what each test says.

mod faults;
mod random;
mod routing;
mod work;
mod world;
