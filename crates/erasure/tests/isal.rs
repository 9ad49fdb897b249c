//! Checks that Intel's ISA-L computes the same parity, byte by byte, so that either library can read what the
//! other one wrote.

#![expect(unsafe_code, reason = "the other library is C")]

use std::ffi::c_int;

use erasure::{Code, DATA_COUNT_MAX, PARITY_COUNT_MAX};

#[link(name = "isal")]
unsafe extern "C" {
    #[link_name = "gf_gen_cauchy1_matrix"]
    fn cauchy_matrix(matrix: *mut u8, rows: c_int, columns: c_int);
    fn ec_init_tables(columns: c_int, rows: c_int, matrix: *const u8, tables: *mut u8);
    fn ec_encode_data(
        length: c_int,
        columns: c_int,
        rows: c_int,
        tables: *const u8,
        data: *const *const u8,
        coding: *const *mut u8,
    );
}

/// Returns the matrix of ISA-L, and the parity that it computes.
fn isal(data: &[Vec<u8>], parity_count: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (columns, length) = (data.len(), data[0].len());
    let rows = columns + parity_count;
    let mut matrix = vec![0; rows * columns];
    let mut tables = vec![0; 32 * columns * parity_count];
    let mut parity = vec![vec![0; length]; parity_count];
    let sources: Vec<*const u8> = data.iter().map(|part| part.as_ptr()).collect();
    let targets: Vec<*mut u8> = parity.iter_mut().map(|part| part.as_mut_ptr()).collect();
    let [rows, columns, parity_count, length] =
        [rows, columns, parity_count, length].map(|number| number as c_int);
    // SAFETY: the buffers have the sizes that `erasure_code.h` requires: rows x columns of the matrix, 32
    // bytes of tables for each coefficient of parity, `length` bytes of each part. They outlive the calls.
    unsafe {
        cauchy_matrix(matrix.as_mut_ptr(), rows, columns);
        let coefficients = matrix.as_ptr().add((columns * columns) as usize);
        ec_init_tables(columns, parity_count, coefficients, tables.as_mut_ptr());
        ec_encode_data(
            length,
            columns,
            parity_count,
            tables.as_ptr(),
            sources.as_ptr(),
            targets.as_ptr(),
        );
    }
    (matrix, parity)
}

#[test]
fn isal_makes_the_same_parity_of_every_shape() {
    for data_count in 2..=DATA_COUNT_MAX {
        for parity_count in 1..=PARITY_COUNT_MAX {
            let code = Code::reed_solomon(data_count, parity_count).unwrap();
            for length in [64, 1000, 4096] {
                let byte = |part: usize, at: usize| (part * 31 + at * 7 + at / 255) as u8;
                let data: Vec<Vec<u8>> = (0..data_count)
                    .map(|part| (0..length).map(|at| byte(part, at)).collect())
                    .collect();
                let (matrix, expected) = isal(&data, parity_count);
                for parity in 0..parity_count {
                    for part in 0..data_count {
                        let theirs = matrix[(data_count + parity) * data_count + part];
                        assert_eq!(code.coefficient(parity, part), theirs);
                    }
                }
                let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
                let mut parity = vec![vec![0; length]; parity_count];
                let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                code.encode(&sources, &mut rows);
                assert_eq!(parity, expected, "{data_count}+{parity_count} x {length}");
            }
        }
    }
}
