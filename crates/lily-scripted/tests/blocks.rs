//! Blocks of Anthropic messages that coding agents send and plain clients do not (tests/agents runs the agents).

mod common;

use common::{Running, setup};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

fn start(pieces: &str) -> Running {
    setup(&json!({"thinking": false, "pieces": [pieces]}).to_string()).start()
}

fn tool(name: &str, later: bool) -> Value {
    json!({"name": name, "description": format!("Does {name}."), "defer_loading": later, "input_schema": {
        "type": "object", "properties": {"url": {"type": "string"}},
    }})
}

fn ask(server: &Running, body: &Value) -> Value {
    let reply = server.ask_at(PATH, body.clone());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

const FETCH: &str =
    "<tool_call>\n<function=WebFetch>\n<parameter=url>\nx\n</parameter>\n</function>\n</tool_call>";

#[test]
fn tools_kept_back_are_shown_where_they_are_referred_to() {
    let server = start(FETCH);
    let search = json!([tool("ToolSearch", false), tool("Placeholder", true)]);
    let mut body =
        json!({"max_tokens": 99, "tools": search, "messages": [{"role": "user", "content": "fetch x"}]});
    ask(&server, &body);
    let before = server.last_prompt();
    assert!(before.contains("Does ToolSearch.") && !before.contains("Placeholder"), "{before}");

    let opened = before.strip_suffix("<think>\n\n</think>\n\n").expect("an opened turn").to_owned();
    body["tools"] = json!([tool("ToolSearch", false), tool("WebFetch", true), tool("Placeholder", true)]);
    let more = json!([
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
            {"type": "tool_reference", "tool_name": "WebFetch"}, {"type": "tool_reference", "tool_name": "Gone"},
        ]}]},
    ]);
    body["messages"].as_array_mut().expect("messages").extend(more.as_array().expect("messages").clone());
    let answer = ask(&server, &body);
    let call = &answer["content"][0];
    assert_eq!(
        (&call["name"], &call["input"]),
        (&json!("WebFetch"), &json!({"url": "x"})),
        "it may be called"
    );
    let after = server.last_prompt();
    assert!(after.starts_with(&opened), "the prompt goes on where it was: {opened}\n----\n{after}");
    let result = after.split("<tool_response>").nth(1).expect("a tool's response");
    assert!(
        result.contains("<tools>\n{") && result.contains("Does WebFetch.") && result.contains("Gone"),
        "{result}"
    );
    assert_eq!(after.matches("Does WebFetch.").count(), 1);
    assert!(!after.contains("Placeholder"));

    // What is referred to again and again is shown once: a short request may not become a prompt of any length.
    let many = vec![json!({"type": "tool_reference", "tool_name": "WebFetch"}); 1000];
    let last = body["messages"].as_array().map_or(0, Vec::len) - 1;
    body["messages"][last]["content"][0]["content"] = json!(many);
    ask(&server, &body);
    let after = server.last_prompt();
    assert_eq!(
        (after.matches("Does WebFetch.").count(), after.matches("WebFetch").count() > 1000),
        (1, true)
    );

    // Where nothing could find them, tools are shown in front.
    body["tools"] = json!([tool("WebFetch", true), {"type": "tool_search_tool_regex_20251119", "name": "s"}]);
    body["messages"] = json!([{"role": "user", "content": "fetch x"}]);
    ask(&server, &body);
    assert!(server.last_prompt().contains("Does WebFetch."));
    // And where no call may be made, nowhere.
    body["tool_choice"] = json!({"type": "none"});
    assert_eq!(ask(&server, &body)["content"][0]["type"], "text");
    assert!(!server.last_prompt().contains("Does WebFetch."));
}

