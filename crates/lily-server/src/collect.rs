//! An answer as a whole, for the families that show it as a list of parts.

use crate::answer::{AnswerEvent, Answers, Ending};
use crate::errors::{ApiError, Kind};
use crate::logprobs::{PromptToken, TokenLogprob};

/// A part of an answer, in the order in which it came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Reasoning(String),
    Text(String),
    Call {
        id: String,
        name: String,
        /// The text of a JSON object, or the start of one if it was broken off.
        arguments: String,
    },
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Of the prompt, if they were asked for.
    pub(crate) prompt: Vec<PromptToken>,
    pub(crate) parts: Vec<Part>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) ending: Ending,
}

/// An answer so far.
#[derive(Default)]
struct Open {
    prompt: Vec<PromptToken>,
    parts: Vec<Part>,
    logprobs: Vec<TokenLogprob>,
    ending: Option<Ending>,
}

/// Waits for every answer. The client's going away drops this future, and the answers with it.
pub(crate) async fn collect(mut answers: Answers) -> Result<Vec<Whole>, ApiError> {
    let mut open: Vec<Open> = (0..answers.len()).map(|_| Open::default()).collect();
    while let Some((index, event)) = answers.next().await {
        let Open { prompt, parts, logprobs, ending } = &mut open[index];
        match event {
            AnswerEvent::Progress(_) | AnswerEvent::CallEnd => {}
            AnswerEvent::Prompt(tokens) => *prompt = tokens,
            AnswerEvent::Reasoning(text) => match parts.last_mut() {
                Some(Part::Reasoning(before)) => before.push_str(&text),
                _ => parts.push(Part::Reasoning(text)),
            },
            AnswerEvent::Content(text, more) => {
                logprobs.extend(more);
                match parts.last_mut() {
                    _ if text.is_empty() => {}
                    Some(Part::Text(before)) => before.push_str(&text),
                    _ => parts.push(Part::Text(text)),
                }
            }
            AnswerEvent::CallStart(call) => {
                parts.push(Part::Call { id: call.id, name: call.name, arguments: call.arguments });
            }
            AnswerEvent::Arguments(json) => {
                if let Some(Part::Call { arguments, .. }) = parts.last_mut() {
                    arguments.push_str(&json);
                }
            }
            AnswerEvent::Finished(end) => *ending = Some(end),
            AnswerEvent::Failed(error) => return Err(error),
        }
    }
    let ended = |Open { prompt, parts, logprobs, ending }: Open| {
        let unended = || Kind::EngineFailed.error("the engine stopped before the answer was complete");
        Ok(Whole { prompt, parts, logprobs, ending: ending.ok_or_else(unended)? })
    };
    open.into_iter().map(ended).collect()
}

/// The same where there is one answer.
pub(crate) async fn collect_one(answers: Answers) -> Result<Whole, ApiError> {
    collect(answers).await?.pop().ok_or_else(|| Kind::Internal.error("no answer was made"))
}
