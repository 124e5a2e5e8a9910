//! The JSON of chat completions. Objects that clients validate strictly are types here, so that no field is forgotten.

use lily_protocol::FinishReason;
use serde::Serialize;

use crate::answer::{Ending, Figures, Progress};
use crate::calls::CallStart;
use crate::ids::unique_id;
use crate::logprobs::TokenLogprob;
use crate::service::{Service, unix_seconds};
use crate::times::Timings;

/// What every object of one answer repeats.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    /// Unix seconds.
    pub(crate) created: u64,
    /// What was served, whatever name was asked for.
    pub(crate) model: String,
    pub(crate) system_fingerprint: &'static str,
}

/// `object` of a whole answer.
pub(crate) const COMPLETION: &str = "chat.completion";
/// `object` of a streamed piece.
pub(crate) const CHUNK: &str = "chat.completion.chunk";
/// Answers with the same fingerprint and seed are the same.
const FINGERPRINT: &str = concat!("lily-", env!("CARGO_PKG_VERSION"));

/// A whole answer.
#[derive(Serialize)]
pub(crate) struct Completion<'a> {
    #[serde(flatten)]
    pub(crate) head: &'a Head,
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Usage,
    /// Of the first answer.
    pub(crate) timings: Timings,
}

#[derive(Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage,
    pub(crate) logprobs: Option<ContentLogprobs>,
    pub(crate) finish_reason: &'static str,
}

#[derive(Default, Serialize)]
pub(crate) struct AssistantMessage {
    pub(crate) role: Assistant,
    /// `None`, which is null, only beside calls.
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
    pub(crate) refusal: Option<&'static str>,
}

/// Always `"assistant"`.
#[derive(Default, Serialize)]
pub(crate) enum Assistant {
    #[default]
    #[serde(rename = "assistant")]
    Assistant,
}

/// A call.
#[derive(Serialize)]
pub(crate) struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionCall,
}

#[derive(Serialize)]
struct FunctionCall {
    name: String,
    /// The text of a JSON object.
    arguments: String,
}

impl ToolCall {
    /// More arguments.
    pub(crate) fn push(&mut self, arguments: &str) {
        self.function.arguments.push_str(arguments);
    }
}

impl From<CallStart> for ToolCall {
    fn from(call: CallStart) -> Self {
        let function = FunctionCall { name: call.name, arguments: call.arguments };
        ToolCall { id: call.id, kind: "function", function }
    }
}

/// A call in a stream, or more of it: `index` tells which one.
#[derive(Serialize)]
pub(crate) struct ToolCallDelta {
    index: usize,
    #[serde(flatten)]
    part: CallPart,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CallPart {
    Start(ToolCall),
    More { function: MoreArguments },
}

#[derive(Serialize)]
struct MoreArguments {
    arguments: String,
}

impl ToolCallDelta {
    pub(crate) fn more(index: usize, arguments: String) -> Self {
        ToolCallDelta { index, part: CallPart::More { function: MoreArguments { arguments } } }
    }
}

impl From<CallStart> for ToolCallDelta {
    fn from(call: CallStart) -> Self {
        ToolCallDelta { index: call.index, part: CallPart::Start(call.into()) }
    }
}

#[derive(Default, Serialize)]
pub(crate) struct ContentLogprobs {
    pub(crate) content: Vec<TokenLogprob>,
    pub(crate) refusal: Option<Vec<TokenLogprob>>,
}

/// A streamed piece.
#[derive(Serialize)]
pub(crate) struct Chunk<'a> {
    #[serde(flatten)]
    pub(crate) head: &'a Head,
    pub(crate) choices: &'a [ChunkChoice],
    /// Only in the last chunk, and only on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    /// In the chunk that ends an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    /// Before the answer, on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_progress: Option<PromptProgress>,
}

/// `prompt_progress`, under the names of llama.cpp's server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PromptProgress {
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

impl From<Progress> for PromptProgress {
    fn from(progress: Progress) -> Self {
        PromptProgress {
            total: progress.total,
            cache: progress.cached,
            processed: progress.done,
            time_ms: progress.milliseconds as u64,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChunkDelta,
    pub(crate) logprobs: Option<ContentLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
pub(crate) struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<Assistant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<[ToolCallDelta; 1]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: usize,
}

impl Head {
    /// Of a new answer.
    pub(crate) fn new(prefix: &str, object: &'static str, service: &Service) -> Self {
        Head {
            id: unique_id(prefix),
            object,
            created: unix_seconds(),
            model: service.model_name.clone(),
            system_fingerprint: FINGERPRINT,
        }
    }
}

impl Usage {
    /// Of several prompts together.
    pub(crate) fn set_prompt_tokens(&mut self, count: usize) {
        self.prompt_tokens = count;
        self.total_tokens = count + self.completion_tokens;
    }

    /// Answers to one request share their prompt: it counts once.
    pub(crate) fn add(&mut self, figures: Figures) {
        self.prompt_tokens = figures.prompt_tokens;
        self.prompt_tokens_details.cached_tokens =
            self.prompt_tokens_details.cached_tokens.max(figures.cached_tokens);
        self.completion_tokens += figures.completion_tokens;
        self.completion_tokens_details.reasoning_tokens += figures.reasoning_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

pub(crate) fn finish_reason(ending: &Ending) -> &'static str {
    match ending.reason {
        FinishReason::Stop if ending.calls > 0 => "tool_calls",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}
