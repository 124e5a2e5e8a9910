//! The text side of Lily: everything between a conversation and token ids, and between token ids and an answer.
//!
//! # The way in
//! 1. [`parse_messages`] reads OpenAI-shaped JSON into [`Message`]s: one shape for every client habit.
//! 2. [`TextModel::prompt`] renders a [`Chat`] with the checkpoint's own template and encodes the result. Text that came
//!    from users is kept apart from the template's markers all the way, so a typed `<|im_end|>` is eleven harmless
//!    characters and never the end of a turn (`template::protect`). Conversations that the template refuses although
//!    they are ordinary (a system message in the middle, no user turn) are rendered in place (`template::repair`).
//! 3. [`Tokenizer`] turns text into ids: added tokens first (only where they are markers), then Unicode NFC, then the
//!    pre-tokenizer's pieces, then byte-pair encoding of each piece.
//!
//! # The way out
//! [`OutputStream`] takes one generated id at a time and says what may be shown: ids become bytes, bytes become whole
//! characters ([`Detokenizer`]), characters are split into reasoning and content at `<think>` and `</think>`, and
//! content is cut at the first stop string ([`StopMatcher`]). Nothing that was shown is ever taken back, and the sum of
//! what is shown does not depend on how the text was cut into tokens.
//!
//! # What this crate does not know
//! Tensors, devices, HTTP. It has no dependency on another crate of the workspace.

#![forbid(unsafe_code)]

mod chat;
mod error;
mod files;
mod messages;
mod model;
mod stream;
mod template;
mod tokenizer;
mod tools;

pub use chat::{Chat, EXTRA_OPTIONS, Message, Prompt, Role, ToolCall};
pub use error::{MessageError, PromptError, TextError};
pub use files::LARGEST_FILE;
pub use messages::{parse_messages, parse_messages_with_images};
pub use model::{CutMarkers, TextModel, TextParts};
pub use stream::{Channel, Delta, Detokenizer, OutputOptions, OutputStream, Step, StopMatcher};
pub use tokenizer::{SyntheticTokenizer, Tokenizer};
pub use tools::{ContentDelta, ContentEnd, ReasoningCalls, ToolCallParser};
