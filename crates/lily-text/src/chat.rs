//! A conversation as the rest of Lily sees it: one shape, whatever protocol it arrived in.
//!
//! [`crate::parse_messages`] makes it from OpenAI-shaped JSON; [`crate::TextModel::prompt`] turns it into a prompt.

use serde_json::Value;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions that stand above the conversation, wherever they appear in it.
    System,
    /// The same under OpenAI's later name. Kept apart because some templates write it as a role of its own.
    Developer,
    /// The person, or the program, that asks.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name that templates compare with.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    /// True for the two roles whose text is an instruction.
    pub fn is_instruction(self) -> bool {
        matches!(self, Role::System | Role::Developer)
    }
}

/// A call that the assistant made in an earlier turn.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The caller's name for this call; results refer to it.
    pub id: Option<String>,
    /// The function's name.
    pub name: String,
    /// Its arguments: an object. Other JSON is handed to the template as it is, and most templates refuse it.
    pub arguments: Value,
}

/// One turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; empty where the sender gave none.
    pub content: String,
    /// Where images stand: byte offsets into `content`, rising. The template shows a placeholder there; no engine behind
    /// this crate sees the image, so whoever has none that does refuses images instead ([`crate::parse_messages`]).
    pub images: Vec<usize>,
    /// What the assistant thought before it spoke. `None` lets a template look for `</think>` in `content`.
    pub reasoning: Option<String>,
    /// Calls the assistant made in this turn, in order.
    pub tool_calls: Vec<ToolCall>,
    /// On a tool's result: the call it answers.
    pub tool_call_id: Option<String>,
    /// A name for the speaker or the tool.
    pub name: Option<String>,
}

impl Message {
    /// A message with a role and text, and nothing else.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message {
            role,
            content: content.into(),
            images: Vec::new(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// The user says this.
    pub fn user(content: impl Into<String>) -> Self {
        Message::new(Role::User, content)
    }

    /// The assistant said this.
    pub fn assistant(content: impl Into<String>) -> Self {
        Message::new(Role::Assistant, content)
    }

    /// An instruction.
    pub fn system(content: impl Into<String>) -> Self {
        Message::new(Role::System, content)
    }
}

/// Names that [`Chat::extra`] may hold: template variables that clients set, and that cannot change how a template is run.
/// `enable_thinking` and `preserve_thinking` have fields of their own.
pub const EXTRA_OPTIONS: [&str; 2] = ["add_vision_id", "reasoning_effort"];

/// A conversation and how to render it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The turns, oldest first.
    pub messages: Vec<Message>,
    /// Tool descriptions in OpenAI's form, handed to the template as they are.
    pub tools: Vec<Value>,
    /// End with the opening of an assistant turn, so that a model answers. True in [`Chat::new`].
    pub add_generation_prompt: bool,
    /// Let the model think first. `None`: as the template does by itself.
    pub enable_thinking: Option<bool>,
    /// Keep the reasoning of turns before the last user's. `None`: as the template does by itself.
    pub preserve_thinking: Option<bool>,
    /// Further template variables; names outside [`EXTRA_OPTIONS`] are refused by [`crate::TextModel::prompt`].
    pub extra: serde_json::Map<String, Value>,
}

impl Chat {
    /// These turns, the model to answer next, everything else as the template does by itself.
    pub fn new(messages: Vec<Message>) -> Self {
        Chat {
            messages,
            tools: Vec::new(),
            add_generation_prompt: true,
            enable_thinking: None,
            preserve_thinking: None,
            extra: serde_json::Map::new(),
        }
    }
}

/// What a model is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The rendered conversation. Markers that users typed are in it as they typed them.
    pub text: String,
    /// Its ids. Only the template's own markers are marker tokens.
    pub tokens: Vec<u32>,
    /// True if the prompt ends inside an open think block: the answer starts as reasoning.
    pub starts_in_reasoning: bool,
}
