/** Settings and code of a remedy, as text to copy. Pure. */

/** Code by technique; `parts`: number of micro-batches. Each is a function of `parts` for a framework, or for all (""). */
const CODE = {
  gradient_accumulation: {
    huggingface: (parts) =>
      `# args: the TrainingArguments, before Trainer(args=args, ...)\nargs.per_device_train_batch_size //= ${parts}\nargs.gradient_accumulation_steps *= ${parts}`,
    lightning: (parts) =>
      `# with a DataLoader whose batch_size is divided by ${parts}\ntrainer = Trainer(accumulate_grad_batches=${parts})`,
    accelerate: (parts) =>
      `# with a DataLoader whose batch_size is divided by ${parts}\naccelerator = Accelerator(gradient_accumulation_steps=${parts})\n\nwith accelerator.accumulate(model):\n    accelerator.backward(loss)\n    optimizer.step()\n    optimizer.zero_grad()`,
    "": (parts) =>
      `# inputs, targets: the batch; loss_of: your forward pass and loss, a mean over the rows\nfor x, y in zip(inputs.chunk(${parts}), targets.chunk(${parts})):\n    (loss_of(x, y) * len(x) / len(inputs)).backward()\noptimizer.step()\noptimizer.zero_grad()`,
  },
  gradient_checkpointing: {
    huggingface: () => "# args: the TrainingArguments, before Trainer(args=args, ...)\nargs.gradient_checkpointing = True",
    "": () =>
      "from torch.utils.checkpoint import checkpoint\n\n# in the model's forward, instead of x = block(x)\nx = checkpoint(block, x, use_reentrant=False)",
  },
  optimizer_8bit: {
    huggingface: () =>
      '# pip install bitsandbytes; args: the TrainingArguments, before Trainer(args=args, ...)\nargs.optim = "adamw_bnb_8bit"',
    "": () =>
      "# pip install bitsandbytes; with the learning rate and the options of your optimizer\nimport bitsandbytes\n\noptimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)",
  },
  mixed_precision: { "": () => "# before the optimizer is made\nmodel.to(torch.bfloat16)" },
};

/**
 * Text to copy for a remedy. Null where there is none: its words have it, or it is not a change of code.
 *
 * framework  framework of the run, as the server names it
 */
export function remedyCode({ variable, conf, technique, micro_batches: parts }, framework) {
  if (conf !== null) return `export ${variable}=${conf}`;
  if (technique === "gradient_accumulation" && !(parts > 1)) return null;
  const code = CODE[technique]?.[framework] ?? CODE[technique]?.[""];
  return code ? code(parts) : null;
}
