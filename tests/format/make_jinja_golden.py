#!/usr/bin/env python3
"""Writes jinja_golden.json: small templates and what Python's jinja2 makes of them.

Usage: make_jinja_golden.py [--random N] [--seed S] > jinja_golden.json
Needs jinja2 3.1.6 (pip install jinja2==3.1.6). The environment is set up as transformers does for chat templates:
ImmutableSandboxedEnvironment(trim_blocks, lstrip_blocks, loop controls), tojson without HTML escaping, raise_exception,
strftime_now, and `generation` blocks, whose body is rendered. The last fixed rows use the plain sandbox, in which
lists and dicts may be changed. Random rows are made without the folding of constants. A row has the template "t" and
either the text "out" or "error": true.
"""
import argparse
import copy
import datetime
import functools
import json
import sys
import warnings

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from jinja_random import RandomExpressions, RandomTemplates
from jinja_rows import EXPRESSIONS, MUTABLE_TEMPLATES, TEMPLATES, VARIABLES

NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _render(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def make_environment(kind, **options):
    env = kind(**options, trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols", "jinja2.ext.do"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: NOW.strftime(fmt)
    return env


IMMUTABLE = make_environment(ImmutableSandboxedEnvironment)
MUTABLE = make_environment(SandboxedEnvironment)


# Filters whose result Python computes when it is asked for; an engine may do so at once.
LAZY = ["map", "select", "reject", "selectattr", "rejectattr", "items", "unique", "batch", "slice"]


def eager(filter_function):
    @functools.wraps(filter_function)
    def applied(*args, **kwargs):
        return iter(list(filter_function(*args, **kwargs)))

    return applied


# Constants are folded with other rules than those at run time: 5[1:2] is undefined, n[1:2] an error.
UNFOLDED = make_environment(ImmutableSandboxedEnvironment, optimized=False)
EAGER = make_environment(ImmutableSandboxedEnvironment, optimized=False)
EAGER.filters.update({name: eager(EAGER.filters[name]) for name in LAZY})


def depends_on_laziness(made):
    try:
        EAGER.from_string(made["t"]).render(**copy.deepcopy(VARIABLES))
        return "error" in made
    except Exception:
        return "error" not in made


def row(template, env=IMMUTABLE):
    result = {"t": template}
    try:
        text = env.from_string(template).render(**copy.deepcopy(VARIABLES))
        text.encode("utf-8")
        result["out"] = text
    except Exception as error:  # whatever Python says: it is an error
        result["error"] = True
        result["why"] = f"{type(error).__name__}: {error}"[:120]
    return result


def parts(expression):
    """The expressions between the commas outside of brackets and strings; the whole where the brackets don't match."""
    found, depth, quote, start = [], 0, "", 0
    at = 0
    while at < len(expression):
        c = expression[at]
        if quote:
            if c == "\\":
                at += 1
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            found.append(expression[start:at].strip())
            start = at + 1
        at += 1
    found.append(expression[start:].strip())
    return found if depth == 0 and not quote and all(found) else [expression]


def main():
    warnings.simplefilter("ignore")  # SyntaxWarning of the code that jinja2 generates
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--random", type=int, default=1500, help="random expressions, and a quarter as many templates (default 1500)")
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    if jinja2.__version__ != "3.1.6":
        sys.exit(f"jinja2 3.1.6 is wanted, this is {jinja2.__version__}")
    rows = []
    expressions = EXPRESSIONS.replace("\\\nx", "\\\0x").split("\n")  # one expression goes on behind a backslash
    for expression in expressions:
        for part in parts(expression.replace("\0", "\n")):
            rows.append(row("{{ " + part + " }}"))
    rows += [row(template) for template in TEMPLATES]
    rows += [row(template, MUTABLE) for template in MUTABLE_TEMPLATES]
    rows += RandomExpressions(options.seed, lambda t: row(t, UNFOLDED), depends_on_laziness).rows(options.random)
    rows += RandomTemplates(options.seed, row).rows(options.random // 4)
    rows = [r for r in rows if " at 0x" not in r.get("out", "")]  # addresses of objects differ from run to run
    print('{"jinja2": "%s", "now": "%s",\n"variables": %s,\n"rows": [' % (
        jinja2.__version__, NOW.strftime("%Y-%m-%dT%H:%M:%S"), json.dumps(VARIABLES, ensure_ascii=False)))
    print(",\n".join(json.dumps(r, ensure_ascii=False) for r in rows))
    print("]}")


if __name__ == "__main__":
    main()
