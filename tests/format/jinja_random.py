"""The random rows of make_jinja_golden.py."""
import random


class RandomExpressions:
    """Random expressions, mostly well typed; what Python objects to counts as well."""

    def __init__(self, seed, row, unsettled):
        self.r = random.Random(seed)
        self.row = row  # makes a row of a template
        self.unsettled = unsettled  # whether a row is of no use

    ATOMS = ["n", "neg", "f", "s", "l", "words", "d", "yes", "no", "nil", "q", "empty", "mixed", "nested", "u", "users", "0", "1", "2", "-1", "3.5", "'a'", "'b,c'", "''", "' x '", "[1, 2]", "['b', 'a']", "{'a': 1}", "(1, 'a')", "()", "none", "true", "false", "users[0]", "d.a", "tiny", "big"]
    FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "join", "join(',')", "sort", "unique", "reverse", "string", "int", "float", "abs", "round", "sum", "min", "max", "tojson", "e", "default('z')", "default('z', true)", "replace('a', 'b')", "dictsort", "items", "map('string')", "select", "reject", "wordcount", "center(9)", "indent", "truncate(3, true, '')", "batch(2)", "slice(2)", "map('upper')", "select('string')", "selectattr('age')", "map(attribute='name')", "count", "pprint", "list|length", "safe", "urlencode", "striptags", "filesizeformat", "attr('upper')", "groupby('age')", "tojson(indent=1)", "format(1)"]
    TESTS = ["defined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "callable", "true", "false", "odd", "even", "upper", "lower", "divisibleby 2", "in [1, 'a']", "eq 1", "lt 2", "sameas none", "escaped", "gt 'a'"]
    METHODS = [".upper()", ".strip()", ".split()", ".split(',')", ".title()", ".startswith('a')", ".endswith('d')", ".replace('l', 'L')", ".find('o')", ".count('l')", ".isdigit()", ".splitlines()", ".get('a')", ".get('zz', 1)", ".items()", ".keys()", ".values()", ".join(words)", ".zfill(4)", ".lower()", ".a", ".name", ".x", ".index(1)", ".partition('l')", ".rsplit('l', 1)", ".center(5)", ".format(1)", ".lstrip('H')", ".isalpha()"]
    INDICES = ["0", "-1", "1", "5", "'a'", "'name'", "1:", ":-1", "::-1", "::2", "-2:", "2:0:-1", ":", "1:2", "none", "0.5", "'items'", "n", "s"]
    BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]

    def expression(self, depth):
        r = self.r
        if depth == 0 or r.random() < 0.15:
            return r.choice(self.ATOMS)
        kind = r.randrange(12)
        if kind < 3:
            return f"{self.expression(depth - 1)} {r.choice(self.BINARY)} {self.expression(depth - 1)}"
        if kind < 5:
            return f"{self.expression(depth - 1)}|{r.choice(self.FILTERS)}"
        if kind == 5:
            return f"({self.expression(depth - 1)})"
        if kind == 6:
            return f"{self.expression(depth - 1)} is {r.choice(['', 'not '])}{r.choice(self.TESTS)}"
        if kind == 7:
            return f"({self.expression(depth - 1)}){r.choice(self.METHODS)}"
        if kind == 8:
            return f"({self.expression(depth - 1)})[{r.choice(self.INDICES)}]"
        if kind == 9:
            return f"{r.choice(['not ', '-', '+', ''])}{self.expression(depth - 1)}"
        if kind == 10:
            return f"{self.expression(depth - 1)} if {self.expression(depth - 1)} else {self.expression(depth - 1)}"
        return f"[{self.expression(depth - 1)}, {self.expression(depth - 1)}]"

    def rows(self, count):
        rows = []
        while len(rows) < count:
            made = self.row("{% set r = " + self.expression(self.r.randrange(1, 5)) + " %}{{ r }}")
            text = made.get("out", "") + made.get("why", "")
            text = made.get("out", "")
            if len(text) > 400 or ("error" in made and self.r.random() < 0.75):
                continue
            if " at 0x" in text[::-1] or " at 0x" in text.lower() or "bt 0x" in text or self.unsettled(made):
                continue
            rows.append(made)
        return rows


