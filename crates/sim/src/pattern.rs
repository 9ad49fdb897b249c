//! Data patterns that the simulator writes: the bytes of a unit encode one number, called its value.

use base::UNIT_SIZE;

/// Fills a unit, or a part of one, with the encoding of `value`. `place` makes the encoding differ from
/// unit to unit. Requires: the length is a multiple of 16 bytes; `value` is not 0, which stands for
/// zeros.
pub fn fill(bytes: &mut [u8], value: u64, place: u64) {
    assert!(value != 0);
    let mut word = start(value, place);
    let (pairs, rest) = bytes.as_chunks_mut::<16>();
    assert!(rest.is_empty());
    for pair in pairs {
        pair[..8].copy_from_slice(&value.to_le_bytes());
        pair[8..].copy_from_slice(&word.to_le_bytes());
        word = next(word);
    }
}

/// Returns the value that the bytes encode, or 0 for zeros. Returns `None` if [`fill`] cannot have
/// written these bytes for this place.
pub fn value_of(bytes: &[u8], place: u64) -> Option<u64> {
    let (pairs, rest) = bytes.as_chunks::<16>();
    assert!(rest.is_empty());
    let value = word_of(&pairs[0][..8]);
    let whole = if value == 0 {
        bytes.iter().all(|byte| *byte == 0)
    } else {
        let mut word = start(value, place);
        pairs.iter().all(|pair| {
            let expected = word;
            word = next(word);
            word_of(&pair[..8]) == value && word_of(&pair[8..]) == expected
        })
    };
    whole.then_some(value)
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

const fn start(value: u64, place: u64) -> u64 {
    (value ^ place.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

const fn next(word: u64) -> u64 {
    word.wrapping_add(0x632b_e59b_d9b4_e019)
}

const _: () = assert!(UNIT_SIZE.is_multiple_of(16));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_name_their_value_and_place() {
        let mut unit = vec![0; UNIT_SIZE as usize];
        assert_eq!(value_of(&unit, 5), Some(0));
        fill(&mut unit, 77, 5);
        assert_eq!(value_of(&unit, 5), Some(77));
        assert_eq!(value_of(&unit, 6), None);
        let mut torn = unit.clone();
        torn[2048..].fill(0);
        assert_eq!(value_of(&torn, 5), None);
        fill(&mut torn, 78, 5);
        torn[..512].copy_from_slice(&unit[..512]);
        assert_eq!(value_of(&torn, 5), None);
    }
}
