//! A chat completion's body, read into a [`Job`].

use lily_text::parse_messages;
use serde_json::{Map, Value};

use crate::chat::stream::StreamOptions;
use crate::errors::{ApiError, Kind};
use crate::job::Job;
use crate::read::Fields;
use crate::request::tools::{Form, Tools};
use crate::request::{
    Conversation, MOST_ALTERNATIVES, MOST_CHOICES, budget, check_formats, check_model, include_usage,
    message_error, missing, sampling, stop_strings, template_options, thinking, token_limit,
    unfold_extra_body, unknown_names,
};
use crate::service::Service;
use crate::tables::CHAT;

/// What a body asks for.
pub(crate) struct ChatRequest {
    pub(crate) job: Job,
    pub(crate) stream: bool,
    pub(crate) options: StreamOptions,
    /// Names that nothing here knows.
    pub(crate) unknown: Vec<String>,
}

/// Reads, renders and tokenizes. CPU work in proportion to the prompt: call it outside the async threads.
pub(crate) fn parse(mut body: Map<String, Value>, service: &Service) -> Result<ChatRequest, ApiError> {
    unfold_extra_body(&mut body)?;
    let continued = Fields::new(&body, "").boolean("continue_final_message")?.unwrap_or(false);
    if continued {
        // The message that is continued opens no turn.
        body.remove("add_generation_prompt");
    }
    let mut unknown = unknown_names(&body, &CHAT)?;
    let tools = Tools::take(&mut body, Form::Chat, &mut unknown)?;
    let fields = Fields::new(&body, "");
    check_model(fields, service)?;
    check_formats(fields)?;
    let logprobs = logprobs(fields)?;
    let options = StreamOptions {
        usage: include_usage(fields)?,
        progress: fields.boolean("return_progress")?.unwrap_or(false),
        logprobs: logprobs.is_some(),
        timings: fields.boolean("timings_per_token")?.unwrap_or(false),
    };
    let max_tokens = token_limit(fields, "max_completion_tokens")?.flatten();
    let sampling = sampling(fields, service)?;
    let stop = stop_strings(fields, "stop")?;
    let choices = fields.integer("n", 1, MOST_CHOICES)?.unwrap_or(1) as usize;
    let ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    // Last, because it is the costly part: a body that is refused for anything else is refused fast.
    let budget = budget(fields, template_options(fields, &Map::new())?)?;
    let tool_use = tools.tool_use();
    let prompt = conversation(&mut body, tools.offered, continued)?.prompt(&service.text)?;
    Ok(ChatRequest {
        job: Job {
            prompt,
            asked: "messages",
            max_tokens,
            sampling,
            logprobs,
            prompt_logprobs: None,
            ignore_end,
            stop,
            choices,
            tools: tool_use,
            raw: false,
            budget,
        },
        stream,
        options,
        unknown,
    })
}

fn logprobs(fields: Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    match fields.integer("top_logprobs", 0, MOST_ALTERNATIVES)? {
        Some(count) if count > 0 && !wanted => {
            Err(Kind::InvalidValue.error("`top_logprobs` needs `logprobs: true`").at("top_logprobs"))
        }
        count => Ok(wanted.then_some(count.unwrap_or(0) as usize)),
    }
}

/// The conversation of a body; its messages are taken out.
pub(crate) fn conversation(
    body: &mut Map<String, Value>,
    tools: Vec<Value>,
    continued: bool,
) -> Result<Conversation, ApiError> {
    let found = body.remove("messages").unwrap_or(Value::Null);
    if found.is_null() {
        return Err(missing("messages", "an array of messages"));
    }
    let messages = parse_messages(&found).map_err(message_error)?;
    let (fields, empty) = (Fields::new(body, ""), Map::new());
    let options = template_options(fields, &empty)?;
    let preserve_thinking = fields.boolean("preserve_thinking")?.or(options.boolean("preserve_thinking")?);
    let thinking = thinking(fields, options)?;
    Ok(Conversation { messages, tools, thinking, preserve_thinking, continued, opens_turn: true })
}
