//! DeleteObjects: many keys of one bucket, each with a result of its own.
//!
//! The document is read and written here: the S3 library passes over CDATA and sends control characters as
//! they are.
//!
//! ```text
//!   <Delete>
//!     <Object> <Key> [<VersionId>] [<ETag>] [<Size>] [<LastModifiedTime>] </Object> ...
//!     [<Quiet>]
//!   </Delete>
//! ```

use std::sync::Arc;

use bucket::{Action, Bucket, Client, Conditions, Door, may};
use hyper::StatusCode;
use quick_xml::Reader;
use quick_xml::events::{BytesRef, Event};
use tokio::task::JoinSet;

use super::checksums::Announced;
use super::conditions::tags_of;
use super::{Answer, Asked, Shared, check_version_id, key_of};
use crate::clock::running_us;
use crate::errors::Refusal;
use crate::xml::Xml;

/// The most keys that one request deletes.
const COUNT_MAX: usize = 1000;
/// The most bytes of the document.
const SIZE_MAX: usize = 2 << 20;
/// So many keys of one request are deleted at once.
const AT_ONCE: usize = 16;

/// What a document asks for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Wanted {
    objects: Vec<Object>,
    is_quiet: bool,
}

/// An object to delete.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Object {
    key: String,
    version_id: Option<String>,
    etag: Option<String>,
    /// There is a condition on size or time.
    has_more: bool,
}

/// An element that has text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaf {
    Quiet,
    Key,
    VersionId,
    ETag,
    Other,
}

/// Where in the document the next thing stands.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Before,
    Delete,
    Object,
    Leaf(Leaf),
    Behind,
}

impl<D: Door> Shared<D> {
    /// DeleteObjects. Requires: the digests of the document were compared.
    pub async fn delete_objects(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        document: &[u8],
    ) -> Result<Answer, Refusal> {
        let user = asked.user.ok_or_else(Refusal::access_denied)?;
        // Each key says whether it may be deleted.
        let bucket = self.buckets.bucket(asked.bucket()?).await?;
        let owner = asked.header("x-amz-expected-bucket-owner")?;
        if owner.is_some_and(|owner| owner != bucket.owner) {
            return Err(Refusal::access_denied());
        }
        if asked.content_md5()?.is_none() && asked.announced()? == Announced::None {
            let message =
                "Missing required header for this request: Content-MD5 OR x-amz-checksum-*";
            return Err(Refusal::invalid_request(message));
        }
        let wanted = parse(document).ok_or_else(malformed)?;
        let user: Arc<str> = user.into();
        let results = self.delete_all(&user, &bucket, &wanted.objects).await;
        let mut xml = Xml::new();
        xml.open_root("DeleteResult");
        for (object, result) in wanted.objects.iter().zip(results) {
            write(&mut xml, object, result, wanted.is_quiet);
        }
        xml.close("DeleteResult");
        Ok(Answer::xml(StatusCode::OK, xml.finish()))
    }

    /// Deletes objects. Returns the results in their order.
    async fn delete_all(
        self: &Arc<Self>,
        user: &Arc<str>,
        bucket: &Arc<Bucket>,
        objects: &[Object],
    ) -> Vec<Result<(), Refusal>> {
        let began_us = running_us();
        let lost = || Refusal::from(bucket::Failure::Unavailable { why: "a task ended".into() });
        let mut results: Vec<Result<(), Refusal>> = vec![Err(lost()); objects.len()];
        let mut tasks = JoinSet::new();
        let mut objects = objects.iter().cloned().enumerate();
        loop {
            while tasks.len() < AT_ONCE
                && let Some((at, object)) = objects.next()
            {
                let (shared, user, bucket) = (self.clone(), user.clone(), bucket.clone());
                tasks.spawn(async move {
                    // A key whose PG is down gives up, and the others do not with it.
                    let client = Client::new();
                    client.sent_last_byte(began_us);
                    (at, shared.delete_one(&client, &user, &bucket, &object).await)
                });
            }
            match tasks.join_next().await {
                Some(Ok((at, result))) => results[at] = result,
                Some(Err(_)) => {}
                None => return results,
            }
        }
    }

