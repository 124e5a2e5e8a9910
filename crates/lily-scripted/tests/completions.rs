//! Plain completions as a client sees them, streamed and not.

mod common;

use common::{Running, setup};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

fn start(pieces: Value) -> Running {
    setup(&json!({"thinking": false, "pieces": pieces}).to_string()).start()
}

/// Text and finish reason of each choice, the same streamed and not.
fn both(server: &Running, body: Value) -> Vec<(String, String)> {
    let reply = server.ask_at(PATH, body.clone());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = reply.json();
    assert_eq!(whole["object"], "text_completion");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let choices = whole["choices"].as_array().expect("choices");
    let wanted: Vec<(String, String)> =
        choices.iter().map(|choice| (text(&choice["text"]), text(&choice["finish_reason"]))).collect();
    let mut body = body;
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let events = server.ask_at(PATH, body).events();
    let mut added = vec![(String::new(), String::new()); wanted.len()];
    for choice in events.iter().filter_map(|event| event["choices"].as_array()).flatten() {
        let (sum, finish) = &mut added[choice["index"].as_u64().expect("an index") as usize];
        assert_eq!(finish, "", "nothing follows the end");
        sum.push_str(&text(&choice["text"]));
        finish.push_str(&text(&choice["finish_reason"]));
    }
    assert_eq!(added, wanted);
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    assert_eq!(events[events.len() - 2]["usage"], whole["usage"]);
    wanted
}

fn said(text: &str, finish: &str) -> (String, String) {
    (text.to_owned(), finish.to_owned())
}

#[test]
fn text_goes_on_as_it_is() {
    let server = start(json!([" <think>", "x</think>", " y"]));
    assert_eq!(both(&server, json!({"prompt": "Once"})), [said(" <think>x</think> y", "stop")]);
    assert_eq!(server.last_prompt(), "Once", "no template");
    assert_eq!(server.engine.records()[0].max_tokens, Some(16));
    assert_eq!(both(&server, json!({"prompt": "a", "stop": "x"})), [said(" <think>", "stop")]);
    assert_eq!(both(&server, json!({"prompt": "a", "echo": true})), [said("a <think>x</think> y", "stop")]);
    let long = start(json!(["a", "b", "c"]));
    assert_eq!(both(&long, json!({"prompt": "a", "max_tokens": 2})), [said("ab", "length")]);
}

#[test]
fn prompts_of_every_shape() {
    let server = setup("{\"match\": \"one\", \"thinking\": false, \"pieces\": [\"1\"]}\n{\"thinking\": false, \"pieces\": [\"2\"]}").start();
    assert_eq!(both(&server, json!({"prompt": ["one", "two"]})), [said("1", "stop"), said("2", "stop")]);
    let several = both(&server, json!({"prompt": ["one", "two"], "n": 2, "echo": true}));
    assert_eq!(
        several,
        [said("one1", "stop"), said("one1", "stop"), said("two2", "stop"), said("two2", "stop")]
    );
    let ids = server.ask_at("/tokenize", json!({"content": "one"})).json()["tokens"].clone();
    assert_eq!(both(&server, json!({"prompt": ids})), [said("1", "stop")]);
    assert_eq!(both(&server, json!({"prompt": [ids, "x"]})), [said("1", "stop"), said("2", "stop")]);
}

