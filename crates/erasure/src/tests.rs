//! Tests every shape that a pool may have with every set of lost parts, and that the bytes of parity never
//! change.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Returns bytes that differ for each seed and are the same in each run.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn stripe(code: &Code, length: usize) -> Vec<Vec<u8>> {
    let shape = code.shape();
    let mut parts: Vec<Vec<u8>> = (0..shape.data_count()).map(|part| bytes(part, length)).collect();
    let mut parity = vec![vec![0; length]; shape.parity_count()];
    encode(code, &parts, &mut parity);
    parts.extend(parity);
    parts
}

fn slices(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

fn encode(code: &Code, data: &[Vec<u8>], parity: &mut [Vec<u8>]) {
    let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&slices(data), &mut rows);
}

/// Returns every code that a pool may have.
fn codes() -> Vec<Code> {
    let data = 2..=DATA_COUNT_MAX;
    let xor = data.clone().map(|data| Code::xor(data).unwrap());
    let all = data.flat_map(|data| (1..=PARITY_COUNT_MAX).map(move |parity| (data, parity)));
    let reed_solomon = all.map(|(data, parity)| Code::reed_solomon(data, parity).unwrap());
    xor.chain(reed_solomon).collect()
}

/// Returns all subsets of the numbers below `count` that have `size` members.
fn subsets(count: usize, size: usize) -> impl Iterator<Item = Vec<usize>> {
    let all = (0u32..1 << count).filter(move |set| set.count_ones() as usize == size);
    all.map(move |set| (0..count).filter(|at| set & (1 << at) != 0).collect())
}

fn decode(code: &Code, parts: &[Vec<u8>], present: &[usize], wanted: &[usize]) -> Vec<Vec<u8>> {
    let decoder = code.decoder(present, wanted).unwrap();
    let sources: Vec<&[u8]> =
        decoder.sources().iter().map(|part| parts[*part].as_slice()).collect();
    let mut made = vec![vec![0; parts[0].len()]; wanted.len()];
    let mut rows: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
    decoder.decode(&sources, &mut rows);
    made
}

#[test]
fn any_k_parts_make_all_others() {
    for code in codes() {
        let shape = code.shape();
        let parts = stripe(&code, 40);
        let all: Vec<usize> = (0..shape.part_count()).collect();
        for present in subsets(shape.part_count(), shape.data_count()) {
            assert_eq!(decode(&code, &parts, &present, &all), parts, "{shape:?} of {present:?}");
        }
    }
}

#[test]
fn fewer_than_k_parts_make_nothing() {
    let code = Code::reed_solomon(4, 2).unwrap();
    let too_few = TooFewParts { present: 3, required: 4 };
    assert_eq!(code.decoder(&[0, 3, 5, 3], &[1]).unwrap_err(), too_few);
    assert_eq!(too_few.to_string(), "3 parts of the stripe are present, 4 are needed");
}

#[test]
fn data_that_is_there_is_read_before_parity() {
    let code = Code::reed_solomon(4, 2).unwrap();
    assert_eq!(code.decoder(&[5, 4, 3, 1, 0], &[2]).unwrap().sources(), [0, 1, 3, 4]);
}

#[test]
fn updated_parity_is_the_parity_of_the_new_data() {
    for code in codes() {
        let shape = code.shape();
        let mut parts = stripe(&code, 72);
        for part in 0..shape.data_count() {
            let new = bytes(100 + part, 72);
            let mut change = vec![0; 72];
            delta(&parts[part], &new, &mut change);
            parts[part] = new;
            for parity in 0..shape.parity_count() {
                let row = &mut parts[shape.data_count() + parity];
                code.update(parity, part, &change, row);
            }
            assert_eq!(code.find_wrong(&slices(&parts)), Verdict::Consistent, "{shape:?}");
        }
        let (data, parity) = parts.split_at(shape.data_count());
        let mut again = vec![vec![0; 72]; shape.parity_count()];
        encode(&code, data, &mut again);
        assert_eq!(parity, again);
    }
}

