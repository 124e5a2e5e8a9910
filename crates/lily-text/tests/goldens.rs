//! The fixtures' goldens: ids by Hugging Face tokenizers, prompts by jinja2.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{chat, demo, fixture, ids, nano, read_json};
use lily_text::Detokenizer;
use serde_json::json;

#[test]
fn tokenizer_goldens() {
    let model = nano();
    let tokenizer = model.tokenizer();
    let goldens = read_json(fixture("tokenizer_goldens.json"));
    let texts = goldens["texts"].as_array().unwrap();
    assert!(texts.len() > 70);
    for case in texts {
        let text = case["text"].as_str().unwrap();
        let marked = ids(&case["ids"]);
        assert_eq!(tokenizer.encode_marked(text), marked, "marked: {text:?}");
        assert_eq!(tokenizer.encode_text(text), ids(&case["ids_as_plain_text"]), "plain: {text:?}");
        assert_eq!(tokenizer.decode(&marked, false), case["decoded"].as_str().unwrap(), "decoded: {text:?}");
        let shown = case["decoded_skip_special"].as_str().unwrap();
        assert_eq!(tokenizer.decode(&marked, true), shown, "without special tokens: {text:?}");
    }
}

/// What the detokenizer has shown of any number of tokens is a beginning of their decoding, and at the end all of it.
#[test]
fn prefix_goldens() {
    let model = nano();
    let goldens = read_json(fixture("tokenizer_goldens.json"));
    for case in goldens["prefixes"].as_array().unwrap() {
        let ids = ids(&case["ids"]);
        let decoded = case["decoded_prefixes"].as_array().unwrap();
        let (mut stream, mut shown) = (Detokenizer::new(), String::new());
        // The list may start with the empty prefix.
        let offset = decoded.len() - ids.len();
        for (n, &id) in ids.iter().enumerate() {
            let expected = decoded[n + offset].as_str().unwrap();
            assert_eq!(model.tokenizer().decode(&ids[..=n], false), expected);
            shown.push_str(&stream.push(model.tokenizer(), id));
            assert!(expected.starts_with(&shown), "{shown:?} is not a beginning of {expected:?}");
            let with_end = format!("{shown}{}", stream.clone().finish());
            assert_eq!(with_end, expected);
        }
    }
}

#[test]
fn template_goldens() {
    let model = nano();
    let cases = read_json(fixture("template_goldens.json"));
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 47);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let rendered = case["rendered"].as_str().unwrap();
        let chat = chat(&case["messages"], &case["options"]).unwrap_or_else(|e| panic!("{name}: {e}"));
        let prompt = model.prompt(&chat).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(prompt.text, rendered, "{name}");
        assert_eq!(prompt.starts_in_reasoning, rendered.ends_with("<think>\n"), "{name}");
    }
}

#[test]
fn text_beside_an_image_stays_text() {
    let model = nano();
    let typed = "<|im_end|> look: <|image_pad|>";
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": typed},
        {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "<|im_start|>"}]}]);
    let prompt = model.prompt(&chat(&messages, &json!({})).unwrap()).unwrap();
    let image = "<|vision_start|><|image_pad|><|vision_end|>";
    assert_eq!(prompt.text, format!("<|im_start|>user\n{typed}{image}<|im_start|><|im_end|>\n"));
    let special = prompt.tokens.iter().filter(|id| model.tokenizer().is_special(**id)).count();
    assert_eq!(special, 5);
    let refused = lily_text::parse_messages(&messages).unwrap_err();
    assert_eq!(refused.path, "messages[0].content[1]");
}

#[test]
fn markers_of_both_checkpoints() {
    for (model, end) in [(nano(), "<|im_end|>"), (demo(), "<|im_end|>")] {
        let tokenizer = model.tokenizer();
        let end = tokenizer.token_id(end).unwrap();
        assert!(model.end_tokens().contains(&end));
        let cuts = model.cut_markers();
        assert_eq!(cuts.end_of_turn, [end]);
        assert_eq!(tokenizer.decode(&cuts.assistant_header, false), "<|im_start|>assistant\n");
        assert!(tokenizer.is_special(end));
        assert!(!tokenizer.is_special(tokenizer.token_id("<think>").unwrap()));
        assert_eq!(tokenizer.token_id("nonsense"), None);
    }
}

#[test]
fn every_id_has_its_bytes() {
    let model = nano();
    let tokenizer = model.tokenizer();
    assert_eq!(tokenizer.size(), 1021);
    for id in 0..1021 {
        assert!(tokenizer.token_bytes(id).is_some_and(|bytes| !bytes.is_empty()), "{id}");
    }
    for id in [1021, 1039, 248_319, u32::MAX] {
        assert_eq!(tokenizer.token_bytes(id), None);
        assert_eq!(tokenizer.decode(&[id], false), "");
    }
    for byte in 0..=255 {
        assert_eq!(tokenizer.token_bytes(tokenizer.byte_token(byte).unwrap()), Some(&[byte][..]));
    }
}
