//! `GET /debug/requests`: what reached the engine. Of this binary only: it shows prompts.

use axum::routing::get;
use axum::{Json, Router};
use lily_protocol::GenerationRequest;
use serde::Serialize;

use crate::engine::ScriptedEngine;

/// How far a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waiting or running.
    Running,
    /// Said everything.
    Finished,
    /// Failed as the script says.
    Failed,
    /// Its reader went away first: a client that left, or a stop string that was found.
    Cancelled,
}

/// One request that reached the engine.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Counted from 0, in order of arrival.
    pub index: usize,
    /// The prompt as rendered, before the tokenizer normalizes it.
    pub prompt: String,
    /// Its length.
    pub prompt_tokens: usize,
    /// The line that answers, counted from 1 without empty lines.
    pub line: Option<usize>,
    /// How far it came.
    pub state: State,
    /// `state` is cancelled.
    pub cancelled: bool,
    /// Tokens handed to the server.
    pub tokens_sent: usize,
    /// As the request had it.
    pub max_tokens: Option<usize>,
    /// As the request had it.
    pub logprobs: Option<usize>,
    /// As the request had it.
    pub ignore_end: bool,
    /// As the request had it, defaults filled in.
    pub sampling: RecordedSampling,
}

/// [`lily_protocol::Sampling`] in JSON.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // The fields are those of lily_protocol::Sampling.
pub struct RecordedSampling {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
}

impl Record {
    pub(crate) fn new(
        index: usize,
        prompt: String,
        line: Option<usize>,
        request: &GenerationRequest,
    ) -> Self {
        let sampling = &request.sampling;
        Record {
            index,
            prompt,
            prompt_tokens: request.prompt.len(),
            line,
            state: State::Running,
            cancelled: false,
            tokens_sent: 0,
            max_tokens: request.max_tokens,
            logprobs: request.logprobs,
            ignore_end: request.ignore_end,
            sampling: RecordedSampling {
                temperature: sampling.temperature,
                top_p: sampling.top_p,
                top_k: sampling.top_k,
                min_p: sampling.min_p,
                repetition_penalty: sampling.repetition_penalty,
                presence_penalty: sampling.presence_penalty,
                frequency_penalty: sampling.frequency_penalty,
                logit_bias: sampling.logit_bias.clone(),
                seed: sampling.seed,
            },
        }
    }
}

/// `GET /debug/requests`: an array of [`Record`]s, oldest first.
pub fn router(engine: ScriptedEngine) -> Router {
    let records = move || async move {
        let mut records = engine.records();
        for record in &mut records {
            record.cancelled = record.state == State::Cancelled;
        }
        Json(records)
    };
    Router::new().route("/debug/requests", get(records))
}
