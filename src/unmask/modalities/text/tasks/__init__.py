"""Fine-tuning on top of any text encoder: heads, the loop, and what each task makes of its data and its logits.

- `data`, `conll`: files to labelled items. `encoding`: items to examples, packed without padding.
- `network`: an encoder with a head. `model`: Hugging Face folders of them.
- `task`: what a task brings; `classify`, `tag`, `answer`, `similarity`: the four; `registry`: those and others by name.
- `finetune`: train, predict, evaluate. `training`: one run from rows to folder. `loop`: its steps.
- `probe`, `baselines`, `compare`: the head's start, what has to be beaten, and whether it was.
- `scorers`: the metrics, by their official rules. `analysis`: where it errs, and why. `glue`: the nine tasks.
- `retrieval`: documents found for queries. `zeroshot`: labels without training.
"""
