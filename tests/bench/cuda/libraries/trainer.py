"""expects: nothing. transformers' Trainer in bf16, with checkpointing and accumulation."""

import tempfile

import torch
from bits import DEVICE, done
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
ids = torch.randint(256, (64, 32))
rows = [{"input_ids": row, "labels": row} for row in ids]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        max_steps=4,
        bf16=DEVICE == "cuda",
        save_strategy="no",
        report_to=[],
        logging_steps=100,
    )
    result = Trainer(model, arguments, train_dataset=rows).train()
done([result.training_loss], model)
