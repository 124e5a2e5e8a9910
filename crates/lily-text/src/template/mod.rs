//! Rendering the chat template that a checkpoint brings.
//!
//! Templates are Jinja, written for Python's jinja2 as Hugging Face transformers sets it up; [`engine`] makes minijinja
//! behave the same. On top of that come two things that no template engine does: [`protect`] keeps users' text from
//! becoming markers, and [`repair`] renders ordinary conversations that a template refuses.

mod context;
mod engine;
mod functions;
mod json;
mod protect;
mod python;
mod repair;
mod whitespace;

use serde_json::Value;

use crate::chat::{Chat, EXTRA_OPTIONS, Prompt};
use crate::error::{PromptError, TextError};
use crate::tokenizer::Tokenizer;
use engine::{Allowance, Engine};
use protect::{Markers, Private, Variant};
use repair::Plan;

/// A chat template, compiled.
#[derive(Debug)]
pub(crate) struct Template {
    engine: Engine,
    markers: Markers,
}

impl Template {
    /// Compiles `source`. `config` is tokenizer_config.json: its token names are variables of the template.
    pub(crate) fn new(source: String, config: &Value, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let markers = Markers::new(tokenizer, &source);
        Ok(Template { engine: Engine::new(source, config)?, markers })
    }

    /// As the checkpoint wrote it.
    pub(crate) fn source(&self) -> &str {
        self.engine.source()
    }

    /// Renders and encodes a conversation.
    pub(crate) fn prompt(&self, tokenizer: &Tokenizer, chat: &Chat) -> Result<Prompt, PromptError> {
        if chat.messages.is_empty() {
            return Err(PromptError::NoMessages);
        }
        check_options(chat)?;
        let private = Private::absent_from(chat, self.source()).ok_or_else(|| {
            PromptError::TooMuchWork("the conversation uses every private character".into())
        })?;
        let allowance = allowance(chat);
        let (plan, plain) = self.render_plain(chat, &private, allowance)?;
        if !self.markers.any_in(chat) {
            let tokens = tokenizer.encode_marked(&plain);
            return Ok(Prompt { tokens, starts_in_reasoning: opens_reasoning(chat, &plain), text: plain });
        }
        let protected = self.render_protected(chat, plan, &plain, &private, allowance)?;
        Ok(Prompt {
            tokens: tokenizer.encode_protected(&protected, private.breaker, private.fence),
            starts_in_reasoning: opens_reasoning(chat, &protected),
            text: private.remove_from(&protected),
        })
    }

    /// The text by the first plan that the template accepts. The error is the one of the conversation as it came.
    fn render_plain(
        &self,
        chat: &Chat,
        private: &Private,
        allowance: Allowance,
    ) -> Result<(Plan, String), PromptError> {
        let mut refusal = None;
        for plan in Plan::all_for(chat) {
            match self.render(chat, plan, private, allowance) {
                Ok(text) => return Ok((plan, text)),
                Err(error) => refusal.get_or_insert(error),
            };
        }
        Err(refusal.unwrap_or(PromptError::NoMessages))
    }

    /// The same text with private characters inside whatever users typed that looks like a marker: by the first variant
    /// that leaves the template's decisions as they were, which shows in the text. If none does, safety wins.
    fn render_protected(
        &self,
        chat: &Chat,
        plan: Plan,
        plain: &str,
        private: &Private,
        allowance: Allowance,
    ) -> Result<String, PromptError> {
        let mut fallback = None;
        for variant in Variant::ALL {
            let chat = protect::apply(chat, &self.markers, private, variant);
            let rendered = self.render(&chat, plan, private, allowance);
            if rendered.as_ref().is_ok_and(|text| private.remove_from(text) == plain) {
                return rendered;
            }
            if fallback.as_ref().is_none_or(Result::is_err) {
                fallback = Some(rendered);
            }
        }
        fallback.unwrap_or(Err(PromptError::NoMessages))
    }

    fn render(
        &self,
        chat: &Chat,
        plan: Plan,
        private: &Private,
        allowance: Allowance,
    ) -> Result<String, PromptError> {
        let variables = context::variables(chat, &plan.messages(&chat.messages, private));
        let text = self.engine.render(variables, allowance)?;
        plan.undo(text, &chat.messages, private).ok_or_else(|| {
            PromptError::Failed("it does not write a turn where one was put in for it to be renamed".into())
        })
    }
}

fn check_options(chat: &Chat) -> Result<(), PromptError> {
    match chat.extra.keys().find(|name| !EXTRA_OPTIONS.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let supported = ["enable_thinking", "preserve_thinking"].iter().chain(&EXTRA_OPTIONS).copied();
            Err(PromptError::UnknownOption {
                name: name.clone(),
                supported: supported.collect::<Vec<_>>().join(", "),
            })
        }
    }
}

/// What the conversation may cost: in proportion to its size, private characters included.
fn allowance(chat: &Chat) -> Allowance {
    let mut bytes = 0;
    protect::each_text(chat, &mut |text| bytes += text.len());
    Allowance { bytes, messages: chat.messages.len() + chat.tools.len() }
}

/// Whether the answer starts inside a think block that the template opened.
fn opens_reasoning(chat: &Chat, rendered: &str) -> bool {
    chat.add_generation_prompt && rendered.trim_end().ends_with("<think>")
}
