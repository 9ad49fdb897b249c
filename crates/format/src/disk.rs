//! Layouts of a store on its device. See `docs/internals/disk.md`.
