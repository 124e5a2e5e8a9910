//! Log probabilities in OpenAI's shape, each sent with the text that its token completes.

use std::collections::VecDeque;

use lily_protocol::Logprobs;
use lily_text::Tokenizer;
use serde::Serialize;

/// Stands for minus infinity, which JSON cannot say; OpenAI uses the same number.
const LOWEST: f32 = -9999.0;

/// One token of the content.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    pub(crate) chosen: Alternative,
    pub(crate) top_logprobs: Vec<Alternative>,
}

/// A token and its probability.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Alternative {
    /// Its text; U+FFFD for bytes that are not UTF-8 by themselves.
    pub(crate) token: String,
    pub(crate) logprob: f32,
    /// Its exact bytes: joined over tokens they are the text, where `token` may not be.
    pub(crate) bytes: Vec<u8>,
}

/// One token of a prompt.
#[derive(Clone, Debug)]
pub(crate) struct PromptToken {
    /// Its text; U+FFFD for bytes that are not UTF-8 by themselves.
    pub(crate) token: String,
    /// `None` for the first.
    pub(crate) logprob: Option<f32>,
    pub(crate) top_logprobs: Vec<Alternative>,
}

/// The tokens of a prompt, with what an engine says of each.
pub(crate) fn of_prompt(
    prompt: &[u32],
    known: &[Option<Logprobs>],
    tokenizer: &Tokenizer,
) -> Vec<PromptToken> {
    let token = |(&id, known): (&u32, &Option<Logprobs>)| {
        let chosen = alternative(id, known.as_ref().map_or(0.0, |known| known.chosen), tokenizer);
        let top = known.iter().flat_map(|known| &known.top);
        PromptToken {
            token: chosen.token,
            logprob: known.as_ref().map(|_| chosen.logprob),
            top_logprobs: top.map(|&(id, value)| alternative(id, value, tokenizer)).collect(),
        }
    };
    prompt.iter().zip(known).map(token).collect()
}

fn alternative(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Alternative {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    Alternative {
        token: String::from_utf8_lossy(bytes).into_owned(),
        logprob: if logprob.is_finite() { logprob.max(LOWEST) } else { LOWEST },
        bytes: bytes.to_vec(),
    }
}

/// Log probabilities of tokens whose text is not shown yet: it may be half a character, or the start of a stop string.
#[derive(Debug, Default)]
pub(crate) struct HeldLogprobs {
    waiting: VecDeque<TokenLogprob>,
    /// Bytes shown that belong to the front of `waiting`.
    shown: usize,
}

impl HeldLogprobs {
    /// A token of the content.
    pub(crate) fn push(&mut self, id: u32, logprobs: &Logprobs, tokenizer: &Tokenizer) {
        let chosen = alternative(id, logprobs.chosen, tokenizer);
        let top_logprobs =
            logprobs.top.iter().map(|&(id, value)| alternative(id, value, tokenizer)).collect();
        self.waiting.push_back(TokenLogprob { chosen, top_logprobs });
    }

    /// This many bytes more of the content are shown: the tokens that are complete with them.
    pub(crate) fn release(&mut self, bytes: usize) -> Vec<TokenLogprob> {
        self.shown += bytes;
        let mut complete = Vec::new();
        while let Some(front) = self.waiting.front() {
            let length = front.chosen.bytes.len();
            if length > self.shown {
                break;
            }
            self.shown -= length;
            complete.extend(self.waiting.pop_front());
        }
        complete
    }

    /// At a stop string: the token whose text was shown in part; those behind it were not shown.
    pub(crate) fn release_begun(&mut self) -> Vec<TokenLogprob> {
        if self.shown > 0 { self.waiting.pop_front().into_iter().collect() } else { Vec::new() }
    }

    /// At the end: everything.
    pub(crate) fn release_all(&mut self) -> Vec<TokenLogprob> {
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(tokens: &[&str]) -> HeldLogprobs {
        let waiting = tokens.iter().map(|token| TokenLogprob {
            chosen: Alternative { token: token.to_string(), logprob: -1.0, bytes: token.as_bytes().to_vec() },
            top_logprobs: Vec::new(),
        });
        HeldLogprobs { waiting: waiting.collect(), shown: 0 }
    }

    fn texts(tokens: Vec<TokenLogprob>) -> Vec<String> {
        tokens.into_iter().map(|token| token.chosen.token).collect()
    }

    #[test]
    fn a_token_comes_with_the_text_that_completes_it() {
        let mut held = held(&["ab", "cde", "f"]);
        assert_eq!(texts(held.release(1)), Vec::<String>::new());
        assert_eq!(texts(held.release(1)), ["ab"]);
        assert_eq!(texts(held.release(4)), ["cde", "f"]);
    }

    #[test]
    fn a_stop_string_drops_what_was_not_shown() {
        let mut begun = held(&["ab", "cde", "f"]);
        assert_eq!(texts(begun.release(3)), ["ab"]);
        assert_eq!(texts(begun.release_begun()), ["cde"]);
        let mut clean = held(&["ab", "cde"]);
        assert_eq!(texts(clean.release(2)), ["ab"]);
        assert_eq!(texts(clean.release_begun()), Vec::<String>::new());
    }
}
