//! One completion from request to response.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use crate::chat::wire::{Head, Usage};
use crate::collect::{Part, collect};
use crate::completions::request::{self, CompletionRequest};
use crate::completions::wire::{Choice, Completion, Logprobs, OBJECT, Options, TextWording, finish_reason};
use crate::errors::ApiError;
use crate::http::body;
use crate::job::Job;
use crate::shared::Shared;
use crate::sse;
use crate::times::Timings;

/// `POST /v1/completions`.
pub(crate) async fn complete(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (service, CompletionRequest { jobs, echo, stream, include_usage, logprobs, timings, unknown }) =
        body::prepare(request, &shared, request::parse).await?;
    shared.unknown.report(&unknown);
    let prompt_tokens = jobs.iter().map(|job| job.prompt.tokens.len()).sum();
    let answers = Job::start_all(jobs, &service)?;
    let head = Head::new("cmpl-", OBJECT, &service);
    if stream {
        let options = Options { include_usage, logprobs, timings };
        let wording = TextWording::new(head, echo, options, prompt_tokens);
        return Ok(sse::response(answers, wording, shared.config.keep_alive));
    }
    let (mut choices, mut usage, mut first) = (Vec::new(), Usage::default(), None);
    for (index, (whole, mut text)) in collect(answers).await?.into_iter().zip(echo).enumerate() {
        for part in &whole.parts {
            if let Part::Text(part) = part {
                text.push_str(part);
            }
        }
        usage.add(whole.ending.figures);
        first.get_or_insert(Timings::of(&whole.ending.figures));
        let logprobs = logprobs.then(|| {
            let mut lists = Logprobs::default();
            lists.prompt(&whole.prompt);
            lists.answer(&whole.logprobs);
            lists
        });
        choices.push(Choice { index, text, logprobs, finish_reason: Some(finish_reason(&whole.ending)) });
    }
    usage.set_prompt_tokens(prompt_tokens);
    Ok(Json(Completion { head: &head, choices, usage: Some(usage), timings: first }).into_response())
}
