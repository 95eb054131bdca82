"""Many rows for SQLite in two values: a JSON list, and one blob with all bytes.

SQLite releases the GIL at each bound row, and a busy event loop does not give it back soon. So the rows of an insert
are passed at once, and SQLite unpacks them while Python does something else. It also costs less Python than binding
each value.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    Text,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite

_ROWS: Final = bindparam("packed_rows", type_=Text)
_KEYS: Final = bindparam("packed_keys", type_=Text)
_BYTES: Final = bindparam("packed_bytes", type_=LargeBinary)
_END: Final = b"."
"""Appended to all bytes: SQLite's `substr` of an empty blob is NULL."""
_DIALECT: Final = sqlite.dialect(paramstyle="named")


class PackedInsert:
    """An insert of any number of rows with these columns, for SQLite.

    SQLAlchemy compiles the statement once; looking it up in its cache would cost more than running it.
    """

    def __init__(self, statement: sqlite.Insert | postgresql.Insert, columns: Sequence[Column[Any]]) -> None:
        names = [column.name for column in columns]
        compiled = statement.from_select(names, _unpacked(columns)).compile(dialect=_DIALECT)
        self._statement = str(compiled)
        self._columns = [(column.name, _is_bytes(column), column.type.bind_processor(_DIALECT)) for column in columns]

    def __call__(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        text, raw = self._packed(rows)
        connection.exec_driver_sql(self._statement, {"packed_rows": text, "packed_bytes": raw})

    def _packed(self, rows: Iterable[Mapping[str, Any]]) -> tuple[str, bytes]:
        """The rows as JSON lists, and all their bytes. A list has position (from 1) and length of a value's bytes."""
        packed: list[list[Any]] = []
        pieces: list[bytes] = []
        position = 1
        for row in rows:
            values: list[Any] = []
            for name, is_bytes, bind in self._columns:
                value = row[name]
                if is_bytes:
                    pieces.append(value)
                    values += (position, len(value))
                    position += len(value)
                else:
                    values.append(value if bind is None else bind(value))
            packed.append(values)
        pieces.append(_END)
        return _as_json(packed), b"".join(pieces)


class PackedLookup:
    """A query of one packed list, of the rows that have one of the given keys; compiled once, as `PackedInsert` is.

    It is a join with the keys, along an index of their columns.
    """

    def __init__(self, query: Select[Any], key: Sequence[Column[Any]]) -> None:
        given = func.json_each(_KEYS).table_valued("value").c.value
        among = and_(*(column == _field(given, number) for number, column in enumerate(key)))
        self._statement = str(query.where(among).compile(dialect=_DIALECT))

    def __call__(self, connection: Connection, keys: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        text = connection.exec_driver_sql(self._statement, {"packed_keys": _as_json(keys)}).scalar_one()
        rows: list[list[Any]] = json.loads(text)
        return rows


def _as_json(values: Sequence[Any]) -> str:
    """Encode a list for a packed statement. Lone surrogates are refused when the statement is run, as everywhere."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _unpacked(columns: Sequence[Column[Any]]) -> Select[Any]:
    row = func.json_each(_ROWS).table_valued("value").c.value
    values: list[ColumnElement[Any]] = []
    number = 0
    for column in columns:
        if _is_bytes(column):
            values.append(func.substr(_BYTES, _field(row, number), _field(row, number + 1)))
        else:
            values.append(_field(row, number))
        number += 2 if _is_bytes(column) else 1
    return select(*values).where(true())  # without a condition SQLite takes `ON CONFLICT` for a join's


def _field(row: ColumnElement[Any], number: int) -> ColumnElement[Any]:
    return func.json_extract(row, literal_column(f"'$[{number}]'"))


def _is_bytes(column: Column[Any]) -> bool:
    return isinstance(column.type, LargeBinary)
