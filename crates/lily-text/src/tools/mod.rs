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
//! - **A value** ends at `</parameter>` if a tag of the block follows: `<parameter=`, `</function>`, `</tool_call>`,
//!   `<tool_call>` or `<function=`. Any other `</parameter>` is part of the value. Where `</parameter>` is missing, the
//!   value ends at a `<parameter=KEY>` that begins a line, if KEY is one that the tool declares and that this call has not
//!   had; at `</function>` if `</tool_call>` follows; and at a `</tool_call>` that begins a line, if another `<tool_call>`
//!   or the end of the answer follows. One line break after `<parameter=KEY>` and one before the end are not part of it.
//! - **A missing** `</function>` or `</tool_call>` is as good as there where another tag shows that the function is over,
//!   and at the end of the answer. An answer that was cut off has no such end: see [`ToolCallParser::cut_off`].
//! - **Blanks** directly before a call, and those after the last call, are markup.
//! - **A parameter given twice** has the later value.
//!
//! How the text of a value becomes JSON is told in `argument`.

mod argument;
mod parser;
mod signature;
mod tags;

pub use parser::{ContentDelta, ToolCallParser};
