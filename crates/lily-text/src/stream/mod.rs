//! From generated ids to what may be shown, one id at a time.

mod detokenizer;
mod reasoning;
mod stop;

use std::sync::Arc;

use crate::model::TextModel;
use crate::tokenizer::Tokenizer;
pub use detokenizer::Detokenizer;
use reasoning::{Piece, ReasoningSplitter};
pub use stop::StopMatcher;

/// How an answer is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// The prompt ended inside a think block ([`crate::Prompt::starts_in_reasoning`]).
    pub starts_in_reasoning: bool,
    /// End the answer before the first of these in the content. Reasoning is not searched.
    pub stop: Vec<String>,
    /// Show special tokens as text instead of leaving them out.
    pub keep_special: bool,
    /// The answer continues plain text: everything is content, think markers too.
    pub raw: bool,
}

/// A piece of the answer, to be appended to what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Of what the model thinks.
    Reasoning(String),
    /// Of what it says.
    Content(String),
}

/// Where a token belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// To the reasoning.
    Reasoning,
    /// To the content.
    Content,
    /// To neither: a think marker, the line breaks after one, a special token, padding.
    Marker,
}

/// What one token brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Text that may be shown now; often none, when it could still become a marker or a stop string.
    pub deltas: Vec<Delta>,
    /// Where the token belongs. Its text may be shown only with a later token.
    pub channel: Channel,
    /// The stop string that this token completed: end the generation. Nothing comes after it.
    pub stopped: Option<String>,
}

/// One answer in the making: ids to bytes, bytes to characters, characters to reasoning and content, content up to the
/// first stop string.
#[derive(Debug)]
pub struct OutputStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    splitter: ReasoningSplitter,
    stop: StopMatcher,
    keep_special: bool,
    /// The think markers, where they are tokens.
    markers: [Option<u32>; 2],
    stopped: bool,
}

impl OutputStream {
    /// At the start of an answer.
    pub fn new(model: &TextModel, options: OutputOptions) -> Self {
        let tokenizer = model.shared_tokenizer();
        OutputStream {
            detokenizer: Detokenizer::new(),
            splitter: match options.raw {
                true => ReasoningSplitter::raw(),
                false => ReasoningSplitter::new(options.starts_in_reasoning),
            },
            stop: StopMatcher::new(options.stop),
            keep_special: options.keep_special,
            markers: [tokenizer.token_id("<think>"), tokenizer.token_id("</think>")],
            stopped: false,
            tokenizer,
        }
    }

    /// One more token.
    pub fn push(&mut self, id: u32) -> Step {
        let hidden = self.tokenizer.is_special(id) && !self.keep_special;
        if self.stopped || hidden {
            return Step { deltas: Vec::new(), channel: Channel::Marker, stopped: None };
        }
        let swallows = self.splitter.swallows_blanks();
        let text = self.detokenizer.push(&self.tokenizer, id);
        let pieces = self.splitter.push(&text);
        let (deltas, stopped) = self.finish_pieces(pieces);
        let blank =
            swallows && self.splitter.swallows_blanks() && text.trim_start().is_empty() && !text.is_empty();
        let nothing = self.tokenizer.token_bytes(id).is_none();
        let channel = if blank || nothing || self.markers.contains(&Some(id)) && self.is_marker_here() {
            Channel::Marker
        } else if self.splitter.in_reasoning() {
            Channel::Reasoning
        } else {
            Channel::Content
        };
        Step { deltas, channel, stopped }
    }

    /// The end of the answer: what was held back, unless a stop string ended it.
    pub fn finish(&mut self) -> Vec<Delta> {
        if self.stopped {
            return Vec::new();
        }
        let text = self.detokenizer.finish();
        let mut pieces = self.splitter.push(&text);
        pieces.extend(self.splitter.finish());
        let (mut deltas, stopped) = self.finish_pieces(pieces);
        if stopped.is_none() {
            append(&mut deltas, Delta::Content(self.stop.finish()));
        }
        self.stopped = true;
        deltas
    }

    /// A think token that the splitter took as text is text.
    fn is_marker_here(&self) -> bool {
        self.splitter.swallows_blanks()
    }

    fn finish_pieces(&mut self, pieces: Vec<Piece>) -> (Vec<Delta>, Option<String>) {
        let mut deltas = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => append(&mut deltas, Delta::Reasoning(text)),
                Piece::Content(text) => {
                    let step = self.stop.step(&text);
                    append(&mut deltas, Delta::Content(step.text));
                    if step.matched.is_some() {
                        self.stopped = true;
                        return (deltas, step.matched);
                    }
                }
            }
        }
        (deltas, None)
    }
}

/// Adds a delta, joining it to the last one where both belong to the same place.
fn append(deltas: &mut Vec<Delta>, delta: Delta) {
    match (deltas.last_mut(), &delta) {
        (_, Delta::Reasoning(text) | Delta::Content(text)) if text.is_empty() => {}
        (Some(Delta::Reasoning(last)), Delta::Reasoning(text))
        | (Some(Delta::Content(last)), Delta::Content(text)) => {
            last.push_str(text);
        }
        _ => deltas.push(delta),
    }
}
