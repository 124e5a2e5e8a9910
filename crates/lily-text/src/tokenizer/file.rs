//! Reading `tokenizer.json`.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use aho_corasick::{AhoCorasick, MatchKind};
use serde::de::{Error as _, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::bytes::{TokenBytes, byte_of};
use super::merges::Merges;
use super::pieces::Pieces;
use super::{AddedToken, Encoder, Tokenizer};
use crate::error::TextError;

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(default)]
    added_tokens: Vec<AddedEntry>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

#[derive(Deserialize)]
struct AddedEntry {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// The fields of a BPE model that matter here. A model that sets one of the others goes to the library.
#[derive(Deserialize)]
struct BpeModel<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    vocab: HashMap<Name<'a>, u32>,
    #[serde(borrow)]
    merges: Vec<MergeEntry<'a>>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// A token's name, in the byte-level alphabet.
#[derive(Deserialize, PartialEq, Eq, Hash)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl Borrow<str> for Name<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Two names: as a list, or as one text with a blank between them, which is how older files have it.
enum MergeEntry<'a> {
    Pair(Name<'a>, Name<'a>),
    Text(Cow<'a, str>),
}

/// By hand, since a derived choice would first copy each of half a million entries.
impl<'de: 'a, 'a> Deserialize<'de> for MergeEntry<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;

        impl<'de> Visitor<'de> for Entry {
            type Value = MergeEntry<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("two names of tokens")
            }

            fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(MergeEntry::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(MergeEntry::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Self::Value, A::Error> {
                let mut next =
                    |have| names.next_element()?.ok_or_else(|| A::Error::invalid_length(have, &self));
                let pair = MergeEntry::Pair(next(0)?, next(1)?);
                match names.next_element::<IgnoredAny>()? {
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                    None => Ok(pair),
                }
            }
        }

        deserializer.deserialize_any(Entry)
    }
}

impl MergeEntry<'_> {
    fn names(&self) -> Option<(&str, &str)> {
        match self {
            MergeEntry::Pair(left, right) => Some((&left.0, &right.0)),
            MergeEntry::Text(text) => text.split_once(' '),
        }
    }
}

/// An id above this is refused: tables are indexed by id, and no vocabulary is near.
const LARGEST_ID: u32 = 1 << 24;

pub(super) fn read(json: &[u8]) -> Result<Tokenizer, TextError> {
    let file: File<'_> = serde_json::from_slice(json).map_err(|e| TextError::Json(e.to_string()))?;
    let model: BpeModel<'_> =
        serde_json::from_str(file.model.get()).map_err(|e| TextError::Json(format!("model: {e}")))?;
    check_model(&model)?;
    let added = read_added(file.added_tokens)?;
    let bytes = read_bytes(&model, &added)?;
    let encoder = match known_pieces(&file.normalizer, &file.pre_tokenizer) {
        Some(pieces) if !model.ignore_merges => {
            Encoder::Pieces { pieces, merges: Box::new(read_merges(&model, &bytes)?) }
        }
        _ => Encoder::Library(Box::new(read_library(file.model, file.normalizer, file.pre_tokenizer)?)),
    };
    let matcher = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(added.iter().map(|token| token.content.as_bytes()))
        .map_err(|e| TextError::Json(format!("added_tokens: {e}")))?;
    let by_id: HashMap<u32, usize> = added.iter().enumerate().map(|(i, token)| (token.id, i)).collect();
    Ok(Tokenizer { encoder, added, matcher, by_id, bytes })
}

fn check_model(model: &BpeModel<'_>) -> Result<(), TextError> {
    if let Some(kind) = model.kind.as_ref().filter(|kind| *kind != "BPE") {
        return Err(unsupported("model.type", kind.clone(), "BPE"));
    }
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return Err(unsupported("model.dropout", dropout.to_string(), "null"));
    }
    let affixes = [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ];
    for (field, affix) in affixes {
        if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
            return Err(unsupported(field, format!("{affix:?}"), "null"));
        }
    }
    if model.byte_fallback {
        return Err(unsupported("model.byte_fallback", "true".into(), "false (a byte-level vocabulary)"));
    }
    Ok(())
}

fn read_added(entries: Vec<AddedEntry>) -> Result<Vec<AddedToken>, TextError> {
    let mut added = Vec::with_capacity(entries.len());
    for (i, entry) in entries.into_iter().enumerate() {
        let flags = [
            ("single_word", entry.single_word),
            ("lstrip", entry.lstrip),
            ("rstrip", entry.rstrip),
            ("normalized", entry.normalized && !entry.content.is_ascii()),
        ];
        if let Some((flag, _)) = flags.iter().find(|(_, set)| *set) {
            return Err(unsupported(&format!("added_tokens[{i}].{flag}"), "true".into(), "false"));
        }
        if entry.content.is_empty() {
            return Err(unsupported(&format!("added_tokens[{i}].content"), "empty".into(), "text"));
        }
        check_id(entry.id, || format!("added_tokens[{i}].id"))?;
        added.push(AddedToken { content: entry.content, id: entry.id, special: entry.special });
    }
    Ok(added)
}

fn check_id(id: u32, field: impl Fn() -> String) -> Result<(), TextError> {
    if id >= LARGEST_ID {
        return Err(unsupported(&field(), id.to_string(), &format!("below {LARGEST_ID}")));
    }
    Ok(())
}

