//! A chat completion's body, read into a [`Job`].

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use lily_protocol::Sampling;
use lily_text::{Chat, Message, MessageError, PromptError, parse_messages};
use serde_json::{Map, Value};

use crate::chat::stream::StreamOptions;
use crate::chat::tools::Tools;
use crate::errors::{ApiError, Kind, brief};
use crate::fields;
use crate::job::Job;
use crate::read::Fields;
use crate::service::Service;

/// Most answers to one request.
const MOST_CHOICES: u32 = 16;
/// Most alternatives per token (OpenAI's own limit).
const MOST_ALTERNATIVES: u32 = 20;
const MOST_STOP_STRINGS: usize = 16;
const LONGEST_STOP_STRING: usize = 1024;
const LARGEST_COUNT: u32 = i32::MAX as u32;
/// Template variables taken from `chat_template_kwargs`.
const TEMPLATE_OPTIONS: [&str; 3] = ["enable_thinking", "preserve_thinking", "reasoning_effort"];

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
    let mut unknown = unknown_names(&body)?;
    let tools = Tools::take(&mut body, &mut unknown)?;
    let fields = Fields::new(&body, "");
    if let Some(name) = fields.string("model")?
        && service.strict_model
    {
        service.require_name(name)?;
    }
    let logprobs = logprobs(fields)?;
    let stream_options = fields.object("stream_options")?;
    let options = StreamOptions {
        usage: match stream_options {
            Some(options) => {
                Fields::new(options, "stream_options.").boolean("include_usage")?.unwrap_or(false)
            }
            None => false,
        },
        progress: fields.boolean("return_progress")?.unwrap_or(false),
        logprobs: logprobs.is_some(),
    };
    let older = fields.integer("max_tokens", 1, LARGEST_COUNT)?;
    let max_tokens = fields.integer("max_completion_tokens", 1, LARGEST_COUNT)?.or(older);
    let sampling = sampling(fields, service)?;
    let stop = fields.strings("stop", MOST_STOP_STRINGS, LONGEST_STOP_STRING)?.unwrap_or_default();
    let choices = fields.integer("n", 1, MOST_CHOICES)?.unwrap_or(1) as usize;
    let ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    // Last, because it is the costly part: a body that is refused for anything else is refused fast.
    let tool_use = tools.tool_use();
    let prompt = service.text.prompt(&chat(&mut body, tools)?).map_err(prompt_error)?;
    Ok(ChatRequest {
        job: Job {
            prompt,
            max_tokens: max_tokens.map(|count| count as usize),
            sampling,
            logprobs,
            ignore_end,
            stop,
            choices,
            tools: tool_use,
        },
        stream,
        options,
        unknown,
    })
}

/// A client library's `extra_body` that reached the wire as it is: its fields count where the request has not got them.
fn unfold_extra_body(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    match body.remove("extra_body") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(extra)) => {
            for (name, value) in extra {
                if body.get(&name).is_none_or(Value::is_null) {
                    body.insert(name, value);
                }
            }
            Ok(())
        }
        Some(other) => Err(ApiError::value("extra_body", &other, "an object")),
    }
}

fn unknown_names(body: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let mut unknown: Vec<String> = fields::classify(body)?.into_iter().map(String::from).collect();
    if let Some(options) = Fields::new(body, "").object("chat_template_kwargs")? {
        fields::classify(options).map_err(|error| {
            let name = error.param.clone().unwrap_or_default();
            error.at(format!("chat_template_kwargs.{name}"))
        })?;
        let foreign = options.keys().filter(|name| !TEMPLATE_OPTIONS.contains(&name.as_str()));
        unknown.extend(foreign.map(|name| format!("chat_template_kwargs.{name}")));
    }
    Ok(unknown)
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

fn sampling(fields: Fields, service: &Service) -> Result<Sampling, ApiError> {
    let default = &service.sampling;
    let other_name = fields.number("repeat_penalty", 0.01, 10.0)?;
    let repetition = fields.number("repetition_penalty", 0.01, 10.0)?.or(other_name);
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(default.top_p);
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0, 2.0)?.unwrap_or(default.temperature),
        // 0 means the most probable token alone, as the smallest positive share does.
        top_p: top_p.max(f32::MIN_POSITIVE),
        top_k: fields.integer("top_k", 0, LARGEST_COUNT)?.map_or(default.top_k, |count| count as usize),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(default.min_p),
        repetition_penalty: repetition.unwrap_or(default.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0, 2.0)?
            .unwrap_or(default.frequency_penalty),
        logit_bias: fields.logit_bias("logit_bias", service.engine.limits().vocabulary)?,
        seed: fields.seed("seed")?.or(service.seed).unwrap_or_else(random_seed),
    })
}

