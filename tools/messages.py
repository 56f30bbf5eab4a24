"""Print every message of meshbus that a user can see: `python -m tools.messages [--docstrings] [PACKAGE ...]`.

It reads the source with `ast` and imports nothing, so it works without the optional dependencies. A message is

    error   a string passed to an exception class
    reason  the value of a member of an enum whose name ends in Fault or Reason
    help    a help text of the command line: docstrings of commands, and `help=`
    print   text that a command prints
    log     a log line or a warning
    text    a string passed for a parameter such as `problem` or `detail`, which becomes part of one of the above, and
            the texts of tables in modules
    doc     with --docstrings: the first line of a public docstring

Placeholders of f-strings are shown as {name}. A variable is replaced by the strings that its function or module assigns
to it. The list is sorted by file and line. tests/house/test_messages.py checks it.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src" / "meshbus"

_TEXT_PARAMETERS = frozenset({"description", "detail", "empty", "expected", "found", "problem", "to_do"})
_PRINTERS = frozenset({"note", "print", "show_text", "_title", "say", "Stage"})
_LOGGERS = frozenset({"_log", "log", "logger", "_logger", "logging", "warnings"})
_LOG_METHODS = frozenset({"critical", "debug", "error", "exception", "info", "log", "warn", "warning"})
_VERB = re.compile(r"(meshbus(?:\.\w+)+):(\w+)")
_ENUM = re.compile(r"(Fault|Reason)$")
_MAX_VARIANTS = 8
"""Combinations of conditional parts that are shown for one message; more would repeat the same words."""

Scope = Mapping[str, list[ast.expr]]
"""Strings assigned to each name."""


class Message(NamedTuple):
    """One message and where it is."""

    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


class Catalog:
    """What the whole package defines: exception classes, text parameters of functions, and commands."""

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self.errors = {name for name in dir(builtins) if name.endswith("Error")} | {"Exception", "MeshError"}
        self.parameters: dict[str, dict[str, int]] = {}
        """For each function or class: its text parameters and their positions, without `self`."""
        self.verbs: set[tuple[str, str]] = set()
        """Module and function of each command that is not declared with a decorator."""
        nodes = [node for module in modules for node in ast.walk(module)]
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        grown = True
        while grown:  # a subclass may be defined before its base is known
            found = {node.name for node in classes if {_name(base) for base in node.bases} & self.errors}
            grown = not found <= self.errors
            self.errors |= found
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
                self._add(node.name, _parameters(node))
            elif (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and (verb := _VERB.fullmatch(node.value))
            ):
                self.verbs.add((verb[1], verb[2]))
        for node in classes:
            made = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
            fields = [_name(item.target) for item in node.body if isinstance(item, ast.AnnAssign)]
            self._add(node.name, _parameters(made[0]) if made else fields)

    def _add(self, name: str, names: Iterable[str]) -> None:
        places = {parameter: at for at, parameter in enumerate(names) if parameter in _TEXT_PARAMETERS}
        if places:
            self.parameters.setdefault(name, {}).update(places)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def collect(packages: Iterable[str] = (), *, docstrings: bool = False, source: Path = SOURCE) -> list[Message]:
    """Return the messages of all modules, or of some packages, sorted by file and line."""
    wanted = set(packages)
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(source.rglob("*.py"))}
    catalog = Catalog(trees.values())
    found: set[Message] = set()
    for path, tree in trees.items():
        place = path.relative_to(source)
        if not wanted or place.parts[0].removesuffix(".py") in wanted:
            found.update(messages_of(tree, str(Path(source.name) / place), catalog, docstrings=docstrings))
    return sorted(found)


def messages_of(tree: ast.Module, path: str, catalog: Catalog, *, docstrings: bool = False) -> Iterator[Message]:
    """Yield the messages of one module."""
    for line, kind, texts in _Module(tree, path, catalog).walk(docstrings=docstrings):
        for text in texts:
            yield Message(path, line, kind, text)


class _Module:
    """Finds the messages of one module."""

    def __init__(self, tree: ast.Module, path: str, catalog: Catalog) -> None:
        self._tree = tree
        self._name = ".".join(Path(path).with_suffix("").parts)
        self._catalog = catalog
        self._constants = _assignments(tree.body)

    def walk(self, *, docstrings: bool) -> Iterator[tuple[int, str, list[str]]]:
        yield from self._visit(self._tree, self._constants)
        for values in self._constants.values():
            for value in values:
                if isinstance(value, ast.Dict):
                    yield from self._table(value)
        if docstrings:
            yield from _docstrings(self._tree)

    def _visit(self, node: ast.AST, scope: Scope) -> Iterator[tuple[int, str, list[str]]]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope = {**scope, **_assignments(node.body)}
                decorated = any(_name(decorator).endswith("command") for decorator in node.decorator_list)
                if decorated or (self._name, node.name) in self._catalog.verbs:
                    yield node.lineno, "help", [_flat(ast.get_docstring(node) or "")]
            case ast.ClassDef() if _ENUM.search(node.name):
                yield from _members(node)
            case ast.Call():
                yield from self._call(node, scope)
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child, scope)

    def _table(self, table: ast.Dict) -> Iterator[tuple[int, str, list[str]]]:
        """Yield the texts of a table of a module, whose values are strings, or tuples with strings."""
        for value in table.values:
            items = value.elts if isinstance(value, ast.Tuple) else [value]
            yield value.lineno, "text", [text for item in items for text in _sentences(item, self._constants)]

    def _call(self, call: ast.Call, scope: Scope) -> Iterator[tuple[int, str, list[str]]]:
        name = _name(call.func)
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if "help" in keywords:
            yield call.lineno, "help", _sentences(keywords["help"], scope)
        if name in self._catalog.errors or (name == "__init__" and ast.unparse(call.func).startswith("super()")):
            parts = [_texts(argument, scope) for argument in (*call.args, *keywords.values())]
            if name == "ConfigError" and not parts[0]:
                parts[0] = ["{" + _placeholder(call.args[0]) + "}"]
            joined = [": ".join(words) for words in product(*(part for part in parts if part))]
            yield call.lineno, "error", [text for text in joined if " " in text]
        elif name in _LOG_METHODS and isinstance(call.func, ast.Attribute) and _name(call.func.value) in _LOGGERS:
            found = [_sentences(argument, scope) for argument in call.args]
            yield call.lineno, "log", next((texts for texts in found if texts), [])
        elif name in _PRINTERS or (name == "write" and "std" in ast.unparse(call.func)):
            yield call.lineno, "print", [text for argument in call.args for text in _sentences(argument, scope)]
        else:
            places = self._catalog.parameters.get(name, {})
            given = [call.args[at] for at in places.values() if at < len(call.args)]
            given += [value for keyword, value in keywords.items() if keyword in _TEXT_PARAMETERS]
            yield call.lineno, "text", [text for argument in given for text in _sentences(argument, scope)]


def _members(enum: ast.ClassDef) -> Iterator[tuple[int, str, list[str]]]:
    for item in enum.body:
        if isinstance(item, ast.Assign):
            texts = [node.value for node in ast.walk(item.value) if isinstance(node, ast.Constant)]
            words = [text for text in texts if isinstance(text, str)]
            yield item.lineno, "reason", [f"{enum.name}.{_name(item.targets[0])} = {': '.join(words)}"] if words else []


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the first lines of docstrings: of the module, public classes and functions, and fields."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text:
            yield node.body[0].lineno, "doc", [text.splitlines()[0]]
        body = node.body[1:] if text else node.body
        for item in body:
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                yield item.lineno, "doc", [item.value.value.splitlines()[0]]
        waiting += [item for item in body if not str(getattr(item, "name", "_")).startswith("_")]
        waiting += [item for item in body if getattr(item, "name", "") == "__init__"]


def _assignments(body: Iterable[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Return what is assigned to each name, also in nested blocks, but not in nested functions and classes."""
    found: dict[str, list[ast.expr]] = {}
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.setdefault(name, []).append(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
                for target, value in zip(names, values, strict=True):
                    found.setdefault(_name(target), []).append(value)
        waiting += ast.iter_child_nodes(node)
    return found


def _sentences(node: ast.expr, scope: Scope) -> list[str]:
    """Return the texts of an expression that have several words, not only placeholders."""
    return [text for text in _texts(node, scope) if " " in text and re.search(r"[a-z]{2}", re.sub(r"{.*?}", "", text))]


def _texts(node: ast.expr, scope: Scope, depth: int = 0) -> list[str]:
    """Return the strings that an expression may be, with placeholders; empty if it is not a string."""
    match node:
        case ast.Constant(value=str(text)):
            return [_flat(text)]
        case ast.JoinedStr(values=values):
            parts = [_part(value, scope, depth) for value in values]
            return _variants("".join(words) for words in product(*parts))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            both = _texts(left, scope, depth), _texts(right, scope, depth)
            return _variants("".join(words) for words in product(*both))
        case ast.IfExp(body=body, orelse=orelse):
            return _variants([*_texts(body, scope, depth), *_texts(orelse, scope, depth)])
        case ast.Name(id=name) if depth < 3:
            return _variants(text for value in scope.get(name, ()) for text in _texts(value, scope, depth + 1))
    return []


def _part(value: ast.expr, scope: Scope, depth: int) -> list[str]:
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.FormattedValue(value=ast.IfExp() as choice) if _texts(choice, scope, depth):
            return _texts(choice, scope, depth)
        case ast.FormattedValue(value=inner, conversion=conversion):
            shown = "{" + _placeholder(inner) + "}"
            return [f"'{shown}'" if conversion == ord("r") else shown]
    return [""]


def _placeholder(node: ast.expr) -> str:
    """Return a short name for the value of a placeholder."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
        case ast.Call(func=ast.Attribute(value=owner)) if not isinstance(owner, ast.Constant):
            return _placeholder(owner)
        case ast.Subscript(value=inner) | ast.Call(args=[inner, *_]) | ast.BoolOp(values=[*_, inner]):
            return _placeholder(inner)
        case ast.IfExp(body=inner) | ast.GeneratorExp(elt=inner):
            return _placeholder(inner)
    return ast.unparse(node)


def _variants(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(_flat(text) for text in texts))[:_MAX_VARIANTS]


def _flat(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip("\n"))


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=func):
            return _name(func)
    return ""


def main() -> None:
    """Print the messages."""
    parser = argparse.ArgumentParser(prog="python -m tools.messages", description="Print all user-facing messages.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="only these packages below src/meshbus")
    parser.add_argument("--docstrings", action="store_true", help="also the first lines of public docstrings")
    options = parser.parse_args()
    sys.stdout.writelines(f"{message}\n" for message in collect(options.packages, docstrings=options.docstrings))


if __name__ == "__main__":
    main()
