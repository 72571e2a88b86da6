"""JSON schemas → grammars: llama-cpp-python's converter, with what it gets wrong put right.

An answer under such a grammar is JSON that validates. A keyword that a grammar cannot hold an
answer to is refused by name instead of being ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from parse_local.errors import GrammarError
from parse_local.gbnf import check_grammar
from parse_local.llama import _bindings  # noqa: F401 - says where llama_cpp is

_converter: Any = import_module("llama_cpp.llama_grammar")
_PRIMITIVES = _converter.PRIMITIVE_RULES

Schema = Mapping[str, Any] | bool

_CHAR = r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})'
# The converter's own lets control characters into strings, which JSON does not.

_REFUSED = {
    *("multipleOf", "not", "if", "then", "else", "contains", "minContains", "maxContains"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
_RANGE = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_STRUCTURE = {
    *("properties", "required", "additionalProperties", "enum", "const"),
    *("items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern"),
    *_RANGE,
}
# What says something about a value, beside `type` and references.
_COMBINED = ("anyOf", "oneOf", "allOf", "$ref")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}
_MAX_DIGITS = 16  # of an integer, as in the converter's own rule


def json_object() -> str:
    """The grammar of any JSON object."""
    return schema_grammar({"type": "object"})


def schema_grammar(schema: str | Schema) -> str:
    """The grammar of what validates against a JSON schema.

    Args:
        schema: the schema, or its JSON text.

    Returns:
        GBNF for `Options.grammar`.

    Raises:
        GrammarError: it is no JSON schema, or says what a grammar cannot guarantee.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"The JSON schema is not JSON ({error}); correct it.") from None
    _, rules = schema_rules(schema, "")
    return "\n".join(f"{name} ::= {rule}" for name, rule in sorted(rules.items()))


def schema_rules(schema: Any, name: str) -> tuple[str, dict[str, str]]:
    """The same as rules for a larger grammar.

    Args:
        schema: the schema.
        name: what their names begin with, but for those of JSON's own values; "" where the
            schema is all of the grammar.

    Returns:
        The name of its rule, and all rules by name.

    Raises:
        GrammarError: as `schema_grammar`.
    """
    if not isinstance(schema, dict):
        raise GrammarError("A JSON schema has to be an object; correct it.")
    try:
        converter = _Converter(schema, name)
        rule = converter.visit(schema, name)
    except GrammarError:
        raise
    except RecursionError:
        raise GrammarError("The JSON schema is nested too deeply; simplify it.") from None
    except Exception as error:  # the converter asserts, and raises anything on what it is not for
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GrammarError(
            f"The JSON schema cannot be made into a grammar ({reason[:200]}); simplify it."
        ) from error
    rules = dict(converter._rules)
    try:
        check_grammar("\n".join(f"{n} ::= {r}" for n, r in {"root": rule, **rules}.items()))
    except GrammarError as error:
        reason = str(error).partition(". It has to be")[0].partition("; ")[0]
        raise GrammarError(f"The JSON schema asks for too much ({reason}); simplify it.") from None
    return rule, rules


