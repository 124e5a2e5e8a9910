//! Objects of a request whose parts would change the answer and are not offered, and what is kept of a prompt's text.

mod common;

use common::{ask, setup};
use serde_json::json;

const SCRIPT: &str = "{\"pieces\": [\"once\"]}\n{\"match\": \"e\u{301}te\u{301}\", \"pieces\": [\"found\"]}";

#[test]
fn what_is_not_offered_inside_is_named() {
    let server = setup(SCRIPT).start();
    for (field, part, value) in [
        ("reasoning", "exclude", json!({"exclude": true})),
        ("chat_template_kwargs", "documents", json!({"documents": ["x"]})),
        ("chat_template_kwargs", "add_generation_prompt", json!({"add_generation_prompt": false})),
    ] {
        let reply = server.chat(ask("hi", json!({ field: value })));
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["code"]),
            (400, &json!("unsupported_parameter")),
            "{field}.{part}: {error}"
        );
        assert_eq!(error["param"], json!(format!("{field}.{part}")));
    }
    for taken in [
        json!({"thinking": {"type": "enabled"}}),
        json!({"reasoning": {"exclude": false, "max_tokens": null}}),
        json!({"chat_template_kwargs": {"add_generation_prompt": true, "unheard_of": 1}}),
    ] {
        assert_eq!(server.chat(ask("hi", taken.clone())).status, 200, "{taken}");
    }
}

#[test]
fn prompts_are_kept_and_matched_as_rendered_before_normalization() {
    let server = setup(SCRIPT).start();
    let reply = server.chat(ask("e\u{301}te\u{301}", json!({"enable_thinking": false})));
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "found");
    let records = server.get("/debug/requests").json();
    let prompt = records[0]["prompt"].as_str().expect("a prompt");
    assert!(prompt.contains("user\ne\u{301}te\u{301}<|im_end|>"), "{prompt:?}");
}
