//! The fields of `POST /v1/chat/completions`, each in one of three classes. `docs/api.md` is generated from this table.
//!
//! A client may send anything that cannot change its answer. What would change the answer and is not offered is refused
//! by name: an answer that silently ignores a wish is worse than an error. `null` counts as absent everywhere.

use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind, brief};

/// What happens to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Obeyed.
    Supported,
    /// Taken without effect on the answer.
    Accepted,
    /// A 400 that names the field, unless the value is one of these (JSON texts), which ask for nothing.
    Refused {
        /// Values that ask for nothing.
        unless: &'static [&'static str],
    },
}

/// One field of the request.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    /// Type and range.
    pub(crate) accepts: &'static str,
    pub(crate) doc: &'static str,
}

const fn supported(name: &'static str, accepts: &'static str, doc: &'static str) -> Field {
    Field { name, class: Class::Supported, accepts, doc }
}

const fn accepted(name: &'static str, accepts: &'static str, doc: &'static str) -> Field {
    Field { name, class: Class::Accepted, accepts, doc }
}

const fn refused(name: &'static str, unless: &'static [&'static str], doc: &'static str) -> Field {
    Field { name, class: Class::Refused { unless }, accepts: "", doc }
}

/// Every name the server knows. Others are accepted and logged once each.
#[rustfmt::skip]
pub(crate) const CHAT: &[Field] = &[
    supported("messages", "array, at least 1", "The conversation. Roles system, developer, user, assistant and tool, in any order; content as a string, as text parts or null."),
    supported("model", "string", "Optional. Any name is served, unless the server runs with `--strict-model`."),
    supported("stream", "boolean", "Server-sent events, ended by `data: [DONE]`. Default false."),
    supported("stream_options", "object", "`include_usage: true` adds a last chunk with `usage` and no choices."),
    supported("max_completion_tokens", "integer, 1 to 2147483647", "Most tokens of the answer, reasoning included. Default, and upper bound: the rest of the context."),
    supported("max_tokens", "integer, 1 to 2147483647", "The older name; `max_completion_tokens` wins where both are given."),
    supported("temperature", "number, 0 to 2", "0 always takes the most probable token. Default: the checkpoint's."),
    supported("top_p", "number, 0 to 1", "Keep the smallest set of most probable tokens that reaches this probability. Default: the checkpoint's."),
    supported("top_k", "integer, 0 to 2147483647", "Keep this many most probable tokens; 0 keeps all. Default: the checkpoint's."),
    supported("min_p", "number, 0 to 1", "Drop tokens less probable than this share of the most probable one. Default: the checkpoint's."),
    supported("repetition_penalty", "number, 0.01 to 10", "Divides the logits of tokens that occurred in prompt or answer; 1 is off. Default: the checkpoint's."),
    supported("repeat_penalty", "number, 0.01 to 10", "Another name of `repetition_penalty`, which wins where both are given."),
    supported("presence_penalty", "number, -2 to 2", "Subtracted from the logits of tokens that occurred in the answer. Default: the checkpoint's."),
    supported("frequency_penalty", "number, -2 to 2", "Subtracted once for each occurrence in the answer. Default: the checkpoint's."),
    supported("logit_bias", "object: token id to number, -100 to 100; at most 4096", "Added to the logits of these tokens."),
    supported("seed", "integer, 64 bits", "The same seed and request give the same answer. Default: random."),
    supported("stop", "string or array of at most 16, each of 1 to 1024 bytes", "The answer ends before the first of these. Reasoning is not searched."),
    supported("n", "integer, 1 to 16", "Independent answers, the i-th with a seed derived from `seed` and i."),
    supported("logprobs", "boolean", "Log probabilities of the tokens of `content` (not of the reasoning)."),
    supported("top_logprobs", "integer, 0 to 20", "Alternatives per token; needs `logprobs: true`."),
    supported("ignore_eos", "boolean", "Never choose an end token."),
    supported("enable_thinking", "boolean", "Whether the model reasons before it answers. Default: the template's."),
    supported("preserve_thinking", "boolean", "Whether the reasoning of earlier turns stays in the prompt. Default: the template's."),
    supported("chat_template_kwargs", "object", "`enable_thinking`, `preserve_thinking` and `reasoning_effort`, as vLLM takes them. Names refused below are refused here too; others as unknown fields."),
    supported("extra_body", "object", "Its fields count as fields of the request, where the request has not got them."),
    supported("tools", "array", "Functions that the model may call, each `{\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}`. `strict` is taken without effect. Tools of other types are left out, and logged once."),
    supported("tool_choice", "string", "`\"auto\"` (the default) or `\"none\"`, with which tools are not shown to the model and nothing is taken for a call. `\"required\"` and named tools are a 400: they are not offered yet."),
    supported("parallel_tool_calls", "boolean", "Whether an answer may have several calls; with false the first one ends it. Default true."),
    supported("return_progress", "boolean", "Streams only: chunks with `prompt_progress` while the prompt is computed."),
    supported("reasoning_effort", "string", "`\"none\"` turns reasoning off; any other value leaves it to the template."),
    supported("reasoning", "object", "`{\"effort\": ...}` as `reasoning_effort`; `{\"enabled\": ...}` as `enable_thinking`. `max_tokens` and `exclude: true` are a 400."),
    supported("thinking", "boolean or object", "`true`, `false`, or `{\"type\": \"enabled\" | \"adaptive\" | \"disabled\"}`. `budget_tokens` is a 400."),

    accepted("store", "false", "Nothing is stored."),
    accepted("metadata", "any", ""),
    accepted("user", "any", ""),
    accepted("safety_identifier", "any", ""),
    accepted("service_tier", "any", ""),
    accepted("prompt_cache_key", "any", "Prefixes are found without it."),
    accepted("prompt_cache_retention", "any", ""),
    accepted("cache_prompt", "any", "Prefixes are reused where that cannot change the answer."),
    accepted("verbosity", "any", "A hint for OpenAI's own models."),

    refused("functions", &["[]"], "The predecessor of `tools`."),
    refused("function_call", &["\"none\"", "\"auto\""], "The predecessor of `tool_choice`."),
    refused("response_format", &["{\"type\":\"text\"}"], "Constrained answers are not offered yet."),
    refused("grammar", &["\"\""], ""),
    refused("json_schema", &["{}"], ""),
    refused("structured_outputs", &["{}"], ""),
    refused("guided_json", &[], ""),
    refused("guided_regex", &[], ""),
    refused("guided_choice", &[], ""),
    refused("guided_grammar", &[], ""),
    refused("modalities", &["[\"text\"]"], "The model answers in text."),
    refused("audio", &[], ""),
    refused("prediction", &[], ""),
    refused("web_search_options", &[], ""),
    refused("background", &["false"], ""),
    refused("add_generation_prompt", &["true"], "The prompt always opens the assistant's turn."),
    refused("continue_final_message", &["false"], ""),
    refused("chat_template", &[], "The checkpoint's own template is the only one."),
    refused("add_special_tokens", &["false"], "The template places every special token."),
    refused("timings_per_token", &["false"], ""),
    refused("documents", &["[]"], ""),
    refused("echo", &["false"], ""),
    refused("suffix", &["\"\""], ""),
    refused("best_of", &["1"], ""),
    refused("use_beam_search", &["false"], ""),
    refused("length_penalty", &["1"], ""),
    refused("min_tokens", &["0"], ""),
    refused("stop_token_ids", &["[]"], ""),
    refused("include_stop_str_in_output", &["false"], ""),
    refused("skip_special_tokens", &["true"], ""),
    refused("spaces_between_special_tokens", &["true", "false"], ""),
    refused("bad_words", &["[]"], ""),
    refused("allowed_token_ids", &["[]"], ""),
    refused("prompt_logprobs", &["0"], ""),
    refused("thinking_budget", &["-1"], ""),
    refused("thinking_token_budget", &["-1"], ""),
    refused("reasoning_budget", &["-1"], ""),
    refused("include_reasoning", &["true"], "Reasoning comes in a field of its own."),
    refused("typical_p", &["1"], ""),
    refused("top_a", &["0"], ""),
    refused("tfs_z", &["1"], ""),
    refused("top_n_sigma", &["-1", "0"], ""),
    refused("mirostat", &["0"], ""),
    refused("dry_multiplier", &["0"], ""),
    refused("xtc_probability", &["0"], ""),
    refused("dynatemp_range", &["0"], ""),
];

/// The table's entry for a name.
pub(crate) fn find(name: &str) -> Option<&'static Field> {
    CHAT.iter().find(|field| field.name == name)
}

