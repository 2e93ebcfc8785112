"""The fixed rows of make_jinja_golden.py: variables, expressions (several to a line, between commas) and templates."""

VARIABLES = {
    "s": "Hello, World",
    "u": "Grüße, 世界 😀 ǆ ŉ ß ΑΣ",
    "ws": "  \t padded line \n second\u00a0 \n",
    "empty": "",
    "n": 7,
    "neg": -7,
    "big": 9007199254740993,
    "f": 2.5,
    "tiny": 1e-07,
    "huge": 1e22,
    "yes": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2],
    "words": ["banana", "Apple", "cherry", "apple"],
    "mixed": [1, "two", 3.0, None, True, [1, 2], {"k": "v"}],
    "nested": [[1, 2], [3, [4, 5]]],
    "d": {"b": 1, "a": 2, "C": 3},
    "items": {"items": 1, "keys": [1], "get": "G"},
    "users": [
        {"name": "John", "age": 30, "address": {"city": "Rome"}, "active": True},
        {"name": "jane", "age": 25, "address": {"city": "paris"}, "active": False},
        {"name": "Bob", "age": 30, "address": {"city": "Paris"}, "active": True},
        {"name": "Zoë", "age": 41, "address": {}, "active": None},
    ],
    "messages": [
        {"role": "system", "content": "Be nice"},
        {"role": "user", "content": "Hi <b> & 'you'"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.0, None]}}}]},
    ],
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}, {"v": 5, "kids": []}],
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4
(1 + 2) * 3
2 ** 3 ** 2
-2 ** 2
2 ** -1
-n ** 2
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7 / 2, 6 / 2, -7 / 2
7.5 // 2, -7.5 // 2, 7.5 % 2, -7.5 % 2, 7.5 % -2, 0.0 // 1, -0.0
1 / 0
1 // 0
1 % 0
1.0 / 0
1.5 % 0
2 ** 62
2 ** 0.5
0 ** 0
0 ** -1
1e308 * 10
big, big + 1, big * 2
1_000, 0x1F, 0o17, 0b101, 1e3, 1.5e-3, 1_0.5_0
1.0, 1.5, 100.0, 1e15, 1e16, 1e17, 123456789.123, 0.1 + 0.2, 1e-4, 1e-5, 1e22, 1e100, 5e-324
tiny, huge, f
True + 1, True * 3, True == 1, False == 0, True is true
true, false, none, True, False, None
not true, not 0, not '', not none, not [], not [0]
1 and 2, 0 and 2, 1 or 2, 0 or 2, 0 or '' or none
1 < 2 < 3, 1 < 3 < 2, 3 > 2 > 1, 1 == 1 != 2, 1 < 2 == 2
1 <= 1, 1 >= 2, 'a' < 'b', 'a' < 'B', 'é' > 'z', [1, 2] < [1, 3], [1] < [1, 0], (1, 'a') < (1, 'b')
1 < 'a'
none < 1
[1] < [none]
1 == 1.0, 1 == '1', [1] == [1], (1,) == [1], {'a': 1} == {'a': 1.0}, none == false
1 in [1, 2], 3 in [1, 2], 3 not in [1, 2], 'a' in 'abc', 'a' in {'a': 1}, 1 in {'a': 1}, 'x' not in 'abc'
1 in 'abc'
1 in 5
'' in 'abc', '' in ''
not 1 in [1], not (1 in [1])
'a' 'b' "c"
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x'] ~ {'a': 'b'} ~ undefined_name
'a' + 'b', [1] + [2], (1,) + (2,)
'a' + 1
1 + 'a'
[1] + (2,)
'ab' * 3, 3 * 'ab', [1, 2] * 2, 'x' * 0, 'x' * -1, (1,) * 3
'a' * 1.5
'a' - 'b'
[] ~ () ~ {}
(1,), (1, 2), (), ((1,),)
[1, 2, 3][0], [1, 2, 3][-1], [1, 2, 3][5]
[1, 2, 3][1:], [1, 2, 3][:2], [1, 2, 3][::-1], [1, 2, 3][::2], [1, 2, 3][-2:], [1, 2, 3][5:], [1, 2, 3][2:0:-1]
'hello'[1], 'hello'[-1], 'hello'[1:3], 'hello'[::-1], 'hello'[-3:-1], 'hello'[10:], 'hello'[:-1], 'hello'[3:1], 'hello'[4::-2]
u[0], u[2], u[4], u[2:5], u[-1], u[::-1], u[::3], u[7:9], u|length
u[100], u[-100]
'hello'[::0]
l[1.5]
l['x']
s['upper']
s['upper']()
d.a, d['a'], d.x, d['x'], d.items
d.items()
d.keys(), d.values(), d.items()
items.items, items['items'], items.items()|list, items['keys'], items.get('get'), items['values']
items.get
d.get('a'), d.get('z'), d.get('z', 'dflt'), d.get('z', default='q')
d.get('a', 1, 2)
nil.x
nil['x']
n.x
n.x.y
undefined_name
undefined_name.x
undefined_name['x']
undefined_name()
undefined_name + 1
undefined_name == undefined_other, undefined_name == 1, undefined_name != none
undefined_name < 1
undefined_name ~ 'x'
-undefined_name
undefined_name in [1], 1 in undefined_name
'x' if undefined_name else 'y'
undefined_name|length, undefined_name|list, undefined_name|join(','), undefined_name|string, undefined_name|upper
undefined_name|default('d'), ''|default('d'), ''|default('d', true), none|default('d'), none|default('d', true), false|d(1, boolean=true)
undefined_name|tojson
undefined_name|int
undefined_name|abs
undefined_name|first
undefined_name.x|default('d')
d.x.y|default('d')
d.x|default('d')
d.__class__, s.__class__, l.__len__, n.__add__
d.__class__.__mro__
''.__class__.__mro__[1].__subclasses__()
range.__globals__
s._private
{'_p': 1}._p
'yes' if n > 5 else 'no', 'yes' if n < 5, 'a' if 0 else 'b' if 0 else 'c'
('a' if 0)
n is defined, q is defined, q is undefined, d.zz is defined, d.a is defined
nil is none, n is none, n is number, f is number, s is number, yes is number, yes is integer, n is integer, f is integer, f is float
yes is boolean, n is boolean, yes is true, no is false, 1 is true, s is string, n is string
d is mapping, l is mapping, l is sequence, s is sequence, d is sequence, n is sequence, (1,) is sequence, range(3) is sequence, d.items() is sequence
l is iterable, s is iterable, n is iterable, d is iterable, q is iterable
range is callable, s is callable, s.upper is callable, q is callable
3 is odd, 3 is even, 4 is divisibleby 2, 4 is divisibleby(3), -3 is odd
'ABC' is upper, 'abc' is lower, 'Abc' is upper, '' is upper, '1' is lower, 1 is upper
1 is eq 1, 1 is equalto(2), 1 is ne 2, 1 is lt 2, 1 is le 1, 2 is gt 1, 2 is ge 3, 1 is lessthan 2, 2 is greaterthan 1, 1 is sameas 1, none is sameas none, 1 is sameas true
1 is in [1, 2], 3 is not in [1, 2], 'a' is in 'abc'
not n is none, n is not none, n is not string and n is number
'upper' is filter, 'nope' is filter, 'odd' is test, 'nope' is test
n is nosuchtest
n|nosuchfilter
s is escaped, s|safe is escaped, s|e is escaped
s|upper, s|lower, s|title, s|capitalize, s|length, s|reverse, s|first, s|last, s|list
u|upper
u|lower
u|title
u|capitalize
'ΑΣ ΣΑΣ Σ'|lower, 'ǆ'|capitalize, 'ß'|upper, 'ŉ'|title, 'İ'|lower, 'ﬁn'|upper
'hello-world foo_bar (baz) {qux} [a] <b>'|title
"they're bill's"|title, "they're bill's".title()
ws|trim, ws.strip(), ws.lstrip(), ws.rstrip(), 'xxaxx'.strip('x'), 'abcba'.strip('ab'), 'xxa'|trim('x'), 'mississippi'.rstrip('ip')
'a,b,,c'.split(','), 'a b  c '.split(), 'a b  c '.split(' '), 'a,b,c'.split(',', 1), 'a,b,c'.rsplit(',', 1), ' a b c '.split(none, 1), ' a b c '.rsplit(none, 1)
'a  b  c  '.split(maxsplit=1), 'abc'.split('x'), ''.split(), ''.split(','), 'aXbXc'.split('X', 0), 'a b c'.rsplit(), 'a--b--c'.rsplit('--', 1)
'abc'.split('')
'a\nb\r\nc\rd\x0be\x1cf\u2028g'.splitlines(), 'a\n'.splitlines(true), ''.splitlines(), '\n\n'.splitlines()
'abc'.startswith('a'), 'abc'.startswith(('x', 'a')), 'abc'.startswith('b', 1), 'abc'.endswith('c'), 'abc'.endswith(('x', 'y')), 'abc'.endswith('b', 0, 2), 'abc'.startswith('')
'abc'.startswith(['a'])
'abcabc'.find('c'), 'abcabc'.rfind('c'), 'abcabc'.find('x'), 'abcabc'.index('b'), 'abcabc'.count('bc'), 'abc'.count(''), 'abcabc'.find('a', 1), 'abc'.find('', 5), u.find('世'), u.find('😀'), u.rfind('ß')
'abc'.index('x')
'aaa'.replace('a', 'b'), 'aaa'.replace('a', 'b', 2), 'abc'.replace('', '-'), 'abc'.replace('', '-', 2), 'aaa'|replace('aa', 'b'), 12321|replace('2', 'x'), 'aaa'|replace('a', 1), 'aaa'.replace('a', 'bb', -1)
'abc'.upper(), 'ABC'.lower(), 'aBc'.swapcase(), 'hello world'.title(), 'hELLO'.capitalize(), 'straße'.casefold(), 'ǅ'.swapcase()
'5'.zfill(3), '-5'.zfill(4), '+5'.zfill(4), 'abc'.zfill(2), 'abc'.center(8, '*'), 'abc'.center(7), 'ab'.center(5, '-'), 'abcd'.center(7,'-'), 'abc'.ljust(5, '.'), 'abc'.rjust(5, '.')
'12'.isdigit(), '1.2'.isdigit(), ''.isdigit(), '²'.isdigit(), '²'.isdecimal(), '½'.isnumeric(), '五'.isnumeric(), 'abc'.isalpha(), 'ab1'.isalnum(), '  '.isspace(), 'A1'.isupper(), 'a1'.islower(), 'Ab Cd'.istitle(), 'AB'.istitle(), 'aé'.isascii(), 'a b'.isidentifier(), '_a1'.isidentifier(), 'a\n'.isprintable()
'a-b-c'.partition('-'), 'a-b-c'.rpartition('-'), 'abc'.partition('x'), 'abc'.rpartition('x'), 'prefix_x'.removeprefix('prefix_'), 'x.py'.removesuffix('.py')
'a\tb'.expandtabs(4), 'abc\td'.expandtabs()
','.join(['a', 'b']), ''.join([]), ','.join('abc'), ', '.join(d)
','.join([1, 2])
'{} {}'.format(1, 'a'), '{1} {0}'.format(1, 2), '{a}{b}'.format(a=1, b=2), '{{}}'.format(), '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd'), '{:05d} {:+d} {:x} {:X} {:o} {:b} {:#x} {:,}'.format(42, 42, 255, 255, 8, 5, 255, 1234567)
'{:.2f} {:8.3f} {:e} {:g} {:%} {:.1%} {:.3} {:,.2f} {:010.2f}'.format(3.14159, 2.5, 12345.678, 0.00001, 0.5, 0.123, 3.14159, 1234567.891, -3.14159)
'{0[a]} {0[b]} {1[0]} {2.a}'.format(d, l, d)
'{!r} {!s} {!r:>6}'.format('a', 'b', 'c'), '{:{}}'.format('a', 4), '{:>{w}}'.format('a', w=3), '{}'.format(none), '{}'.format([1, 'a'])
'{:5}|{:5}|{:5}'.format(1, 'a', true), '{:d}'.format(true), '{:c}'.format(65), '{:.2s}'.format('abcdef'), '{:_}'.format(1234567), '{:g}'.format(1e20), '{:n}'.format(5)
'{}'.format()
'{x}'.format(y=1)
'{:d}'.format('a')
'{:s}'.format(1)
'{'.format(1)
'}'.format(1)
'{:.1}'.format(12.0), '{:.3}'.format(1234567.0), '{:.10}'.format(2.0), '{:}'.format(1.0), '{:8}'.format(1.5), '{: d}'.format(3), '{:=+5d}'.format(3), '{:<05d}'.format(3)
'%s %s' % (1, 'a'), '%d%%' % 5, '%5.2f|%-5d|%05d|%+d|%x|%X|%o|%e|%g' % (3.14159, 3, 42, 7, 255, 255, 8, 12345.6789, 0.0001), '%s' % 'x', '%r' % 'x', '%(a)s-%(b)d' % {'a': 1, 'b': 2}, '%c%c' % (65, 'b'), '%.3s' % 'abcdef', '%*d' % (5, 42), '%s' % none, '%s' % [1], '%5s|%-5s|' % ('a', 'b'), '%#x %#o' % (255, 8), '% d' % 5, '%i' % 3.99
'%d' % 'a'
'%s %s' % 1
'%s' % (1, 2)
'abc' % 1
'abc' % {}
'%q' % 1
'%(a)s' % (1,)
'%s, %s!'|format('Hello', 'World'), '%(x)s'|format(x=1), '%.2f'|format(2.345), '%05.1f'|format(3.14159)
l|sort, l|sort(reverse=true), words|sort, words|sort(case_sensitive=true), words|sort(reverse=true), words|sort(true, true)
users|sort(attribute='age')|map(attribute='name')|list, users|sort(attribute='age,name', reverse=true)|map(attribute='name')|list, users|sort(attribute='name')|map(attribute='name')|join(',')
mixed|sort
d|dictsort, d|dictsort(true), d|dictsort(false, 'value'), d|dictsort(by='value', reverse=true)
d|dictsort(by='x')
l|dictsort
l|sum, [1.5, 2]|sum, []|sum, users|sum(attribute='age'), [[1], [2]]|sum(start=[]), l|sum(start=10)
['a']|sum
l|min, l|max, []|min, words|min, words|max, words|min(case_sensitive=true), users|max(attribute='age'), 'hello'|max
l|first, l|last, []|first, []|last, d|first, d|last, d|list, 'abc'|last
l|length, d|length, s|count, 5|string|length
5|length
none|length
l|join, l|join(', '), words|join('-'), users|join(', ', attribute='name'), 'abc'|join('.'), d|join(','), mixed|join('|'), [1]|join(none), l|join(1)
l|reverse|list, 'abc'|reverse, d|reverse|list, range(3)|reverse|list, words|map('upper')|reverse
words|unique|list, words|unique(case_sensitive=true)|list, [1, 1.0, true, 2]|unique|list, users|unique(attribute='age')|map(attribute='name')|list, [[1], [1]]|unique|list
users|groupby('age')|map(attribute='grouper')|list
users|groupby('address.city', default='none')|map('first')|list
users|groupby('age')|first
words|groupby(0)|list
l|batch(2)|list, l|batch(2, 'x')|list, range(7)|batch(3)|map('list')|list, []|batch(2)|list
range(7)|slice(3)|list, range(7)|slice(3, 'x')|list, []|slice(2)|list
l|map('string')|list, words|map('upper')|list, words|map('replace', 'a', 'x')|list, users|map(attribute='address.city')|list, users|map(attribute='address.city', default='?')|list, nested|map(attribute=0)|list, nested|map('length')|list, words|map('truncate', 4, true, '.', leeway=0)|list
l|map('nosuch')|list
l|map|list
l|map(attribute='x', foo=1)|list
none|map('upper')|list
5|map('upper')|list
l|select('odd')|list, l|reject('odd')|list, mixed|select|list, mixed|reject|list, l|select('gt', 1)|list, words|select('in', ['apple'])|list, l|select('divisibleby', 2)|list, mixed|select('string')|list, l|select('==', 3)|list
users|selectattr('active')|map(attribute='name')|list, users|rejectattr('active')|map(attribute='name')|list, users|selectattr('age', 'equalto', 30)|map(attribute='name')|list, users|selectattr('age', '>', 26)|list|length, users|selectattr('address.city', 'defined')|list|length, users|rejectattr('active', 'none')|list|length
l|select('nosuch')|list
users|selectattr|list
(l|map('string')|list)[0], (l|select('odd'))|first
(l|select('odd'))|length
(l|select('odd'))[0]
l|select('odd')|tojson
l|abs
3|abs, -3|abs, -2.5|abs, true|abs
'x'|abs
2.5|round, 3.5|round, 2.567|round(2), 2.567|round(1, 'floor'), 2.51|round(1, 'ceil'), 5|round, 1234|round(-2), 1250|round(-2), 1350|round(-2), -2.5|round, 2.675|round(2), 0.5|round, 1e20|round, 15|round(-1, 'ceil'), 7|round(0, 'floor'), 1234.5|round(-2)
2.5|round(0, 'bad')
'x'|round
'42'|int, ' 42 '|int, '4_2'|int, '42.9'|int, 'x'|int, 'x'|int(7), '0x1f'|int(0, 16), 'ff'|int(base=16), '0b11'|int(base=2), '1e3'|int, none|int, [1]|int(5), true|int, -3.9|int, '-7'|int, '+7'|int, ''|int, '0o17'|int(base=8), '12abc'|int, 'z'|int(base=36), '010'|int, '_1'|int, '1__2'|int
'42'|float, '1e3'|float, 'x'|float, 'x'|float(1.5), 3|float, none|float, 'inf'|float, '-Infinity'|float, ' 2.5 '|float, '1_0.5'|float, true|float, '.5'|float, '5.'|float, '1e400'|float, '-0'|float
'nan'|float
1|string, 1.0|string, none|string, true|string, [1, 'a']|string, 'x'|string
'<a href="x">&\'</a>'|e, '<'|escape|escape, '<'|forceescape, '<'|safe, ('<'|safe)|e, ('<'|e)|forceescape, 5|e, none|e
'<' + ('<'|safe), ('<'|safe) + '<', ('<'|safe) ~ '<', ('%s'|safe) % '<', ('<'|e) * 2
('<b>'|safe)|upper, ('<'|safe)|string is escaped, [('<'|safe), '<']|join(''), ('a,b'|safe).split(','), [('x'|safe)]
'<p>Hello <b>World</b> <!-- c --> &amp; &lt;x&gt;</p>'|striptags
'one two  three, four_five'|wordcount, u|wordcount, ''|wordcount
'a b/c?d=é&f'|urlencode, {'a b': 'c&d', 'e': 1}|urlencode, [('x', 'y z')]|urlencode, 5|urlencode, 'AZaz09_.-~'|urlencode
'line one\nline two\n\nline three'|indent, 'a\nb'|indent(2), 'a\nb'|indent(2, true), 'a\n\nb'|indent(2, true, true), 'a\nb'|indent('> '), ''|indent, 'a'|indent(first=true), 'a\n'|indent, 'a\nb\n'|indent(blank=true)
5|indent
'foo bar baz qux'|truncate(9), 'foo bar baz qux'|truncate(9, true), 'foo bar baz qux'|truncate(11), 'foo bar baz qux'|truncate(11, false, '...', 0), 'foobarbaz qux'|truncate(6, leeway=0), u|truncate(6, true, leeway=0), 'x'|truncate
'abc'|truncate(2)
'abc'|center(9), 'abc'|center(8), 'abcd'|center(9)
'The quick brown fox jumps over the lazy dog'|wordwrap(10), 'abcdefghijklmno pq'|wordwrap(5), 'abcdefghijklmno pq'|wordwrap(5, false), 'a b\nc d'|wordwrap(3), 'well-known fact'|wordwrap(7), 'a b c'|wordwrap(3, wrapstring='|'), '  leading spaces here'|wordwrap(8)
{'class': 'a b', 'id': none, 'x': undefined_name, 'y': '<'}|xmlattr, {}|xmlattr, {'a': 1}|xmlattr(false)
{'a b': 1}|xmlattr
0|filesizeformat, 1|filesizeformat, 999|filesizeformat, 1000|filesizeformat, 1500000|filesizeformat, 1024|filesizeformat(true), 123456789012|filesizeformat(binary=true), 1e27|filesizeformat
mixed|pprint, d|pprint, 'abc'|pprint, users|pprint
{'key': 'a long value that does not fit into the line because it is really long ' * 2, 'z': [1] * 40}|pprint
'a long text that has to be split at its spaces since it is longer than the width of the page, which is eighty'|pprint
[['a' * 30, 'b' * 30, 'c' * 30], ('d' * 40, 'e' * 50), ('f' * 90,)]|pprint
[1, 'a', none, true, 1.5, [1], {'a': [none]}]|tojson, {'b': 1, 'a': {'x': []}}|tojson, {}|tojson, []|tojson, (1, 2)|tojson, 'a"b\\c\n\t\r\x08\x0c\x01\x7f/é😀\u2028'|tojson
{'b': 1, 'a': [1, {'x': none}], 'e': [], 'f': {}}|tojson(indent=2)
{'b': 1, 'a': [1, 2]}|tojson(indent=2, sort_keys=true)
{'b': 1, 'a': [1, 2]}|tojson(separators=(',', ':'))
[1, [2]]|tojson(indent=0)
[1, [2]]|tojson(indent='--')
'é😀\x7f'|tojson(ensure_ascii=true), 'é'|tojson(true)
{1: 'a', 1.5: 'b', none: 'c', true: 'd'}|tojson
{(1, 2): 3}|tojson
{'a': 1, 2: 3}|tojson(sort_keys=true)
[1e16, 1.0, 1e-7, -0.0, 12345678901234567]|tojson
range(3)|tojson
d.items()|tojson
range|tojson
('<'|safe)|tojson, ('<'|e)|tojson
range(5)|list, range(2, 5)|list, range(5, 0, -2)|list, range(0)|list, range(3), range(1, 9, 2), range(3)[1], range(3)|length, range(5)[1:3]
range(0, 5, 0)
range('a')
range(100001)
range(100000)|length
dict(a=1, b=2), dict({'x': 1}, y=2), dict([('p', 1)]), dict()
namespace(a=1), namespace(a=1).a, namespace({'q': 1}).q, namespace().x is defined
namespace(items=1).items
{'a': 1, 'a': 2}, {1: 'x', 1.0: 'y', true: 'z'}, {'x': 1}['x'], {none: 1}[none], {(1, 2): 3}[(1, 2)]
{[1]: 2}
{'a': 1}[[1]]
[1, 'a', "it's", 'q"q', 'b\'"', '\n\t\\', 'é', '\x00\x1f\x7f\x9f\xad', '\u200b\ue000\U0001F600']
(1, 'a', none, true, 1.5, [], {}, ()), {'k': (1,)}
'\x41\u00e9\U0001F600\101\q\'\"\
x'
'\n' ~ "\t" ~ '\\' ~ "\a\b\f\v"|tojson
s.upper, range, d.get
(s.upper)()
s.upper(1)
s.nosuch()
s.format
l.append(4)
d.update({'z': 1})
l.index(1), l.count(3), (1, 2, 1).count(1), (1, 2).index(2)
l.index(99)
'a'|attr('upper'), d|attr('a'), d|attr('get') is defined
raise_exception('boom')
raise_exception()
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y'), strftime_now('%A, %B %d, %Y %H:%M:%S %j %p %I %y %%'), strftime_now('')
9223372036854775807, -9223372036854775807 - 1
x.0, l.0, l.1, nested.1.1.0
l.0.1
'a' is string is string
n if n
[n for n in l]
lambda x: x
1 +
(1
[1, 2
{'a': 1
'abc
a b
1 2
n.
n|
n is
d['a'
f(x=1, 2)
f(*l, *l)
f(**d, *l)
f(a=1, a=2)
1 if
not
{'a'}
{1, 2}
=
n = 1
"{% raw %}"
'}}' ~ '%}' ~ '#}'
{'a': {'b': {'c': 1}}}.a.b.c
{'a': {'b': 1}}['a']['b']
[1, 2,], {'a': 1,}, (1, 2,), range(1,)
dict(**{'a': 1}), dict(*[[('b', 2)]])
[[1, 2, 3], 'abc'][0][1], 'abc'.upper()[1:].lower()
(1, 2)[0], (1, 2, 3)[1:], ()|length
n|string|int + 1, n + 1|string|int, -n|abs, (n, 1)|first
1|default(2)|default(3), 'x'|upper|lower|title
not not n, - -n, +n, --n
n == 7 and f == 2.5 or nil, n != 7 or (f > 2 and not no)
n is odd and f is float, n is odd == true
"a" in s, "a" in s|lower, "Hello" in s and not "x" in s
messages[0].role, messages[0]['content'], messages[-1].tool_calls[0].function.arguments|tojson, messages[1:]|length, messages|map(attribute='role')|join(',')
messages|selectattr('role', 'equalto', 'user')|list|length, messages|selectattr('tool_calls', 'defined')|list|length, (messages|last).role, messages[0:1][0].role
messages[5].role
messages[0].content.split(' ')[0], messages[1].content|e, messages[0].get('x', {}).get('y', 'z')
messages[2].tool_calls[0].function.arguments.x
loop
loop.index
caller()
self
self.x
super()
joiner, cycler
cycler('a', 'b').next(), cycler(1).current
cycler()
lipsum is defined
''|first, ''|last, ''|list, [none]|first
'abc'|list|sort(reverse=true)|join, 'cab'|sort|join
['b', none]|sort
[2, 1.5, true]|sort
[(2, 'a'), (1, 'b')]|sort
[{'a': 2}, {'a': 1}]|sort(attribute='a')
'ab'|items
d|items|list, undefined_name|items|list
5|list
5|join
n()
'x'()
l()
"%s"|format
s|upper|replace('L', 'x')|list|length
1 ~ 2 + 3, 1 + 2 ~ 3, '1' ~ 2 * 3, 2 * 3 ~ 1
1 < 2 ~ '', 'a' ~ 'b' == 'ab'
2 + 3 is odd, -3 is odd, 3 ** 2 is odd
1 | string, 1|string ~ 2
n // 2 * 2 + n % 2 == n
'a' < 'b' < 'c' and 'c' > 'b' > 'a' and not 'a' > 'b'
1 in [1] in [[1]], 1 in [1] == true
[] is sameas [], d is sameas d, s is sameas s
1000 is sameas 1000
0.1 + 0.2 == 0.3, 1e16 + 1 == 1e16, big == big * 1.0, 9007199254740993 == 9007199254740992.0, 9007199254740993 > 9007199254740992.0
1.0 * 3, 3 - 3.0, 10 / 5, 2 * 0.5, 7 // 2.0, 7 % 2.5, 2 ** 10, 2.0 ** 3, (-8) ** (1 / 3)
1e400, -1e400, 1e-400
'nan'|float == 'nan'|float
"\u4e16\u754c"|length, '😀'|length, '😀'[0], 'a😀b'[1:2], '😀😀'.replace('😀', 'x')
'a,b;c'.split(',')[1].split(';')|last
' x '.strip() ~ '|', '\u3000x\u2003'.strip() ~ '|', '\x1fx\x85'.strip() ~ '|'
'abc'.join(['1', '2', '3']), 'a'.join([])
"A" == 'A', 'é' == 'e\u0301', 'ﬁ'|upper == 'FI'
""".strip("\n")

TEMPLATES = [
    "", "plain", "plain\n", "plain\n\n", "\n", "a\r\nb\rc\n", "{{ 1 }}\n", "{{ 1 }}\n\n", "\n{{ 1 }}",
    "{# c #}x", "{# c #}\nx", "a {#- c -#} b", "a {# c -#} \n b", "  {# c #}\nx", "a  {#- c #}\nx", "{#-#}x", "{# {{ x }} {% if %} #}y", "{#", "{# x", "{##}", "a{# - #}b", "{#+ c +#}\nx", "{# c +#}\nx",
    "{% if true %}\nx\n{% endif %}\ny", "  {% if true %}\n  x\n  {% endif %}\n  y", "a {% if true %} b {% endif %} c",
    "a\n  {%- if true -%}  \n b \n {%- endif -%} \n c", "  {%+ if true %}x{% endif %}", "{% if true +%}\nx{% endif %}", "\t{% if true %}x{%+ endif %}\ny", "a  {{- 1 -}}  b", "a  {{ 1 }}\n  b", "a\n  {{ 1 }}", "{{-1}}", "{{+1}}", "{{- 1}}", "{{ 1 -}}\n\n x",
    "{% raw %}{{ x }}{% y %}{% endraw %}z", "{% raw %}\nx\n{% endraw %}\ny", "{%- raw -%}  x  {%- endraw -%}  y", "a {% raw %} b {% endraw %} c", "  {% raw %}\n  x\n  {% endraw %}\ny", "{% raw %}", "{% raw %}{% endraw", "{%raw%}{#{%endraw%}", "{% raw +%}x{% endraw %}", "{% raw %}x{% endraw +%}\ny",
    "{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 2 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}", "{% if 0 %}a{% endif %}b", "{% if x %}a{% endif %}", "{% if l %}y{% endif %}{% if empty %}n{% endif %}", "{% if 1 %}", "{% if 1 %}{% else %}", "{% endif %}", "{% if %}{% endif %}", "{% if 1 %}{% endfor %}", "{% if n > 5 and s %}x{% endif %}", "{% if 1: %}x{% endif %}", "{% if 1, 0 %}t{% endif %}", "{% if not q is defined %}x{% endif %}", "{% if 1 %}{% if 0 %}a{% else %}b{% endif %}{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}b{% endfor %}", "{% for x in l %}a{% else %}b{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}x{% endfor %}", "{% for a, b in [(1,)] %}x{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [1] %}x{% endfor %}", "{% for a, in [[1]] %}{{ a }}{% endfor %}",
    "{% for x in undefined_name %}a{% else %}e{% endfor %}", "{% for x in none %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}", "{% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{% endfor %}", "{% for x in range(5) if x is odd %}{{ x }}{{ loop.index0 }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }}/{{ loop.depth0 }} {% endfor %}", "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}", "{% for x in l %}{{ loop.nosuch }}{% endfor %}", "{% for x in l %}{{ loop.nextitem.x }}{% endfor %}", "{% for x in l %}{% for y in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in l|map('string') %}{{ loop.length }}{{ loop.revindex }}{{ x }} {% endfor %}", "{% for x in l %}{% if loop.first %}F{% endif %}{{ x }}{% if loop.last %}L{% endif %}{% endfor %}", "{% for x in l %}{{ loop.length }}{{ loop|length }}{% endfor %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}", "{% for n in tree recursive %}{{ n.v }}@{{ loop.depth }}({{ loop(n.kids) }}){% endfor %}", "{% for n in tree recursive %}{{ n.v }}{% if n.kids %}[{{ loop(n.kids) }}]{% endif %}{% if not loop.last %},{% endif %}{% endfor %}", "{% for n in tree if n.v > 1 recursive %}{{ n.v }}({{ loop(n.kids) }}){% else %}-{% endfor %}", "{% for x in l %}{{ loop([1]) }}{% endfor %}", "{% for n in tree recursive %}{{ loop.index }}{{ loop.depth0 }}{{ loop(n.kids) }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}e{% endfor %}", "{% break %}", "{% continue %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %};{% endfor %}", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% for x in l %}a{% else %}{% break %}{% endfor %}",
    "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}", "{% set (x, y) = (1, 2) %}{{ x }}{{ y }}", "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}", "{% if 1 %}{% set x = 5 %}{% endif %}{{ x }}", "{% if 0 %}{% set x = 5 %}{% endif %}{{ x }}", "{% for i in l %}{% if i == 1 %}{% set x = i %}{% endif %}{{ x }}|{% endfor %}", "{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}", "{% set x %}\n  hi\n{% endset %}\n{{ x }}|", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a %}{{ ns.b }}{{ ns }}", "{% set d.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set n = n + 1 %}{{ n }}", "{% set true = 1 %}", "{% set 1 = 2 %}", "{% set x %}", "{% set %}", "{% set x = %}", "{% set x = 1", "{% set x = 1 if n else 2 %}{{ x }}", "{% set x = 'a' 'b' %}{{ x }}", "{% set x = [1,\n 2] %}{{ x }}", "{% set a = b = 1 %}", "{% set range = 5 %}{{ range }}", "{% set x = y.z %}", "{% set x = y %}{{ x }}|{{ x is defined }}",
    "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }}", "{% macro m(a, b=a) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a) %}{{ a }}|{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, b=4) }}{{ m() }}", "{% macro m() %}{{ varargs|join(',') }}{% endmacro %}{{ m(*l) }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(**{'a': 1, 'b': 2}) }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}+{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{% if caller %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}", "{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro m() %}  x  {% endmacro %}[{{ m()|trim }}]", "{% macro m() %}x{% endmacro %}{{ m }}{{ m.name }}{{ m is callable }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a %}{% endmacro %}", "{% macro 1() %}{% endmacro %}", "{% macro m() %}", "{% macro m(x) %}{% for i in x %}{{ i }}{% endfor %}{% endmacro %}{{ m([1, 2]) }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% for i in l %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(a, caller) %}{{ a }}{{ caller() }}{% endmacro %}{% call m(1) %}z{% endcall %}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% call 5 %}{% endcall %}", "{% call(x) [1, 2]|first %}{% endcall %}", "{% macro m(x='a' ~ 'b') %}{{ x }}{% endmacro %}{{ m() }}{{ m(none) }}", "{% macro m() %}{{ n }}{{ s }}{% endmacro %}{{ m() }}",
    "{% call(user) dump(users) %}{{ user }}{% endcall %}", "{% macro dump(us) %}{% for u in us %}<{{ caller(u) }}>{% endfor %}{% endmacro %}{% call(user) dump(users) %}{{ user.name }}{% endcall %}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}abc{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% filter nosuch %}a{% endfilter %}", "{% filter upper %}{% set q = 1 %}{% endfilter %}{{ q }}", "{% filter trim %}\n x \n{% endfilter %}|",
    "{% with a=1, b=2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a=1 %}{% with b=a %}{{ b }}{% endwith %}{% endwith %}", "{% set a = 5 %}{% with a=1, b=a %}{{ b }}{% endwith %}", "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}", "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% with a %}{% endwith %}",
    "{% generation %}abc{{ n }}{% endgeneration %}d", "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}", "a\n{% generation %}\nb\n{% endgeneration %}\nc",
    "{% do 1 + 1 %}x", "{% do l %}", "{% print 1, 2 %}", "{% print n %}", "{% block a %}x{{ n }}{% endblock %}y", "{% block a %}x{% endblock a %}", "{% autoescape false %}{{ '<' }}{% endautoescape %}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'x' import y %}", "{% nosuch %}", "{% %}", "{%", "{{", "{{ }}", "{{ 1", "{{ 1 }", "%}", "}}", "{{ '}}' }}", "{{ {'a': 1}}}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}}}", "{{ [1)] }}", "{{ ) }}", "{{ 1 @ 2 }}", "{{ $ }}", "{{ 'a\nb' }}", "{{ \"it's\" }}", "{", "{ {", "{ % if %}", "a { b } c", "{{ '{{ x }}' }}", "a{{ 1 }}{{ 2 }}b", "{{ 1 }}{% if 1 %}\n{{ 2 }}\n{% endif %}\n{{ 3 }}",
    "{{ true if 1 else }}", "{{ foo bar }}", "{{ 1; 2 }}", "{{ é }}{% set é = 1 %}{{ é }}", "{% set x1_y = 1 %}{{ x1_y }}", "{{ 1.x }}", "{{ 1..x }}", "{{ .5 }}", "{{ 5. }}", "{{ 0x }}", "{{ 01 }}", "{{ 00 }}", "{{ 1__0 }}", "{{ 1e }}", "{{ 1.5.6 }}", "{{ 1if 2 else 3 }}",
    "{{ joiner }}", "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner() %}{{ j() }}a{{ j() }}b", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% do c.reset() %}{{ c.next() }}", "{{ cycler }}",
    "{%- for m in messages %}\n{{- '<|' + m.role + '|>' }}\n{{- m.content | trim }}\n{%- endfor %}\n{%- if add %}x{%- endif %}", "{% for m in messages %}\n{% if m['role'] == 'user' %}\nU: {{ m['content'] }}\n{% elif m['role'] == 'assistant' %}\nA: {{ m['tool_calls'][0]['function'] | tojson }}\n{% endif %}\n{% endfor %}", "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}", "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ sys }}{{ rest|length }}", "{{ raise_exception('x') if n == 7 else 'ok' }}", "{% if n != 7 %}{{ raise_exception('x') }}{% endif %}ok", "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}bad{% else %}good{% endif %}{% endfor %}", "{% set ns = namespace(found=false) %}{% for m in messages[::-1] %}{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{{ loop.index0 }}{% endif %}{% endfor %}",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "<ul>\n  {% for x in l %}\n  <li>{{ x }}</li>\n  {% endfor %}\n</ul>\n", "<ul>\n  {%- for x in l %}\n  <li>{{ x }}</li>\n  {%- endfor %}\n</ul>\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "a\n\n\n{%- if 1 %}\n\nb{% endif -%}\n\n\nc", "a\t \n {%- set x = 1 -%} \n b", "x {% set a = 1 %} y", "x\n {% set a = 1 %} y", "x\n {% set a = 1 %}\n y", "\u00a0{%- if 1 %}\u2003{% endif %}", "{{ 1 }}  {% if 1 %}\nx{% endif %}", "{{ 1 -}}   {% if 1 %}\nx{% endif %}", "{{ 1 -}}\n   {% if 1 %}\nx{% endif %}", "{% if 1 %}   {% if 1 %}x{% endif %}   {% endif %}", "{% if 1 %}\n   {% if 1 %}x{% endif %}\n   {% endif %}", "   {# c #}   {% if 1 %}x{% endif %}",
    "{% for x in [1,2,3] %}{% set l2 = [x] + [x] %}{{ l2 }}{% endfor %}", "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }} {% endfor %}{% endfor %}", "{% set a = [1, 2, 3] %}{% set b = a %}{{ a is sameas b }}", "{{ users[0].name ~ users[-1]['name'] }}{{ users[0].address.city }}{{ users[3].address.city }}", "{{ users[3].address.city.x }}", "{% for u in users if u.active %}{{ u.name }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for city, us in users|groupby('address.city', default='?') %}{{ city }}:{{ us|map(attribute='name')|join('+') }} {% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}={{ g.list|length }};{{ g|length }}{{ g[0] }} {% endfor %}", "{% for row in range(7)|batch(3, '-') %}{{ row|join(',') }};{% endfor %}", "{% for row in l|map('string') %}{{ row }}{% endfor %}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select('odd') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}", "{% set x = l|reverse %}{{ x|list }}{{ x|list }}", "{% set it = d.items() %}{{ it|list }}{{ it|list }}{{ it|length }}",
    "{% set ns = namespace(last='') %}{% for x in ['a', 'a', 'b'] if x != ns.last %}{{ x }}{% set ns.last = x %}{% endfor %}",
    "{% if q|nosuch %}{% endif %}", "{% if false %}{{ q|nosuch }}{% endif %}ok", "{{ (q|nosuch) if false else 1 }}", "{% if false %}{{ q is nosuch }}{% endif %}ok",
]

MUTABLE_TEMPLATES = [
    "{% set a = [] %}{% do a.append(1) %}{% do a.append('x') %}{{ a }}", "{% set a = [1, 2] %}{{ a.append(3) }}{{ a }}", "{% set a = [1, 2, 3] %}{{ a.pop() }}{{ a.pop(0) }}{{ a }}", "{% set a = [] %}{{ a.pop() }}", "{% set a = [1] %}{{ a.pop(5) }}", "{% set a = [1] %}{% do a.extend([2, 3]) %}{% do a.insert(0, 0) %}{% do a.insert(-1, 9) %}{% do a.insert(99, 7) %}{{ a }}", "{% set a = [3, 1, 2] %}{% do a.sort() %}{{ a }}{% do a.reverse() %}{{ a }}{% do a.sort(reverse=true) %}{{ a }}", "{% set a = [1, 2, 1] %}{% do a.remove(1) %}{{ a }}{{ a.index(1) }}{{ a.count(1) }}", "{% set a = [1] %}{% do a.remove(5) %}", "{% set a = [1] %}{% set b = a.copy() %}{% do b.append(2) %}{{ a }}{{ b }}{% do a.clear() %}{{ a }}",
    "{% set a = {} %}{% do a.update({'x': 1}) %}{% do a.update(y=2) %}{% do a.update([('z', 3)]) %}{{ a }}", "{% set a = {'x': 1, 'y': 2} %}{{ a.pop('x') }}{{ a }}{{ a.pop('q', 'dflt') }}", "{% set a = {} %}{{ a.pop('x') }}", "{% set a = {'x': 1} %}{{ a.setdefault('x', 5) }}{{ a.setdefault('y', 6) }}{{ a.setdefault('z') }}{{ a }}", "{% set a = {'x': 1} %}{% set b = a.copy() %}{% do b.update(x=2) %}{{ a }}{{ b }}{% do a.clear() %}{{ a }}", "{% set a = [] %}{% do a.append(a) %}{{ a }}", "{% set a = {} %}{% do a.update(x=a) %}{{ a }}", "{% set a = [] %}{% do a.append(a) %}{{ a|tojson }}", "{% set a = [] %}{% set b = (a, 1) %}{% do a.append(b) %}{{ b }}{{ a }}", "{% set a = [] %}{% for x in l %}{% if a.append(x) %}{% endif %}{% endfor %}{{ a }}", "{% set a = [1, 2] %}{% for x in a %}{{ x }}{% if a|length < 5 %}{% do a.append(x * 10) %}{% endif %}{% endfor %}", "{% set a = {} %}{% for i in range(30) %}{% do a.update({'k' ~ i: i}) %}{% endfor %}{{ a.pop('k3') }}{{ a.pop('k29') }}{{ a.get('k28') }}{{ a|length }}{{ 'k3' in a }}{{ a.k17 }}{% do a.update(k3=1) %}{{ a|last }}", "{% set ns = namespace(x=[]) %}{% for i in l %}{% do ns.x.append(i) %}{% endfor %}{{ ns.x }}",
]
