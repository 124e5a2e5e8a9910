//! OpenAI's responses as a client sees them, streamed and not.

mod common;

use common::{Running, setup};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";
const PARIS: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n\
    </parameter>\n</function>\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "name": "get_weather", "description": "Looks up the weather.", "strict": true, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }}])
}

fn start(line: Value) -> Running {
    setup(&line.to_string()).start()
}

/// Without the names that differ from answer to answer.
fn nameless(mut response: Value) -> Value {
    for name in ["id", "created_at"] {
        assert!(!response[name].is_null());
        response[name].take();
    }
    for item in response["output"].as_array_mut().expect("items") {
        for name in ["id", "call_id"] {
            if let Some(id) = item.get_mut(name) {
                assert!(id.take().is_string());
            }
        }
    }
    response
}

/// The response, the same streamed and not. The stream's own order is checked.
fn both(server: &Running, body: Value) -> Value {
    let reply = server.ask_at(PATH, body.clone());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = nameless(reply.json());
    let mut body = body;
    body["stream"] = json!(true);
    let events = server.ask_at(PATH, body).named_events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    let last = events.last().expect("events");
    let status = last["response"]["status"].as_str().expect("a status");
    assert_eq!(last["type"], format!("response.{status}"));
    assert_eq!(nameless(last["response"].clone()), whole);
    for (index, item) in last["response"]["output"].as_array().expect("items").iter().enumerate() {
        let own: Vec<&Value> = events.iter().filter(|event| event["output_index"] == index).collect();
        assert_eq!(
            (&own[0]["type"], &own[0]["item"]["status"]),
            (&json!("response.output_item.added"), &json!("in_progress"))
        );
        assert_eq!(
            (&own[own.len() - 1]["type"], &own[own.len() - 1]["item"]),
            (&json!("response.output_item.done"), item)
        );
        let sum: String = own.iter().filter_map(|event| event["delta"].as_str()).collect();
        let text = item.get("arguments").unwrap_or(&item["content"][0]["text"]);
        assert_eq!(*text, sum);
        let inner = own.iter().filter(|event| event["item_id"].is_string());
        assert!(inner.clone().count() > 0 && inner.clone().all(|event| event["item_id"] == item["id"]));
    }
    whole
}

#[test]
fn reasoning_text_and_calls_are_items() {
    let line = json!({"pieces": ["Let me think.", "\n</think>\n\n", "I look.\n\n", PARIS], "cached": 2});
    let server = start(line);
    let response = both(&server, json!({"input": "Weather?", "tools": tools(), "instructions": "Be brief."}));
    assert_eq!(
        response["output"],
        json!([
            {"id": null, "type": "reasoning", "status": "completed", "summary": [],
                "content": [{"type": "reasoning_text", "text": "Let me think."}], "encrypted_content": null},
            {"id": null, "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
            {"id": null, "type": "function_call", "status": "completed", "call_id": null, "name": "get_weather",
                "arguments": "{\"city\":\"Paris\",\"days\":3}"},
        ])
    );
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
    assert_eq!((&response["instructions"], &response["store"]), (&json!("Be brief."), &json!(false)));
    let record = &server.engine.records()[0];
    assert!(record.prompt.contains("Be brief.") && record.prompt.contains("Looks up the weather."));
    let usage = &response["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["input_tokens_details"]["cached_tokens"]),
        (&json!(record.prompt_tokens), &json!(2))
    );
    assert_eq!(usage["output_tokens"], record.tokens_sent + 1);
    assert!(usage["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0));
}

#[test]
fn a_limit_makes_a_response_incomplete() {
    let server = start(json!({"thinking": false, "pieces": ["a", "b", "c"]}));
    let response = both(&server, json!({"input": "hi", "max_output_tokens": 2}));
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["output"][0]["content"][0]["text"], "ab");
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["max_output_tokens"], 2);
    let failing = start(json!({"thinking": false, "pieces": ["some"], "finish": "error"}));
    let events = failing.ask_at(PATH, json!({"input": "hi", "stream": true})).named_events();
    let last = &events[events.len() - 1];
    assert_eq!(
        (&last["type"], &last["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("server_error"))
    );
}

#[test]
fn items_of_every_shape_are_rendered() {
    let server = start(json!({"pieces": ["x"]}));
    let input = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "Be exact."}]},
        {"type": "message", "role": "user", "content": "Weather in Paris?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I should look."}], "encrypted_content": null},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Paris\"}"},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": ""},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
    ]);
    let reply = server.ask_at(PATH, json!({"input": input, "tools": tools()}));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = server.last_prompt();
    let turn = "I should look.\n</think>\n\nI look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n";
    for part in ["Be exact.", "Weather in Paris?", turn, "<tool_response>\nrain\n", "<tool_response>\nsun\n"]
    {
        assert!(prompt.contains(part), "{part:?} is not in {prompt}");
    }
    assert_eq!(prompt.matches("<|im_start|>assistant").count(), 2, "one turn, and the one to come: {prompt}");
}

