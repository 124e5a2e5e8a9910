//! One chat completion from request to response.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use crate::answer::{AnswerEvent, Answers};
use crate::chat::request::{self, ChatRequest};
use crate::chat::stream::ChunkWording;
use crate::chat::wire::{
    AssistantMessage, CHUNK, COMPLETION, Choice, Completion, ContentLogprobs, Head, Usage, finish_reason,
};
use crate::errors::ApiError;
use crate::http::body;
use crate::shared::Shared;
use crate::sse;
use crate::times::Timings;

/// `POST /v1/chat/completions`.
pub(crate) async fn complete(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (service, ChatRequest { job, stream, options, unknown }) =
        body::prepare(request, &shared, request::parse).await?;
    shared.unknown.report(&unknown);
    let tools = job.tools.is_some();
    let answers = job.start(&service)?;
    let head = Head::new("chatcmpl-", if stream { CHUNK } else { COMPLETION }, &service);
    if stream {
        let wording = ChunkWording::new(head, answers.len(), tools, options);
        return Ok(sse::response(answers, wording, shared.config.keep_alive));
    }
    whole(answers, head, options.logprobs).await
}

/// Waits for every answer. The client's going away drops this future, and the answers with it.
async fn whole(mut answers: Answers, head: Head, logprobs: bool) -> Result<Response, ApiError> {
    let mut choices: Vec<Choice> = (0..answers.len()).map(|index| empty_choice(index, logprobs)).collect();
    let (mut usage, mut timings) = (Usage::default(), Timings::default());
    while let Some((index, event)) = answers.next().await {
        let choice = &mut choices[index];
        match event {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) | AnswerEvent::CallEnd => {}
            AnswerEvent::Reasoning(text) => choice.message.reasoning_content.push_str(&text),
            AnswerEvent::Content(text, more) => {
                choice.message.content.get_or_insert_default().push_str(&text);
                if let Some(logprobs) = &mut choice.logprobs {
                    logprobs.content.extend(more);
                }
            }
            AnswerEvent::CallStart(call) => choice.message.tool_calls.push(call.into()),
            AnswerEvent::Arguments(json) => {
                if let Some(call) = choice.message.tool_calls.last_mut() {
                    call.push(&json);
                }
            }
            AnswerEvent::Finished(ending) => {
                usage.add(ending.figures);
                if index == 0 {
                    timings = Timings::of(&ending.figures);
                }
                choice.finish_reason = finish_reason(&ending);
                // Text that is empty is null beside calls, and "" without.
                let content = choice.message.content.take().filter(|text| !text.is_empty());
                let alone = choice.message.tool_calls.is_empty();
                choice.message.content = content.or(alone.then(String::new));
            }
            AnswerEvent::Failed(error) => return Err(error),
        }
    }
    Ok(Json(Completion { head: &head, choices, usage, timings }).into_response())
}

fn empty_choice(index: usize, logprobs: bool) -> Choice {
    Choice {
        index,
        message: AssistantMessage::default(),
        logprobs: logprobs.then(ContentLogprobs::default),
        finish_reason: "stop",
    }
}
