//! A tokenizer for a model that has none: random weights of any vocabulary.
//!
//! One token for each byte, then words of lower-case letters with a blank before them (each one letter longer than a word
//! before it, which makes the merges), then Qwen's added tokens, then rows that stand for nothing, as in Qwen3.6. Any text
//! can be encoded, any id can be shown, and templates find their markers.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::bytes::char_of;
use super::pieces::QWEN35;

/// The added tokens of Qwen3.6 in their order, and whether they are special.
const ADDED: [(&str, bool); 33] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<|object_ref_start|>", true),
    ("<|object_ref_end|>", true),
    ("<|box_start|>", true),
    ("<|box_end|>", true),
    ("<|quad_start|>", true),
    ("<|quad_end|>", true),
    ("<|vision_start|>", true),
    ("<|vision_end|>", true),
    ("<|vision_pad|>", true),
    ("<|image_pad|>", true),
    ("<|video_pad|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<|fim_prefix|>", false),
    ("<|fim_middle|>", false),
    ("<|fim_suffix|>", false),
    ("<|fim_pad|>", false),
    ("<|repo_name|>", false),
    ("<|file_sep|>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
    ("<|audio_start|>", true),
    ("<|audio_end|>", true),
    ("<tts_pad>", true),
    ("<tts_text_bos>", true),
    ("<tts_text_eod>", true),
    ("<tts_text_bos_single>", true),
    ("<|audio_pad|>", true),
];

/// Rows of Qwen3.6's vocabulary of 248,320 that stand for no token.
const PADDING: usize = 243;
/// Of these the last ends a turn, the first a text.
const END_TOKENS: [usize; 2] = [2, 0];

/// A tokenizer's files.
#[derive(Clone, Debug)]
pub struct SyntheticTokenizer {
    /// Bytes and words; the added tokens are behind them.
    first_added: usize,
    /// tokenizer_config.json
    pub tokenizer_config_json: Vec<u8>,
    /// The ids of `<|im_end|>` and `<|endoftext|>`.
    pub end_tokens: Vec<u32>,
}

impl SyntheticTokenizer {
    /// The fewest rows that hold every byte and every added token.
    pub const FEWEST_ROWS: usize = 256 + ADDED.len();

    /// A tokenizer for an embedding of so many rows; `None` below [`SyntheticTokenizer::FEWEST_ROWS`].
    pub fn new(rows: usize) -> Option<Self> {
        let first_added = rows.checked_sub(Self::FEWEST_ROWS)?.saturating_sub(PADDING) + 256;
        let config = json!({
            "tokenizer_class": "Qwen2Tokenizer",
            "add_bos_token": false,
            "add_prefix_space": false,
            "bos_token": null,
            "clean_up_tokenization_spaces": false,
            "eos_token": ADDED[END_TOKENS[0]].0,
            "errors": "replace",
            "pad_token": ADDED[END_TOKENS[1]].0,
            "split_special_tokens": false,
            "unk_token": null,
        });
        Some(SyntheticTokenizer {
            first_added,
            tokenizer_config_json: format!("{config:#}\n").into_bytes(),
            end_tokens: END_TOKENS.iter().filter_map(|i| u32::try_from(first_added + i).ok()).collect(),
        })
    }

    /// Writes tokenizer.json, token by token: about 33 bytes for each row, and hardly any memory. The writer should have
    /// a buffer.
    ///
    /// # Errors
    /// Those of the writer, at once.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let added: Vec<Value> = ADDED
            .iter()
            .enumerate()
            .map(|(i, (content, special))| {
                json!({
                    "id": self.first_added + i, "content": content, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": special,
                })
            })
            .collect();
        let level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
        });
        let settings = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": { "type": "NFC" },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": QWEN35 }, "behavior": "Isolated", "invert": false },
                level,
            ] },
            "post_processor": level,
            "decoder": level,
        });
        let model = Bpe {
            settings: json!({
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            }),
            vocab: Vocab(self.first_added),
            merges: Merges(self.first_added),
        };
        Ok(serde_json::to_writer(out, &TokenizerJson { settings, model })?)
    }
}

#[derive(Serialize)]
struct TokenizerJson {
    #[serde(flatten)]
    settings: Value,
    model: Bpe,
}

#[derive(Serialize)]
struct Bpe {
    #[serde(flatten)]
    settings: Value,
    vocab: Vocab,
    merges: Merges,
}

