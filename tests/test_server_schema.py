"""The OpenAPI document against the server: whatever is sent, the answer is one that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from serving import QUESTION, Running, serving, tiny_pair

from parse_local import Options, load_pair
from parse_local.server.settings import Limits

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    files = tiny_pair(tiny)
    with serving(
        lambda: load_pair(**files, n_ctx=512, n_threads=1, spec="none"),
        options=Options(max_tokens=6),
        limits=Limits(answer_tokens=6),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def openapi(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
TRIED = [
    ("/v1/chat/completions", POSITIVE, 40),
    ("/v1/chat/completions", NEGATIVE, 40),
    ("/v1/completions", POSITIVE, 40),
    ("/v1/completions", NEGATIVE, 40),
    ("/v1/models", POSITIVE, 2),
    ("/v1/models/{model}", POSITIVE, 10),
    ("/health", POSITIVE, 2),
    ("/metrics", POSITIVE, 2),
]
"""Path, requests that fit the document or do not, and how many."""


def test_every_path_is_tried(openapi: Any) -> None:
    assert set(openapi.raw_schema["paths"]) == {path for path, _, _ in TRIED}


def few(data: st.DataObject, body: dict[str, Any]) -> dict[str, Any]:
    """A body with few of the fields, which contradict each other otherwise, and a question."""

    def some(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            name: fields[name]
            for name in data.draw(st.sets(st.sampled_from(sorted(fields)), max_size=3))
        }

    found = some(body)
    if found.get("parse"):
        found["parse"] = some(found["parse"])
    if "messages" in body:
        return {**found, "messages": QUESTION}
    return {**found, "prompt": "hello there"}


@pytest.mark.parametrize(("path", "mode", "n"), TRIED)
def test_every_request_gets_a_documented_answer(
    openapi: Any, path: str, mode: schemathesis.GenerationMode, n: int
) -> None:
    (operation,) = openapi[path].values()
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    @settings(
        max_examples=n,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case, data: st.DataObject) -> None:
        if mode is POSITIVE and isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body = few(data, case.body)
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    check()
    if mode is NEGATIVE:
        assert 200 not in statuses
    elif path != "/v1/models/{model}":
        assert 200 in statuses
