//! Users and their access keys. `docs/internals/buckets.md`, rule 17.
//!
//! ```text
//!   o   data: format (1): 1 | created (8), in ms;   a record for each access key: its id, no value
//!   a   format (1): 1 | state (1): 0 in use, 1 never made | created (8), in ms | size of the user's name (1)
//!       | name | sealed secret: `sealer.rs`
//! ```
//!
//! Invariants
//!   1. The id of an access key is a record of its user before the key is there, and until it is gone: so a user
//!      that has a key is not removed.
//!   2. The record of a key that was never made is removed after the key cannot be made any more: its object
//!      says so.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use format::disk::bytes::{Reader, Writer};
use objects::{Assertion, Field, Listing, ObjectChange, PageEntry, Read, ReadAnswer};

use crate::api::{AccessKey, User};
use crate::core::{Core, Result, encode, not_asked};
use crate::door::{Door, DoorError, ListQuery};
use crate::failure::Failure;
use crate::names::{IndexName, Shards};
use crate::views::operation;
use crate::waiting::lock;

/// How long a secret is remembered, and that there is none.
pub const SECRET_AGE_MAX: Duration = Duration::from_secs(1);
/// The most secrets that are remembered.
const SECRETS_MAX: usize = 10_000;
/// The most access keys of a user.
pub const KEYS_OF_USER_MAX: usize = 100;

const FORMAT: u8 = 1;
/// The states of an access key.
const IN_USE: u8 = 0;
const NEVER_MADE: u8 = 1;
const ID_SIZE: usize = 20;
const SECRET_SIZE: usize = 40;

/// What was looked up of access keys, and when.
#[derive(Default)]
pub(crate) struct Secrets(Mutex<BTreeMap<String, (u64, Secret)>>);

/// A user and a secret. `None`: there is no such access key.
type Secret = Option<(User, String)>;

/// Checks the name of a user.
pub fn check_user_name(name: &str) -> Result<()> {
    let is_in = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    match (1..=64).contains(&name.len()) && name.bytes().all(is_in) {
        true => Ok(()),
        false => Err(Failure::Invalid {
            why: "the name of a user has 1 to 64 letters, digits and `.`, `_`, `-`, `@`".into(),
        }),
    }
}

fn no_user() -> Failure {
    Failure::Invalid { why: "there is no such user".into() }
}

fn encode_user(created_ms: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(FORMAT);
    out.u64(created_ms);
    out.bytes
}

fn decode_user(name: &str, bytes: &[u8]) -> Result<User> {
    let read = || {
        let mut from = Reader::new(bytes);
        let format = from.u8()?;
        let created_ms = from.u64()?;
        (format == FORMAT && from.is_at_end()).then_some(User { name: name.into(), created_ms })
    };
    read().ok_or_else(|| Failure::Damaged { what: format!("the user {name}") })
}

fn encode_key(key: &AccessKey, state: u8) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(FORMAT);
    out.u8(state);
    out.u64(key.created_ms);
    out.u8(key.user.len() as u8);
    out.bytes.extend_from_slice(key.user.as_bytes());
    out.bytes.extend_from_slice(&key.sealed_secret);
    out.bytes
}

/// Returns an access key. `None`: it was never made.
fn decode_key(id: &str, bytes: &[u8]) -> Result<Option<AccessKey>> {
    let read = || {
        let mut from = Reader::new(bytes);
        let (format, state, created_ms) = (from.u8()?, from.u8()?, from.u64()?);
        let size = usize::from(from.u8()?);
        let user = std::str::from_utf8(from.take(size)?).ok()?.to_owned();
        let sealed_secret = bytes[11 + size..].to_vec();
        let key = AccessKey { id: id.into(), user, created_ms, sealed_secret };
        match (format, state) {
            (FORMAT, IN_USE) => Some(Some(key)),
            (FORMAT, NEVER_MADE) => Some(None),
            _ => None,
        }
    };
    read().ok_or_else(|| Failure::Damaged { what: format!("the access key {id}") })
}

