"""Label and field selectors: text from a query string to a predicate on objects."""

from __future__ import annotations

import re
from collections.abc import Callable

from local.cluster.kinds import Kind, Object
from local.cluster.refusals import bad_request

Predicate = Callable[[Object], bool]
_SET = re.compile(r"^(?P<key>\S+)\s+(?P<verb>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<verb>=|==|!=)\s*(?P<value>[^=!\s]*)$")
_EXISTENCE = re.compile(r"^(?P<absent>!?)\s*(?P<key>[A-Za-z0-9./_-]+)$")


def by_labels(text: str) -> Predicate:
    """`a=b,c!=d,e in (f,g),h,!i`; 400 for anything else."""
    tests = [_label_test(part.strip()) for part in _split(text)]
    return lambda body: all(test(body["metadata"].get("labels") or {}) for test in tests)


def _split(text: str) -> list[str]:
    return [part for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label_test(text: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.match(text):
        key, wanted = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["verb"] == "in":
            return lambda labels: labels.get(key) in wanted
        return lambda labels: labels.get(key) not in wanted
    if match := _EQUALITY.match(text):
        key, value = match["key"], match["value"]
        if match["verb"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTENCE.match(text):
        key, absent = match["key"], bool(match["absent"])
        return lambda labels: (key in labels) != absent
    raise bad_request(f'unable to parse requirement: found "{text}", expected: a label selector')


def by_fields(kind: Kind, text: str) -> Predicate:
    """`a.b=c,d.e!=f` over the fields the kind supports; 400 for others."""
    tests: list[Predicate] = []
    for part in filter(None, text.split(",")):
        match = _EQUALITY.match(part.strip())
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        key = match["key"]
        if key not in ("metadata.name", "metadata.namespace", *kind.fields):
            raise bad_request(
                f'Unable to find "{kind.api_version}, Resource={kind.plural}" that match label '
                f'selector "", field selector "{text}": field label not supported: {key}'
            )
        tests.append(_field_test(key, match["value"], equal=match["verb"] != "!="))
    return lambda body: all(test(body) for test in tests)


def _field_test(key: str, value: str, *, equal: bool) -> Predicate:
    path = {"status.successful": "status.succeeded", "source": "source.component"}.get(key, key).split(".")

    def test(body: Object) -> bool:
        found: object = body
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        text = "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)
        return (text == value) is equal

    return test
