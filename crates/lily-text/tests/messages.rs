//! The normaliser: what ordinary clients send, and what is refused where.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use lily_text::{Message, Role, parse_messages};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn one(message: Value) -> Message {
    let mut list = parse_messages(&json!([message])).unwrap();
    assert_eq!(list.len(), 1);
    list.remove(0)
}

#[test]
fn contents() {
    for (content, text) in [
        (json!("a"), "a"),
        (json!(null), ""),
        (json!([]), ""),
        (json!(["a", "b"]), "ab"),
        (
            json!([{"type": "text", "text": "a "}, {"type": "input_text", "text": "b"}, {"text": "c"}, null]),
            "a bc",
        ),
        (json!({"type": "text", "text": "a"}), "a"),
        (json!([{"type": "text", "text": null}]), ""),
        (json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]), "a"),
    ] {
        assert_eq!(one(json!({"role": "user", "content": content})).content, text, "{content}");
    }
    assert_eq!(one(json!({"role": "assistant"})).content, "");
    assert_eq!(one(json!({"role": "assistant", "content": null, "refusal": "No."})).content, "No.");
}

#[test]
fn roles() {
    for (name, role) in [
        ("system", Role::System),
        ("developer", Role::Developer),
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
        ("function", Role::Tool),
    ] {
        assert_eq!(one(json!({"role": name, "content": "x"})).role, role);
    }
}

#[test]
fn reasoning_has_two_names() {
    let reasoning = |message: Value| one(message).reasoning;
    assert_eq!(
        reasoning(json!({"role": "assistant", "content": "a", "reasoning_content": "r"})),
        Some("r".into())
    );
    assert_eq!(reasoning(json!({"role": "assistant", "content": "a", "reasoning": "r"})), Some("r".into()));
    let both = json!({"role": "assistant", "content": "a", "reasoning_content": null, "reasoning": "r"});
    assert_eq!(reasoning(both), Some("r".into()));
    assert_eq!(reasoning(json!({"role": "assistant", "content": "<think>r</think>a"})), None);
    assert_eq!(reasoning(json!({"role": "user", "content": "a", "reasoning": "r"})), None);
}

#[test]
fn tool_calls() {
    let arguments = |arguments: Value| {
        let function = json!({"name": "f", "arguments": arguments});
        let call = json!({"id": "c", "type": "function", "function": function});
        one(json!({"role": "assistant", "content": null, "tool_calls": [call]})).tool_calls[0]
            .arguments
            .clone()
    };
    assert_eq!(arguments(json!("{\"a\": 1.0, \"b\": [true]}")), json!({"a": 1.0, "b": [true]}));
    assert_eq!(arguments(json!({"a": "x"})), json!({"a": "x"}));
    for empty in [json!(""), json!(" "), json!(null), json!("null"), json!("{}")] {
        assert_eq!(arguments(empty.clone()), json!({}), "{empty}");
    }
    assert_eq!(arguments(json!("{\"a\": 1")), json!({"arguments": "{\"a\": 1"}));
    assert_eq!(arguments(json!("[1]")), json!({"arguments": "[1]"}));
    assert_eq!(arguments(json!([1])), json!({"arguments": [1]}));
    let flat = one(json!({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}));
    assert_eq!((flat.tool_calls[0].name.as_str(), &flat.tool_calls[0].id), ("f", &None));
    let old = one(json!({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}));
    assert_eq!(old.tool_calls[0].name, "f");
    let result = one(
        json!({"role": "tool", "tool_call_id": "c", "name": "f", "content": [{"type": "text", "text": "1"}]}),
    );
    assert_eq!((result.tool_call_id.as_deref(), result.name.as_deref()), (Some("c"), Some("f")));
}

#[test]
fn what_is_refused_names_its_place() {
    let good = json!({"role": "user", "content": "x"});
    for (messages, path, part) in [
        (json!("x"), "messages", "expected an array"),
        (json!([good, 3]), "messages[1]", "expected an object, found a number"),
        (json!([good, {"content": "x"}]), "messages[1].role", "needs a role"),
        (json!([{"role": "wizard", "content": "x"}]), "messages[0].role", "\"wizard\""),
        (json!([{"role": 1}]), "messages[0].role", "expected a string"),
        (json!([{"role": "user", "content": 5}]), "messages[0].content", "found a number"),
        (
            json!([good, good, {"role": "user", "content": ["a", {"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[2].content[1]",
            "\"image_url\"",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_audio"}]}]),
            "messages[0].content[0]",
            "\"input_audio\"",
        ),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0]", "\"text\""),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": 1}]}]),
            "messages[0].content[0].text",
            "a number",
        ),
        (json!([{"role": "user", "content": [{"x": 1}]}]), "messages[0].content[0]", "needs a type"),
        (json!([{"role": "assistant", "tool_calls": {}}]), "messages[0].tool_calls", "an array"),
        (json!([{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls[0]", "name"),
        (
            json!([{"role": "assistant", "tool_calls": [{"function": {"name": null}}]}]),
            "messages[0].tool_calls[0].function.name",
            "null",
        ),
        (
            json!([{"role": "tool", "content": "x", "tool_call_id": 4}]),
            "messages[0].tool_call_id",
            "a number",
        ),
    ] {
        let error = parse_messages(&messages).unwrap_err();
        assert_eq!(error.path, path, "{messages}");
        assert!(error.reason.contains(part), "{error}");
        assert_eq!(error.to_string(), format!("{path}: {}", error.reason));
    }
    let long = "x".repeat(10_000);
    assert!(parse_messages(&json!([{"role": long}])).unwrap_err().reason.len() < 300);
}

/// JSON made of the names that the normaliser looks for.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let names = [
        "role",
        "content",
        "text",
        "type",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "reasoning",
        "id",
        "user",
        "assistant",
        "image_url",
        "refusal",
        "",
    ];
    let name = prop::sample::select(names.to_vec());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        name.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        let fields = prop::collection::vec((name.clone(), inner.clone()), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::from),
            fields.prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>()
            )),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn never_panics(messages in prop::collection::vec(arbitrary_json(), 0..4)) {
        if let Err(error) = parse_messages(&Value::from(messages)) {
            prop_assert!(error.path.starts_with("messages"));
        }
    }

    #[test]
    fn never_panics_on_messages(role in "system|user|assistant|tool", content in arbitrary_json(), calls in arbitrary_json()) {
        let message = json!({"role": role, "content": content, "tool_calls": calls, "reasoning": content});
        let _ = parse_messages(&json!([message]));
    }
}
