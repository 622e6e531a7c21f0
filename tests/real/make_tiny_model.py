"""Runs in vLLM's interpreter: ``make_tiny_model.py FOLDER [LAYERS WIDTH]`` writes a Llama small enough for two cores and
no GPU, and two LoRA adapters of it in ``adapter-a`` and ``adapter-b``.

Knows a model's files: two layers unless told otherwise, a byte-level BPE vocabulary of 1,024 tokens, a ChatML template, weights
from a fixed seed. Its answers are nonsense, but they depend on every cached key and value: a wrong block would change them.
"""

# mypy: ignore-errors
# The checker's environment has none of these packages, and this file is never imported from there.

import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 1024
SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def corpus():
    """Made-up sentences: enough repeated syllables for a thousand merges."""
    draw = random.Random(0)
    syllables = [first + second for first in "bcdfghklmnprstvw" for second in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(3000)]
    for _ in range(4000):
        yield " ".join(draw.choices(words, k=12)).capitalize() + ".\n"


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1], pad_token=SPECIAL[2]
    )
    fast.chat_template = TEMPLATE
    return fast


def make_model(layers, width):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=8192,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            architectures=["LlamaForCausalLM"],
        )
    )
    with torch.no_grad():
        for name, weights in model.named_parameters():
            # Far from the usual 0.02: attention must matter, or a wrong cached block would go unnoticed.
            if weights.dim() == 2:
                weights.normal_(0, 0.35 if "proj" in name else 0.5)
    return model


RANK = 8


def write_adapter(folder, model, seed):
    """A LoRA adapter in the form of the peft library, over the attention's projections."""
    torch.manual_seed(seed)
    weights = {}
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "v_proj")):
            wide, deep = module.in_features, module.out_features
            weights[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, wide) * 0.3
            weights[f"base_model.model.{name}.lora_B.weight"] = torch.randn(deep, RANK) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save_pretrained(folder)
    model = make_model(*(map(int, sys.argv[2:4]) if len(sys.argv) > 2 else (2, 128)))
    model.save_pretrained(folder, safe_serialization=True)
    for seed, name in enumerate(("adapter-a", "adapter-b"), 1):
        write_adapter(folder / name, model, seed)
