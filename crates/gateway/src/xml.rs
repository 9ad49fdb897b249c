//! Writes XML. What XML 1.0 cannot hold is written as a character reference all the same, as S3 does: clients
//! ask for keys in URL encoding if they may have such characters.

use std::fmt::Write;

/// The namespace of S3's documents.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// A document that is being written.
#[derive(Debug)]
pub struct Xml(String);

impl Xml {
    /// Begins a document.
    pub fn new() -> Xml {
        Xml("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_string())
    }

    /// Begins an element with S3's namespace.
    pub fn open_root(&mut self, name: &str) {
        let _ = write!(self.0, "<{name} xmlns=\"{NAMESPACE}\">");
    }

    /// Begins an element.
    pub fn open(&mut self, name: &str) {
        let _ = write!(self.0, "<{name}>");
    }

    /// Ends an element.
    pub fn close(&mut self, name: &str) {
        let _ = write!(self.0, "</{name}>");
    }

    /// Writes an element with a text.
    pub fn text(&mut self, name: &str, text: &str) {
        self.open(name);
        escape_into(text, &mut self.0);
        self.close(name);
    }

    /// Returns the document.
    pub fn finish(self) -> String {
        self.0
    }
}

impl Default for Xml {
    fn default() -> Xml {
        Xml::new()
    }
}

fn escape_into(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\t' | '\n' | '\r' | '\0'..='\u{1f}' | '\u{7f}' | '\u{fffe}' | '\u{ffff}' => {
                let _ = write!(into, "&#x{:X};", c as u32);
            }
            _ => into.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut xml = Xml::new();
        xml.open_root("R");
        xml.text("Key", "a<b>&\"\u{1}\n ü");
        xml.close("R");
        let expected = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<R xmlns=\"{NAMESPACE}\">\
             <Key>a&lt;b&gt;&amp;&quot;&#x1;&#xA; ü</Key></R>"
        );
        assert_eq!(xml.finish(), expected);
    }
}
