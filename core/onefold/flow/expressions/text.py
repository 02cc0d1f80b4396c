"""The text of an expression: what sqlglot reads in it, and errors that say where in it something is wrong."""

from __future__ import annotations

from bisect import bisect_left

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError

from onefold.core.errors import ConfigError
from onefold.core.values.names import near
from onefold.core.values.plain import plain

__all__ = ["ExpressionText"]

LENGTH_MAX = 100_000
_BLANKS = " \t\r\n"
_OTHER_WORDS = {
    "::": "CAST(x AS type)",
    "==": "=",
    ";": "one expression",
    "ISNULL": "IS NULL",
    "NOTNULL": "IS NOT NULL",
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
        self._check_tokens()

    def tree(self) -> exp.Expr:
        """What sqlglot reads. Raises ConfigError where that is not one expression, RecursionError."""
        parser = Dialect.get_or_raise(None).parser(error_message_context=LENGTH_MAX)
        try:
            (tree,) = parser.parse_into(exp.Condition, self._tokens, self._text)
        except ParseError as error:
            at = len(error.errors[0].get("start_context") or "")
            raise self._unreadable(f"it cannot be read at {self._shown(at)}, character {at + 1}") from None
        if not isinstance(tree, exp.Expression):
            raise self._unreadable("it is empty")
        return tree

    def check_parentheses(self, tree: exp.Expr) -> None:
        """sqlglot adds some: it reads `a = b IS NULL` as `a = (b IS NULL)`, and other dialects as `(a = b) IS NULL`."""
        words = [self._source(number).upper() for number in range(len(self._tokens))]
        nodes = [*tree.walk()]
        read = sum(type(node) in (exp.Paren, exp.In) or _has_length(node) for node in nodes)
        if words.count("(") != read + words.count("AS"):
            raise self.unsupported("a condition as an operand without parentheses", None)

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

    def _check_tokens(self) -> None:
        """sqlglot reads over comments, takes several statements, and other words for what the language has."""
        end = 0
        for number, token in enumerate(self._tokens):
            self._check_blank(end, token.start)
            end = token.end + 1
            source = self._source(number)
            if better := _OTHER_WORDS.get(source.upper()):
                raise self.unsupported(f"{source}, for which it has {better},", token.start)
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


def _has_length(node: exp.Expr) -> bool:
    """Whether the node is a type with numbers in parentheses."""
    return type(node) is exp.DataType and bool(node.expressions)