/// Returns what a secret is bound to.
fn owner_of(id: &str, user: &str) -> Vec<u8> {
    [id.as_bytes(), b" ", user.as_bytes()].concat()
}

fn is_key_id(id: &str) -> bool {
    let is_in = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    id.len() == ID_SIZE && id.bytes().all(is_in)
}

impl<D: Door> Core<D> {
    /// Returns so many letters and digits of this alphabet.
    fn random_text(&self, alphabet: &[u8], size: usize) -> String {
        let mut text = String::with_capacity(size);
        while text.len() < size {
            // Eight at a time: what is left of 64 bits favours no letter by more than 10^-4.
            let mut number = self.door.random();
            for _ in 0..8.min(size - text.len()) {
                text.push(alphabet[(number % alphabet.len() as u64) as usize].into());
                number /= alphabet.len() as u64;
            }
        }
        text
    }

    async fn access_key(&self, id: &str) -> Result<Option<AccessKey>> {
        if !is_key_id(id) {
            return Ok(None);
        }
        let found = self.read(&encode(&IndexName::AccessKey(id.into()))?).await?;
        found.map_or(Ok(None), |(_, data)| decode_key(id, &data))
    }

    pub(crate) async fn create_user(&self, name: &str) -> Result<User> {
        check_user_name(name)?;
        let user = User { name: name.into(), created_ms: self.wall_ms() };
        let object = encode(&IndexName::User(name.into()))?;
        let put = ObjectChange::Put(encode_user(user.created_ms));
        match self.door.execute(operation(&object, [Assertion::Absent], [put])).await {
            Ok(_) => Ok(user),
            Err(DoorError::Asserted { .. }) => {
                Err(Failure::Invalid { why: format!("there is a user {name}") })
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn users(
        &self,
        after: Option<&str>,
        count_max: usize,
    ) -> Result<(Vec<User>, Option<String>)> {
        let count_max = count_max.clamp(1, 1000);
        // Users lie in all shards, by their hashes: their order is not that of names, and all are read.
        let mut users = BTreeMap::new();
        let mut from = Vec::new();
        loop {
            let listing = Listing {
                prefix: b"o".to_vec(),
                from,
                count_max: 1000,
                size_max: objects::listing::PAGE_SIZE_MAX,
                ..Listing::default()
            };
            let query = ListQuery { shards: Shards::All, listing, skip: 0, with_data: true };
            let page = self.door.list(query).await?;
            for entry in page.entries {
                let PageEntry::Key(name, listed) = entry else { continue };
                let Some(IndexName::User(name)) = IndexName::decode(&name) else { continue };
                if after.is_some_and(|after| name.as_str() <= after) {
                    continue;
                }
                let user = decode_user(&name, listed.data.as_deref().unwrap_or_default())?;
                users.insert(name, user);
                // Those behind the page are read again with the next one.
                if users.len() > count_max + 1 {
                    users.pop_last();
                }
            }
            let Some(next) = page.next else { break };
            from = next;
        }
        let mut users: Vec<User> = users.into_values().collect();
        let has_more = users.len() > count_max;
        users.truncate(count_max);
        let next = users.last().filter(|_| has_more).map(|user| user.name.clone());
        Ok((users, next))
    }

    /// Returns the ids of a user's keys, and the version of the user; ids of keys that were never made, too.
    async fn key_ids(&self, name: &str) -> Result<(base::Version, Vec<String>)> {
        let object = encode(&IndexName::User(name.into()))?;
        let listing = Listing {
            count_max: 1000,
            size_max: objects::listing::PAGE_SIZE_MAX,
            ..Listing::default()
        };
        let reads =
            vec![Read::Stat { name: object.clone() }, Read::Records { name: object, listing }];
        let mut answers = self.door.look(reads).await?.into_iter();
        let (Some(ReadAnswer::Stat(stat)), Some(ReadAnswer::Fields(page))) =
            (answers.next(), answers.next())
        else {
            return Err(not_asked());
        };
        let stat = stat.ok_or_else(no_user)?;
        let id = |entry: PageEntry<bytes::Bytes>| String::from_utf8(entry.key().to_vec()).ok();
        Ok((stat.version, page.entries.into_iter().filter_map(id).collect()))
    }

    pub(crate) async fn remove_user(&self, name: &str) -> Result<()> {
        check_user_name(name)?;
        let (version, ids) = self.key_ids(name).await?;
        let refuse = |why: String| Err(Failure::Invalid { why });
        for id in ids {
            if self.access_key(&id).await?.is_some() {
                return refuse(format!("{name} has access keys: remove them first"));
            }
        }
        if !self.list_buckets(name, "", None, 1).await?.0.is_empty() {
            return refuse(format!("{name} has buckets: delete them first"));
        }
        let object = encode(&IndexName::User(name.into()))?;
        let remove = operation(&object, [Assertion::Version(version)], [ObjectChange::Remove]);
        self.door.execute(remove).await?;
        Ok(())
    }

    pub(crate) async fn add_key(&self, name: &str) -> Result<(AccessKey, String)> {
        check_user_name(name)?;
        let ids = self.key_ids(name).await?.1;
        if ids.len() >= KEYS_OF_USER_MAX && !self.forget_keys_never_made(name, ids).await? {
            let why = format!("a user has at most {KEYS_OF_USER_MAX} access keys");
            return Err(Failure::Invalid { why });
        }
        let id =
            format!("AK{}", self.random_text(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", ID_SIZE - 2));
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let secret = self.random_text(letters, SECRET_SIZE);
        let random = (self.door.random(), self.door.random() as u32);
        let sealed_secret = self.sealer.seal(&secret, &owner_of(&id, name), random);
        let key = AccessKey {
            id: id.clone(),
            user: name.into(),
            created_ms: self.wall_ms(),
            sealed_secret,
        };
        let user = encode(&IndexName::User(name.into()))?;
        let note = ObjectChange::Set(Field::Record(id.clone().into_bytes()), Vec::new());
        match self.door.execute(operation(&user, [Assertion::Exists], [note])).await {
            Ok(_) => {}
            Err(DoorError::Asserted { .. }) => return Err(no_user()),
            Err(error) => return Err(error.into()),
        }
        let object = encode(&IndexName::AccessKey(id))?;
        let put = ObjectChange::Put(encode_key(&key, IN_USE));
        self.door.execute(operation(&object, [Assertion::Absent], [put])).await?;
        Ok((key, secret))
    }

    /// Removes the records of keys that were never made, as whoever began it failed. Returns whether there
    /// were any.
    async fn forget_keys_never_made(&self, name: &str, ids: Vec<String>) -> Result<bool> {
        let user = encode(&IndexName::User(name.into()))?;
        let mut has_room = false;
        for id in ids {
            if self.access_key(&id).await?.is_some() {
                continue;
            }
            let (user_name, created_ms) = (name.to_owned(), self.wall_ms());
            let none = AccessKey {
                id: id.clone(),
                user: user_name,
                created_ms,
                sealed_secret: Vec::new(),
            };
            // Somebody may just be making it: only one of the two gets the object.
            let object = encode(&IndexName::AccessKey(id.clone()))?;
            let put = ObjectChange::Put(encode_key(&none, NEVER_MADE));
            match self.door.execute(operation(&object, [Assertion::Absent], [put])).await {
                Ok(_) => {}
                Err(DoorError::Asserted { .. }) if self.access_key(&id).await?.is_none() => {}
                Err(DoorError::Asserted { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
            let note = ObjectChange::Unset(Field::Record(id.into_bytes()));
            self.door.execute(operation(&user, [Assertion::Exists], [note])).await?;
            has_room = true;
        }
        Ok(has_room)
    }

    pub(crate) async fn keys(&self, name: &str) -> Result<Vec<AccessKey>> {
        check_user_name(name)?;
        let mut keys = Vec::new();
        for id in self.key_ids(name).await?.1 {
            keys.extend(self.access_key(&id).await?);
        }
        Ok(keys)
    }

    pub(crate) async fn remove_key(&self, id: &str) -> Result<()> {
        let no_key = || Failure::Invalid { why: "there is no such access key".into() };
        let key = self.access_key(id).await?.ok_or_else(no_key)?;
        let object = encode(&IndexName::AccessKey(id.into()))?;
        self.door.execute(operation(&object, [], [ObjectChange::Remove])).await?;
        lock(&self.secrets.0).remove(id);
        let user = encode(&IndexName::User(key.user))?;
        let note = ObjectChange::Unset(Field::Record(id.as_bytes().to_vec()));
        // What stays of a key that is gone harms nobody.
        let _ = self.door.execute(operation(&user, [Assertion::Exists], [note])).await;
        Ok(())
    }

    pub(crate) async fn secret_of(&self, id: &str) -> Result<Option<(User, String)>> {
        if !is_key_id(id) {
            return Ok(None);
        }
        if let Some((sent_us, found)) = lock(&self.secrets.0).get(id)
            && self.since(*sent_us) <= SECRET_AGE_MAX
        {
            return Ok(found.clone());
        }
        let sent_us = self.door.running_us();
        let found = self.read_secret(id).await?;
        let mut secrets = lock(&self.secrets.0);
        if secrets.len() >= SECRETS_MAX {
            secrets.retain(|_, (sent_us, _)| self.since(*sent_us) <= SECRET_AGE_MAX);
            if secrets.len() >= SECRETS_MAX {
                secrets.clear();
            }
        }
        secrets.insert(id.to_owned(), (sent_us, found.clone()));
        Ok(found)
    }

    async fn read_secret(&self, id: &str) -> Result<Option<(User, String)>> {
        let Some(key) = self.access_key(id).await? else { return Ok(None) };
        // A key counts only while its user has the note of it: another user of that name does not.
        let object = encode(&IndexName::User(key.user.clone()))?;
        let fields = vec![Field::Record(id.as_bytes().to_vec())];
        let reads = vec![
            Read::Data { name: object.clone(), offset: 0, length: 4096 },
            Read::Values { name: object, fields, size_max: 16 },
        ];
        let mut answers = self.door.look(reads).await?.into_iter();
        let (Some(ReadAnswer::Data(found)), Some(ReadAnswer::Values(notes))) =
            (answers.next(), answers.next())
        else {
            return Err(not_asked());
        };
        let Some((_, data)) = found.filter(|_| notes.first().is_some_and(Option::is_some)) else {
            return Ok(None);
        };
        let user = decode_user(&key.user, &data)?;
        let secret = self.sealer.open(&key.sealed_secret, &owner_of(id, &key.user));
        let secret = secret.map_err(|error| Failure::Damaged {
            what: format!("the secret of the access key {id} ({error:?})"),
        })?;
        Ok(Some((user, secret)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_keys_are_frozen() {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|it| format!("{it:02x}")).collect() };
        let user = encode_user(0x0102);
        assert_eq!(hex(&user), "010201000000000000");
        let found = User { name: "ann".into(), created_ms: 0x0102 };
        assert_eq!(decode_user("ann", &user), Ok(found));
        let key = AccessKey {
            id: "AK0123456789ABCDEFGH".into(),
            user: "ann".into(),
            created_ms: 0x0102,
            sealed_secret: vec![9, 8, 7],
        };
        let bytes = encode_key(&key, IN_USE);
        assert_eq!(hex(&bytes), "0100020100000000000003616e6e090807");
        assert_eq!(decode_key(&key.id, &encode_key(&key, NEVER_MADE)), Ok(None));
        assert!(decode_key(&key.id, &encode_key(&key, 2)).is_err());
        assert_eq!(decode_key(&key.id, &bytes), Ok(Some(key)));
        for size in 0..bytes.len() - 3 {
            assert!(decode_key("AK", &bytes[..size]).is_err());
        }
        assert!(decode_user("ann", &user[1..]).is_err());
    }

    #[test]
    fn names_of_users_have_few_bytes() {
        for name in ["a", "Ann.B_c-d@e", &"a".repeat(64)] {
            assert_eq!(check_user_name(name), Ok(()));
        }
        for name in ["", " ", "a/b", "ä", "a\0", &"a".repeat(65)] {
            assert!(check_user_name(name).is_err());
        }
    }
}
