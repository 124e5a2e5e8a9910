//! What is served besides answers.

mod common;

use common::{Running, ask, setup};
use lily_scripted::EngineOptions;
use serde_json::{Value, json};

fn start(line: Value) -> Running {
    let mut setup = setup(&line.to_string());
    setup.engine = EngineOptions { context: 4096, ..EngineOptions::default() };
    setup.service = |service| {
        service.parallel = 3;
        service.aliases = ["other", "scripted", "other"].map(String::from).to_vec();
    };
    setup.start()
}

#[test]
fn a_prompt_that_is_too_long_or_empty_is_named_as_the_request_has_it() {
    let mut narrow = setup(r#"{"pieces": ["x"]}"#);
    narrow.engine = EngineOptions { context: 8, ..EngineOptions::default() };
    let server = narrow.start();
    let long = "a text of far more than eight tokens";
    for (path, body, code, param) in [
        ("/v1/chat/completions", ask(long, json!({})), "context_length_exceeded", "messages"),
        ("/v1/completions", json!({"prompt": long}), "context_length_exceeded", "prompt"),
        ("/v1/completions", json!({"prompt": ["a", long]}), "context_length_exceeded", "prompt"),
        ("/v1/responses", json!({"input": long}), "context_length_exceeded", "input"),
        ("/v1/chat/completions", json!({"messages": []}), "invalid_messages", "messages"),
        ("/apply-template", json!({"messages": []}), "invalid_messages", "messages"),
        ("/v1/completions", json!({"prompt": ""}), "invalid_value", "prompt"),
        ("/v1/completions", json!({"prompt": []}), "invalid_value", "prompt"),
        ("/v1/completions", json!({"prompt": ["a", ""]}), "invalid_value", "prompt[1]"),
        ("/v1/completions", json!({"prompt": [[]]}), "invalid_value", "prompt[0]"),
        ("/v1/completions", json!({}), "missing_required_parameter", "prompt"),
        ("/v1/responses", json!({}), "missing_required_parameter", "input"),
        ("/tokenize", json!({}), "missing_required_parameter", "content"),
        ("/detokenize", json!({}), "missing_required_parameter", "tokens"),
    ] {
        let reply = server.ask_at(path, body.clone());
        assert_eq!(reply.error(), (400, code.into()), "{path} {body}");
        let error = reply.json()["error"].clone();
        assert_eq!(error["param"], param, "{path} {body}");
        let text = error["message"].as_str().expect("a message");
        assert!(!text.contains("messages") || param == "messages", "{path} {body}: {text}");
    }
}

#[test]
fn the_window_is_told_where_clients_look_for_it() {
    let server = start(json!({"pieces": ["x"]}));
    let props = server.get("/props").json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(3), &json!("scripted")));
    assert!(props["chat_template"].as_str().is_some_and(|text| text.contains("im_start")));
    assert_eq!(server.get("/v1/props").json(), props);
    let list = server.get("/v1/models").json();
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("scripted"), &json!("other")));
    assert_eq!(list["data"].as_array().map(Vec::len), Some(2), "each name once: {list}");
    let model = &list["data"][0];
    for place in ["max_model_len", "context_length", "loaded_context_length"] {
        assert_eq!(model[place], 4096, "{place}");
    }
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("scripted")));
    assert_eq!(server.get("/v1/models/other").json()["id"], "other");
    // Codex takes no list without it, and its own settings for a model that is not in it.
    assert_eq!(list["models"], json!([]));
}

#[test]
fn cached_tokens_are_told_by_every_family_and_are_zero_where_none_were() {
    for cached in [0, 2] {
        let mut line = json!({"thinking": false, "pieces": ["x"]});
        if cached > 0 {
            line["cached"] = json!(cached);
        }
        let server = start(line);
        let message = json!([{"role": "user", "content": "hello there"}]);
        for (path, body, place) in [
            (
                "/v1/chat/completions",
                json!({"messages": message, "stream_options": {"include_usage": true}}),
                "/prompt_tokens_details/cached_tokens",
            ),
            (
                "/v1/completions",
                json!({"prompt": "hello there", "stream_options": {"include_usage": true}}),
                "/prompt_tokens_details/cached_tokens",
            ),
            ("/v1/responses", json!({"input": "hello there"}), "/input_tokens_details/cached_tokens"),
            ("/v1/messages", json!({"messages": message, "max_tokens": 9}), "/cache_read_input_tokens"),
        ] {
            let found = |usage: &Value| usage.pointer(place).cloned();
            let whole = server.ask_at(path, body.clone()).json();
            assert_eq!(found(&whole["usage"]), Some(json!(cached)), "{path}: {whole}");
            let mut streamed = body;
            streamed["stream"] = json!(true);
            let text = server.ask_at(path, streamed).text();
            let usages: Vec<Value> = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
                .filter_map(|event| {
                    [&event["usage"], &event["response"]["usage"]]
                        .into_iter()
                        .find(|usage| usage.is_object())
                        .cloned()
                })
                .collect();
            assert_eq!(usages.last().and_then(found), Some(json!(cached)), "{path}: {text}");
        }
    }
}

