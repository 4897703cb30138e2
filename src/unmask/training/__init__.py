"""What every training run needs, whatever the modality: settings, schedule, optimiser, checkpoints, tracking.

- `settings`: one frozen dataclass, and the helpers that fill any settings dataclass from TOML or `key=value`.
- `schedule`: the learning rate as a pure function of the fraction of the run done.
- `optimiser`: fused AdamW with clipping folded in, StableAdamW, and the guard against a diverging run.
- `precision`: which device and number format, by capability and a short measurement, with the reason.
- `memory`: keep freed memory in the process; page faults are the dear part of a small training step.
- `checkpoint`: atomic, verified, safetensors only; reading published weights safely.
- `signals`: a clean stop: save and leave.
- `run`: one pretraining run, on a `job`; `compute`, `micro_batches`, `progress`, `validation` and `best` are its parts.
- `finetune`: the fine-tuning loop of every kind of data.
- `tracking`: metrics.jsonl, the live line on stderr, optional external trackers.
"""
