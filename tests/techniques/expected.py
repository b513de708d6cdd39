"""Expected reports of the trainings of ``cases`` and ``framework_cases``."""

from __future__ import annotations

from names import CHECKPOINTING, CHECKPOINTS_PARTLY, CHECKPOINTS_TO_HOST, HAS_MUON

CHECKPOINTED = "recomputed in backward: 4 Sequential (blocks.0 to blocks.3); variant: "
SMALL_STAY = "{}-bit state for 16,384 of 16,900 parameters; 32 bits for the rest, mostly Linear (516)"
"""Both libraries keep tensors of fewer than 4,096 elements in 32 bits."""
PROJECTED = "gradients of 16,384 of 16,900 parameters are projected to rank 8; 2,048 numbers per moment"
FOUR = {"gradient_accumulation": ("accumulation 4", "{}=4", "4 micro-steps per step")}
SDPA = ("attention memory-efficient", "attn_implementation='sdpa'", "2 calls of memory-efficient attention")
TF32 = "float32 matrix products may use TF32: faster, same memory"
BY_HAND = ("attention eager", None, "softmax over whole score matrices; no fused kernel")

Told = tuple[str, "str | None", "str | None"]

EXPECTED: dict[str, tuple[dict[str, Told], set[str]]] = {
    "plain": ({}, set()),
    "galore": ({"gradient_projection": ("GaLore rank 8", None, PROJECTED)}, set()),
    "apollo": ({"gradient_projection": ("APOLLO rank 8", None, PROJECTED)}, set()),
    "schedule_free": ({}, set()),
    "lomo": ({}, set()),
    "adalomo": ({}, set()),
    "hf_galore_of_tied_weights": (
        {"gradient_projection": ("low-rank gradients", "optim='galore_adamw'", ""), "attention": SDPA},
        {"projection-not-seen"},
    ),
    "checkpoint_non_reentrant": (
        {"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "non-reentrant")},
        set(),
    ),
    "checkpoint_every_second": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 3 Sequential (blocks.0, .2, .4); variant: non-reentrant",
            )
        },
        set(),
    ),
    "checkpoint_reentrant": ({"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "reentrant")}, set()),
    "checkpoint_adapters_without_gradient": ({}, {"checkpoint-without-gradient"}),
    "checkpoint_adapters_with_gradient": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 3 Adapted (blocks.0 to blocks.2); variant: reentrant",
            )
        },
        set(),
    ),
    "checkpoint_adapters_non_reentrant": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 3 Adapted (blocks.0 to blocks.2); variant: non-reentrant",
            )
        },
        set(),
    ),
    "checkpoint_unset": (
        {"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "reentrant")},
        {"use-reentrant-unset"},
    ),
    "checkpoint_segments": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 2 Linear (layers.0 to layers.1); variant: reentrant",
            )
        },
        {"use-reentrant-unset"},
    ),
    "checkpoint_wrapper": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 1 Sequential (blocks.1); variant: non-reentrant",
            )
        },
        set(),
    ),
    "checkpoint_selective": (
        {"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "non-reentrant, selective")},
        set(),
    ),
    "checkpoint_own": ({"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "other")}, set()),
    "attention_of_ones_own": ({"attention": BY_HAND}, set()),
    "router_of_ones_own": ({}, set()),
    "checkpointed_function": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: function scores_of_pairs; variant: non-reentrant",
            ),
            "attention": BY_HAND,
        },
        set(),
    ),
    "checkpointed_function_reentrant": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: function scores_of_pairs; variant: reentrant",
            )
        },
        set(),
    ),
    "checkpointed_function_beside_blocks": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 4 Sequential (blocks.0 to blocks.3) and function WithLoss.loss; variant: non-reentrant",
            )
        },
        set(),
    ),
    "checkpoint_around_a_part_without_gradients": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 5 modules (blocks.0 to .3, codes); variant: non-reentrant",
            )
        },
        set(),
    ),
    "checkpointed_function_without_gradients": ({}, set()),
    "checkpoint_of_frozen_blocks": (
        {
            "gradient_checkpointing": ("checkpointing", "gradient_checkpointing=True in the model", ""),
            "peft": ("trained 1.5 %", None, "260 of 16,900 parameters are trained (1.5 %)"),
        },
        {"checkpointing-not-seen"},
    ),
    "closure_late": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 1 Sequential (blocks.3); variant: non-reentrant",
            )
        },
        {"checkpoint-closure"},
    ),
    "closure_late_reentrant": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 1 Sequential (blocks.3); variant: reentrant",
            )
        },
        {"checkpoint-closure"},
    ),
    "closure_early": ({"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "non-reentrant")}, set()),
    "closure_by_number": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 1 Sequential (blocks.3); variant: non-reentrant",
            )
        },
        {"checkpoint-closure"},
    ),
    "closure_over_a_tensor": (
        {"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "non-reentrant")},
        {"checkpoint-closure"},
    ),
    "closure_that_counts": ({"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "non-reentrant")}, set()),
    "teacher_inside": ({}, set()),
    "teacher_without_gradients": ({}, set()),
    "accumulation": ({"gradient_accumulation": ("accumulation 4", None, "4 micro-steps per step")}, set()),
    "accumulation_keeping_zeros": (
        {"gradient_accumulation": ("accumulation 3", None, "3 micro-steps per step")},
        set(),
    ),
    "accumulation_with_a_remainder": (
        {"gradient_accumulation": ("accumulation 4", None, "4 micro-steps per step")},
        set(),
    ),
    "two_optimizers_of_one_model": (
        {"gradient_accumulation": ("accumulation 4", None, "4 micro-steps per step")},
        set(),
    ),
    "two_losses_of_one_graph": ({}, set()),
    "two_models_of_one_optimizer": ({}, set()),
    "losses_summed_up": ({}, set()),
    "sharpness_aware": ({}, set()),
    "lbfgs": ({}, set()),
    "gan": ({}, set()),
    "one_packed_sequence": ({}, set()),
    "two_views_of_a_batch": ({}, set()),
    "a_batch_in_pieces": ({"gradient_accumulation": ("accumulation 4", None, "4 micro-steps per step")}, set()),
    "a_loader_of_ready_batches": ({}, set()),
    "lightning_gan": ({}, set()),
    "gan_that_switches_gradients_off": ({}, set()),
    "gan_of_two_models": (
        {"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "non-reentrant")},
        set(),
    ),
    "autocast_bf16": ({"mixed_precision": ("bf16", None, "autocast to bfloat16 in 14 of 14 module calls")}, set()),
    "autocast_fp16_scaled": (
        {"mixed_precision": ("fp16", None, "autocast to float16 in 14 of 14 module calls, with a GradScaler")},
        set(),
    ),
    "autocast_fp16_unscaled": (
        {"mixed_precision": ("fp16", None, "autocast to float16 in 14 of 14 module calls")},
        {"fp16-without-scaler"},
    ),
    "autocast_fp16_scaled_by_hand": (
        {"mixed_precision": ("fp16", None, "autocast to float16 in 14 of 14 module calls")},
        set(),
    ),
    "autocast_fp16_of_a_frozen_part": (
        {
            "mixed_precision": ("fp16", None, "autocast to float16 in 12 of 14 module calls"),
            "peft": ("trained 1.5 %", None, "260 of 16,900 parameters are trained (1.5 %)"),
        },
        set(),
    ),
    "autocast_bf16_scaled": (
        {"mixed_precision": ("bf16", None, "autocast to bfloat16 in 14 of 14 module calls, with a GradScaler")},
        {"scaler-with-bf16"},
    ),
    "autocast_bf16_unscaled": (
        {"mixed_precision": ("bf16", None, "autocast to bfloat16 in 14 of 14 module calls")},
        set(),
    ),
    "bf16_weights": (
        {"mixed_precision": ("bf16 weights", None, "trained parameters are bfloat16")},
        set(),
    ),
    "bf16_weights_with_masters": (
        {
            "mixed_precision": (
                "bf16 weights with fp32 masters",
                None,
                "model parameters are bfloat16; the optimizer updates float32 copies",
            )
        },
        set(),
    ),
    "bf16_weights_that_stay": (
        {"mixed_precision": ("bf16 weights", None, "model parameters are bfloat16")},
        set(),
    ),
    "frozen_in_bf16": (
        {
            "mixed_precision": ("bf16 frozen weights", None, "frozen weights in bfloat16"),
            "peft": ("trained 1.5 %", None, "260 of 16,900 parameters are trained (1.5 %)"),
        },
        set(),
    ),
    "frozen_in_bf16_and_cast": (
        {
            "distributed": ("FSDP2", None, "FSDP2 (S(0)), one rank"),
            "mixed_precision": ("bf16", None, "weights cast to bfloat16 in 1 of 14 module calls"),
            "peft": ("trained 1.5 %", None, "260 of 16,900 parameters are trained (1.5 %)"),
        },
        set(),
    ),
    "teacher_in_bf16": ({}, set()),
    "lora_on_bf16": (
        {
            "mixed_precision": ("bf16 frozen weights", None, "frozen weights in bfloat16"),
            "peft": ("LoRA 11 %", "peft: LoRA, r=4", "2,048 of 18,948 parameters are trained (11 %)"),
        },
        set(),
    ),
    "fused_optimizer": ({}, set()),
    "an_optimizer_a_parameter": ({}, set()),
    "eight_bit": (
        {
            "optimizer_8bit": (
                "8-bit 98 %",
                None,
                "8-bit state for 16,640 of 16,900 parameters; 32 bits for the rest, mostly Linear (260)",
            )
        },
        set(),
    ),
    "optimizer_on_the_host": (
        {"offload": ("optimizer offload", None, "on the host: 100 % of the optimizer state")},
        set(),
    ),
    "eight_bit_by_torchao": ({"optimizer_8bit": ("8-bit 96 %", None, SMALL_STAY.format(8))}, set()),
    "four_bit_by_torchao": ({"optimizer_8bit": ("4-bit 96 %", None, SMALL_STAY.format(4))}, set()),
    "fp8_by_torchao": ({"optimizer_8bit": ("8-bit 96 %", None, SMALL_STAY.format(8))}, set()),
    "offload_by_torchao": (
        {"offload": ("optimizer offload", None, "on the host: 97 % of the optimizer state")},
        set(),
    ),
    "eight_bit_by_bitsandbytes": ({"optimizer_8bit": ("8-bit 96 %", None, SMALL_STAY.format(8))}, set()),
    "paged_by_bitsandbytes": (
        {
            "optimizer_8bit": (
                "8-bit 99 %",
                None,
                "8-bit state for 528,384 of 528,448 parameters; 32 bits for the rest, mostly Linear (64)",
            ),
            "offload": ("optimizer offload", None, "on the host: 97 % of the optimizer state"),
        },
        set(),
    ),
    "paged_lion": (
        {
            "optimizer_8bit": (
                "8-bit 99 %",
                None,
                "8-bit state for 528,384 of 528,448 parameters; 32 bits for the rest, mostly Linear (64)",
            ),
            "offload": ("optimizer offload", None, "on the host: 97 % of the optimizer state"),
        },
        set(),
    ),
    "tokens": ({}, set()),
    "saved_tensors_on_the_host": (
        {"offload": ("activation offload", None, "on the host: saved tensors, by save_on_cpu")},
        set(),
    ),
    "saved_tensors_on_the_host_by_hand": (
        {"offload": ("activation offload", None, "on the host: saved tensors, by pack")},
        set(),
    ),
    "saved_tensors_on_the_host_in_objects": (
        {"offload": ("activation offload", None, "on the host: saved tensors, by Put")},
        set(),
    ),
    "saved_tensors_on_the_host_in_functions": (
        {"offload": ("activation offload", None, "on the host: saved tensors, by pack_away")},
        set(),
    ),
    "saved_tensors_looked_at": ({}, set()),
    "mostly_frozen": ({"peft": ("trained 1.5 %", None, "260 of 16,900 parameters are trained (1.5 %)")}, set()),
    "lora_by_peft": (
        {"peft": ("LoRA 11 %", "peft: LoRA, r=4", "2,048 of 18,948 parameters are trained (11 %)")},
        set(),
    ),
    "gradients_of_each_sample": ({}, set()),
    "hf_prefix_tuning": (
        {
            "peft": (
                "PrefixTuning 0.93 %",
                "peft: PrefixTuning",
                "1,024 of 109,568 parameters are trained (0.93 %)",
            ),
            "attention": SDPA,
        },
        set(),
    ),
    "dora_by_peft": (
        {"peft": ("DoRA 12 %", "peft: DoRA, r=4", "2,304 of 19,204 parameters are trained (12 %)")},
        set(),
    ),
    "adalora_by_peft": (
        {"peft": ("AdaLoRA 11 %", "peft: AdaLoRA, r=4 to 2", "2,064 of 18,968 parameters are trained (11 %)")},
        set(),
    ),
    "frozen_in_int8_by_torchao": (
        {
            "peft": ("trained 1.5 %", None, "260 of 16,964 parameters are trained (1.5 %)"),
            "quantized_weights": ("8-bit weights", None, "16,384 of 16,964 parameters have 8 bits"),
        },
        set(),
    ),
    "attention_fused": (
        {
            "mixed_precision": ("bf16", None, "autocast to bfloat16 in 2 of 2 module calls"),
            "attention": ("attention cuDNN", None, "1 call of cuDNN attention"),
        },
        set(),
    ),
    "attention_of_scores": ({"attention": BY_HAND}, set()),
    "cache_emptied": ({}, {"empty-cache"}),
    "cache_emptied_by_another_name": ({}, {"empty-cache"}),
    "cache_emptied_now_and_then": ({}, set()),
    "another_model_is_there": ({}, set()),
    "cache_emptied_once": ({}, set()),
    "ddp": ({"distributed": ("DDP", None, "DDP (gradients are views of the buckets), one rank")}, set()),
    "fsdp1": (
        {
            "distributed": ("FSDP", None, "FSDP (no_shard), one rank"),
            "mixed_precision": ("bf16", None, "weights cast to bfloat16 in 5 of 15 module calls"),
        },
        set(),
    ),
    "fsdp2": (
        {
            "distributed": ("FSDP2", None, "FSDP2 (S(0)), one rank"),
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 4 FSDPSequential (blocks.0 to blocks.3); variant: non-reentrant",
            ),
        },
        set(),
    ),
    "fsdp2_on_the_host": (
        {
            "distributed": ("FSDP2", None, "FSDP2 (S(0)), one rank"),
            "mixed_precision": ("bf16", None, "weights cast to bfloat16 in 5 of 14 module calls"),
            "offload": (
                "parameter offload",
                None,
                "on the host: unused parameters, 100 % of the optimizer state",
            ),
        },
        set(),
    ),
    "compiled": ({"compile": ("compiled", None, "torch.compile made 1 graph")}, set()),
    "compiled_function": ({"compile": ("compiled", None, "torch.compile made 1 graph")}, set()),
    "compiled_parts": (
        {
            "gradient_accumulation": ("accumulation 4", None, "4 micro-steps per step"),
            "compile": ("compiled", None, "torch.compile made 1 graph"),
        },
        set(),
    ),
    "compiled_parts_in_place": ({"compile": ("compiled", None, "torch.compile made 1 graph")}, set()),
    "only_the_optimizer_compiled": (
        {"gradient_checkpointing": ("checkpointing", None, CHECKPOINTED + "non-reentrant")},
        set(),
    ),
    "earlier_run_alive": ({}, {"earlier-run-alive"}),
    "earlier_run_gone": ({}, set()),
    "hf_plain": (
        {"attention": SDPA},
        set(),
    ),
    "hf_with_an_adapter": (
        {
            "peft": ("LoRA 0.93 %", "peft: LoRA, r=2", "1,024 of 109,568 parameters are trained (0.93 %)"),
            "optimizer_8bit": ("8-bit optimizer", "optim='adamw_bnb_8bit'", ""),
            "attention": SDPA,
        },
        {"8bit-not-seen"},
    ),
    "hf_qlora": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                "gradient_checkpointing=True in the model",
                "recomputed in backward: 2 LlamaDecoderLayer (base_model.model.model.layers.0 to base_model.model.model.layers.1); "
                "variant: non-reentrant",
            ),
            "mixed_precision": ("bf16", "bf16=True", "autocast to bfloat16 in 41 of 42 module calls"),
            "optimizer_8bit": (
                "8-bit 100 %",
                "optim='paged_adamw_8bit'",
                "8-bit state for 16,384 of 16,384 parameters",
            ),
            "peft": ("LoRA 15 %", "peft: LoRA, r=64", "16,384 of 111,424 parameters are trained (15 %)"),
            "quantized_weights": (
                "4-bit weights",
                "quantization_config: bitsandbytes, load_in_4bit",
                "81,920 of 111,424 parameters have 4 bits",
            ),
            "attention": ("attention cuDNN", "attn_implementation='sdpa'", "2 calls of cuDNN attention"),
        },
        set(),
    ),
    "hf_all": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                f"{CHECKPOINTING}=True",
                "recomputed in backward: 2 GPT2Block (transformer.h.0 to transformer.h.1); variant: non-reentrant",
            ),
            "gradient_accumulation": ("accumulation 4", "gradient_accumulation_steps=4", "4 micro-steps per step"),
            "mixed_precision": ("bf16", "bf16=True", "autocast to bfloat16 in 120 of 124 module calls"),
            "attention": SDPA,
        },
        {"empty-cache"},
    ),
    "hf_reentrant": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                f"{CHECKPOINTING}=True",
                "recomputed in backward: 2 GPT2Block (transformer.h.0 to transformer.h.1); variant: reentrant",
            ),
            "mixed_precision": (
                "fp16",
                "fp16=True",
                "autocast to float16 in 30 of 31 module calls, with a GradScaler",
            ),
            "attention": ("attention sdpa", "attn_implementation='sdpa'", None),  # inside the checkpoint: out of sight
        },
        set(),
    ),
    "hf_in_eval_mode": (
        {
            "gradient_checkpointing": ("checkpointing", f"{CHECKPOINTING}=True", ""),
            "attention": SDPA,
        },
        {"checkpointing-not-seen"},
    ),
    "hf_optimizer_of_ones_own": (
        {
            "mixed_precision": ("tf32", None, TF32),  # a Trainer that compiles allows it
            "attention": SDPA,
            "optimizer_8bit": ("8-bit optimizer", "optim='adamw_bnb_8bit'", ""),
            "offload": ("CPU offload", f"{CHECKPOINTING}_kwargs={{'offload': True}}", ""),
            "compile": ("compiled", "torch_compile=True", ""),
        },
        {"8bit-not-seen", "offload-not-seen", "compile-not-seen"},
    ),
    "hf_eight_bit": (
        {
            "optimizer_8bit": (
                "8-bit 90 %",
                "optim='adamw_bnb_8bit'",
                "8-bit state for 98,304 of 108,544 parameters; 32 bits for the rest, mostly Embedding (8,448)",
            ),
            "attention": SDPA,
        },
        set(),
    ),
    "hf_scores_of_every_pair": (
        {
            "attention": (
                "attention eager",
                "attn_implementation='sdpa'",
                "softmax over whole score matrices; no fused kernel",
            )
        },
        {"attention-not-fused"},
    ),
    "hf_without_attention": ({}, set()),
    "hf_eager": (
        {
            "attention": (
                "attention eager",
                "attn_implementation='eager'",
                "softmax over whole score matrices; no fused kernel",
            )
        },
        set(),
    ),
    "hf_enabled_in_a_plain_loop": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                "gradient_checkpointing=True in the model",
                "recomputed in backward: 2 GPT2Block (transformer.h.0 to transformer.h.1); variant: non-reentrant",
            ),
            "attention": SDPA,
        },
        set(),
    ),
    "accelerate_plain": ({}, set()),
    "accelerate_all": (
        {
            "gradient_accumulation": ("accumulation 4", "gradient_accumulation_steps=4", "4 micro-steps per step"),
            "mixed_precision": ("bf16", "mixed_precision='bf16'", "autocast to bfloat16 in 52 of 56 module calls"),
        },
        set(),
    ),
    "accelerate_unused": (
        {
            "gradient_accumulation": ("accumulation 4", "gradient_accumulation_steps=4", ""),
            "mixed_precision": ("bf16", "mixed_precision='bf16'", ""),
        },
        {"accumulation-not-seen", "mixed-precision-not-seen"},
    ),
    "lightning_plain": ({}, set()),
    "lightning_all": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 4 Sequential (model.blocks.0 to model.blocks.3); variant: non-reentrant",
            ),
            "gradient_accumulation": ("accumulation 4", "accumulate_grad_batches=4", "4 micro-steps per step"),
            "mixed_precision": ("bf16", "precision='bf16-mixed'", "autocast to bfloat16 in 56 of 56 module calls"),
        },
        set(),
    ),
    "lightning_adapter": (
        {
            "peft": ("LoRA 11 %", "peft: LoRA, r=4", "2,048 of 18,948 parameters are trained (11 %)"),
            "offload": ("activation offload", None, "on the host: saved tensors, by save_on_cpu"),
        },
        set(),
    ),
    "lightning_compiled": ({"compile": ("compiled", None, "torch.compile made 1 graph")}, set()),
    "accelerate_adapter": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                "gradient_checkpointing=True in the model",
                "recomputed in backward: 2 GPT2Block (base_model.model.transformer.h.0 to base_model.model.transformer.h.1); "
                "variant: non-reentrant",
            ),
            "mixed_precision": ("bf16", "mixed_precision='bf16'", "autocast to bfloat16 in 39 of 40 module calls"),
            "peft": ("LoRA 1.9 %", "peft: LoRA, r=4", "2,048 of 110,592 parameters are trained (1.9 %)"),
            "attention": SDPA,
        },
        set(),
    ),
    "lightning_ddp": ({"distributed": ("DDP", "strategy='DDPStrategy'", "DDP, one rank")}, set()),
    "lightning_true_bf16": (
        {
            "mixed_precision": (
                "bf16 weights",
                "precision='bf16-true'",
                "trained parameters are bfloat16",
            )
        },
        set(),
    ),
    "foreach_optimizer": ({}, set()),
    "single_optimizer": ({}, set()),
    "adafactor": ({}, set()),
    "ia3_by_peft": ({"peft": ("IA3 1.5 %", "peft: IA3", "256 of 17,156 parameters are trained (1.5 %)")}, set()),
    "attention_flex": ({"attention": ("attention flex", None, "1 call of flex attention")}, set()),
    "accumulation_under_no_sync": (
        {
            "gradient_accumulation": ("accumulation 3", None, "3 micro-steps per step"),
            "distributed": ("DDP", None, "DDP, one rank"),
        },
        set(),
    ),
    "zero_redundancy": ({"distributed": ("DDP + ZeRO-1", None, "DDP + ZeRO-1, one rank")}, set()),
    "earlier_run_outputs_alive": ({}, {"earlier-run-alive"}),
    "earlier_run_outputs_gone": ({}, set()),
    "earlier_run_is_this_one": ({}, set()),
    "checkpoint_gated": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                None,
                "recomputed in backward: 4 Sequential (blocks.0 to blocks.3); variant: non-reentrant",
            )
        },
        set(),
    ),
    "checkpoint_gated_in_eval_mode": ({}, {"checkpointing-in-eval-mode"}),
    "checkpoint_gated_and_switched_off": ({}, set()),
    "hf_adafactor": ({"attention": SDPA}, set()),
    "hf_adalomo": ({"attention": SDPA}, set()),
    "hf_sgd_instead": ({"attention": SDPA}, {"optimizer-differs"}),
    "hf_sgd_unasked": ({"attention": SDPA}, set()),
    "hf_eight_bit_by_torchao": (
        {
            "optimizer_8bit": (
                "8-bit 96 %",
                "optim='adamw_torch_8bit'",
                "8-bit state for 104,704 of 108,544 parameters; 32 bits for the rest, mostly Embedding (2,048)",
            ),
            "attention": SDPA,
        },
        set(),
    ),
    "hf_lion": (
        {
            "optimizer_8bit": (
                "8-bit 90 %",
                "optim='paged_lion_8bit'",
                "8-bit state for 98,304 of 108,544 parameters; 32 bits for the rest, mostly Embedding (8,448)",
            ),
            "attention": SDPA,
        },
        set(),
    ),
    "hf_few_batches": (
        {
            "gradient_accumulation": ("accumulation 2", "gradient_accumulation_steps=4", "2 micro-steps per step"),
            "attention": SDPA,
        },
        {"accumulation-differs"},
    ),
    "hf_remainder": (
        {
            "gradient_accumulation": ("accumulation 4", "gradient_accumulation_steps=4", "4 micro-steps per step"),
            "attention": SDPA,
        },
        set(),
    ),
    "hf_batch_size_found": ({"attention": SDPA}, set()),
    "hf_tf32": ({"mixed_precision": ("tf32", "tf32=True", TF32), "attention": SDPA}, set()),
    "hf_compiled": (
        {
            "mixed_precision": ("tf32", None, TF32),
            "compile": ("compiled", "torch_compile=True", "torch.compile made 2 graphs"),
            "attention": ("attention sdpa", "attn_implementation='sdpa'", None),
        },
        set(),
    ),
    "accelerate_by_environment": (
        {
            "gradient_accumulation": ("accumulation 2", "gradient_accumulation_steps=2", "2 micro-steps per step"),
            "mixed_precision": (
                "fp16",
                "mixed_precision='fp16'",
                "autocast to float16 in 26 of 28 module calls, with a GradScaler",
            ),
        },
        set(),
    ),
    "accelerate_another_dtype": (
        {
            "mixed_precision": (
                "fp16",
                "mixed_precision='bf16'",
                "autocast to float16 in 14 of 14 module calls, with a GradScaler",
            )
        },
        {"mixed-precision-differs"},
    ),
    "accelerate_eight_bit": (
        {
            "optimizer_8bit": (
                "8-bit 72 %",
                None,
                "8-bit state for 12,288 of 16,900 parameters; 32 bits for the rest, mostly Linear (4,612)",
            )
        },
        set(),
    ),
    "accelerate_fp8": (
        {
            "mixed_precision": (
                "bf16 + fp8",
                "mixed_precision='fp8'",
                "autocast to bfloat16 in 13 of 14 module calls, 3 float8 matrix products",
            )
        },
        set(),
    ),
    "accelerate_fp8_unused": ({"mixed_precision": ("fp8", "mixed_precision='fp8'", None)}, set()),
    "accelerate_compiled": (
        {
            "mixed_precision": ("tf32", None, TF32),
            "compile": ("compiled", "torch_compile='AOT_EAGER'", "torch.compile made 1 graph"),
        },
        set(),
    ),
    "accelerate_offloaded": (
        {
            "offload": ("parameter offload", "device_map: blocks on the host", "on the host: parameters of 4 modules"),
            "peft": ("trained 1.5 %", None, "260 of 16,900 parameters are trained (1.5 %)"),
        },
        {"empty-cache"},
    ),
    "accelerate_fsdp": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                "activation_checkpointing=True",
                "recomputed in backward: 4 Sequential (blocks.0 to blocks.3); variant: non-reentrant",
            ),
            "distributed": ("FSDP", "fsdp='ShardingStrategy.FULL_SHARD'", "FSDP (no_shard), one rank"),
        },
        set(),
    ),
    "accelerate_fsdp2": ({"distributed": ("FSDP2", "fsdp='version 2'", "FSDP2 (S(0)), one rank")}, set()),
    "accelerate_fsdp2_on_the_host": (
        {
            "offload": (
                "parameter offload",
                "cpu_offload=True",
                "on the host: unused parameters, 100 % of the optimizer state",
            ),
            "distributed": ("FSDP2", "fsdp='version 2'", "FSDP2 (S(0)), one rank"),
        },
        set(),
    ),
    "accelerate_fsdp_unused": ({"distributed": ("fsdp", "fsdp='version 2'", "")}, {"distributed-not-seen"}),
    "lightning_fp16": (
        {
            "mixed_precision": (
                "fp16",
                "precision='16-mixed'",
                "autocast to float16 in 14 of 14 module calls, with a GradScaler",
            )
        },
        set(),
    ),
    "lightning_eight_bit": (
        {
            "optimizer_8bit": (
                "8-bit 72 %",
                None,
                "8-bit state for 12,288 of 16,900 parameters; 32 bits for the rest, mostly Linear (4,612)",
            )
        },
        set(),
    ),
    "lightning_schedule": (
        {
            "gradient_accumulation": (
                "accumulation 4",
                "accumulate_grad_batches='{0: 8, 1: 4}'",
                "4 micro-steps per step",
            )
        },
        set(),
    ),
    "lightning_fsdp": (
        {
            "gradient_checkpointing": (
                "checkpointing",
                "activation_checkpointing=True",
                "recomputed in backward: 4 Sequential (model.blocks.0 to model.blocks.3); variant: non-reentrant",
            ),
            "offload": (
                "parameter offload",
                "cpu_offload=True",
                "on the host: unused parameters, 100 % of the optimizer state",
            ),
            "distributed": ("FSDP", "strategy='FSDPStrategy'", "FSDP (no_shard), one rank"),
        },
        set(),
    ),
}
"""Case -> (techniques except optimizer and batch: chip, declared, observed; findings)."""

