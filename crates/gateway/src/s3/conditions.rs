//! Conditional headers and ranges.

use bucket::{ByteRange, Conditions, TagCondition};

use super::Asked;
use crate::errors::Refusal;

impl Asked<'_> {
    /// Returns the conditions of the request. Dates that are none are ignored, as RFC 9110 wants it.
    pub fn conditions(&self) -> Result<Conditions, Refusal> {
        let date = |name: &str| Ok::<_, Refusal>(self.header(name)?.and_then(seconds_of_date));
        Ok(Conditions {
            if_match: self.header("if-match")?.map(tags_of),
            if_none_match: self.header("if-none-match")?.map(tags_of),
            if_modified_since: date("if-modified-since")?,
            if_unmodified_since: date("if-unmodified-since")?,
        })
    }
}

/// Returns the seconds since 1970 of a date in a header.
fn seconds_of_date(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text).ok()?;
    time.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Returns a date for a header.
pub fn date_of_ms(ms: u64) -> String {
    httpdate::fmt_http_date(std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms))
}

/// Reads `*`, or a list of tags, with or without quotes, weak or not.
pub fn tags_of(text: &str) -> TagCondition {
    if text.trim() == "*" {
        return TagCondition::Any;
    }
    let plain = |tag: &str| {
        let tag = tag.trim();
        let tag = tag.strip_prefix("W/").unwrap_or(tag);
        tag.trim_matches('"').to_string()
    };
    TagCondition::OneOf(text.split(',').map(plain).filter(|tag| !tag.is_empty()).collect())
}

/// Reads the header `Range`. `None`: all is wanted, as with what is no range, and with several ranges.
pub fn range_of(text: &str) -> Option<ByteRange> {
    let range = text.trim().strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| {
        let text = text.trim();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (first.trim(), last.trim()) {
        ("", last) => Some(ByteRange::Last(number(last)?)),
        (first, "") => Some(ByteRange::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::From(first, Some(last)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_what_is_none_is_ignored() {
        assert_eq!(range_of("bytes=0-9"), Some(ByteRange::From(0, Some(9))));
        assert_eq!(range_of("bytes=7-"), Some(ByteRange::From(7, None)));
        assert_eq!(range_of("bytes=-20"), Some(ByteRange::Last(20)));
        let long = "bytes=0-99999999999999999999999";
        assert_eq!(range_of(long), Some(ByteRange::From(0, Some(u64::MAX))));
        for text in [
            "bytes=invalid",
            "bytes=",
            "bytes=-",
            "bytes=2-1",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=1",
            "",
        ] {
            assert_eq!(range_of(text), None, "{text}");
        }
    }

    #[test]
    fn tags_come_with_and_without_quotes() {
        let of =
            |tags: &[&str]| TagCondition::OneOf(tags.iter().map(ToString::to_string).collect());
        assert_eq!(tags_of(" * "), TagCondition::Any);
        assert_eq!(tags_of("\"ab\""), of(&["ab"]));
        assert_eq!(tags_of("ab"), of(&["ab"]));
        assert_eq!(tags_of("\"a-1\", W/\"b\" ,c"), of(&["a-1", "b", "c"]));
    }

    #[test]
    fn dates_go_to_the_second_and_back() {
        let text = date_of_ms(784_111_777_999);
        assert_eq!(text, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(seconds_of_date(&text), Some(784_111_777));
        assert_eq!(seconds_of_date("yesterday"), None);
    }
}