def literal(text: str) -> str:
    """A text as a GBNF literal, quotation marks included."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


class _Definitions(dict[str, Any]):
    # What references stand for, looked up when they are met.
    def __init__(self, schema: dict[str, Any]) -> None:
        super().__init__()
        self._schema = schema

    def __missing__(self, ref: str) -> Any:
        found: Any = self._schema
        start, *path = ref.split("/")
        try:
            if start != "#":
                raise KeyError(ref)
            for step in path:
                found = found[step.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError):
            raise GrammarError(
                f"The JSON schema refers to {ref}, which is not in it; put it there."
            ) from None
        return found


class _Converter(_converter.SchemaConverter):  # type: ignore[misc]
    def __init__(self, schema: dict[str, Any], prefix: str) -> None:
        super().__init__(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._refs = _Definitions(schema)
        self._prefix = prefix
        self._names: dict[str, str] = {}

    def visit(self, schema: Schema, name: str) -> str:
        """Add the rule of a schema; returns its name, "root" for the outermost."""
        schema = _normal(schema)
        for part in schema.get("allOf", ()):
            if "properties" not in (self._refs[part["$ref"]] if "$ref" in part else part):
                raise _cannot("`allOf` of anything but objects with properties")
        kind, rule = schema.get("type"), name or "root"
        rule = f"{name}-" if name in _converter.RESERVED_NAMES else rule
        if not (_STRUCTURE | {"type", *_COMBINED}) & set(schema):
            return self._named(rule, self._add_primitive("value", _PRIMITIVES["value"]))
        if kind in (None, "string") and {"minLength", "maxLength"} & set(schema):
            char = self._add_primitive("char", _PRIMITIVES["char"])
            return self._named(rule, rf'"\"" {char}{_times(schema, "Length")} "\"" space')
        if kind in (None, "array") and {"minItems", "maxItems"} & set(schema):
            return self._named(rule, self._list(schema, name))
        if kind in ("integer", "number") and _RANGE & set(schema):
            return self._named(rule, self._in_range(schema))
        return str(super().visit(schema, name))

    def _named(self, rule: str, content: str) -> str:
        return str(self._add_rule(rule, content))

    def _list(self, schema: Mapping[str, Any], name: str) -> str:
        item = self.visit(schema.get("items", {}), f"{name}-item" if name else "item")
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most == 0:
            return '"[" space "]" space'
        more = f"{{{max(0, least - 1)},{'' if most is None else int(most) - 1}}}"
        items = f'{item} ("," space {item}){more}'
        return f'"[" space {items if least else f"({items})?"} "]" space'

    def _in_range(self, schema: Mapping[str, Any]) -> str:
        if schema["type"] == "integer":
            return f"({_integers(*_limits(schema))}) space"
        if {key: schema[key] for key in _RANGE & set(schema)} != {"minimum": 0}:
            raise _cannot("a range of numbers that need not be integers")
        number = _PRIMITIVES["number"]
        for part in number.deps:
            self._add_primitive(part, _PRIMITIVES[part])
        return str(number.content).replace('("-"? integral-part)', "integral-part")

    def _resolve_ref(self, ref: str) -> str:
        # A name of its own for every definition: a property may be called as one is.
        if ref not in self._names:
            name = self._names[ref] = f"{self._prefix}-ref-{len(self._names)}-"
            made = self.visit(self._refs[ref], name)
            if made != name:
                self._rules[name] = made
        return self._names[ref]

    def _format_literal(self, value: str) -> str:
        return literal(json.dumps(json.loads(value), ensure_ascii=False))

    def _add_primitive(self, name: str, rule: Any) -> str:
        if rule is _PRIMITIVES["char"]:
            rule = _converter.BuiltinRule(_CHAR, [])
        return str(super()._add_primitive(name, rule))

    def _visit_pattern(self, pattern: str, name: str) -> str:
        return str(super()._visit_pattern(_plain_pattern(pattern), name))


def _cannot(what: str) -> GrammarError:
    return GrammarError(
        f"The JSON schema asks for {what}, which a grammar cannot hold an answer to here; "
        "leave it out, and check the answer yourself."
    )


def _times(schema: Mapping[str, Any], what: str) -> str:
    most = schema.get(f"max{what}")
    return f"{{{int(schema.get(f'min{what}', 0))},{'' if most is None else int(most)}}}"


def _limits(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    # The least and the greatest integer.
    least = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    most = [math.floor(schema["maximum"])] if "maximum" in schema else []
    if "exclusiveMinimum" in schema:
        least.append(math.floor(schema["exclusiveMinimum"]) + 1)
    if "exclusiveMaximum" in schema:
        most.append(math.ceil(schema["exclusiveMaximum"]) - 1)
    return max(least, default=None), min(most, default=None)


def _integers(least: int | None, most: int | None) -> str:
    # Alternatives that together write the integers of a range.
    if least is not None and most is not None and least > most:
        raise _cannot("an integer of an empty range")
    found = []
    if least is None or least < 0:
        smallest = 1 if most is None or most >= 0 else -most
        found.append(f'"-" ({_counts(smallest, None if least is None else -least)})')
    if most is None or most >= 0:
        found.append(_counts(max(least or 0, 0), most))
    return " | ".join(found)


def _counts(least: int, most: int | None) -> str:
    # The same for integers from 0 on.
    n_digits = len(str(least))
    last = most if most is not None else 10**n_digits - 1
    found = []
    for n in range(n_digits, len(str(last)) + 1):
        low = max(least, 10 ** (n - 1) if n > 1 else 0)
        found.append(_same_length(str(low), str(min(last, 10**n - 1))))
    if most is None and n_digits < _MAX_DIGITS:
        found.append(f"[1-9] [0-9]{{{n_digits},{_MAX_DIGITS - 1}}}")
    return " | ".join(found)


def _same_length(low: str, high: str) -> str:
    n = len(low) - 1
    if n < 0:
        return '""'
    if not low.strip("0") and not high.strip("9"):  # else each digit would double what follows
        return f"[0-9]{{{n + 1}}}"
    if low[0] == high[0]:
        return f'"{low[0]}" ({_same_length(low[1:], high[1:])})'
    found = [
        f'"{low[0]}" ({_same_length(low[1:], "9" * n)})',
        f'"{high[0]}" ({_same_length("0" * n, high[1:])})',
    ]
    if int(high[0]) - int(low[0]) > 1:
        found.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}] [0-9]{{{n}}}")
    return " | ".join(found)


def _normal(schema: Schema) -> dict[str, Any]:
    # The same in the words that the converter understands, or an error.
    if isinstance(schema, bool):
        if not schema:
            raise _cannot("a value that cannot be")
        return {}
    found = dict(schema)
    if refused := sorted(_REFUSED & set(found)):
        raise _cannot(f"`{refused[0]}`")
    if found.pop("uniqueItems", False):
        raise _cannot("`uniqueItems`")
    parts = found.get("allOf")
    if isinstance(parts, list) and len(parts) == 1 and not _STRUCTURE & set(found):
        del found["allOf"]
        return _normal({**found, **parts[0]})
    combined = [key for key in _COMBINED if key in found]
    beside = sorted(_STRUCTURE & set(found))
    if combined and (beside or len(combined) > 1):
        raise _cannot(f"`{combined[0]}` beside `{(beside or combined[1:])[0]}`")
    if "pattern" in found and {"minLength", "maxLength"} & set(found):
        raise _cannot("`pattern` together with a length")
    if found.get("enum") == []:
        raise _cannot("one of no values")
    if isinstance(found.get("type"), list):
        return {"anyOf": [_of_type(found, kind) for kind in found["type"]]}
    known = set(found.get("properties", {}))
    if missing := sorted(set(found.get("required", ())) - known):
        if found.get("additionalProperties") is False or known:
            raise _cannot(f"`{missing[0]}`, which is not among its properties,")
        found["properties"] = {name: {} for name in found["required"]}
    return found


def _of_type(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = {**schema, "type": kind}
    if "enum" in schema:
        found["enum"] = [v for v in schema["enum"] if _is(v, kind)]
        if not found["enum"]:
            return {"const": None} if kind == "null" else {"type": kind}
    return found


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (isinstance(value, bool) == (kind == "boolean"))


_PATTERN = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_NOT_IN_STRINGS = r'"\\\x7F\x00-\x1F'  # of JSON, unless escaped
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r" "}


def _plain_pattern(pattern: str) -> str:
    # Nothing but literals, classes, groups and repetitions, and no character that a JSON string
    # has to escape: the converter knows no more.
    return _PATTERN.sub(lambda found: _plain(found.group()), pattern)


def _plain(part: str) -> str:
    if part.startswith("["):
        inside = re.sub(r"\\([dws])", lambda m: _CLASSES[m[1]], part[1:-1])
        inside = re.sub(r"\\([^nrtxu\\\[\]-])", r"\1", inside)
        negated = inside.startswith("^")
        return f"[{inside}{_NOT_IN_STRINGS if negated else ''}]"
    if part == ".":
        return f"[^{_NOT_IN_STRINGS}]"
    if part.startswith("\\"):
        if part[1] in _CLASSES:
            return f"[{_CLASSES[part[1]]}]"
        if part[1].isalnum() or part[1] in '"\\':
            raise _cannot(f"`{part}` in a pattern")
        return f"[\\x{ord(part[1]):02X}]" if ord(part[1]) < 128 else part[1]
    if part == '"':
        raise _cannot("a quotation mark in a pattern")
    return part