    async fn delete_one(
        &self,
        client: &Client,
        user: &str,
        bucket: &Bucket,
        object: &Object,
    ) -> Result<(), Refusal> {
        if object.has_more {
            return Err(Refusal::not_implemented("A condition on size or time"));
        }
        check_version_id(object.version_id.as_deref())?;
        let key = key_of(&object.key)?;
        if !may(Some(user), bucket, Action::DeleteObject(&key)) {
            return Err(Refusal::access_denied());
        }
        let if_match = object.etag.as_deref().map(tags_of);
        let conditions = Conditions { if_match, ..Conditions::default() };
        Ok(self.buckets.delete(client, bucket, &key, &conditions).await?)
    }
}

fn malformed() -> Refusal {
    let message = "The XML you provided was not well-formed or did not validate against our published \
                   schema";
    Refusal::new(StatusCode::BAD_REQUEST, "MalformedXML", message)
}

fn write(xml: &mut Xml, object: &Object, result: Result<(), Refusal>, is_quiet: bool) {
    let name = if result.is_ok() { "Deleted" } else { "Error" };
    if result.is_ok() && is_quiet {
        return;
    }
    xml.open(name);
    xml.text("Key", &object.key);
    if let Some(id) = &object.version_id {
        xml.text("VersionId", id);
    }
    if let Err(refusal) = result {
        xml.text("Code", refusal.code);
        xml.text("Message", &refusal.message);
    }
    xml.close(name);
}

/// Returns what a document asks for. `None`: it is malformed, or asks for nothing, or for too much.
fn parse(document: &[u8]) -> Option<Wanted> {
    if document.len() > SIZE_MAX {
        return None;
    }
    let mut reader = Reader::from_str(std::str::from_utf8(document).ok()?);
    reader.config_mut().expand_empty_elements = true;
    let (mut wanted, mut place, mut text) = (Wanted::default(), Place::Before, String::new());
    loop {
        match reader.read_event().ok()? {
            Event::Start(element) => {
                (place, text) = (place.within(element.local_name().as_ref())?, String::new());
                if place == Place::Object {
                    wanted.objects.push(Object::default());
                }
            }
            Event::End(_) => place = wanted.end(place, &mut text)?,
            Event::Text(more) => text.push_str(&more.xml10_content().ok()?),
            Event::CData(more) => text.push_str(&more.xml10_content().ok()?),
            Event::GeneralRef(reference) => text.push(char_of(&reference)?),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => continue,
            // It could define entities.
            Event::DocType(_) => return None,
            Event::Eof => break,
            Event::Empty(_) => unreachable!("the reader expands these"),
        }
        if !matches!(place, Place::Leaf(_)) && !text.trim_ascii().is_empty() {
            return None;
        }
    }
    let has_keys = wanted.objects.iter().all(|object| !object.key.is_empty());
    let is_good = place == Place::Behind && has_keys && !wanted.objects.is_empty();
    is_good.then_some(wanted)
}

fn char_of(reference: &BytesRef<'_>) -> Option<char> {
    if let Some(c) = reference.resolve_char_ref().ok()? {
        return Some(c);
    }
    match &*reference.decode().ok()? {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => None,
    }
}

impl Place {
    /// Returns the place within an element that begins here. `None`: it may not.
    fn within(&self, name: &[u8]) -> Option<Place> {
        Some(match (self, name) {
            (Place::Before, b"Delete") => Place::Delete,
            (Place::Delete, b"Object") => Place::Object,
            (Place::Delete, b"Quiet") => Place::Leaf(Leaf::Quiet),
            (Place::Object, b"Key") => Place::Leaf(Leaf::Key),
            (Place::Object, b"VersionId") => Place::Leaf(Leaf::VersionId),
            (Place::Object, b"ETag") => Place::Leaf(Leaf::ETag),
            (Place::Object, b"Size" | b"LastModifiedTime") => Place::Leaf(Leaf::Other),
            _ => return None,
        })
    }
}

