//! From messages to a prompt: the model answers, or goes on where its last message ends.

use lily_text::{Chat, Message, Prompt, PromptError, Role, TextModel};
use serde_json::{Map, Value};

use crate::errors::ApiError;
use crate::read::Fields;
use crate::request::prompt_error;

/// What is to be rendered.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// Tools in OpenAI's form.
    pub(crate) tools: Vec<Value>,
    /// `None`: as the template has it.
    pub(crate) thinking: Option<bool>,
    pub(crate) preserve_thinking: Option<bool>,
    /// A last message of the assistant is continued.
    pub(crate) continued: bool,
    /// The prompt ends with the opening of the assistant's turn.
    pub(crate) opens_turn: bool,
}

/// `chat_template_kwargs`.
pub(crate) fn template_options<'a>(
    fields: Fields<'a>,
    empty: &'a Map<String, Value>,
) -> Result<Fields<'a>, ApiError> {
    Ok(Fields::new(fields.object("chat_template_kwargs")?.unwrap_or(empty), "chat_template_kwargs."))
}

impl Conversation {
    /// Renders and tokenizes: CPU work in proportion to the conversation.
    pub(crate) fn prompt(self, text: &TextModel) -> Result<Prompt, ApiError> {
        let Conversation { mut messages, tools, thinking, preserve_thinking, continued, opens_turn } = self;
        if messages.is_empty() {
            return Err(prompt_error(PromptError::NoMessages));
        }
        let goes_on = |message: &Message| message.role == Role::Assistant && message.tool_calls.is_empty();
        let last =
            if continued && messages.len() > 1 { messages.pop_if(|message| goes_on(message)) } else { None };
        let mut chat = Chat::new(messages);
        chat.tools = tools;
        chat.add_generation_prompt = opens_turn || last.is_some();
        chat.preserve_thinking = preserve_thinking;
        chat.enable_thinking = match &last {
            // What was said without reasoning goes on without it.
            Some(last) => Some(last.reasoning.as_ref().is_some_and(|reasoning| !reasoning.is_empty())),
            None => thinking,
        };
        let mut prompt = text.prompt(&chat).map_err(prompt_error)?;
        if let Some(last) = last {
            go_on(&mut prompt, &last, text);
        }
        Ok(prompt)
    }
}

/// Appends what the assistant said so far.
fn go_on(prompt: &mut Prompt, last: &Message, text: &TextModel) {
    let tokenizer = text.tokenizer();
    let mut append = |part: &str, tokens: Vec<u32>| {
        prompt.text.push_str(part);
        prompt.tokens.extend(tokens);
    };
    let reasoning = last.reasoning.as_deref().unwrap_or_default();
    append(reasoning, tokenizer.encode_text(reasoning));
    let speaks = !last.content.is_empty() || reasoning.is_empty();
    if prompt.starts_in_reasoning && speaks {
        const CLOSE: &str = "\n</think>\n\n";
        append(CLOSE, tokenizer.encode_marked(CLOSE));
    }
    append(&last.content, tokenizer.encode_text(&last.content));
    prompt.starts_in_reasoning &= !speaks;
}
