//! Answers in the making: what is shown never depends on how the text was cut.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::LazyLock;

use common::nano;
use lily_text::{Channel, Delta, Detokenizer, OutputOptions, OutputStream, StopMatcher, TextModel};
use proptest::prelude::*;

static NANO: LazyLock<TextModel> = LazyLock::new(nano);

/// Reasoning, content and the stop string that ended it.
type Shown = (String, String, Option<String>);

fn collect(ids: &[u32], options: OutputOptions) -> Shown {
    let mut stream = OutputStream::new(&NANO, options);
    let (mut reasoning, mut content, mut stopped) = (String::new(), String::new(), None);
    let mut add = |deltas: Vec<Delta>| {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    assert!(content.is_empty(), "reasoning after content");
                    assert!(!text.is_empty());
                    reasoning.push_str(&text);
                }
                Delta::Content(text) => {
                    assert!(!text.is_empty());
                    content.push_str(&text);
                }
            }
        }
    };
    for &id in ids {
        let step = stream.push(id);
        add(step.deltas);
        if step.stopped.is_some() {
            stopped = step.stopped;
            break;
        }
    }
    add(stream.finish());
    assert!(stream.finish().is_empty());
    (reasoning, content, stopped)
}

fn thinking() -> OutputOptions {
    OutputOptions { starts_in_reasoning: true, ..OutputOptions::default() }
}

fn tokens(text: &str) -> Vec<u32> {
    NANO.tokenizer().encode_marked(text)
}

/// One token a byte: the finest cut there is, and one in which markers are spelled out.
fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| NANO.tokenizer().byte_token(byte).unwrap()).collect()
}

fn check(text: &str, options: &OutputOptions, reasoning: &str, content: &str) {
    for ids in [tokens(text), bytes(text)] {
        let shown = collect(&ids, options.clone());
        assert_eq!((shown.0.as_str(), shown.1.as_str()), (reasoning, content), "{text:?} {options:?}");
    }
}

#[test]
fn reasoning_and_content() {
    let (on, off) = (thinking(), OutputOptions::default());
    for (text, reasoning, content) in [
        ("so\n</think>\n\nHi", "so", "Hi"),
        ("so</think>Hi", "so", "Hi"),
        ("so\n</think>\nHi", "so", "Hi"),
        ("\n so </think> Hi \n", "so", "Hi \n"),
        ("a\n\nb\n</think>\n\n    indented\n", "a\n\nb", "    indented\n"),
        ("<think>\nso\n</think>\n\nHi", "so", "Hi"),
        ("</think>\n\nHi", "", "Hi"),
        ("so\n</think>\n\n", "so", ""),
        ("so</think>a <think>b</think> c", "so", "a <think>b</think> c"),
        ("only thought", "only thought", ""),
        ("cut </thi", "cut </thi", ""),
        ("a < b </x> <think> c</think>d", "a < b </x> <think> c", "d"),
        (
            "t</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
            "t",
            "<tool_call>\n<function=f>\n</function>\n</tool_call>",
        ),
        ("", "", ""),
    ] {
        check(text, &on, reasoning, content);
    }
    for (text, reasoning, content) in [
        ("Hi", "", "Hi"),
        ("\n\nHi", "", "\n\nHi"),
        ("<think>\nso\n</think>\n\nHi", "so", "Hi"),
        ("\n<think>so</think>Hi", "so", "Hi"),
        ("a <think>b</think>", "", "a <think>b</think>"),
        ("</think>\n\nHi", "", "</think>\n\nHi"),
        ("<thin", "", "<thin"),
        ("<", "", "<"),
    ] {
        check(text, &off, reasoning, content);
    }
}

#[test]
fn special_tokens_are_shown_only_on_request() {
    let text = "a<|im_start|>b<|im_end|>";
    assert_eq!(collect(&tokens(text), OutputOptions::default()).1, "ab");
    let keep = OutputOptions { keep_special: true, ..OutputOptions::default() };
    assert_eq!(collect(&tokens(text), keep).1, text);
}

#[test]
fn padding_ids_are_nothing() {
    assert_eq!(collect(&[1021, tokens("a")[0], u32::MAX], OutputOptions::default()).1, "a");
}

#[test]
fn stop_strings_are_searched_in_content_only() {
    let options = OutputOptions { stop: vec!["END".into(), "\n\n".into()], ..thinking() };
    for ids in [tokens("END\n\nx</think>\n\nyes END no"), bytes("END\n\nx</think>\n\nyes END no")] {
        let shown = collect(&ids, options.clone());
        assert_eq!(shown, ("END\n\nx".into(), "yes ".into(), Some("END".into())));
    }
    let shown = collect(&tokens("x</think>\n\nyes EN"), options);
    assert_eq!(shown, ("x".into(), "yes EN".into(), None));
}

