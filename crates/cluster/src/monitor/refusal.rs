//! Refusals: the errors that commands and peers receive, and peers' texts cut to fit into them.

use crate::message::Failure;

/// Maximum length of a text that is kept only for display, in bytes.
const TEXT_SIZE_MAX: usize = 1024;
/// Maximum number of names listed in a message.
const NAMED_COUNT_MAX: usize = 8;

/// Returns a refusal: a code for programs, what happened, and what to do.
pub(super) fn failure(code: &str, message: impl Into<String>, hint: impl Into<String>) -> Failure {
    Failure { code: code.into(), message: message.into(), hint: hint.into() }
}

/// Returns the refusal for a full queue: there may be room a moment later.
pub(super) fn busy() -> Failure {
    failure("busy", "the monitor is overloaded", "try again in a moment")
}

/// Cuts a text from a peer to the length that is kept.
pub(super) fn clipped(mut text: String) -> String {
    let mut size = text.len().min(TEXT_SIZE_MAX);
    while !text.is_char_boundary(size) {
        size -= 1;
    }
    text.truncate(size);
    text
}

/// Lists the first few of these names.
pub(super) fn first_names(names: &[String]) -> String {
    let more = if names.len() > NAMED_COUNT_MAX { ", ..." } else { "" };
    let some = &names[..names.len().min(NAMED_COUNT_MAX)];
    format!("{}{more}", some.join(", "))
}

/// Lists names up to this count, and says how many more there are.
pub(super) fn names_and_more(names: impl IntoIterator<Item: ToString>, count_max: usize) -> String {
    let mut names = names.into_iter();
    let named: Vec<String> = names.by_ref().take(count_max).map(|name| name.to_string()).collect();
    let more = match names.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    format!("{}{more}", named.join(", "))
}
