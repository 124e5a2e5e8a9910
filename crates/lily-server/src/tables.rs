//! The fields of each API family.

use crate::fields::{Class, Family, Field};

const fn supported(name: &'static str, accepts: &'static str, doc: &'static str) -> Field {
    Field { name, class: Class::Supported, accepts, doc }
}

const fn accepted(name: &'static str, accepts: &'static str, doc: &'static str) -> Field {
    Field { name, class: Class::Accepted, accepts, doc }
}

const fn refused(name: &'static str, unless: &'static [&'static str], doc: &'static str) -> Field {
    Field { name, class: Class::Refused { unless }, accepts: "", doc }
}

/// Of chat completions alone.
#[rustfmt::skip]
const CHAT_OWN: &[Field] = &[
    supported("messages", "array, at least 1", "The conversation. Roles system, developer, user, assistant and tool, in any order; content as a string, as text parts or null."),
    supported("stream", "boolean", "Server-sent events, ended by `data: [DONE]`. Default false."),
    supported("stream_options", "object", "`include_usage: true` adds a last chunk with `usage` and no choices."),
    supported("max_completion_tokens", "integer, 1 to 2147483647, or -1", "Most tokens of the answer, reasoning included. Default, upper bound, and -1: the rest of the context."),
    supported("stop", "string or array of at most 16, each of 1 to 1024 bytes", "The answer ends before the first of these. Reasoning is not searched."),
    supported("n", "integer, 1 to 16", "Independent answers, the i-th with a seed derived from `seed` and i."),
    supported("logprobs", "boolean", "Log probabilities of the tokens of `content` (not of the reasoning)."),
    supported("top_logprobs", "integer, 0 to 20", "Alternatives per token; needs `logprobs: true`."),
    supported("tools", "array", "Functions that the model may call, each `{\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}`. `strict` is taken without effect. Tools of other types are left out, and logged once."),
    supported("tool_choice", "string", "`\"auto\"` (the default) or `\"none\"`, with which tools are not shown to the model and nothing is taken for a call. `\"required\"` and named tools are a 400: they are not offered yet."),
    supported("parallel_tool_calls", "boolean", "Whether an answer may have several calls; with false the first one ends it. Default true."),
    supported("return_progress", "boolean", "Streams only: chunks with `prompt_progress` while the prompt is computed."),
    supported("timings_per_token", "boolean", "Streams only: `timings` in every chunk."),
    supported("continue_final_message", "boolean", "With true, a last message of the assistant, behind others, is continued instead of answered; the answer is what comes after it. Such a message without reasoning is continued without reasoning."),
    refused("add_generation_prompt", &["true"], "The prompt always opens the assistant's turn. With `continue_final_message`, which needs it false elsewhere, false is taken too."),
];

/// Of every family.
#[rustfmt::skip]
const GENERAL: &[Field] = &[
    supported("model", "string", "Optional. Any name is served, unless the server runs with `--strict-model`."),
    supported("extra_body", "object", "Its fields count as fields of the request, where the request has not got them."),
];

/// The names that other families and servers have for the length and the end of an answer.
#[rustfmt::skip]
const OTHER_NAMES: &[Field] = &[
    supported("max_completion_tokens", "integer, 1 to 2147483647, or -1", "Another name of this family's limit, which wins where both are given."),
    supported("max_output_tokens", "integer, 1 to 2147483647, or -1", "Another name of this family's limit, which wins where both are given."),
    supported("max_tokens", "integer, 1 to 2147483647, or -1", "Another name of this family's limit, which wins where both are given."),
    supported("n_predict", "integer, 1 to 2147483647, or -1", "Another name of this family's limit, which wins where both are given."),
    supported("stop", "string or array of at most 16, each of 1 to 1024 bytes", "The answer ends before the first of these. Reasoning is not searched."),
    supported("stop_sequences", "string or array of at most 16, each of 1 to 1024 bytes", "Another name of `stop`, where that is not given."),
];

/// How tokens are chosen, in every family.
#[rustfmt::skip]
const SAMPLING: &[Field] = &[
    supported("temperature", "number, 0 to 2", "0 always takes the most probable token. Default: the checkpoint's."),
    supported("top_p", "number, 0 to 1", "Keep the smallest set of most probable tokens that reaches this probability. Default: the checkpoint's."),
    supported("top_k", "integer, 0 to 2147483647", "Keep this many most probable tokens; 0 keeps all. Default: the checkpoint's."),
    supported("min_p", "number, 0 to 1", "Drop tokens less probable than this share of the most probable one. Default: the checkpoint's."),
    supported("repetition_penalty", "number, 0.01 to 10", "Divides the logits of tokens that occurred in prompt or answer; 1 is off. Default: the checkpoint's."),
    supported("repeat_penalty", "number, 0.01 to 10", "Another name of `repetition_penalty`, which wins where both are given."),
    supported("presence_penalty", "number, -2 to 2", "Subtracted from the logits of tokens that occurred in the answer. Default: the checkpoint's."),
    supported("frequency_penalty", "number, -2 to 2", "Subtracted once for each occurrence in the answer. Default: the checkpoint's."),
    supported("logit_bias", "object: token id to number, -100 to 100; at most 4096", "Added to the logits of these tokens."),
    supported("seed", "integer, 64 bits", "The same seed and request give the same answer. -1 is a random one, whatever `--seed` says. Default: random."),
    supported("ignore_eos", "boolean", "Never choose an end token."),
];

/// Whether the model reasons, in every family that has a conversation.
#[rustfmt::skip]
const THINKING: &[Field] = &[
    supported("reasoning_effort", "string", "`\"none\"` turns reasoning off; any other value leaves it to the template."),
    supported("reasoning", "object", "`{\"effort\": ...}` as `reasoning_effort`; `{\"enabled\": ...}` as `enable_thinking`. `{\"max_tokens\": ...}` as `thinking_budget`. `exclude: true` is a 400."),
    supported("thinking", "boolean or object", "`true`, `false`, or `{\"type\": \"enabled\" | \"adaptive\" | \"disabled\"}`; `budget_tokens` as `thinking_budget`."),
    supported("enable_thinking", "boolean", "Whether the model reasons before it answers. Default: the template's."),
    supported("preserve_thinking", "boolean", "Whether the reasoning of earlier turns stays in the prompt. Default: the template's."),
    supported("chat_template_kwargs", "object", "`enable_thinking`, `preserve_thinking` and `reasoning_effort`, as vLLM takes them, and `thinking_budget`. Names refused below are refused here too; others as unknown fields."),
    supported("thinking_budget", "integer from 0, or -1", "Most tokens of reasoning: then it is closed, and the answer goes on. 0 is no reasoning, -1 no bound."),
    supported("thinking_token_budget", "integer from 0, or -1", "Another name of `thinking_budget`, which wins where both are given."),
    supported("reasoning_budget", "integer from 0, or -1", "Another name of `thinking_budget`, which wins where both are given."),
];

/// Wishes about the answer that are not offered: chat completions name them, and clients send them to other families too.
#[rustfmt::skip]
const WISHES: &[Field] = &[
    refused("functions", &["[]"], "The predecessor of `tools`."),
    refused("function_call", &["\"none\"", "\"auto\""], "The predecessor of `tool_choice`."),
    refused("response_format", &["{\"type\":\"text\"}"], "Constrained answers are not offered yet."),
    refused("modalities", &["[\"text\"]"], "The model answers in text."),
    refused("audio", &[], ""),
    refused("prediction", &[], ""),
    refused("web_search_options", &[], ""),
    refused("documents", &["[]"], ""),
    refused("chat_template", &[], "The checkpoint's own template is the only one."),
    refused("suffix", &["\"\""], ""),
    refused("echo", &["false"], ""),
];

/// What is a field of other families: nothing here would come of it.
#[rustfmt::skip]
const ELSEWHERE: &[Field] = &[
    refused("messages", &["[]"], "A conversation is `messages` of chat completions and of `/v1/messages`, and `input` of responses."),
    refused("prompt", &["\"\"", "[]"], "Plain text goes on in `/v1/completions`."),
    refused("input", &["\"\"", "[]"], "It is a field of `/v1/responses`."),
    refused("system", &["\"\"", "[]"], "It is a field of `/v1/messages`; elsewhere a message with the role system says it."),
    refused("instructions", &["\"\""], "It is a field of `/v1/responses`; elsewhere a message with the role system says it."),
    refused("tools", &["[]"], "Calls belong to a conversation."),
    refused("n", &["1"], "This family has one answer to each request."),
    refused("logprobs", &["false"], "They come with chat completions and completions."),
    refused("top_logprobs", &["0"], ""),
    refused("continue_final_message", &["false"], ""),
    refused("add_generation_prompt", &["true"], "The prompt always opens the assistant's turn."),
    refused("return_progress", &["false"], ""),
    refused("timings_per_token", &["false"], ""),
    refused("previous_response_id", &[], "Nothing is stored: send the whole conversation."),
    refused("conversation", &[], "Nothing is stored: send the whole conversation."),
    refused("mcp_servers", &["[]"], ""),
    refused("container", &[], ""),
    refused("output_format", &[], "Constrained answers are not offered yet."),
];

/// Without effect, in every family.
#[rustfmt::skip]
const ACCEPTED: &[Field] = &[
    accepted("store", "false", "Nothing is stored."),
    accepted("metadata", "any", ""),
    accepted("user", "any", ""),
    accepted("safety_identifier", "any", ""),
    accepted("service_tier", "any", ""),
    accepted("prompt_cache_key", "any", "Prefixes are found without it."),
    accepted("prompt_cache_retention", "any", ""),
    accepted("cache_prompt", "any", "Prefixes are reused where that cannot change the answer."),
    accepted("client_metadata", "any", ""),
    accepted("context_management", "any", "The conversation is taken as it is sent. On `/v1/messages`, `clear_thinking_...` with `keep: \"all\"` counts as `preserve_thinking: true`."),
    accepted("verbosity", "any", "A hint for OpenAI's own models."),
];

/// Not offered by any family.
#[rustfmt::skip]
const REFUSED: &[Field] = &[
    refused("grammar", &["\"\""], ""),
    refused("json_schema", &["{}"], ""),
    refused("structured_outputs", &["{}"], ""),
    refused("guided_json", &[], ""),
    refused("guided_regex", &[], ""),
    refused("guided_choice", &[], ""),
    refused("guided_grammar", &[], ""),
    refused("background", &["false"], ""),
    refused("add_special_tokens", &["false"], "The template places every special token."),
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
    refused("include_reasoning", &["true"], "Reasoning comes in a field of its own."),
    refused("typical_p", &["1"], ""),
    refused("top_a", &["0"], ""),
    refused("tfs_z", &["1"], ""),
    refused("top_n_sigma", &["-1", "0"], ""),
    refused("mirostat", &["0"], ""),
    refused("dry_multiplier", &["0"], ""),
    refused("xtc_probability", &["0"], ""),
    refused("dynatemp_range", &["0"], ""),
    refused("regex", &["\"\""], ""),
    refused("ebnf", &["\"\""], ""),
    refused("truncate_prompt_tokens", &[], "A prompt that is too long is a 400."),
    refused("logits_processors", &["[]"], ""),
    refused("return_token_ids", &["false"], ""),
    refused("return_tokens_as_token_ids", &["false"], ""),
    refused("n_probs", &["0"], "`logprobs` has them."),
    refused("guidance_scale", &["1"], ""),
    refused("negative_prompt", &["\"\""], ""),
    refused("lora", &["[]"], ""),
    refused("adapters", &["[]"], ""),
    refused("images", &["[]"], "This model reads text only."),
    refused("image_data", &["[]"], "This model reads text only."),
    refused("reasoning_format", &["\"auto\"", "\"deepseek\""], "Reasoning comes in a field of its own."),
    refused("separate_reasoning", &["true"], "Reasoning comes in a field of its own."),
];

/// Of plain completions alone.
#[rustfmt::skip]
const COMPLETIONS_OWN: &[Field] = &[
    supported("prompt", "string, array of strings, array of token ids, or array of those", "What is continued. Control tokens written in a string are text; as ids they are themselves."),
    supported("stream", "boolean", "Server-sent events, ended by `data: [DONE]`. Default false."),
    supported("stream_options", "object", "`include_usage: true` adds a last chunk with `usage` and no choices."),
    supported("max_tokens", "integer, 1 to 2147483647, or -1", "Most tokens of the answer; with `echo` from 0. Default 16; -1 is the rest of the context."),
    supported("stop", "string or array of at most 16, each of 1 to 1024 bytes", "The answer ends before the first of these."),
    supported("n", "integer, 1 to 16", "Answers to each prompt."),
    supported("echo", "boolean", "The answer begins with the prompt. With `logprobs`, those of the prompt come too; nothing of it is then reused, and `max_tokens` may be 0."),
    supported("logprobs", "integer, 0 to 20", "Log probabilities of the answer's tokens, and this many alternatives. With `echo`, of the prompt's tokens as well: the first has null."),
    supported("timings_per_token", "boolean", "Streams only: `timings` in every piece."),
    refused("suffix", &["\"\""], "The model only continues."),
    refused("response_format", &["{\"type\":\"text\"}"], ""),
];

/// Of Anthropic's messages alone.
#[rustfmt::skip]
const MESSAGES_OWN: &[Field] = &[
    supported("messages", "array, at least 1", "The conversation. Roles user, assistant and system, in any order; content as a string or as blocks (text, thinking, tool_use, tool_result, documents that are text, search results, references to tools, tools that are added or removed on the way). What hosted tools left behind is left out. A last message of the assistant is continued."),
    supported("system", "string or array of text blocks", "Stands before the conversation. A first block that begins with `x-anthropic-billing-header:` is left out: it differs with every request."),
    supported("max_tokens", "integer, 1 to 2147483647, or -1", "Most tokens of the answer, reasoning included. Optional here: the rest of the context, as with -1."),
    supported("stop_sequences", "array of at most 16, each of 1 to 1024 bytes", "The answer ends before the first of these."),
    supported("stream", "boolean", "Server-sent events. Default false."),
    supported("tools", "array", "Each `{\"name\", \"description\", \"input_schema\"}`. One with `defer_loading: true` is shown to the model where a `tool_reference` or a `tool_addition` names it, and not in front. Tools of Anthropic's own types are left out, and logged once."),
    supported("tool_choice", "object", "`{\"type\": \"auto\"}` (the default) or `none`; `disable_parallel_tool_use`. `any` and `tool` are a 400: they are not offered yet."),
    supported("thinking", "object", "`{\"type\": \"enabled\" | \"adaptive\" | \"disabled\"}`. Without it, or another name below, the model does not reason. `budget_tokens` as `thinking_budget` of chat completions."),
    supported("output_config", "object", "`effort` has no effect: how much effort is not something this model can be told. `format` is a 400."),
    supported("parallel_tool_calls", "boolean", "False is `disable_parallel_tool_use`."),
    refused("continue_final_message", &["true"], "A last message of the assistant is always continued."),
    accepted("cache_control", "any", "Prefixes are found without it."),
    accepted("betas", "any", ""),
    accepted("inference_geo", "any", "The answer is made here."),
    accepted("speed", "any", ""),
];

/// Of responses alone.
#[rustfmt::skip]
const RESPONSES_OWN: &[Field] = &[
    supported("input", "string or array of items", "The conversation, whole: messages, `function_call`, `function_call_output` and `reasoning` items."),
    supported("instructions", "string", "A system message before it."),
    supported("stream", "boolean", "Server-sent events, each with `type` and `sequence_number`. Default false."),
    supported("max_output_tokens", "integer, 1 to 2147483647, or -1", "Most tokens of the answer, reasoning included. Default, upper bound, and -1: the rest of the context."),
    supported("tools", "array", "Each `{\"type\": \"function\", \"name\", \"description\", \"parameters\"}`. Tools of other types (hosted ones, `custom`, `namespace`) are left out, and logged once."),
    supported("tool_choice", "string", "`\"auto\"` (the default) or `\"none\"`. `\"required\"` and named tools are a 400: they are not offered yet."),
    supported("parallel_tool_calls", "boolean", "Whether an answer may have several calls; with false the first one ends it. Default true."),
    supported("reasoning", "object", "`{\"effort\": \"none\"}` turns reasoning off; any other effort leaves it to the template. `summary` has no effect: reasoning comes whole."),
    supported("text", "object", "`format` has to be `{\"type\": \"text\"}`; `verbosity` has no effect."),
    supported("include", "array", "`reasoning.encrypted_content` has no effect: reasoning is not encrypted. Others are a 400."),
    refused("previous_response_id", &[], "Nothing is stored: send the whole conversation in `input`."),
    refused("conversation", &[], "Nothing is stored: send the whole conversation in `input`."),
    refused("prompt", &[], "Prompt templates are not offered."),
    accepted("truncation", "any", "A conversation that is too long is a 400."),
    accepted("max_tool_calls", "any", "There are no hosted tools."),
    accepted("stream_options", "any", ""),
];

/// `POST /v1/chat/completions`.
pub(crate) static CHAT: Family = Family {
    route: "POST /v1/chat/completions",
    groups: &[CHAT_OWN, GENERAL, OTHER_NAMES, SAMPLING, THINKING, WISHES, ELSEWHERE, ACCEPTED, REFUSED],
};

/// `POST /v1/completions`.
pub(crate) static COMPLETIONS: Family = Family {
    route: "POST /v1/completions",
    groups: &[COMPLETIONS_OWN, GENERAL, OTHER_NAMES, SAMPLING, WISHES, ELSEWHERE, ACCEPTED, REFUSED],
};

/// `POST /v1/messages`, and `POST /v1/messages/count_tokens`.
pub(crate) static MESSAGES: Family = Family {
    route: "POST /v1/messages",
    groups: &[MESSAGES_OWN, GENERAL, OTHER_NAMES, SAMPLING, THINKING, WISHES, ELSEWHERE, ACCEPTED, REFUSED],
};

/// `POST /v1/responses`.
pub(crate) static RESPONSES: Family = Family {
    route: "POST /v1/responses",
    groups: &[RESPONSES_OWN, GENERAL, OTHER_NAMES, SAMPLING, THINKING, WISHES, ELSEWHERE, ACCEPTED, REFUSED],
};

/// All of them, as documented.
pub(crate) static FAMILIES: [&Family; 4] = [&CHAT, &COMPLETIONS, &MESSAGES, &RESPONSES];
