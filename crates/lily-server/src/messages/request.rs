//! The body of `POST /v1/messages`, read into a [`Job`].

use lily_text::Prompt;
use serde_json::{Map, Value};

use crate::errors::ApiError;
use crate::job::Job;
use crate::messages::blocks::{Blocks, keeps_thinking};
use crate::messages::conversation;
use crate::read::Fields;
use crate::request::tools::{Form, Tools};
use crate::request::{
    Conversation, budget, check_formats, check_model, sampling, stop_strings, template_options, thinking,
    token_limit, unfold_extra_body, unknown_names,
};
use crate::service::Service;
use crate::tables::MESSAGES;

/// What a body asks for.
pub(crate) struct MessageRequest {
    pub(crate) job: Job,
    pub(crate) stream: bool,
    pub(crate) unknown: Vec<String>,
}

/// Reads, renders and tokenizes.
pub(crate) fn parse(mut body: Map<String, Value>, service: &Service) -> Result<MessageRequest, ApiError> {
    unfold_extra_body(&mut body)?;
    let mut unknown = unknown_names(&body, &MESSAGES)?;
    let mut tools = Tools::take(&mut body, Form::Messages, &mut unknown)?;
    let fields = Fields::new(&body, "");
    check_model(fields, service)?;
    if let Some(config) = fields.object("output_config")? {
        Fields::new(config, "output_config.").string("effort")?;
    }
    check_formats(fields)?;
    let max_tokens = token_limit(fields, "max_tokens")?.flatten();
    let sampling = sampling(fields, service)?;
    let stop = stop_strings(fields, "stop_sequences")?;
    let ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let budget = budget(fields, template_options(fields, &Map::new())?)?;
    let conversation = conversation(&body, &mut tools, &mut unknown)?;
    let tool_use = tools.tool_use();
    let prompt = conversation.prompt(&service.text)?;
    let job = Job {
        prompt,
        asked: "messages",
        max_tokens,
        sampling,
        logprobs: None,
        prompt_logprobs: None,
        ignore_end,
        stop,
        choices: 1,
        tools: tool_use,
        raw: false,
        budget,
    };
    Ok(MessageRequest { job, stream, unknown })
}

/// The prompt of a body, for those who only count it. Everything about the answer is left aside.
pub(crate) fn prompt(mut body: Map<String, Value>, service: &Service) -> Result<Prompt, ApiError> {
    unfold_extra_body(&mut body)?;
    let mut unknown = unknown_names(&body, &MESSAGES)?;
    let mut tools = Tools::take(&mut body, Form::Messages, &mut unknown)?;
    check_model(Fields::new(&body, ""), service)?;
    conversation(&body, &mut tools, &mut unknown)?.prompt(&service.text)
}

fn conversation(
    body: &Map<String, Value>,
    tools: &mut Tools,
    left_out: &mut Vec<String>,
) -> Result<Conversation, ApiError> {
    let (fields, empty) = (Fields::new(body, ""), Map::new());
    let options = template_options(fields, &empty)?;
    let preserve_thinking = fields
        .boolean("preserve_thinking")?
        .or(options.boolean("preserve_thinking")?)
        .or_else(|| keeps_thinking(body));
    let blocks = &mut Blocks { tools, left_out };
    let mut messages = conversation::messages(body.get("messages").unwrap_or(&Value::Null), blocks)?;
    let system = conversation::system(body.get("system").unwrap_or(&Value::Null), blocks)?;
    if let (Some(system), false) = (system, messages.is_empty()) {
        messages.insert(0, system);
    }
    // Who says nothing about it does not expect it.
    let thinking = Some(thinking(fields, options)?.unwrap_or(false));
    let tools = tools.offered.clone();
    Ok(Conversation { messages, tools, thinking, preserve_thinking, continued: true, opens_turn: true })
}
