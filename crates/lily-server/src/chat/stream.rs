//! Chat completions as a stream of chunks.

use crate::answer::AnswerEvent;
use crate::chat::wire::{
    Assistant, Chunk, ChunkChoice, ChunkDelta, ContentLogprobs, Head, Usage, finish_reason,
};
use crate::errors::Kind;
use crate::logprobs::TokenLogprob;
use crate::sse::{self, Wording};

/// OpenAI's wording of a stream: a first chunk with the role, chunks with text and calls, one with the reason of the end,
/// one with the usage if asked for, `[DONE]`.
///
/// Clients add up what they are sent, and the sum has to be the unstreamed answer: content is null beside calls, and ""
/// where there is neither. So where calls may be made, `content` is not begun before it is known to be needed.
pub(crate) struct ChunkWording {
    pub(crate) head: Head,
    /// For each answer: calls may be made, and it has neither text nor a call so far.
    pub(crate) silent: Vec<bool>,
    pub(crate) include_usage: bool,
    /// Log probabilities were asked for.
    pub(crate) logprobs: bool,
    pub(crate) usage: Usage,
}

impl ChunkWording {
    fn chunk(
        &self,
        index: usize,
        delta: ChunkDelta,
        logprobs: Vec<TokenLogprob>,
        finish_reason: Option<&'static str>,
        out: &mut Vec<u8>,
    ) {
        let logprobs = (self.logprobs && !logprobs.is_empty())
            .then_some(ContentLogprobs { content: logprobs, refusal: None });
        let choices = [ChunkChoice { index, delta, logprobs, finish_reason }];
        sse::data(&Chunk { head: &self.head, choices: &choices, usage: None }, out);
    }
}

impl Wording for ChunkWording {
    fn opening(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.silent.len() {
            let content = (!self.silent[index]).then(String::new);
            let delta = ChunkDelta { role: Some(Assistant::Assistant), content, ..ChunkDelta::default() };
            self.chunk(index, delta, Vec::new(), None, out);
        }
    }

    fn event(&mut self, choice: usize, event: AnswerEvent, out: &mut Vec<u8>) -> bool {
        match event {
            AnswerEvent::Reasoning(text) => {
                let delta = ChunkDelta { reasoning_content: Some(text), ..ChunkDelta::default() };
                self.chunk(choice, delta, Vec::new(), None, out);
            }
            AnswerEvent::Content(text, logprobs) => {
                self.silent[choice] &= text.is_empty();
                let content = Some(text).filter(|text| !text.is_empty());
                let delta = ChunkDelta { content, ..ChunkDelta::default() };
                self.chunk(choice, delta, logprobs, None, out);
            }
            AnswerEvent::Call(call) => {
                self.silent[choice] = false;
                let delta = ChunkDelta { tool_calls: Some([call.into()]), ..ChunkDelta::default() };
                self.chunk(choice, delta, Vec::new(), None, out);
            }
            AnswerEvent::Finished(ending) => {
                self.usage.add(ending.figures);
                let content = self.silent[choice].then(String::new);
                let delta = ChunkDelta { content, ..ChunkDelta::default() };
                self.chunk(choice, delta, Vec::new(), Some(finish_reason(ending)), out);
            }
            AnswerEvent::Failed(message) => {
                sse::data(&Kind::EngineFailed.error(message).body(), out);
                return false;
            }
        }
        true
    }

    fn closing(&mut self, out: &mut Vec<u8>) {
        if self.include_usage {
            sse::data(&Chunk { head: &self.head, choices: &[], usage: Some(self.usage) }, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
