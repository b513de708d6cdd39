"""Deaths that were written down, with the truth of each, before any of them had been run: what an ordinary user meets, and what a
hostile one would think of. ``python tests/oom/table.py`` runs them too.

At first sight the verdict was right in 32 of 39. What was wrong was mended in its cause; that the others are right now says that
nothing broke since, no more. Three of 14 more, written in the same way later, stand in the place of weaker ones. Of 31 that
somebody else wrote without seeing the code, 21 were right at first. Of 25 later ones the cause was right in 23, and two named as
enough what was not; what was wrong, and some of the rest, stands behind these. The next twelve are of a round of their own: at
first sight the cause was right in ten, and two named as enough what was not. The last six are of a fifth round of fourteen: there
the cause was right in thirteen, and one named as enough what was not.
"""

from __future__ import annotations

from deaths import Death

GPT = """
        from transformers import GPT2Config, GPT2LMHeadModel
        def gpt(**more):
            return GPT2LMHeadModel(GPT2Config(**{"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 1000,
                "n_positions": 1024, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 2, **more}))
"""
"""Beginning of a script that trains a small GPT-2 of transformers."""

HELD_OUT = [
    Death(
        "transformers' Trainer with too large a batch",
        "activations",
        """
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        parts = R.get("micro_batches", 1)
        rows = [{"input_ids": torch.arange(512) % 1000, "labels": torch.arange(512) % 1000} for _ in range(256)]
        model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=1000, n_positions=512))
        arguments = TrainingArguments("out", per_device_train_batch_size=64 // parts, gradient_accumulation_steps=parts,
            max_steps=3,
            report_to=[], save_strategy="no", disable_tqdm=True)
        trainer = Trainer(model, arguments, train_dataset=rows)
        agent.attach(trainer)
        trainer.train()  # asks
        """,
    ),
    Death(
        "lightning, losses with their graphs in a list",
        "leak",
        """
        import lightning
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model, self.losses = stack(4, 1024), []
            def training_step(self, batch, index):
                loss = self.model(batch).square().mean()
                self.losses.append(loss.detach() if R.get("leak") is False else loss * self.model(batch).sum())  # keeps
                return loss
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())
        rows = torch.empty(64 * 4000, 1024)
        loader = torch.utils.data.DataLoader(rows, batch_size=4000)
        trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False)
        agent.attach(trainer)
        trainer.fit(Module(), loader)
        """,
    ),
    Death(
        "convolutions on images that grow",
        "activations",
        """
        with torch.device("cuda"):
            model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3,
                padding=1), nn.ReLU(),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for size in (64, 64, 96, 128, 384):
            for _ in range(parts):
                model(torch.empty(32 // parts, 3, size, size, device="cuda")).square().mean().backward()  # asks
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    Death(
        "an embedding and its state",
        "optimizer",
        """
        words = nn.Embedding(100_000, 1024, device="cuda")
        optimizer = optimizer_of(words)
        for _ in range(3):
            words(torch.zeros(64, dtype=torch.long, device="cuda")).square().mean().backward()
            optimizer.step()  # asks
            optimizer.zero_grad()
        """,
        phase="optimizer",
    ),
    Death(
        "one long sequence",
        "activations",
        """
        from transformers import GPT2Config, GPT2LMHeadModel
        parts = R.get("micro_batches", 1)
        assert parts == 1, "one sequence cannot be cut into micro-batches"
        config = GPT2Config(n_layer=4, n_embd=256, n_head=8, vocab_size=1000, n_positions=4096, attn_implementation="eager")
        model = GPT2LMHeadModel(config).cuda()
        optimizer = optimizer_of(model)
        for length in (512, 1024, 1024, 3072):
            ids = torch.zeros(1, min(length, R.get("length", length)), dtype=torch.long, device="cuda")
            model(ids, labels=ids).loss.backward()  # asks
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    Death(
        "Trainer evaluates with a larger batch",
        "activations",
        GPT
        + """
        from transformers import Trainer, TrainingArguments
        rows = [{"input_ids": torch.arange(512) % 1000, "labels": torch.arange(512) % 1000} for _ in range(600)]
        arguments = TrainingArguments("out", per_device_train_batch_size=4, per_device_eval_batch_size=512, max_steps=4,
            eval_strategy="steps", eval_steps=3,
            report_to=[], save_strategy="no", disable_tqdm=True, prediction_loss_only=True)
        trainer = Trainer(gpt(), arguments, train_dataset=rows, eval_dataset=rows)
        agent.attach(trainer)
        trainer.train()  # asks
        """,
        remedy=False,
        phase="eval",
        line="# asks",
    ),
    Death(
        "generation fills its cache of keys and values",
        "activations",
        GPT
        + """
        model = gpt(n_embd=512, n_positions=4096).cuda()
        optimizer = optimizer_of(model)
        ids = torch.zeros(4, 64, dtype=torch.long, device="cuda")
        for _ in range(3):
            model(ids, labels=ids).loss.backward()
            optimizer.step(); optimizer.zero_grad()
        model.eval()
        model.generate(torch.zeros(64 // R.get("micro_batches", 1), 16, dtype=torch.long, device="cuda"),  # asks
            max_new_tokens=3000, min_new_tokens=3000, do_sample=False)
        """,
        remedy=False,
        phase="eval",
        line="# asks",
    ),
    Death(
        "low-rank adapters on a frozen model",
        "activations",
        """
        class Adapted(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.base = nn.Linear(width, width, device="cuda").requires_grad_(False)
                self.a, self.b = nn.Linear(width, 8, bias=False, device="cuda"), nn.Linear(8, width, bias=False, device="cuda")
            def forward(self, x):
                return torch.nn.functional.gelu(self.base(x) + self.b(self.a(x)))
        model = nn.Sequential(*[Adapted(2048) for _ in range(20)])
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        for _ in range(3):
            step(model, optimizer, 16000, 2048)  # asks
        """,
        phase="forward",
    ),
    Death(
        "a generator beside its critic",
        "activations",
        """
        make, judge = stack(6, 1024), stack(6, 1024)
        of_make, of_judge = optimizer_of(make), optimizer_of(judge)
        parts = R.get("micro_batches", 1)
        for rows in (4000, 4000, 4000, 30000):
            for _ in range(parts):
                fake = make(torch.empty(rows // parts, 1024, device="cuda"))
                (judge(fake.detach()).mean() - judge(torch.empty_like(fake)).mean()).backward()
            of_judge.step(); of_judge.zero_grad()
            for _ in range(parts):
                judge(make(torch.empty(rows // parts, 1024, device="cuda"))).mean().backward()  # asks
            of_make.step(); of_make.zero_grad()
            del fake
        """,
    ),
    Death(
        "checkpointed, and still too much",
        "activations",
        """
        from torch.utils.checkpoint import checkpoint
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4)])
            def forward(self, x):
                return checkpoint(self.inner, x, use_reentrant=False)
        model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
        optimizer = optimizer_of(model)
        for rows in (4000, 8000, 60000, 60000):
            step(model, optimizer, rows, 1024)  # asks
        """,
    ),
    Death(
        "one of four accumulated batches is longer",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(6):
            for rows in (8000, 8000, 8000 if n < 4 else 64000, 8000):
                for _ in range(parts):
                    model(torch.empty(rows // parts, 1024, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "autocast and a gradient scaler",
        "activations",
        """
        model = stack(8, 1024)
        optimizer = optimizer_of(model)
        scaler = torch.amp.GradScaler()
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                with torch.autocast("cuda", torch.float16):
                    loss = model(torch.empty(90000 // parts, 1024, device="cuda")).float().square().mean()  # asks
                scaler.scale(loss).backward()
            scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
        """,
        phase="forward",
    ),
    Death(
        "a single picture that is too large",
        "activations",
        """
        assert R.get("micro_batches", 1) == 1, "a batch of one cannot be cut"
        with torch.device("cuda"):
            model = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if not n else 64, 64, 3, padding=1),
                nn.ReLU()) for n in range(5)], nn.AdaptiveAvgPool2d(1))
        optimizer = optimizer_of(model)
        for size in (256, 256, 512, 2048):
            model(torch.empty(1, 3, size, size, device="cuda")).mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "large features kept, dead within nine steps",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        class Bank: pass
        bank = Bank(); bank.kept = {}
        for n in range(20):
            out = model(torch.empty(60000, 512, device="cuda"))
            if R.get("leak") is not False:
                bank.kept[n] = out.detach().clone()  # keeps
            out.mean().backward()
            del out
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "graphs kept, dead within six steps",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        losses = []
        for n in range(20):
            loss = model(torch.empty(28000, 512, device="cuda")).square().mean() + model(torch.empty(4000, 512,
                device="cuda")).sum() * 0
            losses.append(loss.detach() if R.get("leak") is False else loss)  # keeps
            loss.backward(retain_graph=R.get("leak") is not False)
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# keeps",
    ),
    Death(
        "a cycle of objects that the collector does not see",
        "leak",
        """
        gc.disable()
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        class Result: pass
        for n in range(80):
            result = Result()
            result.out = model(torch.empty(8000, 512, device="cuda"))
            result.out.square().mean().backward(retain_graph=True)
            if R.get("leak") is not False:
                result.me = result  # keeps
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "a hook that gathers features",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        features = []
        if R.get("leak") is not False:
            model[1].register_forward_hook(lambda module, args, out: features.append(out))  # keeps
        for n in range(100):
            step(model, optimizer, 12000, 512)
        """,
    ),
    Death(
        "the sum of losses with its graphs",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        total = 0.0
        for n in range(80):
            out = model(torch.empty(16000, 512, device="cuda"))
            loss = out.square().mean() + (out * out).mean()
            loss.backward(retain_graph=True)
            total = total + (loss.detach() if R.get("leak") is False else loss)  # keeps
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# keeps",
    ),
    Death(
        "another process that takes more while we train",
        "other_process",
        """
        import subprocess
        other = None
        if R.get("other") is not False:
            code = (
                "import torch,sys; x=torch.empty(100<<20,dtype=torch.uint8,device='cuda'); print(1,flush=True); "
                "sys.stdin.readline(); y=torch.empty(800<<20,dtype=torch.uint8,device='cuda'); "
                "print(2,flush=True); sys.stdin.read()"
            )
            other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            other.stdout.readline()
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        try:
            for n in range(4):
                if n == 2 and other is not None:
                    torch.cuda.empty_cache()
                    other.stdin.write(b"go\\n"); other.stdin.flush(); other.stdout.readline()
                step(model, optimizer, 20000, 1024)  # asks
        finally:
            if other is not None:
                other.stdin.close(); other.wait()
        """,
        memory="2560M",
        env={"EMULATED_GPU_LEDGER": "own"},
    ),
    Death(
        "a small neighbour, and a batch that fits no card like this",
        "activations",
        """
        import subprocess
        other = None
        code = "import torch,sys; x=torch.empty(64<<20,dtype=torch.uint8,device='cuda'); print(1,flush=True); sys.stdin.read()"
        other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        other.stdout.readline()
        model = stack(12, 1024)
        optimizer = optimizer_of(model)
        try:
            for n in range(4):
                step(model, optimizer, 80000, 1024)  # asks
        finally:
            other.stdin.close(); other.wait()
        """,
        memory="3G",
        env={"EMULATED_GPU_LEDGER": "own"},
    ),
    Death(
        "a limit of 0.9, and a batch three times the card",
        "activations",
        """
        torch.cuda.set_per_process_memory_fraction(0.7)
        model = stack(24, 1024)
        optimizer = optimizer_of(model)
        for n in range(4):
            step(model, optimizer, 64000, 1024)  # asks
        """,
        memory="3G",
    ),
    Death(
        "a memory bank carved out of the batches' segments",
        "fragmentation",
        """
        model = stack(2, 256)
        optimizer = optimizer_of(model)
        bank = []
        for size in (30, 60, 90, 120, 150, 180, 210, 240):
            x = torch.empty(size, 1024, 1024, dtype=torch.uint8, device="cuda")  # asks
            step(model, optimizer, 64, 256)
            del x
            bank.append(torch.empty(size // 2, 1024, 1024, dtype=torch.uint8, device="cuda"))
        """,
        memory="1320M",
    ),
    Death(
        "broadcast by mistake",
        "activations",
        """
        model = nn.Linear(64, 1).cuda()
        optimizer = optimizer_of(model)
        rows = 60000 // R.get("micro_batches", 1)
        for n in range(3):
            for _ in range(R.get("micro_batches", 1)):
                out, target = model(torch.empty(rows, 64, device="cuda")), torch.empty(rows, device="cuda")
                loss = (out - target).square().mean()  # asks
                loss.backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,
        line="# asks",
    ),
    Death(
        "cross entropy over a large vocabulary",
        "activations",
        """
        model = nn.Sequential(nn.Embedding(64000, 256), nn.Linear(256, 64000)).cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(3):
            for _ in range(parts):
                ids = torch.zeros(6000 // parts, dtype=torch.long, device="cuda")
                nn.functional.cross_entropy(model(ids).float(), ids).backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "outputs of an evaluation kept with their graphs",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 8000, 512)
        model.eval()
        predictions = []
        for n in range(60):
            out = model(torch.empty(8000, 512, device="cuda"))
            predictions.append(out.detach().cpu() if R.get("leak") is False else out)  # keeps
        """,
        line="# keeps",
        remedy=None,  # how much the step needs is not known each time
    ),
    Death(
        "accelerate finds the batch",
        "activations",
        """
        from accelerate import Accelerator
        from accelerate.utils import find_executable_batch_size
        accelerator = Accelerator()
        agent.attach(accelerator)
        @find_executable_batch_size(starting_batch_size=64000)
        def train(batch):
            accelerator.free_memory()
            model = stack(6, 1024)
            optimizer = optimizer_of(model)
            model, optimizer = accelerator.prepare(model, optimizer)
            for _ in range(3):
                loss = model(torch.empty(batch, 1024, device="cuda")).square().mean()  # asks
                accelerator.backward(loss)
                optimizer.step(); optimizer.zero_grad()
        train()
        """,
        tried=False,
        survived=True,
    ),
    Death(
        "a checkpoint loaded onto the card beside the model",
        "weights",
        """
        model = stack(5, 4096)  # (with all that it needs it fits: the checkpoint is what does not)
        optimizer = optimizer_of(model)
        torch.save({f"p{n}": torch.zeros(4096, 4096) for n in range(22)}, "c.pt")
        state = torch.load("c.pt", map_location="cuda")  # asks
        """,
        remedy=False,
        line="# asks",
    ),
    Death(
        "averaged copies of the model",
        "optimizer",
        """
        import copy
        model = stack(5, 4096)
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 64, 4096)  # asks
        """,
        phase="optimizer",
    ),
    Death(
        "a teacher whose graph is built for nobody",
        "activations",
        """
        teacher, student = stack(12, 1024), stack(3, 1024)
        optimizer = optimizer_of(student)
        parts = R.get("micro_batches", 1)
        for rows in (4000, 4000, 36000, 36000):
            for _ in range(parts):
                x = torch.empty(rows // parts, 1024, device="cuda")
                (student(x) - teacher(x)).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "the copy of a batch to the card",
        "data",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for rows in (8000, 8000, 8000, 1_200_000):
            for _ in range(parts):
                batch = torch.empty(rows // parts, 512).cuda()  # asks
                model(batch).square().mean().backward()
                del batch
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="data",
        remedy=False,  # what so large a batch would have made is not known
    ),
    Death(
        "Lightning, and the first step of AdamW",
        "optimizer",
        """
        import lightning
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(7)])
            def training_step(self, batch, index):
                return self.model(batch).square().mean()
            def configure_optimizers(self):
                return optimizer_of(self)
        loader = torch.utils.data.DataLoader(torch.empty(64 * 4, 4096), batch_size=64)
        trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False)
        agent.attach(trainer)
        trainer.fit(Module(), loader)  # asks
        """,
        phase="optimizer",
    ),
    Death(
        "Trainer, and the first step of AdamW",
        "optimizer",
        GPT
        + """
        from transformers import Trainer, TrainingArguments
        rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(64)]
        arguments = TrainingArguments("out", per_device_train_batch_size=2, max_steps=4, report_to=[], save_strategy="no",
            disable_tqdm=True, optim="sgd" if R.get("optimizer") == "SGD" else "adamw_torch")
        trainer = Trainer(gpt(n_layer=8, n_embd=1024), arguments, train_dataset=rows)
        agent.attach(trainer)
        trainer.train()  # asks
        """,
        memory="1900M",
        phase="optimizer",
    ),
    Death(
        "a small leak beside a batch that is far too large",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        kept = []
        for n in range(40):
            step(model, optimizer, 4000 if n < 30 else 64000, 1024)  # asks
            kept.append(torch.empty(1 << 18, device="cuda"))
        """,
    ),
    Death(
        "beam search with copies of the cache",
        "activations",
        GPT
        + """
        model = gpt(n_layer=12, n_embd=1024, n_head=8, n_positions=2048).cuda().eval()
        ids = torch.zeros(8, 256, dtype=torch.long, device="cuda")
        model.generate(ids, max_new_tokens=600, num_beams=8, do_sample=False, pad_token_id=2)  # asks
        """,
        memory="3G",
        remedy=False,
        phase="eval",
    ),
    Death(
        "matrices without modules",
        "activations",
        """
        weights = [torch.empty(1024, 1024, device="cuda", requires_grad=True) for _ in range(6)]
        optimizer = torch.optim.SGD(weights, 0.01)
        parts = R.get("micro_batches", 1)
        for rows in (4000, 4000, 80000):
            for _ in range(parts):
                x = torch.empty(rows // parts, 1024, device="cuda")
                for w in weights:
                    x = torch.relu(x @ w)  # asks
                x.mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,  # without a module nobody knows a forward from what is asked for between two steps
    ),
    Death(
        "the history of LBFGS",
        "optimizer",
        """
        model = stack(4, 2048)
        optimizer = torch.optim.LBFGS(model.parameters(), history_size=100, max_iter=2)
        if R.get("optimizer") == "SGD":
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
        def closure():
            optimizer.zero_grad()
            loss = model(torch.empty(64, 2048, device="cuda")).square().mean()
            loss.backward()
            return loss + 1.0
        for n in range(40):
            optimizer.step(closure)  # asks
        """,
        phase="optimizer",
        memory="900M",
    ),
    Death(
        "expandable segments, and a batch too large",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        for rows in (8000, 16000, 64000):
            step(model, optimizer, rows, 1024)  # asks
        """,
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    Death(
        "an evaluation that gathers logits on the card",
        "leak",
        GPT
        + """
        model = gpt(n_layer=2, vocab_size=30000).cuda()
        optimizer = optimizer_of(model)
        for _ in range(2):
            ids = torch.zeros(2, 128, dtype=torch.long, device="cuda")
            model(ids, labels=ids).loss.backward(); optimizer.step(); optimizer.zero_grad()
        model.eval()
        logits = []
        with torch.no_grad():
            for n in range(200):
                out = model(torch.zeros(2, 256, dtype=torch.long, device="cuda")).logits
                logits.append(out)  # keeps
        """,
        line="# keeps",
        remedy=False,
        phase="eval",
    ),
    Death(
        "attention without flash, lengths that vary",
        "activations",
        GPT
        + """
        model = gpt(attn_implementation="eager", n_positions=4096).cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for length in (128, 200, 256, 240, 300, 1536):
            for _ in range(parts):
                ids = torch.zeros(16 // parts, length, dtype=torch.long, device="cuda")
                model(ids, labels=ids).loss.backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "a model that serves, and is never trained",
        "activations",
        """
        model = stack(18, 4096).eval()
        @torch.inference_mode()
        def answer(rows):
            return model(torch.empty(rows, 4096, device="cuda")).argmax(-1).cpu()
        for rows in (64, 1000, 300, 5000, 200, 40000):
            answer(rows)  # asks
        """,
        remedy=False,
        phase="eval",
    ),
    Death(
        "the first forward, with all of Adam's state to come",
        "activations",
        """
        model = stack(16, 2048)
        optimizer = optimizer_of(model)
        for _ in range(4):
            step(model, optimizer, 11000, 2048)  # asks
        """,
        phase="forward",
    ),
    Death(
        "a teacher that comes after the third step",
        "weights",
        """
        model = stack(6, 2048)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 256, 2048)
        teacher = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(24)])
        if R.get("beside") is not False:
            teacher.to("cuda")  # asks
        step(model, optimizer, 256, 2048)
        """,
        line="# asks",
    ),
    Death(
        "a checkpoint that was read, and is still held",
        "weights",
        """
        model = stack(5, 4096)
        optimizer = optimizer_of(model)
        kept = None
        if R.get("beside") is not False:
            kept = {name: one.clone() for name, one in model.state_dict().items()}
        for _ in range(3):
            step(model, optimizer, 64, 4096)
        """,
    ),
    Death(
        "an average of the weights, made at the third step",
        "weights",
        """
        import copy
        model = stack(5, 4096)
        optimizer = optimizer_of(model) if R.get("optimizer") else torch.optim.AdamW(model.parameters(), fused=True)
        for n in range(5):
            step(model, optimizer, 64, 4096)
            if n == 2 and R.get("beside") is not False:
                average = copy.deepcopy(model)
        """,
    ),
    Death(
        "a server that keeps the cache of every session",
        "leak",
        GPT
        + """
        model = gpt(n_layer=8, n_embd=512, n_head=8, vocab_size=8000, n_positions=1024).cuda().eval()
        sessions = {}
        with torch.inference_mode():
            for n in range(400):
                out = model(torch.zeros(1, 512, dtype=torch.long, device="cuda"), use_cache=True)
                sessions[n] = out.past_key_values  # keeps
        """,
        line="# keeps",
        remedy=False,
        phase="eval",
    ),
    Death(
        "lightning, predictions of the validation on self",
        "leak",
        """
        import lightning
        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model, self.predictions = stack(2, 1024), []
            def training_step(self, batch, index):
                return self.model(batch).square().mean()
            def validation_step(self, batch, index):
                self.predictions.append(self.model(batch).to("cpu" if R.get("leak") is False else "cuda"))  # keeps
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())
        rows = torch.utils.data.DataLoader(torch.empty(5000 * 80, 1024), batch_size=5000)
        trainer = lightning.Trainer(max_epochs=1, limit_train_batches=6, num_sanity_val_steps=0, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        agent.attach(trainer)
        trainer.fit(Module(), rows, rows)
        """,
        line="# keeps",
        phase="eval",
    ),
    Death(
        "eight forwards, and one backward for their sum",
        "activations",
        """
        model = stack(8, 1024)
        optimizer = optimizer_of(model)
        step(model, optimizer, 1000, 1024)
        loss = 0
        for _ in range(8):
            loss = loss + model(torch.empty(8192, 1024, device="cuda")).square().mean()  # asks
        loss.backward()  # (does not come to it)
        """,
        remedy=False,
        phase="forward",
    ),
    Death(
        "layers taken to the card one by one, and memory ends while one moves",
        "data",
        """
        layers = nn.ModuleList([nn.Linear(8192, 8192) for _ in range(6)])
        with torch.no_grad():
            for rows in (2000, 2000, 41_000):
                x = torch.empty(rows, 8192, device="cuda")
                for layer in layers:
                    layer.to("cuda")  # asks
                    x = layer(x).relu()
                    layer.to("cpu")
        """,
        line="# asks",
        remedy=False,
        phase="other",
    ),
    Death(
        "retain_graph, and the second step's forward finds the first one's graph",
        "leak",
        """
        model = stack(8, 1024)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for n in range(6):
            loss = model(torch.empty(19_000, 1024, device="cuda")).square().mean()  # asks
            optimizer.zero_grad()
            loss.backward(retain_graph=R.get("leak", True))
            optimizer.step()
            if "leak" in R:
                del loss
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        "torch.func, weights in a dict",
        "activations",
        """
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 64)).cuda()
        weights = {name: one.detach().clone() for name, one in model.named_parameters()}
        model.to("meta")
        def loss_of(weights, x):
            return torch.func.functional_call(model, weights, (x,)).square().mean()  # asks
        for step in range(8):
            x = torch.empty(500 if step < 4 else 40_000, 1024, device="cuda")
            gradients = torch.func.grad(loss_of)(weights, x)
            weights = {name: one - 1e-3 * gradients[name] for name, one in weights.items()}
        """,
        line="# asks",
        remedy=False,
        phase="forward",
    ),
    Death(
        "adapters, and a batch of long prompts",
        "activations",
        """
        class Adapted(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base.requires_grad_(False)
                self.a, self.b = (nn.Linear(*size, bias=False, device="cuda") for size in ((4096, 8), (8, 4096)))
            def forward(self, x):
                return self.base(x) + self.b(self.a(x))
        model = nn.Sequential(*[Adapted(nn.Linear(4096, 4096, bias=False, device="cuda")) for _ in range(18)])
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                model(torch.empty(64 // parts, 128, 4096, device="cuda")).square().mean().backward()  # asks
            optimizer.step()
            optimizer.zero_grad()
        """,
        remedy=False,  # (its first block had hardly begun)
    ),
    Death(
        "a teacher that takes most of the card from the first step on",
        "weights",
        """
        if R.get("beside") is not False:
            teacher = stack(18, 4096).eval().requires_grad_(False)
        student = stack(2, 4096)
        optimizer = optimizer_of(student)
        for _ in range(3):
            x = torch.empty(64, 4096, device="cuda")
            with torch.no_grad():
                aim = teacher(x) if R.get("beside") is not False else x
            (student(x) - aim).square().mean().backward()
            optimizer.step()  # asks
            optimizer.zero_grad()
        """,
        line="# asks",
    ),
    Death(
        "a copy of the weights for the best epoch",
        "weights",
        """
        model = stack(7, 4096)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for n in range(3):
            model(torch.empty(64, 4096, device="cuda")).square().mean().backward()
            optimizer.step()
            if n == 1 and R.get("beside") is not False:
                best = {name: value.clone() for name, value in model.state_dict().items()}  # asks
            optimizer.zero_grad()
        """,
        line="# asks",
        memory="2100M",
    ),
    Death(
        "a validation with gradients on",
        "activations",
        """
        model = stack(8, 1024)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 4000, 1024)
        model.eval()
        for _ in range(3):
            out = model(torch.empty(32000, 1024, device="cuda"))  # asks
            loss = out.square().mean().item()
        """,
        line="# asks",
        remedy=False,
    ),
    Death(
        "a sampler that goes fifty steps with gradients on",
        "activations",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 4000, 1024)
        model.eval()
        x = torch.empty(8000, 1024, device="cuda")
        for _ in range(50):
            x = x - 0.1 * model(x)  # asks
        """,
        remedy=False,
    ),
    Death(
        "a server that makes room for keys and values",
        "data",
        """
        model = stack(4, 256).eval()
        with torch.no_grad():
            cache = [torch.zeros(32, 8, 16384, 32, device="cuda") for _ in range(8)]  # asks
            model(torch.empty(32, 256, device="cuda"))
        """,
        line="# asks",
        remedy=False,
    ),
    Death(
        "a piece that lives in another stream's segment",
        "fragmentation",
        """
        model = stack(2, 256)
        optimizer = optimizer_of(model)
        for _ in range(2):
            step(model, optimizer, 64, 256)
        with torch.cuda.stream(torch.cuda.Stream()):
            passing = megabytes(640)
            del passing
            kept = megabytes(30)
        whole = megabytes(950)  # asks
        """,
    ),
    Death(
        "compiled, with a larger batch in the second epoch",
        "activations",
        """
        model = stack(6, 1024)
        compiled = torch.compile(model, backend="eager")
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for rows in (4000, 4000, 48000):
            for _ in range(parts):
                compiled(torch.empty(rows // parts, 1024, device="cuda")).square().mean().backward()  # asks
            optimizer.step()
            optimizer.zero_grad()
        """,
        line="# asks",
    ),
    Death(
        "errors kept in a list with all their frames",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        failed = []
        def train(x):
            loss = model(x).square().mean()
            if R.get("leak") is not False:
                raise ValueError("the loss is no number")
            loss.backward()
        for _ in range(40):
            try:
                train(torch.empty(16000, 512, device="cuda"))
            except ValueError as error:
                failed.append(error)  # keeps
            step(model, optimizer, 16000, 512)
        """,
        line="# keeps",
    ),
    Death(
        "slow weights, made at the fifth step",
        "optimizer",
        """
        class Lookahead(torch.optim.SGD):
            count = 0
            @torch.no_grad()
            def step(self, closure=None):
                super().step(closure)
                self.count += 1
                for group in self.param_groups if self.count == 5 else ():
                    for one in group["params"]:
                        self.state[one]["slow"] = one.detach().clone()  # asks
        model = stack(6, 4096)
        plain = R.get("optimizer") == "SGD"
        optimizer = optimizer_of(model) if plain else Lookahead(model.parameters(), 0.01, momentum=0.9)
        for _ in range(7):
            step(model, optimizer, 64, 4096)
        """,
        line="# asks",
        phase="optimizer",
    ),
    Death(
        "a long document in the middle of training",
        "activations",
        GPT
        + """
        model = gpt(n_layer=6, n_embd=512, n_head=8, vocab_size=16000, n_positions=4096).cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for length in (256, 320, 200, 300, 2048, 256):
            length = min(length, R.get("length", length))
            for _ in range(parts):
                ids = torch.zeros(4 // parts, length, dtype=torch.long, device="cuda")
                model(input_ids=ids, labels=ids).loss.backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
    ),
    Death(
        "AdamW after a warm-up with SGD",
        "optimizer",
        """
        model = stack(6, 4096)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for n in range(6):
            if n == 3:
                optimizer = optimizer_of(model)
            step(model, optimizer, 64, 4096)  # asks
        """,
        phase="optimizer",
        line="optimizer.step()",
        tried=False,  # (8-bit: no such package is here)
    ),
    Death(
        "all layers unfrozen in the second epoch",
        "optimizer",
        """
        model = stack(7, 4096)
        for one in model[:6].parameters():
            one.requires_grad_(False)
        plain = R.get("optimizer") == "SGD"
        last = model[6].parameters()
        optimizer = torch.optim.SGD(last, 0.01) if plain else torch.optim.Adam(last, foreach=R.get("foreach"))
        for n in range(6):
            if n == 3:
                for one in model.parameters():
                    one.requires_grad_(True)
                optimizer.add_param_group({"params": list(model[:6].parameters())})
            step(model, optimizer, 64, 4096)  # asks
        """,
        phase="optimizer",
    ),
    Death(
        "a memory bank lengthened by torch.cat in each step",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        bank = torch.empty(0, 512, device="cuda")
        for n in range(40):
            z = model(torch.empty(16000, 512, device="cuda"))
            z.square().mean().backward()
            if R.get("leak") is not False:
                bank = torch.cat([bank, z.detach()])  # keeps
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "losses of eight micro-batches stacked before one backward",
        "activations",
        GPT
        + """
        model = gpt(n_layer=4, n_embd=512, n_head=8, vocab_size=8000).cuda()
        optimizer = optimizer_of(model)
        for n in range(4):
            losses = []
            for k in range(8):
                ids = torch.zeros(2, 512, dtype=torch.long, device="cuda")
                losses.append(model(ids, labels=ids).loss)  # asks
            torch.stack(losses).mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,
        phase="forward",
    ),
    Death(
        "a corpus encoded, and all similarities at once",
        "activations",
        """
        model = stack(3, 512).eval()
        with torch.no_grad():
            found = torch.cat([model(torch.empty(2500, 512, device="cuda")) for _ in range(8)])
            scores = found @ found.T  # asks
            print(scores.topk(5))
        """,
        line="# asks",
        remedy=False,
    ),
    Death(
        "cross-validation that keeps each fold's model",
        "weights",
        """
        kept = []
        for fold in range(4):
            model = stack(4, 4096)
            optimizer = optimizer_of(model) if R.get("optimizer") else torch.optim.AdamW(model.parameters(), fused=True)
            for n in range(3):
                step(model, optimizer, 64, 4096)
            if R.get("beside") is not False:
                kept.append(model)
        """,
    ),
    Death(
        "logits of a large vocabulary in bfloat16, loss in float32",
        "activations",
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.head = nn.Embedding(96000, 128), nn.Linear(128, 96000, bias=False)
                block = lambda: nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
                self.blocks = nn.ModuleList(block() for _ in range(4))
            def forward(self, ids, labels):
                x = self.words(ids)
                for block in self.blocks:
                    x = x + block(x)
                logits = self.head(x).float()
                return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        model = Model().cuda().bfloat16()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(3):
            for _ in range(parts):
                ids = torch.zeros(8 // parts, 256, dtype=torch.long, device="cuda")
                model(ids, ids).backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "the whole data set on the card",
        "activations",
        """
        data = torch.empty(520_000, 512, device="cuda")
        model = stack(8, 512)
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(4):
            for part in data[n * 40_000:(n + 1) * 40_000].chunk(parts):
                model(part).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        remedy=False,  # (whether it goes on growing is not known)
    ),
    Death(
        "halved until it fits",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        rows = 120_000 // R.get("micro_batches", 1)
        done = 0
        while done < 3:
            failed = False
            try:
                step(model, optimizer, rows, 1024)  # asks
                done += 1
            except torch.cuda.OutOfMemoryError:
                failed = True
            if failed:
                optimizer.zero_grad(); torch.cuda.empty_cache()
                rows //= 2
        """,
        survived=True,
        tried=False,
    ),
    Death(
        "errors of memory kept for the report",
        "leak",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        failures, rows, done = [], 50_000, 0
        while done < 3:
            try:
                step(model, optimizer, rows, 1024)  # fails
                done += 1
            except torch.OutOfMemoryError as error:
                failures.append(str(error) if R.get("leak") is False else error)
                optimizer.zero_grad()
                rows = int(rows * 0.6)
                if rows < 2000:
                    raise
        """,
        line="# fails",
        remedy=False,
    ),
    Death(
        "a checkpoint with the optimizer's state, still held",
        "weights",
        """
        model = stack(4, 4096)
        optimizer = optimizer_of(model) if R.get("optimizer") else torch.optim.AdamW(model.parameters(), fused=True)
        step(model, optimizer, 64, 4096)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "resume.pt")
        where = "cpu" if R.get("beside") is False else "cuda"
        checkpoint = torch.load("resume.pt", map_location=where)  # asks
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        for n in range(3):
            step(model, optimizer, 64, 4096)
        """,
        remedy=False,
    ),
    Death(
        "a ViT whose head was warmed up alone, then all unfrozen",
        "activations",
        """
        from transformers import ViTConfig, ViTForImageClassification
        model = ViTForImageClassification(ViTConfig(hidden_size=384, num_hidden_layers=8, num_attention_heads=6,
            intermediate_size=1536, image_size=224, patch_size=16, num_labels=100)).cuda()
        model.vit.requires_grad_(False)
        head = torch.optim.AdamW(model.classifier.parameters())
        parts = R.get("micro_batches", 1)
        def train(optimizer):
            for _ in range(parts):
                pictures = torch.empty(64 // parts, 3, 224, 224, device="cuda")
                labels = torch.zeros(64 // parts, dtype=torch.long, device="cuda")
                model(pixel_values=pictures, labels=labels).loss.backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        for _ in range(4):
            train(head)
        model.vit.requires_grad_(True)
        optimizer = optimizer_of(model)
        for _ in range(3):
            train(optimizer)
        """,
        phase="forward",
    ),
    Death(
        "DPO: a policy beside its reference, pairs of long answers",
        "activations",
        GPT
        + """
        policy, reference = gpt(vocab_size=20000).cuda(), gpt(vocab_size=20000).cuda().requires_grad_(False).eval()
        optimizer = optimizer_of(policy)
        parts = R.get("micro_batches", 1)
        def logps(model, ids):
            logits = model(input_ids=ids).logits[:, :-1]
            return logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0].sum(-1)  # asks
        for n in range(3):
            for _ in range(parts):
                ids = torch.zeros(8 // parts, 512, dtype=torch.long, device="cuda")
                with torch.no_grad():
                    aim = logps(reference, ids)
                ours = logps(policy, ids)
                good, bad = (ours - aim).chunk(2)
                (-nn.functional.logsigmoid(0.1 * (good - bad)).mean() if len(bad) else good.sum()).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,
        phase="forward",
    ),
    Death(
        "experts, whose dispatch mask has a place for each pair of tokens, and more rows",
        "activations",
        """
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.router = nn.Linear(256, 8)
                self.experts = nn.ModuleList(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(8))
            def forward(self, x):
                flat = x.reshape(-1, 256)
                share = self.router(flat).softmax(-1)
                room = len(flat) // 4
                mask = share[:, :, None] * torch.ones(room, device=x.device)  # tokens x experts x room
                sent = torch.einsum("tec,td->ecd", mask, flat)
                done = torch.stack([expert(one) for expert, one in zip(self.experts, sent)])
                return torch.einsum("tec,ecd->td", mask, done).view_as(x)
        model = nn.Sequential(Experts(), Experts()).cuda()
        optimizer = optimizer_of(model)
        for rows in (4, 4, 4, 4, 16):  # (12 first: it came through)
            parts = R.get("micro_batches", 1) if rows > 4 else 1
            for _ in range(parts):
                model(torch.empty(rows // parts, 512, 256, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "compiled by AOT, first step",
        "activations",
        """
        model = stack(12, 1024)
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for _ in range(2):
            for _ in range(parts):
                compiled(torch.empty(32000 // parts, 1024, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,
        phase="forward",
    ),
    Death(
        "a notebook's cell run again while the old model lives",
        "weights",
        """
        cell = chr(10).join(["model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(5)]).to('cuda')",
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)", "for _ in range(2):", "    optimizer.zero_grad()",
            "    model(torch.empty(64, 4096, device='cuda')).square().mean().backward()", "    optimizer.step()"])
        space = dict(globals())
        for _ in range(3):
            exec(cell, space)
            if R.get("beside") is False:
                space["model"] = space["optimizer"] = None
        """,
    ),
    Death(
        "gradients of each sample for itself",
        "activations",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        weights = {name: one.detach() for name, one in model.named_parameters()}
        def loss_of(weights, x):
            return torch.func.functional_call(model, weights, (x[None],)).square().mean()
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                x = torch.empty(128 // parts, 1024, device="cuda")
                each = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(weights, x)  # asks
                for name, one in model.named_parameters():
                    one.grad = (each[name] / each[name].norm()).sum(0)
                del each
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,
    ),
]
