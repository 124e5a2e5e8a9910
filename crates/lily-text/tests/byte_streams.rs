//! Streams of random bytes, markers and halves of tags through all that stands between an engine's tokens and a client: bytes to
//! characters, reasoning and content, calls. Nothing panics, what is shown depends on the bytes alone and not on how they came, and
//! what is no markup is shown once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::LazyLock;

use common::{cases, nano};
use lily_text::{ContentDelta, ContentEnd, Delta, OutputOptions, OutputStream, TextModel, ToolCallParser};
use proptest::prelude::*;
use serde_json::{Value, json};

static NANO: LazyLock<TextModel> = LazyLock::new(nano);
static TOOLS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    vec![
        json!({"type": "function", "function": {"name": "write", "parameters": {"type": "object",
            "properties": {"path": {"type": "string"}, "days": {"type": "integer"}}}}}),
        json!({"type": "function", "function": {"name": "free"}}),
    ]
});

/// A piece of what a model says.
#[derive(Clone, Debug)]
enum Piece {
    /// A marker as one token.
    Marker(&'static str),
    Bytes(Vec<u8>),
}

/// What a client is shown.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    reasoning: String,
    text: String,
    /// Name, arguments, and whether it is whole.
    calls: Vec<(String, String, bool)>,
}

impl Shown {
    fn add(&mut self, deltas: Vec<ContentDelta>) {
        for delta in deltas {
            match delta {
                ContentDelta::Text(text) => self.text.push_str(&text),
                ContentDelta::CallStart { name } => self.calls.push((name, String::new(), false)),
                ContentDelta::Arguments(json) => self.calls.last_mut().unwrap().1.push_str(&json),
                ContentDelta::CallEnd { complete } => self.calls.last_mut().unwrap().2 = complete,
            }
        }
    }
}

/// Each token's text to the parser as it comes; or all of it at the end.
fn show(ids: &[u32], starts_in_reasoning: bool, end: ContentEnd, streamed: bool) -> Shown {
    let mut output =
        OutputStream::new(&NANO, OutputOptions { starts_in_reasoning, ..OutputOptions::default() });
    let mut parser = ToolCallParser::new(&TOOLS);
    let (mut shown, mut held) = (Shown::default(), String::new());
    let mut take = |deltas: Vec<Delta>, shown: &mut Shown, parser: &mut ToolCallParser| {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => shown.reasoning.push_str(&text),
                Delta::Content(text) if streamed => shown.add(parser.push(&text)),
                Delta::Content(text) => held.push_str(&text),
            }
        }
    };
    for &id in ids {
        take(output.push(id).deltas, &mut shown, &mut parser);
    }
    take(output.finish(), &mut shown, &mut parser);
    if !held.is_empty() {
        shown.add(parser.push(&held));
    }
    shown.add(parser.finish(end));
    shown
}

fn byte_tokens(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.iter().map(|&byte| NANO.tokenizer().byte_token(byte).unwrap())
}

/// The same pieces in tokens as long as the vocabulary has them, and one byte a token.
fn tokens(pieces: &[Piece], fine: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Marker(marker) => ids.extend(NANO.tokenizer().token_id(marker)),
            Piece::Bytes(bytes) => match std::str::from_utf8(bytes) {
                // A vocabulary may write a text in another normal form; then it is not the same bytes.
                Ok(text) if !fine && text.is_ascii() => ids.extend(NANO.tokenizer().encode_text(text)),
                _ => ids.extend(byte_tokens(bytes)),
            },
        }
    }
    ids
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let markers = prop::sample::select(vec!["<think>", "</think>", "<tool_call>", "</tool_call>"]);
    let tags = prop::sample::select(vec![
        "<tool_call>\n",
        "</tool_call>",
        "<function=write>\n",
        "<function=free>",
        "<function=other>",
        "</function>\n",
        "<parameter=path>\n",
        "<parameter=days>",
        "\n</parameter>\n",
        "<tool_",
        "</",
        "<",
        ">",
        "<function=",
        "<think>",
        "</think>\n\n",
        "</thi",
        " ",
        "\n",
        "{\"a\": 1}",
        "7",
        "é",
        "\u{1f600}",
    ]);
    let piece = prop_oneof![
        2 => markers.prop_map(Piece::Marker),
        8 => tags.prop_map(|tag| Piece::Bytes(tag.as_bytes().to_vec())),
        3 => prop::collection::vec(any::<u8>(), 1..6).prop_map(Piece::Bytes),
        3 => Just(Piece::Bytes(b"WORD".to_vec())),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|mut pieces| {
        for (at, piece) in pieces.iter_mut().enumerate() {
            if matches!(piece, Piece::Bytes(bytes) if bytes == b"WORD") {
                *piece = Piece::Bytes(format!("[word{at}]").into_bytes());
            }
        }
        pieces
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(3000), ..ProptestConfig::default() })]

    #[test]
    fn what_is_shown_depends_on_the_bytes_alone(
        pieces in pieces(),
        starts_in_reasoning in any::<bool>(),
        end in prop::sample::select(vec![ContentEnd::Turn, ContentEnd::StopString, ContentEnd::Limit]),
    ) {
        let (coarse, fine) = (tokens(&pieces, false), tokens(&pieces, true));
        let whole = show(&coarse, starts_in_reasoning, end, false);
        prop_assert_eq!(&show(&coarse, starts_in_reasoning, end, true), &whole, "streamed");
        prop_assert_eq!(&show(&fine, starts_in_reasoning, end, true), &whole, "byte by byte");
        for (_, arguments, complete) in &whole.calls {
            prop_assert!(!complete || serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{}", arguments);
        }
    }

    #[test]
    fn what_is_no_markup_is_shown_once(mut pieces in pieces(), starts_in_reasoning in any::<bool>()) {
        // A value given twice is the last one's, as JSON has it.
        let mut seen = Vec::new();
        pieces.retain(|piece| match piece {
            Piece::Bytes(bytes) if bytes.starts_with(b"<parameter=") => {
                let new = !seen.contains(bytes);
                seen.push(bytes.clone());
                new
            }
            _ => true,
        });
        let shown = show(&tokens(&pieces, false), starts_in_reasoning, ContentEnd::Turn, true);
        let mut all = shown.reasoning + " " + &shown.text;
        for (name, arguments, _) in shown.calls {
            all += &format!(" {name} {arguments}");
        }
        for piece in &pieces {
            if let Piece::Bytes(bytes) = piece
                && bytes.starts_with(b"[word")
            {
                let word = String::from_utf8_lossy(bytes);
                prop_assert_eq!(all.matches(&*word).count(), 1, "{} in {:?}", word, all);
            }
        }
    }
}
