//! Tool calls as a client sees them, streamed and not.

mod common;

use std::collections::HashSet;

use common::{Running, ask, setup};
use lily_scripted::State;
use serde_json::{Value, json};

const PARIS: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n\
    </parameter>\n</function>\n</tool_call>";
const OSLO: &str =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>";

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Looks up the weather.", "parameters": {
            "type": "object", "required": ["city"],
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        }}},
        {"type": "function", "function": {"name": "write", "parameters": {
            "type": "object", "properties": {"text": {"type": "string"}, "lines": {"type": "array"}},
        }}},
    ])
}

fn paris() -> (String, Value) {
    ("get_weather".into(), json!({"city": "Paris", "days": 3}))
}

fn oslo() -> (String, Value) {
    ("get_weather".into(), json!({"city": "Oslo"}))
}

/// One answer, whichever way it came.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: Option<String>,
    /// Names and arguments; a string where the arguments were cut off.
    calls: Vec<(String, Value)>,
    finish: String,
}

impl Answer {
    fn add_call(&mut self, call: &Value, ids: &mut HashSet<String>) {
        assert_eq!(call["type"], "function");
        let id = call["id"].as_str().expect("an id");
        assert!(id.starts_with("call_") && ids.insert(id.to_owned()), "{id}");
        let arguments = call["function"]["arguments"].as_str().expect("arguments as text");
        let name = call["function"]["name"].as_str().expect("a name").to_owned();
        self.calls.push((name, Value::from(arguments)));
    }

    fn parsed(mut self) -> Self {
        for (_, arguments) in &mut self.calls {
            let text = arguments.as_str().expect("arguments as text");
            *arguments = serde_json::from_str(text).unwrap_or_else(|_| arguments.clone());
        }
        self
    }
}

fn unstreamed(whole: &Value, index: usize) -> Answer {
    let choice = &whole["choices"][index];
    let message = choice["message"].as_object().expect("a message");
    let mut answer = Answer {
        reasoning: message.get("reasoning_content").and_then(Value::as_str).unwrap_or_default().to_owned(),
        content: message["content"].as_str().map(str::to_owned),
        calls: Vec::new(),
        finish: choice["finish_reason"].as_str().expect("a finish reason").to_owned(),
    };
    let mut ids = HashSet::new();
    for call in message.get("tool_calls").map(|calls| calls.as_array().expect("calls")).into_iter().flatten()
    {
        answer.add_call(call, &mut ids);
    }
    answer.parsed()
}

