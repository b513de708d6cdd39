"""Which line keeps: found in the bytecode, with and without source."""

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vramscope.leaks.holders import bytecode, drains, line_search
from vramscope.process import frames, name_roots


def code_of(body: str):
    scope: dict = {}
    exec(compile(textwrap.dedent(body), "<ipython-input-3-1>", "exec"), scope)
    return scope["train"].__code__


@pytest.mark.parametrize(
    ("body", "name", "container", "line"),
    [
        (
            "def train(xs):\n history = []\n for x in xs:\n  y = x\n  history.append(y)\n return history\n",
            "history",
            True,
            5,
        ),
        ("def train(xs):\n total = 0\n for x in xs:\n  total += x\n", "total", False, 4),
        ("def train(xs):\n ema = 0.\n for x in xs:\n  loss = x\n  ema = 0.9 * ema + 0.1 * loss\n", "ema", False, 5),
        ("def train(xs):\n cache = {}\n for i, x in enumerate(xs):\n  cache[i] = x\n", "cache", True, 4),
        ("def train(xs, m):\n h = None\n for x in xs:\n  out, h = m(x, h)\n", "h", False, 4),
        ("def train(xs, log):\n for x in xs:\n  log['loss'].append(x)\n", "log", True, 3),
        ("def train(xs, keep):\n seen = []\n for x in xs:\n  keep(\n   seen, x)\n", "seen", True, 5),
        ("def train(xs):\n kept = []\n def take(x):\n  kept.append(x)\n for x in xs:\n  take(x)\n", "kept", True, 4),
        ("def train(xs):\n kept = []\n kept += [x for x in xs]\n", "kept", True, 3),
    ],
)
def test_the_line_that_keeps(body, name, container, line):
    found = line_search.name_kept_at(code_of(body), name, container=container)
    assert found is not None
    assert found[1] == line


def test_a_name_that_is_never_assigned_has_no_line():
    assert line_search.name_kept_at(code_of("def train(x):\n return x\n"), "y", container=False) is None


class Model:
    def __init__(self):
        self.history = []
        self.last = None

    def forward(self, x):
        self.history.append(x)
        self.last = x
        return x


def test_the_line_of_an_attribute_is_not_its_initialisation():
    source, first = inspect.getsourcelines(Model)
    at = {text.strip(): first + number for number, text in enumerate(source)}
    codes = list(line_search.codes_of_class(Model))
    assert line_search.attribute_kept_at(codes, "history", container=True)[1] == at["self.history.append(x)"]
    assert line_search.attribute_kept_at(codes, "last", container=False)[1] == at["self.last = x"]
    assert line_search.attribute_kept_at(codes, "nothing", container=False) is None


@pytest.mark.parametrize(
    ("body", "name", "carried"),
    [
        ("def train(xs, m):\n h = None\n for x in xs:\n  out, h = m(x, h)\n  loss = out.mean()\n", "h", True),
        ("def train(xs, m):\n h = None\n for x in xs:\n  out, h = m(x, h)\n  loss = out.mean()\n", "out", False),
        ("def train(xs, m):\n h = None\n for x in xs:\n  out, h = m(x, h)\n  loss = out.mean()\n", "loss", False),
        ("def train(xs):\n total = 0\n while xs:\n  total += xs.pop()\n", "total", True),
        ("def train(f, m):\n while True:\n  x = f(); y = m(x); x.sum()\n", "x", False),
        ("def train(f, m):\n x = f()\n while True:\n  x = m(x)\n", "x", True),
    ],
)
def test_what_a_loop_carries_from_round_to_round(body, name, carried):
    assert line_search.carried_by_loop(code_of(body), name) is carried


def test_generated_code_without_end_is_read_to_a_bound():
    body = "def train(x):\n" + "".join(f" x{i} = x\n" for i in range(30_000))
    assert len(bytecode.lines_of(code_of(body))) <= bytecode.MOST_INSTRUCTIONS


COMPREHENSIONS = f"""
import sys
sys.path.insert(0, {str(Path(name_roots.__file__).parents[2])!r})
from vramscope.leaks.holders import line_search as lines
from vramscope.process import name_roots as roots

def note():
    frame = roots.building()
    told.append(frame and lines.stored_on(frame.f_code, frame.f_lineno))

def train(kept):
    losses = [note() for step in range(2)]
    table = {{step: note() for step in range(1)}}
    for step in range(1):
        note()
        kept = [*kept, note()]
        inner = [one for one in kept]
    whole = list(note() for _ in range(1))

told = []
train([])
print(told)
"""


