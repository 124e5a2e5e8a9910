//! The body of `POST /v1/responses`, read into a [`Job`].

use lily_text::parse_messages;
use serde_json::{Map, Value, json};

use crate::errors::ApiError;
use crate::job::Job;
use crate::read::Fields;
use crate::request::tools::{Form, Tools};
use crate::request::{
    Conversation, budget, check_formats, check_model, message_error, sampling, stop_strings,
    template_options, thinking, token_limit, unfold_extra_body, unknown_names,
};
use crate::responses::input::{Messages, check_wishes};
use crate::service::Service;
use crate::tables::RESPONSES;

/// What a body asks for.
pub(crate) struct ResponseRequest {
    pub(crate) job: Job,
    pub(crate) stream: bool,
    /// Fields of the response that repeat the request.
    pub(crate) echo: Map<String, Value>,
    pub(crate) unknown: Vec<String>,
}

/// Reads, renders and tokenizes.
pub(crate) fn parse(mut body: Map<String, Value>, service: &Service) -> Result<ResponseRequest, ApiError> {
    unfold_extra_body(&mut body)?;
    let mut unknown = unknown_names(&body, &RESPONSES)?;
    let asked_tools = body.get("tools").cloned().filter(Value::is_array).unwrap_or_else(|| json!([]));
    let tools = Tools::take(&mut body, Form::Responses, &mut unknown)?;
    let fields = Fields::new(&body, "");
    check_model(fields, service)?;
    check_wishes(fields)?;
    check_formats(fields)?;
    let max_tokens = token_limit(fields, "max_output_tokens")?.flatten();
    let stop = stop_strings(fields, "stop")?;
    let sampling = sampling(fields, service)?;
    let ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let echo = echo(&body, asked_tools, &sampling, max_tokens);
    let tool_use = tools.tool_use();
    let messages = Messages::read(&mut body)?;
    unknown.extend(messages.left_out);
    let places = messages.places;
    let messages =
        parse_messages(&Value::Array(messages.list)).map_err(|error| place(message_error(error), &places))?;
    let (fields, empty) = (Fields::new(&body, ""), Map::new());
    let options = template_options(fields, &empty)?;
    let preserve_thinking = fields.boolean("preserve_thinking")?.or(options.boolean("preserve_thinking")?);
    let thinking = thinking(fields, options)?;
    let budget = budget(fields, options)?;
    let conversation = Conversation {
        messages,
        tools: tools.offered,
        thinking,
        preserve_thinking,
        continued: false,
        opens_turn: true,
    };
    let prompt = conversation.prompt(&service.text).map_err(|error| error.at("input"))?;
    let job = Job {
        prompt,
        asked: "input",
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
    Ok(ResponseRequest { job, stream, echo, unknown })
}

/// Names the item of the request, not the message that was made of it.
fn place(error: ApiError, places: &[String]) -> ApiError {
    let Some(path) = &error.param else { return error };
    let number = path.strip_prefix("messages[").and_then(|rest| rest.split_once(']'));
    let found = number.and_then(|(number, rest)| Some((places.get(number.parse::<usize>().ok()?)?, rest)));
    let Some((item, rest)) = found else { return error };
    let named = format!("{item}{rest}");
    ApiError { message: error.message.replace(path.as_str(), &named), param: Some(named), ..error }
}

fn echo(
    body: &Map<String, Value>,
    tools: Value,
    sampling: &lily_protocol::Sampling,
    max_tokens: Option<usize>,
) -> Map<String, Value> {
    let given = |name: &str, default: Value| {
        body.get(name).cloned().filter(|value| !value.is_null()).unwrap_or(default)
    };
    let effort = body.get("reasoning").map(|reasoning| reasoning["effort"].clone()).unwrap_or_default();
    let fields = json!({
        "instructions": given("instructions", Value::Null),
        "max_output_tokens": max_tokens,
        "metadata": given("metadata", json!({})),
        "parallel_tool_calls": given("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": {"effort": effort, "summary": null},
        "service_tier": "default",
        "store": false,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": given("tool_choice", json!("auto")),
        "tools": tools,
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "background": false,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