#[test]
fn pieces_are_given_of_no_more_tokens_than_a_context_has() {
    let server = start(json!({"pieces": ["x"]}));
    let ask = |count: usize, with_pieces: bool| {
        server.ask_at("/tokenize", json!({"content": "ab ".repeat(count), "with_pieces": with_pieces}))
    };
    assert_eq!(ask(100, true).json()["tokens"][0]["piece"], "a");
    assert_eq!(ask(200_000, false).status, 200);
    let refused = ask(200_000, true);
    assert_eq!(
        (refused.error(), &refused.json()["error"]["param"]),
        ((400, "invalid_value".into()), &json!("with_pieces"))
    );
}

#[test]
fn slots_tell_how_many_are_busy() {
    let server = start(json!({"thinking": false, "pieces": ["a", {"sleep_ms": 60000}]}));
    let busy = || {
        let slots = server.get("/slots").json();
        let slots = slots.as_array().expect("slots").clone();
        assert_eq!((slots.len(), &slots[0]["n_ctx"]), (3, &json!(4096)));
        slots.iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!(busy(), 0);
    let open = server.open_chat(ask("hi", json!({"stream": true})));
    server.wait_for("a request", |records| records.iter().any(|record| record.tokens_sent > 0));
    assert_eq!(busy(), 1);
    drop(open);
}

#[test]
fn metrics_count_and_show_no_prompts() {
    let server = start(json!({"thinking": false, "pieces": ["one two"], "cached": 4}));
    let secret = "a-word-that-nobody-may-see";
    for _ in 0..2 {
        assert_eq!(server.chat(ask(secret, json!({}))).status, 200);
    }
    assert_eq!(server.chat(ask(secret, json!({"max_tokens": 1}))).status, 200);
    let reply = server.get("/metrics");
    assert!(reply.head.contains("content-type: text/plain; version=0.0.4"), "{}", reply.head);
    let page = reply.text();
    let value = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().expect("a number")
    };
    let records = server.engine.records();
    let prompts: usize = records.iter().map(|record| record.prompt_tokens).sum();
    assert_eq!(value("vllm:prompt_tokens_total"), prompts as f64);
    assert_eq!(value("llamacpp:prompt_tokens_total"), (prompts - 12) as f64);
    assert_eq!(value("vllm:prefix_cache_hits_total"), 12.0);
    assert_eq!(
        value("vllm:generation_tokens_total"),
        (records.iter().map(|record| record.tokens_sent).sum::<usize>() + 2) as f64
    );
    assert_eq!(value("vllm:request_success_total{finished_reason=\"stop\"}"), 2.0);
    assert_eq!(value("vllm:request_success_total{finished_reason=\"length\"}"), 1.0);
    assert_eq!(value("vllm:e2e_request_latency_seconds_count"), 3.0);
    assert_eq!(value("vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"}"), 3.0);
    assert_eq!(value("llamacpp:requests_processing"), 0.0);
    for path in ["/metrics", "/props", "/slots"] {
        assert!(!server.get(path).text().contains(secret), "{path}");
    }
}

#[test]
fn texts_become_tokens_and_back() {
    let server = start(json!({"pieces": ["x"]}));
    let text = "Häagen \u{1f600} <|im_end|>";
    let plain = server.ask_at("/tokenize", json!({"content": text})).json();
    let count = plain["tokens"].as_array().expect("tokens").len();
    assert_eq!(plain["count"], count);
    assert_eq!(server.ask_at("/v1/tokenize", json!({"prompt": text})).json(), plain);
    let parsed = server.ask_at("/tokenize", json!({"content": text, "parse_special": true})).json();
    assert!(parsed["count"].as_u64() < plain["count"].as_u64(), "typed markers are text unless asked for");
    for tokens in [&plain["tokens"], &parsed["tokens"]] {
        assert_eq!(server.ask_at("/detokenize", json!({"tokens": tokens})).json(), json!({"content": text}));
    }
    let pieces = server.ask_at("/tokenize", json!({"content": "a \u{1f600}", "with_pieces": true})).json();
    assert!(
        pieces["tokens"]
            .as_array()
            .expect("pieces")
            .iter()
            .all(|piece| piece["id"].is_u64() && !piece["piece"].is_null())
    );
    for (path, body, param) in [
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({"content": 5}), "content"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": [1e9]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": "x"}), "tokens"),
    ] {
        let reply = server.ask_at(path, body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn the_template_is_applied_as_for_an_answer() {
    let server = start(json!({"pieces": ["x"]}));
    let prompt = |more: Value| {
        server.ask_at("/apply-template", ask("hi", more)).json()["prompt"]
            .as_str()
            .expect("a prompt")
            .to_owned()
    };
    for more in [
        json!({}),
        json!({"enable_thinking": false}),
        json!({"tools": [{"type": "function", "function": {"name": "f"}}], "model": null}),
    ] {
        assert_eq!(server.chat(ask("hi", more.clone())).status, 200);
        assert_eq!(prompt(more), server.last_prompt());
    }
    assert!(prompt(json!({"add_generation_prompt": false})).ends_with("hi<|im_end|>\n"));
    assert!(prompt(json!({"add_generation_prompt": true})).contains("<|im_start|>assistant\n"));
    let reply = server.ask_at("/apply-template", json!({}));
    assert_eq!(reply.error(), (400, "missing_required_parameter".into()));
}

#[test]
fn a_last_message_is_continued_only_on_request() {
    let server = start(json!({"thinking": false, "pieces": [" 4."]}));
    let body = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is"}]});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        body
    };
    assert_eq!(server.chat(body(json!({}))).status, 200);
    assert!(server.last_prompt().contains("It is<|im_end|>"));
    let reply =
        server.chat(body(json!({"continue_final_message": true, "add_generation_prompt": false}))).json();
    assert_eq!(reply["choices"][0]["message"]["content"], " 4.");
    assert!(server.last_prompt().ends_with("<think>\n\n</think>\n\nIt is"));
    let refused = server.chat(body(json!({"add_generation_prompt": false})));
    assert_eq!(refused.json()["error"]["param"], "add_generation_prompt");
}

#[test]
fn what_is_not_served_says_so() {
    let server = start(json!({"pieces": ["x"]}));
    for path in ["/v1/embeddings", "/embeddings"] {
        assert_eq!(server.ask_at(path, json!({"input": "x"})).error(), (501, "not_offered".into()));
    }
    for path in ["/api/tags", "/api/version"] {
        let reply = server.get(path);
        assert_eq!(reply.error(), (404, "unknown_url".into()));
        assert!(reply.text().contains("Ollama"), "{}", reply.text());
    }
    assert_eq!(server.ask_at("/api/chat", json!({})).error(), (404, "unknown_url".into()));
    let head = server.raw(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
fn every_reply_has_a_request_id() {
    let server = start(json!({"pieces": ["x"]}));
    let named = |head: &str| {
        let request = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}\r\n");
        let reply = server.raw(request.as_bytes()).head;
        let value = |name: &str| {
            reply.lines().find_map(|line| line.strip_prefix(name).map(|id| id.trim().to_owned()))
        };
        assert_eq!(value("x-request-id:"), value("\nrequest-id:").or(value("request-id:")));
        value("x-request-id:").expect("an id")
    };
    let (first, second) = (named(""), named(""));
    assert!(first.starts_with("req_") && first != second);
    assert_eq!(named("X-Request-Id: my-id.7\r\n"), "my-id.7");
    for odd in [format!("X-Request-Id: {}\r\n", "x".repeat(200)), "X-Request-Id: a b\r\n".into()] {
        assert!(named(&odd).starts_with("req_"), "{odd}");
    }
}

#[test]
fn progress_and_timings_are_told() {
    let server = start(json!({"thinking": false, "pieces": ["a", "b"], "cached": 3}));
    let events = server.chat(ask("hi", json!({"stream": true, "return_progress": true}))).events();
    let total = server.engine.records()[0].prompt_tokens;
    let progress: Vec<(Value, Value, Value)> = events
        .iter()
        .filter_map(|event| event.get("prompt_progress"))
        .map(|told| (told["processed"].clone(), told["cache"].clone(), told["total"].clone()))
        .collect();
    assert_eq!(progress, [(json!(3), json!(3), json!(total)), (json!(total), json!(3), json!(total))]);
    let quiet = server.chat(ask("hi", json!({"stream": true}))).events();
    assert!(quiet.iter().all(|event| event.get("prompt_progress").is_none()));
    let timed = quiet.iter().find(|event| event["choices"][0]["finish_reason"].is_string()).expect("an end");
    let whole = server.chat(ask("hi", json!({}))).json();
    for timings in [&timed["timings"], &whole["timings"]] {
        assert_eq!((&timings["prompt_n"], &timings["cache_n"]), (&json!(total - 3), &json!(3)));
        assert_eq!(timings["predicted_n"], 3);
        assert!(timings["predicted_per_second"].as_f64().is_some_and(f64::is_finite));
    }
}

#[test]
fn timings_come_with_each_token_on_request() {
    let server = start(json!({"thinking": false, "pieces": ["a", {"sleep_ms": 30}, "b", "c"], "cached": 3}));
    let counts = |events: Vec<Value>| -> Vec<u64> {
        let pieces = events.iter().filter(|event| event["choices"][0].is_object());
        pieces.filter_map(|event| event["timings"]["predicted_n"].as_u64()).collect()
    };
    let chat = ask("hi", json!({"stream": true, "timings_per_token": true}));
    let text = json!({"prompt": "hi", "stream": true, "timings_per_token": true});
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/completions", text)] {
        let counts = counts(server.ask_at(path, body).events());
        assert!(counts.len() >= 3, "each piece has them: {counts:?}");
        assert!(counts.is_sorted() && counts[0] < 4 && counts.last() == Some(&4), "{counts:?}");
    }
    let quiet = counts(server.chat(ask("hi", json!({"stream": true}))).events());
    assert_eq!(quiet, [4], "only the end has them");
}