if CHECKPOINTS_PARTLY:
    EXPECTED |= {
        "hf_every_second_layer": (
            {
                "gradient_checkpointing": (
                    "checkpointing",
                    "activation_checkpointing=True",
                    "recomputed in backward: 1 GPT2Block (transformer.h.0); variant: non-reentrant",
                ),
                "attention": SDPA,
            },
            set(),
        ),
        "hf_fsdp": (
            {
                "gradient_checkpointing": (
                    "checkpointing",
                    "activation_checkpointing=True",
                    "recomputed in backward: 2 FSDPGPT2Block (transformer.h.0 to transformer.h.1); variant: non-reentrant",
                ),
                "offload": (
                    "parameter offload",
                    "cpu_offload=True",
                    "on the host: unused parameters, 100 % of the optimizer state",
                ),
                "distributed": ("FSDP2", "fsdp=True", "FSDP2 (S(0)), one rank"),
                "attention": SDPA,
            },
            set(),
        ),
        "hf_checkpoints_on_the_host": (
            {
                "gradient_checkpointing": (
                    "checkpointing",
                    "activation_checkpointing=True",
                    "recomputed in backward: 2 GPT2Block (transformer.h.0 to transformer.h.1); variant: non-reentrant",
                ),
                "offload": (
                    "activation offload",
                    "activation_checkpointing_kwargs={'offload': True}",
                    "on the host: saved tensors, by save_on_cpu",
                ),
                "attention": SDPA,
            },
            set(),
        ),
    }