@pytest.mark.parametrize("version", ["", "3.12", "3.13"])
def test_a_comprehension_that_is_being_built_has_a_name(version, tmp_path):
    """From Python 3.12 on it is a loop of its function. PyTorch is not needed to see that; other versions lie beside this one."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}*/bin/python")) if version else [Path(sys.executable)]
    if not beside:
        pytest.skip(f"no Python {version} here")
    script = tmp_path / "train.py"
    script.write_text(COMPREHENSIONS)
    done = subprocess.run([beside[-1], script], capture_output=True, text=True)
    assert done.stdout.strip() == "['losses', 'losses', 'table', None, None, 'whole']", done.stderr


def test_a_package_in_a_folder_of_ones_own_is_a_library_and_what_lies_beside_it_is_not(tmp_path, monkeypatch):
    """``pip install --target``: the user's line is named, not the package's."""
    (tmp_path / "frames-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert frames.is_library(str(tmp_path / "frames" / "frame.py"))
    assert not frames.is_library(str(tmp_path / "train.py"))
    assert frames.is_library("<eval_with_key>.3"), "what torch.fx has made is in no file of the user's"
    assert not frames.is_library(str(tmp_path / "mine" / "model.py"))


def module_of(text):
    return compile(textwrap.dedent(text), "train.py", "exec")


def test_a_variable_of_the_same_name_in_an_inner_function_is_another_one():
    code = module_of("""
        def advance(found):
            return [hidden * 2 for hidden in found]
        for step in range(9):
            hidden = model(step)
    """)
    found = line_search.name_kept_at(code, "hidden", container=False)
    assert found == (code, 5)


def test_a_line_is_told_with_the_function_that_it_is_in():
    code = module_of("""
        history = []
        def train(xs):
            def report(x):
                history.append([y * x for y in xs])
            for x in xs:
                report(x)
    """)
    found = line_search.name_kept_at(code, "history", container=True)
    assert found is not None
    assert (found[0].co_name, found[1]) == ("report", 5)


def test_of_dicts_in_a_dict_it_is_the_line_that_names_the_most_of_the_keys():
    code = code_of("""
def train(xs, metrics, run):
    for x in xs:
        metrics["d"]["loss"].append(x)
        metrics["g"]["loss"].append(x)
        metrics["g"]["norm"].append(x)
        run.metrics["d"]["loss"].append(x)
        run.metrics["g"]["loss"].append(x)