#[test]
fn what_codex_sends_passes() {
    let server = start(json!({"thinking": false, "pieces": ["x"]}));
    let body = json!({
        "model": "m", "instructions": "You are Codex.", "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [tools()[0], {"type": "web_search", "external_web_access": false}, {"type": "namespace", "name": "n", "tools": []},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "image_generation"}, {"type": "local_shell"}],
        "tool_choice": "auto", "parallel_tool_calls": false, "reasoning": {"effort": "medium", "summary": "auto"}, "store": false, "stream": true,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"a": "b"}, "text": {"verbosity": "low"},
    });
    let reply = server.ask_at(PATH, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        reply.named_events().last().map(|event| event["type"].clone()),
        Some(json!("response.completed"))
    );
    let prompt = server.last_prompt();
    assert!(
        prompt.contains("get_weather") && !prompt.contains("apply_patch") && !prompt.contains("web_search"),
        "{prompt}"
    );
    // A probe of whether the server is there.
    for input in [json!(""), json!([])] {
        let probe = server.ask_at(PATH, json!({"input": input, "max_output_tokens": 1}));
        assert_eq!(probe.status, 200, "{}", probe.text());
    }
}

#[test]
fn what_is_not_offered_is_named() {
    let server = start(json!({"pieces": ["x"]}));
    for (more, code, param) in [
        (json!({"input": null}), "missing_required_parameter", "input"),
        (json!({"input": 5}), "invalid_value", "input"),
        (json!({"input": [5]}), "invalid_value", "input[0]"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "unsupported_parameter", "input[0]"),
        (json!({"input": [{"type": "function_call"}]}), "missing_required_parameter", "input[0].name"),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c"}]}),
            "missing_required_parameter",
            "input[0].output",
        ),
        (
            json!({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "invalid_messages",
            "input[1].content[0]",
        ),
        (json!({"previous_response_id": "resp_1"}), "unsupported_parameter", "previous_response_id"),
        (json!({"conversation": "c"}), "unsupported_parameter", "conversation"),
        (json!({"background": true}), "unsupported_parameter", "background"),
        (json!({"store": true}), "unsupported_parameter", "store"),
        (json!({"include": ["message.output_text.logprobs"]}), "unsupported_parameter", "include"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "unsupported_parameter", "text.format"),
        (json!({"tool_choice": "required", "tools": tools()}), "unsupported_parameter", "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "name": "get_weather"}, "tools": tools()}),
            "unsupported_parameter",
            "tool_choice",
        ),
        (json!({"tools": [{"type": "function"}]}), "missing_required_parameter", "tools[0].name"),
        (json!({"top_logprobs": 3}), "unsupported_parameter", "top_logprobs"),
    ] {
        let mut body = json!({"input": "hi"});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        let reply = server.ask_at(PATH, body);
        assert_eq!(
            (reply.error(), &reply.json()["error"]["param"]),
            ((400, code.into()), &json!(param)),
            "{more}"
        );
    }
    assert!(server.engine.records().is_empty());
    assert_eq!(server.get("/v1/responses/resp_1").error(), (404, "response_not_found".into()));
}
