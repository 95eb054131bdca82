"""Label and field selectors: text from a query string to a predicate on objects."""

from __future__ import annotations

import re
from collections.abc import Callable

from dev_stack.cluster.errors import bad_request
from dev_stack.cluster.kinds import Kind, Object

Predicate = Callable[[Object], bool]
_EQUALITY = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<operator>==?|!=)\s*(?P<value>[^=!\s]*)")
_EXISTENCE = re.compile(r"(?P<absent>!?)\s*(?P<key>[A-Za-z0-9./_-]+)")


def by_labels(text: str) -> Predicate:
    """`a=b,c!=d,e,!f`; 400 for anything else, also for the sets that a real server knows (`a in (b,c)`)."""
    tests = [_label_test(part.strip()) for part in text.split(",") if part.strip()]
    return lambda body: all(test(body["metadata"].get("labels") or {}) for test in tests)


def _label_test(text: str) -> Callable[[dict[str, str]], bool]:
    if match := _EQUALITY.fullmatch(text):
        key, value, equal = match["key"], match["value"], match["operator"] != "!="
        return lambda labels: (labels.get(key) == value) is equal
    if match := _EXISTENCE.fullmatch(text):
        key, present = match["key"], not match["absent"]
        return lambda labels: (key in labels) is present
    raise bad_request(f'unable to parse requirement: found "{text}", expected: a label selector')


def by_fields(kind: Kind, text: str) -> Predicate:
    """`a.b=c,d.e!=f` over the fields the kind supports; 400 for others."""
    tests = [_field_test(kind, part.strip(), text) for part in text.split(",") if part]
    return lambda body: all(test(body) for test in tests)


def _field_test(kind: Kind, part: str, text: str) -> Predicate:
    match = _EQUALITY.fullmatch(part)
    if match is None:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
    key, value, equal = match["key"], match["value"], match["operator"] != "!="
    if key not in ("metadata.name", "metadata.namespace", *kind.fields):
        raise bad_request(f'field selector "{text}": field label not supported: {key}')

    def test(body: Object) -> bool:
        found: object = body
        for step in key.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return (str(found or "") == value) is equal

    return test
