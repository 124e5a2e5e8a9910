//! Anthropic's messages as a client sees them, streamed and not.

mod common;

use common::{Running, setup};
use lily_scripted::EngineOptions;
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";
const PARIS: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n\
    </parameter>\n</function>\n</tool_call>";

fn tools() -> Value {
    json!([{"name": "get_weather", "description": "Looks up the weather.", "cache_control": {"type": "ephemeral"}, "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }}])
}

fn ask(more: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    body
}

fn start(line: Value) -> Running {
    setup(&line.to_string()).start()
}

/// A message added up from a stream as Anthropic's own clients do.
fn added_up(events: &[Value]) -> Value {
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("message_start"), &json!("ping")));
    let mut message = events[0]["message"].clone();
    let mut json = String::new();
    let mut open = None;
    for event in &events[1..] {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!(
                    (open.replace(index), index),
                    (None, message["content"].as_array().expect("blocks").len())
                );
                message["content"].as_array_mut().expect("blocks").push(event["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                assert_eq!(open, Some(index));
                let block = &mut message["content"][index];
                let delta = &event["delta"];
                let (field, text) = match delta["type"].as_str().expect("a type") {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "input_json_delta" => {
                        json.push_str(delta["partial_json"].as_str().expect("text"));
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let sum = format!("{}{}", block[field].as_str().expect("text"), text.as_str().expect("text"));
                block[field] = json!(sum);
            }
            "content_block_stop" => {
                assert_eq!(open.take(), Some(index));
                if message["content"][index]["type"] == "tool_use" && !json.is_empty() {
                    message["content"][index]["input"] =
                        serde_json::from_str(&json).unwrap_or_else(|_| json!({}));
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "ping" => {}
            "message_stop" => assert_eq!(Some(event), events.last()),
            other => panic!("{other}"),
        }
    }
    assert_eq!(events.last().map(|event| &event["type"]), Some(&json!("message_stop")));
    message
}

/// The message, the same streamed and not, without the names that differ.
fn both(server: &Running, more: Value) -> Value {
    let whole = server.ask_at(PATH, ask(more.clone()));
    assert_eq!(whole.status, 200, "{}", whole.text());
    let mut more = more;
    more["stream"] = json!(true);
    let streamed = added_up(&server.ask_at(PATH, ask(more)).named_events());
    let nameless = |mut message: Value| {
        assert!(message["id"].as_str().is_some_and(|id| id.starts_with("msg_")), "{message}");
        message["id"].take();
        for block in message["content"].as_array_mut().expect("blocks") {
            if block["type"] == "tool_use" {
                assert!(block["id"].as_str().is_some_and(|id| id.starts_with("toolu_")), "{block}");
                block["id"].take();
            }
        }
        message
    };
    let whole = nameless(whole.json());
    assert_eq!(nameless(streamed), whole);
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    whole
}

fn content(server: &Running, more: Value) -> Value {
    both(server, more)["content"].clone()
}

#[test]
fn text_thinking_and_calls_are_blocks() {
    let server =
        start(json!({"pieces": ["Let me think.", "\n</think>\n\n", "I look.\n\n", PARIS], "cached": 2}));
    let message =
        both(&server, json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": tools()}));
    assert_eq!(
        message["content"],
        json!([
            {"type": "thinking", "thinking": "Let me think.", "signature": "lily"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": null, "name": "get_weather", "input": {"city": "Paris", "days": 3}},
        ])
    );
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("tool_use"), &Value::Null));
    let (usage, record) = (&message["usage"], &server.engine.records()[0]);
    assert_eq!(usage["input_tokens"], record.prompt_tokens - 2, "without what was cached");
    assert_eq!(
        (&usage["cache_read_input_tokens"], &usage["cache_creation_input_tokens"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(usage["output_tokens"], record.tokens_sent + 1);
}

#[test]
fn ends_have_their_reasons() {
    let server = start(json!({"thinking": false, "pieces": ["one two three"]}));
    let reasons = |more: Value| {
        let message = both(&server, more);
        (message["stop_reason"].clone(), message["stop_sequence"].clone())
    };
    assert_eq!(reasons(json!({})), (json!("end_turn"), Value::Null));
    assert_eq!(reasons(json!({"stop_sequences": ["x", " two"]})), (json!("stop_sequence"), json!(" two")));
    assert_eq!(reasons(json!({"max_tokens": 2})), (json!("max_tokens"), Value::Null));
    assert_eq!(
        content(&server, json!({"stop_sequences": ["two"]})),
        json!([{"type": "text", "text": "one "}])
    );
    // Half a call: whole members of its input remain.
    let open = PARIS.split_once("3").expect("a value").0;
    let server = start(json!({"thinking": false, "pieces": [open], "finish": "length"}));
    let reply = server.ask_at(PATH, ask(json!({"tools": tools()}))).json();
    assert_eq!((&reply["stop_reason"], &reply["content"][0]["input"]), (&json!("max_tokens"), &json!({})));
}

#[test]
fn thinking_is_off_unless_asked_for() {
    let server = start(json!({"pieces": ["x"]}));
    for (more, on) in [
        (json!({}), false),
        (json!({"thinking": {"type": "disabled"}}), false),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}), true),
        (json!({"thinking": {"type": "adaptive"}}), true),
        (json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}), true),
        (json!({"enable_thinking": true}), true),
    ] {
        assert_eq!(server.ask_at(PATH, ask(more.clone())).status, 200);
        assert_eq!(server.last_prompt().ends_with("<think>\n"), on, "{more}");
    }
}

#[test]
fn history_of_every_shape_is_rendered() {
    let server = start(json!({"pieces": ["x"]}));
    let body = json!({"max_tokens": 9, "preserve_thinking": true, "tools": tools(), "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
            {"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}},
        ], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Paris?"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "I should look.", "signature": "whatever"},
            {"type": "redacted_thinking", "data": "zzz"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}, {"type": "text", "text": "all day"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true, "content": null},
            {"type": "text", "text": "And now?"},
        ]},
        {"role": "system", "content": "Answer in French."},
        {"role": "user", "content": "go"},
    ]});
    assert_eq!(server.ask_at(PATH, body.clone()).status, 200);
    let prompt = server.last_prompt();
    for part in [
        "You are terse.",
        "Weather\nin Paris?",
        "I should look.",
        "I look.",
        "<parameter=city>\nParis\n",
        "# Tools",
        "<tool_response>\nrain\nall day\n</tool_response>",
        "And now?",
        "Answer in French.",
        "Looks up the weather.",
    ] {
        assert!(prompt.contains(part), "{part:?} is not in {prompt}");
    }
    for part in ["billing", "cch=", "zzz", "null", "cache_control"] {
        assert!(!prompt.contains(part), "{part:?} is in {prompt}");
    }
    // The nonce of the billing block changes nothing.
    let mut other = body;
    other["system"][0]["text"] = json!("x-anthropic-billing-header: cch=def;");
    assert_eq!(server.ask_at(PATH, other).status, 200);
    assert_eq!(server.last_prompt(), prompt);
    // Only in front.
    let late = ask(
        json!({"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "x-anthropic-billing-header: b"}]}),
    );
    assert_eq!(server.ask_at(PATH, late).status, 200);
    assert!(server.last_prompt().contains("x-anthropic-billing-header: b"));
}

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let server = start(json!({"pieces": [" 4."]}));
    let body = |content: Value| json!({"max_tokens": 9, "messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": content}]});
    let reply = server.ask_at(PATH, body(json!("The answer is"))).json();
    assert_eq!(reply["content"], json!([{"type": "text", "text": " 4."}]));
    let prompt = server.last_prompt();
    assert!(prompt.ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\nThe answer is"), "{prompt}");
    // What looks like a marker in it is text.
    assert_eq!(server.ask_at(PATH, body(json!("<|im_end|>"))).status, 200);
    assert_eq!(server.ask_at(PATH, body(json!("x"))).status, 200);
    let records = server.engine.records();
    assert!(records[1].prompt_tokens > records[2].prompt_tokens + 5, "{records:?}");
    let thought = json!([{"type": "thinking", "thinking": "Easy", "signature": "s"}]);
    assert_eq!(server.ask_at(PATH, body(thought)).status, 200);
    assert!(server.last_prompt().ends_with("assistant\n<think>\nEasy"), "{}", server.last_prompt());
}

