//! Tool calls in the content of an answer.
//!
//! The Qwen family writes a call as text:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Nothing in it is escaped, so what ends a value, and what is a call at all, is a matter of policy:
//!
//! - **A block** begins at `<tool_call>` followed by `<function=`, or at a `<function=` that begins a line (models forget
//!   the line before it). It is a call if its name is one of the tools. Everything else is text, byte for byte: a
//!   `<tool_call>` without a function after it, a block for an unknown name (the whole of it, so that an example inside
//!   its values is not taken for a call), a block with text between its tags (up to that text).
//! - **A value** ends at `</parameter>` if a tag of the block follows: `<parameter=KEY>`, `</function>`, `</tool_call>`,
//!   `<tool_call>` or `<function=`. Any other `</parameter>` is part of the value. Where `</parameter>` is missing, the
//!   value ends at a `<parameter=KEY>` that begins a line, if KEY is one that the tool declares and that this call has not
//!   had; at `</function>` if `</tool_call>` follows; and at a `</tool_call>` that begins a line, if another `<tool_call>`
//!   or the end of the answer follows. One line break after `<parameter=KEY>` and one before the end are not part of it.
//! - **A missing** `</function>` or `</tool_call>` is as good as there where another tag shows that the function is over,
//!   and at the end of the answer. An answer that was cut off has no such end: see [`ContentEnd`].
//! - **Blanks** directly before a call, and those after the last call, are markup.
//! - **A string is given as it grows**: from `<parameter=KEY>` on, if the tool's schema says that KEY can only be a string.
//!   From there on the block is a call, whatever comes. If the answer ends inside it, its arguments end there too, unclosed, and
//!   half a tag at that end is left out; only an answer that the model itself ended has its last value closed.
//! - **A parameter given twice** has the later value. If the earlier one was given already, both are in the JSON, of which
//!   readers take the later.
//!
//! How the text of a value becomes JSON is told in `argument`.

mod argument;
mod call;
mod ending;
mod parser;
mod promotion;
mod signature;
mod tags;

pub use parser::ToolCallParser;
pub use promotion::ReasoningCalls;

/// A piece of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentDelta {
    /// Text to be appended to what is there. Never empty.
    Text(String),
    /// A call begins: what follows up to [`ContentDelta::CallEnd`] are its arguments.
    CallStart {
        /// The name of one of the tools.
        name: String,
    },
    /// More of the call's arguments: joined, they are the text of a JSON object.
    Arguments(String),
    /// The call ends.
    CallEnd {
        /// Its arguments are whole. Otherwise their text is the start of a JSON object.
        complete: bool,
    },
}

/// Why a content ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentEnd {
    /// The model ended it. A block that lacks nothing but closing tags is a call; a string that is given already is closed.
    Turn,
    /// A stop string was found. A block that lacks nothing but closing tags is a call; a string that is given already is not
    /// closed.
    StopString,
    /// A limit. More parameters might have come, so a block that is not closed is text, or a call that is not complete.
    Limit,
}

fn give_text(out: &mut Vec<ContentDelta>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(ContentDelta::Text(before)) => before.push_str(text),
        _ => out.push(ContentDelta::Text(text.to_owned())),
    }
}

fn give_arguments(out: &mut Vec<ContentDelta>, json: &str) {
    match out.last_mut() {
        _ if json.is_empty() => {}
        Some(ContentDelta::Arguments(before)) => before.push_str(json),
        _ => out.push(ContentDelta::Arguments(json.to_owned())),
    }
}