/// The names of so many tokens, bytes and then words, with their ids.
struct Vocab(usize);

impl Serialize for Vocab {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = (0..=255u8).map(|byte| char_of(byte).to_string());
        let blank = char_of(b' ');
        let words = (256..self.0).map(|id| {
            let (shorter, letter) = word(id - 256, blank);
            shorter + letter
        });
        serializer.collect_map(bytes.chain(words).zip(0u64..))
    }
}

/// The merges that make the words of so many tokens.
struct Merges(usize);

impl Serialize for Merges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let blank = char_of(b' ');
        serializer.collect_seq((256..self.0).map(|id| word(id - 256, blank)))
    }
}

/// The word that word k makes one letter longer, and the letter: word k / 26 - 1 (the blank alone, for the first 26) and
/// letter k mod 26.
fn word(k: usize, blank: char) -> (String, &'static str) {
    const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
    let letter = |k: usize| &LETTERS[k % 26..k % 26 + 1];
    let mut shorter: Vec<&str> = Vec::new();
    let mut rest = k / 26;
    while let Some(parent) = rest.checked_sub(1) {
        shorter.push(letter(parent));
        rest = parent / 26;
    }
    let mut name = String::from(blank);
    name.extend(shorter.into_iter().rev());
    (name, letter(k))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TextModel, TextParts};

    fn model(rows: usize) -> (TextModel, SyntheticTokenizer) {
        let files = SyntheticTokenizer::new(rows).unwrap();
        let mut json = Vec::new();
        files.write_json(&mut json).unwrap();
        let parts = TextParts {
            tokenizer_json: &json,
            tokenizer_config_json: Some(&files.tokenizer_config_json),
            chat_template: None,
        };
        (TextModel::from_parts(parts).unwrap(), files)
    }

    #[test]
    fn it_fits_the_rows_and_has_its_markers() {
        for (rows, size, ends) in [
            (SyntheticTokenizer::FEWEST_ROWS, 289, [258, 256]),
            (289 + PADDING, 289, [258, 256]),
            (700, 457, [426, 424]),
            (32_768, 32_525, [32_494, 32_492]),
            // Of the true size, the markers have their true ids.
            (248_320, 248_077, [248_046, 248_044]),
        ] {
            let (model, files) = model(rows);
            assert_eq!(model.tokenizer().size(), size, "{rows}");
            assert_eq!(files.end_tokens, ends);
            assert_eq!(model.end_tokens(), [ends[0]]);
            assert_eq!(model.cut_markers().end_of_turn, [ends[0]]);
        }
        assert!(SyntheticTokenizer::new(SyntheticTokenizer::FEWEST_ROWS - 1).is_none());
    }

    #[test]
    fn any_text_is_encoded_and_shown_and_words_are_one_token() {
        let (model, _) = model(32_768);
        let tokenizer = model.tokenizer();
        for text in ["", "a", " sea", "The sea, 12.5%:\r\n\n  \t", "Z\u{fc}rich \u{1f600}", "\0"] {
            assert_eq!(tokenizer.decode(&tokenizer.encode_text(text), false), text);
        }
        assert_eq!(tokenizer.encode_text(" sea").len(), 1);
        assert!((0..tokenizer.size() as u32).all(|id| tokenizer.token_bytes(id).is_some()));
    }

    #[test]
    fn words_grow_by_a_letter() {
        let words = [0, 25, 26, 27, 51, 52, 701, 702].map(|k| word(k, '_'));
        let words: Vec<(&str, &str)> =
            words.iter().map(|(shorter, letter)| (shorter.as_str(), *letter)).collect();
        let wanted = [
            ("_", "a"),
            ("_", "z"),
            ("_a", "a"),
            ("_a", "b"),
            ("_a", "z"),
            ("_b", "a"),
            ("_z", "z"),
            ("_aa", "a"),
        ];
        assert_eq!(words, wanted);
    }

    /// Takes so many bytes, in a piece for each token, and no more.
    struct Short(usize);

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn it_is_written_as_it_is_made_and_ends_with_its_writer() {
        // More tokens than any memory holds: of these the first are made.
        let tokenizer = SyntheticTokenizer::new(1 << 50).unwrap();
        let error = tokenizer.write_json(&mut Short(1 << 20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