/// 64 bits that differ from call to call. Nothing secret hangs on them.
fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

fn chat(body: &mut Map<String, Value>, tools: Tools) -> Result<Chat, ApiError> {
    let messages = messages(body)?;
    let fields = Fields::new(body, "");
    let empty = Map::new();
    let options = fields.object("chat_template_kwargs")?.unwrap_or(&empty);
    let options = Fields::new(options, "chat_template_kwargs.");
    let preserve = fields.boolean("preserve_thinking")?.or(options.boolean("preserve_thinking")?);
    let thinking = thinking(fields, options)?;
    let mut chat = Chat::new(messages);
    chat.enable_thinking = thinking;
    chat.preserve_thinking = preserve;
    chat.tools = tools.offered;
    Ok(chat)
}

fn messages(body: &mut Map<String, Value>) -> Result<Vec<Message>, ApiError> {
    let found = body.remove("messages").unwrap_or(Value::Null);
    if found.is_null() {
        return Err(Kind::MissingField
            .error("`messages` is missing: send an array of messages")
            .at("messages"));
    }
    let messages = parse_messages(&found).map_err(message_error)?;
    if messages.is_empty() {
        return Err(prompt_error(PromptError::NoMessages));
    }
    Ok(messages)
}

/// Whether to reason: the first name that is present decides. Every one of them is read, so that a wrong type is an
/// error wherever it stands.
fn thinking(fields: Fields, options: Fields) -> Result<Option<bool>, ApiError> {
    let empty = Map::new();
    let reasoning = Fields::new(fields.object("reasoning")?.unwrap_or(&empty), "reasoning.");
    let anthropic = fields.get("thinking").and_then(Value::as_object).unwrap_or(&empty);
    refuse_limits("thinking", anthropic)?;
    refuse_limits("reasoning", fields.object("reasoning")?.unwrap_or(&empty))?;
    let wishes = [
        fields.boolean("enable_thinking")?,
        options.boolean("enable_thinking")?,
        thinking_field(fields)?,
        reasoning.boolean("enabled")?,
        effort(fields.string("reasoning_effort")?),
        effort(reasoning.string("effort")?),
        effort(options.string("reasoning_effort")?),
    ];
    Ok(wishes.into_iter().flatten().next())
}

/// What would shorten or hide the reasoning, in the objects that may also say whether there is any.
fn refuse_limits(object: &str, asked: &Map<String, Value>) -> Result<(), ApiError> {
    for name in ["budget_tokens", "max_tokens", "exclude"] {
        match asked.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(value) => {
                let place = format!("{object}.{name}");
                let message = format!("`{place}` (here {}) is not supported yet: leave it out", brief(value));
                return Err(Kind::Unsupported.error(message).at(place));
            }
        }
    }
    Ok(())
}

/// `"none"` is off. How much effort is not something this model can be told, so any other leaves it to the template.
fn effort(effort: Option<&str>) -> Option<bool> {
    effort.filter(|&effort| effort == "none").map(|_| false)
}

/// Anthropic's form, which some clients send to every server, or a plain boolean.
fn thinking_field(fields: Fields) -> Result<Option<bool>, ApiError> {
    const WANTED: &str = "true, false, or an object with type \"enabled\", \"adaptive\" or \"disabled\"";
    let Some(value) = fields.get("thinking") else { return Ok(None) };
    let known = match value {
        Value::Bool(on) => Some(*on),
        Value::Object(object) => match object.get("type").and_then(Value::as_str) {
            Some("enabled" | "adaptive") => Some(true),
            Some("disabled") => Some(false),
            _ => None,
        },
        _ => None,
    };
    known.map(Some).ok_or_else(|| ApiError::value("thinking", value, WANTED))
}

fn message_error(error: MessageError) -> ApiError {
    Kind::InvalidMessages.error(error.to_string()).at(error.path)
}

/// What the template refuses is the request's affair: the same template renders other conversations.
fn prompt_error(error: PromptError) -> ApiError {
    Kind::InvalidMessages.error(error.to_string()).at("messages")
}
