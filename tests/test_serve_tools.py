"""What benchmark tools sent when they were run against this server (tests/data/serve_tools.json) is still answered."""

import json

import pytest
from serving import events, running, tiny_engine
from starting import ROOT

TOOLS = json.loads((ROOT / "tests/data/serve_tools.json").read_text())["tools"]
OPTIONAL = {"/server_info"}  # asked for, and not missed


@pytest.fixture(scope="module")
def server():
    with running(tiny_engine()) as it:
        yield it


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["tool"].partition(" ")[0])
def test_every_request_of_a_tool_is_answered_as_it_reads_the_answer(server, tool):
    asked = 0
    for request in tool["requests"]:
        if request["path"] in OPTIONAL:
            continue
        response = server.http.request(
            request["method"], request["path"], headers=request["headers"], json=request.get("body")
        )
        assert response.status_code == 200, response.text
        if request["path"] == "/v1/models":
            assert {"id", "root"} <= set(response.json()["data"][0])
        if body := request.get("body"):
            options, asked = body.get("stream_options", {}), asked + 1
            got = events(response)
            answer = got[:-1] if options.get("include_usage") else got
            assert [len(event["choices"]) for event in answer] == [1] * body["max_tokens"]
            assert all(event["choices"][0]["text"] for event in answer)
            if options.get("include_usage"):
                assert got[-1]["usage"]["completion_tokens"] == body["max_tokens"] and got[-1]["choices"] == []
            if options.get("continuous_usage_stats"):
                assert [event["usage"]["completion_tokens"] for event in answer] == [*range(1, len(answer) + 1)]
    assert asked == 1
