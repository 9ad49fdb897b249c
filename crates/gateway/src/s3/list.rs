//! ListObjects and ListObjectsV2, written straight from the page of the index.

use bucket::{Action, Door, ListEntry, ListPage, ListRequest, ObjectInfo};
use hyper::StatusCode;

use super::checksums::algorithm_name;
use super::get::quoted;
use super::{Answer, Asked, Shared};
use crate::errors::Refusal;
use crate::percent::encode;
use crate::xml::Xml;

/// The most entries of a page.
pub const LISTED_COUNT_MAX: usize = 1000;

/// What both versions have in common.
struct Wanted<'a> {
    bucket: &'a str,
    prefix: &'a str,
    delimiter: &'a str,
    count_max: usize,
    is_encoded: bool,
}

impl Wanted<'_> {
    /// Returns a key as it stands in the document.
    fn key(&self, key: &str) -> String {
        match self.is_encoded {
            true => encode(key),
            false => key.to_string(),
        }
    }

    fn begin(&self, page: &ListPage) -> Xml {
        let mut xml = Xml::new();
        xml.open_root("ListBucketResult");
        xml.text("Name", self.bucket);
        xml.text("Prefix", &self.key(self.prefix));
        if !self.delimiter.is_empty() {
            xml.text("Delimiter", &self.key(self.delimiter));
        }
        xml.text("MaxKeys", &self.count_max.to_string());
        if self.is_encoded {
            xml.text("EncodingType", "url");
        }
        xml.text("IsTruncated", if page.next.is_some() { "true" } else { "false" });
        xml
    }

    fn entries(&self, xml: &mut Xml, page: &ListPage, has_owner: bool) {
        for entry in &page.entries {
            if let ListEntry::Object(key, info) = entry {
                xml.open("Contents");
                xml.text("Key", &self.key(key));
                object(xml, info, has_owner);
                xml.close("Contents");
            }
        }
        for entry in &page.entries {
            if let ListEntry::CommonPrefix(prefix) = entry {
                xml.open("CommonPrefixes");
                xml.text("Prefix", &self.key(prefix));
                xml.close("CommonPrefixes");
            }
        }
    }
}

fn object(xml: &mut Xml, info: &ObjectInfo, has_owner: bool) {
    xml.text("LastModified", &io::log::time_text(info.modified_ms));
    xml.text("ETag", &quoted(info.etag));
    if let Some(checksum) = &info.checksum {
        xml.text("ChecksumAlgorithm", algorithm_name(checksum.kind));
        xml.text("ChecksumType", "FULL_OBJECT");
    }
    xml.text("Size", &info.size.to_string());
    if has_owner {
        xml.open("Owner");
        xml.text("ID", &info.owner);
        xml.text("DisplayName", &info.owner);
        xml.close("Owner");
    }
    xml.text("StorageClass", "STANDARD");
}

impl Asked<'_> {
    fn wanted(&self) -> Result<Wanted<'_>, Refusal> {
        let query = &self.exchange.query;
        let text = |name: &str| query.get(name).unwrap_or_default();
        let is_encoded = match query.get("encoding-type") {
            None | Some("") => false,
            Some("url") => true,
            Some(_) => {
                let refusal =
                    Refusal::invalid_argument("Invalid Encoding Method specified in Request");
                return Err(refusal.with_detail("ArgumentName", "encoding-type"));
            }
        };
        let count_max = match query.get("max-keys") {
            None | Some("") => LISTED_COUNT_MAX,
            Some(text) => match text.parse::<u32>() {
                Ok(count) if count <= i32::MAX as u32 => (count as usize).min(LISTED_COUNT_MAX),
                _ => {
                    let message = "Argument maxKeys must be an integer between 0 and 2147483647";
                    let refusal = Refusal::invalid_argument(message);
                    return Err(refusal.with_detail("ArgumentName", "maxKeys"));
                }
            },
        };
        Ok(Wanted {
            bucket: self.bucket()?,
            prefix: text("prefix"),
            delimiter: text("delimiter"),
            count_max,
            is_encoded,
        })
    }
}

