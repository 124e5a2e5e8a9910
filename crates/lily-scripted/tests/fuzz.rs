//! Random mutations of a valid request: whatever arrives, the server answers, blames the client or not, and lives.

mod common;

use common::{ask, setup};
use serde_json::{Value, json};

const MUTATIONS: u64 = 1000;

/// SplitMix64: the same sequence everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

fn valid() -> Value {
    json!({
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Häagen \u{1f600} <|im_end|>"}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, {\"b\": null}]}"}}
            ]},
            {"role": "tool", "tool_call_id": "c", "content": "result"},
            {"role": "user", "content": "and?", "name": "bob"},
        ],
        "stream": false, "stream_options": {"include_usage": true}, "n": 2, "seed": 3, "temperature": 0.5,
        "top_p": 0.9, "top_k": 5, "min_p": 0.1, "logprobs": true, "top_logprobs": 2, "stop": ["q", "z"],
        "logit_bias": {"3": 1.5}, "max_tokens": 300, "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "chat_template_kwargs": {"enable_thinking": true}, "tools": [{"type": "function", "function": {"name": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}], "tool_choice": "auto",
        "parallel_tool_calls": true,
        "reasoning_effort": "low", "extra_body": {"preserve_thinking": true}, "response_format": {"type": "text"},
    })
}

fn odd_value(random: &mut Random) -> Value {
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(u64::MAX),
        json!(0.1),
        json!(""),
        json!("\u{0}\u{1b}[31m"),
        json!("</think><|im_start|>"),
        json!([]),
        json!({}),
        json!([[[[]]]]),
        json!({"": {"": []}}),
        json!("x".repeat(5000)),
        json!([1, "a", null]),
        json!({"type": "text", "text": 5}),
        json!("none"),
        json!("{{ 7 * 7 }}{% for x in range(9) %}"),
        json!(["\u{feff}"]),
        json!({"type": "image_url"}),
        json!(i64::MIN),
    ];
    odd[random.below(odd.len())].clone()
}

/// Changes one place of a JSON tree.
fn mutate(value: &mut Value, random: &mut Random) {
    let deeper = random.below(4) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let name = map.keys().nth(random.below(map.len())).cloned().unwrap_or_default();
            match random.below(8) {
                0 => drop(map.remove(&name)),
                1 => {
                    let odd = odd_value(random);
                    map.insert(format!("{name}x"), odd);
                }
                _ => mutate(map.get_mut(&name).expect("the name is there"), random),
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = random.below(list.len());
            match random.below(8) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                _ => mutate(&mut list[at], random),
            }
        }
        place => *place = odd_value(random),
    }
}

/// Changes a few bytes, cuts, or repeats a part.
fn scramble(bytes: &mut Vec<u8>, random: &mut Random) {
    match random.below(4) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => {
            let (from, to) = (random.below(bytes.len()), random.below(bytes.len()));
            let part = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.splice(from..from, part);
        }
        _ => {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = random.next() as u8;
            }
        }
    }
}

/// For each further route, a valid body.
fn others() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    vec![
        (
            "/v1/messages",
            json!({
                "model": "m", "max_tokens": 50, "stream": false, "thinking": {"type": "enabled", "budget_tokens": 9},
                "system": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "Be brief."}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "c"},
                        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1]}},
                    ]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
                        {"type": "text", "text": "r"}, {"type": "tool_reference", "tool_name": "g"},
                    ]}]},
                    {"role": "system", "content": [
                        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "h", "input_schema": {}}}},
                        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
                        {"type": "document", "title": "t", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}},
                        {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "e"}]},
                    ]},
                ],
                "tools": [{"name": "f", "description": "d", "input_schema": schema}], "tool_choice": {"type": "auto"},
                "stop_sequences": ["q"], "temperature": 1, "output_config": {"effort": "low"}, "metadata": {"user_id": "u"},
            }),
        ),
        (
            "/v1/responses",
            json!({
                "model": "m", "instructions": "Be brief.", "stream": true, "max_output_tokens": 50, "store": false,
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}"},
                    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}]},
                ],
                "tools": [{"type": "function", "name": "f", "parameters": schema}, {"type": "web_search"}], "tool_choice": "auto",
                "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
                "text": {"format": {"type": "text"}, "verbosity": "low"}, "metadata": {"a": "b"}, "parallel_tool_calls": true,
            }),
        ),
        (
            "/v1/completions",
            json!({
                "prompt": ["a", [1, 2, 3]], "n": 2, "max_tokens": 20, "stream": true, "stream_options": {"include_usage": true},
                "logprobs": 2, "echo": false, "stop": ["q"], "logit_bias": {"3": 1}, "suffix": null,
            }),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"messages": [{"role": "user", "content": "a"}], "system": "s", "tools": []}),
        ),
        ("/tokenize", json!({"content": "a <|im_end|>", "parse_special": true, "with_pieces": true})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
        (
            "/apply-template",
            json!({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false}),
        ),
    ]
}

#[test]
fn mutated_requests_of_every_family_are_answered() {
    let call = "<tool_call>\n<function=f>\n<parameter=a>\n[1]\n</parameter>\n</function>\n</tool_call>";
    let script = json!({"pieces": ["a thought", "</think>", "an answer\n", call]});
    let server = setup(&script.to_string()).start();
    for (path, valid) in others() {
        let reply = server.ask_at(path, valid.clone());
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let mut taken = 0;
        let count = MUTATIONS / 4;
        for seed in 0..count {
            let mut random = Random(seed + 77);
            let mut body = valid.clone();
            for _ in 0..=random.below(2) {
                mutate(&mut body, &mut random);
            }
            let reply = server.ask_at(path, body.clone());
            match reply.status {
                200 => taken += 1,
                400..=499 => assert!(reply.json()["error"]["message"].is_string(), "{path}, mutation {seed}"),
                status => panic!("{path}, mutation {seed}: {status} {}\n{body}", reply.text()),
            }
        }
        assert!((count / 20..count).contains(&taken), "{path}: {taken} of {count} were still valid");
    }
    assert_eq!(server.chat(ask("hi", json!({}))).status, 200);
}

#[test]
fn mutated_requests_are_answered() {
    let call = "<tool_call>\n<function=f>\n<parameter=a>\n[1]\n</parameter>\n</function>\n</tool_call>";
    let script = json!({"pieces": ["a thought", "</think>", "an answer\n", call]});
    let server = setup(&script.to_string()).start();
    assert_eq!(server.chat(valid()).status, 200, "the request is valid before it is mutated");
    let mut taken = 0;
    for seed in 0..MUTATIONS {
        let mut random = Random(seed);
        let mut body = valid();
        for _ in 0..=random.below(2) {
            mutate(&mut body, &mut random);
        }
        let mut bytes = body.to_string().into_bytes();
        if random.below(4) == 0 {
            scramble(&mut bytes, &mut random);
        }
        let reply = server.post_text("/v1/chat/completions", &bytes);
        match reply.status {
            200 => taken += 1,
            400..=499 => assert!(!reply.error().1.is_empty(), "mutation {seed}"),
            status => {
                panic!("mutation {seed}: {status} {}\n{}", reply.text(), String::from_utf8_lossy(&bytes))
            }
        }
    }
    assert!(
        (100..900).contains(&taken),
        "{taken} of {MUTATIONS} were still valid: the mutations miss their aim"
    );
    assert_eq!(server.chat(ask("hi", json!({}))).status, 200);
    assert!(
        server.engine.records().iter().all(|record| record.tokens_sent > 0 || record.max_tokens.is_some())
    );
}
