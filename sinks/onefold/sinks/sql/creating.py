"""The statements that make tables, as text: what SQLAlchemy's `create` sends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

__all__ = ["creating"]


def creating(dialect: sa.Dialect, tables: Iterable[sa.Table], schema: str | None = None) -> list[str]:
    """CREATE TABLE and CREATE INDEX of each, in one line each. `schema` is where tables without one of their own go."""
    translated: dict[str, Any] = {}
    if schema is not None:
        translated = {"schema_translate_map": {None: schema}, "render_schema_translate": True}
    made = []
    for table in tables:
        indexes = [CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name))]
        parts: list[sa.schema.ExecutableDDLElement] = [CreateTable(table), *indexes]
        for part in parts:
            text = str(part.compile(dialect=dialect, **translated))
            made.append(_as_typed(dialect, " ".join(line.strip() for line in text.strip().splitlines())))
    return made


def _as_typed(dialect: sa.Dialect, text: str) -> str:
    """Where parameters are written with %, SQLAlchemy doubles it in names."""
    return text.replace("%%", "%") if dialect.identifier_preparer._double_percents else text
