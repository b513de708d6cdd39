"""The one line with each kind of target, in real trainings with the real libraries, from attach to the wire."""

from __future__ import annotations

import pytest
from training import Arrived, run

from vramscope.protocol import messages

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]


STEP_PHASES = {"data", "forward", "backward", "optimizer"}


def assert_exact(rows: list[dict[str, int]]) -> None:
    """Each step has its peaks, and the phases' highest is the step's."""
    for row in rows:
        assert row["device"] == 0
        assert row["peak_allocated_bytes"] > 0
        assert row["peak_reserved_bytes"] >= row["peak_allocated_bytes"]
        if row["watched"]:
            phases = [value for name, value in row.items() if name.endswith("_peak_allocated_bytes")]
            assert max(phases) == row["peak_allocated_bytes"]


@pytest.mark.parametrize("target", ["model", "optimizer", "", "model, optimizer"])
def test_a_plain_loop_is_seen_by_its_module_its_optimizer_or_nothing(collector, spool, target: str) -> None:
    run(f"agent.attach({target})\ntrain(12, micro_steps=3)", collector, spool)
    arrived = Arrived(collector)
    steps = arrived.rows("steps")
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert all(row["micro_steps"] == 3 for row in steps)
    assert set(arrived.phases()) >= STEP_PHASES
    assert_exact(steps)
    assert arrived.attached.framework == "loop"
    assert arrived.ended is not None and arrived.ended.state == "finished"


def test_something_unknown_gets_one_line_and_is_watched_all_the_same(collector, spool) -> None:
    output = run("agent.attach({'not': 'a trainer'})\ntrain(5)", collector, spool)
    assert output.count("attach was given builtins.dict") == 1
    assert "torch.nn.Module" in output and "transformers Trainer" in output
    assert len(Arrived(collector).rows("steps")) == 5


def test_of_several_targets_an_unknown_one_gets_one_line(collector, spool) -> None:
    output = run("agent.attach(model, 'cuda:0')\ntrain(5)", collector, spool)
    assert output.count("attach was given builtins.str") == 1
    assert len(Arrived(collector).rows("steps")) == 5


@pytest.mark.frameworks
def test_a_hugging_face_trainer(collector, spool) -> None:
    run(
        """
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=200, n_positions=64))
        ids = torch.zeros(32, dtype=torch.long)
        data = [{"input_ids": ids, "labels": ids} for _ in range(48)]
        arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=4,
            max_steps=6, eval_strategy="steps", eval_steps=3, save_strategy="no", report_to=[], bf16=True, disable_tqdm=True)
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
        agent.attach(trainer, model, name="hf", config={"my_token": "hunter2"})
        trainer.train()
        """,
        collector,
        spool,
        loop=False,
    )
    arrived = Arrived(collector)
    steps = arrived.rows("steps")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert all(row["micro_steps"] == 4 for row in steps)
    assert set(arrived.phases()) >= STEP_PHASES | {"eval"}
    assert_exact(steps)
    assert arrived.attached.framework == "huggingface"
    assert arrived.attached.config["gradient_accumulation_steps"] == 4
    assert arrived.attached.config["model.n_layer"] == 2
    assert arrived.attached.config["my_token"] == "***"


@pytest.mark.frameworks
def test_a_hugging_face_trainer_that_resumes_goes_on_counting(collector, spool) -> None:
    script = """
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=32))
        ids = torch.zeros(16, dtype=torch.long)
        data = [{"input_ids": ids, "labels": ids} for _ in range(48)]
        def trainer(steps):
            arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, max_steps=steps, save_steps=3,
                report_to=[], disable_tqdm=True)
            return Trainer(model=model, args=arguments, train_dataset=data)
        trainer(3).train()
        again = trainer(6)
        agent.attach(again, run_id="0123456789abcdef", resume=True)
        again.train(resume_from_checkpoint=True)
        """
    run(script, collector, spool, loop=False)
    arrived = Arrived(collector)
    assert [row["step"] for row in arrived.rows("steps")] == [4, 5, 6]
    assert arrived.runs == {"0123456789abcdef"}
    assert arrived.attached.resumes


