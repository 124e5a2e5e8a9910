//! The fast way of encoding against the library's, and what holds for any text.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::LazyLock;

use common::{fixture, nano, read_json};
use lily_text::{TextModel, TextParts, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

static FAST: LazyLock<TextModel> = LazyLock::new(nano);

/// The same vocabulary with an expression that means the same and is not among the known ones.
static LIBRARY: LazyLock<TextModel> = LazyLock::new(|| {
    let mut json = read_json(fixture("nano/tokenizer.json"));
    let pattern = &mut json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
    *pattern = format!("(?:{})", pattern.as_str().unwrap()).into();
    model(&json).unwrap()
});

fn model(tokenizer: &serde_json::Value) -> Result<TextModel, lily_text::TextError> {
    TextModel::from_parts(TextParts {
        tokenizer_json: tokenizer.to_string().as_bytes(),
        tokenizer_config_json: None,
        chat_template: None,
    })
}

/// Text of a few characters that meet in merges, cuts and markers.
fn text(most: usize) -> impl Strategy<Value = String> {
    let parts = [
        "a",
        "b",
        "e",
        "in",
        "the",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "'s",
        "'LL",
        "1",
        "23",
        "=",
        "é",
        "e\u{301}\u{323}",
        "漢",
        "字",
        "🙂",
        "\u{200d}",
        "न\u{94d}",
        "가",
        "\u{1112}\u{1161}",
        ".",
        "</",
        "<|im_end|>",
        "<think>",
        "im_",
        "\u{a0}",
        "\u{0}",
        "ſ",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..most).prop_map(|parts| parts.concat())
}

fn same(fast: &Tokenizer, library: &Tokenizer, text: &str) {
    assert_eq!(fast.encode_text(text), library.encode_text(text), "{text:?}");
    assert_eq!(fast.encode_marked(text), library.encode_marked(text), "{text:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn fast_equals_library(text in text(60)) {
        same(FAST.tokenizer(), LIBRARY.tokenizer(), &text);
    }

    /// Pieces longer than a block: borders between blocks must not show.
    #[test]
    fn long_pieces_equal_library(unit in "[a-e]{1,7}", tail in "[a-z]{0,9}", count in 150usize..900, blank in any::<bool>()) {
        let unit = if blank { " ".repeat(unit.len()) } else { unit };
        let text = format!("{}{tail}", unit.repeat(count));
        same(FAST.tokenizer(), LIBRARY.tokenizer(), &text);
    }

    #[test]
    fn random_letters_equal_library(text in "[a-zé]{900,4000}") {
        same(FAST.tokenizer(), LIBRARY.tokenizer(), &text);
    }

    #[test]
    fn text_never_becomes_a_marker(text in text(40)) {
        let tokenizer = FAST.tokenizer();
        prop_assert!(tokenizer.encode_text(&text).iter().all(|&id| !tokenizer.is_added(id)));
    }

    #[test]
    fn any_text_survives(text in "\\PC{0,60}") {
        use unicode_normalization::UnicodeNormalization;
        let tokenizer = FAST.tokenizer();
        let normal: String = text.nfc().collect();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode_text(&text), false), normal);
    }
}

#[test]
fn the_library_is_asked_for_other_expressions() {
    let debug = |model: &TextModel| format!("{:?}", model.tokenizer());
    assert!(debug(&FAST).contains("Pieces") && debug(&LIBRARY).contains("Library"), "{FAST:?} {LIBRARY:?}");
}

/// A normalizer that replaces a pattern of this kind.
fn replacement(kind: &str, pattern: &str) -> serde_json::Value {
    json!({"type": "Replace", "pattern": {kind: pattern}, "content": "x"})
}

/// Makes a good file wrong.
type Change = &'static dyn Fn(&mut serde_json::Value);

#[test]
fn wrong_files_are_refused_with_the_place() {
    let good = read_json(fixture("nano/tokenizer.json"));
    let message = |change: Change| {
        let mut json = good.clone();
        change(&mut json);
        model(&json).unwrap_err().to_string()
    };
    let cases: [(Change, &[&str]); 10] = [
        (&|json| json["model"]["type"] = "Unigram".into(), &["model.type", "Unigram", "BPE"]),
        (&|json| json["model"]["dropout"] = 0.5.into(), &["model.dropout", "0.5"]),
        (&|json| json["model"]["byte_fallback"] = true.into(), &["model.byte_fallback"]),
        (&|json| json["model"]["merges"][3] = json!(["a", "nothing"]), &["model.merges[3]", "nothing"]),
        (&|json| json["added_tokens"][2]["lstrip"] = true.into(), &["added_tokens[2].lstrip"]),
        (
            &|json| json["added_tokens"][2]["id"] = 4_000_000_000_u64.into(),
            &["added_tokens[2].id", "4000000000"],
        ),
        (&|json| json["normalizer"] = replacement("String", ""), &["normalizer", "empty"]),
        (
            &|json| {
                json["normalizer"] = json!({"type": "Sequence", "normalizers": [replacement("Regex", "")]})
            },
            &["normalizer", "empty"],
        ),
        // Panics in the library, on any text.
        (&|json| json["normalizer"] = replacement("Regex", "q*"), &["normalizer", "fails on"]),
        (&|json| drop(json["model"]["vocab"].as_object_mut().unwrap().remove("a")), &["0x61"]),
    ];
    for (change, wanted) in cases {
        let message = message(change);
        assert!(wanted.iter().all(|part| message.contains(part)), "{message:?} names not all of {wanted:?}");
    }
    for junk in [&b""[..], b"{}", b"[1,2]", b"\xff\xfe", b"{\"model\": 3}"] {
        let parts = TextParts { tokenizer_json: junk, tokenizer_config_json: None, chat_template: None };
        assert!(TextModel::from_parts(parts).unwrap_err().to_string().starts_with("tokenizer.json: "));
    }
    let missing = TextModel::from_dir("no/such/folder".as_ref()).unwrap_err().to_string();
    assert!(missing.contains("tokenizer.json"), "{missing}");
}