/// Refuses what is not offered and returns the names that the table does not know.
pub(crate) fn classify(request: &Map<String, Value>) -> Result<Vec<&str>, ApiError> {
    let mut unknown = Vec::new();
    for (name, value) in request {
        match find(name) {
            None => unknown.push(name.as_str()),
            Some(field) => refuse(field, value)?,
        }
    }
    Ok(unknown)
}

fn refuse(field: &Field, value: &Value) -> Result<(), ApiError> {
    let unsupported = |message: String| Err(Kind::Unsupported.error(message).at(field.name));
    if value.is_null() {
        return Ok(());
    }
    if field.name == "store" && value != &Value::Bool(false) {
        return unsupported("`store` must be false or absent: nothing is stored here".into());
    }
    let Class::Refused { unless } = field.class else { return Ok(()) };
    let asks_for_nothing = unless.iter().any(|text| same(value, text));
    if asks_for_nothing {
        return Ok(());
    }
    let hint = match unless {
        [] => "leave it out".to_string(),
        values => format!("leave it out or send {}", values.join(" or ")),
    };
    unsupported(format!("`{}` (here {}) is not supported yet: {hint}", field.name, brief(value)))
}

/// Whether a value equals a JSON text; numbers by value, so that `1.0` is `1`.
fn same(value: &Value, text: &str) -> bool {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Number(wanted)) => value.as_f64().is_some_and(|found| Some(found) == wanted.as_f64()),
        Ok(wanted) => *value == wanted,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(request: Value) -> Result<Vec<String>, ApiError> {
        let map = request.as_object().cloned().unwrap_or_default();
        classify(&map).map(|names| names.into_iter().map(String::from).collect())
    }

    #[test]
    fn names_are_unique_and_values_are_json() {
        for (at, field) in CHAT.iter().enumerate() {
            assert!(CHAT[..at].iter().all(|other| other.name != field.name), "{} twice", field.name);
            if let Class::Refused { unless } = field.class {
                for text in unless {
                    assert!(serde_json::from_str::<Value>(text).is_ok(), "{}: {text}", field.name);
                }
            }
        }
    }

    #[test]
    fn values_that_ask_for_nothing_pass() {
        let quiet = json!({
            "store": false, "audio": null, "response_format": {"type": "text"}, "parallel_tool_calls": true,
            "tools": [], "best_of": 1.0, "modalities": ["text"], "metadata": {"a": "b"}, "user": 3, "tool_choice": "auto",
        });
        assert_eq!(check(quiet), Ok(vec![]));
        assert_eq!(check(json!({"newer_field": 1, "messages": []})), Ok(vec!["newer_field".into()]));
    }

    #[test]
    fn every_refused_field_is_named() {
        for field in CHAT.iter().filter(|field| matches!(field.class, Class::Refused { .. })) {
            let error = check(json!({field.name: {"some": "wish"}})).expect_err(field.name);
            assert_eq!((error.kind, error.param.as_deref()), (Kind::Unsupported, Some(field.name)));
            assert_eq!(check(json!({field.name: null})), Ok(vec![]), "{}: null", field.name);
        }
        assert_eq!(check(json!({"store": true})).map_err(|error| error.param), Err(Some("store".into())));
    }
}
