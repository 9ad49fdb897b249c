//! The state that all tasks share: the key names, the link in use, and the sender of events to the owner.

use std::rc::Rc;

use super::event_sender::EventSender;
use super::keys::Keys;
use super::link::Links;

pub(super) struct Context {
    pub(super) keys: Keys,
    pub(super) links: Links,
    pub(super) events: Rc<EventSender>,
}
