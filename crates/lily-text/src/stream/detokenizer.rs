//! Token ids to text that can be shown at once and never changes.

use crate::tokenizer::Tokenizer;

/// Bytes in, whole characters out.
///
/// A character may be spread over several tokens, so its bytes are held until it is complete. Bytes that no continuation
/// can make valid become U+FFFD, one for each maximal part of a character (as Python's `errors="replace"` and WHATWG
/// decoders do), so the sum of all output equals the decoding of all bytes at once.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The start of a character, at most three bytes.
    held: Vec<u8>,
}

impl Detokenizer {
    /// At the start of a text.
    pub fn new() -> Self {
        Detokenizer::default()
    }

    /// The text that one more token completes. Ids that stand for nothing add nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        match tokenizer.token_bytes(id) {
            Some(bytes) => self.push_bytes(bytes),
            None => String::new(),
        }
    }

    /// The text that these bytes complete.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.held.len());
        let mut rest = &self.held[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    match error.error_len() {
                        Some(length) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &rest[length..];
                        }
                        // The start of a character that further bytes may complete.
                        None => break,
                    }
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// The end: a character that was never completed becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}