class RandomTemplates:
    """Random statements with random whitespace control: tags, comments, raw blocks, loops, macros, scopes."""

    def __init__(self, seed, row):
        self.r = random.Random(seed)
        self.row = row  # makes a row of a template

    TEXT = ["", " ", "\n", "  \n", "\n\n", "\t", "x", " x ", "x\n", "\n  x", "\n   ", "{", "}", "%", " } ", "\u00a0", "é\n"]
    VALUES = ["x", "y", "n", "s", "l", "q", "loop.index", "loop.last", "loop.previtem", "loop.nextitem", "loop.length", "loop.revindex0", "x ~ y", "x|string|length", "ns.v", "m1(x)", "m2(y, b=x)", "m1()", "loop.cycle('a', 'b')", "loop.changed(x)", "[x, y]", "x is defined", "loop.depth"]
    TESTS = ["x", "y", "not x", "x == y", "x is defined", "q", "loop.first", "n > 3", "x in l", "l", "ns.v"]
    ITERABLES = ["l", "[1, 2]", "'ab'", "[]", "d", "range(3)", "words", "q", "[x, y]", "l|map('string')", "nested"]

    def tag(self, inner):
        return "{%" + self.r.choice(["", "", "-", "+"]) + " " + inner + " " + self.r.choice(["", "", "-", "+"]) + "%}"

    def piece(self, depth):
        r = self.r
        kind = r.randrange(18)
        body = (lambda: self.body(depth - 1)) if depth > 0 else (lambda: r.choice(self.TEXT))
        if kind < 5:
            return r.choice(self.TEXT)
        if kind < 8:
            return "{{" + r.choice(["", "", "-"]) + " " + r.choice(self.VALUES) + " " + r.choice(["", "", "-"]) + "}}"
        if kind == 8:
            return "{#" + r.choice(["", "-", "+"]) + r.choice([" c ", "", "\n", "{{ x }}"]) + r.choice(["", "-", "+"]) + "#}"
        if kind == 9:
            return self.tag("raw").replace("+%}", "%}") + r.choice(self.TEXT) + r.choice(["{{ x }}", "{# c #}", "{% if %}"]) + r.choice(self.TEXT) + self.tag("endraw")
        if kind == 10:
            parts = self.tag("if " + r.choice(self.TESTS)) + body()
            if r.random() < 0.3:
                parts += self.tag("elif " + r.choice(self.TESTS)) + body()
            if r.random() < 0.5:
                parts += self.tag("else") + body()
            return parts + self.tag("endif")
        if kind in (11, 12):
            condition = r.choice(["", "", "", " if x", " if x != y", " if x is odd"])
            loop = self.tag("for " + r.choice(["x", "y", "x"]) + " in " + r.choice(self.ITERABLES) + condition) + body()
            if r.random() < 0.2:
                loop += self.tag("if " + r.choice(self.TESTS)) + self.tag(r.choice(["break", "continue"])) + self.tag("endif") + body()
            if r.random() < 0.3:
                loop += self.tag("else") + body()
            return loop + self.tag("endfor")
        if kind == 13:
            return self.tag("set " + r.choice(["x", "y", "ns.v"]) + " = " + r.choice(self.VALUES))
        if kind == 14:
            return self.tag("set " + r.choice(["x", "y", "ns.v", "x|upper", "y|trim|replace('x', 'z')"])) + body() + self.tag("endset")
        if kind == 15:
            return self.tag("with " + r.choice(["x = y", "y = 1, x = y", ""])) + body() + self.tag("endwith")
        if kind == 16:
            return self.tag("filter " + r.choice(["upper", "trim", "indent(2)", "replace('x', 'y')"])) + body() + self.tag("endfilter")
        signature = r.choice(["m1(x)", "m2(a, b=y)", "m1(x=y)", "m2(y)"])
        return self.tag("macro " + signature) + body() + self.tag("endmacro")

    def body(self, depth):
        return "".join(self.piece(depth) for _ in range(self.r.randrange(1, 6)))

    def rows(self, count):
        rows = []
        head = "{% set ns = namespace(v=0) %}{% macro m1(x) %}<{{ x }}>{% endmacro %}{% macro m2(a, b=2) %}({{ a }}{{ b }}{{ y }}){% endmacro %}"
        while len(rows) < count:
            made = self.row((head if self.r.random() < 0.8 else "{% set ns = namespace(v=0) %}") + self.body(3))
            if len(made.get("out", "")) > 600 or len(made["t"]) > 1200 or ("error" in made and self.r.random() < 0.8):
                continue
            rows.append(made)
        return rows
