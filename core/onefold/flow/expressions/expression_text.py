"""The text of an expression: what sqlglot reads in it, and errors that say where in it something is wrong."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError

from onefold.core.errors import ConfigError
from onefold.core.values.ddl import schema_of
from onefold.core.values.names import near
from onefold.core.values.plain import plain

LENGTH_MAX = 100_000
_BLANKS = " \t\r\n"
_WORDS: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.Add: ("+",),
    exp.And: ("AND",),
    exp.Between: ("BETWEEN", "AND"),
    exp.Div: ("/",),
    exp.EQ: ("=",),
    exp.GT: (">",),
    exp.GTE: (">=",),
    exp.Is: ("IS",),
    exp.LT: ("<",),
    exp.LTE: ("<=",),
    exp.Mod: ("%",),
    exp.Mul: ("*",),
    exp.NEQ: ("<>",),
    exp.Neg: ("-",),
    exp.Not: ("NOT",),
    exp.Null: ("NULL",),
    exp.Or: ("OR",),
    exp.Paren: ("(",),
    exp.Sub: ("-",),
}


class ExpressionText:
    """One text, given to the operator `label`."""

    def __init__(self, text: str, label: str) -> None:
        self._text = text
        self._label = label
        if len(text) > LENGTH_MAX:
            raise self.unsupported(f"a text of {len(text)} characters, more than {LENGTH_MAX},", None)
        try:
            self._tokens = Dialect.get_or_raise(None).tokenize(text)
        except TokenError:
            raise self._unreadable("a quote or a comment is not closed") from None
        self._check_comments()

    def tree(self) -> exp.Expr:
        """What sqlglot reads. Raises ConfigError where that is not one expression, RecursionError."""
        parser = Dialect.get_or_raise(None).parser(error_message_context=LENGTH_MAX)
        try:
            trees = parser.parse_into(exp.Condition, self._tokens, self._text)
        except ParseError as error:
            at = len(error.errors[0].get("start_context") or "")
            raise self._unreadable(f"it cannot be read at {self._shown(at)}, character {at + 1}") from None
        if len(trees) != 1 or trees[0] is None:
            raise self._unreadable("it is not one expression")
        return trees[0]

    def check_whole(self, tree: exp.Expr) -> None:
        """Whether the tree has each word of the text, and nothing else: sqlglot passes over some, takes others for what
        they are not, and reads `a = b IS NULL` as `a = (b IS NULL)`, which other dialects read as `(a = b) IS NULL`."""
        nodes = [*tree.walk()]
        starts = {node.meta.get("start") for node in nodes if isinstance(node, exp.Identifier | exp.Literal)}
        wanted = Counter(word for node in nodes for word in self._words(node))
        wanted[")"] = wanted["("]
        before = ""
        for number, token in enumerate(self._tokens):
            word = self._source(number).upper().replace("!=", "<>")
            if before == "AS":
                self.type_of(word, token.start)
            elif token.start not in starts and word != ".":
                wanted[word] -= 1
                if wanted[word] < 0:
                    raise self.unsupported(f"{word} as it stands there", token.start)
            before = word
        if more := next((word for word in wanted if wanted[word]), None):
            raise self.unsupported("an operand of this kind without parentheses" if more == "(" else more, None)

    def _words(self, node: exp.Expr) -> Sequence[str]:
        """The words, and signs, that a node was read from. Names and literals are told by their places."""
        match node:
            case exp.Boolean():
                return (str(node.this).upper(),)
            case exp.Cast():
                before = self.before(node.this) if isinstance(node.this, exp.Literal) else "("
                return ("CAST", "(", "AS") if before == "(" else (before,)
            case exp.In():
                return ("IN", "(", *[","] * (len(node.expressions) - 1))
            case exp.DataType(expressions=[_, *more]):
                return ("(", *[","] * len(more))
            case _:
                return _WORDS.get(type(node), ())

    def type_of(self, ddl: str, at: int | None) -> pa.DataType:
        """The type of that name in a schema. sqlglot knows more names."""
        try:
            return schema_of(f"x {ddl.lower()}").field(0).type
        except ConfigError:
            raise self.unsupported(f"the type {ddl}", at) from None

    def before(self, literal: exp.Expr) -> str:
        """The word, or sign, before a literal."""
        at = bisect_left(self._tokens, literal.meta.get("start", 0), key=lambda token: token.start)
        return self._source(at - 1).upper() if at else ""

    def place(self, part: exp.Expr) -> int | None:
        """Where a part begins."""
        return min((node.meta["start"] for node in part.walk() if "start" in node.meta), default=None)

    def unsupported(self, what: str, at: int | None) -> ConfigError:
        return ConfigError(
            "expression-unsupported",
            f"{self._where(at)}: {what} is not in the language of expressions, which has columns, literals, = <> < <= >"
            " >=, AND, OR, NOT, IN, BETWEEN, IS NULL, + - * / %, CAST and parentheses. Write it with these, or give an"
            " expression of pyarrow.compute",
        )

    def mismatch(self, reason: str, at: int | None) -> ConfigError:
        return ConfigError("expression-type", f"{self._where(at)}: {reason}")

    def missing(self, name: str, names: list[str], is_quoted: bool, at: int | None) -> ConfigError:
        told = near(name, names) or f"; there are {', '.join(names) or 'no fields'}"
        quotes = ". A text stands in single quotes" if is_quoted else ""
        return ConfigError("no-such-column", f"{self._where(at)}: there is no column {name!r}{told}{quotes}")

    def _unreadable(self, why: str) -> ConfigError:
        return ConfigError(
            "expression-unsupported",
            f"{self._where(None)}: {why}. A part is missing there, or is one too many. A name that is a word of SQL, or"
            ' has other signs than letters, digits and _, stands in double quotes, "order", and a text in single ones',
        )

    def _check_comments(self) -> None:
        end = 0
        for token in self._tokens:
            self._check_blank(end, token.start)
            end = token.end + 1
        self._check_blank(end, len(self._text))

    def _check_blank(self, start: int, end: int) -> None:
        between = self._text[start:end]
        if strange := between.strip(_BLANKS):
            at = self._text.index(strange, start)
            raise self.unsupported("a comment, or a blank that is none of ASCII,", at)

    def _source(self, number: int) -> str:
        return self._text[self._tokens[number].start : self._tokens[number].end + 1]

    def _shown(self, at: int) -> str:
        return repr(plain(self._text[at : at + 20], 20))

    def _where(self, at: int | None) -> str:
        place = "" if at is None else f", near character {at + 1}, {self._shown(at)}"
        return f"{self._label}({plain(repr(self._text), 200)}){place}"
