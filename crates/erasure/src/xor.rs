//! Sums (XOR) of parts. The loops run over words of eight bytes, which the compiler turns into vector
//! instructions of the target processor.

const WORD_SIZE: usize = 8;

/// Adds (XORs) `source` to `target`. Requires: equal lengths.
pub fn xor_into(source: &[u8], target: &mut [u8]) {
    assert!(source.len() == target.len());
    let (source_words, source_rest) = source.as_chunks::<WORD_SIZE>();
    let (target_words, target_rest) = target.as_chunks_mut::<WORD_SIZE>();
    for (target, source) in target_words.iter_mut().zip(source_words) {
        let sum = u64::from_le_bytes(*target) ^ u64::from_le_bytes(*source);
        *target = sum.to_le_bytes();
    }
    for (target, source) in target_rest.iter_mut().zip(source_rest) {
        *target ^= source;
    }
}

/// Computes into `change` the old bytes of a part XOR its new bytes. Requires: equal lengths.
pub fn delta(old: &[u8], new: &[u8], change: &mut [u8]) {
    sum(&[old, new], change);
}

/// Computes into `target` the sum of all sources. Requires: at least one source; equal lengths.
pub(crate) fn sum(sources: &[&[u8]], target: &mut [u8]) {
    let (first, others) = sources.split_first().expect("a sum has a part");
    target.copy_from_slice(first);
    for source in others {
        xor_into(source, target);
    }
}