/// Adds up the chunks as client libraries do.
fn streamed(events: &[Value], index: usize) -> Answer {
    let (mut answer, mut ids) = (Answer::default(), HashSet::new());
    let choices = events.iter().filter_map(|event| event["choices"].as_array()).flatten();
    for choice in choices.filter(|choice| choice["index"] == index) {
        assert_eq!(answer.finish, "", "nothing follows the finish reason");
        let delta = &choice["delta"];
        if choice["finish_reason"].is_string() && answer.content.is_some() {
            assert_eq!(*delta, json!({}), "nothing is begun anew at the end");
        }
        answer.reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        if let Some(text) = delta["content"].as_str() {
            answer.content.get_or_insert_default().push_str(text);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if call["index"] == answer.calls.len() {
                answer.add_call(call, &mut ids);
                continue;
            }
            assert_eq!(call["index"], answer.calls.len() - 1, "calls come in order");
            let names: Vec<&String> = call.as_object().expect("an object").keys().collect();
            assert_eq!(names, ["index", "function"], "id and name come once");
            let more = call["function"]["arguments"].as_str().expect("more arguments");
            let (_, arguments) = answer.calls.last_mut().expect("a call");
            *arguments = Value::from(format!("{}{more}", arguments.as_str().expect("text")));
        }
        answer.finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    answer.parsed()
}

/// The answer with the tools of this file, the same streamed and not.
fn both(server: &Running, more: Value) -> Answer {
    let mut fields = json!({"tools": tools()});
    fields.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    let reply = server.chat(ask("hi", fields.clone()));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = unstreamed(&reply.json(), 0);
    fields["stream"] = json!(true);
    let events = server.chat(ask("hi", fields)).events();
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    assert_eq!(streamed(&events, 0), whole);
    whole
}

fn plain(pieces: Value) -> Running {
    setup(&json!({"thinking": false, "pieces": pieces}).to_string()).start()
}

fn answer(content: Option<&str>, calls: &[(String, Value)], finish: &str) -> Answer {
    Answer {
        reasoning: String::new(),
        content: content.map(str::to_owned),
        calls: calls.to_vec(),
        finish: finish.into(),
    }
}

#[test]
fn calls_and_the_text_before_them() {
    assert_eq!(both(&plain(json!([PARIS])), json!({})), answer(None, &[paris()], "tool_calls"));
    let two = both(&plain(json!([format!("I look.\n\n{PARIS}\n{OSLO}")])), json!({}));
    assert_eq!(two, answer(Some("I look."), &[paris(), oslo()], "tool_calls"));
    let around = both(&plain(json!(["a ", PARIS, " b ", OSLO, "\n"])), json!({}));
    assert_eq!(around, answer(Some("a b"), &[paris(), oslo()], "tool_calls"));
    let three = both(&plain(json!([format!("{OSLO}{OSLO}\n"), PARIS])), json!({}));
    assert_eq!(three, answer(None, &[oslo(), oslo(), paris()], "tool_calls"));
    let unclosed = PARIS.strip_suffix("\n</function>\n</tool_call>").expect("the end");
    assert_eq!(both(&plain(json!([unclosed])), json!({})), answer(None, &[paris()], "tool_calls"));
}

#[test]
fn answers_without_calls_are_text() {
    for text in
        ["Just text.", " \n", "", "<tool_call>", "a\n<tool_call>\n<function=rm>\n</function>\n</tool_call>\n"]
    {
        let read = both(&plain(json!([text])), json!({"enable_thinking": false}));
        assert_eq!(read, answer(Some(text), &[], "stop"), "{text:?}");
    }
    let more = [json!({"tools": null}), json!({"tools": []}), json!({"tool_choice": "none"})];
    for more in more.into_iter().chain([json!({"tools": [{"type": "web_search"}]})]) {
        assert_eq!(
            both(&plain(json!([PARIS, "\n"])), more),
            answer(Some(&format!("{PARIS}\n")), &[], "stop")
        );
    }
}

#[test]
fn arguments_have_the_types_of_the_schema() {
    let text = "02134\nif a < b: </parameter> pass\n";
    let call = format!(
        "<tool_call>\n<function=write>\n<parameter=text>\n{text}\n</parameter>\n<parameter=lines>\n[1, true, \"é\"]\n</parameter>\n\
         <parameter=other>\n1.5\n</parameter>\n</function>\n</tool_call>"
    );
    let arguments = json!({"text": text, "lines": [1, true, "é"], "other": 1.5});
    let wanted = answer(None, &[("write".into(), arguments)], "tool_calls");
    assert_eq!(both(&plain(json!([call])), json!({})), wanted);
    let digits = "<tool_call><function=get_weather><parameter=city>75001</parameter></function></tool_call>";
    let calls = both(&plain(json!([digits])), json!({})).calls;
    assert_eq!(calls, [("get_weather".to_owned(), json!({"city": "75001"}))]);
}

#[test]
fn reasoning_comes_first_and_holds_no_calls() {
    let script = json!({"pieces": [format!("Shall I {PARIS}?"), "\n</think>\n\n", "Yes.\n", OSLO]});
    let wanted =
        Answer { reasoning: format!("Shall I {PARIS}?"), ..answer(Some("Yes."), &[oslo()], "tool_calls") };
    assert_eq!(both(&setup(&script.to_string()).start(), json!({})), wanted);
    // Without the line breaks after the marker.
    let script = json!({"pieces": [format!("hm</think>{OSLO}")]});
    let wanted = Answer { reasoning: "hm".into(), ..answer(None, &[oslo()], "tool_calls") };
    assert_eq!(both(&setup(&script.to_string()).start(), json!({})), wanted);
}

#[test]
fn calls_in_the_reasoning_count_only_where_nothing_else_was_said() {
    let thought = format!("First {OSLO}, no:\n{PARIS}");
    let alone =
        Answer { reasoning: format!("First {OSLO}, no:\n{PARIS}"), ..answer(None, &[paris()], "tool_calls") };
    for pieces in [json!([thought]), json!([thought, "\n</think>\n\n"])] {
        let server = setup(&json!({"thinking": true, "pieces": pieces}).to_string()).start();
        assert_eq!(both(&server, json!({})), alone, "{pieces}");
    }
    let both_calls = format!("{PARIS}\n{OSLO}");
    let server = setup(&json!({"thinking": true, "pieces": [both_calls]}).to_string()).start();
    assert_eq!(both(&server, json!({})).calls, [paris(), oslo()]);
    assert_eq!(both(&server, json!({"parallel_tool_calls": false})).calls, [paris()]);
    assert_eq!(both(&server, json!({"tool_choice": "none"})).calls, []);
    // Text or a call after the reasoning, an end by a limit, half a call: the reasoning has none.
    for (pieces, calls) in
        [(json!([PARIS, "</think>\n\nNo."]), vec![]), (json!([PARIS, "</think>", OSLO]), vec![oslo()])]
    {
        let server = setup(&json!({"thinking": true, "pieces": pieces}).to_string()).start();
        assert_eq!(both(&server, json!({})).calls, calls, "{pieces}");
    }
    let server = setup(&json!({"thinking": true, "pieces": [PARIS], "finish": "length"}).to_string()).start();
    assert_eq!(both(&server, json!({})).calls, []);
    let server = setup(&json!({"thinking": true, "pieces": [&PARIS[..60]]}).to_string()).start();
    assert_eq!(both(&server, json!({})).calls, []);
}

#[test]
fn a_call_that_was_cut_off_is_text_until_a_string_began() {
    let half = &format!("a\n{PARIS}")[..40];
    let cut = |pieces: Value| {
        setup(&json!({"thinking": false, "pieces": pieces, "finish": "length"}).to_string()).start()
    };
    assert_eq!(both(&cut(json!([half])), json!({})), answer(Some(half), &[], "length"));
    // All parameters are there, but more might have come.
    let days = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n";
    assert_eq!(both(&cut(json!([days])), json!({})), answer(Some(days), &[], "length"));
    let after = both(&cut(json!([OSLO, "\n", days])), json!({}));
    assert_eq!(after, answer(Some(&format!("\n{days}")), &[oslo()], "length"));
    // Arguments that were begun end where they end, and are no JSON: nobody runs half a call.
    let open = PARIS.split_once("is\n").expect("a value").0;
    let broken = ("get_weather".to_owned(), json!("{\"city\":\"Par"));
    assert_eq!(both(&cut(json!([open])), json!({})), answer(None, &[broken], "length"));
    let by_limit = both(&plain(json!([PARIS])), json!({"max_tokens": 5}));
    assert_eq!((by_limit.calls.len(), by_limit.finish.as_str()), (0, "length"));
    assert!(PARIS.starts_with(&by_limit.content.expect("text")));
}

#[test]
fn stop_strings_are_found_in_calls() {
    let server = plain(json!([format!("{PARIS}\nObservation: rain")]));
    assert_eq!(both(&server, json!({"stop": "Observation:"})), answer(None, &[paris()], "tool_calls"));
    assert_eq!(both(&server, json!({"stop": "</tool_call>"})), answer(None, &[paris()], "tool_calls"));
    let open = ("get_weather".to_owned(), json!("{\"city\":\"Paris\""));
    assert_eq!(both(&server, json!({"stop": "3"})), answer(None, &[open], "stop"));
    let days =
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    let text = days.split_once("3").expect("a value").0;
    assert_eq!(both(&plain(json!([days])), json!({"stop": "3"})), answer(Some(text), &[], "stop"));
}

#[test]
fn without_parallel_calls_the_first_ends_the_work() {
    let script = json!({"thinking": false, "pieces": ["a\n", PARIS, OSLO, " b", {"sleep_ms": 60000}]});
    let server = setup(&script.to_string()).start();
    let one = both(&server, json!({"parallel_tool_calls": false}));
    assert_eq!(one, answer(Some("a"), &[paris()], "tool_calls"));
    server.wait_cancelled(2);
    // In one piece with what follows.
    let server = plain(json!([format!("a\n{PARIS}\n{OSLO} b")]));
    assert_eq!(both(&server, json!({"parallel_tool_calls": false})), one);
    let all = both(&server, json!({"parallel_tool_calls": true}));
    assert_eq!(all, answer(Some("a b"), &[paris(), oslo()], "tool_calls"));
    // Held back as the start of a stop string, the call is complete only at the end.
    let closed = PARIS.strip_suffix("\n</tool_call>").expect("the end");
    let more = json!({"parallel_tool_calls": false, "stop": "</function>!"});
    assert_eq!(both(&plain(json!(["a\n", closed])), more), one);
    // No call, and nothing is ended.
    let server = plain(json!(["a ", "b"]));
    assert_eq!(both(&server, json!({"parallel_tool_calls": false})), answer(Some("a b"), &[], "stop"));
    let states: Vec<State> = server.engine.records().iter().map(|record| record.state).collect();
    assert_eq!(states, [State::Finished, State::Finished]);
}

#[test]
fn strings_are_streamed_as_they_grow() {
    let (head, tail) = PARIS.split_once("ris").expect("a value");
    let script = json!({"thinking": false, "pieces": [head, {"sleep_ms": 60000}, "ris", tail]});
    let server = setup(&script.to_string()).start();
    let mut stream = server.open_chat(ask("hi", json!({"tools": tools(), "stream": true})));
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(r#"{\"city\":\"Pa"#) {
        let mut part = [0; 4096];
        let length = std::io::Read::read(&mut stream, &mut part).expect("half a call, in time");
        assert!(length > 0, "the stream ended");
        seen.extend_from_slice(&part[..length]);
    }
    drop(stream);
    server.wait_cancelled(1);
}

#[test]
fn a_call_is_streamed_before_the_next_begins() {
    let script = json!({"thinking": false, "pieces": [PARIS, {"sleep_ms": 60000}, OSLO]});
    let server = setup(&script.to_string()).start();
    let mut stream = server.open_chat(ask("hi", json!({"tools": tools(), "stream": true})));
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("Paris") {
        let mut part = [0; 4096];
        let length = std::io::Read::read(&mut stream, &mut part).expect("the call, in time");
        assert!(length > 0, "the stream ended");
        seen.extend_from_slice(&part[..length]);
    }
    drop(stream);
    server.wait_cancelled(1);
}

#[test]
fn several_answers_have_their_own_calls() {
    let lines = [json!([PARIS]), json!(["text"]), json!([OSLO, PARIS]), json!([""])];
    let script: String =
        lines.iter().map(|pieces| format!("{}\n", json!({"thinking": false, "pieces": pieces}))).collect();
    let wanted = [
        answer(None, &[paris()], "tool_calls"),
        answer(Some("text"), &[], "stop"),
        answer(None, &[oslo(), paris()], "tool_calls"),
        answer(Some(""), &[], "stop"),
    ];
    for stream in [false, true] {
        let server = setup(&script).start();
        let reply = server.chat(ask("hi", json!({"tools": tools(), "n": 4, "stream": stream})));
        let answers: Vec<Answer> = (0..4)
            .map(
                |index| {
                    if stream { streamed(&reply.events(), index) } else { unstreamed(&reply.json(), index) }
                },
            )
            .collect();
        assert_eq!(answers, wanted);
    }
}

#[test]
fn usage_and_log_probabilities_count_the_markup() {
    let server = plain(json!([format!("a\n{PARIS}")]));
    let more = json!({"tools": tools(), "logprobs": true});
    let whole = server.chat(ask("hi", more.clone())).json();
    let sent = server.engine.records()[0].tokens_sent;
    assert_eq!(whole["usage"]["completion_tokens"], sent + 1, "and the end token");
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().expect("log probabilities");
    let text: String = tokens.iter().map(|token| token["token"].as_str().expect("a token")).collect();
    assert_eq!(text, format!("a\n{PARIS}"));
    let mut more = more;
    more["stream"] = json!(true);
    more["stream_options"] = json!({"include_usage": true});
    let events = server.chat(ask("hi", more)).events();
    assert_eq!(events[events.len() - 2]["usage"], whole["usage"]);
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&streamed, tokens);
    let only_a_call = both(&plain(json!([OSLO])), json!({"logprobs": true}));
    assert_eq!(only_a_call, answer(None, &[oslo()], "tool_calls"));
}

