"""Calls of functions read from what stands between their markers (pure).

Each reader takes the text and the parameters' schema of every tool, by name, and returns the
calls, or None where there is none in its notation.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from parse_local.events import ToolCall


def _all(calls: Iterable[ToolCall | None]) -> list[ToolCall] | None:
    found = list(calls)
    return None if not found or None in found else [call for call in found if call is not None]


# JSON


def _values(text: str) -> Iterator[Any]:
    # JSON values that follow one another, with or without a separator.
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at] in " \t\r\n;,":
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield value


def _objects(text: str) -> list[Any] | None:
    # One or several values, or a list of them.
    try:
        values = list(_values(text))
    except (ValueError, RecursionError):
        return None
    return [o for v in values for o in (v if isinstance(v, list) else [v])]


def read_json(text: str, _: Mapping[str, Any]) -> list[ToolCall] | None:
    """One or several objects with a name and its arguments, or a list of them."""
    objects = _objects(text)
    return None if objects is None else _all(map(_of_object, objects))


def read_keyed(text: str, _: Mapping[str, Any]) -> list[ToolCall] | None:
    """The same, but of objects that have the arguments under the function's name."""
    objects = _objects(text)
    if objects is None or not all(isinstance(o, dict) for o in objects):
        return None
    named = [{"name": k, "arguments": v} for o in objects for k, v in o.items()]
    return _all(map(_of_object, named))


def _of_object(found: Any) -> ToolCall | None:
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("function"), dict):  # as OpenAI's API has it
        found = found["function"]
    name = found.get("name") or found.get("function") or found.get("tool_name")
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # some models write JSON within JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return _written(name, arguments)


def _written(name: str, arguments: dict[str, Any]) -> ToolCall | None:
    # None where JSON cannot say them: Python reads NaN, 1e999 as infinity, and has sets.
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as an escape
        text = json.dumps(arguments)
    except (TypeError, ValueError, RecursionError):
        return None
    return ToolCall(name, text)


def _named(name: str, arguments: str) -> ToolCall | None:
    return _of_object({"name": name, "arguments": arguments})


# elements

_TAGGED = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_INVOKED = re.compile(r'<invoke name="([^">]+)">(.*?)(?:</invoke>|$)', re.DOTALL)
_NAMED = re.compile(r'<parameter name="([^">]+)">\n?(.*?)\n?</parameter>', re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def read_tagged(text: str, parameters: Mapping[str, Any]) -> list[ToolCall] | None:
    """JSON; `<function=name>` around JSON or around tags; or GLM's name with pairs behind it."""
    if "<function=" in text:
        return _read_elements(text, parameters, _TAGGED, _PARAMETER)
    name = text.partition("<arg_key>")[0].strip()
    if name not in parameters:
        return read_json(text, parameters)
    return _all([_written(name, _typed(_PAIR.findall(text), parameters[name]))])


def read_invoked(text: str, parameters: Mapping[str, Any]) -> list[ToolCall] | None:
    """`<invoke name="...">` around JSON, or around an element for each parameter."""
    return _read_elements(text, parameters, _INVOKED, _NAMED)


def _read_elements(
    text: str, parameters: Mapping[str, Any], call: re.Pattern[str], parameter: re.Pattern[str]
) -> list[ToolCall] | None:
    return _all(
        _named(name, body)
        if body.strip().startswith("{")
        else _written(name, _typed(parameter.findall(body), parameters.get(name, {})))
        for name, body in call.findall(text)
    )


def _typed(pairs: Iterable[tuple[str, str]], schema: Any) -> dict[str, Any]:
    types = schema.get("properties") if isinstance(schema, dict) else None
    types = types if isinstance(types, dict) else {}  # clients send anything
    return {key.strip(): _value(text, types.get(key.strip())) for key, text in pairs}


def _value(text: str, schema: Any) -> Any:
    # A parameter is a text unless its schema says otherwise.
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are no JSON


# other notations

_MISTRAL = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?\[ARGS\]")
_GEMMA = re.compile(r"\s*call:([\w.-]+)\s*")
_GEMMA_KEY = re.compile(r'([{,]\s*)([^\s{}\[\],:"]+)\s*:')
_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|$)",
    re.DOTALL,
)
_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|$)", re.DOTALL)


def read_mistral(text: str, parameters: Mapping[str, Any]) -> list[ToolCall] | None:
    """A list of objects; or names, each with `[ARGS]` and its arguments."""
    parts = [part for part in text.split("[TOOL_CALLS]") if part.strip()]
    calls: list[ToolCall] = []
    for part in parts:
        found = _MISTRAL.match(part)
        if found is None:
            more = read_json(part, parameters)
        else:
            more = _all([_named(found[1], part[found.end() :])])
        if more is None:
            return None
        calls += more
    return calls


def read_gemma(text: str, _: Mapping[str, Any]) -> list[ToolCall] | None:
    """`call:`, a name, and an object whose keys are bare and whose texts stand in a token."""
    found = _GEMMA.match(text)
    if found is None:
        return None
    body = text[found.end() :]
    parts = body.split('<|"|>')
    parts[::2] = [_GEMMA_KEY.sub(r'\1"\2":', part) for part in parts[::2]]
    parts[1::2] = map(json.dumps, parts[1::2])
    return _all([_named(found[1], body) or _named(found[1], "".join(parts))])


def read_python(text: str, parameters: Mapping[str, Any]) -> list[ToolCall] | None:
    """A list of Python's calls with keyword arguments; or JSON."""
    calls = read_json(text, parameters)
    if calls is not None:
        return calls
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(text.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return _all(map(_of_python, nodes))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _of_python(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    values = {k.arg or "": ast.literal_eval(_Constants().visit(k.value)) for k in node.keywords}
    return None if "" in values else _written(ast.unparse(node.func), values)


class _Constants(ast.NodeTransformer):
    # JSON's, which Python takes for names.
    VALUES = {"true": True, "false": False, "null": None}  # noqa: RUF012

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.VALUES[node.id]) if node.id in self.VALUES else node


def read_kimi(text: str, _: Mapping[str, Any]) -> list[ToolCall] | None:
    """Names with the number of the call, each with its arguments."""
    return _all(_named(name, body) for name, body in _KIMI.findall(text))


def read_deepseek(text: str, _: Mapping[str, Any]) -> list[ToolCall] | None:
    """Names, each with its arguments; in older models a kind before and a fence around them."""
    calls = []
    for part in _DEEPSEEK.findall(text):
        name, arguments = part.partition("<｜tool▁sep｜>")[::2]
        if name.strip() == "function" and not arguments.lstrip().startswith("{"):
            name, arguments = arguments.partition("\n")[::2]
        arguments = arguments.strip().removeprefix("```json").removesuffix("```")
        calls.append(_named(name.strip(), arguments))
    return _all(calls)


def read_addressed(text: str, _: Mapping[str, Any]) -> list[ToolCall] | None:
    """A name, `>`, and its arguments."""
    name, arguments = text.partition(">")[::2]
    return _all([_named(name, arguments)])
