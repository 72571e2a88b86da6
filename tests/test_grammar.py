"""JSON schemas as grammars: what a grammar takes validates, and what it cannot hold is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from taking import takes

from parse_local.errors import GrammarError
from parse_local.grammar import json_object, schema_grammar
from parse_local.llama.model import Model

NAME = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}
# Schema, what it takes, what it does not.
SCHEMAS: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "integer"}, ["0", "-12", "7 "], ["01", "1.5", '"1"']),
    ({"type": "integer", "minimum": 0}, ["0", "12"], ["-1"]),
    ({"type": "integer", "minimum": 3, "maximum": 120}, ["3", "9", "10", "99", "119", "120"], [
        "2", "0", "121", "200", "-5", "1000"]),
    ({"type": "integer", "exclusiveMinimum": -12, "exclusiveMaximum": 5}, ["-11", "-1", "0", "4"], [
        "-12", "5", "-0", "10"]),
    ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, ["0", "999", str(2**63 - 1)], [
        "-1", str(2**63), str(10**19)]),
    ({"type": "integer", "minimum": 1000, "maximum": 9999}, ["1000", "5000", "9999"], [
        "999", "10000"]),
    ({"type": "integer", "minimum": 95}, ["95", "100", "123456"], ["94", "9", "-95"]),
    ({"type": "integer", "maximum": -5}, ["-5", "-99"], ["-4", "0", "5"]),
    ({"type": "number", "minimum": 0}, ["0.5", "3", "1e-3"], ["-0.5"]),
    ({"type": "boolean"}, ["true", "false"], ["null"]),
    ({"type": "string"}, ['"a\\n\\u00e9 é日"', '""'], ['"a\nb"', '"a"b"', '"\x7f"', '"\\x"']),
    ({"type": "string", "minLength": 2, "maxLength": 300}, ['"ab"', f'"{"x" * 300}"'], [
        '"a"', f'"{"x" * 301}"']),
    ({"enum": ["é", 'a"b', "a\\b", "two\nlines", 3, None]}, [
        '"é"', '"a\\"b"', '"a\\\\b"', '"two\\nlines"', "3", "null"], ['"e"', '"a\\b"']),
    ({"const": {"a": [1]}}, ['{"a": [1]}'], ['{"a": [2]}']),
    (NAME, ['{"n":"x"}', '{ "n": "x" }'], ["{}", '{"n":1}', '{"n":"x","m":1}']),
    ({**NAME, "additionalProperties": True}, ['{"n":"x","m":[1,{"k":null}]}'], ['{"m":1}']),
    ({"type": "array", "items": NAME}, ["[]", '[{"n":""},{"n":"y"}]'], ["[1]", "[{}]"]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, [
        "[1,2]", "[1, 2, 3]"], ["[1]", "[]", "[1,2,3,4]"]),
    ({"type": "array", "maxItems": 1}, ["[]", '["any"]'], ["[1,2]"]),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}]}, ["[1, null]"], [
        "[null,1]", "[1]"]),
    ({"type": ["string", "null"], "enum": ["a", None]}, ['"a"', "null"], ['"b"']),
    ({"type": ["integer", "null"], "minimum": 1}, ["1", "null"], ["0"]),
    ({"anyOf": [{"type": "integer"}, NAME], "title": "x", "default": 1}, ["1", '{"n":"x"}'], [
        '"x"']),
    ({"allOf": [{"enum": ["a"]}], "description": "as pydantic writes it"}, ['"a"'], ['"b"']),
    ({}, ["1", '"a"', "[true]", "{}"], ["x"]),
    ({"type": "object", "properties": {"any": {}}, "required": ["any"]}, ['{"any":1}'], ["{}"]),
    ({"type": "object", "required": ["k"]}, ['{"k":1}'], ["{}"]),
    ({"type": "string", "pattern": r'^[^a]\d{3}-\w.\.$'}, ['"b123-x?."'], [
        '"a123-xy."', '""123-xy."', '"b123-x"."', '"b12-xy."', '"b123-xyz"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-13-01"']),
    ({"$ref": "#/$defs/b", "$defs": {"a": NAME, "b": {"$ref": "#/$defs/a"}}}, ['{"n":""}'], ["1"]),
    (
        {"type": "object", "properties": {"more": {"$ref": "#"}}},
        ['{"more":{"more":{}}}'],
        ['{"more":1}'],
    ),
    # A property that is called as a definition is, and a definition that contains itself.
    (
        {
            "type": "object",
            "properties": {"node": {"enum": [1, 2]}, "tree": {"$ref": "#/$defs/node"}},
            "required": ["node", "tree"],
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                    "required": ["next"],
                }
            },
        },
        ['{"node":1,"tree":{"next":{"next":null}}}'],
        ['{"node":3,"tree":{"next":null}}', '{"node":1,"tree":1}'],
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Model:
    return Model(tiny(seed=1))


@pytest.mark.parametrize("case", SCHEMAS, ids=lambda c: json.dumps(c[0])[:40])
def test_what_a_grammar_takes_is_what_validates(
    model: Model, case: tuple[Any, list[str], list[str]]
) -> None:
    schema, good, bad = case
    for how in (schema, json.dumps(schema)):
        grammar = schema_grammar(how)
        assert [text for text in good if not takes(model, grammar, text)] == []
        assert [text for text in bad if takes(model, grammar, text)] == []
    for text in good:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "has to be an object"),
        ("[" * 100_000, "is not JSON"),
        ({"type": "strnig"}, "Unrecognized schema"),
        ({"type": "integer", "multipleOf": 3}, "`multipleOf`"),
        ({"type": "number", "maximum": 3}, "a range of numbers that need not"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "empty range"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "`not`"),
        ({"type": "array", "uniqueItems": True}, "`uniqueItems`"),
        ({"$ref": "#/$defs/none"}, "refers to #/$defs/none"),
        ({"$ref": "https://example.org/schema.json"}, "refers to https"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "begins with itself"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "`b`, which is not"),
        ({**NAME, "anyOf": [{"required": ["n"]}]}, "`anyOf` beside `properties`"),
        ({"type": "string", "pattern": "abc"}, "Pattern must start"),
        ({"type": "string", "pattern": '^"$'}, "quotation mark"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "Unsupported pattern"),
        ({"enum": []}, "one of no values"),
        ({"type": "string", "minLength": 3000}, "repeats more often than 2000 times"),
        ({"type": "object", "properties": "a"}, "cannot be made into a grammar"),
        ({"type": "array", "minItems": "a"}, "cannot be made into a grammar"),
    ],
)
def test_what_cannot_be_held_is_named(schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError) as error:
        schema_grammar(schema)
    assert reason in str(error.value)
    assert str(error.value).count("\n") == 0


def test_any_object(model: Model) -> None:
    grammar = json_object()
    assert takes(model, grammar, '{"a": [1, {"b": null}], "c": "\\n"}')
    assert not takes(model, grammar, "[1]")
