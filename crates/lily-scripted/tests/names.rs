//! Fields that one family names and another is sent: what can be obeyed is, and the rest is refused by name. Nothing that would
//! change the answer is passed over in silence.

mod common;

use common::setup;
use serde_json::{Value, json};

const LIMITS: [&str; 4] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"];

/// Each family's path, the least that it needs, and its own name of the limit.
fn families() -> [(&'static str, Value, &'static str); 4] {
    let messages = json!({"messages": [{"role": "user", "content": "hi"}]});
    [
        ("/v1/chat/completions", messages.clone(), "max_completion_tokens"),
        ("/v1/completions", json!({"prompt": "hi"}), "max_tokens"),
        ("/v1/messages", messages, "max_tokens"),
        ("/v1/responses", json!({"input": "hi"}), "max_output_tokens"),
    ]
}

fn with(base: &Value, more: Value) -> Value {
    let mut body = base.clone();
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    body
}

/// The text of an answer of any family.
fn said(answer: &Value) -> String {
    let places =
        ["/choices/0/message/content", "/choices/0/text", "/content/0/text", "/output/0/content/0/text"];
    let text = places.iter().find_map(|place| answer.pointer(place)?.as_str());
    text.unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
}

#[test]
fn the_limit_is_obeyed_by_every_familys_name() {
    let server = setup("{\"thinking\": false, \"pieces\": [\"one\", \" two\"]}").start();
    let asked = |path: &str, body: Value| {
        let reply = server.ask_at(path, body.clone());
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text());
        server.engine.records().last().expect("a request").max_tokens
    };
    for (path, base, own) in families() {
        for name in LIMITS {
            assert_eq!(asked(path, with(&base, json!({name: 9}))), Some(9), "{path} {name}");
            // As llama.cpp's and LM Studio's clients ask for an answer of any length.
            assert_eq!(asked(path, with(&base, json!({name: -1}))), None, "{path} {name}: -1");
            if name != own {
                assert_eq!(asked(path, with(&base, json!({name: 9, own: 7}))), Some(7), "{path} {name}");
            }
            for wrong in [json!(0), json!(-2), json!("9"), json!(1.5)] {
                let reply = server.ask_at(path, with(&base, json!({name: wrong})));
                assert_eq!(reply.status, 400, "{path} {name} {wrong}");
                assert!(reply.text().contains(&format!("`{name}`")), "{path}: {}", reply.text());
            }
        }
    }
}

#[test]
fn a_response_tells_the_limit_that_was_obeyed() {
    let server = setup("{\"thinking\": false, \"pieces\": [\"one\"]}").start();
    for (more, told) in [
        (json!({"max_tokens": 9}), json!(9)),
        (json!({"max_output_tokens": 9}), json!(9)),
        (json!({"max_output_tokens": -1}), Value::Null),
    ] {
        let response = server.ask_at("/v1/responses", with(&json!({"input": "hi"}), more)).json();
        assert_eq!(response["max_output_tokens"], told);
    }
}

#[test]
fn stop_strings_are_obeyed_by_every_familys_name() {
    let server = setup("{\"thinking\": false, \"pieces\": [\"one two three\"]}").start();
    for (path, base, _) in families() {
        for name in ["stop", "stop_sequences"] {
            for stop in [json!(" two"), json!(["never", " two"])] {
                let answer = server.ask_at(path, with(&base, json!({name: stop}))).json();
                assert_eq!(said(&answer), "one", "{path} {name}");
            }
            let reply = server.ask_at(path, with(&base, json!({name: 5})));
            assert_eq!((reply.status, reply.text().contains(name)), (400, true), "{path} {name}");
        }
    }
}