#[test]
fn tools_come_and_go_within_a_conversation() {
    let server = start(FETCH);
    let definition = json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("WebFetch", false)}});
    let removal = json!({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "Other"}});
    let mut body = json!({"max_tokens": 99, "tools": [tool("Other", false), tool("Kept", true)], "messages": [
        {"role": "user", "content": "fetch x"},
        {"role": "system", "content": [definition, removal, {"type": "text", "text": "As you wish."}]},
    ]});
    assert_eq!(ask(&server, &body)["content"][0]["name"], "WebFetch");
    let prompt = server.last_prompt();
    let later = prompt.split("fetch x").nth(1).expect("the rest");
    for part in ["Does WebFetch.", "The tool Other cannot be called any more.", "As you wish."] {
        assert!(later.contains(part), "{part} is not in {later}");
    }
    body["messages"][1]["content"] =
        json!([{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "Kept"}}]);
    ask(&server, &body);
    assert!(server.last_prompt().split("fetch x").nth(1).expect("the rest").contains("Does Kept."));
    for (tool, param) in [
        (json!(null), "messages[1].content[0].tool"),
        (json!({"type": "tool_reference"}), "messages[1].content[0].tool.tool_name"),
        (json!({"definition": {"name": ""}}), "messages[1].content[0].tool.definition.name"),
    ] {
        body["messages"][1]["content"] = json!([{"type": "tool_addition", "tool": tool}]);
        let reply = server.ask_at(PATH, body.clone());
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(reply.status == 400 && message.contains(param), "{} {message}", reply.status);
    }
}

#[test]
fn blocks_with_text_are_read_and_what_hosted_tools_left_is_not() {
    let server = start("Hello");
    let mut body = json!({"max_tokens": 99, "messages": [
        {"role": "user", "content": [
            {"type": "document", "title": "Birds", "source": {"type": "text", "media_type": "text/plain", "data": "A heron."}},
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "A stork."}]}},
            {"type": "document", "source": {"type": "content", "content": "A crane."}},
            {"type": "search_result", "title": "Found", "source": "birds.txt", "content": [{"type": "text", "text": "An egret."}]},
        ]},
        {"role": "assistant", "content": [
            {"type": "compaction", "content": "Earlier: birds."}, {"type": "compaction", "content": null},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "hidden"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "hidden"}]},
            {"type": "mcp_tool_use", "id": "m", "name": "hidden", "server_name": "hidden", "input": {}},
            {"type": "fallback", "reason": "hidden"},
        ]},
        {"role": "user", "content": "go"},
    ]});
    ask(&server, &body);
    let prompt = server.last_prompt();
    for part in ["Birds\nA heron.\nA stork.\nA crane.\nFound\nbirds.txt\nAn egret.", "Earlier: birds."] {
        assert!(prompt.contains(part), "{part:?} is not in {prompt}");
    }
    assert!(!prompt.contains("hidden"), "{prompt}");
    for (block, wanted) in [
        (
            json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}),
            "a document of type \"base64\"",
        ),
        (json!({"type": "document"}), "messages[0].content[0].source"),
        (json!({"type": "image", "source": {"type": "base64", "data": ""}}), "content of type \"image\""),
        (json!({"type": "tool_reference"}), "messages[0].content[0].tool_name"),
    ] {
        body["messages"][0]["content"] = json!([block]);
        let reply = server.ask_at(PATH, body.clone());
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(reply.status == 400 && message.contains(wanted), "{} {message}", reply.status);
    }
}

#[test]
fn reasoning_of_earlier_turns_stays_where_claude_code_wants_it() {
    let server = start("Hello");
    let mut body = json!({"max_tokens": 99, "thinking": {"type": "adaptive"}, "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "I wonder."}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]});
    ask(&server, &body);
    assert!(!server.last_prompt().contains("I wonder."), "the template drops it");
    body["context_management"] = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    ask(&server, &body);
    assert!(server.last_prompt().contains("<think>\nI wonder.\n</think>"));
    for other in [json!({"type": "thinking_turns", "value": 1}), json!(null)] {
        body["context_management"]["edits"][0]["keep"] = other;
        ask(&server, &body);
        assert!(!server.last_prompt().contains("I wonder."));
    }
    for odd in [json!(1), json!({"edits": 1}), json!({"edits": [1, null, {}]})] {
        body["context_management"] = odd;
        ask(&server, &body);
    }
}