#[test]
fn two_parity_parts_tell_which_single_part_is_wrong() {
    for code in codes() {
        let shape = code.shape();
        let parts = stripe(&code, 24);
        for part in 0..shape.part_count() {
            let mut damaged = parts.clone();
            damaged[part][5] ^= 0x40;
            damaged[part][19] = damaged[part][19].wrapping_add(1);
            let verdict = code.find_wrong(&slices(&damaged));
            match shape.parity_count() {
                1 => assert_eq!(verdict, Verdict::Undecided),
                _ => assert_eq!(verdict, Verdict::Wrong { part }, "{shape:?}"),
            }
        }
    }
}

#[test]
fn two_wrong_parts_are_not_taken_for_one_where_three_parity_parts_tell() {
    for (data, parity) in [(2, 3), (4, 3), (8, 4), (16, 4)] {
        let code = Code::reed_solomon(data, parity).unwrap();
        let parts = stripe(&code, 8);
        for pair in subsets(data + parity, 2) {
            let mut damaged = parts.clone();
            damaged[pair[0]][1] ^= 7;
            damaged[pair[1]][1] ^= 9;
            assert_eq!(code.find_wrong(&slices(&damaged)), Verdict::Undecided, "{pair:?}");
        }
    }
}

#[test]
fn every_kernel_of_this_processor_makes_the_same_parity() {
    for (data, parity) in [(2, 1), (5, 2), (8, 3), (16, 4)] {
        let shape = Shape::new(data, parity).unwrap();
        let fast = Code::reed_solomon(data, parity).unwrap();
        let scalar = Code { shape, kind: Kind::reed_solomon(shape, Kernels::scalar()) };
        for length in [1, 31, 32, 33, 63, 64, 4095, 4096] {
            assert_eq!(stripe(&fast, length), stripe(&scalar, length), "{shape:?} x {length}");
        }
    }
}

/// FNV-1a: small, and nothing else in the code depends on it.
fn digest(parts: &[Vec<u8>]) -> u64 {
    let all = parts.iter().flatten();
    all.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Digest of the parity of [`bytes`]; must never change.
const XOR_2_1: u64 = 6_420_447_012_797_505_950;
/// The same for Reed-Solomon 2+1, 4+2, 8+3 and 16+4; must never change.
const REED_SOLOMON: [u64; 4] = [
    13_239_442_841_490_489_775,
    2_110_954_402_721_356_275,
    6_499_346_599_474_028_270,
    15_585_963_843_762_056_263,
];

#[test]
fn the_bytes_of_parity_are_frozen() {
    let digests: Vec<u64> = [(2, 1), (4, 2), (8, 3), (16, 4)]
        .map(|(data, parity)| {
            let code = Code::reed_solomon(data, parity).unwrap();
            digest(&stripe(&code, 4096)[data..])
        })
        .to_vec();
    let xor = digest(&stripe(&Code::xor(2).unwrap(), 4096)[2..]);
    assert_eq!(xor, XOR_2_1);
    assert_eq!(digests, REED_SOLOMON);
}

#[test]
fn shapes_that_no_pool_has_are_refused() {
    assert_eq!(Code::xor(1).unwrap_err(), ShapeError::Data(1));
    assert_eq!(Code::reed_solomon(17, 1).unwrap_err(), ShapeError::Data(17));
    let error = Code::reed_solomon(4, 5).unwrap_err();
    assert_eq!(error.to_string(), "a stripe has 1 to 4 parity parts, not 5");
}

proptest! {
    #[test]
    fn losses_of_random_stripes_are_made_good(
        (data, parity) in (2..=DATA_COUNT_MAX, 1..=PARITY_COUNT_MAX),
        length in 1usize..300,
        seed in 0usize..1000,
        lost in vec(any::<prop::sample::Index>(), 1..=PARITY_COUNT_MAX),
    ) {
        let code = Code::reed_solomon(data, parity).unwrap();
        let mut parts: Vec<Vec<u8>> = (0..data).map(|at| bytes(seed + at, length)).collect();
        let mut rows = vec![vec![0; length]; parity];
        encode(&code, &parts, &mut rows);
        parts.extend(rows);
        let mut lost: Vec<usize> =
            lost.iter().take(parity).map(|index| index.index(data + parity)).collect();
        lost.sort_unstable();
        lost.dedup();
        let present: Vec<usize> = (0..data + parity).filter(|at| !lost.contains(at)).collect();
        let made = decode(&code, &parts, &present, &lost);
        let expected: Vec<Vec<u8>> = lost.iter().map(|at| parts[*at].clone()).collect();
        prop_assert_eq!(made, expected);
    }
}
