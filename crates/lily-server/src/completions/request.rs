//! The body of `POST /v1/completions`, read into a [`Job`] for each prompt.

use lily_text::{Prompt, TextModel};
use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind};
use crate::job::Job;
use crate::read::Fields;
use crate::request::{
    MOST_ALTERNATIVES, MOST_CHOICES, check_formats, check_model, include_usage, missing, sampling,
    stop_strings, token_limit, unfold_extra_body, unknown_names,
};
use crate::service::Service;
use crate::tables::COMPLETIONS;

/// Most prompts, and most answers to all of them together.
const MOST_ANSWERS: usize = 64;
/// What OpenAI's API does where nothing is said.
const DEFAULT_TOKENS: usize = 16;

/// What a body asks for.
pub(crate) struct CompletionRequest {
    pub(crate) jobs: Vec<Job>,
    /// The text of each answer's prompt, where answers begin with it.
    pub(crate) echo: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    /// Figures with each piece of a stream.
    pub(crate) timings: bool,
    pub(crate) unknown: Vec<String>,
}

/// Reads and tokenizes.
pub(crate) fn parse(mut body: Map<String, Value>, service: &Service) -> Result<CompletionRequest, ApiError> {
    unfold_extra_body(&mut body)?;
    let unknown = unknown_names(&body, &COMPLETIONS)?;
    let fields = Fields::new(&body, "");
    check_model(fields, service)?;
    check_formats(fields)?;
    let logprobs = fields.integer("logprobs", 0, MOST_ALTERNATIVES)?.map(|count| count as usize);
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let max_tokens = match fields.get("max_tokens").and_then(Value::as_u64) {
        // Who asks for the prompt back may want nothing else.
        Some(0) if echo => Some(0),
        _ => token_limit(fields, "max_tokens")?.unwrap_or(Some(DEFAULT_TOKENS)),
    };
    let timings = fields.boolean("timings_per_token")?.unwrap_or(false);
    let sampling = sampling(fields, service)?;
    let stop = stop_strings(fields, "stop")?;
    let choices = fields.integer("n", 1, MOST_CHOICES)?.unwrap_or(1) as usize;
    let ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = include_usage(fields)?;
    let prompts = prompts(fields, service)?;
    if prompts.len() * choices > MOST_ANSWERS {
        let message = format!(
            "{} prompts with {choices} answers each; at most {MOST_ANSWERS} answers are made",
            prompts.len()
        );
        return Err(Kind::InvalidValue.error(message).at("prompt"));
    }
    let prompt_logprobs = logprobs.filter(|_| echo);
    let texts = prompts
        .iter()
        .flat_map(|prompt| std::iter::repeat_n(if echo { &prompt.text[..] } else { "" }, choices));
    let echo = texts.map(str::to_owned).collect();
    let job = |prompt| Job {
        prompt,
        asked: "prompt",
        max_tokens,
        sampling: sampling.clone(),
        logprobs,
        prompt_logprobs,
        ignore_end,
        stop: stop.clone(),
        choices,
        tools: None,
        raw: true,
        budget: None,
    };
    let jobs = prompts.into_iter().map(job).collect();
    Ok(CompletionRequest {
        jobs,
        echo,
        stream,
        include_usage,
        logprobs: logprobs.is_some(),
        timings,
        unknown,
    })
}

fn prompts(fields: Fields, service: &Service) -> Result<Vec<Prompt>, ApiError> {
    let vocabulary = service.engine.limits().vocabulary;
    let text = &service.text;
    match fields.get("prompt") {
        None => Err(missing("prompt", "a string, or an array of strings or of token ids")),
        Some(Value::Array(items)) if items.first().is_some_and(Value::is_number) => {
            Ok(vec![of_tokens(items, "prompt", vocabulary, text)?])
        }
        Some(Value::Array(items)) if items.is_empty() => Err(empty("prompt")),
        Some(Value::Array(items)) if items.len() > MOST_ANSWERS => {
            let message =
                format!("`prompt` has {} prompts, and may have at most {MOST_ANSWERS}", items.len());
            Err(Kind::InvalidValue.error(message).at("prompt"))
        }
        Some(Value::Array(items)) => {
            let one = |(at, item): (usize, &Value)| one(item, &format!("prompt[{at}]"), vocabulary, text);
            items.iter().enumerate().map(one).collect()
        }
        Some(item) => Ok(vec![one(item, "prompt", vocabulary, text)?]),
    }
}

fn one(item: &Value, path: &str, vocabulary: usize, text: &TextModel) -> Result<Prompt, ApiError> {
    match item {
        Value::String(prompt) => {
            let tokens = text.tokenizer().encode_text(prompt);
            if tokens.is_empty() {
                Err(empty(path))
            } else {
                Ok(Prompt { text: prompt.clone(), tokens, starts_in_reasoning: false })
            }
        }
        Value::Array(ids) => of_tokens(ids, path, vocabulary, text),
        other => Err(ApiError::value(path, other, "a string or an array of token ids")),
    }
}

fn of_tokens(ids: &[Value], path: &str, vocabulary: usize, text: &TextModel) -> Result<Prompt, ApiError> {
    let tokens = token_ids(ids, path, vocabulary)?;
    if tokens.is_empty() {
        return Err(empty(path));
    }
    Ok(Prompt { text: text.tokenizer().decode(&tokens, false), tokens, starts_in_reasoning: false })
}

/// An array of token ids.
pub(crate) fn token_ids(ids: &[Value], path: &str, vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    let id = |(at, value): (usize, &Value)| {
        let id = value.as_u64().filter(|&id| id < vocabulary as u64);
        let wrong =
            || ApiError::value(&format!("{path}[{at}]"), value, &format!("a token id below {vocabulary}"));
        id.map(|id| id as u32).ok_or_else(wrong)
    };
    ids.iter().enumerate().map(id).collect()
}

fn empty(path: &str) -> ApiError {
    Kind::InvalidValue.error(format!("`{path}` is empty: at least one token is needed")).at(path)
}
