//! One call on its way out: what is known of it, what was given of it, and the JSON of both.
//!
//! A call is given whole when it is complete, unless it has a value that can only be a string: then it is begun with that
//! value, and the value is given as it grows. What was given is never taken back, so a block is a call from there on.

use super::argument::{argument, quoted};
use super::signature::{Kinds, Signature, Signatures};
use super::{ContentDelta, give_arguments};

/// The function of a block, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    name: String,
    /// `None`: no such tool, and the block is text.
    tool: Option<usize>,
    /// Keys and the text of their values, none of them given yet. The last one may still be growing.
    values: Vec<(String, String)>,
    /// Keys whose values were given, the one in progress included.
    given: Vec<String>,
    /// The name was given, and arguments up to here.
    begun: bool,
    /// A string is open in what was given.
    in_string: bool,
}

impl Call {
    pub(super) fn new(name: &str, tools: &Signatures) -> Self {
        Call { name: name.to_owned(), tool: tools.find(name), ..Call::default() }
    }

    /// One of the tools of the request.
    pub(super) fn is_known(&self) -> bool {
        self.tool.is_some()
    }

    /// Something of it was given.
    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// The value in progress is given as it grows.
    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }

    fn signature<'a>(&self, tools: &'a Signatures) -> Option<&'a Signature> {
        self.tool.and_then(|place| tools.at(place))
    }

    fn kinds(&self, key: &str, tools: &Signatures) -> Option<Kinds> {
        self.signature(tools).and_then(|signature| signature.kinds(key))
    }

    /// Whether a parameter may follow one that was not closed.
    pub(super) fn may_follow(&self, key: &str, tools: &Signatures) -> bool {
        let declared = self.signature(tools).and_then(|signature| signature.declares(key)).unwrap_or(true);
        let had = self.values.iter().map(|(had, _)| had).chain(&self.given).any(|had| had == key);
        declared && !had
    }

    /// A value begins. One that can only be a string begins the call.
    pub(super) fn begin_value(&mut self, key: &str, tools: &Signatures, out: &mut Vec<ContentDelta>) {
        if !self.is_known() || self.kinds(key, tools) != Some(Kinds::STRING) {
            self.values.push((key.to_owned(), String::new()));
            return;
        }
        self.values.retain(|(had, _)| had != key);
        self.give_values(tools, out);
        let comma = if self.given.is_empty() { "" } else { "," };
        give_arguments(out, &format!("{comma}{}:\"", quoted(key)));
        self.given.push(key.to_owned());
        self.in_string = true;
    }

    /// More of a string that is given as it grows.
    pub(super) fn give_string(&self, text: &str, out: &mut Vec<ContentDelta>) {
        let json = quoted(text);
        give_arguments(out, &json[1..json.len() - 1]);
    }

    /// The value in progress is complete with this text.
    pub(super) fn end_value(&mut self, text: &str, tools: &Signatures, out: &mut Vec<ContentDelta>) {
        if self.in_string {
            self.give_string(text, out);
            give_arguments(out, "\"");
            self.in_string = false;
        } else if let Some((_, value)) = self.values.last_mut() {
            value.push_str(text);
            if self.begun {
                self.give_values(tools, out);
            }
        }
    }

    /// The whole call was given with this.
    pub(super) fn complete(&mut self, tools: &Signatures, out: &mut Vec<ContentDelta>) {
        self.give_values(tools, out);
        give_arguments(out, "}");
        out.push(ContentDelta::CallEnd { complete: true });
        *self = Call::default();
    }

    /// Nothing more comes, and the call is not whole: what was given of it stays as it is.
    pub(super) fn break_off(&mut self, out: &mut Vec<ContentDelta>) {
        out.push(ContentDelta::CallEnd { complete: false });
        *self = Call::default();
    }

    /// Gives the name, if it was not given, and all values that are complete.
    fn give_values(&mut self, tools: &Signatures, out: &mut Vec<ContentDelta>) {
        if !self.begun {
            self.begun = true;
            out.push(ContentDelta::CallStart { name: self.name.clone() });
            give_arguments(out, "{");
        }
        let mut members: Vec<(String, String)> = Vec::with_capacity(self.values.len());
        let values = std::mem::take(&mut self.values);
        for (key, text) in values {
            let value = argument(&text, self.kinds(&key, tools));
            match members.iter_mut().find(|(earlier, _)| *earlier == key) {
                Some((_, earlier)) => *earlier = value,
                None => members.push((key, value)),
            }
        }
        for (key, json) in members {
            let comma = if self.given.is_empty() { "" } else { "," };
            give_arguments(out, &format!("{comma}{}:{}", quoted(&key), json));
            self.given.push(key);
        }
    }
}
