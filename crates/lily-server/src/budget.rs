//! A bound on the reasoning of an answer.
//!
//! An engine cannot be told to close the reasoning. So where the bound is reached, the work is dropped and submitted again with what
//! was said so far and the marker that closes the reasoning behind it; the state of most of that is found again by its tokens.

use std::sync::Arc;

use lily_protocol::{Engine, Generation, GenerationRequest, SubmitError};
use lily_text::TextModel;

/// What closes the reasoning in the model's own template.
const CLOSE: &str = "\n</think>\n\n";

/// The bound of one answer, and what is needed to go on behind it.
pub(crate) struct Budget {
    engine: Arc<dyn Engine>,
    request: GenerationRequest,
    tokens: usize,
    said: Vec<u32>,
}

impl Budget {
    pub(crate) fn new(engine: Arc<dyn Engine>, request: GenerationRequest, tokens: usize) -> Self {
        Budget { engine, request, tokens, said: Vec::new() }
    }

    /// A token of the answer, of which so many were reasoning; true if there may be no more of it.
    pub(crate) fn note(&mut self, id: u32, reasoning_tokens: usize) -> bool {
        self.said.push(id);
        // An answer that ends here by its own limit needs no other work.
        let last = self.request.max_tokens.is_some_and(|most| self.said.len() >= most);
        reasoning_tokens >= self.tokens && !last
    }

    /// The rest of the answer, and the tokens of the marker before it.
    pub(crate) fn go_on(self, text: &TextModel) -> Result<(Generation, Vec<u32>), SubmitError> {
        let Budget { engine, mut request, said, .. } = self;
        let close = text.tokenizer().encode_marked(CLOSE);
        if let Some(before) = &request.text {
            request.text = Some(format!("{before}{}{CLOSE}", text.tokenizer().decode(&said, false)).into());
        }
        request.max_tokens = request.max_tokens.map(|most| most - said.len());
        request.prompt.extend(said);
        request.prompt.extend(&close);
        Ok((engine.submit(request)?, close))
    }
}
