#!/usr/bin/env python3
"""usage: packaging/api_reference.py [--out FILE]

Makes the reference of the Python package from its docstrings: one page of HTML (default:
build/docs/terrace-python.html). Reads the sources and imports nothing, so that neither engines nor
the library have to be there. Exit status 1, and nothing is written: something public says nothing
of itself.
"""
import argparse
import ast
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "client" / "python" / "terrace"
# What programs import; the adapters are configured, not called.
MODULES = (
    "__init__", "client", "group", "leases", "calls", "space", "errors", "buffers", "requests",
    "aio", "torch", "handoff", "paged", "pages", "retention", "request_hints", "epochs",
    "kv_events/__init__", "kv_events/relay", "kv_events/announcer", "kv_events/wire")
STYLE = """body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
code, pre { font-family: monospace; background: #f4f4f4 } pre { padding: .6em; overflow-x: auto }
h2 { border-top: 1px solid #ccc; padding-top: 1em } dd { margin-bottom: .8em }"""


class Page:
    """The page as it grows; silent: what has no docstring."""

    def __init__(self):
        self.parts, self.contents, self.silent = [], [], []

    def add(self, text):
        self.parts.append(text)

    def text_of(self, node, name):
        """A docstring's paragraphs."""
        text = ast.get_docstring(node)
        if not text:
            self.silent.append(name)
            return ""
        return "\n".join(f"<p>{marked(each)}</p>" for each in re.split(r"\n\s*\n", text))


def marked(text):
    """Names in backquotes are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def is_public(node):
    return not node.name.startswith("_")


def decorators(node):
    return {ast.unparse(each).split("(")[0] for each in node.decorator_list}


def signature(node):
    """As one writes it: without self, and of a property its type."""
    if isinstance(node, ast.ClassDef):
        made = next((each for each in node.body if isinstance(each, ast.FunctionDef)
                     and each.name == "__init__"), None)
        if made is not None:
            return f"class {node.name}({arguments(made)})"
        fields = [ast.unparse(each) for each in node.body
                  if isinstance(each, ast.AnnAssign) and is_field(each)]
        bases = [ast.unparse(each) for each in node.bases]
        return f"class {node.name}({', '.join(fields or bases)})"
    answer = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    if decorators(node) & {"property", "functools.cached_property"}:
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{word}{node.name}({arguments(node)}){answer}"


def is_field(node):
    return isinstance(node.target, ast.Name) and not node.target.id.startswith("_")


def arguments(node):
    text = ast.unparse(node.args)
    return re.sub(r"^(self|cls)(, |$)", "", text)


def of_class(page, node, module):
    page.add(f"<dt><code>{html.escape(signature(node), quote=False)}</code></dt><dd>")
    page.add(page.text_of(node, f"{module}.{node.name}"))
    methods = [each for each in node.body if is_public_function(each)]
    if methods:
        page.add("<dl>")
        for each in methods:
            of_function(page, each, f"{module}.{node.name}")
        page.add("</dl>")
    page.add("</dd>")


def is_public_function(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_public(node)


def of_function(page, node, owner):
    page.add(f"<dt><code>{html.escape(signature(node), quote=False)}</code></dt>"
             f"<dd>{page.text_of(node, f'{owner}.{node.name}')}</dd>")


def of_module(page, path):
    name = ".".join(("terrace", *path.split("/"))).replace(".__init__", "")
    tree = ast.parse((PACKAGE / f"{path}.py").read_text())
    page.contents.append(name)
    page.add(f'<h2 id="{name}">{name}</h2>')
    page.add(page.text_of(tree, name))
    exported = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    if path.endswith("__init__") and exported:
        page.add("<p>" + ", ".join(f"<code>{alias.name}</code> of {name}.{each.module or ''}"
                                   for each in exported for alias in each.names
                                   if each.level == 1 and not alias.name.startswith("_"))
                 + "</p>")
    page.add("<dl>")
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and is_public(node):
            of_class(page, node, name)
        elif is_public_function(node):
            of_function(page, node, name)
    page.add("</dl>")


def reference():
    """(the page, what is silent)."""
    page = Page()
    for path in MODULES:
        of_module(page, path)
    contents = " ".join(f'<a href="#{name}">{name}</a>' for name in page.contents)
    text = (f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>terrace, the Python '
            f"package</title><style>{STYLE}</style><h1>terrace</h1><p>{contents}</p>"
            + "\n".join(page.parts) + "</html>\n")
    return text, page.silent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=ROOT / "build" / "docs" / "terrace-python.html")
    arguments_given = parser.parse_args()
    text, silent = reference()
    if silent:
        print("without a docstring: " + ", ".join(silent), file=sys.stderr)
        return 1
    arguments_given.out.parent.mkdir(parents=True, exist_ok=True)
    arguments_given.out.write_text(text)
    print(arguments_given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
