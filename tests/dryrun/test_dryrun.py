"""``vramscope dryrun`` from end to end: real programs, a real server, the emulated GPU built for this PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from ports import free_port
from torch.torch_version import TorchVersion
from waiting import eventually

from vramscope_server.cli.dryrun.verdict import PLAIN_RECURRENT, RECURRENT, SPARSE

pytestmark = pytest.mark.gpu
VRAMSCOPE = [sys.executable, "-m", "vramscope_server"]
TRAINING = """
import os, torch
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device="cuda") for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range({steps}):
    x = torch.zeros({rows}, 1024, device="cuda")
    {line}
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
"""


@pytest.fixture
def dryrun(url, tmp_path):
    """``dryrun(line, words...)``: exit code and answer for a training with this line."""

    def run(
        line: str = "pass", *words: str, steps: int = 100, rows: int = 64, launcher: Any = (sys.executable,)
    ) -> Any:
        script = tmp_path / "train.py"
        script.write_text(TRAINING.format(line=line, steps=steps, rows=rows))
        command = [*VRAMSCOPE, "dryrun", "--json", "--server", url, *words, "--", *launcher, str(script)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EMULATED_GPU_")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=170, check=False)
        assert done.returncode in (0, 1, 5), done.stderr
        answer = json.loads(done.stdout)
        assert answer["exit_code"] == done.returncode, done.stderr
        return answer, done.stderr

    return run


def test_a_training_with_convolutions_has_a_range(dryrun):
    """One convolution, which is not at the peak without its workspace of 178 MiB."""
    line = "torch.nn.functional.conv2d(torch.zeros(16, 64, 64, 64).cuda(), torch.zeros(64, 64, 3, 3).cuda())"
    answer, said = dryrun(line, "--card", "h100")
    assert (answer["answer"], answer["cudnn_operations"], answer["cudnn_tries_algorithms"]) == ("fits", 3, False)
    assert answer["peak_allocated_bytes"] + 60_000_000 < answer["peak_allocated_high_bytes"]
    assert "running again with the largest workspaces of cuDNN" in said


def test_the_peaks_are_those_of_the_program_without_us(dryrun, tmp_path):
    answer, said = dryrun("pass", "--card", "h100")
    assert answer["answer"] == "fits"
    # From PyTorch 2.15 on, each product of a backward pass has a workspace of its own.
    phase = "backward" if TorchVersion(version("torch")) >= "2.15" else "optimizer"
    assert (answer["steps"], answer["peak_phase"], answer["assumptions"]) == (3, phase, [])
    assert httpx.get(f"{answer['page'].replace('/runs/', '/api/v1/runs/')}").json()["tags"] == ["dry run", "fits"]
    assert [line for line in said.splitlines() if line.startswith("step")] == ["step 0", "step 1"]

    script = TRAINING.format(line="pass", steps=3, rows=64)
    script += "\nprint(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())"
    (tmp_path / "alone.py").write_text(script)
    alone = subprocess.run(
        [sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    peaks = answer["peak_allocated_bytes"], answer["peak_reserved_bytes"]
    assert peaks == tuple(int(word) for word in alone.splitlines()[-1].split())


def test_a_script_that_fails_before_it_imports_pytorch_names_its_error(url, tmp_path):
    (tmp_path / "train.py").write_text("import no_such_module_here\nimport torch\n")
    command = [*VRAMSCOPE, "dryrun", "--server", url, "--card", "l4", "--", sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    error = "ModuleNotFoundError: No module named 'no_such_module_here'; nothing was measured"
    text = f"no answer for NVIDIA L4 (22.0 GiB): the script failed with {error}"
    assert (done.returncode, " ".join(done.stdout.split())) == (5, text)


def test_a_training_that_does_not_fit_says_what_it_needs(dryrun):
    answer, _ = dryrun("extra = torch.empty(6 << 30, dtype=torch.uint8, device='cuda')", "--card", "a100-1g.5gb")
    assert answer["answer"] == "does not fit"
    assert 12 << 30 < answer["peak_allocated_bytes"] < 12.2 * (1 << 30), "the tensors of two steps exist for a moment"


def test_an_empty_module_in_place_of_a_package_hides_no_assumption(dryrun):
    """Programs put one there for a package that cannot be imported on a machine without a card."""
    line = """import sys, types; sys.modules["bitsandbytes"] = types.ModuleType("bitsandbytes")
    if x.sum() > 0: print("more")"""
    answer, said = dryrun(line, "--card", "l4")
    assert (answer["answer"], answer["steps"], len(answer["assumptions"])) == ("fits", 3, 1), said


def test_masks_select_everything_and_other_sizes_are_not_trusted(dryrun):
    line = """y = x[x > 0]; z = torch.where(x > 0); x[x < 0] = 1; assert len(y) == len(z[0]) == x.numel(); y.long().bincount()
    assert x.unique().shape == torch.unique_consecutive(x).shape == y.shape and x.unique(dim=1).shape == x.shape
    assert y.long().bincount(minlength=9).shape == (9,)
    rows = (x > 0).sum().item(); assert torch.zeros(rows).numel() == len(range((x > 0).count_nonzero())) == len(y)
    assert len(x[torch.tensor([step % 2 == 0 for step in range(len(x))]).cuda()]) == len(x) // 2, 'known from the host'"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "1")
    assert (answer["answer"], answer["exit_code"]) == ("not trustworthy", 5)
    assert answer["reasons"] == [
        "train.py:8: the size of the result of bincount depends on data: set it with --assume train.py:8=VALUE"
    ]
    assert answer["assumptions"] == [
        "train.py:8 selects every element (an upper bound)",
        "train.py:9 selects every element (an upper bound)",
        "train.py:10 reads numbers below the minlength of bincount()",
        "train.py:11 selects every element (an upper bound)",
    ], said