#[test]
fn tools_are_rendered_unless_none_may_be_called() {
    let server = plain(json!(["x"]));
    for (more, shown) in [
        (json!({"tools": tools()}), true),
        (json!({"tools": tools(), "tool_choice": "auto"}), true),
        (json!({"tools": tools(), "tool_choice": "none"}), false),
        (json!({"tools": [{"type": "web_search"}]}), false),
        (json!({}), false),
    ] {
        assert_eq!(server.chat(ask("hi", more.clone())).status, 200);
        let prompt = server.engine.records().pop().expect("a record").prompt;
        assert_eq!(prompt.contains("# Tools"), shown, "{more}");
        assert_eq!(prompt.contains("Looks up the weather."), shown, "{more}");
        assert!(!prompt.contains("web_search"));
    }
}

#[test]
fn a_call_can_be_sent_back() {
    let server = plain(json!([format!("I look.\n\n{PARIS}")]));
    let first = server.chat(ask("Weather in Paris?", json!({"tools": tools()}))).json();
    let message = &first["choices"][0]["message"];
    let id = &message["tool_calls"][0]["id"];
    let body = json!({"tools": tools(), "messages": [
        {"role": "user", "content": "Weather in Paris?"}, message,
        {"role": "tool", "tool_call_id": id, "content": "rain"},
    ]});
    assert_eq!(server.chat(body).status, 200);
    let prompt = server.engine.records().pop().expect("a record").prompt;
    assert!(prompt.contains(&format!("I look.\n\n{PARIS}<|im_end|>")), "{prompt}");
    assert!(prompt.contains("<tool_response>\nrain\n</tool_response>"), "{prompt}");
}

