"""Count docstrings, comments and names that are hard to read.

A count shows where to look; it is not the goal. A sentence is good if an engineer understands it at
first reading.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words with which a function's docstring should not begin: they do not say what it does.
OPENERS = _words(
    """
    what how which where whose whom of its it they those these that is are was does do did has
    have had can may must who nothing none some anything
    """
)
# A name that has only these words does not say what it names.
FUNCTION_WORDS = _words(
    """
    about above across after again all alone along alike among and any anywhere apart around as
    aside at away back bare before behind below beside between both by else enough far for from
    here how if in inside into its itself last left less like long many most near new no not now
    of off on once one only or other others out outside over past per same since so still such
    that them there these they this those through to together too twice under until up what when
    where which while who whole whose why with within without yet ours theirs own
    """
)
PARTICIPLE = re.compile(r".*(ed|own|ung|ade|old|ept|aid|ought|aught|eft|ent)$")
NOUN = re.compile(
    r".*(ment|dient|xtent|ontent|urrent|parent|event|ident|seed|need|feed|embed|speed|token|thread"
    r"|head|read|spread|load)$"
)
# Words that this project's prose used in a private sense.
PRIVATE = re.compile(
    r"\b(anew|in vain|alike|meanwhile|stands?|lies|lie|comes by|for nothing|told|tells"
    r"|so it is(?! (?:not|\w+ed)\b)|seams?|doors?|rooms?|roads?|births?|livings?|lone"
    r"|by the way it|goes by|(?<!there )is no(?! longer))\b",
    re.I,
)
CONSTANT = re.compile(
    r"^_?(MOST|FEW|LEAST|MANY|SMALL|LONGEST|LONG|ENOUGH|NEAR|FAR|OFTEN|SOON|ALL|NONE|AGAIN|TOGETHER"
    r"|HERE|THERE|OTHER|OTHERS|BOTH|SAME)$"
)
WHAT = re.compile(r"\bwhat\b", re.I)
FEW_WORDS = 4


def counts(folders: list[Path]) -> dict[str, int]:
    """Return how often each kind of hard text occurs in the Python files of some folders."""
    found: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        if "node_modules" in path.parts:
            continue
        source = path.read_text()
        nodes = list(ast.walk(ast.parse(source)))
        texts = [*_docstrings(nodes), *(("comment", text) for text in _comments(source))]
        for kind, text in texts:
            words = re.findall(r"[A-Za-z']+", text)
            found["private words"] += len(PRIVATE.findall(text))
            found["'what'"] += len(WHAT.findall(text))
            if kind == "function":
                found["docstrings with a bad opening"] += words[:1] != [] and _opens_badly(text)
                found["docstrings of few words"] += len(words) <= FEW_WORDS
        classes.update(node.name for node in nodes if isinstance(node, ast.ClassDef))
        found.update(kind for node in nodes for kind in _names(node))
    found["classes that share a name"] = sum(count for count in classes.values() if count > 1)
    return dict(found)


def _docstrings(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if text:
                yield "function" if function else "other", text


def _comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        marks = ("noqa", "type:", "pragma", "!", "mypy")
        if token.type == tokenize.COMMENT and len(token.string) > 4 and not text.startswith(marks):
            yield text


def _opens_badly(text: str) -> bool:
    first = re.findall(r"[A-Za-z']+", text)[0].lower()
    return first in OPENERS and not text.lower().startswith(("is true", "does nothing"))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the kind of a name that says too little; nothing for other names."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
        words = node.name.strip("_").split("_")
        if all(word in FUNCTION_WORDS for word in words):
            yield "names of function words"
        elif len(words) == 1 and PARTICIPLE.match(words[0]) and not NOUN.match(words[0]):
            yield "names that are a participle"
    elif isinstance(node, ast.Assign) and CONSTANT.match(ast.unparse(node.targets[0])):
        yield "constants that do not say of what"
