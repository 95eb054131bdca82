"""What an agent asks people in its turn: as a line, and as what one of its requests may be answered with.

A request for a permission has one field, whose options allow it; a rejection is an answer without any choice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from agent_runs.pod.sidecar.drivers.lines import Line, dictionary, prose, text

ASKED, ANSWERED, REJECTED = "question_asked", "question_answered", "permission_rejected"
ALLOW, ALWAYS = "Allow once", "Always allow"
MAX_FIELDS, MAX_OPTIONS, MAX_CHOICES = 8, 16, 16
MAX_TEXT, MAX_LABEL, MAX_PATTERNS = 1000, 100, 8
MAX_SHOWN, MAX_ASKED = 8 * MAX_TEXT, 100
"""Characters of one question, and questions of a turn: all are in their run's history, beyond whose limit Temporal ends
a run while its agent works."""
LIMIT = f"the limit of {MAX_ASKED} questions of one run"
"""Who rejects what is asked beyond."""
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class Field(NamedTuple):
    """One thing that is asked, and what may be chosen.

    Attributes:
        values: what the agent takes for each option.
        own_words: any other text may be an answer, too.
    """

    text: str
    labels: Sequence[str]
    descriptions: Sequence[str] = ()
    values: Sequence[str] = ()
    many: bool = False
    own_words: bool = False


class Asked(NamedTuple):
    """A request of the agent that waits for an answer.

    Attributes:
        session: of OpenCode, which may be a sub-agent's.
        kind: `permission`, or the agent's own word for a question.
        permission, patterns: of a request for a permission.
        fields: empty if it cannot be shown.
        keys: the agent's own names of the fields.
    """

    id: str
    session: str
    kind: str
    permission: str = ""
    patterns: str = ""
    fields: Sequence[Field] = ()
    keys: Sequence[str] = ()

    @property
    def is_permission(self) -> bool:
        return self.kind == "permission"

    @property
    def can_be_shown(self) -> bool:
        texts = (text for each in self.fields for text in (each.text, *each.labels, *each.descriptions))
        return bool(self.fields) and sum(map(len, texts)) <= MAX_SHOWN and _ID.fullmatch(self.id) is not None

    @property
    def line(self) -> Line:
        fields = [
            {
                "text": field.text,
                "options": [
                    {"label": label, "description": description}
                    for label, description in zip(field.labels, field.descriptions or [""] * MAX_OPTIONS, strict=False)
                ],
                "many": field.many,
                "ownWords": field.own_words,
            }
            for field in self.fields
        ]
        kind = "permission" if self.is_permission else "question"
        return Line(ASKED, {"question": {"id": self.id, "kind": kind, "fields": fields}})

    def rejected(self, by: str) -> Line:
        """A permission that is not given; `by` is empty if nobody was asked."""
        content = {"requestID": self.id, "permission": self.permission, "patterns": self.patterns}
        return Line(REJECTED, {**content, **({"by": by} if by else {})})

    def chosen(self, answers: Sequence[Sequence[str]]) -> list[list[str]]:
        """The answers in the agent's own words.

        Raises:
            ValueError: they answer something else than what was asked; for people, and without the agent's words, which
                nobody has redacted.
        """
        if len(answers) != len(self.fields):
            raise ValueError(f"it has {len(self.fields)} parts, and {len(answers)} were answered")
        parts = zip(self.fields, answers, strict=True)
        return [_values(f"part {number}", *part) for number, part in enumerate(parts, 1)]

    def is_beyond_the_limit(self, asked: Collection[str]) -> bool:
        """Whether people are not asked, because they have been asked so much: `asked` has the identifiers."""
        return self.id not in asked and len(asked) >= MAX_ASKED


def permission(request: object, session: str, name: str, patterns: object, values: Sequence[str]) -> Asked:
    """Return a request for a permission; `values` are what the agent takes for `ALLOW` and `ALWAYS`."""
    named = [prose(each, MAX_TEXT) for each in patterns[:MAX_PATTERNS]] if isinstance(patterns, list) else []
    shown = prose(", ".join(named), MAX_TEXT)
    field = Field(prose(f"{name}: {shown}" if shown else name, MAX_TEXT), (ALLOW, ALWAYS), values=values)
    return Asked(text(request, MAX_TEXT), session, "permission", name, shown, (field,))


def question(
    request: object, session: str, kind: str, fields: Sequence[Field | None], keys: Sequence[str] = ()
) -> Asked:
    """Return a question; one with a part that cannot be shown, or with too many, has no fields."""
    shown = [each for each in fields if each is not None]
    whole = len(shown) == len(fields) <= MAX_FIELDS
    return Asked(text(request, MAX_TEXT), session, kind, fields=shown if whole else (), keys=keys)


def field(asked: str, options: object, value: str, *, many: bool = False, own_words: bool = False) -> Field | None:
    """Return a field with the options of a question; None if they are too many.

    Args:
        value: where in an option is what the agent takes for it.
    """
    found = [dictionary(each) for each in options] if isinstance(options, list) else []
    if len(found) > MAX_OPTIONS or not asked:
        return None
    return Field(
        prose(asked, MAX_TEXT),
        [prose(each.get("label"), MAX_LABEL) for each in found],
        [prose(each.get("description"), MAX_TEXT // 4) for each in found],
        [text(each.get(value), MAX_TEXT) for each in found],
        many=many,
        own_words=own_words,
    )


def answered(question: str, by: str, answers: Sequence[Sequence[str]]) -> Line:
    """The line of an answer that has reached the agent; without any choice it is a rejection.

    Args:
        by: empty if the agent has ended the question itself.
    """
    return Line(ANSWERED, {"question": {"id": question, "by": by, "answers": answers}})


def _values(part: str, field: Field, answer: Sequence[str]) -> list[str]:
    if not 1 <= len(answer) <= (MAX_CHOICES if field.many else 1):
        raise ValueError(f"{part} takes {'at least ' if field.many else ''}one answer")
    known = dict(zip(field.labels, field.values, strict=True))
    if not field.own_words and not known.keys() >= {*answer}:
        raise ValueError(f"{part} takes nothing but its options")
    return [known.get(each, each) for each in answer]
