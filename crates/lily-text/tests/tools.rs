//! Tool calls in the content of an answer: which text is a call, with which arguments, and that nothing else is lost.

#![allow(clippy::unwrap_used, reason = "failures of a test")]

mod common;

use std::sync::LazyLock;

use lily_text::{ContentDelta, ContentEnd, ReasoningCalls, ToolCallParser};
use proptest::prelude::*;
use serde_json::{Value, json};

static TOOLS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        }}}),
        json!({"type": "function", "function": {"name": "write", "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        }}}),
        json!({"type": "function", "function": {"name": "free"}}),
    ]
});

/// What an answer shows: its text, and its calls by name and arguments.
type Shown = (String, Vec<(String, String)>);

type End = ContentEnd;

/// The text of a call that is not complete ends with this.
const OPEN: &str = "...";

fn collect(tools: &[Value], parts: &[&str], end: End) -> Shown {
    let mut parser = ToolCallParser::new(tools);
    let mut deltas: Vec<ContentDelta> = parts.iter().flat_map(|part| parser.push(part)).collect();
    deltas.extend(parser.finish(end));
    assert_eq!(parser.finish(End::Turn), [], "nothing is left after the end");
    let (mut text, mut calls, mut open) = (String::new(), Vec::new(), None);
    for delta in deltas {
        match delta {
            ContentDelta::Text(part) => {
                assert!(!part.is_empty() && open.is_none());
                text.push_str(&part);
            }
            ContentDelta::CallStart { name } => {
                assert_eq!(open.replace((name, String::new())), None, "a call inside a call");
            }
            ContentDelta::Arguments(json) => {
                assert!(!json.is_empty());
                open.as_mut().unwrap().1.push_str(&json);
            }
            ContentDelta::CallEnd { complete } => {
                let (name, arguments) = open.take().unwrap();
                calls.push((name, if complete { arguments } else { arguments + OPEN }));
            }
        }
    }
    assert_eq!(open, None, "a call that does not end");
    (text, calls)
}

/// Whole, and character by character.
fn read(content: &str, end: End) -> Shown {
    let whole = collect(&TOOLS, &[content], end);
    let characters: Vec<&str> = content.split_inclusive(|_: char| true).collect();
    assert_eq!(collect(&TOOLS, &characters, end), whole, "character by character: {content:?}");
    whole
}

#[track_caller]
fn check(content: &str, text: &str, calls: &[(&str, &str)]) {
    let shown = read(content, End::Turn);
    let found: Vec<(&str, &str)> =
        shown.1.iter().map(|(name, args)| (name.as_str(), args.as_str())).collect();
    assert_eq!((shown.0.as_str(), found.as_slice()), (text, calls), "{content:?}");
}

#[track_caller]
fn is_text(content: &str) {
    check(content, content, &[]);
}

