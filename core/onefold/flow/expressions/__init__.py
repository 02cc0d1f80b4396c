"""Expressions as texts: a closed part of SQL, translated into Arrow expressions, which every runtime evaluates alike.

What the language has, and what each part means, is in docs/flows.md. All of it is exact: a value that a type does not
have is an error of the row, and whatever differs between SQL's dialects is refused.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onefold.core.extras import naming_extras

__all__ = ["expression_of"]


def expression_of(text: str, schema: pa.Schema, label: str) -> pc.Expression:
    """The expression that a text is of rows of a schema. `label` is the operator, for errors.

    Raises ConfigError: `expression-unsupported` for what the language lacks, `expression-type` for types that do not go
    together, `no-such-column`, `package-missing` without sqlglot.
    """
    with naming_extras():
        from onefold.flow.expressions.translation import translated  # as long an import as that of onefold.flow
    return translated(text, schema, label)
