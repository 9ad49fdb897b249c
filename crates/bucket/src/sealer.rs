//! Encrypts the secrets of access keys: who signs a request has the secret, so the gateway must have it in plain,
//! and no hash will do.
//!
//! ```text
//!   number of the key (4) | nonce (12) | the secret, encrypted | authentication (16)
//! ```
//!
//! ChaCha20-Poly1305, with a key derived from the cluster's; access key and user are authenticated too, so a
//! secret counts nowhere else. Who has the cluster's key reads all secrets.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use sha2::{Digest, Sha512};

const NUMBER_SIZE: usize = 4;
const NONCE_SIZE: usize = 12;

/// Encrypts and decrypts secrets.
pub struct Sealer {
    cipher: ChaCha20Poly1305,
    /// Tells the keys of clusters, and of one cluster at different times, apart.
    number: [u8; NUMBER_SIZE],
}

/// Why a secret cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SealError {
    /// It was encrypted with another cluster key.
    OtherKey,
    /// It was changed, or belongs to another access key.
    Damaged,
}

impl Sealer {
    /// Creates it from the cluster's key.
    pub fn new(cluster_key: &[u8]) -> Sealer {
        let derive = |purpose: &[u8]| {
            Sha512::new()
                .chain_update(purpose)
                .chain_update([0])
                .chain_update(cluster_key)
                .finalize()
        };
        let key = derive(b"ashlar gateway: secrets of access keys");
        let number = derive(b"ashlar gateway: number of the key");
        let cipher = ChaCha20Poly1305::new_from_slice(&key[..32]).expect("32 bytes are a key");
        Sealer { cipher, number: [number[0], number[1], number[2], number[3]] }
    }

    /// Encrypts a secret of `owner`. Requires: no other secret had these 96 random bits.
    pub fn seal(&self, secret: &str, owner: &[u8], random: (u64, u32)) -> Vec<u8> {
        let nonce = [&random.0.to_le_bytes()[..], &random.1.to_le_bytes()].concat();
        let payload = Payload { msg: secret.as_bytes(), aad: owner };
        let sealed = self.cipher.encrypt(Nonce::from_slice(&nonce), payload);
        let sealed = sealed.expect("a secret is shorter than 256 GiB");
        [&self.number[..], &nonce, &sealed].concat()
    }

    /// Decrypts a secret of `owner`.
    pub fn open(&self, sealed: &[u8], owner: &[u8]) -> Result<String, SealError> {
        let (number, rest) = sealed.split_at_checked(NUMBER_SIZE).ok_or(SealError::Damaged)?;
        if number != self.number {
            return Err(SealError::OtherKey);
        }
        let (nonce, msg) = rest.split_at_checked(NONCE_SIZE).ok_or(SealError::Damaged)?;
        let payload = Payload { msg, aad: owner };
        let secret = self.cipher.decrypt(Nonce::from_slice(nonce), payload);
        String::from_utf8(secret.map_err(|_| SealError::Damaged)?).map_err(|_| SealError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_secrets_are_frozen() {
        let sealed = Sealer::new(b"cluster key").seal("secret", b"AK ann", (1, 2));
        let hex: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, include_str!("golden/sealed.txt").trim());
    }

    #[test]
    fn a_secret_is_read_with_its_key_and_for_its_owner_alone() {
        let sealer = Sealer::new(b"cluster key");
        let mut sealed = sealer.seal("secret", b"AK ann", (1, 2));
        assert_eq!(sealer.open(&sealed, b"AK ann").as_deref(), Ok("secret"));
        assert_eq!(sealer.open(&sealed, b"AK bob"), Err(SealError::Damaged));
        assert_eq!(Sealer::new(b"other").open(&sealed, b"AK ann"), Err(SealError::OtherKey));
        assert_eq!(sealer.open(&sealed[..10], b"AK ann"), Err(SealError::Damaged));
        *sealed.last_mut().expect("bytes") ^= 1;
        assert_eq!(sealer.open(&sealed, b"AK ann"), Err(SealError::Damaged));
    }
}
