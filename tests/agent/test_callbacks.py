"""Callbacks, loggers and trackers of real frameworks begin the watching and pass on names, configuration and numbers."""

from __future__ import annotations

import pytest
from collector import Collector
from training import Arrived, run

from vramscope import integrations
from vramscope.metrics.reported import MOST_NAMES, ReportedNumbers
from vramscope.protocol import messages

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks, pytest.mark.timeout(180)]

TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=32))
ids = torch.zeros(16, dtype=torch.long)
data = [{"input_ids": ids, "labels": ids} for _ in range(48)]
def trainer(report_to=(), callbacks=(), **more):
    arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, max_steps=4, logging_steps=2, eval_steps=4,
        eval_strategy="steps", save_strategy="no", report_to=list(report_to), disable_tqdm=True, **more)
    return Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4], callbacks=list(callbacks))
"""
MODULE = """
import lightning
class Small(lightning.LightningModule):
    def __init__(self, width=32, rate=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(width, 4)
    def training_step(self, batch, index):
        loss = self.net(batch).square().mean()
        self.log("train/loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.rate)
loader = torch.utils.data.DataLoader(torch.zeros(24, 32), batch_size=4)
quiet = dict(max_epochs=1, accelerator="gpu", devices=1, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=2)
"""


def numbers(collector: Collector) -> set[str]:
    """Names of all numbers that arrived."""
    return {name for batch in collector.stored.values() for scalars in batch.scalars for name in scalars.columns}


@pytest.mark.parametrize(
    "made",
    [
        "from vramscope.integrations import VramscopeCallback\n"
        "trainer(callbacks=[VramscopeCallback(project='callbacks')], run_name='a name of its own').train()",
        "import vramscope.callbacks.transformers_callback\n"
        "import os; os.environ['VRAMSCOPE_PROJECT'] = 'callbacks'\n"
        "trainer(report_to=['vramscope'], run_name='a name of its own').train()",
    ],
    ids=["callback", "report_to"],
)
def test_the_trainer_of_transformers_begins_it(collector, spool, made: str) -> None:
    run(TRAINER + made, collector, spool, loop=False)
    arrived = Arrived(collector)
    assert [row["step"] for row in arrived.rows("steps")] == [1, 2, 3, 4]
    assert (arrived.attached.name, arrived.attached.project) == ("a name of its own", "callbacks")
    assert (arrived.attached.framework, arrived.attached.config["max_steps"]) == ("huggingface", 4)
    assert numbers(collector) >= {"trainer_loss", "learning_rate", "grad_norm", "eval_loss", "epoch"}
    assert not any(name.endswith(("_runtime", "_per_second")) for name in numbers(collector))
    assert len(arrived.runs) == 1


def test_the_name_of_the_trainer_gives_way_to_the_users(collector, spool) -> None:
    run(
        TRAINER + "it = trainer(run_name='theirs')\nagent.attach(it, name='mine')\nit.train()",
        collector,
        spool,
        loop=False,
    )
    assert Arrived(collector).attached.name == "mine"


def test_an_output_folder_is_no_name(collector, spool) -> None:
    run(TRAINER + "it = trainer()\nagent.attach(it)\nit.train()", collector, spool, loop=False)
    assert Arrived(collector).attached.name not in ("out", "")


@pytest.mark.parametrize(
    "given", ["callbacks=[VramscopeMonitor(name='one', config={'mine': 1})]", "logger=VramscopeLogger(name='one')"]
)
def test_a_lightning_trainer_begins_it(collector, spool, given: str) -> None:
    more = "" if "logger" in given else ", logger=False"
    script = f"{MODULE}\nfrom vramscope.integrations import VramscopeLogger, VramscopeMonitor\n"
    run(f"{script}lightning.Trainer({given}{more}, **quiet).fit(Small(), loader)", collector, spool, loop=False)
    arrived = Arrived(collector)
    assert [row["step"] for row in arrived.rows("steps")] == [1, 2, 3, 4, 5, 6]
    assert arrived.attached.name == "one"
    assert (arrived.attached.framework, arrived.attached.config["rate"]) == ("lightning", 0.01)
    assert len(arrived.runs) == 1
    if "Monitor" in given:
        assert arrived.attached.config["mine"] == 1
    if "logger" in given:
        assert "train/loss" in numbers(collector)


def test_an_accelerator_begins_it(collector, spool) -> None:
    run(
        """
        from accelerate import Accelerator
        from vramscope.integrations import VramscopeTracker
        accelerator = Accelerator(log_with=VramscopeTracker(name="tracked"))
        accelerator.init_trackers("anything", config={"rate": 0.1})
        model, optimizer = accelerator.prepare(model, optimizer)
        for step in range(5):
            accelerator.backward(model(torch.zeros(8, 64, device="cuda")).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"accuracy": 0.5, "note": "text"}, step=step)
        accelerator.end_training()
        """,
        collector,
        spool,
    )
    arrived = Arrived(collector)
    assert [row["step"] for row in arrived.rows("steps")] == [1, 2, 3, 4, 5]
    assert (arrived.attached.name, arrived.attached.config["rate"]) == ("tracked", 0.1)
    assert numbers(collector) >= {"accuracy"}
    assert arrived.ended is not None and arrived.ended.state == "finished"


def checkpoints(collector: Collector) -> list[int | None]:
    """Steps of the events about checkpoints."""
    return [event.step for event in Arrived(collector).of(messages.Event) if event.kind == "checkpoint"]


def test_checkpoints_of_transformers_are_events(collector, spool) -> None:
    saved = TRAINER.replace('save_strategy="no"', 'save_strategy="steps", save_steps=2')
    run(saved + "it = trainer()\nagent.attach(it)\nit.train()", collector, spool, loop=False)
    assert checkpoints(collector) == [2, 4]


def test_checkpoints_of_lightning_are_events(collector, spool) -> None:
    script = MODULE.replace("enable_checkpointing=False", "enable_checkpointing=True, default_root_dir='out'")
    saved = "callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=3, save_top_k=-1)]"
    fit = f"it = lightning.Trainer({saved}, logger=False, **quiet)\nagent.attach(it)\nit.fit(Small(), loader)"
    run(script + fit, collector, spool, loop=False)
    assert checkpoints(collector) == [3, 6]


ACCELERATED = """
from accelerate import Accelerator
from vramscope.integrations import VramscopeTracker
accelerator = {made}
accelerator.init_trackers("anything")
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(4):
    accelerator.backward(model(torch.zeros(8, 64, device="cuda")).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if step % 2:
        accelerator.save_state(f"saved-{step}")
accelerator.load_state("saved-1")
accelerator.end_training()
"""


@pytest.mark.parametrize(
    "made",
    [
        pytest.param("Accelerator(log_with=VramscopeTracker())", id="tracker"),
        pytest.param("Accelerator(); agent.attach(accelerator)", id="attached"),
    ],
)
def test_checkpoints_of_accelerate_are_events(collector, spool, made: str) -> None:
    run(ACCELERATED.replace("{made}", made), collector, spool)
    events = [(event.kind, event.step) for event in Arrived(collector).of(messages.Event) if "checkpoint" in event.kind]
    assert events == [("checkpoint", 2), ("checkpoint", 4), ("checkpoint_loaded", 4)]


DETACHED = """
from accelerate import Accelerator
accelerator = Accelerator()
for session in range(2):
    agent.detach()
    agent.attach(accelerator)
    assert len(accelerator._save_model_state_pre_hook) == len(accelerator._load_model_state_pre_hook) == 1
agent.detach()
assert not accelerator._save_model_state_pre_hook and not accelerator._load_model_state_pre_hook
"""


def test_an_ended_session_leaves_no_hook_in_an_accelerator(collector, spool) -> None:
    """Each one would be called at each checkpoint, and would keep what belongs to its session."""
    run(DETACHED, collector, spool, loop=False)


def test_two_files_of_one_step_are_one_checkpoint(collector, spool) -> None:
    """Lightning calls its hook for each file."""
    script = MODULE.replace("enable_checkpointing=False", "enable_checkpointing=True, default_root_dir='out'")
    each = "lightning.pytorch.callbacks.ModelCheckpoint(every_n_train_steps={}, save_top_k=-1, filename='of-{}')"
    saved = f"callbacks=[{each.format(3, 3)}, {each.format(6, 6)}]"
    fit = f"it = lightning.Trainer({saved}, logger=False, **quiet)\nagent.attach(it)\nit.fit(Small(), loader)"
    run(script + fit, collector, spool, loop=False)
    assert checkpoints(collector) == [3, 6]


def test_the_first_hundred_checkpoints_are_sent() -> None:
    sent: list[messages.BatchItem] = []
    numbers = ReportedNumbers(None, sent.append, lambda at_ns: at_ns)
    for step in range(1, 200):
        numbers.checkpoint(step)
    assert [event.step for event in sent if isinstance(event, messages.Event)] == list(range(1, 101))


def test_only_known_names_are_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = integrations.Nothing


def test_what_a_framework_logs_is_left_out_in_silence_and_what_the_user_logs_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent: list[messages.BatchItem] = []
    many = {f"rewards/{n}": 0.5 for n in range(40)}
    numbers = ReportedNumbers(None, sent.append, lambda at_ns: at_ns)
    numbers.add(1, {**many, "a bad name": 1.0, "text": "no"}, asked=False)
    numbers.flush()
    (scalars,) = sent
    assert isinstance(scalars, messages.Scalars) and len(scalars.columns) == MOST_NAMES
    assert capsys.readouterr().err == ""
    numbers.add(2, many)
    said = capsys.readouterr().err
    assert said.count("vramscope:") == 1 and f"the maximum is {MOST_NAMES} names" in said