@pytest.mark.parametrize("operation", ["torch.bincount", "torch.unique", "torch.repeat_interleave"])
def test_sizes_that_torchscript_reads_are_not_trusted(dryrun, operation):
    """TorchScript calls what computes an operation on the device, and not the operation."""
    line = f"""scripted = torch.jit.CompilationUnit("def of(x: Tensor):\\n  return {operation}(x)\\n")
    scripted.of(x.view(-1).long()); assert scripted.of(torch.arange(3)).numel() == 3, 'on the CPU, numbers exist'"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "1")
    assert (answer["answer"], len(answer["reasons"])) == ("not trustworthy", 1), said
    assert answer["reasons"][0].startswith("train.py:9: the size of the result of ")


def test_sizes_that_depend_on_data_can_be_given(dryrun):
    line = """rows = torch.zeros(512, 3, dtype=torch.long, device='cuda')
    a = rows.unique(dim=0)
    b = torch.unique(rows, return_counts=True)
    c = rows[:, 0].bincount()
    d = rows.repeat_interleave(rows[:, 0], 0)
    assert (a.shape, b[1].shape, c.shape, d.shape) == ((50, 3), (60,), (70,), (80, 3)), (a.shape, c.shape, d.shape)"""
    given = [word for at, size in enumerate((50, 60, 70, 80)) for word in ("--assume", f"train.py:{9 + at}={size}")]
    answer, said = dryrun(line, "--card", "l4", "--steps", "1", *given)
    expected = [f"train.py:{9 + at} reads {size} (--assume)" for at, size in enumerate((50, 60, 70, 80))]
    assert (answer["answer"], answer["assumptions"]) == ("fits", expected), said


OBJECTS = """
import os
import torch
import torch.distributed as dist
from torch.distributed import broadcast_object_list
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
only_first = dist.new_group([0])
for step in range(9):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    alone = [None]
    dist.all_gather_object(alone, step, group=only_first)
    assert alone == [step if rank == 0 else None], alone
    found = [None] * 2
    dist.all_gather_object(found, {"rank": rank, "step": step})
    assert found == [{"rank": 0, "step": step}, {"rank": 1, "step": step}], found
    told = [f"run {step}" if rank == 0 else None, rank]
    broadcast_object_list(told, src=0)
    assert told == [f"run {step}", 0], told
    kept = [None] * 2 if rank == 1 else None
    dist.gather_object(rank * 10, kept, dst=1)
    assert rank == 0 or kept == [0, 10], kept