fn read_bytes(model: &BpeModel<'_>, added: &[AddedToken]) -> Result<TokenBytes, TextError> {
    let mut tokens: Vec<(u32, Vec<u8>)> =
        added.iter().map(|token| (token.id, token.content.clone().into_bytes())).collect();
    for (Name(name), &id) in &model.vocab {
        check_id(id, || format!("model.vocab[{name:?}]"))?;
        // A name that is not written in the alphabet cannot be reached by encoding; it is shown as it is.
        let bytes = name
            .chars()
            .map(byte_of)
            .collect::<Option<Vec<u8>>>()
            .unwrap_or_else(|| name.as_bytes().to_vec());
        tokens.push((id, bytes));
    }
    let table = TokenBytes::new(tokens);
    match (0..=255u8).find(|&byte| table.byte_token(byte).is_none()) {
        Some(byte) => Err(unsupported(
            "model.vocab",
            format!("without a token for the byte 0x{byte:02X}"),
            "a byte-level vocabulary with one token for every byte",
        )),
        None => Ok(table),
    }
}

fn read_merges(model: &BpeModel<'_>, bytes: &TokenBytes) -> Result<Merges, TextError> {
    let mut of_byte = [0; 256];
    for byte in 0..=255u8 {
        of_byte[usize::from(byte)] = bytes.byte_token(byte).unwrap_or_default();
    }
    let id = |i: usize, name: &str| {
        model.vocab.get(name).copied().ok_or_else(|| {
            unsupported(
                &format!("model.merges[{i}]"),
                format!("about {name:?}"),
                "names that model.vocab has",
            )
        })
    };
    let mut merges = Vec::with_capacity(model.merges.len());
    let mut joined = String::new();
    for (i, entry) in model.merges.iter().enumerate() {
        let (left, right) = entry
            .names()
            .ok_or_else(|| unsupported(&format!("model.merges[{i}]"), "one name".into(), "two names"))?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        merges.push((id(i, left)?, id(i, right)?, id(i, &joined)?));
    }
    Ok(Merges::new(of_byte, bytes.lengths(), merges.into_iter()))
}

/// The library's tokenizer over the same model, without added tokens.
fn read_library(
    model: &RawValue,
    normalizer: Value,
    pre_tokenizer: Value,
) -> Result<tokenizers::Tokenizer, TextError> {
    let wrong = |field: &str, e: &dyn std::fmt::Display| TextError::Json(format!("{field}: {e}"));
    let bpe: BPE = serde_json::from_str(model.get()).map_err(|e| wrong("model", &e))?;
    if has_empty_pattern(&normalizer) {
        return Err(unsupported("normalizer", "a replacement of empty text".into(), "a pattern of text"));
    }
    let normalizer: Option<NormalizerWrapper> =
        serde_json::from_value(normalizer).map_err(|e| wrong("normalizer", &e))?;
    let pre_tokenizer: Option<PreTokenizerWrapper> =
        serde_json::from_value(pre_tokenizer).map_err(|e| wrong("pre_tokenizer", &e))?;
    let mut library = tokenizers::Tokenizer::new(ModelWrapper::BPE(bpe));
    library.with_normalizer(normalizer).map_err(|e| wrong("normalizer", &e))?;
    library.with_pre_tokenizer(pre_tokenizer);
    for sample in SAMPLES {
        encode_guarded(&library, sample).map_err(|problem| {
            unsupported(
                "normalizer or pre_tokenizer",
                format!("one that fails on {sample:?} ({problem})"),
                "those of a tokenizer that encodes any text",
            )
        })?;
    }
    Ok(library)
}

/// Text on which a normalizer or pre-tokenizer is tried before it is trusted.
const SAMPLES: [&str; 4] = [
    "a",
    "The 3 cats' hats, 12.5%:\r\n\n  \t<b>end</b> ",
    "Zu\u{308}rich \u{1f600}\u{200d} \u{5b57}\u{feff}",
    "\0",
];

/// The library's ids, or what kept it from them. Some of its parts panic where a file asks for what their authors did
/// not think of; that must be an error of the file and not the end of the program.
pub(super) fn encode_guarded(library: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, String> {
    match catch_unwind(AssertUnwindSafe(|| library.encode_fast(text, false))) {
        Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the tokenizers library panicked".into()),
    }
}

/// Whether some step of a normalizer replaces empty text, which is everywhere.
fn has_empty_pattern(normalizer: &Value) -> bool {
    match normalizer {
        Value::Object(fields) => fields.iter().any(|(name, value)| match (name.as_str(), value) {
            ("String" | "Regex", Value::String(pattern)) => pattern.is_empty(),
            (_, value) => has_empty_pattern(value),
        }),
        Value::Array(steps) => steps.iter().any(has_empty_pattern),
        _ => false,
    }
}

/// Normal form C, a split by a known expression, then bytes to characters and nothing else.
fn known_pieces(normalizer: &Value, pre_tokenizer: &Value) -> Option<Pieces> {
    let [split, level] = &pre_tokenizer.get("pretokenizers")?.as_array()?[..] else {
        return None;
    };
    let is = |value: &Value, key: &str, wanted: Value| value.get(key) == Some(&wanted);
    let plain = is(normalizer, "type", "NFC".into())
        && is(split, "type", "Split".into())
        && is(split, "behavior", "Isolated".into())
        && is(split, "invert", false.into())
        && is(level, "type", "ByteLevel".into())
        && is(level, "add_prefix_space", false.into())
        && is(level, "use_regex", false.into());
    if !plain {
        return None;
    }
    Pieces::new(split.get("pattern")?.get("Regex")?.as_str()?)
}

fn unsupported(field: &str, found: String, wanted: &str) -> TextError {
    TextError::Unsupported { field: field.to_owned(), found, wanted: wanted.to_owned() }
}