impl<D: Door> Shared<D> {
    /// ListObjects.
    pub async fn list(&self, asked: &Asked<'_>) -> Result<Answer, Refusal> {
        let wanted = asked.wanted()?;
        let marker = asked.exchange.query.get("marker").unwrap_or_default();
        let page = self.page(asked, &wanted, Some(marker), None).await?;
        let mut xml = wanted.begin(&page);
        xml.text("Marker", &wanted.key(marker));
        if let Some(next) = &page.next {
            xml.text("NextMarker", &wanted.key(&next_marker(&page, next)));
        }
        wanted.entries(&mut xml, &page, true);
        xml.close("ListBucketResult");
        Ok(Answer::xml(StatusCode::OK, xml.finish()))
    }

    /// ListObjectsV2.
    pub async fn list_v2(&self, asked: &Asked<'_>) -> Result<Answer, Refusal> {
        let wanted = asked.wanted()?;
        let query = &asked.exchange.query;
        let (start_after, token) = (query.get("start-after"), query.get("continuation-token"));
        let place = token.map(|token| {
            let message = "The continuation token provided is incorrect";
            let refusal = || Refusal::invalid_argument(message);
            let refusal = || refusal().with_detail("ArgumentName", "continuation-token");
            place_of_token(token).ok_or_else(refusal)
        });
        let place = place.transpose()?;
        let has_owner = query.get("fetch-owner") == Some("true");
        let page = self.page(asked, &wanted, start_after, place).await?;
        let mut xml = wanted.begin(&page);
        xml.text("KeyCount", &page.entries.len().to_string());
        if let Some(start_after) = start_after.filter(|text| !text.is_empty()) {
            xml.text("StartAfter", &wanted.key(start_after));
        }
        if let Some(token) = token {
            xml.text("ContinuationToken", token);
        }
        if let Some(next) = &page.next {
            xml.text("NextContinuationToken", &token_of(next));
        }
        wanted.entries(&mut xml, &page, has_owner);
        xml.close("ListBucketResult");
        Ok(Answer::xml(StatusCode::OK, xml.finish()))
    }

    async fn page(
        &self,
        asked: &Asked<'_>,
        wanted: &Wanted<'_>,
        after: Option<&str>,
        token: Option<Vec<u8>>,
    ) -> Result<ListPage, Refusal> {
        let bucket = self.bucket_asked(asked, Action::ListBucket).await?;
        let is_bad = |text: &str| text.contains('\0');
        if [wanted.prefix, wanted.delimiter, after.unwrap_or_default()].into_iter().any(is_bad) {
            return Err(Refusal::invalid_argument("A key has no byte 0"));
        }
        if wanted.count_max == 0 {
            return Ok(ListPage::default());
        }
        let request = ListRequest {
            prefix: wanted.prefix.to_string(),
            delimiter: wanted.delimiter.to_string(),
            after: after.filter(|text| !text.is_empty()).map(str::to_string),
            token,
            count_max: wanted.count_max,
        };
        Ok(self.buckets.list(&bucket, &request).await?)
    }
}

/// Returns the marker of the next page: the last entry of this one, or where an empty page ended.
fn next_marker(page: &ListPage, next: &[u8]) -> String {
    match page.entries.last() {
        Some(ListEntry::Object(key, _) | ListEntry::CommonPrefix(key)) => key.clone(),
        None => {
            let key = next.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(key).into_owned()
        }
    }
}

/// Returns a place in a listing as text.
fn token_of(place: &[u8]) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(place)
}

fn place_of_token(token: &str) -> Option<Vec<u8>> {
    let place = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token.as_bytes()).ok()?;
    Some(place).filter(|place| !place.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_place_and_nothing_else_is_one() {
        let place = b"a/b\0\x80\xbf";
        assert_eq!(place_of_token(&token_of(place)).as_deref(), Some(&place[..]));
        for token in ["", "a", "!!!!", "a b="] {
            assert_eq!(place_of_token(token), None, "{token}");
        }
    }

    #[test]
    fn the_next_marker_is_the_last_entry() {
        let entries = vec![ListEntry::CommonPrefix("a/".to_string())];
        assert_eq!(next_marker(&ListPage { entries, next: None }, b"x"), "a/");
        assert_eq!(next_marker(&ListPage::default(), b"b/c\0\x80\x80"), "b/c");
    }
}