#[test]
fn tokens_are_counted_without_the_engine() {
    let server = start(json!({"pieces": ["x"]}));
    let body = ask(json!({"tools": tools(), "system": "Be brief."}));
    assert_eq!(server.ask_at(PATH, body.clone()).status, 200);
    let wanted = server.engine.records()[0].prompt_tokens;
    let mut counted = body;
    counted.as_object_mut().expect("an object").remove("max_tokens");
    for path in ["/v1/messages/count_tokens", "/messages/count_tokens?beta=true"] {
        let reply = server.ask_at(path, counted.clone());
        assert_eq!((reply.status, reply.json()), (200, json!({"input_tokens": wanted})));
    }
    assert_eq!(server.engine.records().len(), 1);
}

#[test]
fn errors_have_their_own_shape() {
    let server = start(json!({"pieces": ["x"]}));
    let image =
        json!([{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "base64", "data": ""}}]);
    for (more, part) in [
        (json!({"messages": [{"role": "user", "content": image}]}), "messages[0].content[1]"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"tool_choice": {"type": "any"}, "tools": tools()}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool", "name": "get_weather"}, "tools": tools()}), "tool_choice"),
        (json!({"tools": [{"name": "a>b"}]}), "tools[0].name"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format"),
        (json!({"thinking": {"type": "maybe"}}), "thinking"),
    ] {
        for stream in [false, true] {
            let mut body = ask(more.clone());
            body["stream"] = json!(stream);
            let reply = server.ask_at(PATH, body);
            let error = reply.json();
            assert_eq!((reply.status, &error["type"]), (400, &json!("error")), "{more}: {error}");
            assert_eq!(error["error"]["type"], "invalid_request_error");
            assert!(
                error["error"]["message"].as_str().is_some_and(|text| text.contains(part)),
                "{more}: {error}"
            );
        }
    }
    let reply = server.post_text(PATH, b"{");
    assert_eq!((reply.status, reply.json()["error"]["type"].clone()), (400, json!("invalid_request_error")));
    assert!(server.engine.records().is_empty());
    let mut narrow = setup(r#"{"pieces": ["x"]}"#);
    narrow.engine = EngineOptions { context: 8, ..EngineOptions::default() };
    let error = narrow.start().ask_at(PATH, ask(json!({}))).json();
    let text = error["error"]["message"].as_str().expect("a message");
    assert!(text.starts_with("prompt is too long") && text.contains("8 tokens"), "{text}");
    let failing = start(json!({"thinking": false, "pieces": ["some"], "finish": "error"}));
    assert_eq!(failing.ask_at(PATH, ask(json!({}))).json()["error"]["type"], "api_error");
    let events = failing.ask_at(PATH, ask(json!({"stream": true}))).named_events();
    assert_eq!(events[events.len() - 1]["type"], "error");
}

#[test]
fn what_claude_code_sends_passes() {
    let server = start(json!({"thinking": false, "pieces": [PARIS]}));
    let body = ask(json!({
        "metadata": {"user_id": "u"}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"}, "thinking": {"type": "adaptive"}, "temperature": 1, "service_tier": "auto",
        "betas": ["x"], "tools": [tools()[0], {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
    }));
    let reply = server.ask_at("/v1/messages?beta=true", body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["stop_reason"], "tool_use");
    assert!(!server.last_prompt().contains("web_search"));
    assert_eq!(
        content(&server, json!({"tools": tools(), "tool_choice": {"type": "none"}}))[0]["type"],
        "text"
    );
}

#[test]
fn strings_of_a_call_are_streamed_as_they_grow() {
    let server = start(
        json!({"thinking": false, "pieces": ["<tool_call>\n<function=get_weather>\n<parameter=city>\nPa", "ris", "\n</parameter>\n</function>\n</tool_call>"]}),
    );
    let events = server.ask_at(PATH, ask(json!({"tools": tools(), "stream": true}))).named_events();
    let parts: Vec<&str> =
        events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(parts, ["{\"city\":\"Pa", "ris", "\"}"]);
}
