"""Every failure as an HTTP answer in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

from parse_local.errors import (
    ContextLengthError,
    GrammarError,
    JudgeError,
    ParseLocalError,
    TemplateError,
    UsageError,
)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# Others are an invalid_request_error below 500, and a server_error from there on.

_MOST_SHOWN = 60
# Characters of a wrong value that its error repeats.


class ApiError(Exception):
    """A request that gets an error for an answer.

    Args:
        status: of the HTTP answer.
        message: what is wrong and what to do about it.
        param: the field that is wrong.
        code: a word that programs can compare.
        retry_after: seconds after which to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        # What a client sent may be no text that can be encoded: half of a surrogate pair.
        message = self.message.encode("utf-8", "replace").decode()
        other = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": message,
                "type": _TYPES.get(self.status, other),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """The answer, with more headers where they are given."""
        headers = dict(headers or {})
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def from_engine(error: ParseLocalError, field: str) -> ApiError:
    """What a client is told about an error of the engine; `field` holds the prompt."""
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), param=field, code="context_length_exceeded")
    if isinstance(error, GrammarError):
        return ApiError(400, str(error), param="parse.grammar", code="invalid_value")
    if isinstance(error, UsageError | TemplateError | JudgeError):
        return ApiError(400, str(error), code="unsupported_value")
    return ApiError(503, str(error), code="engine_failed")


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """What a client is told about a body that does not fit the schema.

    Args:
        errors: as pydantic lists them; the first is reported.
    """
    first = errors[0]
    field = _field(first.get("loc", ()))
    kind, value = first.get("type", ""), first.get("input")
    if kind == "json_invalid":
        return ApiError(400, "The body is not valid JSON.", code="invalid_json")
    if not field:
        return ApiError(400, "The body must be a JSON object.", code="invalid_type")
    if kind == "extra_forbidden":
        return ApiError(400, f"`{field}` is not supported.", param=field, code="unsupported_field")
    if kind == "missing":
        return ApiError(400, f"`{field}` is missing.", param=field, code="missing_field")
    if kind in ("none_required", "literal_error"):
        expected = first.get("ctx", {}).get("expected", "left out")
        message = f"`{field}`: {_shown(value)} is not supported; it can be {expected}."
        return ApiError(400, message, param=field, code="unsupported_value")
    reason = str(first.get("msg", "is wrong")).removeprefix("Value error, ")
    return ApiError(400, f"`{field}`: {reason}.", param=field, code="invalid_value")


def _field(location: Sequence[int | str]) -> str:
    # ("body", "messages", 0, "~parts", "content") → "messages[0].content"; "~" marks the branch
    # of a union.
    found = ""
    for part in location[1:]:
        if isinstance(part, int):
            found += f"[{part}]"
        elif not part.startswith("~"):
            found += f".{part}" if found else part
    return printable(found)


def _shown(value: Any) -> str:
    text = repr(value)
    return printable(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def printable(text: str) -> str:
    """Text from a client without what cannot be encoded or would disturb a log."""
    text = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
