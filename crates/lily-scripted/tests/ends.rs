//! How answers end: with one reason, the same streamed and not.

mod common;

use common::{ask, setup};
use serde_json::{Value, json};

const CALL: &str = "<tool_call>\n<function=now>\n</function>\n</tool_call>";

#[test]
fn every_answer_ends_with_one_reason_streamed_or_not() {
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]);
    let stop = json!({"stop": ["b"]});
    for (pieces, more, wanted) in [
        (json!(["a"]), json!({}), "stop"),
        (json!([]), json!({}), "stop"),
        (json!(["ab"]), stop, "stop"),
        (json!(["a", "b", "c"]), json!({"max_tokens": 2}), "length"),
        (json!([CALL]), json!({}), "tool_calls"),
        (json!(["a\n", CALL, CALL]), json!({}), "tool_calls"),
        (json!(["a\n", CALL]), json!({"parallel_tool_calls": false}), "tool_calls"),
        (json!([CALL]), json!({"tool_choice": "none"}), "stop"),
        (json!(["<tool_call>\n<function=no"]), json!({}), "stop"),
    ] {
        let server = setup(&json!({"thinking": false, "pieces": pieces}).to_string()).start();
        let mut body = ask("hi", json!({"tools": tools, "n": 2}));
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        let reply = server.chat(body.clone());
        assert_eq!(reply.status, 200, "{}", reply.text());
        for choice in reply.json()["choices"].as_array().expect("choices") {
            assert_eq!(choice["finish_reason"], wanted, "{pieces} {more}");
        }
        body["stream"] = json!(true);
        for index in 0..2 {
            let events = server.chat(body.clone()).events();
            let of_choice = |event: &&Value| event["choices"][0]["index"] == index;
            let reasons: Vec<&Value> = events
                .iter()
                .filter(of_choice)
                .map(|event| &event["choices"][0]["finish_reason"])
                .filter(|reason| !reason.is_null())
                .collect();
            assert_eq!(reasons, [wanted], "{pieces} {more}, streamed");
        }
    }
}
