//! Byte-level BPE as `tokenizer.json` describes it: text to ids, and ids to the exact bytes they stand for.
//!
//! The vocabularies of the Qwen family are encoded by [`pieces`] and [`merges`]: text is normalised and cut without
//! keeping offsets, and each distinct piece of a text is merged once. Anything else that the `tokenizers` crate can do is
//! left to it, and the tests hold the two against each other. Added tokens are found here in both cases, so that
//! users' text is kept apart from them.

mod bytes;
mod file;
mod merges;
mod pieces;
mod synthetic;

use std::borrow::Cow;
use std::collections::HashMap;

use aho_corasick::AhoCorasick;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::error::TextError;
use bytes::TokenBytes;
use merges::Merges;
use pieces::Pieces;

pub use synthetic::SyntheticTokenizer;

/// A token outside the merges: a marker with an id of its own.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    pub(crate) content: String,
    pub(crate) id: u32,
    /// Special tokens steer the model; the others (`<think>`, `<tool_call>`) are part of what it says.
    pub(crate) special: bool,
}

/// The tokenizer of one checkpoint.
pub struct Tokenizer {
    encoder: Encoder,
    added: Vec<AddedToken>,
    /// Finds added tokens in raw text, leftmost and then longest; pattern i is `added[i]`.
    matcher: AhoCorasick,
    by_id: HashMap<u32, usize>,
    bytes: TokenBytes,
}

/// How text without added tokens becomes ids.
enum Encoder {
    /// Normal form C, a known expression, merges.
    Pieces { pieces: Pieces, merges: Box<Merges> },
    /// Anything else that the library can do, at the library's speed.
    Library(Box<tokenizers::Tokenizer>),
}

/// A stretch of text.
enum Cut<'t> {
    /// An added token, by its place in the list.
    Marker(usize),
    /// Text between added tokens.
    Text(&'t str),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let encoder = match &self.encoder {
            Encoder::Pieces { .. } => "Pieces",
            Encoder::Library(_) => "Library",
        };
        f.debug_struct("Tokenizer")
            .field("size", &self.size())
            .field("added", &self.added.len())
            .field("encoder", &encoder)
            .finish()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        file::read(json)
    }

    /// The ids of text as text: whatever it says, no added token is among them.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        self.append_text(text, &mut ids);
        ids
    }

    /// The ids of text in which the names of added tokens are those tokens.
    pub fn encode_marked(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for cut in self.cut_at_markers(text, |_, _| true) {
            match cut {
                Cut::Marker(i) => ids.push(self.added[i].id),
                Cut::Text(text) => self.append_text(text, &mut ids),
            }
        }
        ids
    }

    /// The same, where two private characters keep text from being a marker: `breaker` stands inside it, `fence` right
    /// after or right before it. Neither is encoded.
    pub(crate) fn encode_protected(&self, text: &str, breaker: char, fence: char) -> Vec<u32> {
        let free =
            |start: usize, end: usize| !text[end..].starts_with(fence) && !text[..start].ends_with(fence);
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for cut in self.cut_at_markers(text, free) {
            match cut {
                Cut::Marker(i) => ids.push(self.added[i].id),
                Cut::Text(text) => self.append_text(&text.replace([breaker, fence], ""), &mut ids),
            }
        }
        ids
    }

    /// The exact bytes that an id stands for, those of added tokens included. `None` for ids that stand for nothing:
    /// the padding of a vocabulary, and everything above it.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// The id of an added token by its text.
    pub fn token_id(&self, marker: &str) -> Option<u32> {
        self.added.iter().find(|token| token.content == marker).map(|token| token.id)
    }

    /// True for added tokens that steer the model and are not part of its answer.
    pub fn is_special(&self, id: u32) -> bool {
        self.by_id.get(&id).is_some_and(|&i| self.added[i].special)
    }

    /// True for every added token.
    pub fn is_added(&self, id: u32) -> bool {
        self.by_id.contains_key(&id)
    }

    /// One more than the highest id. A model's `vocab_size` may be larger: ids from here on are padding.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The token that stands for one byte.
    pub fn byte_token(&self, byte: u8) -> Option<u32> {
        self.bytes.byte_token(byte)
    }

    /// The text of these ids. U+FFFD stands only for bytes that are not UTF-8; ids that stand for nothing are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .filter(|&&id| !(skip_special && self.is_special(id)))
            .filter_map(|&id| self.token_bytes(id))
            .flatten()
            .copied()
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Added tokens, in the order of the file.
    pub(crate) fn added(&self) -> &[AddedToken] {
        &self.added
    }

    /// Finds added tokens in raw text.
    pub(crate) fn matcher(&self) -> &AhoCorasick {
        &self.matcher
    }

    /// Text cut at the added tokens in it, those at places that `is_marker(start, end)` accepts.
    fn cut_at_markers<'t>(
        &'t self,
        text: &'t str,
        is_marker: impl Fn(usize, usize) -> bool + 't,
    ) -> impl Iterator<Item = Cut<'t>> {
        let found = self.matcher.find_iter(text).filter(move |found| is_marker(found.start(), found.end()));
        let mut done = 0;
        let cut = move |found: Option<aho_corasick::Match>| {
            let (start, end) = found.map_or((text.len(), text.len()), |found| (found.start(), found.end()));
            let before = &text[done..start];
            done = end;
            let marker = found.map(|found| Cut::Marker(found.pattern().as_usize()));
            (!before.is_empty()).then_some(Cut::Text(before)).into_iter().chain(marker)
        };
        found.map(Some).chain([None]).flat_map(cut)
    }

    fn append_text(&self, text: &str, ids: &mut Vec<u32>) {
        match &self.encoder {
            Encoder::Pieces { pieces, merges } => append_pieces(pieces.cut(&nfc(text)), merges, ids),
            Encoder::Library(library) => match file::encode_guarded(library, text) {
                Ok(found) => ids.extend(found),
                Err(_) => self.append_bytes(text, ids),
            },
        }
    }

    /// One token a byte: the last resort, so that text is never lost.
    fn append_bytes(&self, text: &str, ids: &mut Vec<u32>) {
        ids.extend(text.bytes().filter_map(|byte| self.byte_token(byte)));
    }
}

/// Encodes every distinct piece once. The memory of what was seen lasts for one text only: it needs no lock, cannot grow
/// without bound, and a text long enough to be slow repeats its words.
fn append_pieces<'t>(pieces: impl Iterator<Item = &'t str>, merges: &Merges, ids: &mut Vec<u32>) {
    let mut seen: HashMap<&'t str, (usize, usize)> = HashMap::new();
    for piece in pieces {
        let start = ids.len();
        if let Some(&(from, to)) = seen.get(piece) {
            ids.extend_from_within(from..to);
            continue;
        }
        merges.encode(piece.as_bytes(), ids);
        seen.insert(piece, (start, ids.len()));
    }
}

/// Unicode normal form C. Nearly all text is in it already, which a scan shows.
fn nfc(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.nfc().collect())
    }
}