const PARIS: &str =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>";
const PARIS_CALL: (&str, &str) = ("get_weather", r#"{"city":"Paris"}"#);

#[test]
fn one_call() {
    check(PARIS, "", &[PARIS_CALL]);
    check(&format!("\n\n{PARIS}\n"), "", &[PARIS_CALL]);
    check("<tool_call>\n<function=free>\n</function>\n</tool_call>", "", &[("free", "{}")]);
    check(
        "<tool_call><function=get_weather><parameter=city>Paris</parameter><parameter=days>3</parameter></function></tool_call>",
        "",
        &[("get_weather", r#"{"city":"Paris","days":3}"#)],
    );
    let windows = PARIS.replace('\n', "\r\n");
    check(&windows, "", &[PARIS_CALL]);
}

#[test]
fn text_around_calls() {
    check(&format!("Let me look.\n\n{PARIS}"), "Let me look.", &[PARIS_CALL]);
    check(&format!("Let me look.{PARIS}"), "Let me look.", &[PARIS_CALL]);
    check(&format!("  Two\n\n lines \t\n{PARIS}\n"), "  Two\n\n lines", &[PARIS_CALL]);
    check(&format!("a\n{PARIS}\nb\n{PARIS}\n\n"), "a\nb", &[PARIS_CALL, PARIS_CALL]);
    check(&format!("{PARIS}\nDone. \n"), "\nDone. \n", &[PARIS_CALL]);
    is_text("No call at all. \n");
    is_text(" \n");
    is_text("");
}

#[test]
fn several_calls_in_order() {
    check(&format!("{PARIS}\n{PARIS}"), "", &[PARIS_CALL, PARIS_CALL]);
    let both = format!("x {PARIS}{}", PARIS.replace("Paris", "Rome"));
    check(&both, "x", &[PARIS_CALL, ("get_weather", r#"{"city":"Rome"}"#)]);
    let one_block = "<tool_call>\n<function=free>\n</function>\n<function=write>\n</function>\n</tool_call>";
    check(one_block, "", &[("free", "{}"), ("write", "{}")]);
}

#[test]
fn values_are_exact() {
    for value in [
        "",
        " ",
        "\n",
        "a\n",
        "\n\n a\n\n",
        "if a < b && c </d> {}\n\t<x>",
        "</parameter> is a tag",
        "one\n</parameter>\ntwo",
        "</function>",
        "ends with <",
        "ends with </parameter",
        "a</parameter></parameter",
        "<tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>",
        "not closed: <parameter=content>, <parameter=path>",
        "\n<parameter=unknown>\n",
        "\n<parameter=content>\n",
        "\n</tool_call>\n!",
        "</function>\n</tool_cal",
        "\"quoted\" \\ \u{1f600} \u{0} \r\n é",
        "true",
    ] {
        let arguments = json!({"path": "p", "content": value}).to_string();
        let content = format!(
            "<tool_call>\n<function=write>\n<parameter=path>\np\n</parameter>\n<parameter=content>\n{value}\n</parameter>\n</function>\n</tool_call>"
        );
        check(&content, "", &[("write", &arguments)]);
    }
}

#[test]
fn missing_closing_tags() {
    let paris_3 = ("get_weather", r#"{"city":"Paris","days":3}"#);
    let open = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n";
    for rest in [
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "  <parameter=days>\n3\n  </function>\n</tool_call>",
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</tool_call>",
        "</parameter>\n<parameter=days>\n3\n</function>\n</tool_call>",
        "</parameter>\n<parameter=days>\n3\n</tool_call>",
        "</parameter>\n<parameter=days>\n3\n</function>",
        "</parameter>\n<parameter=days>\n3\n</function>\n</tool",
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n",
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</fun",
        "</parameter>\n<parameter=days>\n3\n</parameter>",
        "</parameter>\n<parameter=days>\n3\n</parameter>\n\n",
    ] {
        check(&format!("{open}{rest}"), "", &[paris_3]);
        check(&format!("Hm.\n{open}{rest}"), "Hm.", &[paris_3]);
    }
    // The next call begins although this one is open.
    for rest in ["</parameter>\n", "</parameter>\n</function>\n", "</tool_call>\n"] {
        check(&format!("{open}{rest}{PARIS}"), "", &[PARIS_CALL, PARIS_CALL]);
    }
    check(&format!("<tool_call>\n<function=free>\n{PARIS}"), "", &[("free", "{}"), PARIS_CALL]);
    check("<tool_call>\n<function=free>\n", "", &[("free", "{}")]);
    // A tool that declares no parameters may get any.
    let free = "<tool_call>\n<function=free>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>";
    check(free, "", &[("free", r#"{"a":1,"b":2}"#)]);
}

#[test]
fn a_missing_opening_tag() {
    let bare = PARIS.strip_prefix("<tool_call>\n").unwrap();
    check(bare, "", &[PARIS_CALL]);
    check(&format!("I look.\n\n  {bare}"), "I look.", &[PARIS_CALL]);
    check(&format!("{PARIS}\n{bare}"), "", &[PARIS_CALL, PARIS_CALL]);
    is_text(&format!("Write {bare}"));
    is_text("The form is\n<function=name>\n, and\n<function=get_weather> names a function.");
}

#[test]
fn text_that_is_no_call() {
    for content in [
        "<tool_call>",
        "The tag <tool_call> opens a call, and </tool_call> closes it.",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>\n",
        "<tool_call>\n<function=get_weather\n</function>\n</tool_call>",
        "<tool_call>\n<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n",
        "<tool_call>\n<function=Get_Weather>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\nsome text\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=>\n1\n</parameter>\n</function>\n</tool_call>",
        "a <too",
        "a \n<tool_call>\n <func",
        "</tool_call> </function> </parameter> <parameter=city> <<tool_call",
        "a\n\n<tool_call>\n<function=get_weather>\n<parameter=days>\n3",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</param",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<param",
        "<tool_call>\n<function=get_weather>\n<parameter=ci",
        "<tool_call>\n<function=get_wea",
        "<tool_call>\n<function=unknown>\n<parameter=a>\n1\n</parameter>\n",
    ] {
        is_text(content);
        check(&format!("{PARIS}{content}"), content, &[PARIS_CALL]);
        check(&format!("{PARIS}\n {content}"), &format!("\n {content}"), &[PARIS_CALL]);
    }
    let example = PARIS.replace('P', " P");
    is_text(&format!("<tool_call>\n<function=unknown>\n<parameter=a>\n{example}\n</tool_call>"));
    check(&format!("<tool_call>\n{PARIS}"), "<tool_call>", &[PARIS_CALL]);
    // The unknown block ends with a line, so the next function begins one.
    let unclosed = "<tool_call>\n<function=unknown>\n";
    let rest = PARIS.strip_prefix("<tool_call>\n").unwrap();
    check(&format!("{unclosed}{rest}"), unclosed, &[PARIS_CALL]);
}

#[test]
fn without_tools_all_is_text() {
    for tools in [&[][..], &[json!({"type": "web_search"})], &[json!(1)]] {
        assert_eq!(collect(tools, &["a ", PARIS, "\n"], End::Turn), (format!("a {PARIS}\n"), vec![]));
    }
}

#[test]
fn an_answer_that_was_cut_off() {
    let days = PARIS.replace("city", "days").replace("Paris", "3");
    for end in (1..days.len()).filter(|&end| days.is_char_boundary(end)) {
        let content = format!("a\n{}", &days[..end]);
        let shown = read(&content, End::Limit);
        if days[..end].contains("</function>") {
            assert_eq!((shown.0.as_str(), shown.1.len()), ("a", 1), "{content:?}");
        } else {
            assert_eq!(shown, (content.clone(), vec![]));
        }
    }
}

#[test]
fn a_string_that_was_cut_off_stays_open() {
    let (head, _) = PARIS.split_once("\nParis").unwrap();
    for (rest, shown) in [
        ("", ""),
        ("\n", ""),
        ("\nPar", "Par"),
        ("\nParis\n", "Paris"),
        ("\nParis\n</param", "Paris"),
        ("\nParis </b>\n<", "Paris </b>"),
        ("\nParis\n<parameter=da", "Paris"),
        ("\nParis\n</parameter>", "Paris"),
        ("\nParis\n</parameter>\n<parameter=da", "Paris"),
    ] {
        let open = format!("{{\"city\":\"{shown}{OPEN}");
        let content = format!("a\n{head}{rest}");
        let broken = ("a".to_owned(), vec![("get_weather".to_owned(), open)]);
        assert_eq!(read(&content, End::Limit), broken, "{content:?}");
        if !rest.ends_with("</parameter>") {
            assert_eq!(read(&content, End::StopString), broken, "{content:?}");
        }
        // The model itself ended here.
        let closed = ("a".to_owned(), vec![("get_weather".to_owned(), format!("{{\"city\":\"{shown}\"}}"))]);
        assert_eq!(read(&content, End::Turn), closed, "{content:?}");
    }
    let more = format!("{head}\nParis\n</parameter>\n<parameter=days>\n3");
    let broken = vec![("get_weather".to_owned(), format!("{{\"city\":\"Paris\"{OPEN}"))];
    assert_eq!(read(&more, End::Limit), (String::new(), broken));
    check(&more, "", &[("get_weather", r#"{"city":"Paris","days":3}"#)]);
}

#[test]
fn nothing_is_held_longer_than_it_must_be() {
    let mut parser = ToolCallParser::new(&TOOLS);
    let mut push = |part: &str| parser.push(part);
    let text = |text: &str| vec![ContentDelta::Text(text.to_owned())];
    assert_eq!(push("Hello, "), text("Hello,"));
    assert_eq!(push("world <"), text(" world"));
    assert_eq!(push("tool"), []);
    assert_eq!(push("s> a"), text(" <tools> a"));
    assert_eq!(push("\n<tool_call>\n<f"), []);
    assert_eq!(push("unction=free>\n"), []);
    let start = |name: &str| ContentDelta::CallStart { name: name.into() };
    let arguments = |json: &str| ContentDelta::Arguments(json.into());
    let end = ContentDelta::CallEnd { complete: true };
    assert_eq!(push("</function>"), [start("free"), arguments("{}"), end.clone()], "before </tool_call>");
    assert_eq!(push("\n</tool_call> \n"), []);
    assert_eq!(push("."), text(" \n."));
    // Strings are given as they grow, and everything else when it is whole.
    assert_eq!(push("<tool_call><function=get_weather>\n<parameter=days>\n3\n</parameter>"), []);
    assert_eq!(push("<parameter=city>"), [start("get_weather"), arguments(r#"{"days":3,"city":""#)]);
    assert_eq!(push("\nNew"), [arguments("New")]);
    assert_eq!(push(" "), []);
    assert_eq!(push("\"York\" <"), [arguments(r#" \"York\""#)]);
    assert_eq!(push("b>"), [arguments(" <b>")]);
    assert_eq!(push("\n</para"), []);
    assert_eq!(push("meter>"), []);
    assert_eq!(push("</function>"), [arguments("\"}"), end]);
}

#[test]
fn a_second_value_of_a_string_is_given_too() {
    let content =
        "<function=write>\n<parameter=path>\na\n</parameter>\n<parameter=path>\nb\n</parameter>\n</function>";
    let (_, calls) = read(content, End::Turn);
    assert_eq!(calls, [("write".to_owned(), r#"{"path":"a","path":"b"}"#.to_owned())]);
    assert_eq!(serde_json::from_str::<Value>(&calls[0].1).unwrap(), json!({"path": "b"}));
}

#[test]
fn the_last_run_of_calls_in_a_reasoning() {
    let rome = PARIS.replace("Paris", "Rome");
    let cities = |reasoning: &str| {
        let whole = |parts: &[&str]| {
            let mut calls = ReasoningCalls::new(&TOOLS);
            parts.iter().for_each(|part| calls.push(part));
            calls.finish()
        };
        let found = whole(&[reasoning]);
        let characters: Vec<&str> = reasoning.split_inclusive(|_: char| true).collect();
        assert_eq!(whole(&characters), found);
        let city = |(_, arguments): &(String, String)| {
            serde_json::from_str::<Value>(arguments).unwrap()["city"].clone()
        };
        found.iter().map(city).collect::<Vec<Value>>()
    };
    assert_eq!(cities("I think."), [json!(null); 0]);
    assert_eq!(cities(PARIS), ["Paris"]);
    assert_eq!(cities(&format!("Shall I {PARIS}? Yes: {rome}\n")), ["Rome"]);
    assert_eq!(cities(&format!("Both:\n{PARIS}\n{rome}\nNow I wait.")), ["Paris", "Rome"]);
    assert_eq!(cities(&format!("{PARIS}\nor\n{}", &rome[..70])), ["Paris"], "the last one is not whole");
    assert_eq!(cities("The form is <function=get_weather>, I think."), [json!(null); 0]);
}

/// The argument `x` of a tool whose parameter `x` has this schema.
#[track_caller]
fn typed(schema: Value, text: &str) -> String {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {
        "type": "object",
        "properties": {"x": schema},
        "$defs": {"Count": {"type": "integer"}, "Circle": {"$ref": "#/$defs/Circle"}},
    }}});
    let content =
        format!("<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>");
    let (shown, calls) = collect(&[tool], &[&content], End::Turn);
    assert_eq!((shown.as_str(), calls.len()), ("", 1), "{content:?}");
    let arguments: Value = serde_json::from_str(&calls[0].1).unwrap();
    assert_eq!(arguments.as_object().unwrap().len(), 1);
    calls[0].1.strip_prefix("{\"x\":").and_then(|rest| rest.strip_suffix('}')).unwrap().to_owned()
}

#[test]
fn strings_are_never_guessed_at() {
    let schemas = [
        json!({"type": "string"}),
        json!({"type": ["string"]}),
        json!({"enum": ["02134", "x"]}),
        json!({"const": "y"}),
        json!({"anyOf": [{"type": "string"}, {"type": "string", "format": "uri"}]}),
        json!({"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}),
    ];
    for schema in schemas {
        for text in ["02134", "1e5", "true", "null", "5", "[1]", "{\"a\":1}", "\"quoted\"", " spaces ", ""] {
            assert_eq!(typed(schema.clone(), text), Value::from(text).to_string(), "{schema}");
        }
    }
}

#[test]
fn other_types_are_read_as_json() {
    for (schema, text, wanted) in [
        (json!({"type": "integer"}), "5", "5"),
        (json!({"type": "integer"}), " 5 ", "5"),
        (json!({"type": "integer"}), "5.0", "5"),
        (json!({"type": "integer"}), "-1e3", "-1000"),
        (json!({"type": "integer"}), "123456789012345678901234567890", "123456789012345678901234567890"),
        (json!({"type": "integer"}), "5.5", "5.5"),
        (json!({"type": "integer"}), "five", r#""five""#),
        (json!({"type": "integer"}), "007", r#""007""#),
        (json!({"type": "int"}), "7", "7"),
        (json!({"type": "number"}), "5.0", "5.0"),
        (json!({"type": "number"}), "3.14159265358979323846", "3.14159265358979323846"),
        (json!({"type": ["integer", "number"]}), "5.0", "5.0"),
        (json!({"type": "boolean"}), "true", "true"),
        (json!({"type": "boolean"}), "True", "true"),
        (json!({"type": "boolean"}), "FALSE", "false"),
        (json!({"type": "boolean"}), "yes", r#""yes""#),
        (json!({"type": "null"}), "None", "null"),
        (json!({"type": "array", "items": {"type": "string"}}), "[\"a\", true]", "[\"a\", true]"),
        (json!({"items": {}}), "[1,\n 2]", "[1,\n 2]"),
        (json!({"type": "array"}), "a, b", r#""a, b""#),
        (json!({"type": "object"}), "{\"a\": {\"b\": [null]}}", "{\"a\": {\"b\": [null]}}"),
        (json!({"properties": {}}), "{}", "{}"),
        (json!({"type": "object"}), "{'a': 1}", r#""{'a': 1}""#),
        (json!({"type": "object"}), "", r#""""#),
    ] {
        assert_eq!(typed(schema.clone(), text), wanted, "{schema} {text:?}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(typed(json!({"type": "array"}), &deep), Value::from(deep).to_string());
}

/// Branches that refer to all branches: to the power of the longest chain, if nothing bounds them.
#[test]
fn branches_without_end_say_nothing_at_once() {
    for keyword in ["anyOf", "oneOf", "allOf"] {
        let began = std::time::Instant::now();
        let circle = json!({"$ref": "#/properties/x"});
        assert_eq!(typed(json!({keyword: vec![circle; 40]}), "words"), r#""words""#, "{keyword}");
        assert!(began.elapsed().as_secs() < 5, "{keyword}");
    }
}

#[test]
fn unions_are_resolved() {
    let count_or_auto = json!({"anyOf": [{"$ref": "#/$defs/Count"}, {"const": "auto"}]});
    for (schema, text, wanted) in [
        (json!({"type": ["string", "null"]}), "null", "null"),
        (json!({"type": ["string", "null"]}), "Null Island", r#""Null Island""#),
        (json!({"type": ["string", "null"]}), "5", r#""5""#),
        (json!({"type": "string", "nullable": true}), "null", "null"),
        (json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}), "5", "5"),
        (json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}), "5.5", r#""5.5""#),
        (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "\"5\"", r#""\"5\"""#),
        (json!({"anyOf": [{"type": "array", "items": {}}, {"type": "null"}]}), "[1]", "[1]"),
        (json!({"anyOf": [{"oneOf": [{"type": "boolean"}]}, {"type": "string"}]}), "true", "true"),
        (json!({"anyOf": [{"type": "object"}, {"type": "string"}]}), "{\"a\": 1}", "{\"a\": 1}"),
        (json!({"anyOf": [{"type": "object"}, {"type": "string"}]}), "{a}", r#""{a}""#),
        (json!({"enum": [1, 2, "auto"]}), "2", "2"),
        (json!({"enum": [1, 2, "auto"]}), "auto", r#""auto""#),
        (count_or_auto.clone(), "4", "4"),
        (count_or_auto, "auto", r#""auto""#),
        (json!({"$ref": "#/$defs/Count"}), "4.0", "4"),
        (json!({"allOf": [{"$ref": "#/$defs/Count"}], "description": "d"}), "4", "4"),
    ] {
        assert_eq!(typed(schema.clone(), text), wanted, "{schema} {text:?}");
    }
}

#[test]
fn what_nothing_is_said_about_is_guessed() {
    for schema in [
        json!({}),
        json!(true),
        json!(null),
        json!({"description": "d"}),
        json!({"type": "any"}),
        json!({"$ref": "#/$defs/Circle"}),
        json!({"$ref": "#/nowhere"}),
        json!({"anyOf": []}),
        json!({"anyOf": [{"type": "string"}, {}]}),
    ] {
        for (text, wanted) in [
            ("5", "5"),
            ("1.50", "1.50"),
            ("true", "true"),
            ("[1, 2]", "[1, 2]"),
            ("{\"a\": 1}", "{\"a\": 1}"),
            ("null", r#""null""#),
            ("\"a\"", r#""\"a\"""#),
            ("02134", r#""02134""#),
            ("True", r#""True""#),
            (" words ", r#"" words ""#),
        ] {
            assert_eq!(typed(schema.clone(), text), wanted, "{schema}");
        }
    }
}

#[test]
fn schemas_in_other_places() {
    let content = "<function=f>\n<parameter=x>\n5\n</parameter>\n</function>";
    for (tool, wanted) in [
        (json!({"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}), r#"{"x":"5"}"#),
        (json!({"name": "f", "input_schema": {"properties": {"x": {"type": "string"}}}}), r#"{"x":"5"}"#),
        (json!({"name": "f", "parameters": {"additionalProperties": {"type": "string"}}}), r#"{"x":"5"}"#),
        (json!({"name": "f", "parameters": {"additionalProperties": false}}), r#"{"x":5}"#),
        (json!({"name": "f", "parameters": null}), r#"{"x":5}"#),
        (
            json!({"name": "f", "parameters": {
                "$ref": "#/$defs/A", "$defs": {"A": {"properties": {"x": {"type": "string"}}}}
            }}),
            r#"{"x":"5"}"#,
        ),
    ] {
        let shown = collect(&[tool], &[content], End::Turn);
        assert_eq!(shown, (String::new(), vec![("f".into(), wanted.into())]));
    }
}

#[test]
fn a_parameter_given_twice() {
    let content = "<function=free>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n<parameter=a>\n3\n</parameter>\n</function>";
    check(content, "", &[("free", r#"{"a":3,"b":2}"#)]);
}

#[test]
fn long_parts_take_linear_time() {
    let begun = std::time::Instant::now();
    let content = "<tool_call>x<function=".repeat(300_000);
    assert_eq!(collect(&TOOLS, &[&content], End::Turn).0, content);
    let value = "</parameter> <parameter=a>\n".repeat(50_000);
    let content = format!("<function=write>\n<parameter=path>\n{value}</parameter></function>");
    assert_eq!(collect(&TOOLS, &[&content], End::Turn).1.len(), 1);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

/// Tags, halves of tags, blanks and words, each word only once.
fn soup() -> impl Strategy<Value = String> {
    let tag = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=free>",
        "<function=write>",
        "<function=get_weather>",
        "<function=other>",
        "</function>",
        "</parameter>",
        "<tool_",
        "</",
        "<",
        ">",
        "<function=",
        "<parameter=",
        "<parameter=path>",
        "<parameter=content>",
        "\u{1f600}",
        "é",
    ]);
    let blank = prop::sample::select(vec!["", "\n", "\n", "\n", " ", "\n\n"]);
    let part = prop_oneof![
        5 => tag.prop_map(String::from),
        1 => Just("<parameter=WORD>".to_owned()),
        2 => Just("WORD".to_owned()),
    ];
    prop::collection::vec((part, blank), 0..24).prop_map(|parts| {
        let mut content = String::new();
        for (at, (part, blank)) in parts.into_iter().enumerate() {
            content.push_str(&part.replace("WORD", &format!("w{at}w")));
            content.push_str(blank);
        }
        content
    })
}

/// Well-formed calls with text between them, and a place to disturb them.
fn answers() -> impl Strategy<Value = String> {
    let value = prop::sample::select(vec!["v", "5", "a\nb", "x < y", "</parameter> z", ""]);
    let key = prop::sample::select(vec!["path", "content", "city", "q"]);
    let name = prop::sample::select(vec!["write", "get_weather", "free", "other"]);
    let call = (name, prop::collection::vec((key, value), 0..3)).prop_map(|(name, values)| {
        let mut call = format!("<tool_call>\n<function={name}>\n");
        for (key, value) in values {
            call.push_str(&format!("<parameter={key}>\n{value}\n</parameter>\n"));
        }
        call + "</function>\n</tool_call>"
    });
    let text = prop::sample::select(vec!["", "Some text.", "\n", "a\n\n"]);
    let content = prop::collection::vec((text, call), 1..4)
        .prop_map(|parts| parts.into_iter().map(|(text, call)| text.to_owned() + &call).collect::<String>());
    (content, any::<prop::sample::Index>(), 0..12usize).prop_map(|(mut content, place, length)| {
        if length < 10 {
            let start = place.index(content.len());
            let end = (start + length).min(content.len());
            content.replace_range(start..end, "");
        }
        content
    })
}

fn cut(content: &str, cuts: &[prop::sample::Index]) -> Vec<String> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(content.len() + 1)).collect();
    places.retain(|&place| content.is_char_boundary(place));
    places.extend([0, content.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| content[pair[0]..pair[1]].to_owned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(3000), max_global_rejects: 1_000_000, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_the_same(
        content in prop_oneof![soup(), answers()],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        end in prop::sample::select(vec![End::Turn, End::StopString, End::Limit]),
    ) {
        let parts = cut(&content, &cuts);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        prop_assert_eq!(collect(&TOOLS, &parts, end), read(&content, end));
    }

    #[test]
    fn no_word_is_lost_or_doubled(content in soup()) {
        // A parameter given twice loses its earlier value.
        let mut content = content;
        for tag in ["<parameter=path>", "<parameter=content>"] {
            if let Some((first, rest)) = content.split_once(tag) {
                content = format!("{first}{tag}{}", rest.replace(tag, "</parameter>"));
            }
        }
        // A tag that the end cuts off is markup, its words too; without it the end may cut off another.
        while let Some(last) = content.rfind('<').filter(|&last| !content[last..].contains('>')) {
            content.truncate(last);
        }
        let (text, calls) = read(&content, End::Turn);
        let shown = calls.iter().fold(text, |all, (name, arguments)| format!("{all} {name} {arguments}"));
        for word in content.split(|c: char| !c.is_alphanumeric()).filter(|word| word.starts_with('w') && word.ends_with('w')) {
            prop_assert_eq!(shown.matches(word).count(), 1, "{} in {:?}", word, shown);
        }
        for (_, arguments) in calls {
            prop_assert!(serde_json::from_str::<Value>(&arguments).unwrap().is_object());
        }
    }

    #[test]
    fn text_without_calls_is_kept_byte_for_byte(content in soup()) {
        let unknown = content.replace("write", "other").replace("free", "other").replace("get_weather", "other");
        prop_assert_eq!(read(&unknown, End::Turn), (unknown, vec![]));
    }

    #[test]
    fn arbitrary_text_never_panics(content in any::<String>(), tail in any::<String>()) {
        read(&content, End::Turn);
        read(&format!("<tool_call><function=free><parameter={content}>{tail}</parameter></function>"), End::Turn);
        typed(json!({"type": ["object", "integer"]}), &tail.replace('<', ""));
    }

    #[test]
    fn what_a_template_writes_is_read_back(
        values in prop::collection::vec(prop_oneof![any::<String>(), "[<>/a=\n ]{0,12}", "(</?(parameter|function=x|tool_call)>|\n| ){0,5}"], 1..4),
    ) {
        let mut content = "<tool_call>\n<function=free>\n".to_owned();
        for (at, value) in values.iter().enumerate() {
            content.push_str(&format!("<parameter=s{at}>\n{value}\n</parameter>\n"));
        }
        content.push_str("</function>\n</tool_call>");
        let properties: serde_json::Map<String, Value> =
            (0..values.len()).map(|at| (format!("s{at}"), json!({"type": "string"}))).collect();
        let tool = json!({"function": {"name": "free", "parameters": {"properties": properties}}});
        // Values in which the policy sees an end are the price of markup without escapes.
        let followed = |value: &str| {
            let compact: String = value.split_whitespace().collect();
            ["</parameter><", "</function></tool_call>", "</tool_call><tool_call>"].iter().any(|end| compact.contains(end))
                || compact.ends_with("</parameter>") || value.starts_with("\r\n")
        };
        prop_assume!(!values.iter().any(|value| followed(value)));
        let wanted: serde_json::Map<String, Value> =
            values.iter().enumerate().map(|(at, value)| (format!("s{at}"), Value::from(value.as_str()))).collect();
        let shown = collect(&[tool], &[&content], End::Turn);
        prop_assert_eq!(shown, (String::new(), vec![("free".to_owned(), Value::Object(wanted).to_string())]));
    }
}
