"""The form of names, keys, amounts and addresses, and how a wrong value is refused.

A pattern is for `fullmatch`. Source: kubernetes.io, Object Names and IDs, Labels and Selectors, Quantity.
"""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from pydantic import AfterValidator
from pydantic_core import ErrorDetails, PydanticCustomError

IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
"""An id of Paperclip's, or of an agent's session."""
AGENT_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The name of a namespace, among others."""
DATA_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
"""A key of a Secret or ConfigMap."""
QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?")

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_LIMIT: Final = 253
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_REMEDIES: Final = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "string_type": "must be text",
    "string_unicode": "must be text",
    "string_too_long": "is too long: {max_length} characters at most",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "finite_number": "must be a whole number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""By pydantic's type of the error; other types keep pydantic's text."""


def is_subdomain(name: str) -> bool:
    """Whether it is a DNS subdomain, as names of most objects are; unlike in DNS a part of it may be of any length."""
    return len(name) <= _SUBDOMAIN_LIMIT and _SUBDOMAIN.fullmatch(name) is not None


def is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return _LABEL_NAME.fullmatch(name) is not None and (not slash or is_subdomain(prefix))


def is_label_value(value: str) -> bool:
    return not value or _LABEL_NAME.fullmatch(value) is not None


def is_absolute_url(text: str) -> bool:
    """Whether a request path can be appended to it: http(s), a host, no login, query or fragment."""
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = "@" not in parts.netloc and not re.search(r"[\s\x00-\x1f\x7f?#\\]", text)
    return parts.scheme in ("http", "https") and has_host and is_plain


def refuse(remedy: str) -> PydanticCustomError:
    """The error of a wrong value, to be raised by a validator."""
    return PydanticCustomError("refused", "{remedy}", {"remedy": remedy})


def matching(is_valid: Callable[[str], object], remedy: str) -> AfterValidator:
    """Refuses a text for which `is_valid` returns nothing or False."""

    def check(value: str) -> str:
        if not is_valid(value):
            raise refuse(remedy)
        return value

    return AfterValidator(check)


def path_of(error: ErrorDetails) -> str:
    """Where a wrong value is, such as `tolerations[0].key`; empty for the whole."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"])
    return "".join(steps).lstrip(".")


def remedy_of(error: ErrorDetails) -> str:
    """What is wrong with a value, for people; follows its path in a sentence."""
    remedy = _REMEDIES.get(error["type"])
    if remedy is not None:
        return remedy.format(**error.get("ctx", {}))
    return (error["msg"][:1].lower() + error["msg"][1:]).removeprefix("input ")
