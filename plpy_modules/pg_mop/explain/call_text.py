"""The text of a call that is to be explained: one call of one function, with constants alone for arguments.

The text is not evaluated here. It is compared, token by token, with a grammar in which only constants of built-in types can
be written; PostgreSQL then parses and converts the arguments themselves. So nothing of the text runs but our own function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pg_mop.backend.errors import MopError

MOST_CHARACTERS = 4 << 20
MOST_DEEP = 50  # parentheses and brackets around a constant
TOKENS = re.compile(
    r"""(?P<blank>[ \t\n\r\f\v]+|--[^\n\r]*)
      | (?P<string>[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]))
      | (?P<word>[A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*)
      | (?P<mark>::|=>|:=|[()\[\],.;*+-])""",
    re.VERBOSE | re.DOTALL,
)
DOLLAR = re.compile(r"\$(?:[A-Za-z_\u0080-\U0010ffff][\w\u0080-\U0010ffff]*)?\$")
# names of built-in types; each may be followed by a length, and by []
TYPES = (
    "bigint",
    "bool",
    "boolean",
    "character varying",
    "char",
    "decimal",
    "double precision",
    "float",
    "float4",
    "float8",
    "int",
    "int2",
    "int4",
    "int8",
    "integer",
    "interval",
    "numeric",
    "real",
    "smallint",
    "text",
    "varchar",
)
CONSTANTS = ("null", "true", "false")
HINT = (
    "SELECT {schema}.mop_explain($$ SELECT {schema}.madlib_keras_fit_multiple_model('packed', 'models', 'mst', 10, FALSE) "
    "$$);"
)


@dataclass(frozen=True)
class Call:
    """A call: the parts of the function's name, folded as SQL folds them; its arguments as they are written; whether it is a
    procedure's."""

    name: tuple[str, ...]
    arguments: str
    procedure: bool = False


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    begin: int
    end: int

    @property
    def word(self) -> str:
        """The word in lower case; '' for another token."""
        return self.text.lower() if self.kind == "word" else ""


def parse(text: str | None, schema: str) -> Call:
    """The call in a text. `schema`: of the extension, for the hint. Raises MopError.

    >>> parse("SELECT madlib.f('a', ARRAY[1, 2]::int[], n => -1.5);", "madlib")
    Call(name=('madlib', 'f'), arguments="'a', ARRAY[1, 2]::int[], n => -1.5", procedure=False)
    """
    return _Parser(text or "", schema).call()


class _Parser:
    def __init__(self, text: str, schema: str) -> None:
        self.text, self.hint, self.at, self.depth = text, HINT.format(schema=schema), 0, 0
        if len(text) > MOST_CHARACTERS:
            raise self.refused(f"it has {len(text)} characters, at most {MOST_CHARACTERS}")
        self.tokens = self._read()
        if len(self.tokens) == 1:
            raise MopError("there is no call to explain", hint=self.hint)

    def refused(self, why: str) -> MopError:
        """The MopError for a text that is not a call."""
        return MopError(
            f"it explains one call of a function that trains, with constants for arguments: {why}",
            hint=self.hint,
            sqlstate="42601",
        )

    def _read(self) -> Sequence[Token]:
        found, at, text = [], 0, self.text
        while at < len(text):
            if text.startswith("/*", at):
                at = self._comment_end(at)
                continue
            if dollar := DOLLAR.match(text, at):
                end = text.find(dollar[0], dollar.end())
                if end < 0:
                    raise self.refused("a dollar-quoted string has no end")
                found.append(Token("string", text[at : end + len(dollar[0])], at, end + len(dollar[0])))
                at = end + len(dollar[0])
                continue
            match = TOKENS.match(text, at)
            if match is None:
                raise self.refused(f"it cannot have {text[at : at + 20]!r}")
            if match.lastgroup != "blank":
                found.append(Token(str(match.lastgroup), match[0], at, match.end()))
            at = match.end()
        return [*found, Token("end", "", len(text), len(text))]

    def _comment_end(self, at: int) -> int:
        depth = 0
        for mark in re.compile(r"/\*|\*/").finditer(self.text, at):
            depth += 1 if mark[0] == "/*" else -1
            if not depth:
                return mark.end()
        raise self.refused("a comment has no end")

    # --- tokens -----------------------------------------------------------------------------------
    @property
    def now(self) -> Token:
        return self.tokens[self.at]

    def take(self, *texts: str) -> Token | None:
        """The present token if it is one of the marks or words `texts`, and then the next one is present."""
        token = self.now
        if token.kind in ("mark", "word") and token.text.lower() in texts:
            self.at += 1
            return token
        return None

    def need(self, text: str) -> Token:
        token = self.take(text)
        if token is None:
            raise self.unexpected(f"{text!r} is expected")
        return token

    def unexpected(self, more: str) -> MopError:
        shown = "its end" if self.now.kind == "end" else repr(self.now.text[:40])
        return self.refused(f"{more} at {shown}")

    # --- grammar ----------------------------------------------------------------------------------
    def call(self) -> Call:
        verb = self.take("select", "call")
        if verb is None:
            raise self.unexpected("SELECT is expected")
        if verb.word == "select" and self.take("*"):
            self.need("from")
        name = [self.name()]
        while self.take("."):
            name.append(self.name())
        if len(name) > 2:
            raise self.refused("the function's name has more than two parts")
        begin = self.need("(").end
        if not self.take(")"):
            self.argument()
            while self.take(","):
                self.argument()
            self.need(")")
        end = self.tokens[self.at - 1].begin
        while self.take(";"):
            pass
        if self.now.kind != "end":
            more = "only one statement is" if self.tokens[self.at - 1].text == ";" else "the end is"
            raise self.unexpected(f"{more} expected")
        return Call(tuple(name), self.text[begin:end], verb.word == "call")

    def name(self) -> str:
        token = self.now
        if token.kind not in ("word", "quoted"):
            raise self.unexpected("the name of a function is expected")
        self.at += 1
        return token.text[1:-1].replace('""', '"') if token.kind == "quoted" else token.text.lower()

    def argument(self) -> None:
        if self.now.kind in ("word", "quoted") and self.tokens[self.at + 1].text in ("=>", ":="):
            self.at += 2
        self.value()

    def go_deeper(self) -> None:
        """A value or an array begins, possibly within another."""
        self.depth += 1
        if self.depth > MOST_DEEP:
            raise self.refused(f"its parentheses and brackets are nested more than {MOST_DEEP} deep")

    def value(self) -> None:
        """A constant, with casts."""
        self.go_deeper()
        while self.take("+", "-"):
            pass
        token = self.now
        if token.kind in ("string", "number"):
            self.at += 1
            if token.kind == "string" and self.now.kind == "string":
                # (over a line's end, PostgreSQL reads the second one as a part of the first, with its escapes)
                raise self.refused("two strings follow one another")
        elif self.take("("):
            self.value()
            self.need(")")
        elif self.take("array"):
            self.elements()
        elif self.take(*CONSTANTS):
            pass
        elif self.take("cast"):
            self.need("(")
            self.value()
            self.need("as")
            self.type()
            self.need(")")
        elif token.word in TYPES or token.word in ("double", "character"):
            self.type()
            if self.now.kind != "string":
                raise self.unexpected("a constant is expected")
            self.at += 1
        else:
            raise self.unexpected("a constant is expected")
        while self.take("::"):
            self.type()
        self.depth -= 1

    def elements(self) -> None:
        self.go_deeper()
        self.need("[")
        if not self.take("]"):
            self._elements()
        self.depth -= 1

    def _elements(self) -> None:
        while True:
            if self.now.text == "[":
                self.elements()
            else:
                self.value()
            if not self.take(","):
                break
        self.need("]")

    def type(self) -> None:
        first = self.now.word
        self.at += first != ""
        if first in ("double", "character"):
            first += f" {self.now.word}"
            self.at += 1
        if first not in TYPES:
            self.at -= first != ""
            raise self.unexpected(f"a type is expected ({', '.join(TYPES)})")
        if self.take("("):
            while self.now.kind == "number" or self.now.text == ",":
                self.at += 1
            self.need(")")
        while self.take("["):
            if self.now.kind == "number":
                self.at += 1
            self.need("]")
