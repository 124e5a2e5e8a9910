//! Chat completions as a stream of chunks.

use crate::answer::{AnswerEvent, Ending, Figures};
use crate::chat::wire::{
    Assistant, Chunk, ChunkChoice, ChunkDelta, ContentLogprobs, Head, ToolCallDelta, Usage, finish_reason,
};
use crate::logprobs::TokenLogprob;
use crate::sse::{self, Wording};
use crate::times::Timings;

/// OpenAI's wording of a stream: a first chunk with the role, chunks with text and calls, one with the reason of the end,
/// one with the usage if asked for, `[DONE]`.
///
/// Clients add up what they are sent, and the sum has to be the unstreamed answer: content is null beside calls, and ""
/// where there is neither. So where calls may be made, `content` is not begun before it is known to be needed.
pub(crate) struct ChunkWording {
    head: Head,
    /// For each answer: calls may be made, and it has neither text nor a call so far.
    silent: Vec<bool>,
    /// For each answer: the place of the call that began last.
    call: Vec<usize>,
    options: StreamOptions,
    usage: Usage,
    timings: Timings,
    /// Of the answer that speaks, where each chunk has them.
    now: Option<Timings>,
}

/// What a stream was asked to hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    pub(crate) usage: bool,
    pub(crate) progress: bool,
    pub(crate) logprobs: bool,
    pub(crate) timings: bool,
}

impl ChunkWording {
    pub(crate) fn new(head: Head, answers: usize, tools: bool, options: StreamOptions) -> Self {
        ChunkWording {
            head,
            silent: vec![tools; answers],
            call: vec![0; answers],
            options,
            usage: Usage::default(),
            timings: Timings::default(),
            now: None,
        }
    }

    fn empty(&self) -> Chunk<'_> {
        Chunk { head: &self.head, choices: &[], usage: None, timings: self.now, prompt_progress: None }
    }

    fn delta(&self, index: usize, delta: ChunkDelta, out: &mut Vec<u8>) {
        let choices = [ChunkChoice { index, delta, logprobs: None, finish_reason: None }];
        sse::data(&Chunk { choices: &choices, ..self.empty() }, out);
    }

    fn content(&mut self, index: usize, text: String, logprobs: Vec<TokenLogprob>, out: &mut Vec<u8>) {
        self.silent[index] &= text.is_empty();
        let content = Some(text).filter(|text| !text.is_empty());
        let delta = ChunkDelta { content, ..ChunkDelta::default() };
        let logprobs = (self.options.logprobs && !logprobs.is_empty())
            .then_some(ContentLogprobs { content: logprobs, refusal: None });
        let choices = [ChunkChoice { index, delta, logprobs, finish_reason: None }];
        sse::data(&Chunk { choices: &choices, ..self.empty() }, out);
    }

    fn call(&self, index: usize, call: ToolCallDelta, out: &mut Vec<u8>) {
        self.delta(index, ChunkDelta { tool_calls: Some([call]), ..ChunkDelta::default() }, out);
    }

    fn end(&mut self, index: usize, ending: &Ending, out: &mut Vec<u8>) {
        self.usage.add(ending.figures);
        self.timings = Timings::of(&ending.figures);
        let content = self.silent[index].then(String::new);
        let delta = ChunkDelta { content, ..ChunkDelta::default() };
        let finish_reason = Some(finish_reason(ending));
        let choices = [ChunkChoice { index, delta, logprobs: None, finish_reason }];
        sse::data(&Chunk { choices: &choices, timings: Some(self.timings), ..self.empty() }, out);
    }
}

impl Wording for ChunkWording {
    fn opening(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.silent.len() {
            let content = (!self.silent[index]).then(String::new);
            let delta = ChunkDelta { role: Some(Assistant::Assistant), content, ..ChunkDelta::default() };
            self.delta(index, delta, out);
        }
    }

    fn wants_figures(&self) -> bool {
        self.options.timings
    }

    fn figures(&mut self, figures: &Figures) {
        self.now = Some(Timings::of(figures));
    }

    fn event(&mut self, choice: usize, event: AnswerEvent, out: &mut Vec<u8>) -> bool {
        match event {
            AnswerEvent::Progress(progress) if self.options.progress => {
                let choices = [ChunkChoice {
                    index: choice,
                    delta: ChunkDelta::default(),
                    logprobs: None,
                    finish_reason: None,
                }];
                sse::data(
                    &Chunk { choices: &choices, prompt_progress: Some(progress.into()), ..self.empty() },
                    out,
                );
            }
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) | AnswerEvent::CallEnd => {}
            AnswerEvent::Reasoning(text) => {
                let delta = ChunkDelta { reasoning_content: Some(text), ..ChunkDelta::default() };
                self.delta(choice, delta, out);
            }
            AnswerEvent::Content(text, logprobs) => self.content(choice, text, logprobs, out),
            AnswerEvent::CallStart(call) => {
                self.silent[choice] = false;
                self.call[choice] = call.index;
                self.call(choice, call.into(), out);
            }
            AnswerEvent::Arguments(json) => {
                self.call(choice, ToolCallDelta::more(self.call[choice], json), out);
            }
            AnswerEvent::Finished(ending) => self.end(choice, &ending, out),
            AnswerEvent::Failed(error) => {
                sse::data(&error.body(), out);
                return false;
            }
        }
        true
    }

    fn closing(&mut self, out: &mut Vec<u8>) {
        if self.options.usage {
            let (usage, timings) = (Some(self.usage), Some(self.timings));
            sse::data(&Chunk { usage, timings, ..self.empty() }, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