#[test]
fn choices_that_cannot_be_kept_are_refused() {
    let server = plain(json!(["x"]));
    let named = json!({"type": "function", "function": {"name": "write"}});
    for choice in [json!("required"), named, json!({"type": "allowed_tools"})] {
        for stream in [false, true] {
            let body = ask("hi", json!({"tools": tools(), "tool_choice": choice, "stream": stream}));
            let reply = server.chat(body);
            assert_eq!(reply.error(), (400, "unsupported_parameter".into()));
            assert_eq!(reply.json()["error"]["param"], "tool_choice");
        }
    }
    let body = ask("hi", json!({"tools": [tools()[0], {"type": "function", "function": {"name": "a>b"}}]}));
    let reply = server.chat(body);
    assert_eq!(
        (reply.error(), reply.json()["error"]["param"].clone()),
        ((400, "invalid_value".into()), json!("tools[1].function.name"))
    );
    assert!(server.engine.records().is_empty());
}

/// SplitMix64.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as usize
}

/// The text in pieces, as text or as bytes, cut anywhere, even inside characters.
fn cut(text: &str, state: &mut u64) -> Value {
    let mut pieces = Vec::new();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + random(state) % 24).min(rest.len()));
        pieces.push(match std::str::from_utf8(piece) {
            Ok(text) if random(state).is_multiple_of(2) => json!(text),
            _ => json!({"bytes": piece.iter().map(|byte| format!("{byte:02x}")).collect::<String>()}),
        });
        rest = after;
    }
    Value::Array(pieces)
}

