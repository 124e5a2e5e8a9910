"""The protocol without a client library: what is on the wire."""

import http.client
import json


def connect(server):
    return http.client.HTTPConnection(server.host, server.port, timeout=10)


def post(server, body, headers=None):
    connection = connect(server)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
    )
    return connection.getresponse()


ASK = {"messages": [{"role": "user", "content": "hi"}]}
HELLO = {"thinking": False, "pieces": ["Hello"]}


def test_the_events_of_a_stream(scripted):
    reply = post(scripted(HELLO), {**ASK, "stream": True, "stream_options": {"include_usage": True}})
    assert reply.status == 200
    assert reply.getheader("Content-Type") == "text/event-stream"
    assert reply.getheader("Cache-Control") == "no-cache"
    events = reply.read().decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[1]["choices"][0]["delta"] == {"content": "Hello"}
    assert chunks[2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert chunks[3]["choices"] == []


def test_one_connection_serves_many_requests(scripted):
    server = scripted(HELLO)
    connection = connect(server)
    for stream in (False, True, False):
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({**ASK, "stream": stream}),
            {"Content-Type": "application/json"},
        )
        reply = connection.getresponse()
        assert reply.status == 200
        reply.read()


def test_foreign_hosts_are_refused(scripted):
    server = scripted(HELLO)
    reply = post(server, ASK, {"Host": "evil.example"})
    assert reply.status == 403
    assert json.load(reply)["error"]["code"] == "host_not_allowed"
    assert server.requests() == []


def test_a_body_that_is_too_large(scripted):
    server = scripted(HELLO)
    body = {"messages": [{"role": "user", "content": "x" * (100 << 20)}]}
    reply = post(server, body)
    assert reply.status == 413
    assert json.load(reply)["error"]["code"] == "body_too_large"


def test_logs_tell_nothing_of_prompts(scripted, tmp_path):
    server = scripted(HELLO)
    body = {"messages": [{"role": "user", "content": "a secret word"}], "odd\x1b[31m\nname": 1}
    for _ in range(2):
        assert post(server, body).status == 200
    connection = connect(server)
    connection.request("GET", "/%0a%1b[31m")
    connection.getresponse().read()
    log = (tmp_path / "log.txt").read_text()
    assert "secret" not in log
    assert "\x1b" not in log
    assert log.count("is unknown here and has no effect") == 1