#[test]
fn log_probabilities_are_lists() {
    let server = start(json!(["ab", " c"]));
    let whole = server.ask_at(PATH, json!({"prompt": "x", "logprobs": 2})).json();
    let lists = &whole["choices"][0]["logprobs"];
    let tokens: Vec<&str> =
        lists["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!(tokens.concat(), "ab c");
    let count = tokens.len();
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[list].as_array().map(Vec::len), Some(count), "{list}");
    }
    assert_eq!(
        (&lists["text_offset"][0], lists["top_logprobs"][0].as_object().map(|top| top.len())),
        (&json!(0), Some(2))
    );
    let events = server.ask_at(PATH, json!({"prompt": "x", "logprobs": 2, "stream": true})).events();
    let list = |name: &str| -> Vec<Value> {
        let lists =
            events.iter().filter_map(|event| event["choices"][0]["logprobs"][name].as_array().cloned());
        lists.flatten().collect()
    };
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(json!(list(name)), lists[name]);
    }
    assert_eq!(server.ask_at(PATH, json!({"prompt": "x"})).json()["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn a_prompt_that_is_echoed_has_log_probabilities_too() {
    let server = start(json!(["ab", " c"]));
    let body = json!({"prompt": ["one two", "x"], "echo": true, "logprobs": 2});
    let texts = both(&server, body.clone());
    assert_eq!(texts, [said("one twoab c", "stop"), said("xab c", "stop")]);
    let whole = server.ask_at(PATH, body.clone()).json();
    let mut streaming = body.clone();
    streaming["stream"] = json!(true);
    let events = server.ask_at(PATH, streaming).events();
    for (index, (text, _)) in texts.iter().enumerate() {
        let lists = &whole["choices"][index]["logprobs"];
        let list = |name: &str| lists[name].as_array().expect("a list").clone();
        let tokens: String = list("tokens").iter().filter_map(Value::as_str).collect();
        assert_eq!(&tokens, text, "prompt and answer");
        assert_eq!((&lists["token_logprobs"][0], &lists["top_logprobs"][0]), (&Value::Null, &Value::Null));
        assert!(list("token_logprobs")[1..].iter().all(Value::is_number));
        assert!(
            list("top_logprobs")[1..].iter().all(|top| top.as_object().is_some_and(|top| top.len() == 2))
        );
        let mut offset = 0;
        for (token, at) in list("tokens").iter().zip(list("text_offset")) {
            assert_eq!(at, offset);
            offset += token.as_str().expect("a token").chars().count();
        }
        let of_choice = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let pieces: Vec<&Value> = of_choice.map(|event| &event["choices"][0]["logprobs"]).collect();
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let added: Vec<Value> =
                pieces.iter().filter_map(|lists| lists[name].as_array().cloned()).flatten().collect();
            assert_eq!(json!(added), lists[name], "{name}");
        }
    }
    // As those ask who score a text: nothing but the prompt.
    let scored = server
        .ask_at(PATH, json!({"prompt": "one two", "echo": true, "logprobs": 0, "max_tokens": 0}))
        .json();
    let choice = &scored["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("one two"), &json!("length")));
    assert_eq!(
        choice["logprobs"]["tokens"].as_array().map(Vec::len),
        scored["usage"]["prompt_tokens"].as_u64().map(|n| n as usize)
    );
    assert_eq!(scored["usage"]["completion_tokens"], 0);
}

#[test]
fn what_is_not_offered_is_named() {
    let server = start(json!(["x"]));
    for (body, code, param) in [
        (json!({}), "missing_required_parameter", "prompt"),
        (json!({"prompt": ""}), "invalid_value", "prompt"),
        (json!({"prompt": []}), "invalid_value", "prompt"),
        (json!({"prompt": {}}), "invalid_value", "prompt"),
        (json!({"prompt": [1, -1]}), "invalid_value", "prompt[1]"),
        (json!({"prompt": [99999999]}), "invalid_value", "prompt[0]"),
        (json!({"prompt": ["a", 5]}), "invalid_value", "prompt[1]"),
        (json!({"prompt": vec!["a"; 65]}), "invalid_value", "prompt"),
        (json!({"prompt": vec!["a"; 20], "n": 4}), "invalid_value", "prompt"),
        (json!({"prompt": "a", "suffix": "b"}), "unsupported_parameter", "suffix"),
        (json!({"prompt": "a", "best_of": 2}), "unsupported_parameter", "best_of"),
        (json!({"prompt": "a", "max_tokens": 0}), "invalid_value", "max_tokens"),
        (json!({"prompt": "a", "timings_per_token": 1}), "invalid_value", "timings_per_token"),
        (json!({"prompt": "a", "logprobs": true}), "invalid_value", "logprobs"),
        (
            json!({"prompt": "a", "response_format": {"type": "json_object"}}),
            "unsupported_parameter",
            "response_format",
        ),
    ] {
        let reply = server.ask_at(PATH, body.clone());
        assert_eq!(
            (reply.error(), &reply.json()["error"]["param"]),
            ((400, code.into()), &json!(param)),
            "{body}"
        );
    }
    assert!(server.engine.records().is_empty());
}