#[test]
fn reasoning_is_switched_by_every_name_in_every_family_that_has_it() {
    let server = setup("{\"pieces\": [\"hm</think>\\n\\none\"]}").start();
    let thinks = |path: &str, body: Value| {
        assert_eq!(server.ask_at(path, body.clone()).status, 200, "{path} {body}");
        server.last_prompt().ends_with("<think>\n")
    };
    for (path, base, _) in families().into_iter().filter(|(path, ..)| *path != "/v1/completions") {
        for on in [
            json!({"enable_thinking": true}),
            json!({"thinking": {"type": "enabled"}}),
            json!({"reasoning": {"enabled": true}}),
            json!({"chat_template_kwargs": {"enable_thinking": true}}),
        ] {
            assert!(thinks(path, with(&base, on.clone())), "{path} {on}");
        }
        for off in [
            json!({"enable_thinking": false}),
            json!({"thinking": {"type": "disabled"}}),
            json!({"reasoning": {"effort": "none"}}),
            json!({"reasoning_effort": "none"}),
            json!({"thinking_budget": 0}),
        ] {
            assert!(!thinks(path, with(&base, off.clone())), "{path} {off}");
        }
    }
}

#[test]
fn wishes_of_other_families_are_named() {
    let server = setup("{\"thinking\": false, \"pieces\": [\"one\"]}").start();
    let chat = [
        json!({"system": "x"}),
        json!({"instructions": "x"}),
        json!({"prompt": "x"}),
        json!({"input": "x"}),
        json!({"previous_response_id": "x"}),
        json!({"conversation": "x"}),
    ];
    let completions =
        [json!({"messages": [{}]}), json!({"tools": [{}]}), json!({"continue_final_message": true})];
    let one_answer = [
        json!({"n": 2}),
        json!({"logprobs": true}),
        json!({"top_logprobs": 2}),
        json!({"return_progress": true}),
        json!({"timings_per_token": true}),
    ];
    let every = [
        json!({"mcp_servers": [{}]}),
        json!({"output_format": {"type": "json_schema"}}),
        json!({"regex": "a+"}),
        json!({"truncate_prompt_tokens": 5}),
        json!({"lora": [{"id": 0}]}),
        json!({"images": ["x"]}),
        json!({"reasoning_format": "none"}),
        json!({"text": {"format": {"type": "json_object"}}}),
        json!({"output_config": {"format": {"type": "json_schema"}}}),
    ];
    for (path, base, _) in families() {
        let own: &[Value] = match path {
            "/v1/chat/completions" => &chat,
            "/v1/completions" => &completions,
            _ => &one_answer,
        };
        for wish in own.iter().chain(&every) {
            let reply = server.ask_at(path, with(&base, wish.clone()));
            assert_eq!(reply.status, 400, "{path} {wish}: {}", reply.text());
            let name = wish.as_object().and_then(|wish| wish.keys().next()).expect("a name");
            assert!(reply.text().contains(&format!("`{name}")), "{path}: {}", reply.text());
        }
        let quiet = json!({
            "mcp_servers": [], "regex": "", "lora": [], "images": [], "text": {"format": {"type": "text"}},
            "output_config": {"effort": "low"}, "reasoning_format": "auto", "n": 1, "previous_response_id": null,
            "return_progress": false, "timings_per_token": false,
        });
        let reply = server.ask_at(path, with(&base, quiet));
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    }
    // What would help is said, not only what does not.
    let reply = server.ask_at("/v1/responses", json!({"input": "x", "previous_response_id": "resp_1"}));
    assert!(reply.text().contains("send the whole conversation in `input`"), "{}", reply.text());
}

#[test]
fn one_call_alone_is_asked_for_by_either_name() {
    let call = "<tool_call>\\n<function=f>\\n</function>\\n</tool_call>";
    let server = setup(&format!("{{\"thinking\": false, \"pieces\": [\"{call}\\n{call}\"]}}")).start();
    let calls = |more: Value| {
        let base = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "f", "input_schema": {"type": "object"}}]});
        let answer = server.ask_at("/v1/messages", with(&base, more)).json();
        let blocks = answer["content"].as_array().expect("blocks").clone();
        blocks.iter().filter(|block| block["type"] == "tool_use").count()
    };
    assert_eq!(calls(json!({})), 2);
    assert_eq!(calls(json!({"parallel_tool_calls": false})), 1);
    assert_eq!(calls(json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})), 1);
}