#[test]
fn answers_do_not_depend_on_cuts() {
    const CUTS: usize = 40;
    let mut state = 1;
    for text in [
        format!("hm\n</think>\n\nBoth, 日本語 😀.\n\n{PARIS}\n{OSLO}"),
        format!(
            "<tool_call></think>{OSLO}\n x <tool_call>\n<function=unknown>\n</function>\n</tool_call> {PARIS}"
        ),
        format!(
            "a</think>{}",
            PARIS.replace("Paris\n</parameter>", "Paris 😀 </parameter> <\n").replace("\n</function>", "")
        ),
        format!("a</think>b {PARIS}\nc\n<function=write>\n<parameter=text>\nx\n</parameter>\n<para"),
        format!("a {OSLO}\n{PARIS}</think> \n"),
    ] {
        let whole = setup(&json!({"pieces": [text]}).to_string()).start();
        let wanted = both(&whole, json!({}));
        let lines: Vec<Value> =
            (0..CUTS).map(|_| json!({"thinking": true, "pieces": cut(&text, &mut state)})).collect();
        let script: String = lines.iter().map(|line| format!("{line}\n{line}\n")).collect();
        let server = setup(&script).start();
        for line in &lines {
            assert_eq!(both(&server, json!({})), wanted, "{line}");
        }
    }
}