"""


def test_objects_that_ranks_send_each_other_arrive(url, tmp_path):
    """NCCL sends them through the device, on which nothing is."""
    (tmp_path / "train.py").write_text(OBJECTS)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    command = [*VRAMSCOPE, "dryrun", "--server", url, "--card", "l4", "--json", "--", *launcher, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (answer["answer"], answer["steps"], answer["assumptions"]) == ("fits", 3, []), done.stderr


CAPTURED = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(4096, 1024, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=True)
    model(x).relu().sum().backward()
    optimizer.step()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for number in range(1000):
    graph.replay()
    assert number == 0
"""


def test_a_step_that_is_captured_after_a_warm_up_is_in_the_answer(url, tmp_path):
    """PyTorch's example warms up for three steps in a side stream. The graph has memory of its own. Its first replay is the end."""
    (tmp_path / "train.py").write_text(CAPTURED)
    command = [*VRAMSCOPE, "dryrun", "--server", url, "--card", "l4", "--json", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (answer["answer"], answer["steps"]) == ("fits", 4), done.stderr
    assert answer["peak_reserved_bytes"] > 100 << 20, "the warm-up's memory and that of the graph"


def test_a_command_that_is_terminated_ends_the_training(url, tmp_path):
    """As the time limit of a CI job does."""
    (tmp_path / "train.py").write_text(
        "import os, time, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = [*VRAMSCOPE, "dryrun", "--server", url, "--card", "l4", "--", sys.executable, "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as running:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        running.terminate()
        assert running.wait(30) == 143
    process = Path(f"/proc/{(tmp_path / 'pid').read_text()}")
    eventually(lambda: not process.exists())


def test_lengths_on_the_device_are_those_that_fit_the_targets(dryrun):
    """PyTorch compares their sum with the targets, which it copies, and takes memory for the longest."""
    line = """import torch.nn.functional as F
    scores = torch.zeros(400, 8, 32, device='cuda', requires_grad=True)
    def kept(*lengths):
        before = torch.cuda.memory_allocated()
        loss = F.ctc_loss(scores, targets, *lengths)
        return torch.cuda.memory_allocated() - before
    targets = torch.ones(8 * 50, dtype=torch.long, device='cuda')
    inputs, labels = torch.full((8,), 400), torch.full((8,), 50)
    assert kept(inputs.cuda(), labels.cuda()) == kept(inputs, labels) > 8 * 400 * 101 * 4
    torch.ctc_loss(scores, targets, input_lengths=[400] * 8, target_lengths=[50] * 8)"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "1")
    lengths = "train.py:12 reads lengths, taken as equal and as long as they can be"
    expected = [lengths, "train.py:12 copies zeros", "train.py:17 copies zeros"]
    assert (answer["answer"], answer["assumptions"]) == ("fits", expected), said


def test_sparse_gradients_keep_every_entry_and_sparse_products_run(dryrun):
    """Of 512 rows. SparseAdam coalesces them, and reads how many are different."""
    line = """table = torch.nn.Embedding(1000, 256, sparse=True, device='cuda')
    table(torch.zeros(512, dtype=torch.long, device='cuda')).sum().backward()
    gradient = table.weight.grad.coalesce()
    assert gradient._nnz() == 512 and gradient.values().shape == (512, 256)
    graph = torch.sparse_coo_tensor(torch.zeros(2, 8, dtype=torch.long), torch.ones(8), (64, 64)).coalesce().cuda()
    assert torch.sparse.mm(graph, x).shape == torch.mm(graph.to_sparse_csr(), x).shape == (64, 1024)"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "1")
    bound = ["train.py:10 selects every element (an upper bound)", SPARSE]
    assert (answer["answer"], answer["assumptions"]) == ("fits", bound), said


def test_a_product_with_a_sparse_tensor_keeps_every_entry_forward_and_backward(dryrun):
    """PyTorch coalesces a sparse tensor before a product, and its transposed form in the backward pass."""
    line = """places = torch.stack([torch.arange(64) % 8, torch.arange(64)])
    graph = torch.sparse_coo_tensor(places, torch.ones(64), (64, 64)).cuda()
    weight = torch.ones(64, 1024, device='cuda', requires_grad=True)
    product = torch.spmm(graph, weight)
    product.sum().backward()
    assert product.shape == weight.grad.shape == (64, 1024)"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "1")
    bounds = [
        "train.py:11 selects every element (an upper bound)",
        "the backward pass selects every element (an upper bound)",
    ]
    assert (answer["answer"], answer["assumptions"]) == ("fits", [*bounds, SPARSE]), said


def test_a_history_that_will_grow_is_an_assumption(dryrun):
    """L-BFGS keeps one pair of vectors for each iteration. Here each step ends after its first one, as nothing is computed."""
    line = """if step == 0:
        bend = torch.nn.Parameter(torch.zeros(1 << 20, device='cuda'))
        slow = torch.optim.LBFGS([bend], history_size=10)
    def closure():
        (loss := bend.sum()).backward()
        return loss
    slow.step(closure)"""
    answer, said = dryrun(line, "--card", "l4")
    kept = answer["steps"] - 1  # the first step has nothing to compare with
    pairs = f"{kept} of up to 10 pairs, and may need {80 - 8 * kept}.0 MiB more"
    assert (answer["answer"], answer["assumptions"][0]) == ("fits", f"the history of LBFGS has {pairs}"), said


def test_a_program_goes_on_until_each_optimizer_has_stepped_twice(dryrun):
    """The optimizer of a generator, which steps after every third step of the critic."""
    line = """if step == 0:
        bend = torch.nn.Parameter(torch.zeros(1 << 20, device='cuda'))
        rare = torch.optim.Adam([bend])
        unused = torch.optim.Adam(model.parameters())
    elif step % 3 == 2:
        bend.sum().backward()
        rare.step()"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "2")
    assert (answer["answer"], answer["assumptions"], answer["steps"]) == ("fits", [], 6), said


def test_a_program_goes_on_until_an_optimizer_of_another_kind_has_stepped(dryrun):
    """L-BFGS after Adam, for the same parameters: its history is larger than the state of Adam."""
    line = """if step == 5:
        last = torch.optim.LBFGS(model.parameters(), history_size=2)
    def closure():
        (loss := model(x).sum()).backward()
        return loss
    if step > 5:
        last.step(closure)"""
    answer, said = dryrun(line, "--card", "l4")
    assert (answer["answer"], answer["steps"]) == ("fits", 8), said
    assert "LBFGS" not in "".join(answer["assumptions"][1:]), said


def test_packed_sequences_from_lengths_on_the_device_have_all_elements(dryrun):
    line = """lengths = torch.tensor([3] * 64).cuda()
    recurrent = torch.nn.GRU(1024, 8, 2, dropout=0.5, device='cuda')
    packed = torch.nn.utils.rnn.pack_padded_sequence(x.view(64, 1, 1024).expand(-1, 5, -1), lengths.cpu(), True)
    assert packed.data.shape == (64 * 5, 1024)
    recurrent(packed)"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "1")
    lengths = "train.py:10 reads lengths, taken as equal and as long as they can be"
    assert (answer["answer"], answer["assumptions"][1:]) == ("fits", [lengths, RECURRENT]), said


@pytest.mark.slow
def test_spaces_of_recurrent_networks_are_an_assumption(dryrun):
    """Their sizes are not documented, so that the first line says what the answer rests on."""
    answer, said = dryrun("torch.nn.LSTM(8, 8, device='cuda')(x.view(1, -1, 8))", "--card", "l4")
    assert (answer["answer"], answer["assumptions"]) == ("fits", [RECURRENT]), said


@pytest.mark.slow
def test_a_network_with_a_projection_is_refused_with_a_way_out(dryrun):
    answer, _ = dryrun("torch.nn.LSTM(8, 8, proj_size=4, device='cuda')(x.view(1, -1, 8))", "--card", "l4")
    assert answer["reasons"][0].endswith("it runs with torch.backends.cudnn.enabled = False")
    assert answer["page"] is None or answer["steps"] == 0


def test_a_plain_recurrent_network_keeps_two_values_for_each_hidden_one(dryrun):
    """By the formula of an LSTM with one gate: 2 values for each of 3 layers, and what 2 layers pass on."""
    line = """recurrent = torch.nn.RNN(1024, 1024, 3, device='cuda')
    before = torch.cuda.memory_allocated()
    out = recurrent(x.view(64, -1, 1024))
    assert torch.cuda.memory_allocated() - before - out[0].nbytes - 2 * out[1].nbytes == 8 * out[0].nbytes"""
    answer, said = dryrun(line, "--card", "l4", "--steps", "1", rows=1024)
    assert (answer["answer"], answer["assumptions"]) == ("fits", [PLAIN_RECURRENT]), said


@pytest.mark.slow
def test_each_rank_has_its_peaks(dryrun):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    answer, said = dryrun("pass", "--card", "a10", launcher=launcher)
    assert [(row["rank"], row["steps"]) for row in answer["ranks"]] == [(0, 3), (1, 3)], said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--card", "l4"], "Missing argument"),
        (["--card", "mi300x", "--", "python", "x.py"], "NVIDIA's cards only"),
        (["--card", "v100-16", "--", sys.executable, "x.py"], "does not run on Tesla V100-SXM2-16GB"),
    ],
)
def test_wrong_arguments_are_named(words, sentence, emulated_gpu):
    done = subprocess.run([*VRAMSCOPE, "dryrun", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_pytorch_for_the_cpu_is_refused(tmp_path):
    from vramscope_server.cli.client import Failure
    from vramscope_server.cli.dryrun.libraries import torch_of

    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda: str | None = None\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(Failure, match=r"2\.13\.0\+cpu is built for another device"):
        torch_of(str(python))


def test_the_python_of_a_command_is_found(tmp_path):
    from vramscope_server.cli.dryrun.libraries import interpreter_of

    script = tmp_path / "torchrun"
    script.write_text("#!/opt/env/bin/python3.12\n")
    script.chmod(0o755)
    assert interpreter_of([str(script), "train.py"]) == "/opt/env/bin/python3.12"
    assert interpreter_of([sys.executable, "train.py"]) == sys.executable
    assert Path(interpreter_of(["no-such-program"])) == Path(sys.executable)


def test_an_assumed_value_replaces_the_default(dryrun):
    line = """y = torch.zeros(1 << 28, device='cuda') if (x > 0).any() else None
    z = torch.zeros(1 << 26, device='cuda') if (x < 0).any() else None"""
    words = ("--assume", "train.py:8=false", "--assume", "other.py:8=1")
    answer, said = dryrun(line, "--card", "l4", "--steps", "1", *words)
    assert answer["assumptions"] == [
        "`(x > 0).any()` at train.py:8 is taken as False (--assume)",
        "`(x < 0).any()` at train.py:9 is taken as True",
        "nothing was read at other.py:8 (--assume)",
    ], said
    assert 1 << 28 < answer["peak_allocated_bytes"] < 1 << 30, "the smaller tensor only"


def test_the_loss_beside_a_length_is_not_taken_for_one(dryrun):
    """Python 3.11 and later say which part of a line reads."""
    line = "n = x.sum().long(); print(x.mean().item(), len(range(int(n))))"
    answer, said = dryrun(line, "--card", "l4", "--steps", "1")
    assert answer["answer"] == "not trustworthy", said
    kinds = sorted((read["kind"], read["count"]) for read in answer["reads"] if read["place"] == "train.py:8")
    assert kinds == ([("length", 1), ("number", 1)] if sys.version_info >= (3, 11) else [("length", 2)]), said


GENERATION = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=128)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
prompt = torch.randint(5, 99, (4, 8)).cuda()
for step in range(4):
    how = {"num_beams": 3} if sys.argv[1] == "beams" else {"do_sample": sys.argv[1] == "sample"}
    text = model.generate(prompt, max_new_tokens=60, pad_token_id=0, eos_token_id=1, **how)
    assert text.shape == (4, 68), text.shape
    model(text, labels=text).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("how", ["greedy", "sample", "beams"])
def test_a_generated_text_is_as_long_as_its_limit_allows(url, tmp_path, how):
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(GENERATION)
    command = [*VRAMSCOPE, "dryrun", "--json", "--server", url, "--card", "l4", "--", sys.executable]
    done = subprocess.run([*command, str(tmp_path / "train.py"), how], capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (answer["answer"], answer["steps"]) == ("fits", 3), done.stderr
    (text,) = (one for one in answer["assumptions"] if "generates" in one)
    assert text.startswith("train.py:9 (transformers/generation/utils.py:")
    assert text.endswith(" generates every token up to its limit (an upper bound)")
