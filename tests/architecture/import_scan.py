"""Finds every import of a source file by reading its syntax tree; nothing is imported.

What is allowed is test_imports.py's table.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Import:
    """One imported name, such as ``numpy``, ``super_wire.errors.RecordError`` or ``grpc.aio``."""

    name: str
    line: int
    lazy: bool  # inside a function, or for the type checker only: importing the file does not run it


def imports_of(source, package):
    """All imports of ``source``, a module of the dotted ``package``; relative ones are resolved."""
    visitor = _Visitor(package)
    visitor.visit(ast.parse(source))
    return visitor.found


def builtin_calls_of(source):
    """Name and line of each call of a plain name, such as ``open(...)``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


class _Visitor(ast.NodeVisitor):
    def __init__(self, package):
        self.package = package.split(".")
        self.lazy_depth = 0
        self.found = []

    def visit_Import(self, node):
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node):
        base = node.module or ""
        if node.level:
            parents = self.package[: len(self.package) - node.level + 1]
            base = ".".join([*parents, *([base] if base else [])])
        for alias in node.names:
            self._add(f"{base}.{alias.name}", node)

    def visit_Call(self, node):
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        first = node.args[0] if node.args else None
        if called in {"import_module", "__import__"} and isinstance(first, ast.Constant):
            self._add(str(first.value), node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node):
        for eager in (*node.decorator_list, node.args):
            self.visit(eager)
        self._visit_lazily(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 # the name that ast.NodeVisitor looks for

    def visit_Lambda(self, node):
        self.visit(node.args)
        self._visit_lazily([node.body])

    def visit_If(self, node):
        if "TYPE_CHECKING" in {getattr(node.test, "id", ""), getattr(node.test, "attr", "")}:
            self._visit_lazily(node.body)
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def _visit_lazily(self, nodes):
        self.lazy_depth += 1
        for node in nodes:
            self.visit(node)
        self.lazy_depth -= 1

    def _add(self, name, node):
        self.found.append(Import(name, node.lineno, lazy=self.lazy_depth > 0))