@pytest.mark.frameworks
def test_a_lightning_trainer(collector, spool) -> None:
    """training_step is no call of a module, and the optimizer runs forward and backward in a closure."""
    run(
        """
        import lightning
        from torch.utils.data import DataLoader, TensorDataset
        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64, 4)
            def training_step(self, batch, number):
                return self.layer(batch[0]).square().mean()
            def validation_step(self, batch, number):
                self.layer(batch[0])
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())
        data = DataLoader(TensorDataset(torch.zeros(64, 64)), batch_size=4)
        trainer = lightning.Trainer(max_steps=6, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, devices=1, val_check_interval=8)
        agent.attach(trainer)
        trainer.fit(Net(), data, data)
        """,
        collector,
        spool,
        loop=False,
    )
    arrived = Arrived(collector)
    steps = arrived.rows("steps")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert all(row["micro_steps"] == 2 for row in steps)
    seen = arrived.phases()
    assert set(seen) >= STEP_PHASES | {"eval"}
    assert seen["forward"] == seen["optimizer"] == 6
    assert_exact(steps)
    assert arrived.attached.framework == "lightning"
    assert arrived.attached.config["accumulate_grad_batches"] == 2


CLEARING = """
import lightning, torch
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 4)
        self.outputs = []
    def training_step(self, batch, number):
        loss = self.layer(batch[0]).square().mean()
        self.outputs.append(loss)
        return loss
    def on_train_epoch_end(self):
        self.outputs.clear()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
"""


@pytest.mark.frameworks
def test_what_a_lightning_module_clears_at_the_end_of_an_epoch_is_told_as_full_as_it_was(collector, spool) -> None:
    """Its loader is never asked for more than it has: the callback says when an epoch is over."""
    (spool.parent / "net.py").write_text(CLEARING)
    run(
        """
        sys.path.insert(0, ".")
        import lightning
        from net import Net
        from torch.utils.data import DataLoader, TensorDataset
        data = DataLoader(TensorDataset(torch.zeros(35 * 4, 64)), batch_size=4)
        trainer = lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, devices=1)
        agent.attach(trainer)
        trainer.fit(Net(), data)
        """,
        collector,
        spool,
        loop=False,
    )
    scans = Arrived(collector).of(messages.Scan)
    assert not [leak for scan in scans if scan.step < 35 for leak in scan.leaks], "it is waited for"
    (leak,) = scans[-1].leaks
    assert (leak.kind, leak.count, leak.emptied_after, leak.growth_bytes_per_step) == ("growing", 35, 35, 0)
    assert leak.emptied_at == "on_train_epoch_end() (net.py:13)"


@pytest.mark.frameworks
def test_a_lightning_training_that_dies_says_of_what(collector, spool) -> None:
    """Lightning catches the exception itself before it passes it on."""
    run(
        """
        import lightning
        from torch.utils.data import DataLoader, TensorDataset
        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64, 4)
            def training_step(self, batch, number):
                if number == 3:
                    raise ValueError("the fourth batch is bad\\nand more")
                return self.layer(batch[0]).square().mean()
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())
        data = DataLoader(TensorDataset(torch.zeros(64, 64)), batch_size=4)
        trainer = lightning.Trainer(max_steps=6, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, devices=1)
        agent.attach(trainer)
        trainer.fit(Net(), data)
        """,
        collector,
        spool,
        loop=False,
        expect=1,
    )
    ended = Arrived(collector).ended
    assert (ended.state, ended.error_type, ended.error_line) == ("failed", "ValueError", "the fourth batch is bad")


@pytest.mark.frameworks
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_accelerator_attached_before_and_after_prepare(collector, spool, when: str) -> None:
    attach = "agent.attach(accelerator)"
    run(
        f"""
        from accelerate import Accelerator
        from torch.utils.data import DataLoader, TensorDataset
        accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
        {attach if when == "before" else ""}
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        data = DataLoader(TensorDataset(torch.zeros(48, 64)), batch_size=4)
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        {attach if when == "after" else ""}
        for (batch,) in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        """,
        collector,
        spool,
        loop=False,
    )
    arrived = Arrived(collector)
    steps = arrived.rows("steps")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert all(row["micro_steps"] == 2 for row in steps)
    assert set(arrived.phases()) >= STEP_PHASES
    assert_exact(steps)
    assert arrived.attached.framework == "accelerate"
    assert arrived.attached.config["mixed_precision"] == "bf16"