""")
    for keys, of_variable, of_attribute in ((("g", "loss"), 5, 8), (("d", "loss"), 4, 7), (("g", "norm"), 6, 8)):
        found = line_search.name_kept_at(code, "metrics", container=True, keys=frozenset(keys))
        assert found is not None and found[1] == of_variable
        found = line_search.attribute_kept_at([code], "metrics", container=True, keys=frozenset(keys))
        assert found is not None and found[1] == of_attribute


def test_where_a_line_hands_a_container_on_the_line_that_adds_to_it_is_told():
    code = module_of("""
        def gather(found, loss):
            found.append(loss)
        def either(these, those, loss):
            these.append(loss)
            those.append(loss)
        for step in range(9):
            gather(history, loss)
            either(history, losses, loss)
            history.append(len(history))
    """)
    functions = [constant for constant in code.co_consts if inspect.iscode(constant)]
    assert line_search.handed_on(code, 8, "history", functions) == (functions[0], 3)
    assert line_search.handed_on(code, 9, "history", functions) is None, "which of both is not known"
    assert line_search.handed_on(code, 10, "history", functions) is None, "it adds by itself"


def test_a_list_that_a_method_begins_anew_is_taken_from_and_an_objects_first_one_is_not():
    writer = module_of("""
        def __init__(self): self.rows = []
        def flush(self):
            write(self.rows)
            self.rows = []
        def share(self, rows): self.rows = rows
    """)
    first, fresh, given = [constant for constant in writer.co_consts if inspect.iscode(constant)]
    found = [drains.taken_from([one], "rows", is_list=True, attribute=True) for one in (first, fresh, given)]
    assert found == [None, drains.Drain(fresh, 5, whole=True), None]


@pytest.mark.parametrize(
    ("body", "line", "whole"),
    [
        ("for e in es:\n  for x in xs:\n   kept.append(x)\n  kept.clear()\n", 5, True),
        ("for e in es:\n  kept, other = [], []\n  for x in xs:\n   kept.append(x)\n", 3, True),
        ("for e in es:\n  kept = list()\n  for x in xs:\n   kept.append(x)\n", 3, True),
        ("for e in es:\n  del kept[:]\n  for x in xs:\n   kept.append(x)\n", 3, True),
        ("for x in xs:\n  kept.append(x)\n  if len(kept) > 9: kept.pop(0)\n", 4, False),
        ("for x in xs:\n  kept.append(x)\n  kept.pop(0)\n kept.clear()\n", 5, True),
        ("for x in xs:\n  kept.append(x)\n kept.clear()\n", 4, True),
        ("for e in es:\n  for x in xs:\n   kept.append(x)\n kept.clear()\n", None, False),
        ("kept.clear()\n for x in xs:\n  kept.append(x)\n", None, False),
        ("kept = []\n for x in xs:\n  kept.append(x)\n", None, False),
        ("for name in xs: log(name, kept)\n kept.clear()\n", 3, True),
        ("other = kept\n for x in xs:\n  kept.append(x)\n", None, False),
        ("for e in es:\n  for x in xs:\n   kept.append(x)\n  rows = kept\n  rows.clear()\n", 6, True),
        ("for e in es:\n  for x in xs:\n   kept.append(x)\n  first = kept[0]\n  first.clear()\n", None, False),
        ("for e in es:\n  for x in xs:\n   kept.append(x)\n  rows, kept = kept, []\n", 5, True),
        ("for e in es:\n  for x in xs:\n   kept.append(x)\n  kept, rows = kept, []\n", None, False),
        ("for e in es:\n  for x in xs:\n   kept.append(x)\n  kept = kept or []\n", None, False),
        ("for x in xs:\n  kept.append(x)\n  kept = [y for y in kept if y.waits]\n", 4, False),
        ("for x in xs:\n  kept.append(x)\n  kept = {k: y for k, y in kept.items() if y.waits}\n", 4, False),
        ("for x in xs:\n  kept.append(x)\n  kept = tuple(filter(waits, kept))\n", 4, False),
        ("for x in xs:\n  kept = heapq.nlargest(9, kept + [x])\n", 3, False),
        ("for x in xs:\n  both = kept + [x]\n  kept = random.sample(both, min(len(both), 9))\n", 4, False),
        ("for x in xs:\n  both = kept + [x]\n  both.sort()\n  kept = both[:9]\n", 5, False),
        ("for x in xs:\n  kept.append(x)\n  few = random.sample(kept, 9)\n", None, False),
        ("for x in xs:\n  kept.append(x)\n  kept = [f(y) for y in kept]\n", None, False),
        ("for x in xs:\n  kept = kept + [y for y in x if y.waits]\n", None, False),
        ("for x in xs:\n  kept += [y for y in kept if y.waits]\n", None, False),
    ],
)
def test_the_line_that_empties_in_a_loop_or_after_the_loop_of_an_epoch(body, line, whole):
    code = code_of(f"def train(xs, es, kept):\n {body}")
    taking = drains.taken_from([code], "kept", is_list=True)
    assert (taking and taking.number, bool(taking and taking.whole)) == (line, whole)


def test_a_container_that_is_emptied_by_another_name_or_by_whom_it_is_handed_to():
    code = module_of("""
        def flush(self):
            todo = self.rows
            for row in todo: write(row)
            todo.clear()
        def report(rows, out):
            print(sum(rows))
            del rows[:]
        def train(log, losses):
            for epoch in epochs:
                log.flush()
                report(losses, out)
                keep(losses)
        def keep(rows): rows.sort()
    """)
    flush, report, train, keep = [constant for constant in code.co_consts if inspect.iscode(constant)]
    assert drains.taken_from([flush], "rows", is_list=True, attribute=True) == drains.Drain(flush, 5, whole=True)
    assert drains.taken_from([train], "losses", is_list=True) is None
    assert drains.taken_by_callee([train], "losses", [keep, report], is_list=True) == drains.Drain(
        report, 8, whole=True
    )
    assert drains.taken_by_callee([train], "losses", [keep], is_list=True) is None


@pytest.mark.parametrize(
    ("call", "number"),
    [("pack(waiting)", 3), ("pack(waiting, 512)", 3), ("pack(waiting, row)", None), ("pack(row)", None)],
)
def test_a_container_out_of_which_a_function_takes_its_argument(call, number):
    code = module_of(f"""
        def pack(pool, room=1):
            pool[:] = [one for one in pool if one.size > room]
        def train(waiting, row):
            for x in xs:
                waiting.append(x)
                {call}
    """)
    pack, train = [constant for constant in code.co_consts if inspect.iscode(constant)]
    found = drains.taken_by_callee([train], "waiting", [pack], is_list=True)
    assert (found and found.number, found and found.whole) == (number, number and False)


@pytest.mark.parametrize(
    ("body", "shortened"),
    [
        ("bank = cat([bank, x])\n  if bank.size(0) > 9:\n   bank = bank[chosen]\n", True),
        ("bank = cat([bank, x])\n  if 9 <= len(bank):\n   bank = start()\n", True),
        ("bank = cat([bank, x])\n  if bank.size(0) > 9:\n   print(bank)\n", False),
        ("bank = cat([bank, x])\n  bank = bank.relu()\n", False),
        ("if bank.size(0) > 9:\n   bank = x\n", False),
    ],
)
def test_a_tensor_that_is_replaced_when_it_is_long(body, shortened):
    code = code_of(f"def train(xs, bank):\n bank = start()\n for x in xs:\n  {body}")
    assert drains.is_shortened([code], "bank") is shortened


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("for e in es:\n  total = 0\n  for x in xs:\n   total += f(x)\n", 3),
        ("for e in es:\n  total = zeros(1)\n  for x in xs:\n   total = total + f(x)\n", 3),
        ("total = 0\n for x in xs:\n  total += f(x)\n  if x > 9:\n   total = 0\n", 6),
        ("total = 0\n for x in xs:\n  total += f(x)\n", None),
        ("for x in xs:\n  total = f(x, total)\n", None),
    ],
)
def test_the_line_that_begins_a_sum_anew(body, line):
    found = drains.begun_anew([code_of(f"def train(xs, es):\n {body}")], "total")
    assert (found and found.number) == line


def test_a_method_that_sets_a_sum_to_a_constant_begins_it_anew():
    meter = module_of("""
        def __init__(self): self.total = 0.0
        def update(self, loss): self.total += loss
        def keep(self, loss): self.total = loss
        def reset(self): self.total = 0.0
    """)
    functions = [constant for constant in meter.co_consts if inspect.iscode(constant)]
    assert [drains.begun_anew([one], "total", attribute=True) for one in functions[:3]] == [None] * 3
    assert drains.begun_anew(functions, "total", attribute=True) == drains.Drain(functions[3], 5, whole=True)


def test_what_is_taken_out_of_a_container_and_written_to():
    code = code_of("""
        def train(self, p, g):
            state = self.state[p]
            if not state:
                state["mean"] = zeros(p)
            state["mean"] = beta * state["mean"] + g * rest
            self.done = state["mean"]
    """)
    found = [line_search.overwritten_through(code, number) for number in (3, 5, 7)]
    assert found == [6, None, None]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("state['mean'] = g\n log[p] = a * state['mean'] + b * g", 3),
        ("state['mean'] += g\n log[p] += a * state['mean'] + b * g", 3),
        ("log[p] = state['mean']\n state[name] = state['mean'] * a + g", 4),
        ("log[p] = a * state['mean']", None),
    ],
)
def test_what_is_written_to_another_container_is_not_named(body: str, line: int | None) -> None:
    code = code_of(f"def train(self, p, g, log, a, b, name):\n state = self.state[p]\n {body}")
    assert line_search.overwritten_through(code, 2) == line


def test_a_line_that_only_reads_an_attribute():
    code = code_of("""
        def train(self, rows):
            for one in self.free:
                self.free.append(one)
            self.free = kept(self.free)
    """)
    assert [line_search.only_reads(code, number, "free") for number in (3, 4, 5)] == [True, False, False]


def test_what_begins_empty_beside_others():
    code = module_of("""
        def __init__(self, parent):
            self.parent, self.children = parent, []
            self.table[0] = []
            self.kept = parent
    """).co_consts[0]
    assert [line_search.begins_empty(code, 3, name) for name in ("children", "parent")] == [True, False]
    assert not line_search.begins_empty(code, 5, "kept")


def test_what_takes_an_attributes_place_empties_it_and_what_a_class_begins_with_does_not():
    code = module_of("""
        kept = []
        class Net:
            kept = []
            def __init__(self): self.kept = []
            def on_train_epoch_end(self):
                for metric in self.metrics: metric.reset()
                self.kept = dict()
        def restart():
            global kept
            kept = []
    """)
    net, restart = [constant for constant in code.co_consts if inspect.iscode(constant)]
    assert drains.taken_from([net], "kept", is_list=True, attribute=True).number == 8
    assert drains.taken_from([code, restart], "kept", is_list=True).number == 11


@pytest.mark.parametrize(
    ("body", "is_made_anew"),
    [
        ("def train(xs):\n layers = [x for x in xs]\n return layers\n", False),
        ("def train(xs):\n layers = {y: 1 for x in xs for y in x}\n return layers\n", False),
        ("def train(xs):\n layers = None\n for x in xs:\n  layers = [y for y in x]\n", True),
        ("def train(xs):\n for x in xs:\n  layers = {y for z in x for y in z}\n  layers.pop()\n", True),
    ],
)
def test_a_comprehension_is_no_loop_around_its_line(body: str, is_made_anew: bool) -> None:
    """From Python 3.12 on it is no function of its own either."""
    code = code_of(body)
    depths = [line.depth for line in bytecode.lines_of(code) if "layers" in line.stores]
    assert max(depths) == ("for x in xs:\n" in body)
    assert line_search.made_anew(code, "layers") is is_made_anew
