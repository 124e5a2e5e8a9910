//! Reading `tokenizer.json`.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::bytes::{TokenBytes, byte_of};
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

#[derive(Deserialize)]
struct ModelKind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// An id above this is refused: tables are indexed by id, and no vocabulary is near.
const LARGEST_ID: u32 = 1 << 24;

pub(super) fn read(json: &[u8]) -> Result<Tokenizer, TextError> {
    let file: File<'_> = serde_json::from_slice(json).map_err(|e| TextError::Json(e.to_string()))?;
    let kind: ModelKind =
        serde_json::from_str(file.model.get()).map_err(|e| TextError::Json(format!("model: {e}")))?;
    if let Some(kind) = kind.kind.filter(|kind| kind != "BPE") {
        return Err(unsupported("model.type", kind, "BPE"));
    }
    let bpe: BPE =
        serde_json::from_str(file.model.get()).map_err(|e| TextError::Json(format!("model: {e}")))?;
    check_bpe(&bpe)?;
    let added = read_added(file.added_tokens)?;
    let bytes = read_bytes(&bpe, &added)?;
    let encoder = read_encoder(bpe, file.normalizer, file.pre_tokenizer)?;
    let matcher = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(added.iter().map(|token| token.content.as_bytes()))
        .map_err(|e| TextError::Json(format!("added_tokens: {e}")))?;
    let by_id: HashMap<u32, usize> = added.iter().enumerate().map(|(i, token)| (token.id, i)).collect();
    Ok(Tokenizer { encoder, added, matcher, by_id, bytes })
}

fn check_bpe(bpe: &BPE) -> Result<(), TextError> {
    if bpe.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported("model.dropout", format!("{:?}", bpe.dropout), "null"));
    }
    let affixes = [
        ("model.continuing_subword_prefix", &bpe.continuing_subword_prefix),
        ("model.end_of_word_suffix", &bpe.end_of_word_suffix),
    ];
    for (field, affix) in affixes {
        if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
            return Err(unsupported(field, format!("{affix:?}"), "null"));
        }
    }
    if bpe.byte_fallback {
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

fn read_bytes(bpe: &BPE, added: &[AddedToken]) -> Result<TokenBytes, TextError> {
    let mut tokens: Vec<(u32, Vec<u8>)> =
        added.iter().map(|token| (token.id, token.content.clone().into_bytes())).collect();
    for (name, id) in bpe.get_vocab() {
        check_id(id, || format!("model.vocab[{name:?}]"))?;
        // A name that is not written in the alphabet cannot be reached by encoding; it is shown as it is.
        let bytes = name
            .chars()
            .map(byte_of)
            .collect::<Option<Vec<u8>>>()
            .unwrap_or_else(|| name.clone().into_bytes());
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

/// The fast way where normaliser and pre-tokenizer are those of the Qwen family, otherwise the library's.
fn read_encoder(bpe: BPE, normalizer: Value, pre_tokenizer: Value) -> Result<Encoder, TextError> {
    if normalizer.get("type").and_then(Value::as_str) == Some("NFC")
        && let Some(pieces) = known_pieces(&pre_tokenizer)
    {
        return Ok(Encoder::Pieces { bpe: Box::new(bpe), pieces });
    }
    let normalizer: Option<NormalizerWrapper> =
        serde_json::from_value(normalizer).map_err(|e| TextError::Json(format!("normalizer: {e}")))?;
    let pre_tokenizer: Option<PreTokenizerWrapper> =
        serde_json::from_value(pre_tokenizer).map_err(|e| TextError::Json(format!("pre_tokenizer: {e}")))?;
    let mut library = tokenizers::Tokenizer::new(ModelWrapper::BPE(bpe));
    library.with_normalizer(normalizer).map_err(|e| TextError::Json(format!("normalizer: {e}")))?;
    library.with_pre_tokenizer(pre_tokenizer);
    Ok(Encoder::Library(Box::new(library)))
}

/// A split by a known expression, then bytes to characters and nothing else.
fn known_pieces(pre_tokenizer: &Value) -> Option<Pieces> {
    let [split, level] = &pre_tokenizer.get("pretokenizers")?.as_array()?[..] else {
        return None;
    };
    let is = |value: &Value, key: &str, wanted: Value| value.get(key) == Some(&wanted);
    let plain = is(split, "type", "Split".into())
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