impl Wanted {
    /// Takes the text of an element that ends here. Returns the place behind it.
    fn end(&mut self, place: Place, text: &mut String) -> Option<Place> {
        let text = std::mem::take(text);
        let leaf = match place {
            Place::Leaf(leaf) => leaf,
            Place::Object if self.objects.len() <= COUNT_MAX => return Some(Place::Delete),
            Place::Delete => return Some(Place::Behind),
            Place::Object | Place::Before | Place::Behind => return None,
        };
        if leaf == Leaf::Quiet {
            self.is_quiet = match text.trim_ascii() {
                "true" | "1" => true,
                "false" | "0" => false,
                _ => return None,
            };
            return Some(Place::Delete);
        }
        let object = self.objects.last_mut()?;
        let is_second = match leaf {
            Leaf::Key => !std::mem::replace(&mut object.key, text).is_empty(),
            Leaf::VersionId => object.version_id.replace(text).is_some(),
            Leaf::ETag => object.etag.replace(text).is_some(),
            Leaf::Quiet | Leaf::Other => {
                object.has_more = true;
                false
            }
        };
        (!is_second).then_some(Place::Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(document: &str) -> Option<Vec<String>> {
        let wanted = parse(document.as_bytes())?;
        Some(wanted.objects.into_iter().map(|object| object.key).collect())
    }

    #[test]
    fn keys_come_as_text_as_cdata_and_as_references() {
        let document = "\u{feff}<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
            <Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n  <!-- all -->\n\
            <Object><Key>a</Key></Object><Object><Key> b &lt;&amp;&#x1F600;&#10;&#x1;</Key></Object>\n\
            <Object> <Key>x<![CDATA[<c>&amp;]]>y</Key><VersionId>null</VersionId> </Object>\n\
            <Quiet> true </Quiet></Delete>\n";
        let wanted = parse(document.as_bytes()).expect("well-formed");
        let keys: Vec<&str> = wanted.objects.iter().map(|object| &object.key[..]).collect();
        assert_eq!(keys, ["a", " b <&\u{1f600}\n\u{1}", "x<c>&amp;y"]);
        assert_eq!(wanted.objects[2].version_id.as_deref(), Some("null"));
        assert!(wanted.is_quiet);
    }

    #[test]
    fn what_is_malformed_or_not_known_is_refused() {
        let object = "<Object><Key>a</Key></Object>";
        assert_eq!(keys(&format!("<Delete>{object}</Delete>")), Some(vec!["a".to_string()]));
        for document in [
            "",
            "<Delete/>",
            "<Delete></Delete>",
            "<Delete><Object><Key>a</Key></Object>",
            "<Delete><Object><Key>a</Object></Key></Delete>",
            "<Delete><Object/></Delete>",
            "<Delete><Object><Key/></Object></Delete>",
            "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
            "<Delete><Object><Key>a<b/></Key></Object></Delete>",
            "<Delete>text<Object><Key>a</Key></Object></Delete>",
            "<Delete><Object>text<Key>a</Key></Object></Delete>",
            "<Delete><Object><Key>a</Key></Object>&lt;</Delete>",
            "<Delete><Object><Key>&#0;</Key></Object></Delete>",
            "<Delete><Object><Key>&#xD800;</Key></Object></Delete>",
            "<Delete><Object><Key>&other;</Key></Object></Delete>",
            "<Delete><Object><Key>a</Key><IfMatch>b</IfMatch></Object></Delete>",
            "<Delete><Object><Key>a</Key></Object><Quiet>maybe</Quiet></Delete>",
            "<!DOCTYPE x [<!ENTITY y \"z\">]><Delete><Object><Key>a</Key></Object></Delete>",
            "<Other><Object><Key>a</Key></Object></Other>",
            "<Delete><Object><Key>a</Key></Object></Delete><Delete/>",
        ] {
            assert_eq!(keys(document), None, "{document}");
        }
        assert_eq!(parse(b"<Delete><Object><Key>\xff</Key></Object></Delete>"), None);
    }

    #[test]
    fn a_document_has_1000_keys_and_2_mib_at_most() {
        let of = |count: usize| {
            format!("<Delete>{}</Delete>", "<Object><Key>a</Key></Object>".repeat(count))
        };
        assert_eq!(keys(&of(1000)).map(|keys| keys.len()), Some(1000));
        assert_eq!(keys(&of(1001)), None);
        let padded = |size: usize| of(1) + &" ".repeat(size - of(1).len());
        assert!(keys(&padded(SIZE_MAX)).is_some());
        assert!(keys(&padded(SIZE_MAX + 1)).is_none());
    }
}
