//! Reads a chain of layers: each 4 KiB unit comes from the newest layer that has it.
//!
//! ```text
//!   unit          0 1 2 3 4 5
//!   newest layer  . A . . A .
//!   parent        B B B . . .        parts: parent 0..1, newest 1..2, parent 2..3, newest 4..5
//! ```
//!
//! A damaged unit counts as held by its layer: it is never read from an older layer instead.

use std::ops::Range;

use base::{Buffer, BufferPool, Checksum, ImageId, UNIT_SIZE, Version};
use format::wire::Refusal;

use crate::units::{has_unit, merge_bitmaps};

/// What is known about a chain, and which parts of it have been read.
pub struct Chain {
    layers: Vec<Layer>,
    /// The range that the read wants, in units.
    units: Range<u32>,
    parts: Vec<Part>,
    /// Number of answers that the store still owes.
    missing: usize,
    refusal: Option<Refusal>,
    /// A layer with damaged units that the read needs.
    damaged: Option<ImageId>,
}

/// The version of a block that a read found in one image of its chain.
#[derive(Clone, Copy)]
pub struct BlockSeen {
    pub image: ImageId,
    pub version: Version,
}

struct Layer {
    image: ImageId,
    version: Version,
    /// The newest version that any answer of the store reported.
    seen: Version,
    /// Bitmap of the units that the layer holds, damaged ones included.
    held: Vec<u64>,
}

/// Neighbouring units of one layer.
struct Part {
    layer: usize,
    units: Range<u32>,
    checksums: Vec<Checksum>,
    /// `None` until the part is read. An empty buffer: all zeros.
    data: Option<Buffer>,
}

impl Chain {
    /// Returns a chain about which nothing is known yet. `layers`: newest first.
    pub fn new(layers: Vec<ImageId>) -> Chain {
        assert!(!layers.is_empty());
        let missing = layers.len();
        let layers = layers
            .into_iter()
            .map(|image| Layer {
                image,
                version: Version::ZERO,
                seen: Version::ZERO,
                held: Vec::new(),
            })
            .collect();
        Chain { layers, units: 0..0, parts: Vec::new(), missing, refusal: None, damaged: None }
    }

    /// Returns the version of the newest layer's block.
    pub fn version(&self) -> Version {
        self.layers[0].version
    }

    /// Returns the blocks with the newest versions that the store's answers reported.
    pub fn seen(&self) -> Vec<BlockSeen> {
        let layers = self.layers.iter();
        layers.map(|layer| BlockSeen { image: layer.image, version: layer.seen }).collect()
    }

    /// Adds the allocation of a layer. Returns true when all layers are known.
    pub fn know(
        &mut self,
        layer: usize,
        version: Version,
        mut written: Vec<u64>,
        damaged: &[u64],
    ) -> bool {
        merge_bitmaps(&mut written, damaged);
        self.layers[layer].version = version;
        self.layers[layer].seen = version;
        self.layers[layer].held = written;
        self.answered()
    }

    /// Notes that an answer was an error. Returns true when all answers have arrived.
    pub fn fail(&mut self, refusal: Refusal) -> bool {
        self.refusal = Some(refusal);
        self.answered()
    }

    /// Notes the damaged units of a part. Returns true when all answers have arrived.
    pub fn damaged(&mut self, part: usize, units: &[u64], unit_count: u32) -> bool {
        self.damaged = Some(self.part(part).0);
        match &mut self.refusal {
            Some(Refusal::Damaged { units: known }) => merge_bitmaps(known, units),
            Some(_) => {}
            None => {
                let mut known = vec![0; unit_count.div_ceil(64) as usize];
                merge_bitmaps(&mut known, units);
                self.refusal = Some(Refusal::Damaged { units: known });
            }
        }
        self.answered()
    }

    /// Adds the data of a part. Returns true when all answers have arrived.
    pub fn fetched(
        &mut self,
        part: usize,
        version: Version,
        checksums: Vec<Checksum>,
        data: Buffer,
    ) -> bool {
        let part = &mut self.parts[part];
        let layer = &mut self.layers[part.layer];
        layer.seen = layer.seen.max(version);
        let size = (part.units.end - part.units.start) as usize * UNIT_SIZE as usize;
        assert!(data.is_empty() || data.len() == size);
        part.checksums = checksums;
        part.data = Some(data);
        self.answered()
    }

    fn answered(&mut self) -> bool {
        self.missing -= 1;
        self.missing == 0
    }

    /// Returns a layer whose damaged units prevent the read.
    pub fn damaged_layer(&self) -> Option<ImageId> {
        self.damaged
    }

    /// Returns why the read cannot be answered, if an answer was an error.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Returns a bitmap of the units of the block that any layer holds.
    pub fn allocation(&self, unit_count: u32) -> Vec<u64> {
        let mut bitmap = vec![0; unit_count.div_ceil(64) as usize];
        for layer in &self.layers {
            merge_bitmaps(&mut bitmap, &layer.held);
        }
        bitmap
    }

    /// Decides from which layer each unit is read. Requires: the allocation of all layers is known.
    pub fn plan(&mut self, units: Range<u32>) {
        assert!(self.missing == 0);
        for unit in units.clone() {
            let Some(layer) = self.layers.iter().position(|layer| has_unit(&layer.held, unit))
            else {
                continue;
            };
            match self.parts.last_mut() {
                Some(part) if part.layer == layer && part.units.end == unit => part.units.end += 1,
                _ => self.parts.push(Part {
                    layer,
                    units: unit..unit + 1,
                    checksums: Vec::new(),
                    data: None,
                }),
            }
        }
        self.units = units;
        self.missing = self.parts.len();
    }

    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// Returns the layer and the units of a part.
    pub fn part(&self, part: usize) -> (ImageId, Range<u32>) {
        let part = &self.parts[part];
        (self.layers[part.layer].image, part.units.clone())
    }

    /// Returns the checksums and bytes of the range, with holes filled with zeros.
    pub fn assemble(&mut self, buffers: &BufferPool) -> (Vec<Checksum>, Buffer) {
        assert!(self.missing == 0);
        if let [part] = &mut self.parts[..]
            && part.units == self.units
        {
            let data = part.data.take().expect("all parts were read");
            return (std::mem::take(&mut part.checksums), data);
        }
        let unit_count = (self.units.end - self.units.start) as usize;
        let mut checksums = vec![Checksum::ZERO_UNIT; unit_count];
        let mut bytes = buffers.take_zeroed(unit_count * UNIT_SIZE as usize);
        for part in &self.parts {
            let data = part.data.as_ref().expect("all parts were read");
            let first = (part.units.start - self.units.start) as usize;
            let start = first * UNIT_SIZE as usize;
            bytes[start..start + data.len()].copy_from_slice(data);
            checksums[first..first + part.checksums.len()].copy_from_slice(&part.checksums);
        }
        (checksums, bytes.freeze())
    }
}
