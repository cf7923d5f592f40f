#!/usr/bin/env python3
"""Compares our template interpreter with Python's jinja2, configured as transformers configures it.

    check_templates.py DRIVER [--templates DIR ...] [--snippets FILE ...] [--conversations N] [--seed S]

DRIVER is the program render_template of the tests. Every template is rendered with N random conversations, every line of
a snippet file (⏎ stands for a newline) with one fixed set of variables; both sides must write the same text or both
must fail. Exit status: 0 when nothing differs, 1 otherwise, 77 when jinja2 is not installed or a folder has no templates.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("python3-jinja2 is not installed: skipped")
    sys.exit(77)

NOW = 1751881384  # 2025-07-07 09:43:04 UTC


class Generation(jinja2.ext.Extension):
    """The `generation` tag of transformers: its body, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Older jinja2 forgets that pop and clear change a list; newer ones (3.1.6) refuse them."""

    def is_safe_attribute(self, obj, attr, value):
        if isinstance(obj, list) and attr in ("pop", "clear"):
            return False
        return super().is_safe_attribute(obj, attr, value)


def make_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    moment = datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc)
    environment.globals["strftime_now"] = lambda form: moment.strftime(form)
    return environment


class Ours:
    def __init__(self, driver):
        env = dict(os.environ, TZ="UTC", LC_ALL="C")
        self.process = subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def render(self, template, context):
        request = json.dumps({"template": template, "context": context, "now": NOW})
        self.process.stdin.write(request.encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the driver died (status {self.process.wait()}) on: {request[:2000]}")
        answer = json.loads(answer)
        return answer.get("output"), answer.get("error")


class Theirs:
    def __init__(self):
        self.environment = make_environment()
        self.cache = {}

    def render(self, template, context):
        try:
            if template not in self.cache:
                self.cache[template] = self.environment.from_string(template)
            text = self.cache[template].render(**json.loads(json.dumps(context)))
            text.encode()
            return text, None
        except Exception as error:  # whatever Python raises counts as a failure of the template
            return None, f"{type(error).__name__}: {error}"


TEXTS = [
    "", " ", "Hello", "What's the weather in Paris?", "  leading and trailing  ", "line one\nline two\n\nline four",
    'quotes " and \' and \\ backslash', "Ünïcödé — ñ, 日本語, emoji 🎉👩‍💻", "<b>html & entities</b>", "\ttab\t", "\n\nnewlines\n\n",
    "<think>\nlet me see\n</think>\n\nThe answer is 42.", "</think>dangling", "a<tool_response>b</tool_response>",
    "{{ not a template }} {% raw %}", "Über größte Straße", "1234", "true", "x" * 300, "\u00a0nbsp\u2003em space\u200b", "/no_think hi",
    "<|im_start|>user\ninjection<|im_end|>", "tabs\tand\rreturns\r\n", "\x7f control \x01", "[INST] nested [/INST]",
]
NAMES = ["get_weather", "search", "calculator", "python", "send_mail", "get_current_temperature"]
ROLES = ["user", "assistant", "tool", "system", "developer", "ipython", "observation", "function"]


class Conversations:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tidy = False  # whether the current conversation is a well-formed one

    def text(self):
        return self.random.choice(TEXTS)

    def json_value(self, depth=0):
        r = self.random
        kind = r.randrange(10 if depth < 3 else 7)
        if kind == 0:
            return None
        if kind == 1:
            return r.random() < 0.5
        if kind == 2:
            return r.randrange(-1000, 100000)
        if kind == 3:
            return r.choice([0.5, 1.0, -2.25, 1e20, 1e-7, 3.141592653589793, 100.0, 123456789.125])
        if kind < 7:
            return self.text()
        if kind < 9:
            return {k: self.json_value(depth + 1) for k in r.sample(["city", "a b", "ключ", "unit", "items", "x", "B"], r.randrange(4))}
        return [self.json_value(depth + 1) for _ in range(r.randrange(4))]

    def arguments(self):
        return {k: self.json_value(1) for k in self.random.sample(["location", "unit", "n", "options", "Text", "items"], self.random.randrange(5))}

    def schema(self, depth=0):
        r = self.random
        kinds = ["string", "string", "number", "integer", "boolean", "array", "object", ["string", "null"], "null"]
        kind = r.choice(kinds[:-2] if self.tidy else kinds)
        out = {"type": kind}
        if self.tidy or r.random() < 0.7:
            out["description"] = self.text()
        if kind == "string" and r.random() < 0.4:
            out["enum"] = r.sample(["celsius", "fahrenheit", "kelvin", "it's"], r.randrange(1, 4))
        if r.random() < 0.15:
            out["default"] = self.json_value(2)
        if r.random() < 0.1:
            out["nullable"] = r.random() < 0.5
        if kind == "array" and r.random() < 0.9:
            out["items"] = self.schema(depth + 1) if depth < 2 else {"type": "string"}
        if kind == "object":
            out["properties"] = {k: self.schema(depth + 1) for k in r.sample(["a", "b", "name"], r.randrange(3))} if depth < 2 else {}
            if r.random() < 0.3:
                out["required"] = list(out["properties"])[:1]
            if r.random() < 0.2:
                out["additionalProperties"] = r.choice([False, True, {"type": "string"}])
        if self.tidy:
            return out
        if r.random() < 0.05:
            return {"anyOf": [out, {"type": "null"}], "description": "either"}
        if r.random() < 0.05:
            return {"oneOf": [out, {"type": "integer", "description": "a number"}]}
        return out

    def tools(self):
        r = self.random
        out = []
        for name in r.sample(NAMES, r.randrange(1, 4)):
            properties = {k: self.schema() for k in r.sample(["location", "unit", "n", "options", "Text"], r.randrange(5))}
            parameters = {"type": "object", "properties": properties}
            if r.random() < 0.7:
                parameters["required"] = r.sample(list(properties), r.randrange(len(properties) + 1))
            function = {"name": name, "description": self.text() or "a tool", "parameters": parameters}
            if r.random() < 0.1:
                function["return"] = {"type": "string", "description": "the result"}
            if r.random() < 0.1:
                function["strict"] = True
            if not self.tidy and r.random() < 0.05:
                del function["parameters"]
            bare = not self.tidy and r.random() < 0.07
            out.append(function if bare else {"type": "function", "function": function})
        return out

    def content(self):
        r = self.random
        kind = 0 if self.tidy else r.randrange(20)
        if kind < 14:
            return self.text()
        if kind < 18:
            parts = []
            for _ in range(r.randrange(4)):
                which = r.randrange(8)
                if which < 6:
                    parts.append({"type": "text", "text": self.text()})
                elif which == 6:
                    parts.append({"type": "image"})
                else:
                    parts.append({"type": "image_url", "image_url": {"url": "http://example.org/x.png"}})
            return parts
        if kind == 18:
            return None
        return {"type": "text", "text": self.text()} if r.random() < 0.3 else [self.text()]

    def tool_calls(self):
        r = self.random
        out = []
        for i in range(r.randrange(1, 4 if not self.tidy or r.random() < 0.5 else 2)):
            arguments = self.arguments()
            if not self.tidy and r.random() < 0.25:
                arguments = json.dumps(arguments, ensure_ascii=False)
            call = {"type": "function", "function": {"name": r.choice(NAMES), "arguments": arguments}}
            if self.tidy:
                call["id"] = "abcdefgh" + str(i)
            elif r.random() < 0.7:
                call["id"] = r.choice([f"call_{i}", f"functions.x:{i}", "abcdefgh" + str(i), str(i)])
            if not self.tidy and r.random() < 0.1:
                call = call["function"]
            out.append(call)
        return out

    def message(self, role):
        r = self.random
        message = {"role": role, "content": self.content()}
        if self.tidy:
            if role == "tool":
                message.update(name=r.choice(NAMES), tool_call_id="abcdefgh0")
            if role == "assistant" and r.random() < 0.3:
                message["reasoning_content"] = self.text()
            return message
        if role == "assistant":
            if r.random() < 0.4:
                message["tool_calls"] = self.tool_calls()
                if r.random() < 0.4:
                    message["content"] = r.choice([None, "", self.text()])
                if r.random() < 0.15:
                    del message["content"]
            if r.random() < 0.3:
                message[r.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking"])] = r.choice([self.text(), None])
        if role in ("tool", "function"):
            if r.random() < 0.6:
                message["tool_call_id"] = r.choice(["call_0", "call_1", "functions.x:0", "abcdefgh0", "abcdefgh1"])
            if r.random() < 0.6:
                message["name"] = r.choice(NAMES)
            if r.random() < 0.2:
                message["content"] = self.json_value()
        if r.random() < 0.03:
            message["name"] = "someone"
        return message

    def roles(self):
        r = self.random
        roles = []
        if not self.tidy and r.random() < 0.15:  # any order at all
            return [r.choice(ROLES) for _ in range(r.randrange(6))]
        if r.random() < 0.5:
            roles.append("system" if self.tidy or r.random() < 0.9 else "developer")
        for _ in range(r.randrange(1, 4)):
            roles.append("user")
            while r.random() < 0.35:
                roles.append("assistant")
                roles.extend(["tool"] * r.randrange(1, 3))
            if self.tidy or r.random() < 0.85:
                roles.append("assistant")
        if r.random() < 0.4 and len(roles) > 1 and roles[-1] == "assistant":
            roles.pop()
        return roles

    def conversation(self):
        r = self.random
        self.tidy = r.random() < 0.6
        messages = []
        for role in self.roles():
            message = self.message(role)
            # Tool results mostly follow calls.
            if role == "tool" and messages and messages[-1]["role"] == "assistant" and (self.tidy or r.random() < 0.8):
                messages[-1].setdefault("tool_calls", self.tool_calls())
            if messages and r.random() < 0.6 and not isinstance(message.get("content"), str) and role != "tool":
                message["content"] = self.text()
            messages.append(message)
        context = {
            "messages": messages,
            "tools": self.tools() if r.random() < 0.45 else None,
            "documents": None,
            "add_generation_prompt": r.random() < 0.6,
            "bos_token": r.choice(["<s>", "<|begin_of_text|>", ""]),
            "eos_token": r.choice(["</s>", "<|im_end|>"]),
        }
        options = {
            "enable_thinking": [True, False],
            "thinking": [True, False],
            "reasoning_effort": ["low", "medium", "high", "none"],
            "date_string": ["26 Jul 2024", "2025-01-01"],
            "builtin_tools": [["browser", "python"], ["brave_search"], []],
            "tools_in_user_message": [True, False],
            "custom_tools": [self.tools()],
            "preserve_thinking": [True, False],
            "clear_thinking": [True, False],
            "add_vision_id": [True, False],
            "xml_tools": [self.tools()],
            "python_tools": [[]],
            "thinking_effort": ["low", "high", "max", "odd"],
            "tool_choice": ["required", "none", "auto"],
            "model_identity": ["You are a test."],
            "documents": [[{"title": "T", "text": "first"}, {"title": "ü", "text": "second\nline"}]],
            "safety_mode": ["NONE", "STRICT"],
            "available_tools": [self.tools()],
            "citation_options": ["fast"],
            "response_format": ["json", {"type": "json_schema", "json_schema": {"schema": {"type": "object", "a": 1}}}],
            "keep_past_thinking": [True, False],
            "image_prompts": [None],
        }
        for key in r.sample(list(options), r.choice([0, 0, 1, 2, 3])):
            context[key] = r.choice(options[key])
        return context


SNIPPET_CONTEXT = {
    "x": 5, "y": 2.5, "z": -3, "zero": 0, "t": True, "f": False, "nothing": None, "empty": "", "name": "World",
    "text": "The quick Brown fox", "uni": "Grüße 🎉 ñ日本", "html": "<a href=\"x\">&'</a>", "lines": "one\n  two\n\nthree",
    "list": [3, 1, 2], "words": ["banana", "Apple", "cherry", "apple"], "nested": [[1, 2], [3, [4, 5]]], "none_list": [None, 1, "a"],
    "dict": {"b": 1, "a": 2, "C": [1, {"k": "v"}]}, "floats": [1.0, 0.1, 1e16, 1e-5, 123456.789, -0.0],
    "people": [
        {"name": "Ann", "age": 30, "city": {"name": "Rome"}, "tags": ["x"]},
        {"name": "bob", "age": 25, "city": {"name": "Oslo"}, "tags": []},
        {"name": "Cid", "age": 30, "city": {"name": "rome"}},
    ],
    "tree": [{"n": "a", "c": [{"n": "b", "c": [{"n": "c", "c": []}]}, {"n": "d", "c": []}]}],
    "items_key": {"items": [1, 2], "keys": "k", "get": 3}, "big": 9007199254740993, "loop_name": "loop",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}],
}  # fmt: skip


class Expressions:
    """Random expressions over the variables of SNIPPET_CONTEXT; many fail, and must then fail on both sides."""

    # Generators print with their address in Python, so each becomes a list at once.
    FILTERS = """upper lower trim length list first last join join(',') map('string')|list map('upper')|list map(attribute='name')|list
        select|list reject|list selectattr('age')|list selectattr('age','gt',26)|list sort sort(reverse=true) unique|list reverse|list
        string int float abs sum min max tojson tojson(indent=2) default('d') default('d',true) title capitalize
        replace('a','b') indent(2) items|list dictsort e safe count d('x')
        select('string')|list reject('none')|list sort(attribute='age')
        map('length')|list map('default','q')|list select('mapping')|list trim('a')""".split()
    TESTS = """defined undefined none string number integer float boolean mapping iterable sequence odd even true false
        callable divisibleby(2) eq(5) in([1,2,'a']) ne(5) lt(3) ge(2) sameas(none)""".split()
    METHODS = """.strip() .split() .split('a') .split(',',1) .upper() .lower() .title() .items() .keys() .values() .get('b') .get('q',1)
        .startswith('T') .endswith(('x','d')) .replace('o','0') .find('o') .count('a') .index(1) .join(words)
        .name .b .age .0 [0] [-1] [1:] [::-1] [:2] [x] [name] ['b'] .splitlines() .rsplit('o',1) .capitalize()
        .removeprefix('The') .lstrip('T') .rstrip('x') .copy() .first""".split()
    ATOMS = """x y z zero t f nothing empty name text uni html lines list words nested none_list dict floats people tree items_key missing
        messages 1 0 -1 2.5 'a' 'b,c' '' "it's" [] {} (1,2) [1,'a',none] {'a':1} true none range(3) 10 3 'Zoë' '{}' big""".split()
    BINARY = "+ - * / // % ** ~ == != < <= > >= and or in".split() + ["not in", "~", "~", "+", "=="]

    def __init__(self, seed):
        self.random = random.Random(seed)

    def expression(self, depth=0):
        r = self.random
        kind = r.randrange(11 if depth < 3 else 3)
        if kind < 3:
            return r.choice(self.ATOMS)
        inner = self.expression(depth + 1)
        if kind < 6:
            return f"{inner}|{r.choice(self.FILTERS)}" if r.random() < 0.7 else f"({inner})|{r.choice(self.FILTERS)}"
        if kind == 6:
            method = r.choice(self.METHODS)
            # Python slices literals at compile time, with other rules for errors.
            return f"({inner}){method}" if ":" not in method else f"(words, text, {inner})[x % 3]{method}"
        if kind == 7:
            return f"{inner} is {r.choice(['', 'not '])}{r.choice(self.TESTS)}"
        if kind == 8:
            return f"{inner} {r.choice(self.BINARY)} {self.expression(depth + 1)}"
        if kind == 9:
            return r.choice(["not {}", "-{}", "[{}]", "({},)", "({})", "{{'k': {}}}"]).format(inner)
        return f"{inner} if {self.expression(depth + 1)}" + (f" else {self.expression(depth + 1)}" if r.random() < 0.8 else "")

    def template(self):
        # Functions print with their address too.
        return "{% set v = " + self.expression() + " %}{% if v is callable %}C{% else %}{{ v }}{% endif %}"


def compare(ours, theirs, label, template, context, report):
    mine, my_error = ours.render(template, context)
    other, other_error = theirs.render(template, context)
    report["runs"] += 1
    report["failures"] += other is None
    if mine == other:
        return
    # The interpreter leaves out string formatting with %; random expressions still try it.
    if report.get("may_lack") and my_error and report["may_lack"] in my_error:
        return
    report["differences"] += 1
    if report["differences"] > report["show"]:
        return
    print(f"--- {label}")
    if (mine is None) != (other is None):
        print(f"    ours:   {my_error or repr(mine[:600])}\n    python: {other_error or repr(other[:600])}")
    else:
        at = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
        print(f"    at {at}\n    ours:   {mine[max(0, at - 60):at + 100]!r}\n    python: {other[max(0, at - 60):at + 100]!r}")
    if report["dump"]:
        print("    context:", json.dumps(context, ensure_ascii=False)[:3000])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver")
    parser.add_argument("--templates", action="append", default=[], help="folder of *.jinja files")
    parser.add_argument("--snippets", action="append", default=[], help="file with one small template per line")
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--expressions", type=int, default=0, help="number of random expressions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=20, help="differences to print")
    parser.add_argument("--dump", action="store_true", help="print the variables of a difference")
    options = parser.parse_args()
    ours, theirs = Ours(options.driver), Theirs()
    total = 0
    for file in options.snippets:
        report = {"runs": 0, "failures": 0, "differences": 0, "show": options.show, "dump": False}
        for line in pathlib.Path(file).read_text(encoding="utf-8").split("\n"):
            if line and not line.startswith("##"):
                compare(ours, theirs, line, line.replace("⏎", "\n"), SNIPPET_CONTEXT, report)
        print(f"{file}: {report['runs']} snippets, {report['failures']} fail in both, {report['differences']} differ")
        total += report["differences"]
    if options.expressions:
        report = {"runs": 0, "failures": 0, "differences": 0, "show": options.show, "dump": False,
                  "may_lack": "formatting a string with % is not supported"}
        expressions = Expressions(options.seed)
        for _ in range(options.expressions):
            template = expressions.template()
            compare(ours, theirs, template, template, SNIPPET_CONTEXT, report)
        print(f"random expressions: {report['runs']}, {report['failures']} fail in both, {report['differences']} differ")
        total += report["differences"]
    for folder in options.templates:
        paths = sorted(pathlib.Path(folder).glob("*.jinja"))
        if not paths:
            print(f"{folder} has no templates: skipped")
            return 1 if total else 77
        for path in paths:
            template = path.read_text(encoding="utf-8")
            report = {"runs": 0, "failures": 0, "differences": 0, "show": options.show, "dump": options.dump}
            conversations = Conversations(options.seed)
            for i in range(options.conversations):
                compare(ours, theirs, f"{path.name} conversation {i}", template, conversations.conversation(), report)
            print(f"{path.name}: {report['runs']} runs, {report['failures']} fail in both, {report['differences']} differ")
            total += report["differences"]
    print(f"differences: {total}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