#[test]
fn text_that_cannot_change_is_shown_at_once() {
    let mut stream = OutputStream::new(&NANO, OutputOptions { stop: vec!["STOP".into()], ..thinking() });
    let mut shown = Vec::new();
    for id in bytes("ab </think>\n\ncd S") {
        shown.push(stream.push(id).deltas.len());
    }
    // a, b at once; the blank and the marker are held; c, d and the blank at once; S may begin STOP.
    assert_eq!(shown, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0]);
}

#[test]
fn channels() {
    let mut stream = OutputStream::new(&NANO, thinking());
    let mut channel = |text: &str| {
        let ids = tokens(text);
        assert_eq!(ids.len(), 1, "{text:?} is one token");
        stream.push(ids[0]).channel
    };
    assert_eq!(channel("a"), Channel::Reasoning);
    assert_eq!(channel("</think>"), Channel::Marker);
    assert_eq!(channel("\n\n"), Channel::Marker);
    assert_eq!(channel("a"), Channel::Content);
    assert_eq!(channel("</think>"), Channel::Content);
    assert_eq!(channel("<|im_end|>"), Channel::Marker);
}

fn answer() -> impl Strategy<Value = String> {
    let parts = [
        "a",
        "b",
        "ab",
        " ",
        "\n",
        "\n\n",
        "<think>",
        "</think>",
        "<",
        "</",
        "think>",
        "🙂",
        "é",
        "漢",
        "<|im_end|>",
        "stop",
        "st",
        "op",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..24).prop_map(|parts| parts.concat())
}

/// Cuts a text into tokens at random: whole markers stay whole or are spelled out, as `fine` says byte by byte.
fn cut(text: &str, fine: &[bool]) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut pattern = fine.iter().cycle();
    for id in tokens(text) {
        let special = NANO.tokenizer().is_special(id);
        match NANO.tokenizer().token_bytes(id) {
            Some(bytes) if !special && *pattern.next().unwrap() => {
                ids.extend(bytes.iter().map(|&byte| NANO.tokenizer().byte_token(byte).unwrap()));
            }
            _ => ids.push(id),
        }
    }
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(common::cases(1500)))]

    #[test]
    fn the_cut_does_not_show(
        text in answer(),
        fine in prop::collection::vec(any::<bool>(), 1..30),
        starts_in_reasoning in any::<bool>(),
        stop in prop::collection::vec("[abo<]{1,3}|stop|\n\n", 0..3),
    ) {
        let options = OutputOptions { starts_in_reasoning, stop, ..OutputOptions::default() };
        let coarse = collect(&tokens(&text), options.clone());
        prop_assert_eq!(&collect(&cut(&text, &fine), options.clone()), &coarse);
        prop_assert_eq!(&collect(&cut(&text, &[true]), options), &coarse);
    }

    #[test]
    fn nothing_is_lost_but_blanks_and_markers(text in answer(), starts_in_reasoning in any::<bool>()) {
        let options = OutputOptions { starts_in_reasoning, ..OutputOptions::default() };
        let (reasoning, content, _) = collect(&tokens(&text), options);
        let visible = |text: &str| {
            text.replace("<|im_end|>", "").replace("<think>", "").replace("</think>", "").replace(char::is_whitespace, "")
        };
        prop_assert_eq!(visible(&text), visible(&reasoning) + &visible(&content));
    }

    #[test]
    fn detokenizer_equals_decoding(bytes in prop::collection::vec(any::<u8>(), 0..40), size in 1usize..5) {
        let (mut stream, mut shown) = (Detokenizer::new(), String::new());
        for part in bytes.chunks(size) {
            shown.push_str(&stream.push_bytes(part));
            // What is shown is final, and complete but for at most three bytes of one character.
            prop_assert!(String::from_utf8_lossy(&bytes).starts_with(&shown));
        }
        shown.push_str(&stream.finish());
        prop_assert_eq!(shown, String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn valid_text_has_no_replacement_characters(text in "\\PC{0,20}", size in 1usize..4) {
        let (mut stream, mut shown) = (Detokenizer::new(), String::new());
        for part in text.as_bytes().chunks(size) {
            shown.push_str(&stream.push_bytes(part));
        }
        prop_assert_eq!(shown + &stream.finish(), text);
    }

    #[test]
    fn stop_matcher_equals_a_search(
        parts in prop::collection::vec("[abé]{0,4}", 0..8),
        stops in prop::collection::vec("[abé]{0,4}", 0..4),
    ) {
        let text = parts.concat();
        let mut matcher = StopMatcher::new(stops.clone());
        let (mut shown, mut matched) = (String::new(), None);
        for part in &parts {
            let (text, stop) = matcher.push(part);
            shown.push_str(&text);
            prop_assert!(matched.is_none() || text.is_empty() && stop.is_none());
            matched = matched.or(stop);
        }
        shown.push_str(&matcher.finish());
        prop_assert_eq!((shown, matched), search(&text, &stops));
    }
}

/// The match that ends first, the longest of those: looked for at every end.
fn search(text: &str, stops: &[String]) -> (String, Option<String>) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let ending = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
        if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
            return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
        }
    }
    (text.to_owned(), None)
}