if CHECKPOINTS_TO_HOST:
    EXPECTED |= {
        "accelerate_fsdp2_checkpoints_on_the_host": (
            {
                "gradient_checkpointing": (
                    "checkpointing",
                    "activation_checkpointing=True",
                    "recomputed in backward: 4 FSDPSequential (blocks.0 to blocks.3); variant: non-reentrant",
                ),
                "offload": (
                    "activation offload",
                    "activation_checkpointing_offload=True",
                    "on the host: saved tensors, by save_on_cpu",
                ),
                "distributed": ("FSDP2", "fsdp='version 2'", "FSDP2 (S(0)), one rank"),
            },
            set(),
        ),
    }
if HAS_MUON:
    EXPECTED |= {
        "muon": ({}, set()),
    }

KEPT = "; gradients stay allocated between steps: 66.0 KiB in addition to the activations"
OPTIMIZERS = {
    "foreach_optimizer": ("AdamW", None, "torch.optim.AdamW (foreach)"),
    "single_optimizer": ("AdamW", None, "torch.optim.AdamW (single)"),
    "adafactor": ("Adafactor", None, "torch.optim.Adafactor"),
    "zero_redundancy": (
        "AdamW + ZeroRedundancyOptimizer",
        None,
        "torch.optim.AdamW and torch.ZeroRedundancyOptimizer",
    ),
    "hf_adafactor": ("Adafactor", "optim='adafactor'", "transformers.Adafactor"),
    "hf_adalomo": ("AdaLomo", "optim='adalomo'", "lomo_optim.AdaLomo"),
    "hf_sgd_instead": ("SGD", "optim='adafactor'", "torch.optim.SGD"),
    "hf_lion": ("Lion", "optim='paged_lion_8bit'", "bitsandbytes.Lion"),
    "hf_eight_bit_by_torchao": ("AdamW8bit", "optim='adamw_torch_8bit'", "torchao.AdamW8bit"),
    "accelerate_eight_bit": ("AdamW8bit", None, "bitsandbytes.AdamW8bit"),
    "lightning_eight_bit": ("AdamW8bit", None, "bitsandbytes.AdamW8bit"),
    "fused_optimizer": ("Adam fused", None, "torch.optim.Adam (fused)"),
    "an_optimizer_a_parameter": ("SGD", None, "torch.optim.SGD"),
    "lbfgs": ("LBFGS", None, f"torch.optim.LBFGS{KEPT}"),
    "accumulation": ("AdamW", None, "torch.optim.AdamW"),
    "accumulation_keeping_zeros": ("AdamW", None, f"torch.optim.AdamW{KEPT}"),
    "gan": ("SGD + Adam", None, "torch.optim.SGD and torch.optim.Adam"),
    "eight_bit": ("Eight", None, "cases.Eight"),
    "eight_bit_by_torchao": ("AdamW8bit", None, "torchao.AdamW8bit"),
    "offload_by_torchao": ("AdamW fused", None, "torch.optim.AdamW (fused)"),
    "galore": ("AdamW", None, "galore_torch.AdamW"),
    "schedule_free": ("AdamWScheduleFree", None, "schedulefree.AdamWScheduleFree (foreach)"),
    "lomo": ("Lomo", None, "lomo_optim.Lomo"),
    "adalomo": ("AdaLomo", None, "lomo_optim.AdaLomo"),
    "paged_by_bitsandbytes": ("PagedAdamW8bit", None, "bitsandbytes.PagedAdamW8bit"),
    "paged_lion": ("PagedLion8bit", None, "bitsandbytes.PagedLion8bit"),
    "hf_eight_bit": ("AdamW", "optim='adamw_bnb_8bit'", "bitsandbytes.AdamW"),
    "hf_plain": ("AdamW", "optim='adamw_torch'", "torch.optim.AdamW"),
    "hf_all": ("AdamW fused", "optim='adamw_torch_fused'", "torch.optim.AdamW (fused)"),
    "accelerate_all": ("AdamW", None, "torch.optim.AdamW"),
    "lightning_all": ("AdamW", None, "torch.optim.AdamW"),
}
BATCHES = {
    "accumulation_under_no_sync": ("batch 8", None, 24),
    "hf_prefix_tuning": ("batch 2 x 16", "per_device_train_batch_size=2", 2),
    "hf_few_batches": ("batch 32 x 16", "per_device_train_batch_size=32", 64),
    "hf_batch_size_found": ("batch 2 x 16", "per_device_train_batch_size=2, auto_find_batch_size=True", 2),
    "accelerate_by_environment": ("batch 4", None, 8),
    "plain": ("batch 8", None, 8),
    "accumulation": ("batch 8", None, 32),
    "tokens": ("batch 3 x 17", None, 3),
    "one_packed_sequence": ("batch 1 x 51", None, 1),
    "two_models_of_one_optimizer": ("batch 8", None, 8),
    "losses_summed_up": ("batch 8", None, None),
    "two_losses_of_one_graph": ("batch 8", None, 8),
    "sharpness_aware": ("batch 8", None, 8),
    "checkpoint_reentrant": ("batch 8", None, 8),
    "teacher_inside": ("batch 8", None, 8),
    "ddp": ("batch 8", None, 8),
    "compiled_parts": ("batch 8", None, 32),
    "compiled_parts_in_place": ("batch 8", None, 8),
    "gan": ("batch 8", None, None),
    "two_views_of_a_batch": ("batch 8", None, 8),
    "a_batch_in_pieces": ("batch 2", None, 8),
    "a_loader_of_ready_batches": ("batch 12", None, 12),
    "lightning_gan": ("batch 8", None, 8),
    "hf_all": ("batch 2 x 16", "per_device_train_batch_size=2", 8),
    "accelerate_all": ("batch 4", None, 16),
    "lightning_all": ("batch 4", None, 16),
}
if HAS_MUON:
    OPTIMIZERS["muon"] = ("Muon + AdamW", None, "torch.optim.Muon and torch.optim.AdamW")
