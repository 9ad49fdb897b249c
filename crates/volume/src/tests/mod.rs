//! The client core against a monitor and OSDs that do what each test says.

mod faults;
mod routing;
mod work;
mod world;
