"""Translates what sqlglot reads into Arrow expressions: node by node, each kind of which is listed here."""

from __future__ import annotations

import datetime as dt
import operator
import re
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from onefold.flow.expressions.expression_text import ExpressionText
from onefold.flow.expressions.terms import (
    Compare,
    Term,
    Unfit,
    among,
    calculated,
    compared,
    converted,
    decoded,
    literal,
    negated,
)

LEVELS_MAX = 100
_COMPARED: dict[type[exp.Expr], Compare] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_CALCULATED: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_JOINED: dict[type[exp.Expr], Compare] = {exp.And: operator.and_, exp.Or: operator.or_}  # Kleene's, of expressions
_PARTS: dict[type[exp.Expr], set[str]] = {
    **{kind: {"this", "expression"} for kind in (*_COMPARED, *_CALCULATED, *_JOINED, exp.Is, exp.Dot)},
    **{kind: {"this"} for kind in (exp.Not, exp.Neg, exp.Paren, exp.Boolean)},
    exp.Between: {"this", "low", "high"},
    exp.Cast: {"this", "to"},
    exp.Column: {"this", "table", "db", "catalog"},
    exp.In: {"this", "expressions"},
    exp.Literal: {"this", "is_string"},
    exp.Null: set(),
}
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)
_BINDS: dict[type[exp.Expr], int] = {
    exp.Or: _OR,
    exp.And: _AND,
    exp.Not: _NOT,
    **dict.fromkeys((*_COMPARED, exp.Between, exp.In, exp.Is), _COMPARISON),
    exp.Add: _SUM,
    exp.Sub: _SUM,
    exp.Mul: _PRODUCT,
    exp.Div: _PRODUCT,
    exp.Mod: _PRODUCT,
    exp.Neg: _SIGN,
}
_SIGNS: dict[type[exp.Expr], str] = {
    exp.Alias: "an alias",
    exp.BitwiseXor: "^",
    exp.Bracket: "[ ]",
    exp.DPipe: "||",
    exp.IntDiv: "DIV",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.Select: "a query",
    exp.Subquery: "a query",
}
_DDL_NAMES = {"text": "string", "timestampntz": "timestamp_ntz", "timestampltz": "timestamp_ltz"}
_NUMBER = re.compile(r"(\d*)(\.?)(\d*)(e[+-]?\d{1,6})?", re.IGNORECASE | re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def translated(text: str, schema: pa.Schema, label: str) -> pc.Expression:
    """As `expression_of`."""
    given = ExpressionText(text, label)
    try:
        return _Translation(given, schema).whole(given.tree())
    except RecursionError:
        raise given.unsupported("too many levels of expressions within each other", None) from None


class _Translation:
    def __init__(self, text: ExpressionText, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._level = 0

    def whole(self, tree: exp.Expr) -> pc.Expression:
        """The expression of a tree. Raises ConfigError for a type that no column of a flow has."""
        term = self._term(tree)
        self._text.check_whole(tree)
        if pa.types.is_null(term.kind):
            raise self._text.mismatch("NULL alone has no type: CAST(NULL AS long)", None)
        if pa.types.is_decimal256(term.kind) and not isinstance(tree, exp.Column | exp.Dot):
            raise self._text.mismatch(
                f"the result is {term.kind}, and columns have 38 digits at most: cast it, CAST(... AS decimal(38,"
                f"{min(term.kind.scale, 38)}))",
                None,
            )
        return term.expression

    def _term(self, node: exp.Expr) -> Term:
        more = [name for name, part in node.args.items() if part and name not in _PARTS.get(type(node), set())]
        if type(node) not in _PARTS or more:
            raise self._text.unsupported(_construct(node, more), self._text.place(node))
        if self._level == LEVELS_MAX:
            raise self._text.unsupported(f"more than {LEVELS_MAX} levels within each other", self._text.place(node))
        self._level += 1
        try:
            return self._translated(node)
        except Unfit as error:
            raise self._text.mismatch(str(error), self._text.place(node)) from None
        finally:
            self._level -= 1

    def _translated(self, node: exp.Expr) -> Term:
        kind, binds = type(node), _BINDS.get(type(node), _ATOM)
        if kind in _JOINED:
            sides = [self._condition(side, binds).expression for side in (node.this, node.expression)]
            return Term(_JOINED[kind](*sides), pa.bool_())
        if kind in _COMPARED:
            return compared(_COMPARED[kind], self._operand(node.this, _SUM), self._operand(node.expression, _SUM))
        if kind in _CALCULATED:
            left, right = self._operand(node.this, binds), self._operand(node.expression, binds + 1)
            return calculated(_CALCULATED[kind], left, right)
        if kind is exp.Not:
            return Term(~self._condition(node.this, binds).expression, pa.bool_())
        if kind is exp.Neg:
            return negated(self._operand(node.this, binds))
        if kind is exp.Paren:
            return self._term(node.this)
        if kind is exp.Between:
            term, low, high = (self._operand(node.args[part], _SUM) for part in ("this", "low", "high"))
            both = compared(operator.ge, term, low).expression & compared(operator.le, term, high).expression
            return Term(both, pa.bool_())
        if kind is exp.In:
            return self._in(node)
        if kind is exp.Is:
            if type(node.expression) is not exp.Null:
                raise self._text.unsupported("IS with anything but NULL", self._text.place(node))
            return Term(decoded(self._operand(node.this, _SUM)).expression.is_null(), pa.bool_())
        if kind is exp.Cast:
            return self._cast(node)
        if kind is exp.Literal:
            return literal(node.name) if node.is_string else literal(_number(node.name))
        if kind is exp.Boolean:
            return literal(bool(node.this))
        return literal(None) if kind is exp.Null else self._column(node)

    def _operand(self, node: exp.Expr, binds: int) -> Term:
        """What stands beside a sign, and binds at least so tightly: dialects differ in what `a = b IS NULL` is, and
        versions of sqlglot in what `a % b + c` is."""
        if _BINDS.get(type(node), _ATOM) < binds:
            raise self._text.unsupported("an operand of this kind without parentheses", self._text.place(node))
        return self._term(node)

    def _condition(self, node: exp.Expr, binds: int) -> Term:
        term = self._operand(node, binds)
        if not pa.types.is_boolean(term.kind) and not pa.types.is_null(term.kind):
            raise self._text.mismatch(
                f"AND, OR and NOT take conditions, and this is {term.kind}: compare it with a value",
                self._text.place(node),
            )
        return converted(term, pa.bool_())

    def _in(self, node: exp.Expr) -> Term:
        items = [self._term(item) for item in node.expressions]
        if not items or not all(item.is_literal for item in items):
            raise self._text.unsupported("IN without a list of literals", self._text.place(node))
        return among(self._operand(node.this, _SUM), items)

    def _cast(self, node: exp.Expr) -> Term:
        wanted = node.args["to"]
        if isinstance(node.this, exp.Literal) and (before := self._text.before(node.this)) != "(":
            if before not in ("DATE", "TIMESTAMP") or not node.this.is_string:
                raise self._text.unsupported(f"a literal behind {before}", self._text.place(node))
            return literal(_time(node.this.name, before == "DATE"))
        term, name = self._term(node.this), str(getattr(wanted.this, "value", wanted.this)).lower()
        inner = ",".join(part.name for part in wanted.expressions)
        kind = self._text.type_of(f"{_DDL_NAMES.get(name, name)}{inner and f'({inner})'}", self._text.place(node))
        return converted(term, kind)

    def _column(self, node: exp.Expr) -> Term:
        """A column, or a field within structs."""
        path: list[exp.Expr] = []
        while type(node) is exp.Dot:
            path, node = [node.expression, *path], node.this
        if type(node) is not exp.Column:
            raise self._text.unsupported("a field of what is no column", self._text.place(node))
        parts = [node.args.get(part) for part in ("catalog", "db", "table", "this")]
        path = [part for part in parts if isinstance(part, exp.Expression)] + path
        kind: pa.DataType = pa.struct(list(self._schema))
        if odd := next((part for part in path if type(part) is not exp.Identifier), None):
            raise self._text.unsupported(_construct(odd), self._text.place(node))
        for part in path:
            names = [kind[at].name for at in range(kind.num_fields)] if pa.types.is_struct(kind) else []
            if names.count(part.name) != 1:
                raise self._text.missing(part.name, names, bool(part.args.get("quoted")), self._text.place(part))
            kind = kind[names.index(part.name)].type
        return Term(pc.field(*(part.name for part in path)), kind)


def _construct(node: exp.Expr, more: Sequence[str] = ()) -> str:
    """What an error calls a node of the tree, or its further parts."""
    if type(node) in _PARTS and more:
        return f"{node.key.upper()} with {more[0]}"
    if isinstance(node, exp.Anonymous):
        return f"the function {node.name}"
    if isinstance(node, exp.Func) and not isinstance(node, exp.Case):
        return f"the function {node.sql_name()}"
    return _SIGNS.get(type(node), node.key.upper())


def _number(text: str) -> int | Decimal | float:
    found = _NUMBER.fullmatch(text)
    if found is None or not found[1] + found[3]:
        raise Unfit(f"{text!r:.50} is no number: write 12, 1.5 or, as a double, 1.5e0")
    if found[4]:
        value = float(text)
        if value == float("inf") or (value == 0 and (found[1] + found[3]).strip("0")):
            raise Unfit(f"{text!r:.50} is beyond what a double has")
        return value
    if len((found[1] + found[3]).lstrip("0")) > 76:
        raise Unfit("the number has more than 38 digits: shorten it")
    return Decimal(text) if found[2] else int(text)


def _time(text: str, is_date: bool) -> dt.date | dt.datetime:
    """By the rule of standard SQL: a timestamp with an offset from UTC is one with a zone, and another one without."""
    try:
        if (_DATE if is_date else _TIMESTAMP).fullmatch(text) is None:
            raise ValueError("it is written otherwise")
        return dt.date.fromisoformat(text) if is_date else dt.datetime.fromisoformat(text)
    except ValueError as error:
        form = "DATE '2026-11-30'" if is_date else "TIMESTAMP '2026-11-30 12:00:00.5' or '2026-11-30 12:00:00+01:00'"
        raise Unfit(f"{text!r:.50} is no such time ({error}): write {form}") from None
